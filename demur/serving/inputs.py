"""What a request holds, as the model's kind reads it: images (bytes, base64), texts, rows by column or in order."""

import base64
import binascii
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from demur.classifier import Classifier
from demur.classifier.kinds import Images, MixedTables, Tables, Texts
from demur.classifier.readers import X, join_names
from demur.classifier.readers.images import open_image, pixels_of
from demur.classifier.tokens import Tokens
from demur.serving.limits import Limits, Refused

CELLS = (int, float, str, bool, type(None))  # of JSON
SHOWN = 60  # characters of a value that a refusal quotes


def as_x(model: Classifier, values: Any, limits: Limits) -> X:
    """A list of inputs as the model takes them."""
    if not isinstance(values, list) or not values:
        raise Refused(f"inputs is {quote(values)}; give a list of at least one")
    if len(values) > limits.inputs:
        raise Refused(f"inputs has {len(values)} entries, at most {limits.inputs} are answered at a time; send fewer")
    kind = model.preprocessing_
    if isinstance(kind, Images):
        return images(values, kind.shape, limits)
    if isinstance(kind, Texts | Tokens):
        return [text(value, place, limits) for place, value in enumerate(values, 1)]
    if isinstance(kind, MixedTables):
        return mixed_table(values, model, kind)
    if isinstance(kind, Tables):
        return table(values, model)
    return array(values)


def quote(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def images(values: Sequence[Any], shape: tuple[int, ...], limits: Limits) -> np.ndarray:
    read, together = list[np.ndarray](), 0
    for place, value in enumerate(values, 1):
        pixels, count = image(value, shape, place, limits)
        read.append(pixels)
        together += count
        if together > limits.together:
            raise Refused(
                f"images 1 to {place} have {together:,} pixels, at most {limits.together:,} are read; send fewer"
            )
    return np.stack(read)


def image(value: Any, shape: tuple[int, ...], place: int, limits: Limits) -> tuple[np.ndarray, int]:
    """Pixels (channels, height, width) of a file's bytes, or of these in base64; and how many it had."""
    if isinstance(value, Mapping):
        value = value.get("image")
    if isinstance(value, str):
        value = from_base64(value, place)
    if not isinstance(value, bytes):
        raise Refused(f'input {place} is {quote(value)}, no image; give the file in base64, or {{"image": base64}}')
    channels, height, width = shape
    with open_image(io.BytesIO(value), f"input {place}") as image:
        size = image.size
        pixels = pixels_of(image, (channels, height, width)) if math.prod(size) <= limits.pixels else None
    if pixels is None:
        raise Refused(
            f"input {place} has {size[0]}x{size[1]} pixels, at most {limits.pixels:,} are read; send a smaller one"
        )
    return pixels, math.prod(size)


def from_base64(text: str, place: int) -> bytes:
    """Also of a data: URL, as browsers make them."""
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"input {place} is no base64 ({error}); encode the image's file") from None


def text(value: Any, place: int, limits: Limits) -> str:
    if isinstance(value, Mapping):
        value = value.get("text")
    if not isinstance(value, str):
        raise Refused(f'input {place} is {quote(value)}, no text; give a string, or {{"text": string}}')
    if len(value) > limits.letters:
        raise Refused(f"input {place} has {len(value)} letters, at most {limits.letters} are read; shorten it")
    return value


def table(values: Sequence[Any], model: Classifier) -> X:
    """Rows as objects with the model's columns, or as lists in their order."""
    columns = [str(name) for name in getattr(model, "feature_names_in_", ())]
    rows = [cells(value, columns, model.n_features_in_, place) for place, value in enumerate(values, 1)]
    if not columns:
        return np.array(rows, dtype=np.float64)
    return pa.table([pa.array(column, pa.float64()) for column in zip(*rows, strict=True)], names=columns)


def mixed_table(values: Sequence[Any], model: Classifier, kind: MixedTables) -> np.ndarray:
    """Rows of numbers, strings, truth values and null, by column or in order."""
    columns = [str(name) for name in getattr(model, "feature_names_in_", ())]
    rows = [row(value, columns, model.n_features_in_, place) for place, value in enumerate(values, 1)]
    odd = next((cell for each in rows for cell in each if not is_cell(cell)), None)
    if odd is not None:
        raise Refused(f"inputs has {quote(odd)}; a cell is a number, a string, true, false or null")
    cells = np.array(rows, dtype=object).reshape(len(rows), model.n_features_in_)
    for place, why in kind.find_errors(pd.DataFrame(cells, columns=columns or None)).items():
        raise Refused(f"input {place + 1} has {why}")
    return cells


def is_cell(value: Any) -> bool:
    """Whether a table can hold it: half a character is in no text, and some whole numbers are beyond every float."""
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    return type(value) in CELLS and (type(value) is not int or math.isfinite(as_float(value)))


def row(value: Any, columns: Sequence[str], count: int, place: int) -> list[Any]:
    """Its cells in the model's order."""
    if isinstance(value, Mapping):
        missing = [name for name in columns if name not in value]
        if missing or not columns:
            wanted = f"has no column {missing[0]!r}" if missing else "names columns, and the model has none"
            raise Refused(f"input {place} {wanted}; give {join_names(columns) or f'a list of {count} numbers'}")
        value = [value[name] for name in columns]
    if not isinstance(value, list) or len(value) != count:
        raise Refused(f"input {place} is {quote(value)}; give {count} numbers, by column or in order")
    return value


def cells(value: Any, columns: Sequence[str], count: int, place: int) -> list[float]:
    value = row(value, columns, count, place)
    for number, cell in enumerate(value):
        if type(cell) not in (int, float) or not math.isfinite(as_float(cell)):
            column = repr(columns[number]) if columns else str(number + 1)
            raise Refused(f"input {place} has {quote(cell)} in column {column}, which is no finite number")
    return [float(cell) for cell in value]


def as_float(number: int | float) -> float:
    """Infinite where a whole number is too large for a float."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def array(values: Sequence[Any]) -> np.ndarray:
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise Refused(
            "inputs are arrays of different shapes; give each the shape that the model was fitted to"
        ) from None
    if numbers.dtype.kind not in "iuf":
        raise Refused(f"inputs are of dtype {numbers.dtype}; give numbers")
    return numbers
