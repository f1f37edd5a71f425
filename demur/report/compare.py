"""Every measured value beside the published one, in the paper's tables and in one of our own for each task."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from demur.measures import value_name
from demur.methods import method_rank, split_method
from demur.metrics import METRICS
from demur.outliers.values import sets_of
from demur.paper import published
from demur.paper.counts import data_tested, lacking
from demur.paper.outdated import outdated_reasons
from demur.paper.published import DEFAULT_OUTLIERS, MEAN, OOD_SETS, SHIFT_SETS, Row, is_plain, mean_but, outliers_of
from demur.paper.statistics import Known
from demur.paper.views import Place, View, by_place, own_view, place
from demur.report.sheet import Code, Sheet, Small, Strong, Text
from demur.scores import MEASURED, SCORES
from demur.study.grid import Cell
from demur.study.measuring import per_cent
from demur.study.results import TEST
from demur.study.table import Measured
from demur.tasks.images import STAND_INS

METRIC_TITLES = {name: metric.title for name, metric in METRICS.items()} | {
    "fpr95": "FPR95",
    "auroc": "AUROC",
    "aupr_published": "AUPR",
}
# is better, of the others lower; confidence stands here on outliers
HIGHER = {name for name, metric in METRICS.items() if metric.higher_is_better} - {"mmc"} | {"auroc", "aupr_published"}
SEVERITIES = {name: f"severity {severity}" for severity, name in SHIFT_SETS.items()}


class Kind(NamedTuple):
    """What results must share to stand in one table."""

    convention: str
    epochs: int | None
    limit: int | None

    @property
    def networks(self) -> str:
        epochs = "" if self.epochs is None else f", {self.epochs} epoch{'s' * (self.epochs != 1)}"
        limit = "" if self.limit is None else f", at most {self.limit:,} training inputs"
        return f"{self.convention} convention{epochs}{limit}"

    @property
    def title(self) -> str:
        return f"trained in the {self.networks}"

    @property
    def order(self) -> tuple[str, float, float]:
        """Corrected before published, the whole length before shorter ones."""
        return self.convention, -(self.epochs or math.inf), -(self.limit or math.inf)

    @property
    def slug(self) -> str:
        """The same for a file's name; short where all is as by default."""
        named = {"epochs": self.epochs, "limit": self.limit}
        changed = [f"{name}{value}" for name, value in named.items() if value is not None]
        return "-".join([self.convention] * (self.convention != "corrected") + changed)


def kind_of(cell: Cell) -> Kind:
    return Kind(cell.convention, cell.epochs, cell.limit)


def file_name(*parts: str) -> str:
    """Of those that are not empty; without the colon of a module's name, which Windows does not allow."""
    return "-".join(filter(None, parts)).replace(":", ".")


def unusual(task: str, outliers: str) -> str:
    """The outliers, for a title, where they are not the task's own; else nothing."""
    return "" if outliers == DEFAULT_OUTLIERS.get(task, "default") else outliers


class Column(NamedTuple):
    task: str
    set: str  # as it is measured
    metric: str


@dataclass(frozen=True)
class Wanted:
    """A table to be filled: its rows and columns, and what the paper prints at each place."""

    name: str
    title: str
    outliers: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    printed: Mapping[tuple[Row, Column], float] = field(default_factory=dict)

    @property
    def groups(self) -> list[list[Row]]:
        """Rows that are compared with each other: by inference, networks and ensembles of them together."""

        def group(row: Row) -> str:
            inference = split_method(row.method)[0]
            return "points" if inference in ("map", "de") else inference

        ordered = sorted(self.rows, key=lambda row: (method_rank(row.method), score_rank(row.score)))
        apart = sorted(ordered, key=lambda row: [group(other) for other in ordered].index(group(row)))
        return [list(rows) for _, rows in groupby(apart, group)]


