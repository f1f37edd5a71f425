"""The two tidy tables of a report, and the cells that they are of: made from predictions, or read back.

results.csv has a value a line (no times in it), cells.csv a cell a line with all that is known of how it was made.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from demur.measures import Measures, measures_with, score_named_in
from demur.outliers.values import current_name
from demur.scores import MEASURED
from demur.study.grid import Cell
from demur.study.measuring import Value, Values
from demur.study.records import RECORD, RECORD_TYPES, DamagedCell, Record, join_further, leave_out, record_from
from demur.study.results import TEST, Result, find_cells, ood_name, read_result
from demur.tasks.images import STAND_INS

RESULTS, CELLS = "results.csv", "cells.csv"
CELL = ("task", "outliers", "method", "seed", "convention", "epochs", "limit")
OF_THE_FOLDER = ("cells", "sets", "further", "digests", "scores")  # of its record; not of a single cell
WHERE_KNOWN = ("data", "jobs", "prior_precision", "source", "tuning")  # columns that a table may lack
REMEDY = "get it again, or make both tables anew from runs"


@dataclass(frozen=True)
class Measured:
    """All values of a cell, and how it was made; `folder` has its predictions, if they are at hand."""

    cell: Cell
    values: Values
    record: Record  # but OF_THE_FOLDER
    sets: tuple[str, ...]  # OOD sets
    folder_name: str = ""
    folder: Path | None = None

    def data(self, name: str) -> str | None:
        """The digest of the set of that name, test data or OOD, or of a kind of further inputs; None where unknown."""
        kind = name.partition("/")[0]
        return self.record.data.get(kind if kind in (TEST, *self.cell.further) else ood_name(name))

    def value(self, name: str, metric: str) -> Value | None:
        """On the set of that name, or on the one that stands in for it."""
        return self.values.get((name, metric)) or self.values.get((STAND_INS.get(name, name), metric))

    def scores(self, where: str | None = None) -> list[str]:
        """Those that it has FPR95 of, on that set or on any: those of every cell first, then others by name."""
        stored = {metric for name, metric in self.values if where in (None, name)}
        scores = {score for name in stored if (score := score_named_in(name, "fpr95"))}
        return [*(name for name in MEASURED if name in scores), *sorted(scores - MEASURED.keys())]

    @property
    def collapsed(self) -> bool:
        """Whether the classifier is no better than always answering the most frequent class, whatever its FPR95."""
        return self.values[TEST, "accuracy"].value < self.values[TEST, "majority"].value + 0.01

    @property
    def place(self) -> tuple[str, ...]:
        """The columns CELL; empty where the task or the recipe decides."""
        return tuple("" if (value := getattr(self.cell, name)) is None else str(value) for name in CELL)


def measured_cell(result: Result, values: Values, folder: Path | None = None) -> Measured:
    record = replace(result.record, cells=(), sets=(), further={}, digests={}, scores={})
    return Measured(result.cell, values, record, tuple(result.ood), folder.name if folder else "", folder)


# written ------------------------------------------------------------------------------------------------------------


def results_csv(cells: Iterable[Measured]) -> str:
    rows = [
        (*run.place, *place, *("" if x is None else repr(x) for x in value))
        for run in cells
        for place, value in run.values.items()
    ]
    return _csv(sorted(rows), (*CELL, "set", "metric", *Value._fields))


def cells_csv(cells: Sequence[Measured]) -> str:
    cells = sorted(cells, key=lambda run: run.place)
    lines = [_line(run) for run in cells]
    names = [name for name in sorted(lines[0]) if name not in WHERE_KNOWN or any(line[name] for line in lines)]
    rows = [(*run.place, *(line[name] for name in names)) for run, line in zip(cells, lines, strict=True)]
    return _csv(rows, (*CELL, *names))


def _csv(rows: Iterable[Sequence[str]], columns: Sequence[str]) -> str:
    written: str = pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n")
    return written


def _line(run: Measured) -> dict[str, str]:
    """What is known of the cell, as text; nothing where it is what a record has by default."""
    default: dict[str, Any] = {f.name: {} if f.default_factory is dict else f.default for f in fields(Record)}
    known = {name: value for name, value in run.record.as_json().items() if name not in OF_THE_FOLDER}
    line = {name: "" if value in (None, default[name]) else _text(value) for name, value in known.items()}
    return line | {
        "sets": _text(run.sets),
        "further": join_further(run.cell.further) or "",
        "folder": run.folder_name,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


# read back ----------------------------------------------------------------------------------------------------------


def read_tables(folder: Path) -> list[Measured]:
    """What results.csv and cells.csv say."""
    path = folder / RESULTS
    results = _read(path)
    results["outliers"] = results["outliers"].map({name: current_name(name) for name in results["outliers"].unique()})
    texts = results[["value", "low", "high"]]
    numbers = texts.apply(pd.to_numeric, errors="coerce")
    for number in results.index[(numbers.isna() & ~texts.isin(["nan", ""])).any(axis=1) | (texts["value"] == "")]:
        raise ValueError(f"{path} is damaged in row {number} (it has no number); {REMEDY}")
    results[["low", "high"]] = numbers[["low", "high"]].astype(object).where(texts[["low", "high"]] != "", None)
    results["value"] = numbers["value"]
    by_place = {
        place: {(name, metric): Value(*ends) for name, metric, *ends in of_cell.iloc[:, len(CELL) :].itertuples(False)}
        for place, of_cell in results.groupby(list(CELL), sort=False)
    }
    cells = [_parse_cell(folder / CELLS, number, line) for number, line in _read(folder / CELLS).iterrows()]
    if by_place.keys() != {run.place for run in cells}:
        raise ValueError(f"{path} and {folder / CELLS} are not of the same cells; make both anew from runs")
    filled = [replace(run, values=by_place[run.place]) for run in cells]
    for run in filled:
        if lacking := {TEST, *run.sets} - {name for name, _ in run.values}:
            raise ValueError(
                f"{path} lacks values on {', '.join(sorted(lacking))} of {run.cell.task} {run.cell.method}; "
                "make both tables anew from runs"
            )
    return filled


def _read(path: Path) -> pd.DataFrame:
    """Every field as text; a file that was cut off is refused."""
    try:
        text = path.read_bytes().decode("utf-8")
        if not text.endswith("\n"):
            raise ValueError(f"{path} is cut off at its end; {REMEDY}")
        head, *rows = csv.reader(StringIO(text, newline=""), strict=True)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read ({error}); {REMEDY}") from None
    for number, row in enumerate(rows, start=1):  # which pandas would fill up
        if len(row) != len(head):
            raise ValueError(f"{path} is damaged in row {number} ({len(row)} columns, not {len(head)}); {REMEDY}")
    return pd.DataFrame(rows, columns=head, index=range(1, len(rows) + 1))


def _parse_cell(path: Path, number: Any, line: Mapping[str, str]) -> Measured:
    """A line of cells.csv, as yet without values."""
    try:
        cell: dict[str, Any] = {name: line[name] or None for name in (*CELL, "further")}
        cell |= {name: int(text) for name in ("seed", "epochs", "limit") if (text := line[name])}
        known: dict[str, Any] = {
            name: line[name] or None if RECORD_TYPES.get(name) in (str, str | None) else json.loads(line[name])
            for name in (field.name for field in fields(Record))
            if name in line and name != "further" and (line[name] or name == "trained_with")
        }
        sets: tuple[str, ...] = tuple(known["sets"])
        record = record_from({**known, "sets": [TEST, *sets], "cells": [cell]}, path)
        return Measured(record.cells[0], {}, replace(record, cells=(), sets=()), sets, line["folder"])
    except DamagedCell as error:
        reason: object = error.reason
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        reason = error
    raise ValueError(f"{path} is damaged in row {number} ({reason}); {REMEDY}")


# both ---------------------------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """Metrics and scores to compute beside demur's, as `mypackage.mymodule:name`."""

    metrics: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()


