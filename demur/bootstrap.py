"""Intervals over test points, by the bootstrap, from predictions alone.

A resample is a column of counts, how often each point was drawn. The counts of a set depend on its name and size only:
methods, training seeds and metrics are compared on the same resamples, and a mean's interval follows from its parts'.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from demur.metrics import Array, Counts

RESAMPLES = 1000
LEVEL = 0.95


@lru_cache(maxsize=16)
def counts(name: str, size: int) -> Counts:
    """How often each of the set's points is in each resample; the same at every call."""
    generator = np.random.default_rng([size, zlib.crc32(name.encode())])
    resamples = np.empty((size, RESAMPLES), np.uint8)
    for resample in range(RESAMPLES):
        resamples[:, resample] = np.bincount(generator.integers(size, size=size), minlength=size)
    return resamples


def interval(resampled: Array) -> tuple[float, float]:
    """The percentile interval; nan where no resample has a value."""
    if np.isnan(resampled).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


# the metrics of `demur.metrics.Separation`, inliers positive, in every resample of both sides -------------------------


def resample_separation(
    metric: str, inside: Array, outside: Array, drawn_inside: Counts, drawn_outside: Counts
) -> Array:
    by_inside, by_outside = np.argsort(inside), np.argsort(outside)
    return AGAINST[metric](inside[by_inside], outside[by_outside], drawn_inside[by_inside], drawn_outside[by_outside])


def _fpr95(positive: Array, negative: Array, drawn_positive: Counts, drawn_negative: Counts) -> Array:
    place = 0.05 * (len(positive) - 1)
    lower, upper = int(place), min(int(place) + 1, len(positive) - 1)
    lowest = drawn_positive[: lower + 15 * int(lower**0.5) + 30]  # every resample has its 5 % in there
    cumulative = _cumulate(lowest)[1:]
    below, above = (positive[(cumulative <= rank).sum(0)] for rank in (lower, upper))
    threshold = below + (place - lower) * (above - below)
    rejected = np.searchsorted(negative, threshold, "left")
    return 1 - np.take_along_axis(_cumulate(drawn_negative), rejected[None], axis=0)[0] / len(negative)


def _auroc(positive: Array, negative: Array, drawn_positive: Counts, drawn_negative: Counts) -> Array:
    below = _cumulate(drawn_negative)
    pairs = below[np.searchsorted(negative, positive, "left")] + below[np.searchsorted(negative, positive, "right")]
    return np.einsum("ij,ij->j", pairs, drawn_positive, dtype=np.float64) / (2 * len(positive) * len(negative))


def _aupr_published(positive: Array, negative: Array, drawn_positive: Counts, drawn_negative: Counts) -> Array:
    """Recall rises at the positives' values only: the precision above such a value, and from it on."""
    positives, negatives = _cumulate(drawn_positive), _cumulate(drawn_negative)
    area = np.zeros(drawn_positive.shape[1])
    for values in np.array_split(np.unique(positive), 32):  # in parts, since large arrays are slow to come by
        above, from_there = (
            (
                len(positive) - positives[np.searchsorted(positive, values, side)],
                len(negative) - negatives[np.searchsorted(negative, values, side)],
            )
            for side in ("right", "left")
        )
        heights = _precision(*above) + _precision(*from_there)
        area += np.einsum("ij,ij->j", from_there[0] - above[0], heights, dtype=np.float64)
    return area / (2 * len(positive))


def _cumulate(counts: Counts) -> NDArray[np.int32]:
    """How many are drawn among the i lowest, i from 0 to all."""
    total = np.zeros((len(counts) + 1, counts.shape[1]), np.int32)
    for i, row in enumerate(counts):  # by rows, since numpy's cumsum down the columns takes six times as long
        np.add(total[i], row, out=total[i + 1])
    return total


def _precision(positives: NDArray[np.int32], negatives: NDArray[np.int32]) -> NDArray[np.float32]:
    """1 where nothing is called positive yet, as scikit-learn has it."""
    fraction, called = positives.astype(np.float32), (positives + negatives).astype(np.float32)
    nothing = called == 0
    fraction += nothing
    called += nothing
    fraction /= called
    return fraction


AGAINST: Mapping[str, Callable[[Array, Array, Counts, Counts], Array]] = {
    "fpr95": _fpr95,
    "auroc": _auroc,
    "aupr_published": _aupr_published,
}
