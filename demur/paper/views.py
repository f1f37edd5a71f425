"""Values, asked for alike whatever their origin: our networks of each convention, or the paper's tables."""

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
    is_plain,
    mean_but,
    outliers_of,
    shift_by_severity,
)
from demur.study.grid import Cell
from demur.study.measuring import TEST, per_cent
from demur.study.table import Measured

NOISE = "smooth"  # what the paper trains with where it trains with noise

# the fraction of the most frequent class in the test data: tells the paper's collapsed classifiers by their accuracy
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
    """A fraction, the mean over training seeds; `half` is half its 95 % interval, over test points and training.

    All seeds are tested on the same points, so the ends of the interval over points, `low` and `high`, are the means of
    the seeds': it is never too narrow, and exact where the networks err alike. What the paper prints has none.
    """

    value: float
    half: float = 0.0
    collapsed: bool = False  # of a classifier that tells no classes apart
    low: float = math.nan
    high: float = math.nan
    by_seed: tuple[float, ...] = ()
    training: tuple[float, float] | None = None  # the interval over seeds, where there are several

    def text(self, with_half: bool = False) -> str:
        if math.isnan(self.value):
            return "undefined"
        return per_cent(self.value) + f"±{per_cent(self.half)}" * (with_half and self.half > 0) + "‡" * self.collapsed


def mean_over_seeds(runs: Collection[Measured], where: str, metric: str) -> Known | None:
    """Of those runs that have it; None where none has."""
    values = [value for one in runs if (value := one.value(where, metric)) is not None]
    if not values:
        return None
    by_seed = tuple(value.value for value in values)
    ends = [(value.low, value.high) for value in values if value.low is not None and value.high is not None]
    low, high = np.mean(ends, axis=0).tolist() if ends else (math.nan, math.nan)
    training = over_seeds(by_seed) if len(by_seed) > 1 else None
    halves = [(high - low) / 2 if ends else 0.0, (training[1] - training[0]) / 2 if training else 0.0]
    collapsed = any(one.collapsed for one in runs)
    return Known(float(np.mean(by_seed)), math.hypot(*halves), collapsed, low, high, by_seed, training)


def place(task: str, method: str, outliers: str) -> tuple[str, str, str]:
    return task, method, "" if is_plain(method) else outliers


def by_place(cells: Iterable[Measured]) -> dict[tuple[str, str, str], dict[int, Measured]]:
    """By seed, in order; of plain methods that were asked for with several outliers, the usual ones' cell wins."""
    found: dict[tuple[str, str, str], dict[int, Measured]] = {}
    for one in sorted(cells, key=lambda one: (one.cell.outliers is None, one.cell.seed)):
        found.setdefault(place(one.cell.task, one.cell.method, outliers_of(one.cell)), {})[one.cell.seed] = one
    return found


@dataclass(frozen=True)
class View:
    """Values of one origin."""

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
    usual = convention, None, None
    found = by_place(one for one in cells if (one.cell.convention, one.cell.epochs, one.cell.limit) == usual)

    def look(task: str, method: str, outliers: str, where: str, metric: str) -> Known:
        runs = found[place(task, method, outliers)].values()
        return mean_over_seeds(runs, where, metric) or Known(math.nan)

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


# the paper's --------------------------------------------------------------------------------------------------------


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
