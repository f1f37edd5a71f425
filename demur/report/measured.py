"""A cell's figures, from its predictions or from the tables that were made of them: every report is made from these.

results.csv has a figure a line (no times in it), cells.csv a cell a line with all that is known of how it was made.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from demur.metrics import METRICS, STANDARD, Measures, Separation, measures_with, mmc, ood_metrics
from demur.outliers.values import sets_of
from demur.paper.further import PRINTED, VALIDATION, shifted
from demur.paper.published import LEFT_OUT, OOD_SETS, SHIFT_SETS, TEST, mean_but
from demur.report.intervals import AGAINST, INSIDE, against, counts, interval
from demur.study.grid import Cell
from demur.study.records import RECORD, DamagedCell, join_further, leave_out, split_further
from demur.study.results import Result, find_cells, read_result
from demur.study.run import FAR_AWAY
from demur.tasks.images import NOISE, STAND_INS
from demur.tasks.shift import CORRUPTIONS

RESULTS, CELLS = "results.csv", "cells.csv"
SHIFT = "shift"
CELL = ("task", "outliers", "method", "seed", "convention", "epochs", "limit")
LEFT_TO_THE_FOLDER = ("cells", "sets", "further", "digests")  # of its record
DIGITS = 6  # after the point, of a fraction


class Value(NamedTuple):
    """A figure, as a fraction, with the ends of its 95 % bootstrap interval over test points where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


Figures = Mapping[tuple[str, str], Value]  # by set and metric


@dataclass(frozen=True)
class Measured:
    """All figures of a cell, and how it was made; `folder` has its predictions, if they are at hand."""

    cell: Cell
    figures: Figures
    about: Mapping[str, str]  # its line of cells.csv
    folder: Path | None = None

    @property
    def sets(self) -> tuple[str, ...]:
        """Its OOD sets."""
        return tuple(json.loads(self.about["sets"]))

    def data(self, name: str) -> str | None:
        """The digest of the set of that name, test data or OOD, or of all under shift; None where none is recorded."""
        key = name if name == TEST else SHIFT if name.startswith(f"{SHIFT}/") else f"ood/{name}"
        return json.loads(self.about.get("data") or "{}").get(key)

    def figure(self, name: str, metric: str) -> Value | None:
        """On the set of that name, or on the one that stands in for it."""
        return self.figures.get((name, metric)) or self.figures.get((STAND_INS.get(name, name), metric))

    @property
    def collapsed(self) -> bool:
        """Whether the classifier is no better than always answering the most frequent class, whatever its FPR95."""
        return self.figures[TEST, "accuracy"].value < self.figures[TEST, "majority"].value + 0.01


# from predictions ---------------------------------------------------------------------------------------------------

Resampled = tuple[float, NDArray[np.float64]]  # a figure, and what it is in every resample


class Own(NamedTuple):
    """Metrics and scores to compute beside demur's, as `mypackage.mymodule:name`."""

    metrics: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()


NOTHING_OWN = Own()


def measure(result: Result, folder: Path | None = None, measures: Measures = STANDARD) -> Measured:
    exact: dict[tuple[str, str], Value] = {}
    for part in (_inside, _outside, _under_shift, _on_validation):
        exact |= part(result, measures)
    figures = {place: _rounded(value) for place, value in exact.items()}
    return Measured(result.cell, figures, _about(result, folder), folder)


def _rounded(exact: Value) -> Value:
    low, high = (None if end is None else round(end, DIGITS) for end in (exact.low, exact.high))
    return Value(round(exact.value, DIGITS), low, high)


def _value(resampled: Resampled) -> Value:
    return Value(resampled[0], *interval(resampled[1]))


def _inside(result: Result, measures: Measures) -> Iterator[tuple[tuple[str, str], Value]]:
    test, y = result.test, result.y
    drawn = counts(TEST, len(test))
    for name, metric in measures.metrics.items():
        value = metric(test, y)
        yield (TEST, name), _value((value, INSIDE[name](test, y, drawn))) if name in INSIDE else Value(value)
    yield (TEST, "majority"), Value(float(y.bincount().max() / len(y)))


def _outside(result: Result, measures: Measures) -> Iterator[tuple[tuple[str, str], Value]]:
    test, y = result.test, result.y
    resampled: dict[tuple[str, str], Resampled] = {}
    for name, outside in result.ood.items():
        drawn = counts(TEST, len(test)), counts(name, len(outside))
        for metric, value in ood_metrics(test, outside, measures.scores).items():
            yield (name, metric), Value(value)
        resampled[name, "mmc"] = mmc(outside), INSIDE["mmc"](outside, y, drawn[1])
        for score, of in measures.scores.items():
            if not of.bounded:
                continue
            inlying, outlying = of(test), of(outside)
            if inlying is not None and outlying is not None:
                for metric in AGAINST:
                    value = getattr(Separation(-inlying, -outlying), metric)
                    resampled[name, scored(metric, score)] = value, against(metric, -inlying, -outlying, *drawn)
    for place, again in resampled.items():
        yield place, _value(again)
    for left_out in _left_out(result):
        names = averaged(result.cell.task, result.ood, left_out)
        for metric in dict.fromkeys(metric for _, metric in resampled) if names else ():
            yield (mean_but(*left_out), metric), _value(_mean([resampled[name, metric] for name in names]))


