"""Label, "unsure" or "unknown": one score and two limits, so that the answers never contradict each other.

A score up to the first limit is accepted and gets its label; up to the second it is "unsure", beyond it "unknown".

The first limit is a conformal quantile of the scores of n inliers that nothing was fitted or tuned with: the k-th
smallest, k = ceil((n + 1) coverage). Whatever the network, a fresh inlier from the same source is accepted with
probability at least `coverage`, over the choice of those n and of itself, and at most coverage + 1 / (n + 1) where
scores have no ties. One input of every class is always trained with, and of a table one row with a gap in each column
that has any; where most classes have few inputs, or gaps are rare, the held-out inliers are thus not quite like the
others.

The second is where the score itself changes sides: "none" becomes more probable than the best class, or the entropy
comes nearer to that of all classes at once than to that of one. Where inliers themselves lie beyond that point, so that
the first limit does, too, it says nothing any more, and other scores have no such point. Then the second is the
conformal quantile that all but a fifth of the abstained inliers stay below. If there are too few inliers for it, it is
halfway from the first limit to the highest score there is; where there is no highest score, nothing is "unknown".

A limit lies a rounding error higher than the score it was set by. Inputs that are equal, as rows of a few categories
often are, would otherwise be accepted or not by the size of the batch that they are asked in.

Limits can be had for each class, by the class that an input would be given: each keeps the promise for the inliers that
are given that class. Classes with too few such inliers have one limit together, which keeps it for all of them.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from demur.likelihoods import Likelihood
from demur.metrics import Array, Prediction
from demur.names import choose
from demur.scores import MEASURED, SCORES, Score, score_named

UNSURE, UNKNOWN = "unsure", "unknown"
INVALID = "invalid"  # what a command answers on an input that cannot be read
MOST = 10_000  # scores that a limit is set by, and that a model file keeps of it
ALIKE, FLOOR = 1e-5, 2e-7  # by so much of a score, and so much of one made of probabilities, rounding may change it
REST = 5  # one in so many inliers that are abstained on may be called unknown, where calibration has to say so


def default_score(likelihood: Likelihood) -> str:
    """Measured to abstain on the most outliers (docs/concepts/unknown.md)."""
    return "none_share" if likelihood.has_none_class else "entropy"


def score_of(prediction: Prediction, name: str, own: bool = False) -> Array:
    """The score of that name; high for outliers. With `own` it may be one of the caller's: `mymodule:myscore`."""
    if name in prediction.scores:
        return prediction.scores[name]
    values = (score_named(name) if own else choose(SCORES, name, "score"))(prediction)
    if values is None:
        raise ValueError(f"score {name!r} needs a none class; choose a method that ends in '+nc', or another score")
    return values


def post_hoc(name: str) -> Score:
    """A score to compute with a fitted model, by name or `mymodule:myscore`; refused if it needs training inputs."""
    score = score_named(name)
    if score.fit is not None:
        raise ValueError(
            f"score {name!r} learns from training inputs, which this model does not hold; choose another, such as "
            f"energy, or fit a model that abstains by it, abstain_by={name!r}"
        )
    return score


def turning_point(score: str, num_classes: int) -> float | None:
    """Where the score itself says that no class is as good an answer as none; None where it says no such thing."""
    turning = SCORES[score].turning if score in SCORES else None
    return None if turning is None else turning(num_classes)


def class_probs(prediction: Prediction) -> Array:
    """Probabilities of the classes given that it is one of them; rows sum to one."""
    probs = prediction.probs.double()
    total = probs.sum(1, keepdim=True)
    # far from all data "none" has everything, to the last bit; then one class is as good as another
    return torch.where(total > 0, probs / total, 1 / probs.shape[1]).numpy(force=True)


@dataclass(frozen=True)
class Decision:
    """`accept` and `unknown` are the limits of the score: one each, or one for every class that may be answered.

    `coverage` is the fraction of inliers that is to be accepted, each limit calibrated on at least `count` of them.
    """

    score: str
    accept: tuple[float, ...]
    unknown: tuple[float | None, ...]  # None: nothing is called unknown
    coverage: float
    count: int

    def __post_init__(self) -> None:
        if not self.accept or len(self.accept) != len(self.unknown):
            raise ValueError(
                f"{len(self.accept)} limits to accept and {len(self.unknown)} of the unknown must be as many"
            )
        for accept, unknown in zip(self.accept, self.unknown, strict=True):
            if unknown is not None and not accept <= unknown:
                raise ValueError(f"the limit of the unknown, {unknown}, lies below that of what is accepted, {accept}")

    @property
    def guaranteed(self) -> float:
        """The least probability with which a fresh inlier is accepted."""
        return min(self.coverage, self.count / (self.count + 1))

    def accepts(self, prediction: Prediction) -> NDArray[np.bool_]:
        return score_of(prediction, self.score) <= self._limits(self.accept, prediction)  # so NaN is abstained on

    def calls_unknown(self, prediction: Prediction) -> NDArray[np.bool_]:
        """Of what is abstained on: does it belong to no class (True), or is it not sure which (False)?"""
        _, unknown = self.thresholds(prediction)
        return ~self.accepts(prediction) & ~(score_of(prediction, self.score) <= unknown)

    def answers(self, prediction: Prediction, classes: NDArray[Any]) -> NDArray[Any]:
        """For each input its label, "unsure" or "unknown": (N,) of objects."""
        answers = classes[class_probs(prediction).argmax(1)].astype(object)
        answers[~self.accepts(prediction)] = UNSURE
        answers[self.calls_unknown(prediction)] = UNKNOWN
        return answers

    def thresholds(self, prediction: Prediction) -> tuple[Array, Array]:
        """For each input the score up to which it is accepted, and the one from where on it is unknown."""
        unknown = [math.inf if limit is None else limit for limit in self.unknown]
        each = np.zeros(len(prediction))
        return each + self._limits(self.accept, prediction), each + self._limits(unknown, prediction)

    def _limits(self, limits: Sequence[float], prediction: Prediction) -> Array:
        every = np.asarray(limits, dtype=np.float64)
        return every[class_probs(prediction).argmax(1)] if len(every) > 1 else every


