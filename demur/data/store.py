"""A folder of data sets: NAME/SPLIT-00000-of-0000n.parquet, in the layout of the Hugging Face hub.

Images are in a column `image`, a struct of `bytes` (PNG, WebP, JPEG) and `path`; texts in `text`, classes in `label`.
Decoded images are kept, one safetensors file a split, so that the next start maps them into memory and is done.
"""

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from demur.data.catalogue import CATALOGUE, DataSet, allowed_labels
from demur.data.decode import decode, image_shape
from demur.errors import first_line
from demur.files import hash_file

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAME = re.compile(r"\w[\w-]*")
SHARD = re.compile(r"(?P<split>\w[\w-]*)-(?P<index>\d{5})-of-(?P<total>\d{5})\.parquet")
CHECKSUMS = "checksums.json"


class MissingData(ValueError):
    """A data set, or a split of it, is not in the store."""


@dataclass(frozen=True)
class Holding:
    """What `Store.describe` says of a data set; `splits` has the count of each split that is there."""

    name: str
    splits: Mapping[str, int]
    bytes: int
    where: str
    licence: str

    @property
    def count(self) -> int:
        return sum(self.splits.values())


@dataclass(frozen=True)
class Store:
    """The data sets under `root`. Decoded images are kept in `cache`, or beside the data where none is given."""

    root: Path
    cache: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # a name will do

    def images(self, name: str, split: str) -> tuple[Tensor, Tensor | None]:
        """Images (N, C, H, W), uint8, and labels (N,), None where there are none; writing to them changes no file."""
        shards = self.shards(name, split)
        cached = (self.cache or self.root / ".decoded") / f"{name}-{split}.safetensors"
        tensors = read_decoded(cached, shards)
        if tensors is None:
            files = fingerprint(shards)  # before decoding, lest a file replaced meanwhile pass for the decoded one
            tensors = decode_shards(shards, CATALOGUE.get(name))
            keep_decoded(cached, tensors, files)
        return tensors["images"], tensors.get("labels")

    def texts(self, name: str, split: str) -> tuple[list[str], Tensor | None]:
        """Texts and their labels (N,), None where the set has none."""
        shards = self.shards(name, split)
        rows = [read_rows(path, "text", CATALOGUE.get(name)) for path in shards]
        for path, (column, _) in zip(shards, rows, strict=True):
            if column.null_count or column.type not in (pa.string(), pa.large_string()):
                column_type = f"{column.type}, {column.null_count} of them null"
                raise ValueError(f"{path} has texts of type {column_type}; get or add {name} again")
        texts = [text for column, _ in rows for text in column.to_pylist()]
        return texts, joined_labels(shards, [labels for _, labels in rows])

    def classes(self, name: str, split: str) -> tuple[str, ...]:
        """The names of the classes: the catalogue's, or those written in the file; empty where nobody named them."""
        known = CATALOGUE.get(name)
        return known.classes if known else class_names(open_parquet(self.shards(name, split)[0]).schema_arrow, "label")

    def has(self, name: str, split: str) -> bool:
        return bool(self._present(name, split))

    def shards(self, name: str, split: str) -> list[Path]:
        """The files of a split in their order, all of them."""
        check_names(name, split)
        present = self._present(name, split)
        if not present:
            on_hub = name in CATALOGUE and CATALOGUE[name].hub
            remedy = f"demur data get {name}, or " if on_hub else ""
            raise MissingData(
                f"data set {name!r} (split {split}) is not in {self.root}; "
                f"get it with: {remedy}demur data add {name} PATH"
            )
        totals = {path.stem.rpartition("-")[2] for path in present}
        if len(totals) > 1:
            versions = " and ".join(f"-of-{total}" for total in sorted(totals))
            raise ValueError(f"{self.root / name} has files {versions} of {split}; delete those of one version")
        whole = [self.root / name / file for file in shard_names(split, int(totals.pop()))]
        for path in whole:
            if path not in present:
                raise ValueError(f"{path} is missing, one of {len(whole)} files of {split}; get or add {name} again")
        return whole

    def describe(self) -> list[Holding]:
        """Every data set of the catalogue, there or not, and the user's own."""
        folders = sorted(path.name for path in self.root.glob("*/") if NAME.fullmatch(path.name))
        own = [holding for name in folders if name not in CATALOGUE and (holding := self._holding(name)).splits]
        return [*map(self._holding, CATALOGUE), *own]

    def write(self, name: str, split: str, tables: Iterable[pa.Table], source: str) -> list[Path]:
        """One file a table, in place of the split's old files once all are written."""
        check_names(name, split)
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        try:
            for table in tables:
                written.append(folder / f".{split}-{len(written):05d}.part")
                pq.write_table(table, written[-1], row_group_size=5000)
            files = dict(zip(shard_names(split, len(written)), written, strict=True))
            checksums = read_checksums(folder)
            for path in self._present(name, split):
                path.unlink()
                checksums.pop(path.name, None)
            for file, part in files.items():
                checksums[file] = {"sha256": hash_file(part), "source": source}
                os.replace(part, folder / file)
            written.append(folder / f".{CHECKSUMS}.part")
            written[-1].write_text(json.dumps(checksums, indent=1, sort_keys=True) + "\n", "utf-8")
            os.replace(written[-1], folder / CHECKSUMS)
        finally:
            for part in written:
                part.unlink(missing_ok=True)
        return [folder / file for file in files]

    def _present(self, name: str, split: str) -> list[Path]:
        matches = ((path, SHARD.fullmatch(path.name)) for path in sorted((self.root / name).glob("*.parquet")))
        return [path for path, match in matches if match and match["split"] == split]

    def _holding(self, name: str) -> Holding:
        known = CATALOGUE.get(name)
        paths = sorted((self.root / name).glob("*.parquet"))
        splits = dict.fromkeys(match["split"] for path in paths if (match := SHARD.fullmatch(path.name)))
        shards = {split: self.shards(name, split) for split in splits}
        where = f"hub: {known.hub.repo}" if known and known.hub else "to be added"
        return Holding(
            name,
            {split: sum(open_parquet(path).metadata.num_rows for path in files) for split, files in shards.items()},
            sum(path.stat().st_size for files in shards.values() for path in files),
            str(self.root / name) if shards else where,
            known.licence if known else "your own",
        )