NOTHING_OWN = Own()
Measure = Callable[[Result, Measures], Values]


def gather(
    sources: Sequence[Path],
    measure: Measure,
    jobs: int = 1,
    after: Callable[[int, int], None] = lambda number, total: None,
    own: Own = NOTHING_OWN,
) -> list[Measured]:
    """Every cell of folders of runs, and of folders with the tables of earlier reports; of the same cell the last wins.

    Damaged cells are left out, and warned of. `measure` makes values of predictions; `after` is told of how many cells
    it has, of how many.
    """
    by_cell: dict[Cell, Measured] = {}

    def take(run: Measured) -> None:
        bare = replace(run.cell, further=())
        before = by_cell.get(bare)
        by_cell[bare] = _join(before, run) if before is not None and _is_same_network(before, run) else run

    for source in sources:
        stored, cells = (source / RESULTS).exists(), find_cells(source)
        if not stored and not cells:
            raise ValueError(f"there are no results in {source}; make some with: demur study digits --runs {source}")
        for run in read_tables(source) if stored else ():
            take(run)
        for number, outcome in enumerate(_measure_all(cells, partial(_measure_folder, measure, own), jobs), start=1):
            if isinstance(outcome, DamagedCell):
                leave_out(outcome)
            else:
                take(outcome)
            after(number, len(cells))
    return sorted(by_cell.values(), key=lambda run: run.place)


def _is_same_network(run: Measured, other: Measured) -> bool:
    """The folder is named by the recipe; trained again on another device, it makes another network."""
    losses = [each.values[TEST, "nll"].value for each in (run, other)]
    return run.folder_name == other.folder_name and math.isclose(*losses, rel_tol=1e-3)


def _join(before: Measured, run: Measured) -> Measured:
    """What was known of other further inputs of the same network stays."""
    further = tuple(sorted({*before.cell.further, *run.cell.further}))
    if further == run.cell.further:
        return run
    data = {kind: before.record.data[kind] for kind in before.cell.further if kind in before.record.data}
    return replace(
        run,
        cell=replace(run.cell, further=further),
        values={**before.values, **run.values},
        record=replace(run.record, data={**data, **run.record.data}),
    )


def _measure_all(
    cells: Sequence[tuple[Path, Cell]], measure: Callable[[tuple[Path, Cell]], Measured | DamagedCell], jobs: int
) -> Iterator[Measured | DamagedCell]:
    if jobs == 1 or len(cells) < 2:
        yield from map(measure, cells)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _keep_to_one_thread) as pool:
        yield from pool.map(measure, cells)


def _keep_to_one_thread() -> None:
    """More, in every process, would wait for each other: six times the CPU time on sixteen cores."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def _measure_folder(measure: Measure, own: Own, place: tuple[Path, Cell]) -> Measured | DamagedCell:
    folder, cell = place
    try:
        result = read_result(folder, cell)
        return measured_cell(result, measure(result, measures_with(*own)), folder)
    except DamagedCell as error:
        return error
    except KeyError as error:  # its further sets are not those of this version
        return DamagedCell(folder / RECORD, f"it has no set {error}")
