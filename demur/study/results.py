"""A cell is a folder: what it was made with, and its predictions, from which every value is computed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from demur.files import locked, read_tensors, replacing
from demur.metrics import Array, Prediction
from demur.provenance import digest
from demur.study.grid import Cell
from demur.study.records import (
    RECORD,
    DamagedCell,
    Record,
    leave_out,
    read_record,
    read_records,
    record_from,
    write_record,
)

TEST, OOD = "test", "ood/"  # the set of test data; before the names of the others
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
    """A cell and what was predicted; `record` is its folder's, `further` what else it was asked, by kind."""

    cell: Cell
    y: Tensor
    test: Prediction
    ood: Mapping[str, Prediction]
    record: Record
    further: Mapping[str, Predicted] = field(default_factory=dict)


def ood_name(name: str) -> str:
    """What an OOD set is called among the sets of a cell."""
    return f"{OOD}{name}"


def write_result(folder: Path, y: Tensor, sets: Mapping[str, Prediction], record: Record) -> None:
    """Predictions first, the record last: a folder with a record is whole."""
    digests = {PREDICTIONS: write_predictions(folder / PREDICTIONS, Predicted(y, sets))}
    write_record(folder, replace(record, digests=digests))


def write_further(
    folder: Path, name: str, y: Tensor, sets: Mapping[str, Prediction], data: Mapping[str, str] | None = None
) -> None:
    """Beside the predictions of a whole folder; again the record last. `data` are hashes of what was predicted."""
    written = write_predictions(folder / file_of(name), Predicted(y, sets))
    record = read_record(folder)
    write_record(
        folder,
        replace(
            record,
            further={**record.further, name: tuple(sets)},
            digests={**record.digests, file_of(name): written},
            data={**record.data, **(data or {})},
        ),
    )


def file_of(further: str) -> str:
    return f"{further}.safetensors"


def score_file(score: str) -> str:
    return f"score-{score.replace(':', '.')}.safetensors"  # a file's name has no colon on Windows


def write_scores(folder: Path, values: Mapping[str, Mapping[str, Array]]) -> None:
    """Beside the predictions of a whole folder: by score, the values of every set; again the record last."""
    record = read_record(folder)
    digests = dict(record.digests)
    for score, sets in values.items():
        tensors = {name: torch.from_numpy(each) for name, each in sets.items()}
        write_tensors(folder / score_file(score), tensors)
        digests[score_file(score)] = digest(tensors)
    known = {score: tuple(sets) for score, sets in values.items()}
    write_record(folder, replace(record, scores={**record.scores, **known}, digests=digests))


def read_scores(folder: Path, record: Record, lengths: Mapping[str, int]) -> dict[str, dict[str, Array]]:
    """By set and score; `lengths` are those of the sets."""
    by_set: dict[str, dict[str, Array]] = {name: {} for name in lengths}
    for score, sets in record.scores.items():
        path = folder / score_file(score)
        tensors, written = tensors_in(path), record.digests.get(score_file(score))
        if digest(tensors) != written:
            raise DamagedCell(path, "it holds other values than were written")
        for name in sets:
            if name in lengths:
                values = tensors.get(name)
                if values is None or values.shape != (lengths[name],) or values.dtype != torch.float64:
                    raise DamagedCell(path, f"it has no values of {name}")
                by_set[name][score] = values.numpy()
    return by_set


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
    tensors = tensors_in(path)
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


def tensors_in(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)[1]
    except (SafetensorError, OSError) as error:
        raise DamagedCell(path, error) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    with replacing(path) as unfinished:
        whole = {key: value.contiguous() for key, value in tensors.items()}
        save_file(whole, unfinished, metadata=dict(metadata or {}))


def is_done(folder: Path, further: Iterable[str] = ()) -> bool:
    """Whether the folder is whole, and has all the further predictions that are asked for."""
    if not (folder / RECORD).exists():
        return False
    record = read_record(folder)
    return record.has_further(further) and all((folder / name).exists() for name in files_of(record))


def read_result(folder: Path, cell: Cell) -> Result:
    """The cell's predictions, with those of its further inputs that the folder has."""
    record = read_record(folder)
    digests = record.digests
    main = read_predictions(folder / PREDICTIONS, record.sets, digests.get(PREDICTIONS))
    if len(main.y) != len(main.sets[TEST]):
        raise DamagedCell(folder / PREDICTIONS, f"{len(main.sets[TEST])} predictions have {len(main.y)} labels")
    if len(main.y) == 0 or not 0 <= int(main.y.min()) <= int(main.y.max()) < main.sets[TEST].probs.shape[1]:
        raise DamagedCell(folder / PREDICTIONS, "there are labels of no class, or none")
    further = {
        kind: read_predictions(folder / file_of(kind), record.further[kind], digests.get(file_of(kind)))
        for kind in cell.further
        if kind in record.further
    }
    if record.scores:
        main, further = _with_scores(folder, record, main, further)
    ood = {name.removeprefix(OOD): prediction for name, prediction in main.sets.items() if name.startswith(OOD)}
    return Result(cell, main.y, main.sets[TEST], ood, record, further)


