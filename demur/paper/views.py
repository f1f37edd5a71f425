"""Values, asked for alike whatever their origin: our networks of each convention, or the paper's tables."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from demur.paper.published import (
    DEFAULT_OUTLIERS,
    LEFT_OUT,
    MEAN,
    OOD_SETS,
    Row,
    is_plain,
    mean_but,
    outliers_of,
    printed_values,
    shift_means,
)
from demur.paper.statistics import Known, Spread, assume_spread, mean_of, pool_spread
from demur.study.grid import Cell
from demur.study.results import TEST
from demur.study.table import Measured

NOISE = "smooth"  # what the paper trains with where it trains with noise
PUBLISHED_METRICS = {"accuracy": "accuracy_with_none", "ece": "ece_published"}
LUCK = "uniform"  # noise on which one network's luck moves FPR95 by up to 100 points: judged apart

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

Place = tuple[str, str, str]  # a task, a method, and the outliers it was trained with


def place(task: str, method: str, outliers: str) -> Place:
    return task, method, "" if is_plain(method) else outliers


def by_place(cells: Iterable[Measured]) -> dict[Place, dict[int, Measured]]:
    """By seed, in order; of plain methods that were asked for with several outliers, the usual ones' cell wins."""
    cells_by_place: dict[Place, dict[int, Measured]] = {}
    for run in sorted(cells, key=lambda run: (run.cell.outliers is None, run.cell.seed)):
        cells_by_place.setdefault(place(run.cell.task, run.cell.method, outliers_of(run.cell)), {})[run.cell.seed] = run
    return {key: dict(sorted(runs.items())) for key, runs in cells_by_place.items()}


def mean_over_seeds(runs: Mapping[int, Measured], where: str, metric: str, spread: Spread) -> Known | None:
    """Of those runs that have it; None where none has."""
    values = {seed: value for seed, run in runs.items() if (value := run.value(where, metric)) is not None}
    if not values:
        return None
    bounded = ((one.low, one.high) for one in values.values() if one.low is not None and one.high is not None)
    halves = [(high - low) / 2 for low, high in bounded]
    by_seed = {seed: value.value for seed, value in values.items()}
    collapsed = any(run.collapsed for run in runs.values())
    over_points = float(np.mean(halves)) if halves else 0.0
    return Known(float(np.mean([*by_seed.values()])), over_points, by_seed, spread, collapsed)


@dataclass(frozen=True)
class View:
    """Values of one origin."""

    convention: str  # whose metrics it is judged by
    look: Callable[[Place, str, str], Known | None]  # by place, set and metric; None where it is not there
    runs: Mapping[Place, Mapping[int, Measured]]  # by seed

    def metric(self, name: str) -> str:
        """What the convention takes for accuracy and ECE; other metrics are the same."""
        return PUBLISHED_METRICS.get(name, name) if self.convention == "published" else name

    def seeds(self, cell: Cell) -> int:
        """How many there are that were asked for all that the cell is."""
        runs = self.runs.get(place(cell.task, cell.method, outliers_of(cell)), {}).values()
        return sum({*cell.further} <= {*run.cell.further} for run in runs)

    def seconds(self, at: Place) -> dict[int, float]:
        """To fit, by seed, of networks that had the device alone."""
        runs = self.runs.get(at, {}).items()
        return {seed: run.record.seconds["fit"] for seed, run in runs if run.record.jobs == 1}

    def known(self, task: str, method: str, where: str, metric: str, outliers: str | None = None) -> Known | None:
        return self.look(place(task, method, outliers or DEFAULT_OUTLIERS.get(task, "default")), where, metric)

    def of(self, cell: Cell, where: str, metric: str) -> Known:
        """That of the cell's task, method and training outliers; nan where it is not there."""
        return self.known(cell.task, cell.method, where, metric, cell.outliers) or Known(math.nan)

    def counted(self, task: str, *without: str) -> str:
        """The mean over the OOD sets that the convention counts, but some."""
        return mean_but(*without, *(LEFT_OUT.get(task, ()) if self.convention == "published" else ()))

    def sets(self, cell: Cell, left_out: Collection[str]) -> list[str]:
        """The paper's OOD sets, or their stand-ins, that were measured: those that `mean_but(*left_out)` is over."""
        wanted = (name for name in OOD_SETS[cell.task] if name not in left_out)
        return [name for name in wanted if not math.isnan(self.of(cell, name, "fpr95").value)]


