"""What people have, as the tensors that networks take: tables, images, texts, or arrays that are ready as they are.

Each kind is a frozen dataclass of numbers and strings alone, so that a model file can hold it. It is learned from the
training data (`of`); it makes tensors (N, ...) of later data, or refuses it, calling it `what` (`read`); and it has
defaults: the package's network of some name fitted to the data (`network`), a recipe for that many inputs (`recipe`),
and the kind of synthetic outliers that goes with it (`synthetic_kind`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from demur.classifier.builders import builder
from demur.classifier.tables import (
    FARTHEST,
    Column,
    Number,
    codes_of,
    columns_from_json,
    encode_cells,
    features,
    frame_of,
    is_mixed,
    learn_columns,
)
from demur.classifier.tokens import LONGEST, Tokens, check_width
from demur.metrics import Array
from demur.names import choose, current
from demur.networks import Network, as_input
from demur.outliers.synthetic import Groups
from demur.tasks.text import Vocabulary, normalise
from demur.training_data import Recipe, check_finite


def as_tensor(X: Any, what: str) -> Tensor:
    """Numbers as a tensor on the CPU: uint8, int64 or float32."""
    if isinstance(X, Tensor):
        X = X.numpy(force=True)
    array = np.asarray(X)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{what} is of dtype {array.dtype}; give numbers")
    if array.dtype == np.uint8:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def steps_to_epochs(steps: int, count: int, batch_size: int, least: int, most: int) -> int:
    return min(max(math.ceil(steps * batch_size / count), least), most)


@dataclass(frozen=True)
class Tables:
    """Numbers in columns, standardised by the training data's means and deviations."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    kind: ClassVar[str] = "tables"
    synthetic_kind: ClassVar[str] = "tables"

    @classmethod
    def of(cls, x: Any) -> "Tables":
        x = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = x.mean(0), x.std(0)
        if not (usable := np.isfinite(mean) & np.isfinite(deviation)).all():
            column = int(np.argmin(usable))
            raise ValueError(
                f"X has values up to {np.abs(x[:, column]).max():g} in column {column} (counted from 0), too large to "
                "be standardised; divide the column, or take its logarithm"
            )
        # a column that does not vary, or only by rounding, has no scale
        constant = deviation <= 1e-12 * np.abs(x).max(0)
        return cls(tuple(mean.tolist()), tuple(np.where(constant, 1.0, deviation).tolist()))

    def read(self, X: Any, what: str = "X") -> Tensor:
        array = np.asarray(X, dtype=np.float64)
        with np.errstate(over="ignore"):
            standard = (array - np.array(self.mean)) / np.array(self.scale)
        return torch.from_numpy(standard.clip(-FARTHEST, FARTHEST).astype(np.float32))

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Number(mean, scale, mean, False) for mean, scale in zip(self.mean, self.scale, strict=True))

    def network(self, name: str | None) -> Network:
        return builder(name or "mlp", self.kind, (len(self.mean),))

    def recipe(self, count: int) -> Recipe:
        return recipe_for_tables(count)


