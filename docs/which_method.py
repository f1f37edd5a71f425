"""Draws the table of the page "Which method should I use?" as its figure.

python docs/which_method.py    # writes docs/which-method.png
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

PAGE = Path(__file__).parent / "which-method.md"
SHOWN = {"`la`, none shown": "#999999", "`la+nc`, synthetic": "#56b4e9", "`la+nc`, real ones shown": "#d55e00"}


def read_table(text: str) -> dict[str, dict[str, float]]:
    """Per cent abstained on, by row and by what was shown; without the accuracy in brackets."""
    block = next(block for block in text.split("\n\n") if block.startswith("| inliers |"))
    head, _, *lines = ([entry.strip() for entry in line.strip("|").split("|")] for line in block.splitlines())
    rows: dict[str, dict[str, float]] = {}
    for inliers, unseen, *entries in lines:
        numbers = {name: re.match(r"\d+", entry) for name, entry in zip(head[2:], entries, strict=True)}
        values = {name: float(number[0]) for name, number in numbers.items() if number}
        rows[f"{inliers.split(',')[0]}: {unseen}"] = values
    return rows


def draw(rows: dict[str, dict[str, float]]) -> Figure:
    figure, axes = plt.subplots(figsize=(7, 0.5 * len(rows) + 1.2), layout="constrained")
    for name, colour in SHOWN.items():
        places = [(values[name], place) for place, values in enumerate(rows.values()) if name in values]
        axes.scatter(*zip(*places, strict=True), s=60, color=colour, label=name.replace("`", ""), zorder=3)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 102)
    axes.set_xlabel("unseen outliers that get no label, % (95 % of inliers do)")
    axes.grid(axis="x", color="#dddddd")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    draw(read_table(PAGE.read_text("utf-8"))).savefig(PAGE.with_suffix(".png"), dpi=150)
