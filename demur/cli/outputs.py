"""Where commands write to. One rule for all, checked before anything is computed.

What is there already is replaced only where it is clearly this command's own earlier output, or with --overwrite; what
is read, the model above all, is never written to. Files get their names when they are whole.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Annotated, TextIO

import typer

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")]

FIGURES = (".png", ".svg", ".pdf")
LOOKED_AT = 4096  # bytes at the beginning, by which a file is recognised


def check_file(
    path: Path | None,
    overwrite: bool | None,
    *,
    mark: bytes | None = None,
    reads: Collection[Path] = (),
    model: Path | None = None,
    suffixes: Collection[str] = (),
) -> None:
    """Refuse a file that could not or should not be written.

    `overwrite` is None where a command has no such option. `mark` is a pattern that its files begin with. `reads` is
    what the command reads, and `model` too, which is more: nothing may be put into its folder.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        *others, last = suffixes
        ends = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"file name {str(path)!r} does not end in {ends}; rename it")
    exists = _is_there(path)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist; create it first")
    _check_apart_from(path, reads, model)
    if exists and overwrite is None:
        raise ValueError(f"{path} is there already, and stays as it is; name a new place")
    if exists and not path.is_file():
        raise ValueError(f"{path} cannot be written to, because it is no file; name another file")
    if exists and not overwrite and not (mark and _begins(path, mark)):
        raise ValueError(f"{path} is there already, and not by this command; name another file, or add --overwrite")
    if exists and not os.access(path, os.W_OK):
        raise ValueError(f"{path} cannot be written to; name another file")
    _try(path, unfinished(path))


def check_folder(
    path: Path,
    overwrite: bool,
    *,
    writes: Collection[str] = (),
    marks: Mapping[str, bytes] | None = None,
    reads: Collection[Path] = (),
    model: Path | None = None,
) -> None:
    """Refuse a folder into which the names that the command `writes` cannot or should not be put.

    It is the command's own if a file in it begins with its mark; then they are replaced.
    """
    if _is_there(path) and not path.is_dir():
        raise ValueError(f"{path} cannot be written to, because it is no folder; name another")
    for name in writes:
        _check_apart_from(path / name, reads, model)
    own = any((path / name).is_file() and _begins(path / name, mark) for name, mark in (marks or {}).items())
    in_the_way = [name for name in sorted(writes) if os.path.lexists(path / name)]
    if in_the_way and not own and not overwrite:
        raise ValueError(
            f"{path / in_the_way[0]} is there already, and not by this command; name another folder, or add --overwrite"
        )
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise ValueError(f"{path} cannot be made, because {nearest} is no folder; name another")
    _try(path, unfinished(nearest / "folder"))


def check_distinct(*paths: Path | None) -> None:
    """Two outputs of one command must not be one file."""
    for first, second in combinations([path for path in paths if path is not None], 2):
        if first.resolve() == second.resolve():
            raise ValueError(f"{second} is named for two outputs; give each a file of its own")


@contextmanager
def write_text_file(path: Path) -> Iterator[TextIO]:
    """A file of text that gets its name once it is whole."""
    part = unfinished(path)
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    with write_text_file(path) as file:
        file.write(text)


def unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _is_there(path: Path) -> bool:
    """Also a link to nothing, through which a file would be made elsewhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ValueError(f"{path} cannot be written to ({error.strerror}); name another place") from None
    return True


def _check_apart_from(path: Path, reads: Collection[Path], model: Path | None) -> None:
    """A file may be new in a folder of inputs, though not in a model's."""
    place = path.resolve()
    for given in (*reads, *([] if model is None else [model])):
        if not given.exists():
            continue
        inside = given.is_dir() and given.resolve() in place.parents and (given is model or path.exists())
        if inside or place == given.resolve() or (path.exists() and path.samefile(given)):
            raise ValueError(f"{path} is {'the model' if given is model else 'what is read'}; name another place")


def _begins(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return re.match(mark, file.read(LOOKED_AT), re.DOTALL) is not None


def _try(path: Path, part: Path) -> None:
    """Nothing tells as surely whether a file can be made as making one."""
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written to ({error.strerror}); name another place") from None