def recipe_for_tables(count: int) -> Recipe:
    batch_size = min(128, max(16, count // 8))
    return Recipe(epochs=steps_to_epochs(2000, count, batch_size, 10, 200), batch_size=batch_size)


@dataclass(frozen=True)
class MixedTables:
    """Tables with more in them than numbers: categories, dates, gaps."""

    columns: tuple[Column, ...]
    kind: ClassVar[str] = "tables"
    synthetic_kind: ClassVar[str] = "tables"

    @classmethod
    def of(cls, x: Any) -> "MixedTables":
        return cls(learn_columns(frame_of(x)))

    @property
    def groups(self) -> Groups:
        return tuple(column.group for column in self.columns)

    def codes(self, X: Any, what: str = "X") -> Array:
        """A number for every cell, (N, columns), which is what an exported graph takes."""
        return codes_of(self.columns, frame_of(X), what)

    def find_errors(self, X: Any) -> dict[int, str]:
        """By their places, what is wrong with rows that cannot be read."""
        return encode_cells(self.columns, frame_of(X))[1]

    def read(self, X: Any, what: str = "X") -> Tensor:
        return features(self.columns, torch.from_numpy(self.codes(X, what)))

    def network(self, name: str | None) -> Network:
        return builder(name or "mlp", self.kind, (sum(group.width for group in self.groups),))

    def recipe(self, count: int) -> Recipe:
        return recipe_for_tables(count)


@dataclass(frozen=True)
class Images:
    """Grey values: whole numbers 0 to 255 (uint8), or floats from 0 to 1."""

    shape: tuple[int, ...]  # channels, height, width
    whole: bool  # whether training images are uint8
    resizes: bool = False  # whether others are brought to this shape, or refused
    kind: ClassVar[str] = "images"
    synthetic_kind: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or not all(0 < side < 2**16 for side in self.shape):
            raise ValueError(f"shape {self.shape} is not that of an image; it has channels, height and width")

    @classmethod
    def of(cls, x: Any) -> "Images":
        images = grey_values(x, "X")
        return cls(tuple(images.shape[1:]), images.dtype == torch.uint8)

    def read(self, X: Any, what: str = "X") -> Tensor:
        images = grey_values(X, what)
        if self.resizes:
            images = resize(images, self.shape)
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(
                f"{what} has images of shape {tuple(images.shape[1:])}, the training images had {self.shape} "
                "(channels, height, width); bring them to that"
            )
        if self.whole == (images.dtype == torch.uint8):
            return images
        return (255 * images).round().to(torch.uint8) if self.whole else as_input(images)

    def network(self, name: str | None) -> Network:
        _, height, width = self.shape
        fits = height == width and 12 <= height <= 40
        return builder(name or ("lenet" if fits else "convnet"), self.kind, self.shape)

    def recipe(self, count: int) -> Recipe:
        return Recipe(epochs=steps_to_epochs(600, count, 128, 8, 100))


def grey_values(X: Any, what: str) -> Tensor:
    """(N, C, H, W) or (N, H, W) to (N, C, H, W), uint8 or float32 in [0, 1]."""
    x = as_tensor(X, what)
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() != 4:
        raise ValueError(f"{what} has shape {tuple(x.shape)}; images are (N, C, H, W), or (N, H, W) if grey")
    if x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise ValueError(
            f"{what} has shape {tuple(x.shape)}, channels last; images are (N, C, H, W): X.transpose(0, 3, 1, 2)"
        )
    if x.dtype == torch.uint8:
        return x
    check_finite(what, x)
    if x.numel() and (x.min() < 0 or x.max() > (1 if x.is_floating_point() else 255)):
        raise ValueError(
            f"{what} has values from {x.min().item():g} to {x.max().item():g}; images are whole numbers from 0 to "
            "255 or floats from 0 to 1"
        )
    return x.float() if x.is_floating_point() else x.to(torch.uint8)


def resize(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images as RGB of that size, uint8."""
    channels, *size = shape
    if images.shape[1] not in (1, channels):
        raise ValueError(f"images of {images.shape[1]} channels are not RGB; give {channels}, or 1 for grey ones")
    whole = images if images.dtype == torch.uint8 else (255 * images).round().to(torch.uint8)
    if list(images.shape[2:]) != size:
        whole = torch.cat([F.interpolate(part, size, mode="bilinear", antialias=True) for part in whole.split(64)])
    return whole.expand(-1, channels, -1, -1)


@dataclass(frozen=True)
class Texts:
    """Sentences as the numbers of their words, by the training data's vocabulary."""

    words: tuple[str, ...]
    width: int  # words of a text; longer ones lose their ends
    kind: ClassVar[str] = "texts"
    synthetic_kind: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        check_width(self.width, "words")

    @classmethod
    def of(cls, x: Any) -> "Texts":
        sentences = [normalise(text) for text in strings(x, "X")]
        return cls(Vocabulary.of(sentences).words, min(LONGEST, max(1, *map(len, sentences))))

    def read(self, X: Any, what: str = "X") -> Tensor:
        return Vocabulary(self.words).encode(map(normalise, strings(X, what)), self.width)

    def network(self, name: str | None) -> Network:
        return builder(name or "gru", self.kind, (len(self.words),))

    def recipe(self, count: int) -> Recipe:
        return Recipe(epochs=steps_to_epochs(800, count, 64, 5, 50), batch_size=64, lr=0.01, cosine="epoch")


def strings(X: Any, what: str) -> list[str]:
    """X as a list of strings, or an error that says where it is something else."""
    if isinstance(X, str):
        raise ValueError(f"{what} is one string; give a list of strings")
    texts = list(X)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{what} has a {type(text).__name__} in row {row}; give a list of strings")
    return texts


@dataclass(frozen=True)
class Ready:
    """Arrays as the network takes them, token numbers included; only their shape is checked."""

    shape: tuple[int, ...]
    floating: bool
    kind: ClassVar[str] = "ready"

    @property
    def synthetic_kind(self) -> str:
        if not self.floating:
            return "texts"
        return "images" if len(self.shape) == 3 else "tables"

    @classmethod
    def of(cls, x: Any) -> "Ready":
        tensor = as_tensor(x, "X")
        return cls(tuple(tensor.shape[1:]), tensor.is_floating_point() or tensor.dtype == torch.uint8)

    def read(self, X: Any, what: str = "X") -> Tensor:
        x = as_tensor(X, what)
        floating = x.is_floating_point() or x.dtype == torch.uint8
        if tuple(x.shape[1:]) != self.shape or floating != self.floating:
            raise ValueError(
                f"{what} has inputs of shape {tuple(x.shape[1:])} and dtype {x.dtype}, the training data had "
                f"{self.shape}, {'floats' if self.floating else 'whole numbers'}; bring them to that"
            )
        check_finite(what, x)
        return as_input(x)

    def network(self, name: str | None) -> Network:
        raise ValueError(
            f"network {name!r} cannot be fitted to inputs that are ready; give a function of the head size"
        )

    def recipe(self, count: int) -> Recipe:
        return Recipe(epochs=steps_to_epochs(600, count, 64, 3, 50), batch_size=64)


Preprocessing = Tables | MixedTables | Images | Texts | Ready | Tokens
KINDS: Mapping[str, type[Tables] | type[Images] | type[Texts] | type[Ready]] = MappingProxyType(
    {"tables": Tables, "images": Images, "texts": Texts, "ready": Ready}
)


# what X must be before it is read; a table passes scikit-learn's own checks, see `table_of`
CHECKS: Mapping[str, Callable[[Any, str], Any]] = MappingProxyType(
    {"images": grey_values, "texts": strings, "ready": as_tensor}
)


def kind_of(X: Any) -> str:
    """Strings are texts, three or four dimensions are images, everything else is a table."""
    values = X if hasattr(X, "ndim") else np.asarray(X, dtype=object)
    if values.ndim == 1 and len(values) and all(isinstance(value, str) for value in values):
        return "texts"
    return "images" if values.ndim in (3, 4) else "tables"


def learn_preprocessing(x: Any, kind: str) -> Preprocessing:
    """What there is to learn from training data; a data frame is a table with more in it than numbers."""
    return MixedTables.of(x) if isinstance(x, pd.DataFrame) else choose(KINDS, kind, "kind of data").of(x)


def table_of(estimator: Any, X: Any, what: str, known: Preprocessing | None) -> np.ndarray | pd.DataFrame:
    """X after scikit-learn's own checks: rows of numbers, or a data frame where there is more in it; `known` is what
    was learned from training data, None where X is that."""
    names = getattr(estimator, "feature_names_in_", ())
    if isinstance(known, Tables) and are_plain(X, names, known):
        return np.asarray(X)
    if isinstance(X, Tensor):
        X = X.numpy(force=True)
    if isinstance(known, MixedTables) or is_mixed(X):
        frame = frame_of(X, names)
        if not (isinstance(known, MixedTables) and len(names) and list(frame.columns) == list(names)):
            frame = validate_data(estimator, frame, reset=known is None, skip_check_array=True)
        if not isinstance(known, Tables):
            return frame
        rows = codes_of(known.columns, frame, what)
    else:
        rows = validate_data(estimator, X, reset=known is None, dtype=np.float64, ensure_all_finite=False)
    check_finite(what, torch.from_numpy(np.array(rows)))
    return rows


def are_plain(X: Any, names: Sequence[str], known: Tables) -> bool:
    """Whether X is as readers give it: finite numbers in the columns that were fitted to, with their names or, where
    there were none, without. Then there is nothing to check, and scikit-learn need not be imported."""
    if isinstance(X, pa.Table):
        right = X.column_names == list(names) and all(kind == pa.float64() for kind in X.schema.types)
    else:
        right = not len(names) and type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2
    return right and len(X) > 0 and X.shape[1] == len(known.mean) and bool(np.isfinite(np.asarray(X)).all())


def validate_data(*given: Any, **settings: Any) -> Any:
    from sklearn.utils import validation  # here, since an answer mostly does without

    return validation.validate_data(*given, **settings)


# what a model file calls them
STORED: Mapping[str, type[Preprocessing]] = MappingProxyType({**KINDS, "tokens": Tokens})


def to_json(preprocessing: Preprocessing) -> dict[str, Any]:
    name = "tokens" if isinstance(preprocessing, Tokens) else preprocessing.kind
    return {"kind": name, **asdict(preprocessing)}


def from_json(saved: Mapping[str, Any]) -> Preprocessing:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    del values["kind"]
    if "columns" in values:
        return MixedTables(columns_from_json(values["columns"]))
    return choose(STORED, current(saved["kind"]), "kind of data")(**values)


def take_rows(inputs: Any, rows: Tensor) -> Any:
    if isinstance(inputs, pd.DataFrame):
        return inputs.iloc[rows.numpy()]
    return [inputs[row] for row in rows.tolist()] if isinstance(inputs, list) else inputs[rows.numpy()]
