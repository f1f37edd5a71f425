"""Which inputs a fit holds out, and how a later fit recognises them.

A threshold must not be set by inputs that the weights were trained with, in whichever of several fits. So a model keeps
hashes of the inputs that it held out and of those that it was trained with.
"""

import hashlib
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from demur.classifier import kinds
from demur.classifier.decision import least_count
from demur.streams import generator_for

if TYPE_CHECKING:
    from demur.classifier.predictor import Predictor

STEADY = 5  # times as many inliers as the guarantee needs
TUNING = 19  # inliers that a prior can be tuned with, where there are few
MOST_UNSEEN = 1_000  # outliers to measure with
FEWEST = 20  # outliers of which some can be held out

AT_ONCE = 4096  # inputs that are read to be hashed
PARTS = ("tuning", "calibration", "outliers")
TRAINED = "trained"
SHORT = 8  # digits of a hash of a training input: one that is taken for such by chance is not held out
MOST_TRAINED = 2_000_000  # hashes of training inputs; a model file has limits
Hashes = Mapping[str, list[str]]  # of what was held out, by PARTS, and of what was trained with, inliers and outliers


class Rows(NamedTuple):
    """The rows of X that a fit trains, tunes and calibrates with."""

    train: Tensor
    tuning: Tensor
    calibration: Tensor


