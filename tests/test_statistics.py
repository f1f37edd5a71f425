"""Comparisons of methods, with synthetic results of known truth: intervals that cover, and power that grows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from demur.paper.claims import CLAIMS
from demur.paper.grid import BAYESIAN, Cell
from demur.paper.published import mean_but
from demur.paper.statistics import (
    ASSUMED_OTHERWISE,
    NO,
    UNCLEAR,
    WORTH,
    YES,
    Difference,
    Known,
    Spread,
    assume_spread,
    combine_outcomes,
    difference,
    is_above,
    is_below,
    is_not_above,
    is_tie,
    mean_difference,
    pool_spread,
    training_half,
)
from demur.paper.verdicts import examine
from demur.paper.views import LUCK, own_view
from demur.study.measuring import Value
from demur.study.results import TEST
from demur.study.table import Measured
from tests.test_claims import measured

METHODS, SPREAD, BY_POINTS = 8, 0.02, 0.004
SEEDS = (1, 2, 3, 5)


def world(seeds: int, gap: float, draw: np.random.Generator, unequal: float = 1.0) -> Difference:
    """Two of several methods, one better by `gap`: their networks lie apart by training, and tests by their points."""
    spreads = SPREAD * unequal ** draw.uniform(-1, 1, METHODS)
    values = 0.5 + spreads[:, None] * draw.normal(size=(METHODS, max(seeds, 3)))
    spread = pool_spread(list(row) for row in values)
    ends = 1.96 * BY_POINTS

    def known(method: int, mean: float) -> Known:
        by_seed = dict(enumerate(values[method, :seeds] + mean + BY_POINTS * draw.normal()))
        value = float(np.mean([*by_seed.values()]))
        return Known(value, ends, by_seed, spread)

    return difference(known(0, 0.0), known(1, gap))


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("unequal", "least"), [(1.0, 0.94), (2.0, 0.91)])
def test_intervals_cover_the_true_difference(seeds: int, unequal: float, least: float):
    """Also where methods differ fourfold in how far their networks lie apart."""
    draw, gap = np.random.default_rng(seeds), 0.03
    found = [world(seeds, gap, draw, unequal) for _ in range(2000)]
    covered = np.mean([abs(one.value + gap) <= one.half for one in found])
    assert least <= covered <= 0.995
    assert {one.seeds for one in found} == {seeds}


def test_power_grows_with_seeds_and_a_tie_is_called_clear_in_one_of_twenty():
    draw = np.random.default_rng(0)
    power = [np.mean([is_below(world(seeds, 0.05, draw)) == YES for _ in range(600)]) for seeds in SEEDS]
    assert power == sorted(power)
    assert power[0] < 0.5
    assert power[-1] > 0.85
    for seeds in SEEDS:
        ties = [is_below(world(seeds, 0.0, draw)) for _ in range(600)]
        assert ties.count(YES) + ties.count(NO) <= 0.07 * len(ties)
        assert abs(ties.count(YES) - ties.count(NO)) < 30  # in neither direction more than in the other


def test_the_interval_narrows_with_every_seed():
    pairs = [0.48, 0.52] * 4
    halves = [training_half(pairs[:count], Spread(0.0004, 20)) for count in (1, 2, 4, 6, 8)]
    assert halves == sorted(halves, reverse=True)


def test_with_many_seeds_it_is_students():
    values = np.random.default_rng(0).normal(0.5, 0.01, 400)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert training_half(list(values), Spread(0.01**2, 3)) == pytest.approx((high - low) / 2, rel=0.02)
    assert training_half([0.4, 0.5], Spread()) == pytest.approx(np.diff(stats.t.interval(0.95, 1, 0.45, 0.05))[0] / 2)
    assert training_half([0.4], Spread()) == 0.0


def test_the_pooled_spread_is_that_within_methods():
    draw = np.random.default_rng(0)
    rows = [list(mean + 0.02 * draw.normal(size=3)) for mean in draw.uniform(size=500)]
    found = pool_spread([*rows, [0.7]])
    assert found.freedom == 1000
    assert math.sqrt(found.variance) == pytest.approx(0.02, rel=0.05)
    assert pool_spread([[0.1], [0.9]]) == Spread()


def test_what_is_not_measured_of_the_spread_is_assumed():
    nothing, little, much = (assume_spread(Spread(0.0001, freedom), "fpr95") for freedom in (0, 1, WORTH))
    assert math.sqrt(nothing.variance) == pytest.approx(ASSUMED_OTHERWISE)
    assert nothing.variance > little.variance > much.variance == 0.0001
    assert (nothing.assumed, little.assumed, much.assumed) == (True, True, False)
    assert assume_spread(Spread(), "ece").variance < nothing.variance


def test_seeds_are_paired():
    """What two methods share by seed, such as a lucky network, does not count against their difference."""
    luck = dict(enumerate((0.2, 0.5, 0.9, 0.4, 0.7, 0.1)))
    spread = pool_spread([list(luck.values())])
    one, other = (Known(0.5 + gap, by_seed={s: v + gap for s, v in luck.items()}, spread=spread) for gap in (0.0, 0.05))
    paired = difference(one, other)
    shuffled = difference(one, replace(other, by_seed=dict(zip(luck, list(luck.values())[::-1], strict=True))))
    assert paired.value == pytest.approx(-0.05)
    assert paired.half < shuffled.half
    apart = difference(replace(one, by_seed={0: 0.5}), replace(other, by_seed={1: 0.55}))
    assert (apart.seeds, apart.value) == (0, pytest.approx(-0.05))
    assert difference(replace(one, by_seed={0: 0.2, 1: 0.5}), other).seeds == 2


def test_rules_are_the_same_in_both_directions():
    for value in (-0.03, -0.01, 0.0, 0.01, 0.03):
        apart = Difference(value, 0.02, 1, False)
        assert is_below(apart) == is_above(replace(apart, value=-value))
        assert (is_not_above(apart) == NO) == (is_below(apart) == NO)
    assert [is_not_above(Difference(value, 0.02, 1, False)) for value in (-0.01, 0.01)] == [YES, YES]
    assert [is_tie(Difference(value, 0.01, 1, False)) for value in (0.0, -0.02, 0.03, -0.05)] == [YES, YES, UNCLEAR, NO]
    assert is_below(Difference(math.nan, 0.0, 1, False)) == is_not_above(Difference(math.nan, 0.0, 1, False)) == UNCLEAR


def test_a_mean_over_tasks_is_surer_than_each():
    one = Difference(-0.02, 0.03, 3, False)
    mean = mean_difference([one] * 4)
    assert (mean.value, mean.half) == pytest.approx((-0.02, 0.015))
    assert (is_below(one), is_below(mean)) == (UNCLEAR, YES)


def test_joint_outcomes():
    assert combine_outcomes([YES, YES]) == YES
    assert combine_outcomes([NO, NO]) == combine_outcomes([NO, UNCLEAR]) == NO
    assert combine_outcomes([UNCLEAR, UNCLEAR]) == UNCLEAR
    assert combine_outcomes([YES, NO]) == combine_outcomes([YES, UNCLEAR]) == "in part"
    assert combine_outcomes([YES, UNCLEAR, UNCLEAR]) == combine_outcomes([NO, UNCLEAR, UNCLEAR]) == UNCLEAR


def test_ties_fall_no_more_often_with_three_seeds_than_the_level_says():
    """A true claim with eight exact ties: by chance, a tie is called clear in one test of forty in either direction."""
    claim = next(claim for claim in CLAIMS if "beat ensembles" in claim.title)
    draw, where = np.random.default_rng(0), mean_but(LUCK)
    blank = measured(Cell("mnist", "map"), lambda *place: 0.5)
    strength = {"does not hold": 0, "undecided": 1, "holds in part": 2, "holds": 3}
    fallen, risen = 0, 0
    worlds = np.linspace(0.02, 0.4, 40)

    def network(method: str, seed: int, value: float) -> Measured:
        values = {
            (where, "fpr95"): Value(value, value - 0.005, value + 0.005),
            (LUCK, "fpr95"): Value(0.5),
            (TEST, "accuracy"): Value(0.9),
            (TEST, "majority"): Value(0.1),
        }
        return replace(blank, cell=Cell("mnist", method, seed), values=values)

    for gap in worlds:
        networks = [
            network(method, seed, 0.5 + gap * (method in ("de", "vb", "la")) + 0.02 * draw.normal())
            for method in ("map+oe", "de", *BAYESIAN)
            for seed in range(3)
        ]
        alone = [[one for one in networks if one.cell.seed == seed] for seed in range(3)]
        *each, together = (
            strength[examine(claim, own_view(cells, "corrected")).text.split(" (")[0]] for cells in (*alone, networks)
        )
        fallen += together < max(each)
        risen += together > max(each)
    assert fallen <= 0.1 * len(worlds)
    assert risen > fallen


def test_three_seeds_never_say_less_than_one():
    """A true claim, put to the whole machinery with seeds 0, 1 and 2 alone and together, in worlds of all sizes."""
    claim = next(claim for claim in CLAIMS if "lose to OE" in claim.title)
    draw = np.random.default_rng(0)
    where, strength = mean_but(LUCK), {"does not hold": 0, "undecided": 1, "holds in part": 2, "holds": 3}
    weaker, stronger = 0, 0
    for gap in np.linspace(0.02, 0.4, 40):
        luck = {
            (method, seed): 0.5 + (0 if method == "map+oe" else gap) + 0.02 * draw.normal()
            for method in ("map+oe", "de", "vb", "la")
            for seed in range(3)
        }

        def network(method: str, seed: int, luck: dict[tuple[str, int], float] = luck):
            one = measured(Cell("mnist", method, seed), lambda *place: 0.5)
            value = luck[method, seed]
            values = {(where, "fpr95"): Value(value, value - 0.005, value + 0.005), (LUCK, "fpr95"): Value(0.5)}
            return replace(one, values={**values, (TEST, "accuracy"): Value(0.9), (TEST, "majority"): Value(0.1)})

        networks = [network(method, seed) for method, seed in luck]
        alone = [[one for one in networks if one.cell.seed == seed] for seed in range(3)]
        *each, together = (
            strength[examine(claim, own_view(cells, "corrected")).text.split(" (")[0]] for cells in (*alone, networks)
        )
        weaker += together < max(each)
        stronger += together > max(each)
    assert weaker == 0
    assert stronger > 5
