"""A table as OpenOOD's boards have it: AUROC and FPR95 over near and far sets, outliers as positive."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from demur.measures import OUT, ood_metrics, value_name
from demur.metrics import accuracy
from demur.paper.openood import BENCHMARKS
from demur.report.field import with_deviation
from demur.report.sheet import Sheet
from demur.study.measuring import measures_of
from demur.study.results import Result

METRICS = ("auroc", "fpr95")
Values = Mapping[str, float]  # by column


def near_and_far(results: Iterable[Result]) -> list[Sheet]:
    """Tables for each benchmark: a line a method and score, means over training seeds."""
    by_task: dict[str, dict[tuple[str, str], list[Values]]] = {}
    for result in results:
        if result.cell.task in BENCHMARKS:
            for score, values in measure(result).items():
                by_task.setdefault(result.cell.task, {}).setdefault((result.cell.method, score), []).append(values)
    return [sheet for task, lines in by_task.items() for sheet in _sheets(task, lines)]


def measure(result: Result) -> dict[str, Values]:
    """By score: accuracy, and AUROC and FPR95 of near and far sets and of each set; fractions."""
    benchmark, scores = BENCHMARKS[result.cell.task], measures_of(result).scores
    of_set = {name: ood_metrics(result.test, outside, scores) for name, outside in result.ood.items()}
    measured: dict[str, Values] = {}
    for score in scores:
        stored = {metric: value_name(metric + OUT, score) for metric in METRICS}
        if any(stored["auroc"] not in values for values in of_set.values()):
            continue  # it needs a none class
        own = {f"{name} {metric}": values[stored[metric]] for name, values in of_set.items() for metric in METRICS}
        means = {
            f"{group} {metric}": float(np.mean([own[f"{name} {metric}"] for name in names if name in of_set]))
            for group, names in (("near", benchmark.near), ("far", benchmark.far))
            for metric in METRICS
        }
        measured[score] = {"accuracy": accuracy(result.test, result.y), **means, **own}
    return measured


def _sheets(task: str, lines: Mapping[tuple[str, str], Sequence[Values]]) -> list[Sheet]:
    """Means over near and far sets, and every set by itself: both fit on a terminal."""
    benchmark, columns = BENCHMARKS[task], list(next(iter(lines.values()))[0])
    every = (*benchmark.near, *benchmark.far)
    means = ["accuracy", *(f"{group} {metric}" for group in ("near", "far") for metric in METRICS)]
    measured = [name for name in every if f"{name} {METRICS[0]}" in columns]
    notes = ["AUROC and FPR95 in per cent, outliers as positive; mean over seeds, and ± their standard deviation."]
    if missing := [name for name in every if name not in measured]:
        notes.append(f"Not in the means, because the store lacks them: {', '.join(missing)}.")

    def over_seeds(seeds: Sequence[Values], column: str) -> str:
        return with_deviation([one[column] for one in seeds])

    return [
        Sheet(
            ("method", "score", "seeds", *means),
            [(*of, str(len(seeds)), *(over_seeds(seeds, column) for column in means)) for of, seeds in lines.items()],
            names=2,
            title=f"{task}: near and far OOD",
            notes=notes,
            name=task,
        ),
        Sheet(
            ("method", "score", *([name, *METRICS] for name in measured)),
            [
                (*of, *([over_seeds(seeds, f"{name} {metric}") for metric in METRICS] for name in measured))
                for of, seeds in lines.items()
            ],
            names=2,
            title=f"{task}: every OOD set",
            name=f"{task}-sets",
        ),
    ]
