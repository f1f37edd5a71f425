"""Every measured value beside the published one, in the paper's tables and in one of our own for each task."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from demur.methods import method_rank, split_method
from demur.metrics import METRICS
from demur.outliers.values import sets_of
from demur.paper.published import (
    DEFAULT_OUTLIERS,
    SHIFT_SETS,
    TABLES,
    Column,
    Figure,
    Row,
    Table,
    is_plain,
    mean_but,
    outliers_of,
)
from demur.paper.views import Known, by_place, mean_over_seeds, place
from demur.study.grid import Cell
from demur.study.measuring import TEST, per_cent, scored
from demur.study.run import FAR_AWAY
from demur.study.table import Measured
from demur.tasks.images import STAND_INS

TITLES = {name: metric.title for name, metric in METRICS.items()} | {
    "fpr95": "FPR95",
    "auroc": "AUROC",
    "aupr_published": "AUPR",
}
HIGHER = {"accuracy", "accuracy_with_none", "auroc", "aupr_published"}  # is better; of the others lower
SEVERITIES = {name: f"severity {severity}" for severity, name in SHIFT_SETS.items()}


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
        named = {"epochs": self.epochs, "limit": self.limit}
        changed = [f"{name}{value}" for name, value in named.items() if value is not None]
        return "-".join([self.convention] * (self.convention != "corrected") + changed)


def kind_of(cell: Cell) -> Kind:
    return Kind(cell.convention, cell.epochs, cell.limit)


def unusual(task: str, outliers: str) -> str:
    """The outliers, for a title, where they are not the task's own; else nothing."""
    return "" if outliers == DEFAULT_OUTLIERS.get(task, "default") else outliers


@dataclass(frozen=True)
class Entry:
    measured: Known | None
    published: Figure | None
    partial: bool = False  # a mean that lacks some of its sets
    best: bool = False  # of its group of rows, to the digit shown

    @property
    def difference(self) -> float | None:
        return self.measured.value - self.published.value if self.measured and self.published else None

    @property
    def text(self) -> str:
        """What was measured, with its marks."""
        known = self.measured
        return "–" if known is None else per_cent(known.value) + "†" * self.partial + "‡" * known.collapsed

    @property
    def half(self) -> str:
        return "" if self.measured is None else f"±{per_cent((self.measured.high - self.measured.low) / 2)}"

    @property
    def below(self) -> list[str]:
        """The interval over training seeds, and what is published; each where there is any."""
        training = self.measured and self.measured.training
        lines = ["({}–{})".format(*map(per_cent, training))] if training else []
        if self.published is not None:
            apart = "" if self.difference is None else f" {100 * self.difference:+.1f}".replace("-", "−")
            lines.append(per_cent(self.published.value) + apart)
        return lines

    @property
    def judged(self) -> float | None:
        """The value as it is printed; a collapsed classifier is best at nothing."""
        known = self.measured
        return None if known is None or known.collapsed or math.isnan(known.value) else round(100 * known.value, 1)


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

    @property
    def headings(self) -> list[list[str]]:
        """Task, metric, set and the metric's convention, each where the table has several."""
        several = {
            name: len({getattr(column, name) for column in self.columns}) > 1
            for name in ("task", "metric", "convention")
        }

        def heading(column: Column) -> list[str]:
            metric = TITLES[column.metric]
            if column.set == TEST:
                what = ["test" if column.metric == "mmc" else metric]
            elif column.over:
                what = [f"mean {metric}, {len(column.over)} set{'s' * (len(column.over) != 1)}"]
            elif column.set in SEVERITIES:
                what = [SEVERITIES[column.set], metric]
            else:
                what = [*[metric] * several["metric"], column.set]
            parts = [*[column.task] * several["task"], *what, *[column.convention] * several["convention"]]
            return [part.replace("_", " ") for part in parts]

        return list(map(heading, self.columns))

    def legend(self, best: str = "In bold") -> list[str]:
        """How to read the table, and what to know about it; `best` says how the best are marked."""
        entries = [entry for line in self.lines for entry in line.entries]
        below = "; below, published and difference" * any(entry.published is not None for entry in entries)
        said = [f"In per cent: measured ± half its 95 % bootstrap interval over test points{below}"]
        said += [f"{best} the best of its group of rows, to the digit shown"] * any(entry.best for entry in entries)
        conventions = {column.convention for column in self.columns}
        said += [f"All columns are computed in the {each} convention" for each in conventions if len(conventions) == 1]
        return [*said, *self.remarks]


