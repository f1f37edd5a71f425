"""Is what arrives still like what the threshold was calibrated with? A test that may be looked at after every input.

Coverage is a promise about inputs that are exchangeable with the n inliers of calibration. If they are, the rank of a
fresh score among these n, ties broken at random, follows an urn: with the ranks 0 to n divided into bins of m_1, m_2,
... ranks, the t-th input falls into bin j with probability p_j = (m_j + c_j) / (n + t), c_j being the inputs that fell
there before. That is exact for every n; it knows that few inliers leave the threshold uncertain.

Somebody who bets against it, putting q_j on each bin before it is seen, has after each input q_j / p_j times his money.
Under the promise that is a martingale, so the money ever exceeds 1 / level with probability `level` at most (Ville's
inequality), however often one looks and whenever one stops. The bets here learn the fractions of the bins from the
stream, one from all of it and one from the last few hundred inputs; each is made for the abstentions alone and for
finer bins of the score. Money is put in little by little, so a shift late in a long stream is found too. The evidence
is the mean of the four.
"""

import itertools
import math
import random
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import betaln

from demur.classifier import Classifier
from demur.classifier.decision import ceil_exact, highest_alike

RECENT = 300  # inputs that count as recent
PATIENCE = 500  # inputs after which half the money, roughly, has been put in
FINE = 8  # bins of the accepted scores
POINTS = 240  # of the course that is kept
MOST = 1e300  # money that a float can hold


@dataclass(frozen=True)
class Reference:
    """Scores of inliers, sorted, or none where the file has none; `accepted` of the ranks 0 to `count` are accepted.

    `score` names them.
    """

    count: int
    accepted: int
    scores: tuple[float, ...] = ()
    score: str = ""

    @cached_property
    def alike(self) -> tuple[list[float], list[float]]:
        """The lowest and the highest values that may be these scores."""
        scores = np.asarray(self.scores)
        return (-highest_alike(-scores, self.score)).tolist(), highest_alike(scores, self.score).tolist()


class Ranks:
    """Ranks among the inliers of a reference.

    Every score, theirs and fresh ones, has a random number beside it, its lot, which decides where scores are equal, or
    may be but for rounding. An inlier's is drawn once: if lots were drawn anew for each input, ranks would not follow
    the urn.
    """

    def __init__(self, reference: Reference, chance: random.Random) -> None:
        self._reference, self._chance = reference, chance
        self._lots = np.array([chance.random() for _ in reference.scores])

    def rank(self, score: float | None, abstained: bool) -> int:
        """How many of the inliers score below; what is no number counts as highest."""
        lot = self._chance.random()
        if not self._reference.scores:  # only that much is known
            return self._reference.accepted if abstained else 0
        if score is None:
            return self._reference.count
        lowest, highest = self._reference.alike
        first, last = bisect_left(highest, score), bisect_right(lowest, score)
        return first + int((self._lots[first:last] < lot).sum())


class Urn:
    """The bins of one reference, and what fell into them."""

    def __init__(self, reference: Reference, cuts: Sequence[int]) -> None:
        self.cuts = sorted({cut for cut in cuts if 0 < cut <= reference.count})
        bounds = [0, *self.cuts, reference.count + 1]
        self.ranks = [high - low for low, high in itertools.pairwise(bounds)]
        self.total = float(reference.count + 1)
        self.seen = [0] * len(self.ranks)

    def probability(self, place: int) -> float:
        return (self.ranks[place] + self.seen[place]) / (self.total + sum(self.seen))


class Bet:
    """Money on the bins of some urns, by the fractions seen so far, older ones fading where `memory` is finite."""

    def __init__(self, urns: Sequence[Urn], memory: float) -> None:
        # as if a few inputs had been seen that are spread as calibration's: a bet that is made carefully at first
        self.prior = [[0.5 * len(urn.ranks) * ranks / urn.total for ranks in urn.ranks] for urn in urns]
        self.counts = [[0.0] * len(prior) for prior in self.prior]
        self.fades = 1 - 1 / memory
        self.invested, self.reserve, self.steps = 0.0, 1.0, 0

    def step(self, group: int, place: int, probability: float) -> None:
        """Bet, be paid, and learn from it."""
        self.steps += 1
        left = 1 / (1 + math.log1p(self.steps / PATIENCE))
        prior, counts = self.prior[group], self.counts[group]
        staked = (prior[place] + counts[place]) / (0.5 * len(prior) + sum(counts))
        self.invested = min((self.invested + self.reserve - left) * staked / probability, MOST)
        self.reserve = left
        if self.fades < 1:
            counts[:] = [self.fades * count for count in counts]
        counts[place] += 1

    @property
    def money(self) -> float:
        return self.invested + self.reserve


@dataclass(frozen=True)
class Report:
    """`rate` is the fraction abstained on, `interval` holds it at every time at once with probability 1 - level if it
    does not change, `recent_rate` is that of recent inputs, and `promised` is what it is for inliers, at most. `alarm`
    is the number of the input at which the evidence passed 1 / level, or None."""

    inputs: int
    abstained: int
    rate: float | None
    interval: tuple[float, float]
    recent_rate: float | None
    promised: float
    evidence: float
    level: float
    alarm: int | None
    calibrated_with: int
    by_score: bool
    course: tuple[tuple[int, float, float], ...]  # input, log10 of the evidence, recent rate

    @property
    def said(self) -> str:
        if self.rate is None:
            return "nothing has arrived yet"
        low, high = self.interval
        rates = f"{self.rate:.1%} abstained on ({low:.1%} to {high:.1%}), at most {self.promised:.1%} promised"
        if self.alarm is None:
            return f"no sign of a shift in {self.inputs:,} inputs: {rates}"
        return f"shifted, noticed at input {self.alarm:,} of {self.inputs:,}: {rates}; recently {self.recent_rate:.1%}"


