"""A cell is a folder: what it was made with, and its predictions, from which every figure is computed."""

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from demur.metrics import Prediction
from demur.study.conventions import Fit
from demur.study.grid import Cell, join_further, split_further

PREDICTIONS, RECORD, POSTERIOR = "predictions.safetensors", "cell.json", "posterior.safetensors"
SHARD = 15 * 2**20  # bytes of a packed file


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
    digest = hashlib.sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()
    return f"{fit.data.name}-{method}-{fit.recipe.seed}-{digest[:16]}"


def write_result(
    folder: Path, cell: Cell, y: Tensor, sets: Mapping[str, Prediction], record: Mapping[str, Any]
) -> None:
    """Predictions first, the record last: a folder with a record is whole."""
    write_predictions(folder / PREDICTIONS, Predicted(y, sets))
    write_record(folder, {**record, "cells": [asdict(cell)]})


def write_further(folder: Path, name: str, y: Tensor, sets: Mapping[str, Prediction]) -> None:
    """Beside the predictions of a whole folder; again the record last."""
    write_predictions(folder / file_of(name), Predicted(y, sets))
    record = read_record(folder)
    write_record(folder, {**record, "further": {**record.get("further", {}), name: list(sets)}})


def file_of(further: str) -> str:
    return f"{further}.safetensors"


def write_predictions(path: Path, predicted: Predicted) -> None:
    tensors = {"y": predicted.y.cpu()}
    for name, prediction in predicted.sets.items():
        tensors[f"{name}/probs"] = prediction.probs
        tensors[f"{name}/expected_entropy"] = prediction.expected_entropy
        if prediction.none is not None:
            tensors[f"{name}/none"] = prediction.none
    write_tensors(path, tensors)


def read_predictions(path: Path, names: Iterable[str]) -> Predicted:
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError) as error:
        message = f"{path} is damaged ({error}); delete its folder, and the study makes it anew"
        raise ValueError(message) from None
    sets = {
        name: Prediction(tensors[f"{name}/probs"], tensors.get(f"{name}/none"), tensors[f"{name}/expected_entropy"])
        for name in names
    }
    return Predicted(tensors["y"], sets)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    save_file({key: value.contiguous() for key, value in tensors.items()}, unfinished, metadata=dict(metadata or {}))
    os.replace(unfinished, path)


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    unfinished = folder / f"{RECORD}.part"
    unfinished.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    os.replace(unfinished, folder / RECORD)


def read_record(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / RECORD).read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{folder / RECORD} is damaged ({error}); delete the folder, and the study makes it anew"
        ) from None


def is_done(folder: Path, further: str | None = None) -> bool:
    """Whether the folder is whole, and has all the further predictions that are asked for."""
    return (folder / RECORD).exists() and {*split_further(further)} <= read_record(folder).get("further", {}).keys()


def read_result(folder: Path, cell: Cell) -> Result:
    """The cell's predictions, with those of its further inputs that the folder has."""
    record = read_record(folder)
    main = read_predictions(folder / PREDICTIONS, record["sets"])
    ood = {name.removeprefix("ood/"): one for name, one in main.sets.items() if name.startswith("ood/")}
    there = record.get("further", {})
    further = {
        kind: read_predictions(folder / file_of(kind), there[kind])
        for kind in split_further(cell.further)
        if kind in there
    }
    return Result(cell, main.y, main.sets["test"], ood, record, further)


def find_cells(runs: Path) -> list[tuple[Path, Cell]]:
    """Every cell that the folder was asked for, and where it lies; in a fixed order, of the same the newest last."""
    found = []
    for path in sorted(runs.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime_ns):
        record = read_record(path.parent)
        further = join_further(record.get("further", {}))
        asked = dict.fromkeys(replace(Cell(**cell), further=further) for cell in record["cells"])
        found += [(path.parent, cell) for cell in asked]
    return sorted(found, key=lambda pair: [str(value) for value in asdict(pair[1]).values()])


def read_results(runs: Path) -> list[Result]:
    return [read_result(folder, cell) for folder, cell in find_cells(runs)]


def pack(runs: Path, out: Path) -> list[Path]:
    """The predictions of all cells in a few files of at most 15 MiB; studies move between machines that way."""
    out.mkdir(parents=True, exist_ok=True)
    batches: list[tuple[dict[str, Tensor], dict[str, str]]] = [({}, {})]
    size = 0
    for path in sorted(runs.glob(f"*/{RECORD}")):
        folder = path.parent
        for file_name in files_of(read_record(folder)):
            with safe_open(folder / file_name, "pt") as file:
                for key in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(key)
                    if size + tensor.nbytes > SHARD - 2**18:  # room for the header
                        batches.append(({}, {}))
                        size = 0
                    batches[-1][0][f"{folder.name}/{file_name}/{key}"] = tensor
                    batches[-1][1][folder.name] = path.read_text("utf-8")
                    size += tensor.nbytes
    files = []
    for index, (tensors, records) in enumerate(batches):
        if tensors:
            files.append(out / f"pack-{index:05d}-of-{len(batches):05d}.safetensors")
            write_tensors(files[-1], tensors, records)
    return files


def files_of(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of a folder's files of predictions, and of the sets in each."""
    return {PREDICTIONS: record["sets"]} | {file_of(name): sets for name, sets in record.get("further", {}).items()}


def unpack(files: Iterable[Path], runs: Path) -> list[Path]:
    """Put packed predictions back into their folders; what is there already stays."""
    tensors: dict[str, dict[str, dict[str, Tensor]]] = {}  # by folder and file
    records: dict[str, str] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                records |= file.metadata() or {}
                for key in file.keys():  # noqa: SIM118
                    folder_name, file_name, name = key.split("/", 2)
                    tensors.setdefault(folder_name, {}).setdefault(file_name, {})[name] = file.get_tensor(key)
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{path} is not a pack of predictions, or it is damaged ({error}); pack it anew") from None
    written = []
    for folder_name, content in tensors.items():
        record, folder = json.loads(records[folder_name]), runs / folder_name
        wanted = {(file, f"{name}/probs") for file, sets in files_of(record).items() for name in sets}
        absent = wanted - {(file, name) for file in content for name in content[file]}
        if Path(folder_name).name != folder_name or absent:
            raise ValueError(f"the packs lack {sorted(absent)} of {folder_name}; unpack all files of one pack together")
        there = read_record(folder) if is_done(folder) else None
        new = [file for file in files_of(record) if there is None or file not in files_of(there)]
        folder.mkdir(parents=True, exist_ok=True)
        for file_name in new:
            write_tensors(folder / file_name, content[file_name])
        if new:
            write_record(folder, record if there is None else _joined(there, record))
            written.append(folder)
    return written


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two records of one folder: the first, with what else the second was asked."""
    more = [cell for cell in second["cells"] if cell not in first["cells"]]
    further = second.get("further", {}) | first.get("further", {})
    return {**first, "cells": [*first["cells"], *more], "further": further}
