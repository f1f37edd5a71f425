"""A cell is a folder: what it was made with, and its predictions, from which every figure is computed."""

import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from demur.files import locked, replacing
from demur.metrics import Prediction
from demur.paper.conventions import Fit
from demur.paper.grid import Cell, join_further, split_further
from demur.provenance import digest
from demur.study.records import (
    DIGESTS,
    RECORD,
    DamagedCell,
    check_record,
    leave_out,
    read_record,
    read_records,
    write_record,
)

PREDICTIONS, POSTERIOR = "predictions.safetensors", "posterior.safetensors"
SHARD = 15 * 2**20  # bytes of a packed file
FOLDER = re.compile(r"\w[\w+.-]*")  # what folder_name makes


@dataclass(frozen=True)
class Predicted:
    """The content of one file: predictions by the names of their sets, and labels where they have them."""

    y: Tensor
    sets: Mapping[str, Prediction]


@dataclass(frozen=True)
class Result:
    """A cell and what was predicted; `record` is its cell.json, `further` what else it was asked, by kind."""

    cell: Cell
    y: Tensor
    test: Prediction
    ood: Mapping[str, Prediction]
    record: Mapping[str, Any]
    further: Mapping[str, Predicted] = field(default_factory=dict)


def describe(value: Any) -> Any:
    """A value as JSON that determines it: dataclasses and functions by name, with all their arguments."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    if callable(value):
        called = value if isinstance(value, partial) else partial(value)
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(called).parameters.items()
            if parameter.default is not parameter.empty
        }
        arguments = {name: describe(default) for name, default in (defaults | called.keywords).items()}
        return {"is": called.func.__name__} | arguments
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return value


def folder_name(fit: Fit) -> str:
    """Readable in front, and behind it the hash of all that determines the posterior."""
    determines = describe(fit)
    method = determines.pop("method")
    hashed = hashlib.sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()
    return f"{fit.data.name}-{method}-{fit.recipe.seed}-{hashed[:16]}"


def write_result(
    folder: Path, cell: Cell, y: Tensor, sets: Mapping[str, Prediction], record: Mapping[str, Any]
) -> None:
    """Predictions first, the record last: a folder with a record is whole."""
    digests = {PREDICTIONS: write_predictions(folder / PREDICTIONS, Predicted(y, sets))}
    write_record(folder, {**record, DIGESTS: digests, "cells": [asdict(cell)]})


def write_further(
    folder: Path, name: str, y: Tensor, sets: Mapping[str, Prediction], data: Mapping[str, str] | None = None
) -> None:
    """Beside the predictions of a whole folder; again the record last. `data` are hashes of what was predicted."""
    digests = {file_of(name): write_predictions(folder / file_of(name), Predicted(y, sets))}
    record = read_record(folder)
    added: dict[str, Mapping[str, Any]] = {
        "further": {name: list(sets)},
        DIGESTS: digests,
        **({"data": data} if data else {}),
    }
    write_record(folder, {**record, **{key: {**record.get(key, {}), **value} for key, value in added.items()}})


def file_of(further: str) -> str:
    return f"{further}.safetensors"


def write_predictions(path: Path, predicted: Predicted) -> str:
    """The digest of what was written; what could not be read back is refused."""
    tensors = {"y": predicted.y.cpu()}
    for name, prediction in predicted.sets.items():
        if not prediction.probs.isfinite().all():
            raise FloatingPointError(f"the predictions of {name} have NaN or infinite values; train with a lower rate")
        tensors[f"{name}/probs"] = prediction.probs
        tensors[f"{name}/expected_entropy"] = prediction.expected_entropy
        if prediction.none is not None:
            tensors[f"{name}/none"] = prediction.none
    write_tensors(path, tensors)
    return digest(tensors)


def read_predictions(path: Path, names: Iterable[str], written: str | None = None) -> Predicted:
    """The sets of a file; `written` is the digest of its content, where the record has one."""
    tensors = read_tensors(path)
    if written is not None and digest(tensors) != written:
        raise DamagedCell(path, "it holds other predictions than were written")
    sets = {name: _prediction(tensors, name, path) for name in names}
    if tensors.get("y", torch.empty(0)).dtype != torch.int64:
        raise DamagedCell(path, "it has no labels")
    return Predicted(tensors["y"], sets)


def _prediction(tensors: Mapping[str, Tensor], name: str, path: Path) -> Prediction:
    probs, none, entropy = (tensors.get(f"{name}/{part}") for part in ("probs", "none", "expected_entropy"))
    if probs is None or entropy is None:
        raise DamagedCell(path, f"it has no predictions of {name}")
    if probs.dim() != 2 or any(part is not None and part.shape != probs.shape[:1] for part in (none, entropy)):
        raise DamagedCell(path, f"the predictions of {name} are of different shapes")
    if not all(part.isfinite().all() for part in (probs, none, entropy) if part is not None):
        raise DamagedCell(path, f"the predictions of {name} have NaN or infinite values")
    return Prediction(probs, none, entropy)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError) as error:
        raise DamagedCell(path, error) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    with replacing(path) as unfinished:
        whole = {key: value.contiguous() for key, value in tensors.items()}
        save_file(whole, unfinished, metadata=dict(metadata or {}))


def is_done(folder: Path, further: str | None = None) -> bool:
    """Whether the folder is whole, and has all the further predictions that are asked for."""
    return (folder / RECORD).exists() and {*split_further(further)} <= read_record(folder).get("further", {}).keys()


def read_result(folder: Path, cell: Cell) -> Result:
    """The cell's predictions, with those of its further inputs that the folder has."""
    record = read_record(folder)
    digests = record.get(DIGESTS, {})
    main = read_predictions(folder / PREDICTIONS, record["sets"], digests.get(PREDICTIONS))
    if len(main.y) != len(main.sets["test"]):
        raise DamagedCell(folder / PREDICTIONS, f"{len(main.sets['test'])} predictions have {len(main.y)} labels")
    if len(main.y) == 0 or not 0 <= int(main.y.min()) <= int(main.y.max()) < main.sets["test"].probs.shape[1]:
        raise DamagedCell(folder / PREDICTIONS, "there are labels of no class, or none")
    ood = {name.removeprefix("ood/"): one for name, one in main.sets.items() if name.startswith("ood/")}
    there = record.get("further", {})
    further = {
        kind: read_predictions(folder / file_of(kind), there[kind], digests.get(file_of(kind)))
        for kind in split_further(cell.further)
        if kind in there
    }
    return Result(cell, main.y, main.sets["test"], ood, record, further)


