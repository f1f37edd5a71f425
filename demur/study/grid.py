"""The paper as data: which network, recipe and inference go with which task, and every cell of every table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import MappingProxyType

from demur.inference import Inference, Laplace
from demur.method import METHODS, parse_method
from demur.names import choose
from demur.networks import Network, gru, lenet, mlp, wide_resnet
from demur.tasks.base import Recipe


@dataclass(frozen=True)
class Setting:
    """What a method is fitted with; `inference` replaces the method's own where a task needs another."""

    network: Network
    recipe: Recipe
    inference: Inference | None = None


BY_DEFAULT = "*"
DIGITS = {BY_DEFAULT: Setting(partial(mlp, inputs=64, hidden=(256, 256)), Recipe(epochs=150))}
BLOBS = {BY_DEFAULT: Setting(partial(mlp, inputs=2, hidden=(100, 100)), Recipe(epochs=150))}
LENET = {BY_DEFAULT: Setting(partial(lenet, channels=1, size=28), Recipe(epochs=100, optimizer="adam", lr=1e-3))}

_sgd = Recipe(epochs=100, optimizer="sgd", lr=0.1)
# where the weights themselves are noisy in training, dropout would be noise upon noise
_without_dropout = Setting(partial(wide_resnet, depth=16, width=4, dropout=0.0), _sgd)
WIDE_RESNET = {
    BY_DEFAULT: Setting(partial(wide_resnet, depth=16, width=4, dropout=0.3), _sgd),
    "flipout": _without_dropout,
    "csghmc": _without_dropout,
}

_text = Recipe(epochs=5, batch_size=64, optimizer="adam", lr=0.01, weight_decay=0.0, cosine="epoch")
GRU = {
    BY_DEFAULT: Setting(gru, _text),
    "la": Setting(gru, replace(_text, weight_decay=5e-4), Laplace(over="head")),
}

# by task, then by inference
SETTINGS: Mapping[str, Mapping[str, Setting]] = MappingProxyType(
    {
        "digits": DIGITS,
        "blobs": BLOBS,
        "mnist": LENET,
        "fashion_mnist": LENET,
        "svhn": WIDE_RESNET,
        "cifar10": WIDE_RESNET,
        "cifar100": WIDE_RESNET,
        "sst": GRU,
        "trec": GRU,
    }
)


def setting(task: str, inference: str) -> Setting:
    """What the inference of that name is fitted with on the task."""
    by_inference = choose(SETTINGS, task, "task")
    return by_inference.get(inference, by_inference[BY_DEFAULT])


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method on a task, under a convention. None means the task's own."""

    task: str
    method: str
    seed: int = 0
    convention: str = "corrected"
    outliers: str | None = None
    epochs: int | None = None
    limit: int | None = None


IMAGES = ("mnist", "fashion_mnist", "svhn", "cifar10", "cifar100")
TEXTS = ("sst", "trec")
BAYESIAN = tuple(first + second for first in ("vb", "la") for second in ("", "+nc", "+sl", "+ml", "+oe"))
# the rows of the paper's tables
PAPER_ROWS = ("map", "de", "map+oe", *BAYESIAN)
TEXT_ROWS = ("map", "de", "map+oe", "la", "la+nc", "la+sl", "la+ml", "la+oe")
SOPHISTICATED = ("flipout", "flipout+nc", "csghmc", "csghmc+nc", "de", "de+nc")
CONVENTIONS = ("corrected", "published")


def cells(tasks: tuple[str, ...], methods: tuple[str, ...], outliers: str | None = None) -> tuple[Cell, ...]:
    """Both conventions of every method on every task."""
    return tuple(
        Cell(task, method, convention=convention, outliers=outliers)
        for task, method, convention in product(tasks, methods, CONVENTIONS)
    )


STUDIES: Mapping[str, tuple[Cell, ...]] = MappingProxyType(
    {
        "digits": tuple(Cell("digits", method) for method in PAPER_ROWS),
        "matrix": tuple(Cell("digits", method) for method in METHODS),
        "table1": cells(IMAGES, PAPER_ROWS),
        "table2": cells(IMAGES, PAPER_ROWS),
        "text": cells(TEXTS, TEXT_ROWS),
        "noise": cells(IMAGES, PAPER_ROWS, outliers="smooth"),
        "aux": cells(("cifar10", "cifar100"), SOPHISTICATED),
        "figure1": cells(("mnist", "svhn", "cifar10", "cifar100"), ("map+oe", "de", "vb", "la")),
    }
)


def select(
    study: str,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    convention: str | None = None,
    seeds: int = 1,
    epochs: int | None = None,
    limit: int | None = None,
) -> list[Cell]:
    """The cells of a study, or some of them, for several training seeds."""
    for task in tasks or ():
        choose(SETTINGS, task, "task")
    for method in methods or ():
        parse_method(method)
    if convention is not None:
        choose(dict.fromkeys(CONVENTIONS), convention, "convention")
    chosen = [
        replace(cell, seed=seed, epochs=epochs, limit=limit)
        for seed in range(seeds)
        for cell in choose(STUDIES, study, "study")
        if (not tasks or cell.task in tasks)
        and (not methods or cell.method in methods)
        and convention in (None, cell.convention)
    ]
    if not chosen:
        raise ValueError(f"study {study!r} has no cell of these tasks, methods and convention; see them with --dry-run")
    return chosen
