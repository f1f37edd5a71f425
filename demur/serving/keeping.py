"""Abstained inputs in a folder, for somebody to look at: at most so many, the oldest make room, off unless asked for.

Each is one JSON file whose `input` can be sent again as it is; `demur review` labels them. A disk that is full costs
the sample, never an answer.
"""

import base64
import io
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demur.files import replacing
from demur.serving.answers import Answer

log = logging.getLogger(__name__)

PREFIX = "abstained-"
ID = re.compile(r"\d{20}-\d{6}")
KEPT = re.compile(rf"{PREFIX}{ID.pattern}\.json")  # only files that are called so are ever removed
TOLD = ("decision", "label", "probabilities", "outlier_score")  # of an answer
QUIET = 60.0  # seconds between two complaints


class Keeper:
    def __init__(self, folder: Path, most: int = 1000, most_bytes: int = 2**28) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._most, self._most_bytes = folder, most, most_bytes
        there = sorted(file for file in folder.iterdir() if KEPT.fullmatch(file.name) and not file.is_dir())
        self._files = deque((file, file.lstat().st_size) for file in there)
        self._bytes = sum(size for _, size in self._files)
        self._lock, self._number, self._complained = threading.Lock(), 0, -QUIET

    def keep(self, model: str, kind: str, values: Sequence[Any], answers: Sequence[Answer]) -> None:
        """Those of a request that were abstained on, inputs of that kind; what cannot be written is left out, and said
        in the log."""
        with self._lock:
            for value, answer in zip(values, answers, strict=True):
                if not answer.abstained:
                    continue
                try:
                    self._write(model, kind, value, answer)
                except (OSError, RecursionError) as error:  # the second: cells beside the model's may be nested
                    if time.monotonic() - self._complained > QUIET:
                        self._complained = time.monotonic()
                        log.error(
                            "inputs not kept", extra={"fields": {"folder": str(self.folder), "error": str(error)}}
                        )
                    return

    def _write(self, model: str, kind: str, value: Any, answer: Answer) -> None:
        given = as_sent(kind, value)
        told = {name: getattr(answer, name) for name in TOLD}
        text = json.dumps({"time": time.time(), "model": model, "kind": kind, **told, "input": given})
        size = len(text.encode())
        if size > self._most_bytes:
            return
        while self._files and (len(self._files) >= self._most or self._bytes + size > self._most_bytes):
            oldest, freed = self._files.popleft()
            oldest.unlink(missing_ok=True)
            self._bytes -= freed
        self._number += 1
        file = self.folder / f"{PREFIX}{time.time_ns():020d}-{self._number % 10**6:06d}.json"
        with replacing(file) as unfinished:
            unfinished.write_text(text, "utf-8")
        self._files.append((file, size))
        self._bytes += size


def as_sent(kind: str, value: Any) -> Any:
    """An input as JSON has it: the bytes of an image, and the pixels of one, as a file in base64."""
    if isinstance(value, np.ndarray):
        value = png(value) if kind == "images" else value.tolist()
    return {"image": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def png(pixels: np.ndarray) -> bytes:
    """Of (channels, height, width): whole numbers up to 255, or fractions."""
    whole = pixels if pixels.dtype.kind != "f" else np.round(255 * pixels)
    grey = len(pixels) == 1
    image = Image.fromarray((whole[0] if grey else whole.transpose(1, 2, 0)).astype(np.uint8), "L" if grey else "RGB")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
