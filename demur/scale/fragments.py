"""What is to be answered, cut into fragments: a run of images, one file, or a run of row groups of a parquet file.

A fragment is read by one worker, a batch at a time, and becomes one part of the output. Fragments are the same in every
run over the same files.
"""

import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import pyarrow.parquet as pq
from pyarrow import fs

from demur.classifier import Predictor
from demur.classifier.readers import Batch, Inputs, check_kind, wanted_by
from demur.classifier.readers.base import Asked
from demur.classifier.readers.images import image_batches, printable
from demur.classifier.readers.tables import open_parquet
from demur.classifier.readers.text_files import READERS, open_stream
from demur.data.formats import IMAGES, find_files, reading
from demur.scale.places import Location

IMAGES_EACH = 1024
ROWS_EACH = 2**16  # at least, where a parquet file is cut
LARGE = 2**25  # bytes of a parquet file that is looked at to cut it
FILES = {".parquet", *READERS}  # of rows or texts


@dataclass(frozen=True)
class Fragment:
    """Files below a location ("" is the location itself); of a parquet file these row groups, or all; and how many rows
    come before them."""

    number: int
    files: tuple[str, ...]
    groups: tuple[int, ...] | None = None
    before: int = 0


@dataclass(frozen=True)
class Source:
    """Where inputs are, the fragments of them, and a hash of their files' names, lengths and times."""

    at: Location
    kind: str
    fragments: tuple[Fragment, ...]
    fingerprint: str


def list_inputs(at: Location, kind: str) -> Source:
    """Images, or files of rows or texts, whichever the kind of the model is, at a location."""
    files = list(_files(at, suffixes_of(kind)))
    if not files:
        wanted = ", ".join(sorted(suffixes_of(kind)))
        raise ValueError(f"{at.name} holds no {kind}; give a folder of {wanted} files, or one of these")
    cuts = _runs([name for name, _ in files]) if kind == "images" else _cut(at, files)
    return Source(at, kind, tuple(replace(cut, number=n) for n, cut in enumerate(cuts)), _fingerprint(files))


def suffixes_of(kind: str) -> Iterable[str]:
    return IMAGES if kind == "images" else FILES


def has_changed(source: Source) -> bool:
    """Whether a file has come, gone or changed since the inputs were listed."""
    try:
        return _fingerprint(_files(source.at, suffixes_of(source.kind))) != source.fingerprint
    except (ValueError, OSError):
        return True


def _fingerprint(files: Iterable[tuple[str, fs.FileInfo]]) -> str:
    content = hashlib.sha256()
    for name, info in files:
        content.update(f"{name}\0{info.size}\0{info.mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return content.hexdigest()


def _files(at: Location, suffixes: Iterable[str]) -> Iterator[tuple[str, fs.FileInfo]]:
    """Files below a location with such a suffix, in order; hidden ones are not looked at."""
    itself = at.files.get_file_info(at.path)
    if itself.type == fs.FileType.NotFound:
        raise ValueError(f"{at.name} does not exist; give a folder or a file that does")
    if itself.type == fs.FileType.File:
        if PurePosixPath(at.path).suffix.lower() in suffixes:
            yield "", itself
        return
    hidden = (".",) if suffixes is IMAGES else (".", "_")
    for name, info in _below_local(at, suffixes) if at.is_local else _below(at):
        place = PurePosixPath(name)
        if place.suffix.lower() in suffixes and not any(part.startswith(hidden) for part in place.parts):
            yield name, info


def _below_local(at: Location, suffixes: Iterable[str]) -> Iterator[tuple[str, fs.FileInfo]]:
    """Links are followed, and those to nothing kept: they are to be missed."""
    for path in find_files(Path(at.path), suffixes):
        try:
            yield path.relative_to(at.path).as_posix(), at.files.get_file_info(str(path))
        except UnicodeEncodeError:
            raise ValueError(f"{printable(str(path))} has a name that is no UTF-8; rename it") from None


def _below(at: Location) -> Iterator[tuple[str, fs.FileInfo]]:
    infos = {
        info.path[len(at.path) + 1 :]: info
        for info in at.files.get_file_info(fs.FileSelector(at.path, recursive=True))
        if info.type == fs.FileType.File
    }
    for name in sorted(infos, key=lambda name: name.split("/")):
        yield name, infos[name]


def _runs(names: Sequence[str]) -> Iterator[Fragment]:
    for start in range(0, len(names), IMAGES_EACH):
        yield Fragment(0, tuple(names[start : start + IMAGES_EACH]))


def _cut(at: Location, files: Iterable[tuple[str, fs.FileInfo]]) -> Iterator[Fragment]:
    for name, info in files:
        if PurePosixPath(info.path).suffix.lower() != ".parquet" or info.size <= LARGE:
            yield Fragment(0, (name,))
            continue
        with reading(Path(name or PurePosixPath(at.path).name), "parquet"), at.files.open_input_file(info.path) as file:
            rows = [group.num_rows for group in _groups(pq.read_metadata(file))]
        start = before = inside = 0
        for end, count in enumerate(rows, 1):
            inside += count
            if inside >= ROWS_EACH or end == len(rows):
                yield Fragment(0, (name,), tuple(range(start, end)), before)
                start, before, inside = end, before + inside, 0


def _groups(metadata: pq.FileMetaData) -> Iterator[pq.RowGroupMetaData]:
    for group in range(metadata.num_row_groups):
        yield metadata.row_group(group)


def read_fragment(classifier: Predictor, source: Source, fragment: Fragment, tolerant: bool) -> Iterator[Batch]:
    """Its inputs as the model takes them. One is called by its row, by file and row where there are several files, or
    by its file."""
    at, wanted = source.at, wanted_by(classifier)
    if source.kind == "images":
        names = [printable(name or PurePosixPath(at.path).name) for name in fragment.files]
        streams = [partial(_in_memory, at.files, _path(at, name)) for name in fragment.files]
        yield from image_batches(names, streams, (wanted["channels"], *wanted["size"]), tolerant)
        return
    (name,) = fragment.files
    called = Path(name or PurePosixPath(at.path).name)
    asked = Asked(called, False, None, wanted["columns"], tolerant, wanted["mixed"], wanted["check"])
    with tempfile.TemporaryDirectory(prefix="demur-") as folder:
        for batch in check_kind(classifier, _open(at, name, fragment, asked, Path(folder)), called).batches:
            yield replace(batch, names=[f"{name}:{row}" for row in batch.names]) if name else batch


def _open(at: Location, name: str, fragment: Fragment, asked: Asked, folder: Path) -> Inputs:
    path = _path(at, name)
    if asked.path.suffix.lower() == ".parquet":
        return open_parquet(asked, at.files.open_input_file(path), fragment.groups, fragment.before + 1)
    if not at.is_local:  # these are read as files
        copy = folder / "copy"
        with at.files.open_input_stream(path) as stream, copy.open("wb") as out:
            shutil.copyfileobj(stream, out)
        path = str(copy)
    return open_stream(io.FileIO(path), asked)


def _path(at: Location, name: str) -> str:
    return f"{at.path}/{name}" if name else at.path


def _in_memory(files: fs.FileSystem, path: str) -> BinaryIO:
    with files.open_input_stream(path) as stream:
        return cast(BinaryIO, io.BytesIO(stream.read()))
