"""Which method to recommend, by a rule that is written down before any run.

Every candidate is fitted with the same training seeds and measured on the outliers of `demur.paper.suite`, several
kinds, none of which shares anything with the sets that methods are tested on. Within a kind candidates are ranked by
their mean FPR95 over its sets and over seeds, ties sharing the mean rank; the mean rank over kinds decides. One number
over all sets would be decided by whatever set is the hardest. A candidate is eligible if its accuracy on held-out
inliers is at most half a point below that of `map`. What candidates have to beat is ranked among them, but nothing is
chosen while there is nothing else.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from demur.measures import value_name
from demur.outliers.values import leaves, parse
from demur.paper.published import is_plain
from demur.paper.suite import INLIERS, SUITE, set_name
from demur.paper.views import by_place
from demur.scores import USUAL_SCORE
from demur.study.table import Measured

SEEDS = 3
SETS = tuple(name for sets in SUITE.values() for name in sets)
ALLOWED = 0.005  # of accuracy, below that of `map`
RIVALS = ("map", "map+oe", "la+oe")  # what one would use instead, by any score


class Candidate(NamedTuple):
    """What can be recommended: a method, the outliers it is trained with, and the score that it abstains by."""

    method: str
    outliers: str | None
    score: str

    @property
    def sources(self) -> int:
        """How many kinds of outliers it is trained with."""
        return len([*leaves(parse(self.outliers))]) if self.outliers else 1


@dataclass(frozen=True)
class OfSeed:
    """A candidate with one training seed: accuracy on held-out inliers, and FPR95 by set of the suite."""

    seed: int
    accuracy: float
    fpr95: Mapping[str, float]


@dataclass(frozen=True)
class Ranked:
    """A candidate's ranks by kind (1 is the best), its mean accuracy, and why it cannot be chosen, if so."""

    choice: Candidate
    ranks: Mapping[str, float]
    fpr95: Mapping[str, float]  # by kind, mean over sets and seeds
    accuracy: float
    barred: str | None
    seeds: int = SEEDS

    @property
    def mean_rank(self) -> float:
        return float(np.mean([*self.ranks.values()]))


Candidates = Mapping[Candidate, Sequence[OfSeed]]


# the rule -----------------------------------------------------------------------------------------------------------


def rank(
    measured: Candidates,
    of_map: Sequence[OfSeed],
    suite: Mapping[str, Sequence[str]] = SUITE,
    seeds: int = SEEDS,
) -> list[Ranked]:
    """All candidates, the best first and barred ones last; only eligible ones are ranked against each other.

    Fewer `seeds` are for a first look, by which nothing is chosen.
    """
    plain = float(np.mean([one.accuracy for one in of_map])) if of_map else math.nan
    accuracy = {choice: float(np.mean([one.accuracy for one in runs])) for choice, runs in measured.items() if runs}
    barred = {choice: _exclusion(runs, accuracy.get(choice), plain, suite, seeds) for choice, runs in measured.items()}
    by_kind = {
        choice: {
            kind: float(np.mean([one.fpr95[name] for one in runs for name in sets])) for kind, sets in suite.items()
        }
        for choice, runs in measured.items()
        if barred[choice] is None
    }
    ranks = {kind: rankdata([each[kind] for each in by_kind.values()]) if by_kind else [] for kind in suite}
    eligible = [
        Ranked(
            choice,
            {kind: float(ranks[kind][place]) for kind in suite},
            values,
            accuracy[choice],
            None,
            len(measured[choice]),
        )
        for place, (choice, values) in enumerate(by_kind.items())
    ]
    excluded = [
        Ranked(choice, {}, {}, accuracy.get(choice, math.nan), reason, len(measured[choice]))
        for choice, reason in barred.items()
        if reason is not None
    ]
    return [*sorted(eligible, key=_order), *excluded]


def choose_candidate(ranked: Sequence[Ranked]) -> Candidate | None:
    """The recommended one; None where no candidate is eligible, or none but what candidates have to beat."""
    eligible = [one.choice for one in ranked if one.barred is None and one.seeds >= SEEDS]
    return eligible[0] if has_candidate(eligible) else None


def has_candidate(choices: Iterable[Candidate]) -> bool:
    """Whether there is anything but what candidates have to beat."""
    return any(choice.method not in RIVALS for choice in choices)


def choose_for_all(by_task: Mapping[str, tuple[Candidates, Sequence[OfSeed]]]) -> Candidate | None:
    """One for several tasks: the mean over tasks of the mean rank, among those that are eligible on each."""
    eligible = [{one.choice for one in rank(*of_task) if one.barred is None} for of_task in by_task.values()]
    if not eligible or not has_candidate(common := set.intersection(*eligible)):
        return None
    again = [
        rank({choice: runs for choice, runs in measured.items() if choice in common}, of_map)
        for measured, of_map in by_task.values()
    ]
    means = dict.fromkeys(common, 0.0)
    for ranked in again:
        for one in ranked:
            means[one.choice] += one.mean_rank / len(again)
    return min(common, key=lambda choice: (round(means[choice], 9), choice.sources, choice.method, choice.score))


def _order(one: Ranked) -> tuple[float, int, str, str]:
    """In a tie fewer kinds of outliers come first."""
    return one.mean_rank, one.choice.sources, one.choice.method, one.choice.score


def _exclusion(
    runs: Sequence[OfSeed], accuracy: float | None, plain: float, suite: Mapping[str, Sequence[str]], needed: int
) -> str | None:
    seeds = {one.seed for one in runs}
    if len(seeds) < needed:
        return f"{len(seeds)} of {needed} training seeds"
    lacking = {name for sets in suite.values() for name in sets for one in runs if name not in one.fpr95}
    if lacking:
        return f"not measured on {', '.join(sorted(lacking))}"
    if accuracy is None or math.isnan(plain):
        return "the accuracy of map is not known"
    # rounded, since what is allowed is still allowed
    return f"accuracy {100 * (plain - accuracy):.1f} points below map" if round(plain - accuracy, 6) > ALLOWED else None


# from results -------------------------------------------------------------------------------------------------------


def candidates_in(cells: Iterable[Measured], task: str) -> tuple[dict[Candidate, list[OfSeed]], list[OfSeed]]:
    """All that was measured on the suite, by every score; and `map` among it, of the same training seeds."""
    measured: dict[Candidate, list[OfSeed]] = {}
    for runs in by_place(run for run in cells if run.cell.task == task).values():
        for seed, run in runs.items():
            accuracy = run.value(INLIERS, "accuracy")
            for score in run.scores(set_name(SETS[0])) if accuracy else ():
                values = {name: run.value(set_name(name), value_name("fpr95", score)) for name in SETS}
                known = {name: value.value for name, value in values.items() if value is not None}
                assert accuracy is not None
                choice = Candidate(run.cell.method, None if is_plain(run.cell.method) else run.cell.outliers, score)
                measured.setdefault(choice, []).append(OfSeed(seed, accuracy.value, known))
    return measured, measured.get(Candidate("map", None, USUAL_SCORE), [])


def screened(measured: Candidates) -> int:
    """How many seeds it takes to be ranked: those of the rule, or where none has so many, the most there are."""
    most = max((len(runs) for runs in measured.values()), default=0)
    return min(most, SEEDS)
