"""Which figures the cells allow: some are drawn from values alone, some need the predictions themselves."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from demur.methods import method_rank
from demur.metrics import METRICS
from demur.paper.further import shift_set_name
from demur.paper.published import outliers_of, shift_by_severity
from demur.paper.views import printed_view
from demur.report.compare import Kind, file_name, kind_of, unusual
from demur.report.figures import (
    FIGURE_1,
    Drawing,
    draw_noise_confidence,
    draw_planes,
    draw_reliability,
    draw_roc,
    draw_scores,
    draw_shift,
)
from demur.study.results import read_result
from demur.study.table import Measured
from demur.tasks import IMAGES
from demur.tasks.shift import CORRUPTIONS, SEVERITIES

# accuracy over the classes and over "none" as well differ with a none class only
SHIFT_METRICS = {"ece": "ece", "ece_published": "ece_published", "accuracy": "accuracy_with_none"}  # ours, the paper's
OF_PREDICTIONS = {
    "reliability": (
        "Reliability: accuracy by confidence, ECE (%) in brackets; the darker a bar, the more inputs it has",
        draw_reliability,
    ),
    "scores": ("Confidence of inliers and of all outliers but the far-away ones", draw_scores),
    "roc": ("ROC: inliers accepted against outliers accepted, as the threshold on confidence moves", draw_roc),
}
Groups = Mapping[tuple[Kind, str, str], Mapping[str, Sequence[Measured]]]  # by kind, task, outliers; then by method


def _group_cells(cells: Sequence[Measured]) -> Groups:
    """What can stand in one figure, methods and seeds in order."""
    groups: dict[tuple[Kind, str, str], dict[str, list[Measured]]] = {}
    for run in sorted(cells, key=lambda run: (method_rank(run.cell.method), run.cell.seed)):
        place = kind_of(run.cell), run.cell.task, outliers_of(run.cell)
        groups.setdefault(place, {}).setdefault(run.cell.method, []).append(run)
    return {place: groups[place] for place in sorted(groups, key=lambda place: (place[0].order, *place[1:]))}


def _mean(cells: Sequence[Measured], name: str, metric: str) -> float:
    return float(np.mean([run.values[name, metric].value for run in cells]))


def from_values(cells: Sequence[Measured]) -> Iterator[Drawing]:
    """Those that can be drawn without predictions; means over seeds."""
    groups = _group_cells(cells)
    yield from _noise(groups)
    for (kind, task, outliers), by_method in groups.items():
        shifting = {method: [run for run in runs if "shift" in run.cell.further] for method, runs in by_method.items()}
        collapsed = [method for method, runs in shifting.items() if any(run.collapsed for run in runs)]
        shifting = {method: runs for method, runs in shifting.items() if runs and method not in collapsed}
        for metric, theirs in SHIFT_METRICS.items() if shifting else ():
            measured = {
                method: {
                    severity: [_mean(runs, shift_set_name(corruption, severity), metric) for corruption in CORRUPTIONS]
                    for severity in SEVERITIES
                }
                for method, runs in shifting.items()
            }
            label = METRICS[metric].title
            caption = f"{task} under shift: {label} by severity, a box over the {len(CORRUPTIONS)} corruptions"
            caption += f" (without {', '.join(collapsed)}: collapsed)" * bool(collapsed)
            name = file_name("shift", metric, unusual(task, outliers), kind.slug)
            yield Drawing(name, f"{caption}; {kind.title}", draw_shift(measured, shift_by_severity(theirs), label))


def _noise(groups: Groups) -> Iterator[Drawing]:
    view, tasks = printed_view(), dict.fromkeys(task for _, task, _ in groups)
    known = {task: {method: view.known(task, method, "uniform", "mmc") for method in FIGURE_1} for task in tasks}
    printed = {task: {method: one.value for method, one in of.items() if one} for task, of in known.items()}
    for kind in dict.fromkeys(kind for kind, _, _ in groups):
        measured = {
            task: {method: _mean(by_method[method], "uniform", "mmc") for method in by_method if method in FIGURE_1}
            for (other, task, outliers), by_method in groups.items()
            if other == kind and not unusual(task, outliers) and "uniform" in next(iter(by_method.values()))[0].sets
        }
        order = [*IMAGES, *sorted(measured.keys() - IMAGES.keys())]
        if shown := {task: measured[task] for task in order if measured.get(task)}:
            caption = f"Mean confidence on uniform noise, the paper's figure 1; {kind.title}"
            if any(printed[task].keys() - values.keys() for task, values in shown.items()):
                caption += "; what has no bar is not measured"
            yield Drawing(file_name("noise", kind.slug), caption, draw_noise_confidence(shown, printed))


def from_predictions(cells: Sequence[Measured]) -> Iterator[Drawing]:
    """Those that need predictions, where they are at hand; of several seeds the first is drawn."""
    for (kind, task, outliers), by_method in _group_cells([run for run in cells if run.folder]).items():
        firsts = (runs[0] for runs in by_method.values())
        results = [read_result(first.folder, first.cell) for first in firsts if first.folder]
        special = unusual(task, outliers)
        slug = file_name(task, special, kind.slug)
        if planes := {
            result.cell.method: result.further["plane"].sets for result in results if "plane" in result.further
        }:
            caption = f"Confidence in the plane, the paper's toy figure; {kind.title}"
            yield Drawing(f"toy-{slug}", caption, draw_planes(planes))
        trained = f", trained with {outliers}" * bool(special)
        with_outliers = [result for result in results if result.ood]
        for name, (caption, draw) in OF_PREDICTIONS.items():
            if shown := results if name == "reliability" else with_outliers:
                yield Drawing(f"{name}-{slug}", f"{task}{trained}. {caption}; {kind.title}", draw(shown))