class Monitor:
    """Observes scores and decisions in the order in which they come; any thread may ask for the report."""

    def __init__(
        self,
        references: Sequence[Reference],
        promised: float,
        level: float = 0.01,
        *,
        places: Mapping[str, int] = MappingProxyType({}),
        seed: int = 0,
    ) -> None:
        """`places` says which of several references is for a class."""
        if not 0 < level < 1:
            raise ValueError(f"level {level} is not between 0 and 1; it is the probability of a false alarm, as 0.01")
        self._references, self._promised, self._level, self._places = references, promised, level, places
        rate = [Urn(reference, [reference.accepted]) for reference in references]
        fine = [Urn(reference, cuts_of(reference)) for reference in references]
        self._by_score = any(reference.scores for reference in references)
        self._views = [rate, fine] if self._by_score else [rate]
        self._bets = [(urns, Bet(urns, memory)) for urns in self._views for memory in (math.inf, RECENT)]
        chance, self._lock = random.Random(seed), threading.Lock()
        self._ranks = [Ranks(reference, chance) for reference in references]
        self._inputs, self._abstained, self._recent = 0, 0, promised
        self._alarm: int | None = None
        self._course: list[tuple[int, float, float]] = []
        self._spacing = 1

    @classmethod
    def of(cls, model: Classifier, level: float = 0.01) -> "Monitor":
        decision = model.decision_
        calibration = getattr(model, "calibration_", None)  # files of older versions have none
        groups: Sequence[tuple[float, ...]] = calibration.scores if calibration is not None else [()]
        distinct = list(dict.fromkeys(groups))  # classes with few inliers have one group, and so one urn, together
        references = [reference_of(group, decision.count, decision.coverage, decision.score) for group in distinct]
        named = zip(map(str, model.classes_), groups, strict=False)  # there may be one group for all
        places = {name: distinct.index(group) for name, group in named}
        return cls(references, 1 - decision.coverage, level, places=places)

    def observe(
        self, scores: Sequence[float | None], abstained: Sequence[bool], labels: Sequence[str] | None = None
    ) -> None:
        """`labels` are the most probable classes, needed where each class has a threshold of its own."""
        with self._lock:
            for row, (score, was) in enumerate(zip(scores, abstained, strict=True)):
                self._see(score, was, self._group(labels[row] if labels is not None else ""))

    def _group(self, label: str) -> int:
        if len(self._references) == 1:
            return 0
        if label not in self._places:
            raise ValueError(f"{label[:60]!r} is none of the model's classes; give answers of this model")
        return self._places[label]

    def _see(self, score: float | None, abstained: bool, group: int) -> None:
        rank = self._ranks[group].rank(score, abstained)
        for urns, bet in self._bets:
            place = bisect_right(urns[group].cuts, rank)
            bet.step(group, place, urns[group].probability(place))
        for urns in self._views:
            urns[group].seen[bisect_right(urns[group].cuts, rank)] += 1
        self._inputs += 1
        self._abstained += abstained
        self._recent += (abstained - self._recent) / min(self._inputs, RECENT)
        if self._alarm is None and self._evidence >= 1 / self._level:
            self._alarm = self._inputs
        if self._inputs % self._spacing == 0:
            self._course.append((self._inputs, math.log10(self._evidence), self._recent))
            if len(self._course) == POINTS:
                self._course, self._spacing = self._course[1::2], 2 * self._spacing

    @property
    def _evidence(self) -> float:
        return sum(bet.money / len(self._bets) for _, bet in self._bets)

    def report(self) -> Report:
        with self._lock:
            seen = self._inputs > 0
            return Report(
                self._inputs,
                self._abstained,
                self._abstained / self._inputs if seen else None,
                rate_interval(self._abstained, self._inputs, self._level),
                self._recent if seen else None,
                self._promised,
                self._evidence,
                self._level,
                self._alarm,
                min(reference.count for reference in self._references),
                self._by_score,
                tuple(self._course),
            )


def reference_of(scores: Sequence[float], count: int, coverage: float, score: str = "") -> Reference:
    count = len(scores) or count
    return Reference(count, min(count, ceil_exact((count + 1) * coverage)), tuple(scores), score)


def cuts_of(reference: Reference) -> list[int]:
    """Even parts of what is accepted, and of the rest those that score higher than every inlier."""
    return [*(round(reference.accepted * part / FINE) for part in range(1, FINE + 1)), reference.count]


def rate_interval(successes: int, trials: int, level: float) -> tuple[float, float]:
    """A confidence sequence for a rate: with probability 1 - level it holds the rate after every number of trials.

    The likelihood ratio of a mixture (Beta(1/2, 1/2)) to the rate is a martingale, so Ville's inequality bounds it.
    """
    failures = trials - successes
    mixture = betaln(successes + 0.5, failures + 0.5) - betaln(0.5, 0.5)

    def outside(rate: float) -> bool:
        fitted = (successes * math.log(rate) if successes else 0) + (failures * math.log1p(-rate) if failures else 0)
        return float(mixture - fitted) > -math.log(level)

    def edge(inside: float, end: float) -> float:
        if not 0 < inside < 1:
            return inside
        for _ in range(50):
            middle = (inside + end) / 2
            inside, end = (inside, middle) if outside(middle) else (middle, end)
        return end

    best = min(max(successes / trials, 1e-9), 1 - 1e-9) if trials else 0.5
    return (edge(best, 0.0) if successes else 0.0), (edge(best, 1.0) if failures else 1.0)


def to_json(report: Report) -> dict[str, Any]:
    return {**vars(report), "said": report.said}
