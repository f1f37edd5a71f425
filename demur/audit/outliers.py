"""Outliers that are to be trained with, audited against the inliers of a problem of one's own."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from demur.audit.duplicates import near_duplicates
from demur.audit.typography import FEATURES, raw_features
from demur.networks import as_input
from demur.outliers.sharpness import LEAK, auroc_by_sharpness
from demur.tasks.images import fit_images
from demur.tasks.text import normalise

COMPARED = 32  # pixels at which images are looked for twice; the threshold was found there
AT_ONCE = 256  # larger images that are made small together
PIXELS = 2**25  # of each side at most, where sharpness is measured
WORD = re.compile(r"\w+|[^\w\s]")
FEWEST = 20  # inputs of each side that something can be told by


@dataclass(frozen=True)
class Giveaway:
    """What tells outliers from inliers by itself: the means of both, and the AUROC, whichever is higher."""

    feature: str
    auroc: float
    inside: float = math.nan
    outside: float = math.nan

    def line(self) -> str:
        means = "" if math.isnan(self.inside) else f", {self.outside:.3g} in the mean, of inliers {self.inside:.3g}"
        return f"{self.feature} alone tells the outliers with AUROC {100 * self.auroc:.0f} %{means}"


@dataclass(frozen=True)
class OutlierAudit:
    """Pairs (outlier, inlier), by index, that are one input; and giveaways, the worst first."""

    kind: str
    count: int
    duplicates: tuple[tuple[int, int], ...]
    giveaways: tuple[Giveaway, ...]

    def lines(self) -> list[str]:
        twice = len({outlier for outlier, _ in self.duplicates})
        lines = [f"{twice or 'none'} of the {self.count:,} outliers {'is' if twice < 2 else 'are'} also an inlier"]
        flagged = [giveaway for giveaway in self.giveaways if giveaway.auroc > LEAK]
        if flagged:
            return [*lines, *(f"{giveaway.line()}: a network may learn little else" for giveaway in flagged)]
        best = self.giveaways[0] if self.giveaways else None
        return [*lines, *([f"nothing trivial tells them well; at best, {best.line()}"] if best else [])]


def audit_outliers(inliers: Any, outliers: Any, columns: Sequence[str] = ()) -> OutlierAudit:
    """Outliers that are also inliers, and what tells them by itself.

    That may be sharpness, brightness or colour of images (N, C, H, W), length or typography of texts (a list), a single
    one of the `columns` of rows (N, D), where NaN is a gap.
    """
    if isinstance(inliers, Sequence) and all(isinstance(text, str) for text in inliers):
        return OutlierAudit(
            "texts",
            len(outliers),
            _equal(map(_words, inliers), map(_words, outliers)),
            _worst_first(_of_texts(inliers, outliers)),
        )
    inside, outside = torch.as_tensor(inliers), torch.as_tensor(outliers)
    if inside.dim() == 2:
        rows = [[tuple(row) for row in x.tolist()] for x in (inside.nan_to_num(math.inf), outside.nan_to_num(math.inf))]
        return OutlierAudit("tables", len(outside), _equal(*rows), _worst_first(_of_columns(inside, outside, columns)))
    if inside.dim() not in (3, 4) or inside.shape[1:] != outside.shape[1:]:
        raise ValueError(
            f"inliers of shape {tuple(inside.shape)} and outliers of shape {tuple(outside.shape)} cannot be compared; "
            "give images (N, C, H, W) of one size, rows (N, D), or texts"
        )
    if inside.dim() == 3:
        inside, outside = inside.unsqueeze(1), outside.unsqueeze(1)
    pairs = near_duplicates(_small(inside), _small(outside)).flip(1).tolist()
    return OutlierAudit(
        "images", len(outside), tuple(sorted((a, b) for a, b in pairs)), _worst_first(_of_images(inside, outside))
    )


def _worst_first(giveaways: Iterator[Giveaway]) -> tuple[Giveaway, ...]:
    return tuple(sorted(giveaways, key=lambda giveaway: -giveaway.auroc))


def _words(text: str) -> tuple[str, ...]:
    return tuple(normalise(text)) or (text,)


def _equal(inliers: Any, outliers: Any) -> tuple[tuple[int, int], ...]:
    places = {row: place for place, row in enumerate(inliers)}
    return tuple((place, places[row]) for place, row in enumerate(outliers) if row in places)


def _small(images: Tensor) -> Tensor:
    """At most as large as the images that the threshold of `near_duplicates` was found with."""
    size = torch.Size((images.shape[1], *(min(side, COMPARED) for side in images.shape[2:])))
    return torch.cat(
        [
            fit_images(part if part.dtype == torch.uint8 else (255 * part).to(torch.uint8), size)
            for part in images.split(AT_ONCE)
        ]
    )


def _of_images(inside: Tensor, outside: Tensor) -> Iterator[Giveaway]:
    if min(len(inside), len(outside)) < FEWEST:
        return
    most = max(FEWEST, PIXELS // math.prod(inside.shape[1:]))
    a, b = (x[torch.linspace(0, len(x) - 1, min(most, len(x))).long()] for x in (inside, outside))
    yield Giveaway("sharpness", auroc_by_sharpness(a, b))
    yield _giveaway("brightness", *(as_input(x).mean((1, 2, 3)).numpy(force=True) for x in (a, b)))
    if inside.shape[1] == 3:
        colours = [as_input(x).amax(1) - as_input(x).amin(1) for x in (a, b)]
        yield _giveaway("colour", *(colour.mean((1, 2)).numpy(force=True) for colour in colours))


def _of_texts(inside: Sequence[str], outside: Sequence[str]) -> Iterator[Giveaway]:
    values = raw_features({"train": inside, "outliers": outside})
    for column, feature in enumerate(FEATURES):
        # of training texts no word is unknown, so that tells nothing
        if feature != "unknown words":
            yield _giveaway(feature, values["train"][:, column], values["outliers"][:, column])

    word, auroc, means = _telling_word(inside, outside)
    yield Giveaway(f"the word {word!r}", auroc, *means)


def _telling_word(inside: Sequence[str], outside: Sequence[str]) -> tuple[str, float, list[float]]:
    """The word, or mark, whose presence tells best, and the fractions of texts that have it."""
    shares = [
        Counter(word for text in texts for word in set(WORD.findall(text.lower()))) for texts in (inside, outside)
    ]
    a, b = (
        {word: count / len(texts) for word, count in counts.items()}
        for counts, texts in zip(shares, (inside, outside), strict=True)
    )
    word = max(sorted(a | b), key=lambda word: abs(a.get(word, 0) - b.get(word, 0)), default="")
    means = [a.get(word, 0.0), b.get(word, 0.0)]
    return word, 0.5 + 0.5 * abs(means[0] - means[1]), means


def _of_columns(inside: Tensor, outside: Tensor, columns: Sequence[str]) -> Iterator[Giveaway]:
    for column in range(inside.shape[1]):
        a, b = (x[:, column].double().numpy(force=True) for x in (inside, outside))
        yield _giveaway(f"column {columns[column] if columns else column + 1}", a, b)


def _giveaway(feature: str, inside: np.ndarray, outside: np.ndarray) -> Giveaway:
    """By a value that is higher or lower of outliers; a gap ranks above all numbers."""
    values = np.nan_to_num(np.concatenate([inside, outside]).astype(np.float64), nan=np.finfo(float).max)
    auroc = float(roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), values))
    means = [math.nan if np.isnan(x).all() else float(np.nanmean(x)) for x in (inside, outside)]
    return Giveaway(feature, max(auroc, 1 - auroc), *means)
