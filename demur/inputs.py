"""Inputs as people have them, read a batch at a time: pictures, rows of numbers, texts.

| given | taken for | label |
|---|---|---|
| a folder of pictures, or one picture | pictures, brought to one size and to grey or RGB | the folder below the given |
| .csv with a column `text` | texts | a column |
| any other .csv | rows of numbers, every column but the label's | a column |
| .jsonl of {"text": ..., "label": ...} | texts | `label` |
| .txt | a text a line | none |
| .npz with x and y | uint8 (N, H, W) or with channels: pictures; (N, D): rows; (N,) of str: texts | `y` |
| - | standard input, csv or jsonl | as there |

What cannot be read is refused in one sentence that names the file and the place in it; nothing is skipped or filled in.
"""

import csv
import io
import itertools
import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from PIL import Image, ImageOps

from demur.names import choose
from demur.streams import generator_for
from demur.tasks.catalogue import CATALOGUE
from demur.tasks.decode import Shape
from demur.tasks.formats import PICTURES, read_npz, reading, split_named
from demur.tasks.images import fitted, to_train_with
from demur.tasks.made import MADE
from demur.tasks.store import Store
from demur.tasks.text import levelled, pieces

Size = tuple[int, int]  # height, width
Kind = Literal["rows", "pictures", "texts"]
X: TypeAlias = np.ndarray | pa.Table | list[str]  # a table is rows whose columns have names
LABELS = ("label", "class", "target", "y")
STDIN = Path("-")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")  # those of PICTURES; Pillow's other parsers stay shut
GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
LARGEST = 64  # pixels of the longer side, where nobody states a size
BATCH = 1024  # inputs; a csv's batches are a MiB of the file
PIXELS = 2**24  # at most in a batch of pictures
OUTLIERS = 50_000  # at most, of a data set of the store
STORED = {"pictures": "images", "texts": "text"}  # what the catalogue calls them
KNOWN = "give a folder of pictures, or a csv, jsonl, txt or npz file"


@dataclass(frozen=True)
class Batch:
    """Some inputs, what to call each (its file, or its number from 1), and the labels where they were asked for."""

    names: list[str]
    x: X
    y: list[str] | None = None


@dataclass(frozen=True)
class Inputs:
    """What lies at a path, opened; `batches` can be run through once."""

    kind: Kind
    batches: Iterator[Batch]
    columns: tuple[str, ...] = ()  # of rows, where they have names
    shape: Shape | None = None  # what pictures are brought to

    def gathered(self) -> Batch:
        """All of them, in memory."""
        batches = list(self.batches)
        names = [name for batch in batches for name in batch.names]
        y = None if batches[0].y is None else [label for batch in batches for label in batch.y or ()]
        if self.kind == "texts":
            return Batch(names, [text for batch in batches for text in batch.x], y)
        join = pa.concat_tables if isinstance(batches[0].x, pa.Table) else np.concatenate
        return Batch(names, join([batch.x for batch in batches]), y)


def open_inputs(
    path: Path,
    *,
    labelled: bool = False,
    label: str | None = None,
    columns: Sequence[str] = (),
    size: Size | None = None,
    channels: int | None = None,
) -> Inputs:
    """Open what lies at `path`.

    `labelled` asks for labels; a csv's are in the column `label`, by default one of LABELS. `columns` are those to take
    of a csv, in this order, by default all but the label's; an array's columns are called so too. `size` and
    `channels` are what pictures are brought to, by default the most frequent size, but at most LARGEST pixels wide and
    high, and RGB if any of them has colours.
    """
    kind = path.suffix.lower()
    if path == STDIN:
        inputs = open_stream(io.FileIO(sys.stdin.fileno(), closefd=False), path, labelled, label, columns)
    elif not path.exists():
        raise ValueError(f"{path} does not exist; {KNOWN}")
    elif path.is_dir() or kind in PICTURES:
        inputs = open_pictures(path, labelled, size, channels)
    elif kind == ".npz":
        inputs = open_npz(path, labelled, columns, size, channels)
    elif kind in READERS:
        inputs = open_stream(io.FileIO(path), path, labelled, label, columns)
    else:
        raise ValueError(f"{path} is of no known kind; {KNOWN}")
    first = next(inputs.batches, None)
    if first is None:
        raise ValueError(f"{path} holds no inputs; give at least one")
    return replace(inputs, batches=itertools.chain([first], inputs.batches))


