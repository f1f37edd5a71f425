"""Abstained inputs in a folder, for somebody to look at: at most so many, the oldest make room, off unless asked for.

Each is one JSON file whose `input` can be sent again as it is; `demur review` labels them. A disk that is full costs
the sample, never an answer.
"""

import base64
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demur.files import replacing
from demur.serving.answers import Answer

log = logging.getLogger(__name__)

PREFIX = "abstained-"  # only files that are called so are ever removed
TOLD = ("decision", "label", "probabilities", "outlier_score")  # of an answer
QUIET = 60.0  # seconds between two complaints


class Keeper:
    def __init__(self, folder: Path, most: int = 1000, most_bytes: int = 2**28) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._most, self._most_bytes = folder, most, most_bytes
        there = sorted(folder.glob(f"{PREFIX}*.json"))
        self._files = deque((file, file.stat().st_size) for file in there)
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
                except OSError as error:
                    if time.monotonic() - self._complained > QUIET:
                        self._complained = time.monotonic()
                        log.error(
                            "inputs not kept", extra={"fields": {"folder": str(self.folder), "error": str(error)}}
                        )
                    return

    def _write(self, model: str, kind: str, value: Any, answer: Answer) -> None:
        given = {"image": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
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
