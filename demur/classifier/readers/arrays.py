"""Arrays: an npz file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from demur.classifier.readers.base import BATCH, Asked, Batch, Inputs, Kind, Size, X, join_names, wrong_rows
from demur.classifier.readers.images import check_memory
from demur.classifier.readers.tables import wrong_cells
from demur.data.decode import Shape
from demur.data.formats import read_npz
from demur.tasks.images import fit_images


def open_npz(asked: Asked, size: Size | None, channels: int | None) -> Inputs:
    path, labelled, columns = asked.path, asked.labelled, asked.columns
    parts = list(read_npz(path))
    if len(parts) > 1:
        raise ValueError(f"{path} holds {len(parts)} sets of inputs; save the one that you mean as x and y")
    x, labels = parts[0].images, parts[0].labels
    assert isinstance(x, np.ndarray)
    y = array_labels(path, labels, len(x)) if labelled else None
    kind: Kind
    shape: Shape | None = None
    wrong: dict[int, str] = {}
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))) and x.size:
        kind, own = "images", 1 if x.ndim == 3 else x.shape[3]
        pixels = torch.from_numpy(np.ascontiguousarray(x.reshape(*x.shape[:3], own).transpose(0, 3, 1, 2)))
        shape = (channels or own, *(size or x.shape[1:3]))
        if labelled:
            check_memory(len(x), shape)
        x = fit_images(pixels, torch.Size(shape)).numpy()
    elif x.dtype.kind in "fiub" and x.ndim == 2:
        kind, x = "tables", x.astype(np.float64)
        names = columns or [str(column + 1) for column in range(x.shape[1])]
        if len(names) != x.shape[1]:
            raise ValueError(
                f"{path} has x of {x.shape[1]} columns, not the {len(names)} {join_names(names)}; give these"
            )
        numbers = [str(row + 1) for row in range(len(x))]
        if asked.mixed:
            wrong = wrong_cells(pa.table(list(x.T), names=list(names)), path, numbers, asked.check, asked.tolerant)
        else:
            wrong = wrong_rows(x, path, numbers, names, asked.tolerant, gaps=asked.mixed is None)
    elif x.dtype.kind == "U" and x.ndim == 1:
        kind = "texts"
    else:
        raise ValueError(
            f"{path} has x of {x.dtype} {x.shape}; give uint8 (N, H, W) or (N, H, W, 3) images, "
            "numbers (N, columns) or texts (N,)"
        )

    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH):
            rows = range(*slice(start, start + BATCH).indices(len(x)))
            right = [row for row in rows if row not in wrong]
            part: X = x[right].tolist() if kind == "texts" else x[right]
            if kind == "tables" and columns:
                part = pa.table(list(x[right].T), names=list(columns))
            bad = {row - start: wrong[row] for row in rows if row in wrong}
            yield Batch([str(row + 1) for row in rows], part, y[start : start + BATCH] if y else None, bad)

    mixed = bool(asked.mixed) or (kind == "tables" and bool(np.isnan(x).any()))
    return Inputs(kind, batches(), shape=shape, mixed=mixed)


def array_labels(path: Path, labels: np.ndarray | None, count: int) -> list[str]:
    if labels is None:
        raise ValueError(f"{path} has no labels; save them beside x as y")
    if labels.size != count or labels.dtype.kind not in "iuU":
        raise ValueError(
            f"{path} has labels of {labels.dtype} {labels.shape} for {count} inputs; give a whole number or a name each"
        )
    return [str(label) for label in labels.reshape(-1).tolist()]