def unnamed(inputs: Inputs) -> Inputs:
    """Rows without the names of their columns, for a model that was fitted to such."""
    if inputs.kind != "rows":
        return inputs
    batches = (replace(batch, x=np.asarray(batch.x)) for batch in inputs.batches)
    return replace(inputs, batches=batches, columns=())


# pictures -----------------------------------------------------------------------------------------------------------


def open_pictures(path: Path, labelled: bool, size: Size | None, channels: int | None) -> Inputs:
    root = path if path.is_dir() else path.parent
    files = sorted(file for file in path.rglob("*") if is_picture(file)) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no pictures; give a folder of {', '.join(sorted(PICTURES))} files")
    if labelled:
        check_class_folders(path, [file.relative_to(root) for file in files])
    if size is None or channels is None:
        usual = usual_shape(files)
        size, channels = size or usual[1:], channels or usual[0]
    shape = (channels, *size)

    def batches() -> Iterator[Batch]:
        count = max(1, min(BATCH, PIXELS // math.prod(shape)))
        for start in range(0, len(files), count):
            part = files[start : start + count]
            places = [file.relative_to(root) for file in part]
            pixels = np.stack([read_picture(file, shape) for file in part])
            names = [place.as_posix() for place in places]
            yield Batch(names, pixels, [place.parts[0] for place in places] if labelled else None)

    return Inputs("pictures", batches(), shape=shape)


def is_picture(file: Path) -> bool:
    return file.suffix.lower() in PICTURES and not file.name.startswith(".") and file.is_file()


def check_class_folders(path: Path, places: Sequence[Path]) -> None:
    """Labels are the names of the folders, so every picture must be in one, and train/ and test/ are not classes."""
    remedy = "put each class's pictures in a folder of the class's name"
    if not path.is_dir():
        raise ValueError(f"{path} is one picture, without a label; {remedy}, and give the folder that holds them")
    stray = next((place for place in places if len(place.parts) == 1), None)
    if stray is not None:
        raise ValueError(f"{path} has a picture outside the class folders, {stray}; {remedy}")
    classes = sorted({place.parts[0] for place in places})
    if all(split_named(name) for name in classes):
        raise ValueError(f"{path} holds {' and '.join(classes)}, which are no classes; give one of these folders")


def usual_shape(files: Sequence[Path]) -> Shape:
    """RGB if any picture has colours; the most frequent size, made smaller where it is larger than LARGEST."""
    sizes: Counter[tuple[int, int]] = Counter()
    channels = 1
    for file in files:
        with opened(file) as picture:
            turned = picture.getexif().get(0x0112, 1) >= 5  # lying on its side, by EXIF's orientation
            sizes[picture.size[::-1] if not turned else picture.size] += 1
            channels = max(channels, 3 if picture.mode in COLOUR else 1)
    (height, width), _ = sizes.most_common(1)[0]
    shrink = min(1.0, LARGEST / max(height, width))
    return channels, max(1, round(shrink * height)), max(1, round(shrink * width))


def read_picture(file: Path, shape: Shape) -> np.ndarray:
    """Pixels (channels, height, width), the right way up."""
    channels, height, width = shape
    with opened(file) as picture:
        upright = ImageOps.exif_transpose(picture).convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR))
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """A picture of a colour space that can be read; its damage, whenever it is found, is told in one sentence."""
    try:
        with reading(file, "a picture"), Image.open(file, formats=FORMATS) as picture:
            if picture.mode not in GREY + COLOUR:
                raise ValueError(f"its pixels are {picture.mode}, not 8-bit grey or RGB; convert it")
            yield picture
    except (SyntaxError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"{file} cannot be read as a picture ({error}); replace it") from error


