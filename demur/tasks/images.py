"""The paper's sets of images: `mnist`, `fashion_mnist`, `svhn`, `cifar10` and `cifar100`, all from one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from demur.data.catalogue import CATALOGUE
from demur.data.store import Store
from demur.names import choose
from demur.outliers.noise import far_away, smooth, uniform
from demur.outliers.overlap import overlapping_classes, read_class_names, read_known_overlap
from demur.outliers.synthetic import SYNTHETIC
from demur.outliers.values import build, parse, sets_of
from demur.streams import generator_for
from demur.tasks.augment import Jitter, random_crops
from demur.tasks.base import Task, TestData, check_labelled, check_limit, shuffled_order
from demur.tasks.filters import grey
from demur.training_data import Augment, Fixed, OutlierSource, Split, TrainingData

OOD_COUNT = 10_000
VALIDATION_COUNT = 2_000
PADDING = 2  # around larger outliers before they are cropped
CHUNK = 4096


@dataclass(frozen=True)
class Companions:
    """What goes with a set of images: OOD sets to test with (noise goes with all), and how to vary images."""

    ood: tuple[str, ...]
    augment: Augment


COMPANIONS: Mapping[str, Companions] = MappingProxyType(
    {
        "mnist": Companions(("fashion_mnist", "emnist_letters", "kmnist", "cifar10_gray"), Jitter(2)),
        "fashion_mnist": Companions(("mnist", "emnist_letters", "kmnist", "cifar10_gray"), Jitter(2)),
        "svhn": Companions(("cifar10", "lsun_classroom", "cifar100", "fashion_mnist_rgb"), Jitter(4, "edge")),
        "cifar10": Companions(
            ("svhn", "lsun_classroom", "cifar100", "fashion_mnist_rgb"), Jitter(4, "reflect", flip=True)
        ),
        "cifar100": Companions(
            ("svhn", "lsun_classroom", "cifar10", "fashion_mnist_rgb"), Jitter(4, "reflect", flip=True)
        ),
    }
)
DERIVED_FROM = {"cifar10_gray": "cifar10", "fashion_mnist_rgb": "fashion_mnist"}
NATURAL_IMAGES = "imagenet32"
STAND_INS = {"lsun_classroom": "places_classroom", NATURAL_IMAGES: "tiny_imagenet32"}
NOISE = ("smooth", "uniform")  # synthetic sets that are also tested with


def image_task(
    name: str,
    store: Store,
    *,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
    validation: Literal["train", "test"] = "train",
) -> Task:
    """A labelled set of the store as a task.

    `outliers` are `smooth`, `patches` and `halves` (made from the training images), `uniform`, any images of the
    store that have a split `train`, these made as sharp as the inliers, `a_spectrum_matched`, or a mix, `a+b`; by
    default imagenet32, or tiny_imagenet32 where the store has only that. `exclude_overlap` leaves out those of their
    classes that are also the task's. `limit` keeps that many training images. Validation images, 2,000 or a tenth,
    are held out of `train`, or of `test` as the paper's were.
    """
    check_limit(limit)
    companions = choose(COMPANIONS, name, "task")
    train, held_out, test = split_images(
        load_split(store, name, "train"), load_split(store, name, "test"), validation, limit
    )
    shape, classes = train.x.shape[1:], store.classes(name, "train")

    def from_store(part: str) -> OutlierSource:
        images = load_outlier_images(store, part)
        if exclude_overlap:
            images = images[~shows_class_of(store, part, name, classes)]
        return to_train_with(images, shape)

    outliers = outliers or natural_outliers(store)
    shown = build(parse(outliers), "images", train.x, store=from_store)
    origins = {ood: DERIVED_FROM.get(ood, ood) for ood in companions.ood}
    sources = {ood: find_set(store, origin, "test") for ood, origin in origins.items()}
    ood_test = {
        ood if origin == origins[ood] else origin: fit_images(draw_ood(store.images(origin, "test")[0]), shape)
        for ood, origin in sources.items()
        if origin is not None
    }
    used = {*ood_test, *sets_of(outliers)}
    return Task(
        name,
        classes,
        TrainingData(train, held_out, shown, companions.augment),
        TestData(test, ood_test | noise(draw_ood(test.x))),
        trained_with=outliers,
        missing=tuple(ood for ood, origin in sources.items() if origin is None),
        notes={other: f"stands in for {wanted}" for wanted, other in STAND_INS.items() if other in used},
    )


mnist = partial(image_task, "mnist")
fashion_mnist = partial(image_task, "fashion_mnist")
svhn = partial(image_task, "svhn")
cifar10 = partial(image_task, "cifar10")
cifar100 = partial(image_task, "cifar100")


def load_split(store: Store, name: str, split: str) -> Split:
    x, y = store.images(name, split)
    return Split(x, check_labelled(name, split, y))


def split_images(train: Split, test: Split, validation: str, limit: int | None) -> tuple[Split, Split, Split]:
    """Images to train with, shuffled; to validate with; and to test with, in the order of the file.

    The same images are left out of training whichever split is validated with, so that networks can be shared.
    """
    sets, orders = (
        {"train": train, "test": test},
        {"train": shuffled_order(len(train)), "test": shuffled_order(len(test))},
    )
    choose(sets, validation, "split to validate with")
    held_out = {name: order[: min(VALIDATION_COUNT, len(order) // 10)] for name, order in orders.items()}
    tested = orders["test"] if validation == "train" else orders["test"][len(held_out["test"]) :]
    return (
        take_rows(train, orders["train"][len(held_out["train"]) :][:limit]),
        take_rows(sets[validation], held_out[validation]),
        take_rows(test, tested.sort().values),
    )


def take_rows(split: Split, rows: Tensor) -> Split:
    return Split(split.x[rows], split.y[rows])


def draw_ood(x: Tensor) -> Tensor:
    """At most OOD_COUNT of the inputs, always the same."""
    return x[shuffled_order(len(x))[:OOD_COUNT]]


def find_set(store: Store, name: str, split: str) -> str | None:
    """The set, or the one that stands in for it; None where the store has neither."""
    return next((each for each in (name, STAND_INS.get(name)) if each and store.has(each, split)), None)


def natural_outliers(store: Store) -> str:
    """The outliers to train with where none are named."""
    return find_set(store, NATURAL_IMAGES, "train") or NATURAL_IMAGES


def noise(images: Tensor) -> dict[str, Tensor]:
    """The synthetic OOD sets, as many inputs each as there are images."""
    generator = generator_for("test noise")
    flat = uniform(len(images), tuple(images.shape[1:]), generator)
    return {"uniform": flat, "smooth": smooth(images, generator), "far_away": far_away(flat)}


def load_outlier_images(store: Store, name: str) -> Tensor:
    """Images to make training outliers of; a name that nothing is known by is an error that helps."""
    if not store.has(name, "train"):
        known = [other for other, data in CATALOGUE.items() if data.kind == "images" and "train" in data.splits]
        choose(dict.fromkeys([*SYNTHETIC["images"], *known]), name, "outliers")
    return store.images(name, "train")[0]


def shows_class_of(store: Store, outliers: str, task: str, classes: tuple[str, ...]) -> Tensor:
    """Which of the outliers are of a class of the task: (M,) of bool."""
    folder, labels = store.root / outliers, store.images(outliers, "train")[1]
    names = read_class_names(folder) or store.classes(outliers, "train")
    if labels is None or not names:
        raise ValueError(
            f"exclude_overlap cannot be had with outliers {outliers!r}: their classes have no names in {folder}; "
            f"add the set with named classes, or leave exclude_overlap out"
        )
    overlap = overlapping_classes(names, classes, read_known_overlap(folder, task))
    return torch.isin(labels, torch.tensor(overlap, dtype=labels.dtype))


@dataclass(frozen=True)
class CroppedOrResized:
    """Outliers from images larger than the task's: a coin each decides anew in every epoch which of the two it is.

    `padded` are the images at their own resolution, to be cropped anywhere; `resized` the same at the task's size.
    """

    padded: Tensor
    resized: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.resized.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        chunks = []
        for padded, resized in zip(self.padded.split(CHUNK), self.resized.split(CHUNK), strict=True):
            crops = random_crops(padded, resized.shape[2], resized.shape[3], generator)
            coin = torch.randint(2, (len(crops), 1, 1, 1), generator=generator, device=crops.device)
            chunks.append(torch.where(coin.bool(), crops, resized))
        return torch.cat(chunks)

    def to(self, device: torch.device | str) -> "CroppedOrResized":
        return CroppedOrResized(self.padded.to(device), self.resized.to(device))


def to_train_with(images: Tensor, shape: torch.Size) -> OutlierSource:
    # with resized images alone, which are smooth, a network does not come to know noise
    images = recolour(images, shape[0])
    small = resize_bilinear(images, shape[1], shape[2])
    larger = images.shape[2] > shape[1] and images.shape[3] > shape[2]
    return CroppedOrResized(F.pad(images, 4 * (PADDING,)), small) if larger else Fixed(small)


def fit_images(x: Tensor, shape: torch.Size) -> Tensor:
    """Images in the task's colours and at its size."""
    return resize_bilinear(recolour(x, shape[0]), shape[1], shape[2])


def recolour(x: Tensor, channels: int) -> Tensor:
    """Colour to grey by luma weights, or grey to three equal channels."""
    if x.shape[1] == channels:
        return x
    if channels == 1:
        return torch.cat([grey(chunk.float()).round().to(torch.uint8) for chunk in x.split(CHUNK)])
    return x.expand(-1, channels, -1, -1).contiguous()


def resize_bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, over the area that a new pixel covers where there come to be fewer: as Pillow does it."""
    if x.shape[2:] == (height, width):
        return x
    resize = partial(F.interpolate, size=(height, width), mode="bilinear", antialias=True)
    return torch.cat([resize(chunk.float()).round().to(torch.uint8) for chunk in x.split(CHUNK)])
