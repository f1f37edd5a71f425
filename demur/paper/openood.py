"""OpenOOD's protocol (version 1.5) for 32-pixel images: its near and far OOD sets, network and recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from demur.methods import parse_method
from demur.names import choose
from demur.networks import resnet18_32
from demur.study.fits import Fit
from demur.study.grid import Cell, Setting, Study, fit_of
from demur.tasks import Store, Task, shorten
from demur.tasks.augment import Jitter
from demur.tasks.base import TestData, shuffled_order
from demur.tasks.images import fit_images, load_split, split_images, take_rows
from demur.training_data import Fixed, Recipe, TrainingData

OUTLIERS = "tin597"  # Tiny-ImageNet's relatives, the protocol's training outliers
METHODS = ("map", "map+oe", "map+nc", "la+nc")
SEEDS = 3
SETTING = Setting(resnet18_32, Recipe(epochs=100, batch_size=128, optimizer="sgd", lr=0.1, weight_decay=5e-4))


@dataclass(frozen=True)
class Benchmark:
    """Names of data sets in a store: what is learned, and what it is tested against."""

    inside: str
    near: tuple[str, ...]
    far: tuple[str, ...] = ("mnist", "svhn", "texture", "places365")


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "openood_cifar10": Benchmark("cifar10", ("cifar100", "tin")),
        "openood_cifar100": Benchmark("cifar100", ("cifar10", "tin")),
    }
)


@dataclass(frozen=True)
class OpenOODData:
    """A benchmark whose sets a store has; OOD sets that it lacks are named in the task."""

    name: str
    outliers: str | None = None
    limit: int | None = None

    @property
    def set_names(self) -> tuple[str, ...]:
        return (BENCHMARKS[self.name].inside, *([] if self.outliers is None else [self.outliers]))

    def for_parts(self) -> "OpenOODData":
        return self

    def load(self, store: Store) -> Task:
        benchmark = choose(BENCHMARKS, self.name, "benchmark")
        train, test = (load_split(store, benchmark.inside, split) for split in ("train", "test"))
        if store.has(benchmark.inside, "validation"):
            held_out = load_split(store, benchmark.inside, "validation")
            train = take_rows(train, shuffled_order(len(train)))
        else:
            train, held_out, test = split_images(train, test, "train", None)
        shape, every = train.x.shape[1:], (*benchmark.near, *benchmark.far)
        present = [name for name in every if store.has(name, "test")]
        for group, names in (("near", benchmark.near), ("far", benchmark.far)):
            if not set(names) & set(present):
                raise ValueError(
                    f"no {group}-OOD set of {self.name} is in {store.root}; add one of {', '.join(names)}, as "
                    f"demur data add {names[0]} benchmark_imglist/{benchmark.inside}/test_{names[0]}.txt"
                )
        shown = None if self.outliers is None else Fixed(fit_images(store.images(self.outliers, "train")[0], shape))
        classes = store.classes(benchmark.inside, "train") or tuple(map(str, range(int(train.y.max()) + 1)))
        task = Task(
            self.name,
            classes,
            TrainingData(train, held_out, shown, Jitter(4, "reflect", flip=True)),
            TestData(test, {name: fit_images(store.images(name, "test")[0], shape) for name in present}),
            trained_with=self.outliers or "none",
            missing=tuple(name for name in every if name not in present),
        )
        return shorten(task, self.limit)


def resolve(cell: Cell, store: Store) -> Fit:
    method = parse_method(cell.method)
    outliers = (cell.outliers or OUTLIERS) if method.uses_outliers else None
    return fit_of(cell, method, SETTING, OpenOODData(cell.task, outliers, cell.limit))


STUDY = Study(
    "openood",
    tuple(Cell(task, method, seed) for seed, task, method in product(range(SEEDS), BENCHMARKS, METHODS)),
    resolve,
)
