"""What one would use instead: scores of a plain network, outlier exposure, and Bayesian networks beside them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from demur.measures import value_name
from demur.paper.choice import SEEDS
from demur.paper.outdated import outdated_reasons
from demur.paper.published import MEAN, OOD_SETS, Row, outliers_of
from demur.paper.statistics import Known
from demur.paper.views import View, own_view, place
from demur.report.sheet import Code, Section, Sheet, Text
from demur.scores import SCORES
from demur.study.grid import Cell
from demur.study.measuring import per_cent
from demur.study.results import TEST
from demur.study.table import Measured

TASKS = ("cifar10", "cifar100")
ROWS = (
    *(Row("map", score) for score in ("max_prob", "energy", "knn", "vim")),
    *(Row("map+oe", score) for score in ("max_prob", "energy")),
    Row("la+nc", "none_share"),
    Row("la+oe"),
    Row("de+nc", "none_share"),
)
COLUMNS = (("accuracy", "higher"), ("mean FPR95", "lower"), ("mean AUROC", "higher"))


def field_table(cells: Sequence[Measured]) -> Sheet | None:
    """A line a method and score, of networks of the paper's length; nothing where no post-hoc score was measured."""
    current, left_out = up_to_date(run for run in cells if run.cell.task in TASKS)
    view = own_view(current, "corrected")
    seeds = {
        (row, task): tuple(known.by_seed)
        for row in ROWS
        for task in TASKS
        if (known := view.known(task, row.method, MEAN, value_name("fpr95", row.score)))
    }
    if not any(row.method == "map" and row.score != "max_prob" for row, _ in seeds):
        return None
    tasks = [task for task in TASKS if any(of_task == task for _, of_task in seeds)]
    head: list[Text] = ["method", "score"]
    for task in tasks:
        head += [[task, name, f"{better} is better"] for name, better in COLUMNS]
        head += [[task, "minutes to train"], [task, "seeds"]]
    lines: list[list[Text]] = []
    for row in dict.fromkeys(row for row, _ in seeds):
        values = [text for task in tasks for text in _values(view, row, task, seeds.get((row, task), ()))]
        lines.append([Code(row.method), SCORES[row.score].title, *values])
    used = [run for run in current if run.cell.task in tasks and run.cell.method in {row.method for row in ROWS}]
    notes = [*_notes(used, tasks, seeds), *left_out]
    return Sheet(head, lines, names=2, title="Beside the field", notes=notes, name="field")


def field_section(cells: Sequence[Measured]) -> Section | None:
    sheet = field_table(cells)
    if sheet is None:
        return None
    intro = (
        "Post-hoc scores of a plain network, outlier exposure, and Bayesian networks that were shown outliers. "
        "Rows of one method are of the same networks."
    )
    return Section(sheet.title, [intro, replace(sheet, title="")])


def up_to_date(cells: Iterable[Measured]) -> tuple[list[Measured], list[str]]:
    """Those of today's convention, and notes of how many are not, and why."""
    current, outdated = [], dict[str, int]()
    for run in cells:
        reasons = [*outdated_reasons(run, run.sets)]
        for reason in reasons[:1]:
            outdated[reason] = outdated.get(reason, 0) + 1
        if not reasons:
            current.append(run)
    return current, [f"Left out, {count} older cells: {reason}" for reason, count in outdated.items()]


def with_deviation(values: Collection[float]) -> str:
    """The mean over seeds and their standard deviation, which one seed has not; per cent."""
    deviation = f" ±{per_cent(float(np.std([*values], ddof=1)))}" if len(values) > 1 else ""
    return per_cent(float(np.mean([*values]))) + deviation


def minutes(view: View, task: str, method: str, outliers: str | None = None) -> str:
    """To fit, and how many times that of `map`, where networks had the device alone."""

    def mean_seconds(cell: Cell) -> float | None:
        seconds = view.seconds(place(task, cell.method, outliers_of(cell)))
        return float(np.mean([*seconds.values()])) if seconds else None

    own, plain = mean_seconds(Cell(task, method, outliers=outliers)), mean_seconds(Cell(task, "map"))
    if own is None:
        return "–"
    return f"{own / 60:.1f}" + (f" ({own / plain:.1f} ×)" if plain else "")


def _values(view: View, row: Row, task: str, seeds: Collection[int]) -> list[str]:
    if not seeds:
        return ["–"] * (len(COLUMNS) + 2)

    def over_seeds(known: Known | None) -> str:
        return with_deviation([known.by_seed[seed] for seed in seeds]) if known else "–"

    places = ((TEST, "accuracy"), *((MEAN, value_name(metric, row.score)) for metric in ("fpr95", "auroc")))
    values = [over_seeds(view.known(task, row.method, *where)) for where in places]
    return [*values, minutes(view, task, row.method), str(len(seeds))]


def _notes(
    used: Sequence[Measured], tasks: Sequence[str], seeds: Mapping[tuple[Row, str], Collection[int]]
) -> Iterable[str]:
    yield "In per cent; ± is the standard deviation over training seeds, which one seed has not"
    sets = "; ".join(f"{task}: {', '.join(OOD_SETS[task])}" for task in tasks)
    yield f"FPR95 and AUROC have inliers as positive and are means over the paper's OOD sets. {sets}"
    yield from dict.fromkeys(
        f"{run.cell.task}: {name} {note}" for run in used for name, note in run.record.notes.items()
    )
    yield "Minutes are of networks that had the device alone, those of an ensemble added up; scores are not timed"
    yield f"Device: {', '.join(sorted({run.record.device for run in used}))}"
    for task in TASKS:
        if missing := [f"{row.method} by {row.score}" for row in ROWS if (row, task) not in seeds]:
            yield f"Not measured on {task}: {', '.join(missing)}"
    few = dict.fromkeys(f"{row.method} on {task}" for (row, task), each in seeds.items() if len(each) < SEEDS)
    if few:
        yield f"Fewer than {SEEDS} training seeds: {', '.join(few)}"
