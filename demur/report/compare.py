"""Every measured figure beside the published one, in the paper's tables and in one of our own for each task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from demur.method import METHODS
from demur.metrics import METRICS, SCORES, Separation, mmc
from demur.report.intervals import INSIDE, against, counts, interval
from demur.study.grid import Cell
from demur.study.published import DEFAULT_OUTLIERS, MEAN, TABLES, TEST, Column, Figure, Row, Table
from demur.study.results import Result

FAR_AWAY = "far_away"
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
    def slug(self) -> str:
        """The same for a file's name; short where all is as by default."""
        parts = [] if self.convention == "corrected" else [self.convention]
        parts += [
            f"{name}{value}" for name, value in (("epochs", self.epochs), ("limit", self.limit)) if value is not None
        ]
        return "-".join(parts)


@dataclass(frozen=True)
class Measurement:
    """A figure's mean over training seeds, with its 95 % interval over test points."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]
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


class Measured:
    """A result's figures and their resamples, each computed once."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._known: dict[tuple[str, str, str], tuple[float, NDArray[np.float64]] | None] = {}

    @cached_property
    def collapsed(self) -> bool:
        """Whether the classifier is no better than always answering the most frequent class, whatever its FPR95."""
        y = self.result.y
        return METRICS["accuracy"](self.result.test, y) < float(y.bincount().max() / len(y)) + 0.01

    def figure(self, name: str, metric: str, score: str) -> tuple[float, NDArray[np.float64]] | None:
        """Its value and that in every resample; None where the set or the score is missing."""
        place = (name, metric, score)
        if place not in self._known:
            self._known[place] = self._compute(*place)
        return self._known[place]

    def _compute(self, name: str, metric: str, score: str) -> tuple[float, NDArray[np.float64]] | None:
        test, y = self.result.test, self.result.y
        if name == TEST:
            return METRICS[metric](test, y), INSIDE[metric](test, y, counts(TEST, len(test)))
        if name not in self.result.ood:
            return None
        outside = self.result.ood[name]
        if metric == "mmc":
            return mmc(outside), INSIDE["mmc"](outside, y, counts(name, len(outside)))
        inside_score, outside_score = SCORES[score](test), SCORES[score](outside)
        if inside_score is None or outside_score is None:
            return None
        value = getattr(Separation(-inside_score, -outside_score), metric)
        drawn = counts(TEST, len(test)), counts(name, len(outside))
        return value, against(metric, -inside_score, -outside_score, *drawn)


class _Runs:
    """The results of one kind, found by what a table's cell asks for."""

    def __init__(self, results: Iterable[Measured]) -> None:
        self._by_place: dict[tuple[str, str], dict[str, list[Measured]]] = {}
        for measured in results:
            cell = measured.result.cell
            by_outliers = self._by_place.setdefault((cell.task, cell.method), {})
            by_outliers.setdefault(outliers_of(cell), []).append(measured)

    def find(self, task: str, method: str, outliers: str) -> Sequence[Measured]:
        """By seed; a method that is shown no outliers is the same whatever they are."""
        by_outliers = self._by_place.get((task, method), {})
        if outliers not in by_outliers and "+" not in method and by_outliers:
            outliers = min(by_outliers)
        return sorted(by_outliers.get(outliers, ()), key=lambda measured: measured.result.cell.seed)


def kind_of(cell: Cell) -> Kind:
    return Kind(cell.convention, cell.epochs, cell.limit)


def outliers_of(cell: Cell) -> str:
    return cell.outliers or DEFAULT_OUTLIERS.get(cell.task, "default")


def unusual(task: str, outliers: str) -> str:
    """The outliers, for a title, where they are not the task's own; else nothing."""
    return "" if outliers == DEFAULT_OUTLIERS.get(task, "default") else outliers


def tables(results: Sequence[Result], everything: bool = False) -> list[ReportTable]:
    """One of our own for each task, then the paper's, of which the tasks that were measured; with `everything`, all of
    them, so that every published figure is there."""
    kinds = sorted({kind_of(result.cell) for result in results}, key=repr) or [Kind("corrected", None, None)]
    by_kind = {kind: [Measured(one) for one in results if kind_of(one.cell) == kind] for kind in kinds}
    wanted = [(table, kind) for kind in kinds for table in _own_tables(by_kind[kind])]
    wanted += [(table, kind) for table in TABLES for kind in kinds]
    runs = {kind: _Runs(of_kind) for kind, of_kind in by_kind.items()}
    filled = (_fill(table, kind, runs[kind], everything) for table, kind in wanted)
    return [table for table in filled if table.columns]