def own_view(
    cells: Sequence[Measured],
    convention: str,
    epochs: int | None = None,
    limit: int | None = None,
    everyone: Sequence[Measured] = (),
) -> View:
    """Networks of one convention, and of the paper's length unless said.

    The spread of training is that of both conventions, over all cells there are: `everyone`, where `cells` are some.
    """

    def in_question(measured: Sequence[Measured]) -> list[Measured]:
        return [run for run in measured if (run.cell.epochs, run.cell.limit) == (epochs, limit)]

    whole = in_question(everyone or cells)
    kinds = {run.cell.convention for run in whole}
    by_convention = {kind: by_place(run for run in whole if run.cell.convention == kind) for kind in kinds}
    places = by_place(run for run in in_question(cells) if run.cell.convention == convention)

    @cache
    def spread(task: str, where: str, metric: str) -> Spread:
        pooled = pool_spread(
            [value.value for run in runs.values() if (value := run.value(where, metric)) and not run.collapsed]
            for places in by_convention.values()
            for (of_task, _, _), runs in places.items()
            if of_task == task
        )
        return assume_spread(pooled, metric)

    def look(at: Place, where: str, metric: str) -> Known | None:
        return mean_over_seeds(places[at], where, metric, spread(at[0], where, metric)) if at in places else None

    return View(convention, look, places)


def match_seeds(cells: Sequence[Measured], compared: Iterable[Cell]) -> list[Measured]:
    """The cells of those training seeds that all of the compared have, of those that are there, task by task."""
    seeds_by_cell: dict[Cell, set[int]] = {}
    for run in cells:
        seeds_by_cell.setdefault(replace(run.cell, seed=0, further=()), set()).add(run.cell.seed)
    common: dict[tuple[str, str], set[int]] = {}
    for cell in compared:
        if seeds := seeds_by_cell.get(replace(cell, seed=0, further=())):
            where = cell.task, cell.convention
            common[where] = common.get(where, seeds) & seeds
    return [run for run in cells if run.cell.seed in common.get((run.cell.task, run.cell.convention), {run.cell.seed})]


# the paper's --------------------------------------------------------------------------------------------------------


def printed_view() -> View:
    """The paper's tables; means over fewer sets than it prints them of, where it prints each set."""
    printed = _printed_values()

    def look(at: Place, where: str, metric: str) -> Known | None:
        task, method, outliers = at
        trained = outliers or DEFAULT_OUTLIERS.get(task, "")
        values = [printed.get((trained, task, name, method, metric)) for name in _names(task, where)]
        if not values or None in values:
            return None
        accuracy = printed[trained, task, TEST, method, "accuracy_with_none"]
        parts = [Known(value, collapsed=accuracy < MAJORITY[task] + 0.01) for value in values if value is not None]
        return mean_of(parts)

    return View("published", look, {})


def _names(task: str, where: str) -> list[str]:
    """The printed values that one is the mean of: itself, or those of the sets that count."""
    left_out = LEFT_OUT.get(task, ())
    if where == mean_but(*left_out):
        return [MEAN]
    for noises in ((NOISE,), (LUCK,), (NOISE, LUCK)):
        if where in (mean_but(*noises), mean_but(*noises, *left_out)):
            return [name for name in OOD_SETS.get(task, ()) if name not in (*noises, *left_out)]
    return [where]


@cache
def _printed_values() -> Mapping[tuple[str, str, str, str, str], float]:
    """By outliers, task, set, method and metric."""
    return {
        (entry.outliers, entry.task, entry.set, entry.row.method, entry.metric): entry.value
        for entry in (*printed_values(), *shift_means())
        if entry.row.score == "max_prob"
    }


def printed_means(task: str, sets: Collection[str]) -> list[tuple[Row, Known]]:
    """The mean of the FPR95 that the paper prints on these sets, of every row that has them all; the least first."""
    by_row: dict[Row, dict[str, float]] = {}
    for entry in printed_values():
        if (entry.task, entry.metric, entry.outliers) == (task, "fpr95", DEFAULT_OUTLIERS.get(task)):
            by_row.setdefault(entry.row, {})[entry.set] = entry.value
    means = [
        (row, Known(float(np.mean([values[name] for name in sets]))))
        for row, values in by_row.items()
        if sets and values.keys() >= {*sets}
    ]
    return sorted(means, key=lambda pair: pair[1].value)


def best_printed(task: str, score: str, sets: Collection[str]) -> tuple[Row, Known] | None:
    """The least of these of a row with that score, in whichever table."""
    return next((pair for pair in printed_means(task, sets) if pair[0].score == score), None)
