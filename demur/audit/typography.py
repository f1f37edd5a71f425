"""Giveaways of texts: how well length, upper case, punctuation, numbers or unknown words alone tell sets apart."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from sklearn.metrics import roc_auc_score
from torch import Tensor

from demur.outliers.sharpness import LEAK
from demur.tasks.text import UNKNOWN, Vocabulary

FEATURES = ("length", "upper case", "punctuation", "numbers", "unknown words")


@dataclass(frozen=True)
class Leak:
    """How well one feature tells a set from the inliers; `inside` and `outside` are its means.

    `stage` is "raw", the words as the source has them, or "tokens", what the network sees of them. Training outliers
    are compared with training inliers, OOD test sets with test inliers. Whichever side is higher, AUROC .5 is no leak.
    """

    stage: str
    set: str
    feature: str
    inside: float
    outside: float
    auroc: float

    @property
    def flagged(self) -> bool:
        return self.auroc > LEAK

    def line(self) -> str:
        who = "anything that sees the raw text" if self.stage == "raw" else "the network"
        return f"{self.set}: {who} can reach AUROC {100 * self.auroc:.1f} by {self.feature} alone"


def raw_features(texts: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    known = set(Vocabulary.of(text.split() for text in texts["train"]).words)
    return {name: features((text.split() for text in rows), known) for name, rows in texts.items()}


def token_features(sets: Mapping[str, Tensor], vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    # a word that the network does not see has no typography: it is the empty word
    words = ["" if index <= UNKNOWN else word for index, word in enumerate(vocabulary.words)]
    known = set(words[UNKNOWN + 1 :])
    return {
        name: features(([words[token] for token in row if token] for row in x.tolist()), known)
        for name, x in sets.items()
    }


def features(sentences: Iterable[Sequence[str]], known: Container[str]) -> np.ndarray:
    """FEATURES of every sentence, (N, 5): its length, then shares of its words."""
    rows = []
    for sentence in sentences:
        words = sentence or [""]
        marks = [(*typography(word), word not in known) for word in words]
        rows.append((len(words), *(sum(column) / len(words) for column in zip(*marks, strict=True))))
    return np.array(rows)


@cache
def typography(word: str) -> tuple[bool, bool, bool]:
    """Whether a word has upper case, punctuation, a digit."""
    upper = any(letter.isupper() for letter in word)
    return upper, any(not letter.isalnum() for letter in word), any(letter.isdigit() for letter in word)


def leaks(stage: str, values: Mapping[str, np.ndarray]) -> list[Leak]:
    """One row a set and feature, from each set's (N, len(FEATURES)) values."""
    rows = []
    for name in [name for name in values if name not in ("train", "test")]:
        inside, outside = values["train" if name == "outliers" else "test"], values[name]
        is_outlier = np.repeat([False, True], [len(inside), len(outside)])
        for column, feature in enumerate(FEATURES):
            a, b = inside[:, column], outside[:, column]
            auroc = float(roc_auc_score(is_outlier, np.concatenate([a, b])))
            rows.append(Leak(stage, name, feature, float(a.mean()), float(b.mean()), max(auroc, 1 - auroc)))
    return rows


def leak_table(rows: Sequence[Leak]) -> list[str]:
    """A line a stage and set, with the head above and the legend below."""
    if not rows:
        return []
    lines = [f"{'':8}{'':12}" + "".join(f"{feature:>20}" for feature in FEATURES)]
    for stage, name in dict.fromkeys((row.stage, row.set) for row in rows):
        cells = [row for row in rows if (row.stage, row.set) == (stage, name)]
        line = "".join(
            f"{f'{row.outside:.2f} / {row.inside:.2f}':>14}{100 * row.auroc:5.0f}{' *'[row.flagged]}" for row in cells
        )
        lines.append(f"{stage:8}{name:12}{line}")
    legend = f"mean outside / mean inside, AUROC of telling them apart by it alone; * above {100 * LEAK:.0f}"
    return [*lines, legend, ""]
