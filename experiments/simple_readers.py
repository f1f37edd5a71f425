"""Second readers of people's files, as simple as can be: what the fuzz judges demur's readers by."""

import csv
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

MIXED = ("size", "width", "town")  # columns of mixed.csv: numbers with gaps, numbers, names with gaps
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
csv.field_size_limit(2**24)
GAPS = {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL"}
GAPS |= {"NaN", "n/a", "nan", "null"}
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass
class Read:
    """Names of all inputs, those that can be read, and the labels of these, where there are any; `every_y` has also
    the labels of rows with a gap or a word in them, which training takes."""

    names: list[str]
    wrong: set[str]
    x: object
    y: list[str] | None = None
    every_y: list[str] | None = None


Shape = tuple[int, int, int]
GREY = (1, 12, 12)  # channels, height, width


def read_simply(
    path: Path, taken: tuple[str, ...] | None = ("c0", "c1", "c2"), mixed: bool = False, shape: Shape = GREY
) -> Read:
    """`taken` are the columns of a csv; None for all but the label's. `mixed` is one with names and gaps, MIXED."""
    if path.is_dir():
        return read_images(path, shape)
    if path.suffix == ".csv":
        return read_csv(path, MIXED if taken and mixed else taken, mixed)
    return {".npz": read_npz, ".jsonl": read_lines, ".txt": read_lines}[path.suffix](path)


def read_images(path: Path, shape: Shape) -> Read:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    names, wrong, found, labels = [], set(), [], []
    for file in files:
        names.append(file.relative_to(path).as_posix())
        try:
            found.append(read_image(file, shape))
            labels.append(file.relative_to(path).parts[0])
        except Exception:  # whatever Pillow raises
            wrong.add(names[-1])
    return Read(names, wrong, np.stack(found) if found else None, labels)


def read_image(file: Path, shape: Shape = GREY) -> np.ndarray:
    channels, height, width = shape
    with Image.open(file, formats=FORMATS) as image:
        assert image.mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            plain = Image.new("RGBA", layer.size, "white")
            plain.alpha_composite(layer)
        else:
            plain = image.copy()
        pixels = plain.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(pixels) if channels == 1 else np.asarray(pixels).transpose(2, 0, 1)


def read_npz(path: Path) -> Read:
    with np.load(path) as file:
        x, y = file["x"], file["y"].tolist() if "y" in file else None
    assert x.ndim == 2
    assert x.shape[1] == 3
    names = [str(row + 1) for row in range(len(x))]
    right = np.isfinite(x.astype(float)).all(1)
    rows = pa.table({f"c{c}": x[right, c].astype(float) for c in range(3)})
    return Read(names, {name for name, ok in zip(names, right, strict=True) if not ok}, rows, y, y)


def read_csv(path: Path, taken: tuple[str, ...] | None, mixed: bool) -> Read:
    head, *lines = re.split(rb"\r\n|\n|\r", path.read_bytes())
    line = head.decode("utf-8-sig")
    delimiter = max(",;\t", key=line.count)
    (columns,) = csv.reader([line], delimiter=delimiter)
    assert len(set(columns)) == len(columns)
    if "text" in columns:
        return read_texts_csv(path)
    label = next((name for name in ("label", "class", "target", "y") if name in columns), None)
    taken = taken or tuple(name for name in columns if name != label)
    assert set(taken) <= set(columns)
    names, wrong, found, labels, every = [], set(), [], [], []
    for number, one in enumerate(filter(None, lines), 1):
        names.append(str(number))
        (cells,) = csv.reader([one.decode("utf-8", "replace")], delimiter=delimiter)
        by_name = dict(zip(columns, cells, strict=False))
        every.append(by_name.get(label, ""))
        if mixed:
            row, whole = mixed_row(by_name, taken), "\ufffd" not in "".join(by_name.get(name, "") for name in taken)
        else:
            row = [as_number(by_name.get(name, "")) for name in taken]
            whole = bool(np.isfinite(row).all())
        if len(cells) == len(columns) and row is not None and whole:
            found.append(row)
            labels.append(by_name.get(label, ""))
        else:
            wrong.add(names[-1])
    rows = pa.table({name: [row[place] for row in found] for place, name in enumerate(taken)})
    return Read(names, wrong, rows, labels if label else None, every if label else None)


def mixed_row(cells: dict[str, str], taken: tuple[str, ...]) -> list | None:
    """None where a number is none; a gap is None."""
    row: list = []
    for name in taken:
        cell = cells.get(name, "").strip()
        if cell in GAPS:
            row.append(None)
        elif name == "town" or name not in MIXED:
            row.append(cell)
        elif math.isfinite(number := as_number(cell)):
            row.append(number)
        else:
            return None
    return row


def read_texts_csv(path: Path) -> Read:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert all(None not in row and None not in row.values() for row in rows)
    names = [str(number + 1) for number in range(len(rows))]
    return Read(names, set(), [row["text"] for row in rows], [row["label"] for row in rows])


def as_number(cell: str) -> float:
    return float(cell) if NUMBER.fullmatch(cell.strip()) else math.nan


def read_lines(path: Path) -> Read:
    names, wrong, texts, labels = [], set(), [], []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not text:
                continue
            assert "\0" not in text
            record = json.loads(text) if path.suffix == ".jsonl" else {"text": text}
            assert isinstance(record["text"], str)
            texts.append(record["text"])
            labels.append(record.get("label"))
        except (ValueError, AssertionError, KeyError, TypeError, RecursionError):
            wrong.add(str(number))
        names.append(str(number))
    labelled = all(type(label) in (str, int) and label != "" for label in labels)
    return Read(names, wrong, texts, [str(label) for label in labels] if labelled else None)
