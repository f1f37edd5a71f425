"""A cell's record, cell.json: what it was asked, how it was made, and what its files hold."""

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from demur.files import replacing
from demur.methods import parse_method
from demur.names import choose
from demur.paper.further import FURTHER
from demur.paper.grid import CONVENTIONS, Cell, setting

RECORD = "cell.json"
DIGESTS = "digests"  # in the record: of the content of each file of predictions


class DamagedCell(ValueError):
    """A cell cannot be read; others can."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is damaged ({reason}); delete {path.parent}, and the study makes it anew")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:  # from one process to another
        return DamagedCell, (self.path, str(self.reason))


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    with replacing(folder / RECORD) as unfinished:
        unfinished.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """A folder's cell.json, with all that a report needs in it."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCell(path, error) from None
    check_record(record, path)
    return record


NEEDED: Mapping[str, Any] = {
    "cells": list,
    "sets": list,
    "fit": dict,
    "seconds": dict,
    "missing": list,
    "notes": dict,
    "trained_with": str | None,
    "training_inputs": int,
    "threads": int,
    "device": str,
}
OPTIONAL = {"further": dict, DIGESTS: dict, "data": dict}


def check_record(record: object, path: Path) -> None:
    """Refuse a record that lacks what everybody reads, or is of no cell."""
    if not isinstance(record, dict):
        raise DamagedCell(path, "it is no JSON object")
    for name, kind in {**NEEDED, **OPTIONAL}.items():
        if name not in record and name in NEEDED:
            raise DamagedCell(path, f"{name!r} is not in it")
        if name in record and not isinstance(record[name], kind):
            raise DamagedCell(path, f"{name!r} is {str(record[name])[:40]!r}")
    for sets in (record["sets"], record["missing"], *record.get("further", {}).values()):
        if not isinstance(sets, list) or not all(isinstance(name, str) for name in sets):
            raise DamagedCell(path, "it has sets without names")
    if "test" not in record["sets"]:
        raise DamagedCell(path, "it has no set 'test'")
    took = record["seconds"]
    if "fit" not in took or not all(isinstance(seconds, int | float) for seconds in took.values()):
        raise DamagedCell(path, "it does not say how long fitting took")
    try:
        record["fit"]["recipe"]["epochs"]
        for cell in record["cells"]:
            check_cell(Cell(**cell))
        for kind in record.get("further", {}):  # which becomes the name of a file
            choose(FURTHER, kind, "further inputs")
    except (TypeError, ValueError, KeyError) as error:
        raise DamagedCell(path, str(error).replace("Cell.__init__()", "a cell")) from None


def check_cell(cell: Cell) -> None:
    for name, kind in get_type_hints(Cell).items():
        if not isinstance(getattr(cell, name), kind):
            raise ValueError(f"a cell's {name} is {getattr(cell, name)!r}")
    setting(cell.task, cell.method)
    parse_method(cell.method)
    choose(dict.fromkeys(CONVENTIONS), cell.convention, "convention")


def read_records(runs: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders with a record, the oldest first; damaged ones are left out, and warned of."""
    for path in sorted(runs.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime_ns):
        try:
            yield path.parent, read_record(path.parent)
        except DamagedCell as error:
            leave_out(error)


def leave_out(error: DamagedCell) -> None:
    warnings.warn(f"left out: {error}", stacklevel=3)
