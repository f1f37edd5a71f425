"""Files that outlive accidents: written whole or not at all, by one process at a time, and read into our own memory."""

import csv
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

LOCK = ".lock"

try:
    import fcntl
except ImportError:  # Windows, where nobody can wait for a lock
    import msvcrt

    @contextmanager
    def _alone_with(descriptor: int) -> Iterator[None]:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
                break
            except OSError:
                time.sleep(0.1)
        try:
            yield
        finally:
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]

else:

    @contextmanager
    def _alone_with(descriptor: int) -> Iterator[None]:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside; a lock dies with its process, and the file that is locked stays."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        in_the_way = next(place for place in (folder, *folder.parents) if place.is_file())
        raise ValueError(
            f"{in_the_way} is a file where a folder is to be; move it away, or name another place"
        ) from None
    with open(folder / LOCK, "ab") as file, _alone_with(file.fileno()):
        yield


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it takes its place once the block has ended well."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    try:
        yield unfinished
        os.replace(unfinished, path)
    except SafetensorError as error:  # as whoever writes tensors says that the disk is full
        raise OSError(f"cannot write {path}: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to write to; what is in it takes its place in `folder` once the block has ended well."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield unfinished
        for file in sorted(unfinished.rglob("*")):
            place = folder / file.relative_to(unfinished)
            if file.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(file, place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def read_tensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file, copied: as they come, they are the file, and change or go with it."""
    with safe_open(path, "pt") as file:
        keys = file.keys()
        return file.metadata() or {}, {key: file.get_tensor(key).clone() for key in keys}


class TensorEntry(NamedTuple):
    """What a file's table of contents says of a tensor; the type as safetensors writes it."""

    shape: tuple[int, ...]
    dtype: str


def list_tensors(path: str | Path) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Metadata of a safetensors file, and its tensors by name; none of them is read."""
    with safe_open(path, "pt") as file:
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        entries = {key: TensorEntry(tuple(each.get_shape()), each.get_dtype()) for key, each in slices.items()}
        return file.metadata() or {}, entries


def find_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor with NaN or infinite values, if there is one."""
    return next((key for key, value in tensors.items() if not value.isfinite().all()), None)


def hash_file(path: Path) -> str:
    """SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_quotes(file: IO[bytes], delimiter: str, path: Path, first: int = 1) -> None:
    """Refuse a csv with a quote that is not closed where a cell ends: Arrow would hide the rows up to the next in it.

    `first` is the number of the file's first line. It takes a while, and is worth it where cells have several lines.
    """
    before = csv.field_size_limit(2**30)
    try:
        with io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="") as text:
            rows, begun = csv.reader(text, delimiter=delimiter, strict=True), 0
            for _ in rows:
                begun = rows.line_num
    except csv.Error:
        raise ValueError(f"{path} has a quote that is not closed, in line {begun + first}; close it") from None
    finally:
        csv.field_size_limit(before)
