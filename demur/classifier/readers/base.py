"""What every reader gives."""

import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from demur.data.decode import Shape

Size = tuple[int, int]  # height, width
Kind = Literal["tables", "images", "texts"]
X: TypeAlias = np.ndarray | pa.Table | list[str]  # a table is rows whose columns have names
LABELS = ("label", "class", "target", "y")
BATCH = 1024  # inputs; a csv's batches are a MiB of the file


@dataclass(frozen=True)
class Batch:
    """Some inputs, what to call each (its file, or its number from 1), and the labels where they were asked for.

    `wrong` says by their places in `names` which could not be read, and why; `x` has the others.
    """

    names: list[str]
    x: X
    y: list[str] | None = None
    wrong: Mapping[int, str] = field(default_factory=dict)


Mixed = bool | None
Check = Callable[[pa.Table], Mapping[int, str]]  # by row, what a model finds wrong with it: a phrase


@dataclass(frozen=True)
class Asked:
    """Where inputs come from, and what is wanted of them; see `open_inputs`."""

    path: Path
    labelled: bool
    label: str | None
    columns: Sequence[str]
    tolerant: bool
    mixed: Mixed
    check: Check | None


@dataclass(frozen=True)
class Inputs:
    """What lies at a path, opened; `batches` can be run through once."""

    kind: Kind
    batches: Iterator[Batch]
    columns: tuple[str, ...] = ()  # of rows, where they have names
    shape: Shape | None = None  # what images are brought to
    mixed: bool = False  # of rows: whether there is more in them than numbers

    def gather(self) -> Batch:
        """All of them, in memory."""
        batches = list(self.batches)
        names = [name for batch in batches for name in batch.names]
        y = None if batches[0].y is None else [label for batch in batches for label in batch.y or ()]
        if self.kind == "texts":
            return Batch(names, [text for batch in batches for text in batch.x], y)
        join = pa.concat_tables if isinstance(batches[0].x, pa.Table) else np.concatenate
        return Batch(names, join([batch.x for batch in batches]), y)


def join_names(names: Collection[str], most: int = 12) -> str:
    return ", ".join(itertools.islice(names, most)) + (f" and {len(names) - most} more" if len(names) > most else "")


def wrong_rows(
    x: np.ndarray, path: Path, names: Sequence[str], columns: Sequence[str], tolerant: bool, gaps: bool = False
) -> dict[int, str]:
    """The places of rows with a cell that is no finite number; refused, unless `tolerant`. There may be `gaps`: NaN."""
    wrong: dict[int, str] = {}
    bad = np.isinf(x) if gaps else ~np.isfinite(x)
    for row in np.flatnonzero(bad.any(1)).tolist():
        column = columns[int(bad[row].argmax())]
        wrong[row] = (
            f"{path} has an empty, NaN or infinite cell in row {names[row]}, column {column!r}; "
            "fill it in, or remove the row"
        )
        if not tolerant:
            raise ValueError(wrong[row])
    return wrong


def label_column(header: Sequence[str], path: Path, label: str | None, features: Sequence[str]) -> str:
    """The label's; without `features`, all other columns are to be features, and another label may be among these."""
    candidates = [name for name in ((label,) if label else LABELS) if name in header and name not in features]
    if len(candidates) > 1 and not features:
        others = " and ".join(map(repr, candidates[1:]))
        warnings.warn(
            f"{path} has its labels in column {candidates[0]!r}, and {others} will be a feature; if it is a label too, "
            "take it out, or the model will learn to read it off; --label names another",
            stacklevel=4,
        )
    if not candidates:
        wanted = repr(label) if label else " or ".join(LABELS)
        raise ValueError(
            f"{path} has no column {wanted}; name the label's with --label; there are {join_names(header)}"
        )
    return candidates[0]


def feature_columns(header: Sequence[str], path: Path, columns: Sequence[str], label: str | None) -> list[str]:
    """These columns, else all but the label's; refused where one is not there, or twice."""
    features = list(columns) or [name for name in header if name != label]
    twice = next((name for name in [*features, label] if header.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path} has more than one column {twice!r}; rename all but one")
    missing = [name for name in features if name not in header]
    if missing or not features:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing)) or 'but the label'}; its columns are "
            f"{join_names(header)}; rename them, or give another file"
        )
    return features


def check_labels(y: Sequence[str] | None, path: Path, names: Sequence[str]) -> None:
    if y is not None and "" in y:
        raise ValueError(f"{path} has no label in row {names[y.index('')]}; fill it in, or remove the row")


def decoded(text: str | bytes) -> str | None:
    """None where it is not UTF-8."""
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return None
