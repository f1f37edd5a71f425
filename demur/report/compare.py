"""Every measured figure beside the published one, in the paper's tables and in one of our own for each task."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from demur.bootstrap import over_seeds
from demur.methods import method_rank, split_method
from demur.outliers.values import sets_of
from demur.paper.grid import Cell
from demur.paper.published import DEFAULT_OUTLIERS, TABLES, Column, Figure, Row, Table, mean_but, outliers_of
from demur.study.measuring import TEST, scored
from demur.study.run import FAR_AWAY
from demur.study.table import Measured
from demur.tasks.images import STAND_INS

# by metric: whether more is better; the confidence on test data is neither
BETTER = {
    "accuracy": max,
    "accuracy_with_none": max,
    "auroc": max,
    "aupr_published": max,
    "ece": min,
    "ece_published": min,
    "fpr95": min,
    "mmc": min,
}


class Kind(NamedTuple):
    """What results must share to stand in one table."""

    convention: str
    epochs: int | None
    limit: int | None

    @property
    def title(self) -> str:
        epochs = "" if self.epochs is None else f", {self.epochs} epoch{'s' * (self.epochs != 1)}"
        limit = "" if self.limit is None else f", at most {self.limit:,} training inputs"
        return f"trained in the {self.convention} convention{epochs}{limit}"

    @property
    def order(self) -> tuple[str, float, float]:
        """Corrected before published, the whole length before shorter ones."""
        return self.convention, -(self.epochs or math.inf), -(self.limit or math.inf)

    @property
    def slug(self) -> str:
        """The same for a file's name; short where all is as by default."""
        parts = [] if self.convention == "corrected" else [self.convention]
        parts += [
            f"{name}{value}" for name, value in (("epochs", self.epochs), ("limit", self.limit)) if value is not None
        ]
        return "-".join(parts)


@dataclass(frozen=True)
class Measurement:
    """A figure's mean over training seeds, with its 95 % intervals over test points and over training.

    All seeds are tested on the same points, so the ends of the first are the means of the seeds': it is never too
    narrow, and exact where the networks err alike.
    """

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    training: tuple[float, float] | None  # where there are several seeds
    partial: bool  # a mean that lacks some of its sets
    collapsed: bool  # of a classifier that tells no classes apart


@dataclass(frozen=True)
class Entry:
    measured: Measurement | None
    published: Figure | None
    best: bool = False

    @property
    def difference(self) -> float | None:
        if self.measured is None or self.published is None:
            return None
        return self.measured.value - self.published.value


@dataclass(frozen=True)
class Line:
    row: Row
    first: bool  # of its group
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class ReportTable:
    table: Table
    kind: Kind
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    remarks: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.table.name, self.kind.slug) if part)

    @property
    def title(self) -> str:
        return f"{self.table.title}; {self.kind.title}"


class _Runs:
    """The results of one kind, found by what a table's cell asks for."""

    def __init__(self, results: Iterable[Measured]) -> None:
        self._by_place: dict[tuple[str, str], dict[str, list[Measured]]] = {}
        for measured in results:
            cell = measured.cell
            by_outliers = self._by_place.setdefault((cell.task, cell.method), {})
            by_outliers.setdefault(outliers_of(cell), []).append(measured)

    def find(self, task: str, method: str, outliers: str) -> Sequence[Measured]:
        """By seed; a method that is shown no outliers is the same whatever they are."""
        by_outliers = self._by_place.get((task, method), {})
        if outliers not in by_outliers and "+" not in method and by_outliers:
            outliers = min(by_outliers)
        return sorted(by_outliers.get(outliers, ()), key=lambda measured: measured.cell.seed)


def kind_of(cell: Cell) -> Kind:
    return Kind(cell.convention, cell.epochs, cell.limit)


def unusual(task: str, outliers: str) -> str:
    """The outliers, for a title, where they are not the task's own; else nothing."""
    return "" if outliers == DEFAULT_OUTLIERS.get(task, "default") else outliers


