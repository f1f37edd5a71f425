"""One function that opens them all."""

import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demur.classifier.kinds import Images, MixedTables
from demur.classifier.readers.arrays import open_npz
from demur.classifier.readers.base import Asked, Check, Inputs, Mixed, Size
from demur.classifier.readers.images import open_images
from demur.classifier.readers.tables import open_parquet
from demur.classifier.readers.text_files import READERS, STDIN, open_stream
from demur.data.formats import IMAGES

if TYPE_CHECKING:
    from demur.classifier.predictor import Predictor

KNOWN = "give a folder of images, or a csv, parquet, jsonl, txt or npz file"


def open_inputs(
    path: Path,
    *,
    labelled: bool = False,
    label: str | None = None,
    columns: Sequence[str] = (),
    size: Size | None = None,
    channels: int | None = None,
    tolerant: bool = False,
    mixed: Mixed = False,
    check: Check | None = None,
) -> Inputs:
    """Open what lies at `path`.

    `labelled` asks for labels; a csv's are in the column `label`, by default one of LABELS. `columns` are those to take
    of a csv, in this order, by default all but the label's; an array's columns are called so too. `size` and
    `channels` are what images are brought to, by default the most frequent size, but at most LARGEST pixels wide and
    high, and RGB if any of them has colours. `tolerant` goes on after an input that cannot be read; labels cannot be
    asked for then. `mixed` says whether a table's cells may be other than numbers, or None to find out, and `check`
    what a model finds wrong with its rows.
    """
    kind, asked = path.suffix.lower(), Asked(path, labelled, label, columns, tolerant, mixed, check)
    if path == STDIN:
        inputs = open_stream(io.FileIO(sys.stdin.fileno(), closefd=False), asked)
    elif not path.exists():
        raise ValueError(f"{path} does not exist; {KNOWN}")
    elif label is not None and (path.is_dir() or kind in IMAGES or kind in (".npz", ".txt")):
        raise ValueError(f"label {label!r} names a column, and {path} has none; leave it out")
    elif path.is_dir() or kind in IMAGES:
        inputs = open_images(path, labelled, size, channels, tolerant)
    elif kind == ".npz":
        inputs = open_npz(asked, size, channels)
    elif kind == ".parquet":
        inputs = open_parquet(asked)
    elif kind in READERS:
        inputs = open_stream(io.FileIO(path), asked)
    else:
        raise ValueError(f"{path} is of no known kind; {KNOWN}")
    first = next(inputs.batches, None)
    if first is None:
        raise ValueError(f"{path} holds no inputs; give at least one")
    return replace(inputs, batches=itertools.chain([first], inputs.batches))


def drop_names(inputs: Inputs) -> Inputs:
    """Rows without the names of their columns, for a model that was fitted to such."""
    if inputs.kind != "tables":
        return inputs
    batches = (replace(batch, x=np.asarray(batch.x)) for batch in inputs.batches)
    return replace(inputs, batches=batches, columns=())


def open_for(
    classifier: "Predictor", path: Path, labelled: bool = False, label: str | None = None, tolerant: bool = False
) -> Inputs:
    """Inputs as the model was fitted to: its columns, its size of images."""
    if isinstance(classifier.preprocessing_, Images) and path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".txt"):
        raise ValueError(f"{path} holds no images, and the model is for images; give it what it was fitted to")
    given = open_inputs(path, labelled=labelled, label=label, tolerant=tolerant, **wanted_by(classifier))
    return check_kind(classifier, given, path)


def wanted_by(classifier: "Predictor") -> dict[str, Any]:
    """What a model asks of its inputs, as `open_inputs` takes it."""
    fitted = classifier.preprocessing_
    channels, *size = fitted.shape if isinstance(fitted, Images) else (None,)
    return {
        "columns": tuple(getattr(classifier, "feature_names_in_", ())),
        "channels": channels,
        "size": (size[0], size[1]) if size else None,
        "mixed": isinstance(fitted, MixedTables),
        "check": fitted.find_errors if isinstance(fitted, MixedTables) else None,
    }


def check_kind(classifier: "Predictor", given: Inputs, path: Path) -> Inputs:
    """Refuse inputs of another kind than the model's; rows lose their columns' names where it was fitted without."""
    kind = classifier.preprocessing_.kind
    if given.kind != kind:
        raise ValueError(f"{path} holds {given.kind}, the model is for {kind}; give it what it was fitted to")
    return given if hasattr(classifier, "feature_names_in_") else drop_names(given)
