"""All that fitting may see, as plain data: tensors, and the lengths and rates of training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor


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
    """What every source of training outliers has. Any class with these three is one."""

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
class TrainingData:
    """All that fitting may see: inputs to fit and to tune with, outliers, and how in- and outliers are augmented.

    What a method does not look at may be left out: outliers where the likelihood has none, validation data where
    nothing is tuned.
    """

    train: Split
    validation: Split | None = None
    outliers: OutlierSource | None = None  # a tensor is taken as the same outliers in every epoch
    augment: Augment | None = None

    def __post_init__(self) -> None:
        if isinstance(self.outliers, Tensor):
            object.__setattr__(self, "outliers", Fixed(self.outliers))
        check_split("the training data", self.train)
        if self.validation is not None:
            check_split("the validation data", self.validation)
            check_shape("the validation data", self.validation.x.shape, self.train.x.shape)
        if self.outliers is not None:
            check_shape("the outliers", self.outliers.shape, self.train.x.shape)

    @property
    def device(self) -> torch.device:
        return self.train.x.device

    @property
    def held_out(self) -> Split:
        """The validation data, for whoever cannot do without."""
        if self.validation is None:
            raise ValueError("there is no validation data to tune with; give TrainingData some as validation")
        return self.validation

    @property
    def shown(self) -> OutlierSource:
        """The outliers, for whoever cannot do without."""
        if self.outliers is None:
            raise ValueError("the likelihood trains with outliers, and there are none; give TrainingData some")
        return self.outliers

    def to(self, device: torch.device | str) -> "TrainingData":
        return TrainingData(
            self.train.to(device),
            None if self.validation is None else self.validation.to(device),
            None if self.outliers is None else self.outliers.to(device),
            self.augment,
        )


def check_split(what: str, split: Split) -> None:
    """Refuse what cannot be learned from: empty, NaN, inputs without labels."""
    if len(split) == 0:
        raise ValueError(f"{what} is empty; it needs at least one input")
    if len(split.y) != len(split.x):
        raise ValueError(f"{what} has {len(split.x)} inputs and {len(split.y)} labels; give one label an input")
    check_finite(what, split.x)


def check_labels(what: str, y: Tensor, num_classes: int) -> None:
    if y.min() < 0 or y.max() >= num_classes:
        wrong = int(y[(y < 0) | (y >= num_classes)][0])
        raise ValueError(f"{what} has label {wrong}; {num_classes} classes are numbered 0 to {num_classes - 1}")


def check_shape(what: str, shape: torch.Size, training: torch.Size) -> None:
    if shape[0] == 0:
        raise ValueError(f"{what} is empty; it needs at least one input")
    if shape[1:] != training[1:]:
        raise ValueError(
            f"{what} has inputs of shape {tuple(shape[1:])}, the training data {tuple(training[1:])}; "
            "bring them to one shape"
        )


def check_finite(what: str, x: Tensor) -> None:
    if x.is_floating_point() and not x.isfinite().all():
        row = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise ValueError(f"{what} has a NaN or infinite value in input {row}; remove or impute it")


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. One epoch is one pass over the inliers, with as many outliers."""

    epochs: int = 100
    batch_size: int = 128
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 5e-4  # coupled L2; prior precision / N
    cosine: Literal["step", "epoch"] = "step"  # how often the learning rate moves on its way to 0
    # of the gradient; idle but for a Dirichlet inside, whose information is 100 times larger
    clip_norm: float | None = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or isinstance(value, bool):
                raise ValueError(f"{name} {value!r} is no number; give one")
            if name != "lr" and value > 0 and not isinstance(value, int | np.integer):
                raise ValueError(f"{name} {value} is not a whole number; give one, such as 10")
            if not value > 0:
                raise ValueError(f"{name} {value} is not positive; nothing would be learned")


@dataclass(frozen=True)
class WatchedRecipe(Recipe):
    """For a problem of one's own, where a study's cells are not to be told apart by it.

    With `patience`, MAP networks stop after so many epochs without a better likelihood of the validation data, and keep
    the best weights. A trunk (`.features`) that is trained already learns at the fraction `trunk_rate` of the rate, and
    is not drawn to zero. The rate rises from 0 within the fraction `warmup` of training.
    """

    patience: int | None = None
    trunk_rate: float = 1.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = isinstance(self.patience, int | np.integer) and not isinstance(self.patience, bool)
        if self.patience is not None and not (counts and self.patience >= 1):
            raise ValueError(f"patience {self.patience!r} is no number of epochs; give at least 1, or None")
