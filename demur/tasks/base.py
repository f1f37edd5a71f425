"""What is learned, as plain data: tensors, names, and the lengths and rates of training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

import torch
from torch import Tensor


def as_input(x: Tensor) -> Tensor:
    """What a network is fed: uint8 pictures become floats in [0, 1], floats float32; token numbers pass."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x


def own_input(x: Tensor) -> Tensor:
    """As `as_input`, in memory of its own: a network may begin in place, and the data must stay what it is."""
    made = as_input(x)
    return made.clone() if made is x else made


@dataclass(frozen=True)
class Split:
    """Inputs (N, ...) and their class indices (N,)."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.y.is_floating_point() or self.y.is_complex():
            raise ValueError(f"labels are {self.y.dtype}; give whole numbers, the classes' indices")
        if self.y.dim() != 1:
            raise ValueError(f"labels have shape {tuple(self.y.shape)}; give one class index an input, of shape (N,)")
        object.__setattr__(self, "y", self.y.long())

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Split({len(self)} inputs of shape {tuple(self.x.shape[1:])}, {self.x.dtype})"

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.x.to(device), self.y.to(device))


class OutlierSource(Protocol):
    """Outliers to train with."""

    @property
    def shape(self) -> torch.Size:
        """(M, ...): the shape of an epoch's outliers."""
        ...

    def epoch(self, generator: torch.Generator) -> Tensor:
        """The outliers of one epoch, (M, ...): the same every time, or made anew."""
        ...

    def to(self, device: torch.device | str) -> Self: ...


@dataclass(frozen=True)
class Fixed:
    """The same outliers in every epoch."""

    x: Tensor

    def __repr__(self) -> str:
        return f"Fixed({len(self.x)} inputs of shape {tuple(self.x.shape[1:])}, {self.x.dtype})"

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        return self.x

    def to(self, device: torch.device | str) -> "Fixed":
        return Fixed(self.x.to(device))


Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Task:
    """A classification problem: data to fit, to tune and to test with, and inputs that belong to no class.

    `trained_with` names the outliers. `augment` acts on the batches of training, in- and outliers alike. `missing` has
    the OOD test sets that were to be had nowhere, and `notes` what stands in for what, so that tables can say so.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    outliers: OutlierSource  # a tensor is taken as the same outliers in every epoch
    ood_test: Mapping[str, Tensor]
    trained_with: str = "outliers"
    augment: Augment | None = None
    missing: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.outliers, Tensor):
            object.__setattr__(self, "outliers", Fixed(self.outliers))
        for name, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            check_split(f"{self.name}'s {name} data", split, len(self.classes))
        sizes = {"outliers": self.outliers.shape, "validation": self.validation.x.shape, "test": self.test.x.shape}
        for name, (length, *shape) in {**sizes, **{name: x.shape for name, x in self.ood_test.items()}}.items():
            if length == 0:
                raise ValueError(f"{self.name}: {name} is empty; it needs at least one input")
            if shape != list(self.train.x.shape[1:]):
                raise ValueError(
                    f"{self.name}: {name} has inputs of shape {tuple(shape)}, "
                    f"the training data {tuple(self.train.x.shape[1:])}; bring them to one shape"
                )
        for name, x in self.ood_test.items():
            check_finite(f"{self.name}'s {name}", x)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device | str) -> "Task":
        return replace(
            self,
            train=self.train.to(device),
            validation=self.validation.to(device),
            test=self.test.to(device),
            outliers=self.outliers.to(device),
            ood_test={name: x.to(device) for name, x in self.ood_test.items()},
        )


def check_split(what: str, split: Split, num_classes: int) -> None:
    """Refuse what cannot be learned from: empty, NaN, labels that are no class."""
    if len(split) == 0:
        raise ValueError(f"{what} is empty; it needs at least one input")
    if len(split.y) != len(split.x):
        raise ValueError(f"{what} has {len(split.x)} inputs and {len(split.y)} labels; give one label an input")
    check_finite(what, split.x)
    if split.y.min() < 0 or split.y.max() >= num_classes:
        wrong = int(split.y[(split.y < 0) | (split.y >= num_classes)][0])
        raise ValueError(f"{what} has label {wrong}; {num_classes} classes are numbered 0 to {num_classes - 1}")


def check_finite(what: str, x: Tensor) -> None:
    if x.is_floating_point() and not x.isfinite().all():
        row = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise ValueError(f"{what} has a NaN or infinite value in input {row}; remove or impute it")


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. One epoch is one pass over the inliers, with as many outliers beside them."""

    epochs: int = 100
    batch_size: int = 128
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 5e-4  # coupled L2; prior precision / N
    cosine: Literal["step", "epoch"] = "step"  # how often the learning rate moves on its way to 0
    clip_norm: float | None = (
        10.0  # of the gradient; idle but for a Dirichlet inside, whose information is 100 times larger
    )
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} is not positive; nothing would be learned")
