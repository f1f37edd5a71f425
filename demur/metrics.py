"""Predictions, and the metrics that are computed from them alone.

A metric is a fraction. With a none class the class probabilities sum to less than one, and nothing here renormalises
them but `ece_class`, whose purpose that is. Scores, which are high for outliers, are in `demur.scores`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from demur.names import choose_or_import

Array = NDArray[np.float64]
Counts = NDArray[np.uint8]  # (inputs, resamples): how often each input counts
BINS = 15


@dataclass(frozen=True)
class Prediction:
    """Averages over a posterior: probabilities of classes (N, K), of none (N,) or None, and the samples' entropy (N,).

    The none mass is the averaged softmax entry itself: 1 - probs.sum(1) has no ranking left in float32.
    """

    probs: Tensor
    none: Tensor | None
    expected_entropy: Tensor
    # where a score asks: means over the samples, (N, C) and (N, D), and the logits' variance over them, (N, C)
    logits: Tensor | None = None
    features: Tensor | None = None
    logit_variance: Tensor | None = None
    scores: Mapping[str, Array] = field(default_factory=dict)  # by name, of those that were computed with these

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return (
            f"Prediction({len(self)} inputs, {self.probs.shape[1]} classes{'' if self.none is None else ' and none'})"
        )


def double(x: Tensor) -> Array:
    return x.numpy(force=True).astype(np.float64)


def spread(probs: Tensor, none: Tensor | None) -> Tensor:
    """Probabilities with the none mass spread evenly over the classes: a sure "none" must not pass for an inlier."""
    return probs if none is None else probs + none.unsqueeze(-1) / probs.shape[-1]


def entropy(probs: Tensor) -> Tensor:
    """Nats, over the last dimension."""
    return -probs.xlogy(probs).sum(-1)


# metrics of inliers ------------------------------------------------------------------------------------------------


def confidence(prediction: Prediction) -> Array:
    return double(prediction.probs.amax(1))


def right(prediction: Prediction, y: Tensor) -> NDArray[np.bool_]:
    """Whether an input's most probable class, "none" not being one, is its label."""
    return double(prediction.probs).argmax(1) == y.numpy(force=True)


def right_with_none(prediction: Prediction, y: Tensor) -> NDArray[np.bool_]:
    """Whether its most probable answer is; "none" is an answer, and wrong."""
    sure_of_class = True if prediction.none is None else confidence(prediction) >= double(prediction.none)
    return right(prediction, y) & sure_of_class


def accuracy(prediction: Prediction, y: Tensor) -> float:
    """Fraction of inputs whose most probable class, "none" not being one, is right."""
    return float(right(prediction, y).mean())


def accuracy_with_none(prediction: Prediction, y: Tensor) -> float:
    """Fraction of inputs whose most probable answer is right; "none" is an answer, and wrong."""
    return float(right_with_none(prediction, y).mean())


def nll(prediction: Prediction, y: Tensor) -> float:
    """Minus the log-probability of the right class, in nats; probabilities below float32's smallest count as that."""
    of_label = double(prediction.probs)[np.arange(len(y)), y.numpy(force=True)]
    return float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())


def brier(prediction: Prediction, y: Tensor) -> float:
    """Squared distance to the right corner, the none mass counted like any other wrong class."""
    error = double(prediction.probs)
    error[np.arange(len(y)), y.numpy(force=True)] -= 1
    return float((error**2).sum(1).mean() + (0 if prediction.none is None else (double(prediction.none) ** 2).mean()))


def mmc(prediction: Prediction) -> float:
    """Mean confidence."""
    return float(confidence(prediction).mean())


def calibration(confidence: Array, right: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """Per bin of confidence, of `BINS` equal ones: count, mean confidence, accuracy (nan in an empty one).

    Bins are closed above, the first below too, so that every input is in one.
    """
    index = _bin(confidence)
    count = np.bincount(index, minlength=BINS).astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, confidence, BINS) / count
        fraction_right = np.bincount(index, right, BINS) / count
    return count, mean_confidence, fraction_right


def _bin(confidence: Array) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


def _calibration_error(confidence: Array, right: NDArray[np.bool_], counts: Counts | None = None) -> Array:
    """The mean over inputs of the gap between a bin's confidence and accuracy, for every column of counts; once each
    where there are none. nan where no input counts."""
    counts = np.ones((len(right), 1), np.uint8) if counts is None else counts
    gaps = (confidence - right) * (_bin(confidence) == np.arange(BINS)[:, None])
    with np.errstate(invalid="ignore"):
        return np.abs(gaps @ counts).sum(0) / counts.sum(0, dtype=np.int64)


def _ece(prediction: Prediction, y: Tensor, counts: Counts | None = None) -> Array:
    return _calibration_error(confidence(prediction), right(prediction, y), counts)


def _ece_published(prediction: Prediction, y: Tensor, counts: Counts | None = None) -> Array:
    sure, hit = confidence(prediction), right(prediction, y)
    below_one = sure < 1 - 1 / BINS
    return _calibration_error(sure[below_one], hit[below_one], None if counts is None else counts[below_one])


def ece(prediction: Prediction, y: Tensor) -> float:
    """Expected calibration error of the most probable class; every input is in a bin."""
    return float(_ece(prediction, y)[0])


def ece_class(prediction: Prediction, y: Tensor) -> float:
    """ECE of "which class, given that it is one of them", on the inputs that the classifier takes for inliers.

    An input counts if its none mass is below one half; its class probabilities are divided by their sum. Equal to `ece`
    where there is no none class; nan where every input is called "none".
    """
    if prediction.none is None:
        return ece(prediction, y)
    inside = double(prediction.none) < 0.5
    probs = double(prediction.probs)[inside]
    probs /= probs.sum(1, keepdims=True)
    return float(_calibration_error(probs.max(1), probs.argmax(1) == y.numpy(force=True)[inside])[0])