# text files ---------------------------------------------------------------------------------------------------------


def open_stream(file: io.FileIO, path: Path, labelled: bool, label: str | None, columns: Sequence[str]) -> Inputs:
    """What a file of text holds; it is closed when it has been read or refused."""
    with ExitStack() as until_refused:
        stream: io.BufferedReader = until_refused.enter_context(io.BufferedReader(file))
        if path == STDIN:
            path, kind = Path("standard input"), ".jsonl" if stream.peek()[:1] == b"{" else ".csv"
        else:
            kind = path.suffix.lower()
        inputs = READERS[kind](stream, path, labelled, label, columns)
        until_refused.pop_all()
    return replace(inputs, batches=closing(stream, inputs.batches))


def closing(stream: io.BufferedReader, batches: Iterator[Batch]) -> Iterator[Batch]:
    with stream:
        yield from batches


def open_csv(
    stream: io.BufferedReader, path: Path, labelled: bool, label: str | None, columns: Sequence[str]
) -> Inputs:
    header, delimiter = read_header(stream, path, columns)
    label = label_column(header, path, label) if labelled else label
    texts = not columns and "text" in header
    taken = list(columns) or (["text"] if texts else [name for name in header if not labelled or name != label])
    missing = [name for name in taken if name not in header]
    if missing or not taken:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing)) or 'but the label'}; its columns are "
            f"{listed(header)}; rename them, or give another file"
        )
    types = dict.fromkeys(taken, pa.string() if texts else pa.float64())
    if labelled:
        types |= {label: pa.string()}
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=texts)
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(types))

    def batches() -> Iterator[Batch]:
        done = 0
        for part in csv_parts(stream, path, header, parse, convert):
            names = [str(number) for number in range(done + 1, done + len(part) + 1)]
            y = part[label].to_pylist() if labelled else None
            if y is not None and "" in y:
                raise ValueError(f"{path} has no label in row {names[y.index('')]}; fill it in, or remove the row")
            if texts:
                yield Batch(names, part["text"].to_pylist(), y)
            else:
                rows = pa.Table.from_batches([part]).select(taken)
                check_numbers(np.asarray(rows), path, names, taken)
                yield Batch(names, rows, y)
            done += len(part)

    return Inputs("texts" if texts else "rows", batches(), columns=() if texts else tuple(taken))


def csv_parts(
    stream: io.BufferedReader,
    path: Path,
    header: Sequence[str],
    parse: pa.csv.ParseOptions,
    convert: pa.csv.ConvertOptions,
) -> Iterator[pa.RecordBatch]:
    read = pa.csv.ReadOptions(use_threads=False, column_names=header)  # without threads errors have the row's number
    try:
        file = pa.csv.open_csv(stream, read, parse, convert)
        yield from (part for part in file if len(part))
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0].rstrip(".")
        place = re.search(r"CSV column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*)'", reason)
        if place is None:
            raise ValueError(f"{path} cannot be read as csv ({reason}); is it whole, and what its name says?") from None
        column, row = header[int(place[1])], f", row {place[2]}" if place[2] else ""
        raise ValueError(
            f"{path} has {place[3]!r} in column {column!r}{row}, which is no number; write it as one, "
            "or take the column out"
        ) from None


