"""Figures, asked for alike whatever their origin: our networks of each convention, or the paper's tables."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from demur.bootstrap import over_seeds
from demur.paper.published import (
    DEFAULT_OUTLIERS,
    LEFT_OUT,
    MEAN,
    OOD_SETS,
    SHIFT_SETS,
    Row,
    figures,
    mean_but,
    outliers_of,
    shift_by_severity,
)
from demur.study.grid import Cell
from demur.study.measuring import TEST, per_cent
from demur.study.table import Measured

NOISE = "smooth"  # what the paper trains with where it trains with noise

# the share of the most frequent class in the test data: tells the paper's collapsed classifiers by their accuracy
MAJORITY = {
    "mnist": 0.1135,
    "fashion_mnist": 0.1,
    "svhn": 0.1959,
    "cifar10": 0.1,
    "cifar100": 0.01,
    "sst": 0.5008,
    "trec": 0.246,
}


@dataclass(frozen=True)
class Known:
    """A figure as a fraction; `half` is half its 95 % interval, nothing for what is printed in the paper."""

    value: float
    half: float = 0.0
    collapsed: bool = False  # of a classifier that tells no classes apart

    def text(self, with_half: bool = False) -> str:
        if math.isnan(self.value):
            return "undefined"
        return per_cent(self.value) + f"±{per_cent(self.half)}" * (with_half and self.half > 0) + "‡" * self.collapsed


@dataclass(frozen=True)
class View:
    """Figures of one origin."""

    convention: str  # whose metrics it is judged by
    look: Callable[[str, str, str, str, str], Known]  # by task, method, training outliers, set and metric
    seeds: Callable[[Cell], int]  # how many there are of a cell
    seconds: Callable[[str, str], Mapping[int, float]]  # to fit, by seed
    eces: tuple[str, ...]  # the one it is judged by, and then others that it has

    @property
    def accuracy(self) -> str:
        return "accuracy" if self.convention == "corrected" else "accuracy_with_none"

    def known(self, task: str, method: str, where: str, metric: str, outliers: str | None = None) -> Known:
        return self.look(task, method, outliers or DEFAULT_OUTLIERS.get(task, "default"), where, metric)

    def of(self, cell: Cell, where: str, metric: str) -> Known:
        """That of the cell's task, method and training outliers."""
        return self.known(cell.task, cell.method, where, metric, cell.outliers)

    def fpr95(self, task: str, method: str) -> Known:
        """The mean over the OOD sets that the convention counts."""
        left_out = LEFT_OUT.get(task, ()) if self.convention == "published" else ()
        return self.known(task, method, mean_but(*left_out), "fpr95")

    def sets(self, cell: Cell, left_out: Collection[str]) -> list[str]:
        """The paper's OOD sets, or their stand-ins, that were measured: those that `mean_but(*left_out)` is over."""
        wanted = (name for name in OOD_SETS[cell.task] if name not in left_out)
        return [name for name in wanted if not math.isnan(self.of(cell, name, "fpr95").value)]


def ours(cells: Sequence[Measured], convention: str) -> View:
    """Networks of one convention and of the paper's length."""
    found: dict[tuple[str, str, str], dict[int, Measured]] = {}
    # a method that is shown no outliers is the same whatever they are; of such cells the usual one comes last and wins
    for one in sorted(cells, key=lambda one: one.cell.outliers is None):
        cell = one.cell
        if (cell.convention, cell.epochs, cell.limit) == (convention, None, None):
            found.setdefault(place(cell.task, cell.method, outliers_of(cell)), {})[cell.seed] = one

    def look(task: str, method: str, outliers: str, where: str, metric: str) -> Known:
        runs = found[place(task, method, outliers)].values()
        values = [value for one in runs if (value := one.value(where, metric)) is not None]
        if not values:
            return Known(math.nan)
        by_seed = [value.value for value in values]
        points = [(value.high - value.low) / 2 for value in values if value.low is not None and value.high is not None]
        low, high = over_seeds(by_seed) if len(by_seed) > 1 else (0.0, 0.0)
        half = math.hypot(float(np.mean(points)) if points else 0.0, (high - low) / 2)
        return Known(float(np.mean(by_seed)), half, any(one.collapsed for one in runs))

    def seeds(cell: Cell) -> int:
        runs = found.get(place(cell.task, cell.method, outliers_of(cell)), {}).values()
        return sum({*cell.further} <= {*one.cell.further} for one in runs)

    def seconds(task: str, method: str) -> dict[int, float]:
        runs = found[place(task, method, DEFAULT_OUTLIERS[task])]
        return {seed: one.record.seconds["fit"] for seed, one in runs.items()}

    eces = ("ece", "ece_published") if convention == "corrected" else ("ece_published", "ece")
    return View(convention, look, seeds, seconds, eces)


