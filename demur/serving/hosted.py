"""A model file under a name: loaded, watched, and replaced by what lies there anew, whole or not at all."""

import asyncio
import ctypes
import hashlib
import logging
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from demur.classifier import Classifier
from demur.posterior import fewer_samples, keep_samples
from demur.serving.answers import Answer, answers
from demur.serving.batching import Batcher, Batching
from demur.serving.instruments import Instruments
from demur.serving.monitor import Monitor

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Hosting:
    """`memory` is how many bytes of a model's samples may be kept, rather than drawn anew for every batch; `samples` is
    how many of them are used, None for all."""

    device: str = "cpu"
    memory: int = 2**29
    batching: Batching = field(default_factory=Batching)
    level: float = 0.01  # of the monitor
    samples: int | None = None


class Answerer:
    """One model, watched and counted; what a batcher asks."""

    def __init__(self, name: str, model: Classifier, monitor: Monitor, instruments: Instruments) -> None:
        self._name, self._model, self._monitor, self._instruments = name, model, monitor, instruments

    def __call__(self, x: Tensor) -> Sequence[Answer]:
        began = time.perf_counter()
        with torch.inference_mode():
            answered = answers(self._model, self._model.predict_tensor(x))
        self._monitor.observe(
            [answer.outlier_score for answer in answered],
            [answer.abstained for answer in answered],
            [str(answer.label) for answer in answered],
        )
        self._instruments.batch(self._name, answered, time.perf_counter() - began)
        return answered


class Loaded:
    """What a file held at one moment; requests that began with it end with it.

    Nothing in it refers back to it, so the last request to let go of it frees its samples at once.
    """

    def __init__(self, name: str, path: Path, hosting: Hosting, instruments: Instruments) -> None:
        self.version = version_of(path)
        self.model = Classifier.load(path, device=hosting.device)
        if version_of(path) != self.version:
            raise ValueError(f"{path} was replaced while it was read; it is read again")
        posterior = self.model.posterior_
        if hosting.samples is not None:
            posterior = fewer_samples(posterior, hosting.samples)
        self.model.posterior_ = keep_samples(posterior, hosting.memory)
        self.since = time.time()
        self.monitor = Monitor.of(self.model, hosting.level)
        self.batcher: Batcher[Answer] = Batcher(Answerer(name, self.model, self.monitor, instruments), hosting.batching)


class Hosted:
    """`now` is what answers. A new file takes its place once loaded; a bad one does not, and `error` says why."""

    def __init__(self, name: str, path: Path, hosting: Hosting, instruments: Instruments) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"model name {name!r} does not fit into an address; give one as NAME={path}, NAME of a-z")
        self.name, self.path = name, path
        self.error: str | None = None
        self._hosting, self._instruments = hosting, instruments
        self._seen = signature(path)
        self._loading = asyncio.Lock()  # one at a time, however many signals come
        self.now = Loaded(name, path, hosting, instruments)
        release_memory()

    async def reload(self) -> None:
        """Load what the file holds now; whoever asks meanwhile is answered by the old model."""
        async with self._loading:
            self._seen = signature(self.path)
            try:
                # the old one ends with its last request: one that is still being read may come to it later
                self.now = await asyncio.to_thread(Loaded, self.name, self.path, self._hosting, self._instruments)
            except Exception as error:  # whatever a file can hold, the old model goes on, and so does the watch
                self.error = f"{error}; version {self.now.version} is still served"
                self._instruments.reload_failed(self.name)
                log.error("model kept", extra={"fields": {"model": self.name, "error": self.error}})
                return
            await asyncio.to_thread(release_memory)
            self.error = None
            log.info("model loaded", extra={"fields": {"model": self.name, "version": self.now.version}})

    def changed(self) -> bool:
        """Whether the file is another than the one that was last looked at."""
        return signature(self.path) not in (self._seen, ())


def release_memory() -> None:
    """Give back what the C library holds of freed tensors, where it can: glibc keeps those below 32 MiB, by thread, and
    a process that replaced a LeNet 14 times held up to 2.7 GiB instead of 0.8."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def named_models(models: Sequence[str]) -> dict[str, Path]:
    """`PATH` or `NAME=PATH`; by default a model is called as its file."""
    paths: dict[str, Path] = {}
    for given in models:
        name, divided, path = given.partition("=")
        if not divided or "/" in name:
            name, path = Path(given).absolute().name.removesuffix(".demur"), given
        if name in paths:
            raise ValueError(f"two models are called {name!r}; give one another name, as NAME={path}")
        paths[name] = Path(path)
    return paths


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def signature(path: Path) -> Signature:
    """Changes when the file is replaced or written to; () where there is none."""
    try:
        return tuple((file.name, (at := file.stat()).st_mtime_ns, at.st_size, at.st_ino) for file in files_of(path))
    except OSError:
        return ()


def version_of(path: Path) -> str:
    """The beginning of a hash of the file."""
    if not path.exists():
        raise ValueError(f"model {path} does not exist; give the folder or the .demur file that was saved")
    whole = hashlib.sha256()
    for file in files_of(path):
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()[:12]
