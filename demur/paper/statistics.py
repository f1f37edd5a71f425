"""Comparisons of methods, paired by training seed, that grow stronger with every seed.

One network says nothing of how far the next would lie from it, and the spread of three is known badly: Student's t
asks for 4.3 standard errors. So what is known of the spread on a task, from all its methods, counts as much as
`WORTH` more networks of each would (a moderated t, Smyth 2004): with one seed it stands alone, with many the
differences themselves decide.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import stdtrit

from demur.bootstrap import LEVEL
from demur.study.measuring import per_cent

WORTH = 4  # degrees of freedom
YES, PART, NO, UNCLEAR = "yes", "in part", "no", "unclear"


@dataclass(frozen=True)
class Spread:
    """The variance of one network's value over training seeds, pooled over methods, and its degrees of freedom."""

    variance: float = 0.0
    freedom: int = 0
    assumed: bool = False  # for want of networks, at least in part


# the standard deviation where nothing is measured: about what it was on the tasks with several seeds
ASSUMED = {"accuracy": 0.01, "accuracy_with_none": 0.01, "ece": 0.01, "ece_published": 0.01}
ASSUMED_OTHERWISE = 0.03


def assume_spread(measured: Spread, metric: str) -> Spread:
    """The degrees of freedom that a spread lacks to `WORTH` are those of an assumed one."""
    if measured.freedom >= WORTH:
        return measured
    assumed = ASSUMED.get(metric, ASSUMED_OTHERWISE) ** 2
    variance = (measured.freedom * measured.variance + (WORTH - measured.freedom) * assumed) / WORTH
    return Spread(variance, WORTH, assumed=True)


def pool_spread(methods: Iterable[Collection[float]]) -> Spread:
    """From each method's values, one a seed; those with one seed say nothing."""
    several = [values for values in methods if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(float(np.var(list(values))) * len(values) for values in several)
    return Spread(squares / freedom, freedom) if freedom else Spread()


def training_half(values: Collection[float], spread: Spread, networks: int = 1) -> float:
    """Half the 95 % interval of their mean, where each is a sum or difference of so many networks' values.

    0 where nothing is known of the spread.
    """
    prior, own = min(spread.freedom, WORTH), len(values) - 1
    if prior + own == 0:
        return 0.0
    squares = prior * networks * spread.variance + len(values) * float(np.var(list(values)))
    standard_error = math.sqrt(squares / (prior + own) / len(values))
    return standard_error * float(stdtrit(prior + own, (1 + LEVEL) / 2))


@dataclass(frozen=True)
class Known:
    """A value, the mean over training seeds; what the paper prints has no intervals.

    All seeds are tested on the same points, so half the 95 % interval over points is the mean of the seeds': never too
    narrow, and exact where the networks err alike.
    """

    value: float
    over_points: float = 0.0
    by_seed: Mapping[int, float] = field(default_factory=dict)
    spread: Spread = Spread()
    collapsed: bool = False  # of a classifier that tells no classes apart

    @property
    def training(self) -> float:
        return training_half(self.by_seed.values(), self.spread) if self.by_seed else 0.0

    @property
    def half(self) -> float:
        """Half the 95 % interval over test points and training; at most all that fractions can differ by."""
        return min(math.hypot(self.over_points, self.training), 1.0)

    @property
    def of_one_more(self) -> float:
        """Half the 95 % interval of its difference from one more network, tested on points of its own."""
        return math.hypot(self.over_points, math.sqrt(1 + len(self.by_seed)) * self.training)

    def text(self, with_half: bool = False) -> str:
        if math.isnan(self.value):
            return "undefined"
        return per_cent(self.value) + f"±{per_cent(self.half)}" * (with_half and self.half > 0) + "‡" * self.collapsed


def mean_of(parts: Collection[Known]) -> Known:
    """Of values of the same networks: as if their errors went together, which they do in part."""

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    seeds = set.intersection(*({*one.by_seed} for one in parts))
    spreads = [one.spread for one in parts]
    return Known(
        mean(one.value for one in parts),
        mean(one.over_points for one in parts),
        {seed: mean(one.by_seed[seed] for one in parts) for seed in sorted(seeds)},
        Spread(
            mean(math.sqrt(each.variance) for each in spreads) ** 2,
            min(each.freedom for each in spreads),
            any(each.assumed for each in spreads),
        ),
        any(one.collapsed for one in parts),
    )


@dataclass(frozen=True)
class Difference:
    """Of two methods, with half its 95 % interval."""

    value: float
    half: float
    seeds: int  # that both have
    assumed: bool  # whether the spread is


def difference(one: Known, other: Known) -> Difference:
    """Over the seeds that both have; where they have none in common, as if each had one."""
    both = sorted({*one.by_seed} & {*other.by_seed})
    values = [one.by_seed[seed] - other.by_seed[seed] for seed in both] or [one.value - other.value]
    training = training_half(values, one.spread, networks=2)
    half = math.hypot(one.over_points, other.over_points, training)
    return Difference(float(np.mean(values)), half, len(both), one.spread.assumed)


def mean_difference(differences: Collection[Difference]) -> Difference:
    """Over tasks, whose errors are independent."""
    return Difference(
        float(np.mean([one.value for one in differences])),
        math.hypot(*(one.half for one in differences)) / len(differences),
        min(one.seeds for one in differences),
        any(one.assumed for one in differences),
    )


# rules: each says YES, NO or UNCLEAR of a difference, the one less the other -----------------------------------------


def is_below(apart: Difference) -> str:
    """Whether the one is clearly less: by more than the interval of the difference explains."""
    return YES if apart.value < -apart.half else NO if apart.value > apart.half else UNCLEAR


def is_above(apart: Difference) -> str:
    return is_below(replace(apart, value=-apart.value))


def is_not_above(apart: Difference) -> str:
    """Whether it is not clearly more: a tie is a yes, whichever of the two is ahead by luck."""
    return UNCLEAR if math.isnan(apart.value) else NO if apart.value > apart.half else YES


ALIKE = 0.03  # accuracies and confidences that are called similar differ by no more


def is_tie(apart: Difference) -> str:
    size = abs(apart.value)
    return YES if size + apart.half <= ALIKE else NO if size - apart.half > ALIKE else UNCLEAR


def combine_outcomes(outcomes: Collection[str]) -> str:
    """Of many tests: yes if all say so, no if none does; unclear if most are."""
    kinds = set(outcomes)
    if len(kinds) == 1:
        return kinds.pop()
    if sum(outcome == UNCLEAR for outcome in outcomes) > len(outcomes) / 2:
        return UNCLEAR
    return NO if kinds == {NO, UNCLEAR} else PART