def read_header(stream: io.BufferedReader, path: Path, columns: Sequence[str]) -> tuple[list[str], str]:
    """The names of a csv's columns, from its first line, and what divides them; numbers only if they are `columns`."""
    with reading(path, "csv in UTF-8"):
        line = stream.readline().decode("utf-8-sig").rstrip("\r\n")
        if not line or "\r" in line:
            raise ValueError("its first line is empty" if not line else "its lines do not end in a line feed")
        delimiter = max(",;\t", key=line.count)
        header = next(csv.reader([line], delimiter=delimiter))
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column {twice[0]!r}; rename all but one")
    if all(is_number(name) for name in header) and not (columns and {*columns} <= {*header}):
        raise ValueError(f"{path} has no names of columns in its first line, but {listed(header)}; put one above it")
    return header, delimiter


def is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", text, re.IGNORECASE) is not None


def label_column(header: Sequence[str], path: Path, label: str | None) -> str:
    found = next((name for name in ((label,) if label else LABELS) if name in header), None)
    if found is None:
        wanted = repr(label) if label else " or ".join(LABELS)
        raise ValueError(f"{path} has no column {wanted}; name the label's with --label; there are {listed(header)}")
    return found


def listed(names: Collection[str], most: int = 12) -> str:
    return ", ".join(itertools.islice(names, most)) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_numbers(x: np.ndarray, path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    wrong = ~np.isfinite(x)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{path} has an empty, NaN or infinite cell in row {names[row]}, column {columns[column]!r}; "
            "fill it in, or remove the row"
        )


def open_jsonl(
    stream: io.BufferedReader, path: Path, labelled: bool, label: str | None, columns: Sequence[str]
) -> Inputs:
    key = label or LABELS[0]

    def records() -> Iterator[tuple[str, str, str]]:
        for number, line in decoded_lines(stream, path):
            record = read_json(line, f"{path}, line {number}")
            text, of = record.get("text"), record.get(key)
            if not isinstance(text, str):
                raise ValueError(f'{path}, line {number} has no "text"; give {{"text": "...", "{key}": "..."}} a line')
            if labelled and not (type(of) is int or (type(of) is str and of and of.isprintable())):
                raise ValueError(f'{path}, line {number} has "{key}" {of!r}; give a word or a whole number')
            yield str(number), text, str(of)

    return Inputs("texts", text_batches(records(), labelled))


def read_json(line: str, place: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} cannot be read as JSON ({error}); write one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(f'{place} is not an object; write {{"text": ...}} a line')
    return record


def open_txt(
    stream: io.BufferedReader, path: Path, labelled: bool, label: str | None, columns: Sequence[str]
) -> Inputs:
    if labelled:
        raise ValueError(f'{path} has no labels; give a jsonl of {{"text": ..., "label": ...}}, or a csv')
    return Inputs("texts", text_batches(((str(n), line, "") for n, line in decoded_lines(stream, path)), False))