def matched(cells: Sequence[Measured], compared: Iterable[Cell]) -> list[Measured]:
    """The cells of those training seeds that all of the compared have, of those that are there, task by task."""
    there: dict[Cell, set[int]] = {}
    for one in cells:
        there.setdefault(replace(one.cell, seed=0, further=()), set()).add(one.cell.seed)
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in compared:
        if found := there.get(replace(cell, seed=0, further=())):
            where = cell.task, cell.convention
            seeds[where] = seeds.get(where, found) & found
    return [one for one in cells if one.cell.seed in seeds.get((one.cell.task, one.cell.convention), {one.cell.seed})]


def place(task: str, method: str, outliers: str) -> tuple[str, str, str]:
    return task, method, outliers if "+" in method else ""


def printed() -> View:
    """The paper's tables, and the means over unseen sets where it trains with noise and prints each set."""
    found = _printed()

    def look(task: str, method: str, outliers: str, where: str, metric: str) -> Known:
        where = MEAN if where == mean_but(*LEFT_OUT.get(task, ())) else where
        sets = [name for name in OOD_SETS[task] if name != NOISE] if where == mean_but(NOISE) else [where]
        values = [found[at] for name in sets if (at := (outliers, task, name, method, metric)) in found]
        accuracy = found[outliers, task, TEST, method, "accuracy_with_none"]
        return Known(float(np.mean(values)), collapsed=accuracy < MAJORITY[task] + 0.01)

    def seeds(cell: Cell) -> int:
        return int((outliers_of(cell), cell.task, TEST, cell.method, "accuracy_with_none") in found)

    return View("published", look, seeds, lambda task, method: {}, ("ece_published",))


@cache
def _printed() -> Mapping[tuple[str, str, str, str, str], float]:
    """By outliers, task, set, method and metric."""
    tables = {
        (one.outliers, one.task, one.set, one.row.method, one.metric): one.value
        for one in figures()
        if one.row.score == "max_prob"
    }
    shift = {
        ("imagenet32", "cifar10", SHIFT_SETS[severity], method, metric): float(np.mean(values))
        for metric in ("accuracy_with_none", "ece_published")
        for method, by_severity in shift_by_severity(metric).items()
        for severity, values in by_severity.items()
    }
    return tables | shift


def printed_mean(task: str, row: Row, sets: Collection[str]) -> Known | None:
    """The mean of the FPR95 that the paper prints on these sets; None where it lacks one."""
    values = _printed_sets().get((task, row), {})
    return Known(float(np.mean([values[name] for name in sets]))) if sets and values.keys() >= set(sets) else None


def best_printed(task: str, score: str, sets: Collection[str]) -> tuple[Row, Known] | None:
    """The least such mean of all rows with that score, in whichever table."""
    rows = [row for of_task, row in _printed_sets() if (of_task, row.score) == (task, score)]
    means = [(row, mean) for row in rows if (mean := printed_mean(task, row, sets)) is not None]
    return min(means, key=lambda pair: pair[1].value, default=None)


@cache
def _printed_sets() -> Mapping[tuple[str, Row], Mapping[str, float]]:
    """FPR95 by task and row, then by set; trained with the task's usual outliers."""
    found: dict[tuple[str, Row], dict[str, float]] = {}
    for one in figures():
        if one.metric == "fpr95" and one.set != MEAN and one.outliers == DEFAULT_OUTLIERS[one.task]:
            found.setdefault((one.task, one.row), {})[one.set] = one.value
    return found