def _own_tables(results: Sequence[Measured]) -> list[Table]:
    """A task's every method, in the corrected metrics, on every OOD set."""
    places = sorted({(one.result.cell.task, outliers_of(one.result.cell)) for one in results})
    made = []
    for task, outliers in places:
        here = [
            one.result
            for one in results
            if one.result.cell.task == task
            and ("+" not in one.result.cell.method or outliers_of(one.result.cell) == outliers)
        ]
        sets = tuple(dict.fromkeys(name for result in here for name in result.ood))
        unseen = tuple(name for name in sets if name not in (FAR_AWAY, outliers))
        columns = (
            Column(task, TEST, "accuracy", "corrected"),
            Column(task, TEST, "ece", "corrected"),
            Column(task, MEAN, "fpr95", "corrected", unseen),
            *(Column(task, name, "fpr95", "corrected") for name in sets),
        )
        found = {Row(one.cell.method, score) for one in here for score in ("max_prob", *_none_score(one))}
        rows = tuple(sorted(found, key=lambda row: (METHODS.index(row.method), row.score)))
        special = unusual(task, outliers)
        title = f"All methods, {task}" + f", trained with {outliers}" * bool(special)
        made.append(Table("measured", "-".join(filter(None, (task, special))), title, outliers, rows, columns))
    return made


def _none_score(result: Result) -> tuple[str, ...]:
    return () if result.test.none is None else ("none",)


def _fill(table: Table, kind: Kind, runs: _Runs, everything: bool) -> ReportTable:
    found = {
        (row, task): runs.find(task, row.method, table.outliers)
        for row in table.rows
        for task in {column.task for column in table.columns}
    }
    # a method that is shown no outliers fits every table, but is no reason to show those trained with others
    done = {
        task
        for (_, task), results in found.items()
        if any(outliers_of(one.result.cell) == table.outliers for one in results)
    }
    columns = tuple(column for column in table.columns if everything or column.task in done)
    lines = tuple(
        Line(
            row,
            tuple(
                Entry(_measure(found[row, column.task], column, row.score), table.published(row, column))
                for column in columns
            ),
        )
        for row in table.rows
    )
    return ReportTable(table, kind, columns, _mark_best(lines, columns), _remarks(found, lines))


def _measure(results: Sequence[Measured], column: Column, score: str) -> Measurement | None:
    """The mean over seeds of a column's figure, itself a mean over sets for some."""
    names = column.over if column.set == MEAN else (column.set,)
    # confidence is the same whatever score tells outliers
    chosen = score if column.metric in ("fpr95", "auroc", "aupr_published") else "max_prob"
    by_seed = [[one.figure(name, column.metric, chosen) for name in names] for one in results]
    there = [[figure for figure in figures if figure is not None] for figures in by_seed]
    if not there or not all(there):
        return None
    values = [float(np.mean([value for value, _ in figures])) for figures in there]
    resampled = np.mean([np.mean([again for _, again in figures], axis=0) for figures in there], axis=0)
    partial = any(len(figures) < len(names) for figures in there)
    collapsed = any(one.collapsed for one in results)
    return Measurement(float(np.mean(values)), *interval(resampled), tuple(values), partial, collapsed)


def _mark_best(lines: Sequence[Line], columns: Sequence[Column]) -> tuple[Line, ...]:
    """The best of each column, as far as it is shown."""
    best = [_best(column, [line.entries[place] for line in lines]) for place, column in enumerate(columns)]

    def mark(line: Line) -> Line:
        pairs = zip(line.entries, best, strict=True)
        return replace(
            line, entries=tuple(replace(one, best=value is not None and _judged(one) == value) for one, value in pairs)
        )

    return tuple(map(mark, lines))


def _best(column: Column, entries: Sequence[Entry]) -> float | None:
    judged = [value for value in map(_judged, entries) if value is not None]
    if len(judged) < 2 or (column.metric == "mmc" and column.set == TEST):
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
    used = [(task, one.result.record) for (_, task), results in found.items() for one in results]
    for task, record in used:
        for name, note in record.get("notes", {}).items():
            said[f"{task}: {name} {note}"] = None
        if record.get("missing"):
            said[f"{task}: not measured, since the data is missing: {', '.join(record['missing'])}"] = None
    measured = [entry.measured for line in lines for entry in line.entries if entry.measured is not None]
    seeds = sorted({len(one.by_seed) for one in measured})
    if seeds and seeds[-1] > 1:
        said[f"Means of {' or '.join(map(str, seeds))} training seeds, their least and greatest below"] = None
    if any(one.partial for one in measured):
        said["† A mean over those of its sets that were measured; the published one is over all"] = None
    if any(one.collapsed for one in measured):
        said["‡ Collapsed: no more accurate than always answering the most frequent class; never marked as best"] = None
    return tuple(said)
