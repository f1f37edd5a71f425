"""Label, "unsure" or "unknown": one score, one threshold, and one question to those that are refused.

The threshold is a conformal quantile of the scores of n inliers that nothing was fitted or tuned with: the k-th
smallest, k = ceil((n + 1) keep). Whatever the network, a fresh inlier from the same source is kept with probability at
least `keep` (over the draw of those n and of itself), and at most keep + 1 / (n + 1) where scores have no ties. One
input of every class is always trained with; where most classes have few, inliers are thus not quite drawn alike.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.likelihoods import Likelihood
from demur.metrics import SCORES, Array, Prediction, entropy_score
from demur.names import choose

UNSURE, UNKNOWN = "unsure", "unknown"


def default_score(likelihood: Likelihood) -> str:
    """Measured to refuse the most outliers (docs/first-ten-minutes.md)."""
    return "none_share" if likelihood.has_none_class else "entropy"


def score_of(prediction: Prediction, name: str) -> Array:
    """The score of that name; high for outliers."""
    values = choose(SCORES, name, "score")(prediction)
    if values is None:
        raise ValueError(f"score {name!r} needs a none class; choose a method that ends in '+nc', or another score")
    return values


def is_unknown(prediction: Prediction) -> NDArray[np.bool_]:
    """Of what is refused: does it belong to no class (True), or to one of several (False)?

    With a none class: is "none" more probable than the best class? Without one: is the entropy nearer to that of all
    classes at once, log K, than to that of one class, 0?
    """
    if prediction.none is not None:
        return ~(prediction.none <= prediction.probs.amax(1)).numpy(force=True)
    return entropy_score(prediction) > 0.5 * math.log(prediction.probs.shape[1])


@dataclass(frozen=True)
class Thresholds:
    """Refuse what scores above `refuse`; `keep` is the share of inliers that stays, calibrated on `count` of them."""

    score: str
    refuse: float
    keep: float
    count: int

    @property
    def guaranteed(self) -> float:
        """The least probability with which a fresh inlier is kept."""
        return min(self.keep, self.count / (self.count + 1))

    def refused(self, prediction: Prediction) -> NDArray[np.bool_]:
        return ~(score_of(prediction, self.score) <= self.refuse)  # so that NaN is refused


def calibrated(prediction: Prediction, score: str, keep: float) -> Thresholds:
    """From the predictions of held-out inliers."""
    scores = np.sort(score_of(prediction, score))
    place = math.ceil(round((len(scores) + 1) * keep, 9))
    thresholds = Thresholds(score, float(scores[min(place, len(scores)) - 1]), keep, len(scores))
    if place > len(scores):
        warnings.warn(
            f"keep={keep} needs {least_count(keep)} inliers to calibrate with, and there are {len(scores)}: only "
            f"{thresholds.guaranteed:.2f} is sure to be kept; give more data, or raise validation",
            stacklevel=3,
        )
    return thresholds


def least_count(keep: float) -> int:
    """How many inliers the guarantee needs."""
    return math.ceil(round(keep / (1 - keep), 9))
