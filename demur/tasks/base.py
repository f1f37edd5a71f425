"""A task: what is learned, and what it is tested with, apart from each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from demur.streams import generator_for
from demur.training_data import Split, TrainingData, check_finite, check_labels, check_shape, check_split


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit} leaves nothing to train on; give at least 1, or None for all")


def check_labelled(name: str, split: str, y: Tensor | None) -> Tensor:
    """The labels of a data set's split, which must have some."""
    if y is None:
        raise ValueError(f"{name}'s split {split} has no labels; get or add {name} again, with a column `label`")
    return y


def shuffled_order(count: int) -> Tensor:
    """0 to count - 1 in an order that is always the same."""
    return torch.randperm(count, generator=generator_for("order"))


@dataclass(frozen=True)
class TestData:
    """All that evaluation may see: labelled inputs, and sets of inputs that belong to no class."""

    test: Split
    ood: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_split("the test data", self.test)
        for name, x in self.ood.items():
            check_shape(f"the OOD set {name}", x.shape, self.test.x.shape)
            check_finite(f"the OOD set {name}", x)

    def to(self, device: torch.device | str) -> "TestData":
        return TestData(self.test.to(device), {name: x.to(device) for name, x in self.ood.items()})


@dataclass(frozen=True)
class Task:
    """A classification problem: a name, data to fit with and data to test with.

    `trained_with` names the outliers. `missing` has the OOD test sets that were not found, and `notes` what stands in
    for what, so that tables can say so.
    """

    name: str
    classes: tuple[str, ...]
    training: TrainingData
    testing: TestData
    trained_with: str = "outliers"
    missing: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.classes, str | int):
            raise ValueError(f"classes {self.classes!r} of task {self.name!r} are no names; give a tuple of them")
        splits = {"train": self.training.train, "validation": self.training.validation, "test": self.testing.test}
        for name, split in splits.items():
            if split is not None:
                check_labels(f"{self.name}'s {name} data", split.y, len(self.classes))
        check_shape(f"{self.name}'s test data", self.testing.test.x.shape, self.training.train.x.shape)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device | str) -> "Task":
        return replace(self, training=self.training.to(device), testing=self.testing.to(device))
