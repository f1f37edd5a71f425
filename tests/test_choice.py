"""The rule that chooses the recommended method, on synthetic results."""

import pytest

from demur.paper.choice import SEEDS, SUITE, Choice, Measured, choose_candidate, rank
from demur.paper.published import OOD_SETS

NAMES = [name for sets in SUITE.values() for name in sets]
MAP = [Measured(seed, 0.95, {}) for seed in range(SEEDS)]
LA, DE, SL = (Choice(method, None, "none_share") for method in ("la+nc", "de+nc", "la+sl"))


def runs(fpr95: float, accuracy: float = 0.95, seeds: int = SEEDS, **others: float) -> list[Measured]:
    """The same everywhere but on the sets named."""
    return [Measured(seed, accuracy, dict.fromkeys(NAMES, fpr95) | others) for seed in range(seeds)]


def test_the_mean_rank_decides_and_not_one_hard_set():
    """The first is better on four kinds of five, and much worse on the fifth: its mean FPR95 is the worse."""
    made = rank({LA: runs(0.10, uniform_of_validation=0.9), DE: runs(0.12)}, MAP)
    assert choose_candidate(made) == LA
    assert [one.mean_rank for one in made] == pytest.approx([(4 * 1 + 2) / 5, (4 * 2 + 1) / 5])


def test_a_kind_counts_once_however_many_sets_it_has():
    made = rank({LA: runs(0.2, patches_of_validation=0.0, halves_of_validation=0.0), DE: runs(0.1)}, MAP)
    assert choose_candidate(made) == DE
    assert made[1].ranks["synthetic, sharp"] == 1


def test_half_a_point_of_accuracy_may_be_lost_and_no_more():
    made = rank({LA: runs(0.01, accuracy=0.9449), DE: runs(0.5, accuracy=0.945)}, MAP)
    assert choose_candidate(made) == DE
    assert made[-1].barred == "accuracy 0.5 points below map"


def test_three_seeds_and_every_set_are_needed():
    short = [Measured(seed, 0.95, dict.fromkeys(NAMES[1:], 0.1)) for seed in range(SEEDS)]
    made = rank({LA: runs(0.01, seeds=1), DE: short, SL: runs(0.9)}, MAP)
    assert choose_candidate(made) == SL
    assert {one.barred for one in made[1:]} == {f"1 of {SEEDS} training seeds", f"not measured on {NAMES[0]}"}


def test_barred_candidates_take_no_rank_from_others():
    assert rank({LA: runs(0.01, accuracy=0.5), DE: runs(0.2), SL: runs(0.3)}, MAP)[0].mean_rank == 1


def test_ties_share_their_rank_and_nothing_is_chosen_of_nothing():
    assert [one.mean_rank for one in rank({LA: runs(0.1), DE: runs(0.1)}, MAP)] == [1.5, 1.5]
    assert choose_candidate(rank({LA: runs(0.1)}, [])) is None
    assert rank({}, MAP) == []


def test_the_suite_shares_no_set_with_the_tests():
    assert not {*NAMES} & {name for sets in OOD_SETS.values() for name in sets}
    assert len(SUITE) >= 4
