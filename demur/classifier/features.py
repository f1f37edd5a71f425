"""Features of a frozen backbone: computed once, standardised, and kept on disk where a folder for them is named."""

import hashlib
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.checkpoint import state_of
from demur.classifier.tables import FARTHEST
from demur.networks import as_input
from demur.provenance import digest

BATCH = 32  # inputs that go through a trunk at once
PROBES = 4  # of the features that are found, how many are computed again, or up to twice as many
AT_ONCE = 1024  # inputs between two writes to the cache
CACHE = "features.sqlite"

_counting: ContextVar[Callable[[int, int], None] | None] = ContextVar("counting", default=None)


@contextmanager
def observe_features(observer: Callable[[int, int], None]) -> Iterator[None]:
    """Have `observer` told how many inputs of how many have their features, whenever some are computed in the block."""
    token = _counting.set(observer)
    try:
        yield
    finally:
        _counting.reset(token)


@dataclass(frozen=True)
class Scaling:
    """By the mean and the deviation of the training inputs' features."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, features: Tensor) -> "Scaling":
        deviation, largest = features.std(0, correction=0), features.abs().amax(0)
        # one that does not vary has no scale, nor one that varies by next to nothing beside the others
        varies = deviation > torch.maximum(1e-6 * largest, 1e-7 * deviation.mean())
        scale = torch.where(varies, deviation, 1.0)
        return cls(tuple(features.mean(0).tolist()), tuple(scale.tolist()))

    def __call__(self, features: Tensor) -> Tensor:
        mean, scale = features.new_tensor(self.mean), features.new_tensor(self.scale)
        return ((features - mean) / scale).clamp(-FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Encoder:
    """A frozen trunk and the scaling of its features."""

    trunk: nn.Module = field(repr=False)
    scaling: Scaling

    def __call__(self, x: Tensor, device: torch.device) -> Tensor:
        return self.scaling(compute_features(self.trunk, x, device))


def compute_features(trunk: nn.Module, x: Tensor, device: torch.device, cache: Path | None = None) -> Tensor:
    """Features (N, width), on the CPU, of inputs as the trunk takes them; those in the folder `cache` are read."""
    return Features(trunk, device, cache)(x)


class Features:
    """The features that a trunk computes, stored in a folder `cache` where one is named.

    Their key is a hash of the input and of the trunk's weights. A hash does not see what a module computes with its
    weights, so a few of the first that are stored are computed again, and if they differ, all are. They are written as
    they come, so that a fit that was stopped finds them.
    """

    def __init__(self, trunk: nn.Module, device: torch.device, cache: Path | None) -> None:
        self.trunk, self.device, self.cache = trunk, device, cache
        self._own = b"" if cache is None else bytes.fromhex(digest((repr(trunk), state_of(trunk))))
        # by type and shape of the inputs: the shape of their features; None where what was found is not right
        self._shapes: dict[tuple[Any, ...], torch.Size | None] = {}
        self._hashed: dict[int, tuple[Tensor, list[bytes]]] = {}
        self._computed, self._seconds = 0, 0.0

    @property
    def pace(self) -> float:
        """Seconds for an input, of those that were computed so far."""
        return self._seconds / max(1, self._computed)

    def missing(self, x: Tensor) -> Tensor:
        """The rows of the inputs that are yet to be computed."""
        if self.cache is None or not len(x):
            return torch.arange(len(x))
        keys = self._keys(x)
        with _open_cache(self.cache) as stored:
            return torch.tensor([row for row, key in enumerate(keys) if not stored.has(key)], dtype=torch.long)

    def _keys(self, x: Tensor) -> list[bytes]:
        if id(x) not in self._hashed:
            begun = hashlib.sha256(self._own + repr(_form(x)).encode())
            self._hashed[id(x)] = x, [_hash_on(begun, row) for row in x.cpu()]  # x itself, or its id may be another's
        return self._hashed[id(x)][1]

    def __call__(self, x: Tensor) -> Tensor:
        if self.cache is None or not len(x):
            return self._compute(x, 0, len(x))
        form, keys = _form(x), self._keys(x)
        with _open_cache(self.cache) as stored:
            sought = [] if self._shapes.get(form, ()) is None else dict.fromkeys(keys)
            features = {key: value for key in sought if (value := stored.read(key)) is not None}
            rows = [row for row, key in enumerate(keys) if key in features]
            if rows and form not in self._shapes:
                some = rows[:: max(1, len(rows) // PROBES)]
                fresh = self._compute(x[some], 0, len(x))
                agrees = _agree([features[keys[row]] for row in some], fresh)
                self._shapes[form] = fresh.shape[1:] if agrees else None
            # damage can lie between the few that are compared
            features = {key: value for key, value in features.items() if value.shape == self._shapes[form]}
            missing = [row for row, key in enumerate(keys) if key not in features]
            for start in range(0, len(missing), AT_ONCE):
                rows = missing[start : start + AT_ONCE]
                fresh = self._compute(x[rows], len(x) - len(missing) + start, len(x))
                computed = {keys[row]: values for row, values in zip(rows, fresh, strict=True)}
                stored.write(computed)
                features |= computed
        return torch.stack([features[key] for key in keys])

    @torch.inference_mode()
    def _compute(self, x: Tensor, done: int, total: int) -> Tensor:
        """In batches; whoever observes is told that they follow on `done` of `total` inputs."""
        begun, is_text = time.perf_counter(), x.dtype == torch.long
        # texts of about one length go together, or most of a batch would be padding
        order = (x != 0).sum(1).argsort() if is_text else torch.arange(len(x))
        trunk, parts = self.trunk.to(self.device), []
        for rows in order.split(BATCH):
            parts.append(trunk(as_input(x[rows].to(self.device))).float().cpu())
            done += len(rows)
            if observer := _counting.get():
                observer(done, total)
        features = torch.cat(parts)[order.argsort()]
        if not features.isfinite().all():
            raise ValueError("the backbone gives NaN or infinite features of these inputs; choose another")
        self._computed, self._seconds = self._computed + len(x), self._seconds + time.perf_counter() - begun
        return features.clone()  # outside of inference mode's reach


def _form(x: Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape of the inputs."""
    return str(x.dtype), tuple(x.shape[1:])


