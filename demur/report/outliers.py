"""A contact sheet of outliers: what is shown, what of it is trivial, and what was left out."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from PIL import Image

from demur.classifier.proposing import Problem, Selection, take_inputs
from demur.classifier.readers.base import X, join_names
from demur.report.gallery import Card, thumbnail
from demur.report.sheet import Sheet, render
from demur.study.measuring import per_cent

SHOWN, PAIRS = 36, 12  # of a source on the page
SIDE = 160  # pixels of a thumbnail, at most


def contact_sheet(problem: Problem, name: str, selections: Sequence[Selection]) -> str:
    """A page of HTML that needs nothing beside it."""
    galleries = {f"Your {problem.kind}": ("To compare with: some of the inliers.", cards(problem.x, "inlier"))}
    for chosen in selections:
        if len(chosen.shown):
            note = "; ".join(chosen.audit.lines())
            galleries[chosen.shown.name] = (
                f"{note[0].upper()}{note[1:]}.",
                cards(chosen.shown.x, chosen.shown.name),
            )
        if pairs := _pairs(problem, chosen):
            note = f"Each beside the inlier that it is; {len(chosen.twice):,} were left out."
            galleries[f"Of {chosen.shown.name}: also yours"] = (note, pairs)
    return render("outliers.html", name=name, problem=problem, table=sheet(selections), galleries=galleries)


def sheet(selections: Sequence[Selection]) -> Sheet:
    """A line a source, for the terminal and the page."""
    head = ("source", "there", "shown", "also yours", "of your classes", "told best by", "AUROC (%)")
    rows = []
    for chosen in selections:
        worst = chosen.audit.giveaways[0] if chosen.audit.giveaways else None
        shared = f"{chosen.shown.num_shared:,} ({join_names(chosen.shown.shared, 4)})" if chosen.shown.shared else "0"
        there = f"{chosen.shown.there:,}" if chosen.shown.there else "synthetic"
        giveaway = (worst.feature, per_cent(worst.auroc)) if worst else ("-", "-")
        rows.append((chosen.shown.name, there, f"{len(chosen.shown):,}", f"{len(chosen.twice):,}", shared, *giveaway))
    notes = (
        "also yours, of your classes: left out; classes are compared by words, to which a poodle is no dog",
        "told best by: what tells outliers from inliers best by itself; near 100, a network may learn little else",
    )
    return Sheet(head, rows, title="Outliers", notes=notes)


def cards(x: X, source: str) -> list[Card]:
    rows = np.unique(np.linspace(0, len(x) - 1, min(SHOWN, len(x))).astype(int)).tolist()
    return [_card(x, row, f"{source} {row + 1}") for row in rows]


def _pairs(problem: Problem, chosen: Selection) -> list[Card]:
    pairs = []
    for place, original in enumerate(chosen.originals[:PAIRS]):
        pairs.append(_card(chosen.twice.x, place, "outlier, left out"))
        pairs.append(_card(problem.x, original, f"inlier {original + 1}"))
    return pairs


def _card(x: X, row: int, name: str) -> Card:
    one = take_inputs(x, [row])
    if isinstance(one, list):
        return Card(name, "", text=one[0])
    if isinstance(one, pa.Table):
        return Card(name, "", cells=[(column, str(cells[0])) for column, cells in one.to_pydict().items()])
    if one.ndim == 2:
        return Card(name, "", cells=[(str(column + 1), f"{cell:.4g}") for column, cell in enumerate(one[0])])
    return Card(name, "", image=thumbnail(_small(one[0])))


def _small(pixels: np.ndarray) -> np.ndarray:
    """What is larger than a thumbnail, made smaller: the page holds every image."""
    height, width = pixels.shape[1:]
    if max(height, width) <= SIDE:
        return pixels
    scale = SIDE / max(height, width)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    channels = [np.asarray(Image.fromarray(channel).resize(size)) for channel in pixels]
    return np.stack(channels)