def calibrate_decision(prediction: Prediction, score: str, coverage: float, by_class: bool = False) -> Decision:
    """From the predictions of held-out inliers."""
    scores, num_classes = score_of(prediction, score), prediction.probs.shape[1]
    if not np.isfinite(scores).all():
        raise ValueError(
            f"score {score!r} is NaN or infinite for {(~np.isfinite(scores)).sum()} of {len(scores)} inliers; abstain "
            "by another, or train with a lower rate (lr)"
        )
    if ceil_exact((len(scores) + 1) * coverage) > len(scores):
        warnings.warn(
            f"coverage={coverage} needs {least_count(coverage)} inliers to calibrate with, and there are "
            f"{len(scores)}: only {len(scores) / (len(scores) + 1):.2f} is guaranteed; "
            "give more data, or raise validation",
            stacklevel=5,
        )
    groups = [scores]
    if by_class:
        answered = class_probs(prediction).argmax(1)
        _warn_of_few(answered, num_classes, coverage)
        groups = by_answer(scores, answered, num_classes, coverage)
    groups = [draw_some(group) for group in groups]  # those that p-values are computed from, or the two would differ
    limits = [_limits_of(np.sort(group), coverage, score, num_classes) for group in groups]
    accept, unknown = zip(*limits, strict=True)
    if None in unknown:
        rare = 1 - (1 - coverage) / REST
        warnings.warn(
            f"nothing will be 'unknown', only 'unsure': score {score!r} has no point from where on it means that, and "
            f"{least_count(rare)} inliers are needed to set one; there are {min(map(len, groups))}",
            stacklevel=5,
        )
    return Decision(score, accept, unknown, coverage, min(map(len, groups)))


def by_answer(scores: Array, answered: NDArray[np.int64], num_classes: int, coverage: float) -> list[Array]:
    """The scores of each class's answers; classes with too few answers are taken together, as one group."""
    groups = [scores[answered == code] for code in range(num_classes)]
    few = [code for code, group in enumerate(groups) if len(group) < least_count(coverage)]
    together = np.concatenate([groups[code] for code in few]) if few else scores
    return [(together if len(together) else scores) if code in few else group for code, group in enumerate(groups)]


def draw_some(scores: Array) -> Array:
    """At most so many, at random: their order may be that of a file."""
    return scores if len(scores) <= MOST else scores[np.random.default_rng(0).permutation(len(scores))[:MOST]]


def _warn_of_few(answered: NDArray[np.int64], num_classes: int, coverage: float) -> None:
    count = np.bincount(answered, minlength=num_classes)
    few = count[count < least_count(coverage)]
    if len(few):
        warnings.warn(
            f"{len(few)} of {num_classes} classes are answered for fewer than {least_count(coverage)} of the "
            f"inliers that calibrate, which coverage={coverage} needs: they have one limit together, from "
            f"{few.sum()} inliers; give more data, or raise validation",
            stacklevel=6,
        )


def _limits_of(scores: Array, coverage: float, score: str, num_classes: int) -> tuple[float, float | None]:
    scores = highest_alike(scores, score)
    turning, quantile = turning_point(score, num_classes), conformal_quantile(scores, coverage)
    accept = float(scores[-1]) if quantile is None else quantile
    if turning is not None and accept < turning:
        return accept, turning
    unknown = conformal_quantile(scores, 1 - (1 - coverage) / REST)
    if unknown is None and turning is not None:
        unknown = max(accept, (accept + 2 * turning) / 2)  # the highest score there is, is twice where it turns
    return accept, unknown


def highest_alike(scores: Array, score: str) -> Array:
    """The highest values that may be these scores, computed in another batch, by another machine or program."""
    return scores + ALIKE * np.abs(scores) + (FLOOR if score in MEASURED else 0)


def conformal_quantile(scores: Array, level: float) -> float | None:
    """Of sorted scores: a fresh one lies at or below with probability `level` at least. None if they are too few."""
    place = max(1, ceil_exact((len(scores) + 1) * level))
    return float(scores[place - 1]) if place <= len(scores) else None


def least_count(coverage: float) -> int:
    """How many inliers the guarantee needs."""
    return ceil_exact(coverage / (1 - coverage))


def ceil_exact(value: float) -> int:
    """Rounded up, but not for the sake of a rounding error: (19 + 1) 0.95 is 19."""
    return math.ceil(round(value, 9))
