"""The answers: a folder of parquet parts, one for each fragment, and a manifest that says of what.

    _manifest.json         the model's hash, the inputs' fingerprint, how many parts there will be
    part-000000.parquet    answers to the first fragment's inputs, in their order

A part gets its name once it is whole, so a part that is there is kept, and every input is in exactly one. Readers of
parquet folders pass over names that begin with an underscore.
"""

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from demur.classifier import Classifier
from demur.classifier.decision import INVALID
from demur.classifier.readers import Batch
from demur.scale.places import Location

MANIFEST = "_manifest.json"
PART = re.compile(r"part-(\d{6,})\.parquet")
UNFINISHED = re.compile(r"_unfinished-[0-9a-f]{32}")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("input", "decision", "label")),
        *((name, pa.float64()) for name in ("probability", "outlier_score", "p_value")),
    ]
)
ROWS = 2**16  # of a row group
LONGEST = 2**16  # bytes of a manifest


@dataclass(frozen=True)
class Manifest:
    model: str
    inputs: str
    parts: int
    strict: bool
    layout: int = 1


def answer(classifier: Classifier, batch: Batch) -> pa.Table:
    """A row for each input; of one that could not be read the decision is `invalid` and the rest null."""
    right = np.array([place not in batch.wrong for place in range(len(batch.names))], bool)
    columns = {name: np.full(len(right), None, object) for name in SCHEMA.names}
    columns["input"][:] = batch.names
    columns["decision"][:] = INVALID
    if right.any():
        answers = classifier.predict_all(batch.x)
        for name in SCHEMA.names[1:]:
            values = getattr(answers, name)
            if values is not None:
                columns[name][right] = [str(v) for v in values] if name in ("decision", "label") else values.tolist()
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def part_name(number: int) -> str:
    return f"part-{number:06}.parquet"


def write_part(to: Location, number: int, answers: Iterable[pa.Table], manifest: Manifest) -> None:
    """Whole or not at all; whoever writes the same part at the same time writes the same, or has replaced the output,
    and then this run's answers do not belong there."""
    unfinished = f"{to.path}/_unfinished-{uuid.uuid4().hex}"
    try:
        with to.files.open_output_stream(unfinished) as stream, pq.ParquetWriter(stream, SCHEMA) as writer:
            waiting: list[pa.Table] = []
            for table in answers:
                waiting.append(table)
                if sum(map(len, waiting)) >= ROWS:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            writer.write_table(pa.concat_tables([*waiting, SCHEMA.empty_table()]))
        check_still_ours(to, manifest)
        to.files.move(unfinished, f"{to.path}/{part_name(number)}")
    except BaseException as error:
        if isinstance(error, OSError) and number in parts_in(to):  # by another run, which then tidied up
            return
        if to.files.get_file_info(unfinished).type == fs.FileType.File:
            to.files.delete_file(unfinished)
        raise


def open_output(to: Location, manifest: Manifest, overwrite: bool) -> set[int]:
    """The numbers of the parts that are there already; what is there of something else is refused, or removed if it is
    an output of ours and may be overwritten."""
    names = {name for name, _ in _entries(to)}
    stored = _read_manifest(to) if MANIFEST in names else None
    if stored is not None:
        if stored == asdict(manifest):
            return parts_in(to)
        if not overwrite:
            raise ValueError(
                f"{to.name} has answers to other inputs, of another model, or made with another --strict; name another "
                "folder, or add --overwrite"
            )
        ours = [name for name in names if PART.fullmatch(name) or UNFINISHED.fullmatch(name)]
        for name in (*ours, MANIFEST):  # as long as there is a manifest, what is left is known as ours
            to.files.delete_file(f"{to.path}/{name}")
    elif any(not UNFINISHED.fullmatch(name) for name in names):
        raise ValueError(f"{to.name} holds something else, such as {min(names)}; name a new folder")
    to.files.create_dir(to.path)
    unfinished = f"{to.path}/_unfinished-{uuid.uuid4().hex}"
    with to.files.open_output_stream(unfinished) as stream:
        stream.write(_bytes(manifest))
    to.files.move(unfinished, f"{to.path}/{MANIFEST}")
    return set()


def check_still_ours(to: Location, manifest: Manifest) -> None:
    """Refuse to go on where another run has taken the output with --overwrite."""
    is_there = to.files.get_file_info(f"{to.path}/{MANIFEST}").type == fs.FileType.File
    if not is_there or _read_manifest(to) != asdict(manifest):
        raise ValueError(f"{to.name} was taken by another run, of other inputs or another model; name another folder")


def _read_manifest(to: Location) -> dict[str, Any] | None:
    """What it says, if it is one of ours."""
    with to.files.open_input_stream(f"{to.path}/{MANIFEST}") as stream:
        content = stream.read(LONGEST)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        return None
    names = {field.name for field in fields(Manifest)}
    return manifest if isinstance(manifest, dict) and manifest.keys() == names else None


def parts_in(to: Location) -> set[int]:
    return {int(match[1]) for name, size in _entries(to) if size and (match := PART.fullmatch(name))}


def remove_unfinished(to: Location) -> None:
    """What was begun by workers that were killed."""
    for name, _ in _entries(to):
        if UNFINISHED.fullmatch(name):
            to.files.delete_file(f"{to.path}/{name}")


def _entries(to: Location) -> list[tuple[str, int]]:
    """Names, and the sizes of those that are files."""
    info = to.files.get_file_info(to.path)
    if info.type == fs.FileType.File:
        raise ValueError(f"{to.name} is a file, and a folder of parts is to be there; name another")
    selector = fs.FileSelector(to.path, allow_not_found=True)
    named = ((each.path.rpartition("/")[2], each.size or 0) for each in to.files.get_file_info(selector))
    return [(name, size) for name, size in named if name]


def _bytes(manifest: Manifest) -> bytes:
    return json.dumps(asdict(manifest), indent=1).encode()