def check_names(name: str, split: str) -> None:
    for what, value in (("data set", name), ("split", split)):
        if not NAME.fullmatch(value):
            raise ValueError(f"{what} {value!r} is not one word; name it with letters, digits, _ and -")


def shard_names(split: str, total: int) -> list[str]:
    return [f"{split}-{index:05d}-of-{total:05d}.parquet" for index in range(total)]


def open_parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} cannot be read as parquet ({first_line(error)}); delete it and get or add {path.parent.name} again"
    )


def read_rows(path: Path, column: str, known: DataSet | None) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """The column of a file, and its labels where it has any, every one of them a class."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    if column not in names:
        raise ValueError(f"{path} has no column {column!r} but {', '.join(names)}; rename it, or add the set anew")
    try:
        table = file.read([name for name in (column, "label") if name in names])
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    if not table.num_rows:
        raise ValueError(f"{path} holds no rows; get or add {path.parent.name} again")
    return table[column], checked_labels(path, table["label"], known) if "label" in names else None


def checked_labels(path: Path, column: pa.ChunkedArray, known: DataSet | None) -> np.ndarray:
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ValueError(f"{path} has labels of type {column.type}, {column.null_count} of them null; number them all")
    labels = column.to_numpy().astype(np.int64)
    allowed = allowed_labels(known)
    wrong = np.flatnonzero((labels < allowed.start) | (labels >= allowed.stop))
    if len(wrong):
        raise ValueError(
            f"{path} has label {labels[wrong[0]]} in row {wrong[0]}; "
            f"labels of {path.parent.name} are {allowed.start} to {allowed.stop - 1}: get or add the set again"
        )
    return labels


def joined_labels(shards: list[Path], parts: list[np.ndarray | None]) -> Tensor | None:
    labelled = [part for part in parts if part is not None]
    if labelled and len(labelled) < len(parts):
        unlabelled = shards[next(index for index, part in enumerate(parts) if part is None)]
        raise ValueError(
            f"{unlabelled} has no labels, other files of the split have; get or add {unlabelled.parent.name} again"
        )
    return torch.from_numpy(np.concatenate(labelled)) if labelled else None


def decode_shards(shards: list[Path], known: DataSet | None) -> dict[str, Tensor]:
    """Images, and labels where there are any."""
    total = sum(open_parquet(path).metadata.num_rows for path in shards)
    shape = known.shape if known else None
    images, done, labels = np.empty(0), 0, []
    for path in shards:
        column, part = read_rows(path, "image", known)
        if column.type != IMAGE:
            raise ValueError(f"{path} has a column image of type {column.type}, not {IMAGE}; add the set anew")
        encoded = column.combine_chunks().field("bytes").to_pylist()
        try:
            shape = shape or image_shape(encoded[0])
            pixels = np.frombuffer(decode(encoded, shape), np.uint8)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; replace it, or get or add {path.parent.name} again") from error
        if not done:
            images = np.empty((total, *shape), np.uint8)
        channels, height, width = shape
        images[done : done + len(encoded)] = pixels.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
        done += len(encoded)
        labels.append(part)
    stacked, joined = torch.from_numpy(images), joined_labels(shards, labels)
    return {"images": stacked} if joined is None else {"images": stacked, "labels": joined}


def read_decoded(cached: Path, shards: list[Path]) -> dict[str, Tensor] | None:
    """What was decoded before from files of this very content, mapped into memory; None where there is no such thing.

    Size, time and inode stand for the content, as in git's index, for hashing a large set takes longer than mapping it;
    where they differ (a copied folder, a touched file) the content's hash decides.
    """
    if not cached.exists():
        return None
    try:
        with safe_open(cached, "pt") as file:
            files = json.loads(file.metadata()["files"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it is no dict
    except (SafetensorError, OSError):
        return None  # a damaged copy is no loss: it is made anew
    if files["stamps"] == [stamp(path) for path in shards]:
        return tensors
    now = fingerprint(shards)
    if files["sha256"] != now["sha256"]:
        return None
    keep_decoded(cached, tensors, now)
    return tensors


def keep_decoded(cached: Path, tensors: dict[str, Tensor], files: dict[str, list[Any]]) -> None:
    """Write the cache whole or not at all; a folder that cannot be written to costs time, not data."""
    part = cached.with_name(f".{cached.name}.{os.getpid()}.part")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, {"files": json.dumps(files)})
        os.replace(part, cached)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink()
        warnings.warn(
            f"decoded images could not be kept in {cached.parent} ({error}); "
            f"they will be decoded again at the next start: give a cache folder that can be written to",
            stacklevel=3,
        )


def fingerprint(shards: list[Path]) -> dict[str, list[Any]]:
    return {"stamps": [stamp(path) for path in shards], "sha256": [hash_file(path) for path in shards]}


def stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def read_checksums(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / CHECKSUMS
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def image_column(images: Iterable[bytes]) -> pa.Array:
    """Encoded images as the column `image`."""
    encoded = pa.array(images, pa.binary())
    return pa.StructArray.from_arrays([encoded, pa.nulls(len(encoded), pa.string())], fields=list(IMAGE))


def class_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """The names of a label column's classes, where the file has them."""
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return tuple(features.get(column, {}).get("names", ()))


def with_class_names(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """The table with the names of `label`'s classes in its metadata, in the hub's manner."""
    if not names:
        return table
    kinds = {
        "image": {"_type": "Image"},
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": names, "_type": "ClassLabel"},
    }
    features = {column: kinds[column] for column in table.column_names}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