def tables(cells: Sequence[Measured], everything: bool = False) -> list[ReportTable]:
    """One of our own for each task, then the paper's, of which the tasks that were measured; with `everything`, all of
    them, so that every published value is there."""
    kinds = sorted({kind_of(one.cell) for one in cells}, key=lambda kind: kind.order) or [Kind("corrected", None, None)]
    by_kind = {kind: [one for one in cells if kind_of(one.cell) == kind] for kind in kinds}
    wanted = [(table, kind) for kind in kinds for table in _own_tables(by_kind[kind])]
    wanted += [(table, kind) for table in TABLES for kind in kinds]
    filled = (_fill(table, kind, by_kind[kind], everything) for table, kind in wanted)
    return [table for table in filled if table.columns]


def _own_tables(cells: Sequence[Measured]) -> Iterator[Table]:
    """A task's every method, in the corrected metrics, on every OOD set."""
    for task, outliers in sorted({(one.cell.task, outliers_of(one.cell)) for one in cells}):
        of_task = [one for one in cells if one.cell.task == task]
        here = [one for one in of_task if is_plain(one.cell.method) or outliers_of(one.cell) == outliers]
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
        yield Table("measured", name, title, "", outliers, _own_groups(here), columns)


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


Found = Mapping[tuple[Row, str], Sequence[Measured]]  # by row and task, a cell a seed


def _fill(table: Table, kind: Kind, cells: Sequence[Measured], everything: bool) -> ReportTable:
    runs = by_place(cells)
    tasks = dict.fromkeys(column.task for column in table.columns)
    found = {
        (row, task): list(runs.get(place(task, row.method, table.outliers), {}).values())
        for row in table.rows
        for task in tasks
    }
    # a method that is shown no outliers fits every table, but is no reason to show those trained with others
    asked = {row.method for row in table.rows}
    done = {one.cell.task for one in cells if one.cell.method in asked and outliers_of(one.cell) == table.outliers}
    columns = tuple(column for column in table.columns if everything or column.task in done)
    lines: list[Line] = []
    for group in table.groups:
        lines += _best_marked([_line(table, row, row == group[0], columns, found) for row in group], columns)
    if not everything and not any(entry.measured for line in lines for entry in line.entries):
        columns = ()  # such as those under shift, where nothing was shifted
    return ReportTable(table, kind, columns, tuple(lines), (*_remarks(found, lines), *_on_other_data(found, columns)))


def _line(table: Table, row: Row, first: bool, columns: Iterable[Column], found: Found) -> Line:
    def entry(column: Column) -> Entry:
        runs, metric = found[row, column.task], scored(column.metric, row.score)
        whole = all(one.value(column.set, metric) for one in runs)
        known = mean_over_seeds(runs, column.set, metric) if whole else None
        lacking = any(not {name, STAND_INS.get(name)} & {*one.sets} for one in runs for name in column.over)
        return Entry(known, table.published(row, column), lacking and known is not None)

    return Line(row, first, tuple(map(entry, columns)))


def _best_marked(group: Sequence[Line], columns: Sequence[Column]) -> list[Line]:
    """The best of the group in each column, as far as it is shown."""
    best: list[float | None] = []
    for number, column in enumerate(columns):
        judged = [value for line in group if (value := line.entries[number].judged) is not None]
        neither = len(set(judged)) < 2 or (column.metric, column.set) == ("mmc", TEST)
        best.append(None if neither else (max if column.metric in HIGHER else min)(judged))

    def mark(line: Line) -> Line:
        pairs = zip(line.entries, best, strict=True)
        marked = (replace(entry, best=value is not None and entry.judged == value) for entry, value in pairs)
        return replace(line, entries=tuple(marked))

    return list(map(mark, group))


def _remarks(found: Found, lines: Sequence[Line]) -> Iterator[str]:
    """What a reader of the table must know."""
    said: dict[str, None] = {}
    for task, record in ((task, one.record) for (_, task), cells in found.items() for one in cells):
        said |= dict.fromkeys(f"{task}: {name} {note}" for name, note in record.notes.items())
        if record.missing:
            said[f"{task}: not measured, since the data is missing: {', '.join(record.missing)}"] = None
    yield from said
    entries = [entry for line in lines for entry in line.entries]
    measured = [entry.measured for entry in entries if entry.measured is not None]
    seeds = sorted({len(one.by_seed) for one in measured})
    if seeds and seeds[-1] > 1:
        yield f"Means of {' or '.join(map(str, seeds))} training seeds; in brackets the 95 % interval of their mean"
    if any(entry.partial for entry in entries):
        yield "† A mean over those of its sets that were measured; the published one is over all"
    if any(one.collapsed for one in measured):
        yield "‡ Collapsed: no more accurate than always answering the most frequent class; never marked as best"


def _on_other_data(found: Found, columns: Sequence[Column]) -> Iterator[str]:
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