def tables(cells: Sequence[Measured], everything: bool = False) -> list[ReportTable]:
    """One of our own for each task, then the paper's, of which the tasks that were measured; with `everything`, all of
    them, so that every published figure is there."""
    kinds = sorted({kind_of(one.cell) for one in cells}, key=lambda kind: kind.order) or [Kind("corrected", None, None)]
    by_kind = {kind: [one for one in cells if kind_of(one.cell) == kind] for kind in kinds}
    wanted = [(table, kind) for kind in kinds for table in _own_tables(by_kind[kind])]
    wanted += [(table, kind) for table in TABLES for kind in kinds]
    runs = {kind: _Runs(of_kind) for kind, of_kind in by_kind.items()}
    filled = (_fill(table, kind, runs[kind], everything) for table, kind in wanted)
    return [table for table in filled if table.columns]


def _own_tables(cells: Sequence[Measured]) -> list[Table]:
    """A task's every method, in the corrected metrics, on every OOD set."""
    made = []
    for task, outliers in sorted({(one.cell.task, outliers_of(one.cell)) for one in cells}):
        of_task = [one for one in cells if one.cell.task == task]
        here = [one for one in of_task if "+" not in one.cell.method or outliers_of(one.cell) == outliers]
        sets = tuple(dict.fromkeys(name for one in here for name in one.sets))
        seen = tuple(name for name in sets_of(outliers) if name in sets)
        unseen = tuple(name for name in sets if name not in (FAR_AWAY, *seen))
        columns = (
            Column(task, TEST, "accuracy", "corrected"),
            Column(task, TEST, "ece", "corrected"),
            Column(task, mean_but(*seen), "fpr95", "corrected", unseen),
            *(Column(task, name, "fpr95", "corrected") for name in sets),
        )
        special = unusual(task, outliers)
        title = f"All methods, {task}" + f", trained with {outliers}" * bool(special)
        name = "-".join(filter(None, (task, special)))
        made.append(Table("measured", name, title, "", outliers, _own_groups(here), columns))
    return made


def _own_groups(cells: Sequence[Measured]) -> tuple[tuple[Row, ...], ...]:
    """By inference; networks and ensembles of them are one group, as in the paper."""
    groups: dict[str, set[Row]] = {}
    for one in cells:
        inference, _ = split_method(one.cell.method)
        with_none = any(metric == "none_fpr95" for _, metric in one.values)
        rows = {Row(one.cell.method, score) for score in ("max_prob", *["none"] * with_none)}
        groups.setdefault("points" if inference in ("map", "de") else inference, set()).update(rows)

    def order(row: Row) -> tuple[tuple[int, str], str]:
        return method_rank(row.method), row.score

    return tuple(sorted((tuple(sorted(rows, key=order)) for rows in groups.values()), key=lambda rows: order(rows[0])))


def _fill(table: Table, kind: Kind, runs: _Runs, everything: bool) -> ReportTable:
    found = {
        (row, task): runs.find(task, row.method, table.outliers)
        for row in table.rows
        for task in dict.fromkeys(column.task for column in table.columns)
    }
    # a method that is shown no outliers fits every table, but is no reason to show those trained with others
    done = {task for (_, task), cells in found.items() if any(outliers_of(one.cell) == table.outliers for one in cells)}
    columns = tuple(column for column in table.columns if everything or column.task in done)

    def entry(row: Row, column: Column) -> Entry:
        return Entry(_measure(found[row, column.task], column, row.score), table.published(row, column))

    if not everything and not any(entry(row, column).measured for row in table.rows for column in columns):
        columns = ()  # such as those under shift, where nothing was shifted
    lines: list[Line] = []
    for group in table.groups:
        of_group = [Line(row, row == group[0], tuple(entry(row, column) for column in columns)) for row in group]
        lines += _mark_best(of_group, columns)
    return ReportTable(table, kind, columns, tuple(lines), (*_remarks(found, lines), *_on_other_data(found, columns)))


