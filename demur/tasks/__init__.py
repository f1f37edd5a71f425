"""What is learned, and what it is tested against."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from demur.data.store import Store as Store
from demur.names import choose
from demur.streams import generator_for
from demur.tasks.base import Task as Task
from demur.tasks.base import TestData, check_limit
from demur.tasks.embedded import blobs, digits
from demur.tasks.images import cifar10, cifar100, fashion_mnist, mnist, natural_outliers, svhn
from demur.tasks.text import OUTLIERS, sst, trec
from demur.training_data import Recipe as Recipe
from demur.training_data import Split as Split

EMBEDDED: Mapping[str, Callable[[], Task]] = MappingProxyType({"digits": digits, "blobs": blobs})
IMAGES: Mapping[str, Callable[..., Task]] = MappingProxyType(
    {"mnist": mnist, "fashion_mnist": fashion_mnist, "svhn": svhn, "cifar10": cifar10, "cifar100": cifar100}
)
TEXTS: Mapping[str, Callable[..., Task]] = MappingProxyType({"sst": sst, "trec": trec})
TASKS: Mapping[str, Callable[..., Task]] = MappingProxyType({**EMBEDDED, **IMAGES, **TEXTS})


def load(
    name: str,
    *,
    store: Store | None = None,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
    validation: Literal["train", "test"] = "train",
    inside: str = "normalised",
    outside: str = "normalised",
    tested: str | None = None,
    min_count: int = 2,
) -> Task:
    """The task of that name, on the CPU.

    `digits` and `blobs` bring their own data, the others are made from a store's. `outliers` names the ones to train
    with, `a+b` a mix in equal parts; None is the paper's choice. `limit` keeps that many training inputs, and of every
    other set at most a sixth as many, for a quick look. `exclude_overlap` leaves out outliers of the task's classes,
    `validation` says which split of images is tuned on, `inside`, `outside` and `tested` how words are read,
    `min_count` how often a word must occur in training to be known.
    """
    choose(TASKS, name, "task")
    check_limit(limit)
    if name not in IMAGES and (exclude_overlap or validation != "train"):
        raise ValueError(f"task {name!r} is not made of images; leave exclude_overlap and validation out")
    if name not in TEXTS and (inside, outside, tested, min_count) != ("normalised", "normalised", None, 2):
        raise ValueError(f"task {name!r} is not made of texts; leave inside, outside, tested and min_count out")
    if name in EMBEDDED:
        if outliers is not None:
            raise ValueError(f"task {name!r} brings its own outliers, not {outliers!r}; leave outliers out")
        return shorten(EMBEDDED[name](), limit)
    if store is None:
        raise ValueError(f"task {name!r} is made from data sets; give the folder that holds them: store=Store(folder)")
    if name in TEXTS:
        named = outliers or OUTLIERS[0]
        words = {"inside": inside, "outside": outside, "tested": tested}
        return shorten(TEXTS[name](store, outliers=named, limit=limit, min_count=min_count, **words), limit)
    task = IMAGES[name](store, outliers=outliers, limit=limit, exclude_overlap=exclude_overlap, validation=validation)
    return shorten(task, limit)


def default_outliers(name: str, store: Store) -> str | None:
    """What a task is trained with where no outliers are named; None where it brings its own."""
    if name in EMBEDDED:
        return None
    return OUTLIERS[0] if name in TEXTS else natural_outliers(store)


def shorten(task: Task, limit: int | None) -> Task:
    """At most `limit` training inputs, and a sixth as many of every other set, always the same ones."""
    if limit is None:
        return task

    def rows(x: Tensor) -> Tensor:
        order = torch.randperm(len(x), generator=generator_for("shortened"))
        return order[: max(1, limit // 6)].sort().values

    def shorten_split(split: Split) -> Split:
        chosen = rows(split.x)
        return Split(split.x[chosen], split.y[chosen])

    training, testing = task.training, task.testing
    return replace(
        task,
        training=replace(
            training,
            train=Split(training.train.x[:limit], training.train.y[:limit]),
            validation=None if training.validation is None else shorten_split(training.validation),
        ),
        testing=TestData(shorten_split(testing.test), {name: x[rows(x)] for name, x in testing.ood.items()}),
    )
