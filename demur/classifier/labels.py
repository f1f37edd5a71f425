"""Labels that a classifier learns: validated, encoded as indices, balanced; doubtful ones are warned of."""

import unicodedata
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from demur.classifier.decision import INVALID, UNKNOWN, UNSURE


def validate_labels(y: Any, count: int) -> np.ndarray:
    """One label for each of so many inputs, all strings or all numbers: (N,)."""
    if y is None:
        raise ValueError("Classifier requires y to be passed, but the target y is None; give one label an input")
    if isinstance(y, list | tuple):  # of which numpy would make strings without a word
        _check_kinds(y)
    labels = column_or_1d(y.numpy(force=True) if isinstance(y, Tensor) else y, warn=True)
    if len(labels) != count:
        raise ValueError(f"X has {count} inputs and y {len(labels)} labels; give one label an input")
    known = labels.dtype.kind in "biufUO"
    odd = next((label for label in labels.tolist() if not (known and isinstance(label, str | int | float))), None)
    if odd is not None or None in labels.tolist():
        raise ValueError(f"y has labels of type {type(odd).__name__}, such as {odd!s}; give strings or numbers")
    if labels.dtype.kind == "O":
        _check_kinds(labels.tolist())
        labels = labels if isinstance(labels[0], str) else np.array(labels.tolist())  # numbers, for what they are
    try:
        assert_all_finite(labels, input_name="y")
    except ValueError as error:
        raise ValueError(f"{str(error).splitlines()[0].rstrip('.')}; leave out inputs without a label") from None
    check_classification_targets(labels)
    return labels


def _check_kinds(labels: Any) -> None:
    """Refuse strings beside numbers, which have no order; NaN, as pandas marks what is missing, is one of these."""
    first = {isinstance(label, str | np.str_): label for label in reversed(labels)}
    if len(first) > 1:
        raise ValueError(
            f"y has strings and other labels, such as {first[True]!r} and {first[False]!r}; give strings alone, "
            "or numbers alone, and leave out inputs without a label"
        )


def encode_labels(y: Any, count: int) -> tuple[np.ndarray, Tensor]:
    """The sorted classes, and each label as an index into them."""
    classes, codes = np.unique(validate_labels(y, count), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"y has 1 class, {str(classes[0])!r}; a classifier needs at least 2: give inputs of others, too"
        )
    if overlap := {UNSURE, UNKNOWN, INVALID} & set(map(str, classes)):
        raise ValueError(f"y has a class named {overlap.pop()!r}, which is an answer of demur's own; rename it")
    _warn_of_lookalikes(classes, np.bincount(codes))
    return classes, torch.from_numpy(codes)


def _warn_of_lookalikes(classes: np.ndarray, counts: np.ndarray) -> None:
    """Two classes that differ in spaces, or in how their accents are encoded, are probably one."""
    alike = defaultdict(list)
    for name, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if isinstance(name, str):
            alike[" ".join(unicodedata.normalize("NFC", name).split())].append(f"{name!r} ({count} inputs)")
    for names in alike.values():
        if len(names) > 1:
            warnings.warn(
                f"y has classes that look alike, {' and '.join(names)}, and they are learned as different ones; "
                "write them alike if they are one",
                stacklevel=5,
            )


MOST = 10  # times that an input of a rare class is trained with


def balance_rows(rows: Tensor, codes: Tensor) -> Tensor:
    """Rows to train with, those of rarer classes again and again, till all have as many, or MOST times their own."""
    counts = codes[rows].bincount()
    repeats = (counts.max() / counts.clamp_min(1)).clamp_max(MOST)
    each = []
    for code, times in enumerate(repeats.tolist()):
        own = rows[codes[rows] == code]
        wanted = round(times * len(own))
        each.append(own.repeat(int(times) + 1)[:wanted])
    return torch.cat(each)