def _measure(cells: Sequence[Measured], column: Column, score: str) -> Measurement | None:
    """The mean over seeds of a column's figure."""
    found = [one.value(column.set, scored(column.metric, score)) for one in cells]
    figures = [figure for figure in found if figure is not None]
    if not figures or len(figures) < len(found):
        return None
    by_seed = tuple(figure.value for figure in figures)
    low, high = (float(np.mean([getattr(figure, end) for figure in figures])) for end in ("low", "high"))
    partial = any(name not in one.sets and STAND_INS.get(name) not in one.sets for one in cells for name in column.over)
    collapsed = any(one.collapsed for one in cells)
    training = over_seeds(by_seed) if len(by_seed) > 1 else None
    return Measurement(float(np.mean(by_seed)), low, high, by_seed, training, partial, collapsed)


def _mark_best(lines: Sequence[Line], columns: Sequence[Column]) -> list[Line]:
    """The best of the group in each column, as far as it is shown."""
    best = [_best(column, [line.entries[place] for line in lines]) for place, column in enumerate(columns)]

    def mark(line: Line) -> Line:
        pairs = zip(line.entries, best, strict=True)
        return replace(
            line, entries=tuple(replace(one, best=value is not None and _judged(one) == value) for one, value in pairs)
        )

    return list(map(mark, lines))


def _best(column: Column, entries: Sequence[Entry]) -> float | None:
    judged = [value for value in map(_judged, entries) if value is not None]
    if len(set(judged)) < 2 or (column.metric == "mmc" and column.set == TEST):
        return None
    return BETTER[column.metric](judged)


def _judged(entry: Entry) -> float | None:
    """The figure as it is printed; None where there is none, and for a collapsed classifier: it is best at nothing."""
    measured = entry.measured
    if measured is None or measured.collapsed or np.isnan(measured.value):
        return None
    return round(100 * measured.value, 1)


def _remarks(found: Mapping[tuple[Row, str], Sequence[Measured]], lines: Sequence[Line]) -> tuple[str, ...]:
    """What a reader of the table must know."""
    said: dict[str, None] = {}
    for task, record in ((task, one.record) for (_, task), cells in found.items() for one in cells):
        for name, note in record.notes.items():
            said[f"{task}: {name} {note}"] = None
        if missing := record.missing:
            said[f"{task}: not measured, since the data is missing: {', '.join(missing)}"] = None
    measured = [entry.measured for line in lines for entry in line.entries if entry.measured is not None]
    seeds = sorted({len(one.by_seed) for one in measured})
    if seeds and seeds[-1] > 1:
        said[f"Means of {' or '.join(map(str, seeds))} training seeds; in brackets the 95 % interval of their mean"] = (
            None
        )
    if any(one.partial for one in measured):
        said["† A mean over those of its sets that were measured; the published one is over all"] = None
    if any(one.collapsed for one in measured):
        said["‡ Collapsed: no more accurate than always answering the most frequent class; never marked as best"] = None
    return tuple(said)


def _on_other_data(found: Mapping[tuple[Row, str], Sequence[Measured]], columns: Sequence[Column]) -> Iterator[str]:
    """Sets that are not the same in all rows, or of which that cannot be known."""
    for task in dict.fromkeys(column.task for column in columns):
        cells = {id(one): one for (_, other), some in found.items() if other == task for one in some}.values()
        asked = dict.fromkeys(each for one in columns if one.task == task for each in (TEST, one.set, *one.over))
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in dict.fromkeys(each for wanted in asked for each in (wanted, STAND_INS.get(wanted)) if each):
            by_digest: dict[str | None, dict[str, None]] = {}
            for one in cells:
                if name == TEST or name in one.sets or (name, "accuracy") in one.values:
                    by_digest.setdefault(one.data(name), {})[one.cell.method] = None
            if len(by_digest) > 1:
                rows = [f"{', '.join(rows)}{' (not recorded)' * (key is None)}" for key, rows in by_digest.items()]
                alike.setdefault(tuple(rows), []).append(name)
        for groups, names in alike.items():
            yield f"{task}, {', '.join(names)}: not known to be the same data in all rows: {'; '.join(groups)}"