def ece_published(prediction: Prediction, y: Tensor) -> float:
    """The paper's ECE: inputs with confidence of 14/15 or more are left out, and not counted (nan if none is left)."""
    return float(_ece_published(prediction, y)[0])


def _mean(values: NDArray[np.bool_] | Array, counts: Counts) -> Array:
    return values.astype(np.float64) @ counts / len(values)


@dataclass(frozen=True)
class Metric:
    """A function of predictions and labels, and how it is printed; `again` is the same for every column of counts,
    for those that reports bound."""

    title: str
    of: Callable[[Prediction, Tensor], float]
    again: Callable[[Prediction, Tensor, Counts], Array] | None = None
    higher_is_better: bool = False
    percent: bool = True  # whether it is a fraction, which is printed as per cent

    def __call__(self, prediction: Prediction, y: Tensor) -> float:
        return self.of(prediction, y)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "accuracy": Metric("accuracy", accuracy, lambda p, y, n: _mean(right(p, y), n), True),
        "accuracy_with_none": Metric(
            "accuracy, none is wrong",
            accuracy_with_none,
            lambda p, y, counts: _mean(right_with_none(p, y), counts),
            True,
        ),
        "nll": Metric("NLL", nll, percent=False),
        "brier": Metric("Brier score", brier, percent=False),
        "ece": Metric("ECE", ece, _ece),
        "ece_class": Metric("ECE given a class", ece_class),
        "ece_published": Metric("ECE below 14/15", ece_published, _ece_published),
        "mmc": Metric("confidence", lambda p, y: mmc(p), lambda p, y, n: _mean(confidence(p), n), True),
    }
)


def metric_named(name: str) -> Metric:
    """One of `METRICS`, or `mypackage.mymodule:name`: a `Metric`, or a function as one has it."""
    metric: Any = choose_or_import(METRICS, name, "metric")
    if not callable(metric):
        raise ValueError(f"metric {name!r} is {metric!r:.60}, not a function of a Prediction and labels")
    return metric if isinstance(metric, Metric) else Metric(name, metric)


# metrics of inliers against outliers -------------------------------------------------------------------------------


class Separation:
    """How well a score tells positives from negatives: one sort of each serves every metric, ties included.

    A positive is called one if its value is at least the threshold; what thresholds there are to look at are the
    positives' own values, each once.
    """

    def __init__(self, positive: Array, negative: Array) -> None:
        for name, values in (("positive", positive), ("negative", negative)):
            if len(values) == 0:
                raise ValueError(f"the {name} scores are empty; a comparison needs at least one of each kind")
            if np.isnan(values).any():
                raise ValueError(f"the {name} scores contain NaN; the network's outputs are not finite")
        self.positive, self.negative = np.sort(positive), np.sort(negative)

    @property
    def other_way(self) -> "Separation":
        """The negatives as positives, and the score negated; what is sorted stays so."""
        other = object.__new__(Separation)
        other.positive, other.negative = -self.negative[::-1], -self.positive[::-1]
        return other

    @cached_property
    def _positives_below(self) -> NDArray[np.int64]:
        """At each threshold."""
        return np.flatnonzero(np.append(True, self.positive[1:] != self.positive[:-1]))

    @cached_property
    def _thresholds(self) -> Array:
        return self.positive[self._positives_below]

    @cached_property
    def _count(self) -> NDArray[np.int64]:
        """How many positives are at each threshold."""
        return np.diff(self._positives_below, append=len(self.positive))

    @cached_property
    def _negatives_below(self) -> NDArray[np.int64]:
        return np.searchsorted(self.negative, self._thresholds, "left")

    @cached_property
    def auroc(self) -> float:
        """Probability that a positive lies above a negative, ties counting one half."""
        below = self._negatives_below
        tied = np.flatnonzero(self.negative[np.minimum(below, len(self.negative) - 1)] == self._thresholds)
        level = np.searchsorted(self.negative, self._thresholds[tied], "right") - below[tied]
        # whole numbers, so that nothing is rounded before the end
        twice = 2 * np.dot(below, self._count) + np.dot(level, self._count[tied])
        return float(twice / (2 * len(self.positive) * len(self.negative)))

    @cached_property
    def aupr(self) -> float:
        """Average precision: each positive asks for the precision at its own value."""
        positives = len(self.positive) - self._positives_below
        negatives = len(self.negative) - self._negatives_below
        return float(np.dot(positives / (positives + negatives), self._count) / len(self.positive))

    @cached_property
    def aupr_published(self) -> float:
        """The trapezoid under the precision-recall curve, which flatters where ties or gaps are."""
        values, count = np.unique(np.concatenate([self.positive, self.negative]), return_counts=True)
        above = len(self.positive) + len(self.negative) - np.concatenate([[0], np.cumsum(count)[:-1]])
        positives = len(self.positive) - np.searchsorted(self.positive, values, "left")
        precision, recall = np.append(positives / above, 1.0), np.append(positives / len(self.positive), 0.0)
        return float(-np.trapezoid(precision, recall))

    @cached_property
    def fpr95(self) -> float:
        """Share of negatives that pass the threshold which 95 % of the positives pass."""
        place = 0.05 * (len(self.positive) - 1)
        low, high = float(self.positive[math.floor(place)]), float(self.positive[math.ceil(place)])
        # towards an infinite value there is nothing to interpolate, and at least 95 % pass the lower of both
        threshold = low + (place - math.floor(place)) * (high - low) if 0 < high - low < math.inf else low
        passing = len(self.negative) - np.searchsorted(self.negative, threshold, "left")
        return float(passing / len(self.negative))
