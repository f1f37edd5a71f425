"""Files that a user already has, brought to the store's layout."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from demur.data.catalogue import CATALOGUE, allowed_labels
from demur.data.decode import MODES, image_shape
from demur.data.formats import Part, find_reader, to_png
from demur.data.store import Store, check_names, class_names, image_column, open_parquet, with_class_names

SHARD_ROWS = 50_000


def add(store: Store, name: str, path: Path, split: str | None = None, *, overwrite: bool = False) -> list[Path]:
    """Add a data set: the splits that the files name (only `split`, if given); where they name none, `split` or train.

    A set that the catalogue does not know is the user's own: its classes are numbered in alphabetical order. A split
    that is there already is replaced only with `overwrite`.
    """
    check_names(name, split or "train")
    written: dict[str, list[Path]] = {}
    for part in find_reader(path)(path):
        if split and part.split and part.split != split:
            continue
        target = part.split or split or "train"
        if target in written:
            raise ValueError(f"{path} holds more than one set of {target} data; give one of its files")
        check_part(name, part, path)
        labels, names = number_labels(store, name, target, part, path)
        if not overwrite and store.has(name, target):
            raise ValueError(
                f"{name} has {target} data already; add it under another name, or with overwrite (--overwrite)"
            )
        written[target] = store.write(name, target, to_tables(part, labels, names), path.name)
    if not written:
        raise ValueError(f"{path} has nothing for split {split!r}; leave the split out to add all that is there")
    return [file for files in written.values() for file in files]


def number_labels(
    store: Store, name: str, split: str, part: Part, path: Path
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Labels as numbers, and the names of the classes, which number as in the catalogue or the set's other splits."""
    if part.labels is None:
        return None, ()
    known = CATALOGUE.get(name)
    names = known.classes if known else names_in_store(store, name, split)
    labels = np.asarray(part.labels).reshape(-1)
    if labels.dtype.kind == "U":
        given = set(labels.tolist())
        if all(label.isdecimal() for label in given) and not given <= set(names):
            labels = labels.astype(np.int64)
        else:
            names = names or tuple(sorted(given))
            if not given <= set(names):
                unknown = min(given - set(names))
                raise ValueError(f"{path} has a class {unknown!r}; the classes of {name} are {', '.join(names)}")
            numbers = {label: number for number, label in enumerate(names, known.first_label if known else 0)}
            labels = np.array([numbers[label] for label in labels.tolist()])
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path} has labels of type {labels.dtype}; give whole numbers or names")
    allowed = allowed_labels(known)
    wrong = labels[(labels < allowed.start) | (labels >= allowed.stop)]
    if len(wrong):
        raise ValueError(f"{path} has label {wrong[0]}; labels of {name} are {allowed.start} to {allowed.stop - 1}")
    return labels.astype(np.int64), names


def names_in_store(store: Store, name: str, split: str) -> tuple[str, ...]:
    """How the other splits of a user's own set number its classes."""
    files = [file for file in sorted((store.root / name).glob("*.parquet")) if not file.name.startswith(f"{split}-")]
    return class_names(open_parquet(files[0]).schema_arrow, "label") if files else ()


def check_part(name: str, part: Part, path: Path) -> None:
    """Refuse what could not be read back."""
    known = CATALOGUE.get(name)
    kind = "images" if part.texts is None else "text"
    if known and known.kind != kind:
        raise ValueError(f"{path} holds {kind}, {name} is a set of {known.kind}; add it under another name")
    if len(part) == 0 or (part.labels is not None and len(part.labels) != len(part)):
        labels = "no" if part.labels is None else len(part.labels)
        raise ValueError(f"{path} has {len(part)} inputs and {labels} labels; give at least one, and a label for each")
    if part.images is None:
        return
    if isinstance(part.images, np.ndarray):
        shape = part.images.shape
        if part.images.dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] in MODES)):
            kind = f"{part.images.dtype} {shape}"
            raise ValueError(f"{path} has images that are {kind}; give uint8 (N, H, W) or (N, H, W, 3)")
        channels, height, width = (1, *shape[1:]) if len(shape) == 3 else (shape[3], *shape[1:3])
    else:
        channels, height, width = image_shape(part.images[0])
    if known and known.shape and (channels > known.shape[0] or (height, width) != known.shape[1:]):
        shape = (channels, height, width)
        raise ValueError(f"{path} has images of shape {shape}, {name} of {known.shape}; convert them first")


def to_tables(part: Part, labels: np.ndarray | None, names: tuple[str, ...]) -> Iterator[pa.Table]:
    for start in range(0, len(part), SHARD_ROWS):
        rows = slice(start, start + SHARD_ROWS)
        columns = {}
        if part.images is not None:
            pixels = isinstance(part.images, np.ndarray)
            columns["image"] = image_column(map(to_png, part.images[rows]) if pixels else part.images[rows])
        if part.texts is not None:
            columns["text"] = pa.array(part.texts[rows], pa.string())
        if labels is not None:
            columns["label"] = pa.array(labels[rows])
        yield with_class_names(pa.table(columns), names)