def tables(cells: Sequence[Measured]) -> list[Sheet]:
    """One of our own for each task, then the paper's, of the tasks that were measured."""
    kinds = sorted({kind_of(run.cell) for run in cells}, key=lambda kind: kind.order)
    by_kind = {kind: [run for run in cells if kind_of(run.cell) == kind] for kind in kinds}
    wanted = [(table, kind) for kind in kinds for table in (*_own_tables(by_kind[kind]), *_score_tables(by_kind[kind]))]
    wanted += [(table, kind) for table in _paper_tables() for kind in kinds]
    filled = (_fill(table, kind, by_kind[kind], own_view(cells, *kind)) for table, kind in wanted)
    return [sheet for sheet in filled if sheet is not None]


def _paper_tables() -> Iterator[Wanted]:
    for name, (title, entries) in published.published_tables().items():
        printed = {
            (entry.row, Column(entry.task, published.measured_as(entry), entry.metric)): entry.value
            for entry in entries
        }
        rows, columns = (tuple(dict.fromkeys(side)) for side in zip(*printed, strict=True))
        yield Wanted(name, title, entries[0].outliers, rows, columns, printed)


def _own_tables(cells: Sequence[Measured]) -> Iterator[Wanted]:
    """A task's every method, in the corrected metrics, on every OOD set."""
    for here, outliers in _by_task(cells):
        rows = {Row(run.cell.method, score) for run in here for score in shown_scores(run, but=("none_share",))}
        yield _own_table("measured", "All methods", here, outliers, rows)


def _score_tables(cells: Sequence[Measured]) -> Iterator[Wanted]:
    """The same by every score of which a study kept values, for methods that have such; beside the usual ones."""
    for here, outliers in _by_task(cells):
        asked = [run for run in here if kept_scores(run)]
        rows = {Row(run.cell.method, score) for run in asked for score in (*shown_scores(run), *kept_scores(run))}
        if rows:
            yield _own_table("scores", "Scores", asked, outliers, rows)


def _by_task(cells: Sequence[Measured]) -> Iterator[tuple[list[Measured], str]]:
    """The cells of a task, those trained with other outliers apart; methods that are shown none go with each."""
    for task, outliers in sorted({(run.cell.task, outliers_of(run.cell)) for run in cells}):
        of_task = [run for run in cells if run.cell.task == task]
        yield [run for run in of_task if is_plain(run.cell.method) or outliers_of(run.cell) == outliers], outliers


def _own_table(name: str, title: str, here: Sequence[Measured], outliers: str, rows: Iterable[Row]) -> Wanted:
    task = here[0].cell.task
    sets = tuple(dict.fromkeys(name for run in here for name in run.sets))
    seen = [name for name in sets_of(outliers) if name in sets]
    columns = [(TEST, "accuracy"), (TEST, "ece"), (mean_but(*seen), "fpr95"), *((name, "fpr95") for name in sets)]
    special = unusual(task, outliers)
    return Wanted(
        file_name(name, task, special),
        f"{title}, {task}" + f", trained with {outliers}" * bool(special),
        outliers,
        tuple(sorted(rows)),
        tuple(Column(task, *column) for column in columns),
    )


def shown_scores(run: Measured, but: Collection[str] = ()) -> list[str]:
    """Those of every cell that tables have."""
    return ["max_prob", *(name for name in ("none", "none_share") if name in run.scores() and name not in but)]


def kept_scores(run: Measured) -> list[str]:
    """The scores that it has beside those of every cell."""
    return [name for name in run.scores() if name not in MEASURED]


def score_rank(name: str) -> tuple[int, str]:
    """To sort by: demur's own scores in their order, then others by name."""
    return ([*SCORES].index(name) if name in SCORES else len(SCORES)), name


