"""Which method to recommend, by a rule that is written down before any run.

Every candidate is fitted with the same training seeds and measured on outliers of several kinds, none of which shares
anything with the sets that methods are tested on. Within a kind candidates are ranked by their mean FPR95 over its sets
and over seeds, ties sharing the mean rank; the mean rank over kinds decides. One number over all sets would be decided
by whatever set is the hardest. A candidate is eligible if its accuracy is at most half a point below that of `map`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

SEEDS = 3
ALLOWED = 0.005  # of accuracy, below that of `map`
# The validation suite, listed before any run: sets by kind. None of them is a test set, or made from one.
SUITE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "characters, sharp": ("printed_letters",),
        "characters, soft": ("printed_letters_blurred",),
        "synthetic, soft": ("smooth_of_validation",),
        "synthetic, sharp": ("patches_of_validation", "halves_of_validation"),
        "far": ("uniform_of_validation",),
    }
)


class Choice(NamedTuple):
    """What can be recommended: a method, the outliers it is trained with, and the score that it abstains by."""

    method: str
    outliers: str | None
    score: str


@dataclass(frozen=True)
class Measured:
    """A candidate with one training seed: accuracy on held-out inliers, and FPR95 by validation set."""

    seed: int
    accuracy: float
    fpr95: Mapping[str, float]


@dataclass(frozen=True)
class Ranked:
    """A candidate's ranks by kind (1 is the best), its mean accuracy, and why it cannot be chosen, if so."""

    choice: Choice
    ranks: Mapping[str, float]
    fpr95: Mapping[str, float]  # by kind, mean over sets and seeds
    accuracy: float
    barred: str | None

    @property
    def mean_rank(self) -> float:
        return float(np.mean([*self.ranks.values()]))


def rank(
    measured: Mapping[Choice, Sequence[Measured]],
    of_map: Sequence[Measured],
    suite: Mapping[str, Sequence[str]] = SUITE,
) -> list[Ranked]:
    """All candidates, the best first and barred ones last; only eligible ones are ranked against each other."""
    plain = float(np.mean([one.accuracy for one in of_map])) if of_map else math.nan
    accuracy = {choice: float(np.mean([one.accuracy for one in runs])) for choice, runs in measured.items() if runs}
    barred = {choice: _exclusion(runs, accuracy.get(choice), plain, suite) for choice, runs in measured.items()}
    by_kind = {
        choice: {
            kind: float(np.mean([one.fpr95[name] for one in runs for name in sets])) for kind, sets in suite.items()
        }
        for choice, runs in measured.items()
        if barred[choice] is None
    }
    ranks = {kind: rankdata([each[kind] for each in by_kind.values()]) if by_kind else [] for kind in suite}
    eligible = [
        Ranked(choice, {kind: float(ranks[kind][place]) for kind in suite}, values, accuracy[choice], None)
        for place, (choice, values) in enumerate(by_kind.items())
    ]
    excluded = [
        Ranked(choice, {}, {}, accuracy.get(choice, math.nan), reason)
        for choice, reason in barred.items()
        if reason is not None
    ]
    return [*sorted(eligible, key=lambda one: (one.mean_rank, one.choice[0], one.choice[2])), *excluded]


def choose_candidate(ranked: Sequence[Ranked]) -> Choice | None:
    """The recommended one; None where no candidate is eligible."""
    return next((one.choice for one in ranked if one.barred is None), None)


def _exclusion(
    runs: Sequence[Measured], accuracy: float | None, plain: float, suite: Mapping[str, Sequence[str]]
) -> str | None:
    seeds = {one.seed for one in runs}
    if len(seeds) < SEEDS:
        return f"{len(seeds)} of {SEEDS} training seeds"
    lacking = {name for sets in suite.values() for name in sets for one in runs if name not in one.fpr95}
    if lacking:
        return f"not measured on {', '.join(sorted(lacking))}"
    if accuracy is None or math.isnan(plain):
        return "the accuracy of map is not known"
    # rounded, since what is allowed is still allowed
    return f"accuracy {100 * (plain - accuracy):.1f} points below map" if round(plain - accuracy, 6) > ALLOWED else None