def scored(metric: str, score: str) -> str:
    """The metric's name under a score that is not the usual one; confidence is the same under all."""
    return metric if score == "max_prob" or metric not in AGAINST else f"{score}_{metric}"


def _mean(parts: Sequence[Resampled]) -> Resampled:
    return float(np.mean([value for value, _ in parts])), np.mean([again for _, again in parts], axis=0)


def _left_out(result: Result) -> list[tuple[str, ...]]:
    """What means leave out: what the paper does, what was trained with, and any noise, so that methods which are shown
    no outliers can stand beside those which are shown noise."""
    noises = [name for name in result.ood if name in NOISE]
    some = [some for count in range(len(noises) + 1) for some in combinations(noises, count)]
    seen = tuple(name for name in sets_of(result.record.trained_with) if name in result.ood)
    return list(dict.fromkeys((*some, seen, LEFT_OUT.get(result.cell.task, ()))))


def averaged(task: str, sets: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """The sets that a mean is over: the paper's, or their stand-ins; the far-away one asks something else."""
    paper = OOD_SETS.get(task)
    known = None if paper is None else {*paper, *(STAND_INS[name] for name in paper if name in STAND_INS)}
    without = {FAR_AWAY, *left_out}
    return [name for name in sets if name not in without and (known is None or name in known)]


def _under_shift(result: Result, measures: Measures) -> Iterator[tuple[tuple[str, str], Value]]:
    if "shift" not in result.further:
        return
    y, sets = result.further["shift"].y, result.further["shift"].sets
    for name, prediction in sets.items():
        for metric in INSIDE:
            yield (name, metric), Value(METRICS[metric](prediction, y))
    drawn = counts("shift", len(y))
    for severity, mean_name in SHIFT_SETS.items():
        of_severity = [sets[shifted(corruption, severity)] for corruption in CORRUPTIONS]
        for metric, resample in INSIDE.items():
            parts = [(METRICS[metric](one, y), resample(one, y, drawn)) for one in of_severity]
            yield (mean_name, metric), _value(_mean(parts))


def _on_validation(result: Result, measures: Measures) -> Iterator[tuple[tuple[str, str], Value]]:
    """What a method may be chosen by."""
    if "validation" not in result.further:
        return
    y, sets = result.further["validation"].y, result.further["validation"].sets
    inside, outside = sets[VALIDATION], sets[PRINTED]
    yield (VALIDATION, "accuracy"), Value(METRICS["accuracy"](inside, y))
    for metric, value in ood_metrics(inside, outside, measures.scores).items():
        yield (PRINTED, metric), Value(value)


def _about(result: Result, folder: Path | None) -> dict[str, str]:
    """The record, each item as text."""
    record = {name: value for name, value in result.record.as_json().items() if name not in LEFT_TO_THE_FOLDER}
    record |= {
        "further": join_further(result.cell.further),
        "sets": list(result.ood),
        "folder": folder.name if folder else None,
    }
    return {name: _text(value) for name, value in record.items()}


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


# as tables ----------------------------------------------------------------------------------------------------------


def results_csv(cells: Iterable[Measured]) -> str:
    rows = (
        (*place_of(one.cell), *place, *("" if x is None else repr(x) for x in value))
        for one in cells
        for place, value in one.figures.items()
    )
    ordered = sorted(rows, key=lambda row: [str(field) for field in row])
    return write_csv((*CELL, "set", "metric", *Value._fields), ordered)


def cells_csv(cells: Sequence[Measured]) -> str:
    names = sorted({name for one in cells for name in one.about})
    ordered = sorted(cells, key=lambda one: [str(field) for field in place_of(one.cell)])
    rows = ((*place_of(one.cell), *(one.about.get(name, "") for name in names)) for one in ordered)
    return write_csv((*CELL, *names), rows)


def write_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return written.getvalue()


def place_of(cell: Cell) -> tuple[object, ...]:
    """The columns CELL; empty where the task or the recipe decides."""
    return tuple("" if (value := getattr(cell, name)) is None else value for name in CELL)


def read_tables(folder: Path) -> list[Measured]:
    """What results.csv and cells.csv say."""
    figures: dict[Cell, dict[tuple[str, str], Value]] = {}
    for cell, line in _read(folder / RESULTS, _figure):
        figures.setdefault(cell, {}).update([line])
    abouts = dict(_read(folder / CELLS, _checked_about))
    if figures.keys() != abouts.keys():
        raise ValueError(f"{folder / RESULTS} and {folder / CELLS} are not of the same cells; make both anew from runs")
    cells = [
        Measured(replace(cell, further=split_further(about["further"])), figures[cell], about)
        for cell, about in abouts.items()
    ]
    for one in cells:
        if lacking := {TEST, *one.sets} - {name for name, _ in one.figures}:
            raise ValueError(
                f"{folder / RESULTS} lacks figures on {', '.join(sorted(lacking))} of {one.cell.task} "
                f"{one.cell.method}; make both tables anew from runs"
            )
    return cells


def _figure(line: Mapping[str, str]) -> tuple[tuple[str, str], Value]:
    low, high = (float(line[end]) if line[end] else None for end in ("low", "high"))
    return (line["set"], line["metric"]), Value(float(line["value"]), low, high)


def _checked_about(line: Mapping[str, str]) -> dict[str, str]:
    about = {name: text for name, text in line.items() if name not in CELL}
    for name in ("device", "further", "trained_with", "training_inputs"):
        about[name]
    float(json.loads(about["seconds"])["fit"])
    for name, kind in {"sets": list, "missing": list, "notes": dict}.items():
        if not isinstance(json.loads(about[name]), kind):
            raise ValueError(name)
    return about


T = TypeVar("T")


def _read(path: Path, read: Callable[[Mapping[str, str]], T]) -> Iterator[tuple[Cell, T]]:
    """The cells of the lines, and what is read of each; a file that was cut off is refused."""
    remedy = "get it again, or make both tables anew from runs"
    try:
        text = path.read_bytes().decode("utf-8")
        lines = list(csv.DictReader(StringIO(text, newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}") from None
    if not text.endswith("\n"):
        raise ValueError(f"{path} is cut off at its end; {remedy}")
    for number, line in enumerate(lines, start=1):
        try:
            if None in line or None in line.values():
                raise ValueError("it has another number of columns than the first line")
            found = _cell(line), read(line)
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged in row {number} ({error}); {remedy}") from None
        yield found


def _cell(line: Mapping[str, str]) -> Cell:
    epochs, limit = (int(line[name]) if line[name] else None for name in ("epochs", "limit"))
    return Cell(
        line["task"], line["method"], int(line["seed"]), line["convention"], line["outliers"] or None, epochs, limit
    )


# from both ----------------------------------------------------------------------------------------------------------


def gather(
    sources: Sequence[Path],
    jobs: int = 1,
    after: Callable[[int, int], None] = lambda number, total: None,
    own: Own = NOTHING_OWN,
) -> list[Measured]:
    """Every cell of folders of runs, and of folders with the tables of earlier reports; of the same cell the last wins.

    Damaged cells are left out, and warned of.
    `after` is told how many cells' predictions have been measured, of how many.
    """
    found: dict[Cell, Measured] = {}

    def take(one: Measured) -> None:
        bare = replace(one.cell, further=())
        before = found.get(bare)
        if before is not None and _is_same_network(before, one):
            further = tuple(sorted({*before.cell.further, *one.cell.further}))
            if further != one.cell.further:  # what is known of its other further inputs stays
                about = {**one.about, "further": _text(join_further(further)), **_data_of_both(before, one)}
                figures = {**before.figures, **one.figures}
                one = replace(one, cell=replace(bare, further=further), figures=figures, about=about)
        found[bare] = one

    for source in sources:
        stored, cells = (source / RESULTS).exists(), find_cells(source)
        if not stored and not cells:
            raise ValueError(f"there are no results in {source}; make some with: demur study digits --runs {source}")
        for one in read_tables(source) if stored else ():
            take(one)
        for number, measured in enumerate(_measure_all(cells, jobs, own), start=1):
            if isinstance(measured, DamagedCell):
                leave_out(measured)
            else:
                take(measured)
            after(number, len(cells))
    return sorted(found.values(), key=lambda one: [str(field) for field in place_of(one.cell)])


def _data_of_both(before: Measured, one: Measured) -> dict[str, str]:
    """The digests of one, and of the other's further inputs."""
    known, new = (json.loads(each.about.get("data") or "{}") for each in (before, one))
    data = {kind: known[kind] for kind in before.cell.further if kind in known} | new
    return {"data": _text(data)} if data else {}


def _is_same_network(one: Measured, other: Measured) -> bool:
    """The folder is named by the recipe; trained again on another device, it makes another network."""
    losses = [measured.figures[TEST, "nll"].value for measured in (one, other)]
    return one.about.get("folder") == other.about.get("folder") and math.isclose(*losses, rel_tol=1e-3)


def _measure_all(cells: Sequence[tuple[Path, Cell]], jobs: int, own: Own) -> Iterator[Measured | DamagedCell]:
    if jobs == 1 or len(cells) < 2:
        yield from map(partial(_measure_folder, own), cells)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _keep_to_one_thread) as pool:
        yield from pool.map(partial(_measure_folder, own), cells)


def _keep_to_one_thread() -> None:
    """More, in every process, would wait for each other: six times the CPU time on sixteen cores."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def _measure_folder(own: Own, place: tuple[Path, Cell]) -> Measured | DamagedCell:
    folder, cell = place
    measures = measures_with(*own)
    try:
        return measure(read_result(folder, cell), folder, measures)
    except DamagedCell as error:
        return error
    except KeyError as error:  # its further sets are not those of this version
        return DamagedCell(folder / RECORD, f"it has no set {error}")