def _hash_on(begun: "hashlib._Hash", row: Tensor) -> bytes:
    sha = begun.copy()
    sha.update(row.contiguous().numpy().data)
    return sha.digest()


def _agree(kept: Sequence[Tensor], fresh: Tensor) -> bool:
    """Whether these are the same features, up to rounding, which other batches change."""
    most = float(fresh.abs().max())
    return all(
        value.shape == right.shape and torch.allclose(value, right, rtol=1e-3, atol=1e-3 * most)
        for value, right in zip(kept, fresh, strict=True)
    )


@contextmanager
def _open_cache(cache: Path) -> Iterator["_Stored"]:
    file = cache / CACHE
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, timeout=60)) as connection:
            connection.execute("create table if not exists features (key blob primary key, value blob) without rowid")
            yield _Stored(connection)
    except (sqlite3.DatabaseError, OSError) as error:
        raise ValueError(
            f"the features in {file} cannot be used ({error}); remove the file, or name another cache"
        ) from None


@dataclass(frozen=True)
class _Stored:
    connection: sqlite3.Connection

    def has(self, key: bytes) -> bool:
        return self.connection.execute("select 1 from features where key = ?", (key,)).fetchone() is not None

    def read(self, key: bytes) -> Tensor | None:
        row = self.connection.execute("select value from features where key = ?", (key,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or len(row[0]) % 4:
            return None
        value = torch.from_numpy(np.frombuffer(row[0], np.float32).copy())
        return value if value.isfinite().all() else None

    def write(self, features: dict[bytes, Tensor]) -> None:
        """As far as there is room: what could not be kept is computed again."""
        rows: Sequence[tuple[bytes, bytes]] = [(key, value.numpy().tobytes()) for key, value in features.items()]
        try:
            with self.connection:
                self.connection.executemany("insert or replace into features values (?, ?)", rows)
        except sqlite3.OperationalError as error:
            warnings.warn(f"features of the backbone could not be kept ({error}); make room for them", stacklevel=5)