def _fill(table: Wanted, kind: Kind, cells: Sequence[Measured], view: View) -> Sheet | None:
    """With what was measured; None where nothing was."""
    # a method that is shown no outliers fits every table, but is no reason to show those trained with others
    asked = {row.method for row in table.rows}
    done = {run.cell.task for run in cells if run.cell.method in asked and outliers_of(run.cell) == table.outliers}
    columns = [column for column in table.columns if column.task in done]
    runs = by_place(cells)

    def known(row: Row, column: Column) -> Known | None:
        at, metric = place(column.task, row.method, table.outliers), value_name(column.metric, row.score)
        # a score may have been asked for of some seeds only; the notes say of which
        whole = row.score not in MEASURED or all(run.value(column.set, metric) for run in runs.get(at, {}).values())
        return view.look(at, column.set, metric) if whole else None

    values = {(row, column): known(row, column) for row in table.rows for column in columns}
    if not any(values.values()):
        return None
    tasks = dict.fromkeys(column.task for column in columns)
    incomplete = {run.cell.task for run in cells if run.record.missing}
    rows: list[list[Text]] = []
    ruled = []
    for group in table.groups:
        ruled.append(len(rows))
        best = {column: _best(column, [values[row, column] for row in group]) for column in columns}
        for row in group:
            entries = (
                _entry(
                    values[row, column],
                    table.printed.get((row, column)),
                    best[column],
                    column.task in incomplete and column.set.startswith(MEAN),
                )
                for column in columns
            )
            rows.append([Code(row.label), *entries])
    here = {
        at: runs[at] for row in table.rows for task in tasks if (at := place(task, row.method, table.outliers)) in runs
    }
    notes = [
        *_notes(table, columns, [value for value in values.values() if value is not None], here),
        *_seeds_of_scores({row: value for (row, _), value in values.items() if value and row.score not in MEASURED}),
    ]
    name = file_name(table.name, kind.slug)
    head = ["method", *_headings(columns)]
    return Sheet(head, rows, 1, table.title, tuple(notes), name, ruled, networks=kind.networks)


def _seeds_of_scores(known: Mapping[Row, Known]) -> Iterator[Text]:
    """The training seeds of which a score was kept, where these are few: no verdict on one network."""
    methods: dict[str, dict[tuple[int, ...], None]] = {}
    for row, value in known.items():
        methods.setdefault(row.method, {})[tuple(value.by_seed)] = None
    for method, seeds in methods.items():
        for numbers in seeds:
            if len(numbers) < 3:
                several = "seeds" if len(numbers) > 1 else "seed"
                yield f"Post-hoc scores of {method}: training {several} {', '.join(map(str, numbers))} only"


def shown(known: Known | None) -> float | None:
    """The value as it is printed; a collapsed classifier is best at nothing."""
    return None if known is None or known.collapsed or math.isnan(known.value) else round(100 * known.value, 1)


def _best(column: Column, group: Iterable[Known | None]) -> float | None:
    """The best of the group, to the digit shown; None where all are alike, or nothing is better than another."""
    values = [value for known in group if (value := shown(known)) is not None]
    if len(set(values)) < 2 or (column.metric, column.set) == ("mmc", TEST):
        return None
    return (max if column.metric in HIGHER else min)(values)


def _entry(known: Known | None, printed: float | None, best: float | None, partial: bool) -> Text:
    lines: list[Text] = ["–"]
    if known is not None:
        value = known.text() + "†" * partial
        marked = Strong(value) if best is not None and shown(known) == best else value
        lines = [(marked, Small(f" ±{per_cent(known.half)}"))]
    if printed is not None:
        apart = "" if known is None else f" {100 * (known.value - printed):+.1f}".replace("-", "−")
        lines.append(Small(per_cent(printed) + apart))
    return lines


def _headings(columns: Sequence[Column]) -> list[Text]:
    """Task, metric and set, each where the table has several."""
    tasks, metrics = len({column.task for column in columns}) > 1, len({column.metric for column in columns}) > 1

    def heading(column: Column) -> Text:
        metric = METRIC_TITLES[column.metric]
        if column.set == TEST:
            what = ["test" if column.metric == "mmc" else metric]
        elif column.set.startswith(MEAN):
            what = [f"mean {metric}"]
        elif column.set in SEVERITIES:
            what = [SEVERITIES[column.set], metric]
        else:
            what = [*[metric] * metrics, column.set]
        return [part.replace("_", " ") for part in (*[column.task] * tasks, *what)]

    return list(map(heading, columns))