def split_rows(
    labels: Tensor,
    fraction: float,
    coverage: float,
    seed: int,
    by_class: bool = False,
    gaps: Tensor | None = None,
    steady: bool = False,
) -> Rows:
    """A random split. At least one row of each class is trained with.

    `gaps`, (N, columns), are the empty cells of a table. One row with a gap in each column that has any is trained with
    as well: a gap that only calibration rows have would look like an outlier's, and set the limit. There, and where the
    split is to be `steady`, more rows calibrate, a fifth at most, so that the limit is not the score of the oddest.
    """
    count, classes = len(labels), labels.unique()
    order = torch.randperm(count, generator=generator_for("held out", seed))
    to_train = [labels == code for code in classes]
    if gaps is not None:
        to_train += [column for column in gaps.T if column.any()]
    first = torch.tensor([int(rows[order].nonzero()[0]) for rows in to_train])
    free = torch.ones(count, dtype=torch.bool).index_fill_(0, first, False)
    each = math.ceil(fraction * count / 2)
    # answers are not spread evenly over the classes, so half as many again
    least = math.ceil(1.5 * len(classes) * least_count(coverage)) if by_class else least_count(coverage)
    calibration = min(max(each, least), count // 3)
    if gaps is not None or steady:
        calibration = max(calibration, min(STEADY * least, count // 5))
    tuning = min(max(each, min(TUNING, count // 10)), count // 3)
    held_out = order[free][: tuning + calibration]
    if len(held_out) < 2:
        raise ValueError(
            f"{count} inputs (n_samples={count}) are too few for {len(classes)} classes: some must be held out; "
            f"give at least {len(classes) + 2}"
        )
    calibration = max(1, min(calibration, len(held_out) - 1))
    train = order[~torch.isin(order, held_out)]
    return Rows(train, held_out[calibration:], held_out[:calibration])


def split_outliers(
    outliers: Tensor, fraction: float, seed: int, known: Hashes | None = None
) -> tuple[Tensor, Tensor | None]:
    """Outliers to train with, and some to measure abstention on; None of the latter where there are few.

    `known` are the hashes of an earlier fit: what it held out is held out again, and nothing that it was trained with.
    """
    order = torch.randperm(len(outliers), generator=generator_for("held out outliers", seed))
    if known is not None:
        hashes = hash_rows(outliers)
        again = is_among(hashes, known["outliers"])
        if again.any() and not again.all():
            return outliers[~again], outliers[again]
        if TRAINED in known:
            order = order[~was_trained_with(hashes, known)[order]]
    if min(len(outliers), len(order)) < FEWEST:
        return outliers, None
    count = min(MOST_UNSEEN, math.ceil(fraction * len(outliers)), len(order))
    unseen = torch.zeros(len(outliers), dtype=torch.bool).index_fill_(0, order[:count], True)
    if unseen.all():
        return outliers, None
    return outliers[~unseen], outliers[unseen]


# the next fit -------------------------------------------------------------------------------------------------------


def hash_rows(x: Tensor) -> list[str]:
    """Of each input as the network takes it."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in np.ascontiguousarray(x.numpy(force=True))]


def hash_fitted(
    trained: Sequence[Tensor | None],
    tuning: Tensor,
    calibration: Tensor,
    outliers: Tensor | None,
    previous: "Predictor | None",
) -> Hashes:
    """The hashes of this fit and of those before it, which `previous` has. `trained` are inliers and outliers.

    What any of these fits held out, and this one did not train with, stays held out. Training inputs are left out where
    an earlier fit does not name its own, or where they are more than a model file can hold.
    """
    known = None if previous is None else previous.held_out_hashes_
    trained_now = {each for x in trained if x is not None for each in hash_rows(x)}
    hashes = {
        part: [] if x is None else hash_rows(x) for part, x in zip(PARTS, (tuning, calibration, outliers), strict=True)
    }
    for part, own in hashes.items():
        earlier = dict.fromkeys((known or {}).get(part, ()))
        own += [each for each in earlier if each not in trained_now and each not in own]
    if previous is None or (known is not None and TRAINED in known):
        every = sorted({*(each[:SHORT] for each in trained_now), *(known or {}).get(TRAINED, ())})
        if len(every) <= MOST_TRAINED:
            hashes[TRAINED] = every
    return hashes


def is_among(hashes: Sequence[str], known: Collection[str]) -> Tensor:
    """(N,) of bool."""
    known = frozenset(known)
    return torch.tensor([each in known for each in hashes], dtype=torch.bool)


def was_trained_with(hashes: Sequence[str], known: Hashes) -> Tensor:
    """(N,) of bool: whether an earlier fit was trained with the input, or may have been."""
    if TRAINED not in known:
        return torch.ones(len(hashes), dtype=torch.bool)
    return is_among([each[:SHORT] for each in hashes], known[TRAINED])


def split_rows_again(
    previous: "Predictor",
    inputs: Any,
    codes: Tensor,
    classes: np.ndarray,
    usual: Rows,
    *,
    coverage: float,
    validation: float,
    seed: int,
) -> Rows:
    """The split of a fit that continues the model `previous`, whose inputs may be among these.

    What that held out is held out again, and some inputs of new classes. Where these are too few, others join them that
    no earlier fit was trained with, as many as in the `usual` split. The usual split itself serves where all inputs are
    new to the model, or where it does not know which inputs it has seen.
    """
    known = previous.held_out_hashes_
    if known is None:
        warnings.warn(
            "the model to continue does not say which inputs it held out; if it was trained with some of these, set "
            "the threshold by fresh inliers in the end (demur calibrate)",
            stacklevel=5,
        )
        return usual
    hashes = _hash_inputs(previous.preprocessing_, inputs, len(codes))
    tuning, calibration = (is_among(hashes, known[part]) for part in PARTS[:2])
    trained = was_trained_with(hashes, known) & ~(tuning | calibration)
    if not (tuning | calibration).any() and (TRAINED not in known or not trained.any()):
        return usual
    order = torch.randperm(len(codes), generator=generator_for("held out", seed))
    of_class = [order[codes[order] == code] for code in range(len(classes))]
    old = set(map(str, previous.classes_))
    for name, rows in zip(map(str, classes), of_class, strict=True):
        if name not in old:
            each = min(math.ceil(validation * len(rows) / 2), (len(rows) - 1) // 2)
            tuning[rows[:each]], calibration[rows[each : 2 * each]] = True, True
    calibration &= ~tuning
    for part, least, wanted in (
        (calibration, least_count(coverage), len(usual.calibration)),
        (tuning, 1, len(usual.tuning)),
    ):
        if part.sum() < min(least, wanted):
            free = order[~(tuning | calibration | trained)[order]]
            part[free[: wanted - int(part.sum())]] = True
    if not tuning.any() and calibration.sum() > 1:
        tuning[calibration.nonzero()[0]] = True
        calibration &= ~tuning
    for rows in of_class:  # one of each class is trained with
        if (tuning | calibration)[rows].all():
            tuning[rows[0]] = calibration[rows[0]] = False
    if not (tuning.any() and calibration.any()):
        raise ValueError(
            f"the model was trained with these {len(codes)} inputs, and such cannot set its threshold; give all that "
            "it was fitted to, with those that it held out, or fresh ones as well"
        )
    train = ~(tuning | calibration)
    return Rows(order[train[order]], order[tuning[order]], order[calibration[order]])


def _hash_inputs(preprocessing: kinds.Preprocessing, inputs: Any, count: int) -> list[str]:
    """Some at a time, since inputs take more room once they are read."""
    parts = torch.arange(count).split(AT_ONCE)
    return [each for rows in parts for each in hash_rows(preprocessing.read(kinds.take_rows(inputs, rows)))]


# the model file -----------------------------------------------------------------------------------------------------


def hashes_to_json(hashes: Hashes | None) -> dict[str, Any] | None:
    """Those of training inputs, which are many, as one string."""
    if hashes is None:
        return None
    if TRAINED not in hashes:
        return dict(hashes)
    return {**hashes, TRAINED: "".join(hashes[TRAINED])}


def hashes_from_json(saved: Any) -> Hashes | None:
    """None in files that do not have them."""
    if saved is None:
        return None
    trained = saved.get(TRAINED, "")
    held_out = {part: saved[part] for part in PARTS}
    if {*saved} - {TRAINED} != {*PARTS} or not all(isinstance(each, str) for part in saved.values() for each in part):
        raise TypeError("what it held out is no list of hashes")
    if not isinstance(trained, str) or len(trained) % SHORT:
        raise TypeError("what it was trained with is no row of hashes")
    hashes = {part: list(each) for part, each in held_out.items()}
    if TRAINED in saved:
        hashes[TRAINED] = [trained[at : at + SHORT] for at in range(0, len(trained), SHORT)]
    return hashes
