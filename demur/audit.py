"""What can make a task's figures wrong: shared images and classes, giveaways of sharpness and of typography."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from demur.data.store import Store
from demur.names import choose
from demur.networks import as_input
from demur.outliers.overlap import overlapping_classes, read_class_names, read_known_overlap
from demur.outliers.sharpness import Sharpness, sharpness, sharpness_table
from demur.outliers.spectrum import cosines, unmatched
from demur.outliers.values import MATCHED, mix, natural, parse, sets_of, spectrum_matched
from demur.tasks.base import Task
from demur.tasks.text import TOKENIZERS, UNKNOWN, Vocabulary, labelled, ood_texts, training_and_validation

MAX_FLIPS = 14  # of the 63 bits of an image's hash
MAX_DISTANCE = 0.28  # all 18 pairs of cifar10, cifar100 and tiny_imagenet32 below it were seen to be one photograph
MIN_WORDS = 5  # shorter sentences are the same by chance
LEAK = 0.9
FEATURES = ("length", "upper case", "punctuation", "numbers", "unknown words")


@dataclass(frozen=True)
class Duplicates:
    """Inputs of a set, by index, that are also training outliers: up to noise, and of these the identical ones."""

    set: str
    count: int
    near: tuple[int, ...]
    exact: tuple[int, ...]

    def line(self) -> str:
        share = f"{len(self.near):,} of {self.count:,} inputs of {self.set} ({len(self.exact):,} exactly)"
        points = f"{100 * len(self.near) / self.count:.2f} points"
        if not self.near:
            return f"none of the {self.count:,} inputs of {self.set} is a training outlier"
        if self.set == "train":
            return f"{share} are also training outliers: taught to be of a class and of none"
        if self.set == "test":
            return f"{share} are also training outliers: accuracy can be too low by at most {points}"
        return f"{share} are also training outliers: FPR95 on it can be too low by at most {points}"


@dataclass(frozen=True)
class Overlap:
    """Outlier classes that are also the task's. `listed`: by a list somebody checked, not by words."""

    outliers: str
    classes: tuple[str, ...]
    num_classes: int
    shown: int
    count: int
    listed: bool

    def lines(self) -> list[str]:
        if not self.num_classes:
            return [f"the classes of {self.outliers} have no names here: whether they are the task's cannot be known"]
        lines = [
            f"{len(self.classes)} of {self.num_classes} classes of {self.outliers} are also the task's, "
            f"{self.shown:,} of {self.count:,} training outliers: {', '.join(self.classes) or 'none'}"
        ]
        if self.shown:
            lines.append("the network is taught to doubt these inliers; leave such classes out with --exclude-overlap")
        if not self.listed:
            lines.append("found by words, which do not know that a poodle is a dog: there may be more")
        return lines


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


@dataclass(frozen=True)
class Audit:
    task: str
    outliers: str
    duplicates: tuple[Duplicates, ...]
    overlaps: tuple[Overlap, ...] = ()
    leaks: tuple[Leak, ...] = ()
    sharpness: tuple[Sharpness, ...] = ()

    def lines(self) -> list[str]:
        """The findings in sentences, and what has many figures as a table before them."""
        lines = [f"{self.task}, trained with the outliers {self.outliers}", ""]
        lines += leak_table(self.leaks) + sharpness_table(self.sharpness)
        lines += [row.line() for row in self.duplicates]
        lines += [line for row in self.overlaps for line in row.lines()]
        lines += [leak.line() for leak in self.leaks if leak.flagged]
        if self.leaks and not any(leak.flagged for leak in self.leaks if leak.stage == "tokens"):
            lines.append(
                f"the network can tell no set from the inliers by one feature with an AUROC above {100 * LEAK:.0f}"
            )
        if any(row.set == "outliers" and row.auroc > LEAK for row in self.sharpness):
            said = "sharpness alone tells the training outliers from the inliers, and a network may learn little else"
            if self.overlaps and MATCHED not in self.outliers:
                mixed = str(mix(parse(self.outliers), spectrum_matched(natural(self.overlaps[0].outliers))))
                said += f"; see whether it does better if some are as sharp as the inliers: --outliers {mixed}"
            lines.append(said)
        return lines


def audit(task: Task, store: Store, *, inside: str = "normalised") -> Audit:
    """Everything that can be found out about `task`, made from `store`, and the outliers that it is trained with.

    `inside` is the tokenizer that a text task's labelled sets were made with.
    """
    outliers = task.trained_with
    if task.training.train.x.dtype == torch.uint8:
        parts = [part for part in sets_of(outliers) if store.has(part, "train")]
        overlaps = tuple(class_overlap(task, store, part) for part in parts)
        return Audit(task.name, outliers, image_duplicates(task), overlaps, sharpness=sharpness(inputs(task)))
    if task.training.train.x.is_floating_point():
        raise ValueError(f"task {task.name!r} has neither images nor texts; there is nothing to audit in it")
    train_texts = training_and_validation(store, task.name)[0][0]
    if len(train_texts) != len(task.training.train):
        raise ValueError(
            f"task {task.name!r} has {len(task.training.train)} of {len(train_texts)} sentences; load it without limit"
        )
    raw = {"train": train_texts, "test": labelled(store, task.name, "test")[0], **ood_texts(store)}
    sources = [store.texts(part, "train")[0] for part in outliers.split("+") if store.has(part, "train")]
    if sources:
        raw["outliers"] = [text for texts in sources for text in texts]
    vocabulary = Vocabulary.of(map(choose(TOKENIZERS, inside, "tokenizer"), train_texts))
    return Audit(
        task.name,
        outliers,
        text_duplicates(task),
        leaks=(*leaks("raw", raw_features(raw)), *leaks("tokens", token_features(inputs(task), vocabulary))),
    )