# what a reader of a table must know ---------------------------------------------------------------------------------


def _notes(
    table: Wanted, columns: Sequence[Column], known: Sequence[Known], runs: Mapping[Place, Mapping[int, Measured]]
) -> Iterator[Text]:
    below = "; below, published and difference" * bool(table.printed)
    yield (
        "In per cent: measured ± half its 95 % interval, over test points (bootstrap) and training (seeds, and the "
        f"spread that is known of the task){below}. Bold is the best of its group of rows"
    )
    for column in columns:
        if column.set.startswith(f"{MEAN}_"):
            yield f"The mean of {column.task} is {column.set.replace('_', ' ')}"
    cells = [run for of_place in runs.values() for run in of_place.values()]
    yield from dict.fromkeys(
        f"{run.cell.task}: {name} {note}" for run in cells for name, note in run.record.notes.items()
    )
    if missing := sorted({f"{run.cell.task}: {name}" for run in cells for name in run.record.missing}):
        yield f"† A mean over those of its sets that were measured; the data is missing of {', '.join(missing)}"
    seeds = sorted({len(value.by_seed) for value in known})
    if seeds[-1] > 1:
        yield f"Means of {' or '.join(map(str, seeds))} training seeds"
    if any(value.spread.assumed for value in known):
        yield "The spread of training is assumed, at least in part, where fewer than four networks more tell it"
    if any(value.collapsed for value in known):
        yield "‡ Collapsed: no more accurate than always answering the most frequent class; never best"
    yield from _notes_on_rows(cells, columns)
    yield from _on_other_data(cells, columns)


def _notes_on_rows(cells: Sequence[Measured], columns: Sequence[Column]) -> Iterator[str]:
    """What was measured otherwise than it would be now, or than the paper does, and which rows it concerns."""
    sets = {column.set for column in columns}
    ranked = {column.set for column in columns if column.metric == "aupr_published"}
    rows: dict[str, dict[str, None]] = {}
    for run in cells:
        reasons = [f"Older cells: {reason}" for reason in outdated_reasons(run, sets)]
        for reason in (*reasons, *lacking(run, ranked)):
            rows.setdefault(reason, {})[run.cell.method] = None
    every = {run.cell.method for run in cells}
    for reason, methods in rows.items():
        yield f"{reason} ({'all rows' if methods.keys() == every else ', '.join(methods)})"


def _on_other_data(cells: Sequence[Measured], columns: Sequence[Column]) -> Iterator[str]:
    """Sets that are not the same in all rows, or of which that cannot be known."""
    for task in dict.fromkeys(column.task for column in columns):
        of_task = [run for run in cells if run.cell.task == task]
        means = any(column.set.startswith(MEAN) for column in columns if column.task == task)
        asked = dict.fromkeys([TEST, *(column.set for column in columns if column.task == task)])
        asked |= dict.fromkeys(OOD_SETS.get(task, ()) if means else ())
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in dict.fromkeys(each for wanted in asked for each in (wanted, STAND_INS.get(wanted)) if each):
            by_digest: dict[str | None, dict[str, None]] = {}
            for run in of_task:
                if name == TEST or name in run.sets or (name, "accuracy") in run.values:
                    by_digest.setdefault(data_tested(run, name), {})[run.cell.method] = None
            if len(by_digest) > 1:
                rows = [f"{', '.join(rows)}{' (not recorded)' * (key is None)}" for key, rows in by_digest.items()]
                alike.setdefault(tuple(rows), []).append(name)
        for groups, names in alike.items():
            yield f"{task}, {', '.join(names)}: not known to be the same data in all rows: {'; '.join(groups)}"