def _with_scores(
    folder: Path, record: Record, main: Predicted, further: Mapping[str, Predicted]
) -> tuple[Predicted, dict[str, Predicted]]:
    every = [main, *further.values()]
    scores = read_scores(
        folder, record, {name: len(prediction) for each in every for name, prediction in each.sets.items()}
    )

    def scored(predicted: Predicted) -> Predicted:
        sets = {name: replace(prediction, scores=scores[name]) for name, prediction in predicted.sets.items()}
        return Predicted(predicted.y, sets)

    return scored(main), {kind: scored(each) for kind, each in further.items()}


def find_cells(runs: Path) -> list[tuple[Path, Cell]]:
    """Every cell that the folder was asked for, and where it lies; in a fixed order, of the same the newest last.

    Damaged ones are left out, and warned of.
    """
    cells = []
    for folder, record in read_records(runs):
        further = tuple(sorted(record.further))
        asked = dict.fromkeys(replace(cell, further=further) for cell in record.cells)
        cells += [(folder, cell) for cell in asked]
    return sorted(cells, key=lambda pair: [str(value) for value in astuple(pair[1])])


def read_results(runs: Path) -> list[Result]:
    return [read_result(folder, cell) for folder, cell in find_cells(runs)]


def pack(runs: Path, out: Path) -> list[Path]:
    """The predictions of all cells in a few files of at most 15 MiB; studies move between machines that way."""
    records = {folder.name: record for folder, record in read_records(runs)}
    batches: list[tuple[dict[str, Tensor], dict[str, str]]] = [({}, {})]
    size = 0
    for name, record in sorted(records.items()):
        try:
            content = {file: tensors_in(runs / name / file) for file in files_of(record)}
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


def files_of(record: Record) -> dict[str, tuple[str, ...]]:
    """The names of a folder's files, and of the sets that each has predictions of."""
    predictions = {PREDICTIONS: record.sets} | {file_of(name): sets for name, sets in record.further.items()}
    return predictions | {score_file(name): () for name in record.scores}


def check_content(content: Mapping[str, Mapping[str, Tensor]], record: Record, folder: Path) -> None:
    """Refuse tensors that are not those of the record: by digest, or where it has none, by name."""
    for file, sets in files_of(record).items():
        tensors, written = content.get(file, {}), record.digests.get(file)
        if written is not None and digest(dict(tensors)) != written:
            raise DamagedCell(folder / file, "it holds other predictions than were written")
        for name in sets:
            _prediction(tensors, name, folder / file)


def unpack(files: Iterable[Path], runs: Path) -> list[Path]:
    """Put packed predictions back into their folders; what is there already stays."""
    tensors: dict[str, dict[str, dict[str, Tensor]]] = {}  # by folder and file
    stored: dict[str, object] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                stored |= {name: json.loads(record) for name, record in (file.metadata() or {}).items()}
                for key in file.keys():  # noqa: SIM118
                    folder_name, file_name, name = key.split("/", 2)
                    tensors.setdefault(folder_name, {}).setdefault(file_name, {})[name] = file.get_tensor(key)
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a pack of predictions, or it is damaged ({error}); pack it anew") from None
    records = {name: check_packed(runs / name, name, tensors[name], stored.get(name)) for name in tensors}
    return [runs / name for name in tensors if _write_missing(runs / name, tensors[name], records[name])]


def check_packed(folder: Path, name: str, content: Mapping[str, Mapping[str, Tensor]], stored: object) -> Record:
    """Before anything is written: the folder lies where it should, and will be whole."""
    if not FOLDER.fullmatch(name):
        raise ValueError(f"the packs have a folder {name!r}, which cannot be a cell's; nothing is unpacked")
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link to elsewhere; delete it, or unpack into another folder")
    try:
        record = record_from(stored, folder / RECORD)
        check_content(content, record, folder)
    except DamagedCell as error:
        raise ValueError(
            f"the packs lack something of {name} ({error.reason}); unpack all files of one pack together"
        ) from None
    is_done(folder)  # what is there and damaged is refused, too
    return record


def _write_missing(folder: Path, content: Mapping[str, Mapping[str, Tensor]], record: Record) -> bool:
    """Whether anything was not there yet."""
    with locked(folder):
        existing = read_record(folder) if is_done(folder) else None
        new = [file for file in files_of(record) if existing is None or file not in files_of(existing)]
        for file_name in new:
            write_tensors(folder / file_name, content[file_name])
        if new:
            write_record(folder, record if existing is None else _join_records(existing, record, new))
    return bool(new)


def _join_records(first: Record, second: Record, new: Iterable[str]) -> Record:
    """Two records of one folder: the first, with what else the second was asked."""
    kinds = [kind for kind in second.further if file_of(kind) in new]
    return replace(
        first,
        cells=(*first.cells, *(cell for cell in second.cells if cell not in first.cells)),
        further={**first.further, **{kind: second.further[kind] for kind in kinds}},
        data={**first.data, **{kind: second.data[kind] for kind in kinds if kind in second.data}},
        digests={**first.digests, **{file: second.digests[file] for file in new if file in second.digests}},
        scores={**first.scores, **{name: sets for name, sets in second.scores.items() if score_file(name) in new}},
    )
