"""A cell is a folder: what it was made with, and its predictions, from which every figure is computed."""

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from demur.metrics import Prediction
from demur.study.conventions import Fit
from demur.study.grid import Cell

PREDICTIONS, RECORD, POSTERIOR = "predictions.safetensors", "cell.json", "posterior.safetensors"
SHARD = 15 * 2**20  # bytes of a packed file


@dataclass(frozen=True)
class Result:
    """A cell and what was predicted; `record` is its cell.json."""

    cell: Cell
    y: Tensor
    test: Prediction
    ood: Mapping[str, Prediction]
    record: Mapping[str, Any]


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
    tensors = {"y": y.cpu()}
    for name, prediction in sets.items():
        tensors[f"{name}/probs"] = prediction.probs
        tensors[f"{name}/expected_entropy"] = prediction.expected_entropy
        if prediction.none is not None:
            tensors[f"{name}/none"] = prediction.none
    write_tensors(folder / PREDICTIONS, tensors)
    write_record(folder, {**record, "cells": [asdict(cell)]})


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


def is_done(folder: Path) -> bool:
    return (folder / RECORD).exists()


def read_result(folder: Path, cell: Cell) -> Result:
    try:
        with safe_open(folder / PREDICTIONS, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError) as error:
        message = f"{folder / PREDICTIONS} is damaged ({error}); delete the folder, and the study makes it anew"
        raise ValueError(message) from None
    names = [key.removesuffix("/probs") for key in tensors if key.endswith("/probs")]
    sets = {
        name: Prediction(tensors[f"{name}/probs"], tensors.get(f"{name}/none"), tensors[f"{name}/expected_entropy"])
        for name in names
    }
    record = read_record(folder)
    ood = {name.removeprefix("ood/"): sets[name] for name in record["sets"] if name.startswith("ood/")}
    return Result(cell, tensors["y"], sets["test"], ood, record)


def read_results(runs: Path) -> list[Result]:
    """The results of all cells that the folder was ever asked for, in a fixed order."""
    found = [folder.parent for folder in sorted(runs.glob(f"*/{RECORD}"))]
    asked = [(folder, Cell(**cell)) for folder in found for cell in read_record(folder)["cells"]]
    asked.sort(key=lambda pair: [str(value) for value in asdict(pair[1]).values()])
    return [read_result(folder, cell) for folder, cell in asked]


def pack(runs: Path, out: Path) -> list[Path]:
    """The predictions of all cells in a few files of at most 15 MiB; studies move between machines that way."""
    out.mkdir(parents=True, exist_ok=True)
    batches: list[tuple[dict[str, Tensor], dict[str, str]]] = [({}, {})]
    size = 0
    for record in sorted(runs.glob(f"*/{RECORD}")):
        folder = record.parent
        with safe_open(folder / PREDICTIONS, "pt") as file:
            for key in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(key)
                if size + tensor.nbytes > SHARD - 2**18:  # room for the header
                    batches.append(({}, {}))
                    size = 0
                batches[-1][0][f"{folder.name}/{key}"] = tensor
                batches[-1][1][folder.name] = record.read_text("utf-8")
                size += tensor.nbytes
    files = []
    for index, (tensors, records) in enumerate(batches):
        if tensors:
            files.append(out / f"pack-{index:05d}-of-{len(batches):05d}.safetensors")
            write_tensors(files[-1], tensors, records)
    return files


def unpack(files: Iterable[Path], runs: Path) -> list[Path]:
    """Put packed predictions back into their folders; what is there already stays."""
    tensors: dict[str, dict[str, Tensor]] = {}
    records: dict[str, str] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                records |= file.metadata() or {}
                for key in file.keys():  # noqa: SIM118
                    folder, _, name = key.partition("/")
                    tensors.setdefault(folder, {})[name] = file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a pack of predictions, or it is damaged ({error}); pack it anew") from None
    written = []
    for name, content in tensors.items():
        record, folder = json.loads(records[name]), runs / name
        absent = {f"{part}/probs" for part in record["sets"]} - content.keys()
        if Path(name).name != name or absent:
            raise ValueError(f"the packs lack {sorted(absent)} of {name}; unpack all files of one pack together")
        if not is_done(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_tensors(folder / PREDICTIONS, content)
            write_record(folder, record)
            written.append(folder)
    return written