def find_cells(runs: Path) -> list[tuple[Path, Cell]]:
    """Every cell that the folder was asked for, and where it lies; in a fixed order, of the same the newest last.

    Damaged ones are left out, and warned of.
    """
    found = []
    for folder, record in read_records(runs):
        further = join_further(record.get("further", {}))
        asked = dict.fromkeys(replace(Cell(**cell), further=further) for cell in record["cells"])
        found += [(folder, cell) for cell in asked]
    return sorted(found, key=lambda pair: [str(value) for value in asdict(pair[1]).values()])


def read_results(runs: Path) -> list[Result]:
    return [read_result(folder, cell) for folder, cell in find_cells(runs)]


def pack(runs: Path, out: Path) -> list[Path]:
    """The predictions of all cells in a few files of at most 15 MiB; studies move between machines that way."""
    records = {folder.name: record for folder, record in read_records(runs)}
    batches: list[tuple[dict[str, Tensor], dict[str, str]]] = [({}, {})]
    size = 0
    for name, record in sorted(records.items()):
        try:
            content = {file: read_tensors(runs / name / file) for file in files_of(record)}
            check_content(content, record, runs / name)
        except DamagedCell as error:
            leave_out(error)
            continue
        for file_name, key, tensor in ((file, key, content[file][key]) for file in content for key in content[file]):
            if size + tensor.nbytes > SHARD - 2**18:  # room for the header
                batches.append(({}, {}))
                size = 0
            batches[-1][0][f"{name}/{file_name}/{key}"] = tensor
            batches[-1][1][name] = (runs / name / RECORD).read_text("utf-8")
            size += tensor.nbytes
    if not batches[0][0]:
        raise ValueError(f"there are no whole cells in {runs} to pack; name the folder of a study with --runs")
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for index, (tensors, kept) in enumerate(batches):
        files.append(out / f"pack-{index:05d}-of-{len(batches):05d}.safetensors")
        write_tensors(files[-1], tensors, kept)
    return files


