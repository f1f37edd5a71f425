"""Files that outlive accidents: written whole or not at all, and by one process at a time."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

LOCK = ".lock"

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.1)
            else:
                return

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside; a lock dies with its process, and the file that is locked stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as file:
        _take(file.fileno())
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
