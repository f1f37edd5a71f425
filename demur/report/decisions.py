"""Inputs with the decision below each: what a model that can abstain answers."""

from collections.abc import Mapping
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from demur.classifier.decision import UNKNOWN, UNSURE

COLOURS = {UNSURE: "#b26a00", UNKNOWN: "#b2182b"}  # a label is black
SIZE = 11.5  # points: to be read on a phone, too
LONGEST = 9  # letters of a line of a title


def draw_decisions(groups: Mapping[str, tuple[Tensor, np.ndarray]]) -> Figure:
    """A row a group: its grey images (N, 1, H, W), and below each the decision, a label or where it abstains."""
    columns = max(len(images) for images, _ in groups.values())
    figure = Figure(figsize=(0.85 * columns + 0.9, 1.15 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), columns, squeeze=False)
    for line, (title, (images, decisions)) in zip(axes, groups.items(), strict=True):
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, image, decision in zip(line, images[:, 0], decisions, strict=False):
            axis.imshow(image.numpy(force=True), cmap="gray_r")
            abstained = decision in COLOURS
            axis.set_xlabel(
                str(decision),
                color=COLOURS.get(decision, "black"),
                fontweight="bold" if abstained else "normal",
                fontsize=SIZE,
            )
        line[0].set_ylabel(fill(title, LONGEST), rotation=0, ha="right", va="center", fontsize=SIZE)
    return figure
