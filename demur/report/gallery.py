"""Single inputs on a page: images as thumbnails, texts as they are, the cells of a table's row."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from demur.classifier.evaluation import Example

LONGEST = 240  # characters of a text
SIDE = 96  # pixels of a thumbnail, at least
MOST = 12  # cells of a row


class Card(NamedTuple):
    """An example as a page shows it: one of image (base64), text and cells."""

    name: str
    caption: str
    image: str = ""
    text: str = ""
    cells: Sequence[tuple[str, str]] = ()


def cards(examples: Sequence[Example]) -> list[Card]:
    return [card(example) for example in examples]


def card(example: Example) -> Card:
    best = f"{example.label} {100 * example.probability:.0f} %"
    answer = best if example.decision == example.label else f"{example.decision}; best guess {best}"
    truth = "" if example.truth is None else f"; is {example.truth}"
    caption = f"{answer}{truth}; score {example.score:.3g}"
    if isinstance(example.x, str):
        text = example.x if len(example.x) <= LONGEST else f"{example.x[:LONGEST]} …"
        return Card(f"input {example.name}", caption, text=text)
    if isinstance(example.x, Mapping):
        return Card(
            f"row {example.name}", caption, cells=[(name, cell(value)) for name, value in [*example.x.items()][:MOST]]
        )
    return Card(example.name, caption, image=thumbnail(example.x))


def cell(value: Any) -> str:
    if value is None or value != value:
        return "(missing)"
    # numbers of a table that has words, too, come from a csv as they are written
    if isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"-?\d+\.\d{5,}", value)):
        return f"{float(value):.4g}"
    return str(value)


def thumbnail(pixels: np.ndarray) -> str:
    """(C, H, W), uint8 or floats from 0 to 1, as PNG in base64; small ones are enlarged without smoothing."""
    levels = pixels if pixels.dtype == np.uint8 else (255 * np.clip(pixels, 0, 1)).round().astype(np.uint8)
    shown = Image.fromarray(levels[0] if len(levels) == 1 else levels[:3].transpose(1, 2, 0))
    times = max(1, -(-SIDE // max(shown.size)))
    file = io.BytesIO()
    shown.resize((times * shown.width, times * shown.height), Image.Resampling.NEAREST).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
