"""One function that opens them all."""

import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demur.classifier.readers.arrays import open_npz
from demur.classifier.readers.base import Asked, Check, Inputs, Mixed, Size
from demur.classifier.readers.images import open_images
from demur.classifier.readers.tables import open_parquet
from demur.classifier.readers.text_files import READERS, STDIN, open_stream
from demur.data.formats import IMAGES

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
