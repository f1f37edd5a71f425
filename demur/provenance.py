"""What a result was made from: the code, and the data."""

import hashlib
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PACKAGE = Path(__file__).parent


def digest(value: Any) -> str:
    """SHA-256 of tensors, wherever they lie in dataclasses, mappings and sequences: bytes, shapes, types and names."""
    sha = hashlib.sha256()
    for part in _parts(value):
        sha.update(part)
    return sha.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    """Each thing begins with what it is and how much of it follows, lest two values run into the same bytes."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}:".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}:".encode()
        for key in sorted(value, key=str):
            yield from _parts(key)
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)}:".encode()
        for item in value:
            yield from _parts(item)
    elif value is None or isinstance(value, str | bytes | int | float | Path):
        written = repr(value).encode()
        yield f"value {len(written)}:".encode()
        yield written
    elif callable(value) and hasattr(value, "__qualname__"):
        yield f"function {value.__module__}.{value.__qualname__}:".encode()
    else:
        yield f"object {type(value).__module__}.{type(value).__qualname__}:".encode()
        held = [f.name for f in fields(value)] if is_dataclass(value) else list(getattr(value, "__dict__", ()))
        yield from _parts({name: getattr(value, name) for name in held})


def describe_code(package: Path = PACKAGE) -> dict[str, str | None]:
    """The commit, where the package lies in a checkout of its own, and in any case a hash of its source."""
    return dict(_read_code(package))


@lru_cache
def _read_code(package: Path) -> tuple[tuple[str, str | None], ...]:
    sources = sorted((path.relative_to(package).as_posix(), path) for path in package.rglob("*.py"))
    source = digest({name: path.read_bytes() for name, path in sources})
    return ("commit", commit_of(package)), ("source", source)


def commit_of(package: Path) -> str | None:
    """With `-dirty` behind it where the package is not as it was committed.

    None where there is no git, and where the repository is somebody else's: one that an environment lies in, or that
    has a copy of the package among its own files.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        top = Path(_git(package, "rev-parse", "--show-toplevel"))
        project = tomllib.loads((top / "pyproject.toml").read_text("utf-8")).get("project", {})
        if project.get("name") != package.name or not package.samefile(top / package.name):
            return None
        changed = _git(package, "status", "--porcelain", "--", ".")
        return _git(package, "rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError, ValueError):  # no git, no checkout, no such project
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