def files_of(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of a folder's files of predictions, and of the sets in each."""
    return {PREDICTIONS: record["sets"]} | {file_of(name): sets for name, sets in record.get("further", {}).items()}


def check_content(content: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, Any], folder: Path) -> None:
    """Refuse tensors that are not those of the record: by digest, or where it has none, by name."""
    for file, sets in files_of(record).items():
        tensors, written = content.get(file, {}), record.get(DIGESTS, {}).get(file)
        if written is not None and digest(dict(tensors)) != written:
            raise DamagedCell(folder / file, "it holds other predictions than were written")
        for name in sets:
            _prediction(tensors, name, folder / file)


def unpack(files: Iterable[Path], runs: Path) -> list[Path]:
    """Put packed predictions back into their folders; what is there already stays."""
    tensors: dict[str, dict[str, dict[str, Tensor]]] = {}  # by folder and file
    records: dict[str, Any] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                records |= {name: json.loads(record) for name, record in (file.metadata() or {}).items()}
                for key in file.keys():  # noqa: SIM118
                    folder_name, file_name, name = key.split("/", 2)
                    tensors.setdefault(folder_name, {}).setdefault(file_name, {})[name] = file.get_tensor(key)
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a pack of predictions, or it is damaged ({error}); pack it anew") from None
    for name in tensors:
        check_packed(runs / name, name, tensors[name], records.get(name))
    return [runs / name for name in tensors if _put(runs / name, tensors[name], records[name])]


def check_packed(folder: Path, name: str, content: Mapping[str, Mapping[str, Tensor]], record: object) -> None:
    """Before anything is written: the folder lies where it should, and will be whole."""
    if not FOLDER.fullmatch(name):
        raise ValueError(f"the packs have a folder {name!r}, which cannot be a cell's; nothing is unpacked")
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link to elsewhere; delete it, or unpack into another folder")
    try:
        check_record(record, folder / RECORD)
        assert isinstance(record, dict)
        check_content(content, record, folder)
    except DamagedCell as error:
        raise ValueError(
            f"the packs lack something of {name} ({error.reason}); unpack all files of one pack together"
        ) from None
    is_done(folder)  # what is there and damaged is refused, too


def _put(folder: Path, content: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, Any]) -> bool:
    """Whether anything was not there yet."""
    with locked(folder):
        there = read_record(folder) if is_done(folder) else None
        new = [file for file in files_of(record) if there is None or file not in files_of(there)]
        for file_name in new:
            write_tensors(folder / file_name, content[file_name])
        if new:
            write_record(folder, record if there is None else _joined(there, record, new))
    return bool(new)


def _joined(first: Mapping[str, Any], second: Mapping[str, Any], new: Iterable[str]) -> dict[str, Any]:
    """Two records of one folder: the first, with what else the second was asked."""
    more = [cell for cell in second["cells"] if cell not in first["cells"]]
    kinds = [kind for kind in second.get("further", {}) if file_of(kind) in new]
    names = {"further": kinds, "data": kinds, DIGESTS: new}
    added = {key: {name: second[key][name] for name in names[key] if name in second.get(key, {})} for key in names}
    joined = {key: first.get(key, {}) | value for key, value in added.items() if value}
    return {**first, **joined, "cells": [*first["cells"], *more]}