def inputs(task: Task) -> dict[str, Tensor]:
    """All sets of a task by name; training outliers of one epoch."""
    shown = task.training.shown.epoch(torch.Generator(task.training.device).manual_seed(0))
    return {"train": task.training.train.x, "test": task.testing.test.x, "outliers": shown, **task.testing.ood}


# images


def image_duplicates(task: Task) -> tuple[Duplicates, ...]:
    plain = replace(task.training, outliers=unmatched(task.training.shown))
    sets = inputs(replace(task, training=plain))
    shown = sets.pop("outliers")
    rows = []
    for name, x in sets.items():
        pairs = near_duplicates(x, shown)
        first, second = (as_input(images[index]) for images, index in zip((x, shown), pairs.T, strict=True))
        exact = pairs[(first == second).flatten(1).all(1)]
        rows.append(Duplicates(name, len(x), *(tuple(found[:, 0].unique().tolist()) for found in (pairs, exact))))
    return tuple(rows)


def near_duplicates(x: Tensor, outliers: Tensor) -> Tensor:
    """Pairs (P, 2) of an index into `x` and one into `outliers` that show one image.

    It may be resampled, moved by a pixel or a little noisy in one; cropped, mirrored or recoloured it is missed.
    Hashes propose pairs, pixels decide.
    """
    codes, outlier_codes = image_hash(x), image_hash(outliers)
    wanted = codes.shape[1] - 2 * MAX_FLIPS
    found = []
    for row, some in enumerate(codes.split(4096)):
        for column, others in enumerate(outlier_codes.split(8192)):
            agreement = some @ others.T
            # few rows have any, so the best of each row first: half the time
            rows = (agreement.amax(1) >= wanted).nonzero()[:, 0]
            near = (agreement[rows] >= wanted).nonzero()
            found.append(torch.stack([rows[near[:, 0]] + row * 4096, near[:, 1] + column * 8192], 1))
    candidates = torch.cat(found)
    close = [pixel_distance(x[pairs[:, 0]], outliers[pairs[:, 1]]) <= MAX_DISTANCE for pairs in candidates.split(4096)]
    return candidates[torch.cat(close)]


def image_hash(x: Tensor) -> Tensor:
    """The signs, 1 or -1, of the grey image's 63 lowest frequencies; (N, C, H, W) to (N, 63)."""
    codes = []
    for part in x.split(4096):
        grey = as_input(part).mean(1)
        rows, columns = (cosines(size)[:8].to(x.device) for size in grey.shape[1:])
        waves = (rows @ grey @ columns.T).flatten(1)[:, 1:]
        # below zero, so that rounding decides nothing in flat or symmetric images
        codes.append(torch.where(waves > -1e-4, 1.0, -1.0))
    return torch.cat(codes)


def pixel_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean absolute difference over contrast, blurred by 3x3 and at the best shift by a pixel; (N, C, H, W) to (N,)."""
    a, b = (F.avg_pool2d(as_input(x), 3, stride=1) for x in (a, b))
    contrasts = [(x - x.mean((1, 2, 3), keepdim=True)).abs().mean((1, 2, 3)) for x in (a, b)]
    centre = a[..., 1:-1, 1:-1]
    height, width = centre.shape[2:]
    shifted = [b[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    differences = torch.stack([(centre - other).abs().mean((1, 2, 3)) for other in shifted])
    return differences.amin(0) / torch.maximum(*contrasts).clamp_min(1 / 255)


def class_overlap(task: Task, store: Store, outliers: str) -> Overlap:
    names = read_class_names(store.root / outliers) or store.classes(outliers, "train")
    known = read_known_overlap(store.root / outliers, task.name)
    found = overlapping_classes(names, task.classes, known)
    images, labels = store.images(outliers, "train")
    shown = 0 if labels is None else int(torch.isin(labels, torch.tensor(found, dtype=torch.long)).sum())
    first_names = tuple(names[index].split(",")[0] for index in found)
    return Overlap(outliers, first_names, len(names), shown, len(images), known is not None)


# texts


def text_duplicates(task: Task) -> tuple[Duplicates, ...]:
    """Sentences of at least MIN_WORDS known words that are the same, unknown words too."""
    sets = inputs(task)
    shown = set(map(bytes, sets.pop("outliers").cpu().numpy()))
    rows = []
    for name, x in sets.items():
        long = ((x > UNKNOWN).sum(1) >= MIN_WORDS).tolist()
        found = tuple(i for i, row in enumerate(x.cpu().numpy()) if long[i] and bytes(row) in shown)
        rows.append(Duplicates(name, len(x), found, found))
    return tuple(rows)


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
