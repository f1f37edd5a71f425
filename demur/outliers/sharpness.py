"""How far the sharpness of images alone tells a task's outliers from its inliers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from demur.metrics import Separation
from demur.outliers.spectrum import log_power

LEAK = 0.9  # AUROC by one thing alone that is worth a warning


@dataclass(frozen=True)
class Sharpness:
    """How well a set is told from test inliers by what, of sharpness alone, tells training outliers from inliers.

    `passing` is FPR95. The training outliers are others than those learned from.
    """

    set: str
    auroc: float
    passing: float


def sharpness(sets: Mapping[str, Tensor]) -> tuple[Sharpness, ...]:
    """Of the sets of a task: its outliers, half of which are learned from, and every OOD set of images."""
    values = {name: log_power(x) for name, x in sets.items() if x.dtype == torch.uint8}
    train, test, outliers = values.pop("train"), values.pop("test"), values.pop("outliers")
    return _detect(train, outliers[::2], test, {"outliers": outliers[1::2], **values})


def auroc_by_sharpness(inside: Tensor, outside: Tensor) -> float:
    """Of telling images from others by sharpness alone; half of each is learned from."""
    inliers, outliers = log_power(inside), log_power(outside)
    return _detect(inliers[::2], outliers[::2], inliers[1::2], {"outliers": outliers[1::2]})[0].auroc


def _detect(
    train: np.ndarray, train_outliers: np.ndarray, test: np.ndarray, test_outliers: Mapping[str, np.ndarray]
) -> tuple[Sharpness, ...]:
    """By a logistic regression that learns to tell outliers from `train`."""
    from sklearn.linear_model import LogisticRegression  # here, since a prediction does without
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(np.concatenate([train, train_outliers]), np.repeat([0, 1], [len(train), len(train_outliers)]))
    inside = -model.decision_function(test)
    separations = {name: Separation(inside, -model.decision_function(x)) for name, x in test_outliers.items()}
    return tuple(Sharpness(name, separation.auroc, separation.fpr95) for name, separation in separations.items())


def sharpness_table(rows: Sequence[Sharpness]) -> list[str]:
    if not rows:
        return []
    head = f"{'by sharpness alone':24}{'AUROC':>8}{'passing':>9}"
    legend = "learned from training images and outliers; passing: per cent of a set, where 95 % of the inliers pass"
    return [head, *(f"{row.set:24}{100 * row.auroc:8.1f}{100 * row.passing:9.1f}" for row in rows), legend, ""]