def decoded_lines(stream: io.BufferedReader, path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(stream, 1):
        with reading(path, f"text in UTF-8, line {number}"):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        if "\0" in text:
            raise ValueError(f"{path} has a zero byte in line {number}, so it is not text in UTF-8; convert it")
        if text:
            yield number, text


def text_batches(records: Iterator[tuple[str, str, str]], labelled: bool) -> Iterator[Batch]:
    while part := list(itertools.islice(records, BATCH)):
        names, texts, labels = map(list, zip(*part, strict=True))
        yield Batch(names, texts, labels if labelled else None)


TextReader = Callable[[io.BufferedReader, Path, bool, str | None, Sequence[str]], Inputs]
READERS: dict[str, TextReader] = {".csv": open_csv, ".tsv": open_csv, ".jsonl": open_jsonl, ".txt": open_txt}


# arrays -------------------------------------------------------------------------------------------------------------


def open_npz(path: Path, labelled: bool, columns: Sequence[str], size: Size | None, channels: int | None) -> Inputs:
    parts = list(read_npz(path))
    if len(parts) > 1:
        raise ValueError(f"{path} holds {len(parts)} sets of inputs; save the one that you mean as x and y")
    x, labels = parts[0].pictures, parts[0].labels
    assert isinstance(x, np.ndarray)
    y = array_labels(path, labels, len(x)) if labelled else None
    kind: Kind
    shape: Shape | None = None
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))) and x.size:
        kind, own = "pictures", 1 if x.ndim == 3 else x.shape[3]
        pixels = torch.from_numpy(np.ascontiguousarray(x.reshape(*x.shape[:3], own).transpose(0, 3, 1, 2)))
        shape = (channels or own, *(size or x.shape[1:3]))
        x = fitted(pixels, torch.Size(shape)).numpy()
    elif x.dtype.kind in "fiub" and x.ndim == 2:
        kind, x = "rows", x.astype(np.float64)
        names = columns or [str(column + 1) for column in range(x.shape[1])]
        if len(names) != x.shape[1]:
            raise ValueError(f"{path} has x of {x.shape[1]} columns, not the {len(names)} {listed(names)}; give these")
        check_numbers(x, path, [str(row + 1) for row in range(len(x))], names)
    elif x.dtype.kind == "U" and x.ndim == 1:
        kind = "texts"
    else:
        raise ValueError(
            f"{path} has x of {x.dtype} {x.shape}; give uint8 (N, H, W) or (N, H, W, 3) pictures, "
            "numbers (N, columns) or texts (N,)"
        )

    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            names = [str(row + 1) for row in range(*rows.indices(len(x)))]
            part: X = x[rows].tolist() if kind == "texts" else x[rows]
            if kind == "rows" and columns:
                part = pa.table(list(x[rows].T), names=list(columns))
            yield Batch(names, part, y[rows] if y else None)

    return Inputs(kind, batches(), shape=shape)


def array_labels(path: Path, labels: np.ndarray | None, count: int) -> list[str]:
    if labels is None:
        raise ValueError(f"{path} has no labels; save them beside x as y")
    if labels.size != count or labels.dtype.kind not in "iuU":
        raise ValueError(
            f"{path} has labels of {labels.dtype} {labels.shape} for {count} inputs; give a whole number or a name each"
        )
    return [str(label) for label in labels.reshape(-1).tolist()]


# outliers -----------------------------------------------------------------------------------------------------------


def read_outliers(named: str, inputs: Inputs, inliers: X, store: Store) -> str | X:
    """Outliers to train with: what lies at a path, without its labels; a data set of the store; made-up ones, by name.

    Texts of the store are cut into pieces as long as the inliers, of whose length they would otherwise be known; of
    larger pictures half are cropped and half resized.
    """
    if Path(named).exists():
        size, channels = (inputs.shape[1:], inputs.shape[0]) if inputs.shape else (None, None)
        given = open_inputs(Path(named), columns=inputs.columns, size=size, channels=channels)
        if given.kind != inputs.kind:
            raise ValueError(f"{named} holds {given.kind}, the training data {inputs.kind}; give outliers of that kind")
        return given.gathered().x
    if all(part in MADE[inputs.kind] for part in named.split("+")):
        return named
    if "/" in named or Path(named).suffix:
        raise ValueError(f"{named} does not exist; give outliers' path, a data set or the name of made-up ones")
    if inputs.kind == "rows" or not store.has(named, "train"):
        known = [name for name, data in CATALOGUE.items() if data.kind == STORED.get(inputs.kind)]
        choose(
            dict.fromkeys([*MADE[inputs.kind], *known]),
            named,
            f"path, made-up outliers or data set of {inputs.kind}",
        )
    if inputs.kind == "pictures":
        assert inputs.shape
        pictures, _ = store.images(named, "train")
        few = pictures[torch.randperm(len(pictures), generator=generator_for("outliers"))[:OUTLIERS]]
        return to_train_with(few, torch.Size(inputs.shape)).epoch(generator_for("outliers")).numpy()
    words = [word for text in store.texts(named, "train")[0] for word in levelled(text)]
    lengths = torch.tensor([max(1, len(levelled(text))) for text in inliers])
    return [" ".join(piece) for piece in pieces(words, lengths, generator_for("outliers"))[:OUTLIERS]]
