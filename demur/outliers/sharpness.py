"""How far the sharpness of pictures alone tells a task's outliers from its inliers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from demur.metrics import Separation
from demur.outliers.spectrum import levelled, log_power, mean_power, unlevelled
from demur.tasks.base import Task


@dataclass(frozen=True)
class Sharpness:
    """How well a set is told from test inliers by what, of sharpness alone, tells training outliers from inliers.

    `passing` is FPR95. The training outliers are others than those learned from.
    """

    set: str
    auroc: float
    passing: float


def sharpness(sets: Mapping[str, Tensor]) -> tuple[Sharpness, ...]:
    """Of the sets of a task: its outliers, half of which are learned from, and every OOD set of pictures."""
    values = {name: log_power(x) for name, x in sets.items() if x.dtype == torch.uint8}
    train, test, outliers = values.pop("train"), values.pop("test"), values.pop("outliers")
    return _told(train, outliers[::2], test, {"outliers": outliers[1::2], **values})


def auroc_by_sharpness(inside: Tensor, outside: Tensor) -> float:
    """Of telling pictures from others by sharpness alone; half of each is learned from."""
    inliers, outliers = log_power(inside), log_power(outside)
    return _told(inliers[::2], outliers[::2], inliers[1::2], {"outliers": outliers[1::2]})[0].auroc


def _told(
    train: np.ndarray, learned: np.ndarray, test: np.ndarray, others: Mapping[str, np.ndarray]
) -> tuple[Sharpness, ...]:
    """By a logistic regression that learns to tell outliers from `train`."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(np.concatenate([train, learned]), np.repeat([0, 1], [len(train), len(learned)]))
    inside = -model.decision_function(test)
    found = {name: Separation(inside, -model.decision_function(x)) for name, x in others.items()}
    return tuple(Sharpness(name, one.auroc, one.fpr95) for name, one in found.items())


def sharpness_table(rows: Sequence[Sharpness]) -> list[str]:
    if not rows:
        return []
    head = f"{'by sharpness alone':24}{'AUROC':>8}{'passing':>9}"
    legend = "learned from training pictures and outliers; passing: per cent of a set, where 95 % of the inliers pass"
    return [head, *(f"{row.set:24}{100 * row.auroc:8.1f}{100 * row.passing:9.1f}" for row in rows), legend, ""]


def draw_sharpness(task: Task, path: Path) -> None:
    """The median power of a frequency, a line a set, and that of the outliers once levelled."""
    from matplotlib.figure import Figure

    if task.train.x.dtype != torch.uint8:
        raise ValueError(f"figure {path}: task {task.name!r} has no pictures to draw the sharpness of; leave it out")
    outliers = unlevelled(task.outliers).epoch(torch.Generator(task.train.x.device).manual_seed(0))
    named = {
        f"{task.name}, the inliers": (task.test.x, "#000000", "-", 3.0),
        f"{task.trained_with}, to train with": (outliers, "#d55e00", "-", 3.0),
        "the same, levelled": (levelled(outliers, mean_power(task.train.x)), "#d55e00", "--", 2.0),
    }
    others = [name for name, x in task.ood_test.items() if x.dtype == torch.uint8]
    colours = ("#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#999999", "#e69f00")
    named |= {
        name: (task.ood_test[name], colours[number % len(colours)], "-", 1.2) for number, name in enumerate(others)
    }
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, (x, colour, style, width) in named.items():
        median = np.median(log_power(x), axis=0)
        axis.semilogy(np.arange(1, 1 + len(median)), np.exp(median), style, color=colour, linewidth=width, label=name)
    axis.set(xlabel="frequency: half waves across the picture", ylabel="median power")
    figure.legend(fontsize="small", frameon=False, loc="outside right upper")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
