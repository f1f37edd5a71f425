"""A figure of how sharp the sets of a task are."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from demur.outliers.spectrum import log_power, match_spectrum, mean_power, original_images
from demur.tasks.base import Task


def draw_sharpness(task: Task, path: Path) -> None:
    """The median power of a frequency, a line a set, and that of the outliers once matched."""
    if task.training.train.x.dtype != torch.uint8:
        raise ValueError(f"figure {path}: task {task.name!r} has no images to draw the sharpness of; leave it out")
    outliers = original_images(task.training.shown).epoch(torch.Generator(task.training.device).manual_seed(0))
    matched = match_spectrum(outliers, mean_power(task.training.train.x))
    named = {
        f"{task.name}, the inliers": (task.testing.test.x, "#000000", "-", 3.0),
        f"{task.trained_with}, training outliers": (outliers, "#d55e00", "-", 3.0),
        "the same, spectrum-matched": (matched, "#d55e00", "--", 2.0),
    }
    others = [name for name, x in task.testing.ood.items() if x.dtype == torch.uint8]
    colours = ("#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#999999", "#e69f00")
    named |= {
        name: (task.testing.ood[name], colours[number % len(colours)], "-", 1.2) for number, name in enumerate(others)
    }
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, (x, colour, style, width) in named.items():
        median = np.median(log_power(x), axis=0)
        axis.semilogy(np.arange(1, 1 + len(median)), np.exp(median), style, color=colour, linewidth=width, label=name)
    axis.set(xlabel="frequency: half waves across the image", ylabel="median power")
    figure.legend(fontsize="small", frameon=False, loc="outside right upper")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
