"""A cell's record, cell.json: what it was asked, how it was made, and what its files hold. Nobody else reads it."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from demur.files import replacing
from demur.outliers.values import current_name
from demur.study.grid import WORD, Cell, can_be_further

RECORD = "cell.json"
SCORE = re.compile(r"\w[\w.]*(:\w+)?")  # `knn`, `mypackage.mymodule:name`; a file is named by it
METHOD = re.compile(r"[\w.:+-]+")  # `la+nc`, `la+mypackage.mymodule:hedged`; it need not be known here


@dataclass(frozen=True)
class Record:
    """All that is known of a folder. An older version may have written fewer of those with a default."""

    cells: tuple[Cell, ...]
    sets: tuple[str, ...]  # with predictions: test, and OOD sets as `ood/name`
    fit: Mapping[str, Any]  # what determines the posterior
    seconds: Mapping[str, float]
    missing: tuple[str, ...]
    notes: Mapping[str, str]
    trained_with: str | None
    training_inputs: int
    threads: int
    device: str
    classes: int | None = None
    tuning: Any = None
    prior_precision: Any = None
    jobs: int | None = None  # processes at once; seconds compare only where there was one
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    source: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)  # digests of what was fitted to and predicted
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # kinds, and their sets
    digests: Mapping[str, str] = field(default_factory=dict)  # of the content of each file of predictions
    scores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of which values are kept, and their sets

    @property
    def epochs(self) -> int:
        return int(self.fit["recipe"]["epochs"])

    def asked(self, cell: Cell) -> bool:
        """Whether the cell is among those the folder was made for; what further inputs it has is told elsewhere."""
        return replace(cell, further=()) in [replace(other, further=()) for other in self.cells]

    def has_further(self, kinds: Iterable[str]) -> bool:
        return {*kinds} <= self.further.keys()

    def lacks_scores(self, names: Iterable[str]) -> list[str]:
        """Those of which it has not the values of every set."""
        sets = {*self.sets, *(name for kind in self.further.values() for name in kind)}
        return [name for name in names if not sets <= {*self.scores.get(name, ())}]

    def as_json(self) -> dict[str, Any]:
        items = {f.name: getattr(self, f.name) for f in fields(self)}
        return items | {"cells": [asdict(cell) | {"further": join_further(cell.further)} for cell in self.cells]}


def split_further(stored: str | None) -> tuple[str, ...]:
    """The kinds of further inputs, as they are stored."""
    return tuple(stored.split("+")) if stored else ()


def join_further(kinds: Iterable[str]) -> str | None:
    """The reverse: each kind once, in sorted order."""
    return "+".join(sorted(set(kinds))) or None


class DamagedCell(ValueError):
    """A cell cannot be read; others can."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is damaged ({reason}); delete {path.parent}, and the study makes it anew")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:  # from one process to another
        return DamagedCell, (self.path, str(self.reason))


def write_record(folder: Path, record: Record) -> None:
    with replacing(folder / RECORD) as unfinished:
        unfinished.write_text(json.dumps(record.as_json(), indent=1, sort_keys=True) + "\n", "utf-8")


def read_record(folder: Path) -> Record:
    """A folder's cell.json, with all that a report needs in it."""
    path = folder / RECORD
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCell(path, error) from None
    return record_from(content, path)


def json_types(of: type) -> dict[str, Any]:
    """What each field of a dataclass is in JSON, by name; without those that may be anything."""
    stored_as = {tuple: list, Mapping: dict}
    return {name: stored_as.get(get_origin(hint), hint) for name, hint in get_type_hints(of).items() if hint is not Any}


RECORD_TYPES = json_types(Record)
CELL_TYPES = json_types(Cell) | {"further": str | None}
NEEDED = tuple(f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING)


def record_from(content: object, path: Path) -> Record:
    """From JSON; refuse what lacks something that everybody reads, or is of no cell."""
    if not isinstance(content, dict):
        raise DamagedCell(path, "it is no JSON object")
    for name in NEEDED:
        if name not in content:
            raise DamagedCell(path, f"{name!r} is not in it")
    for name, kind in RECORD_TYPES.items():
        if name in content and not isinstance(content[name], kind):
            raise DamagedCell(path, f"{name!r} is {str(content[name])[:40]!r}")
    further = content.get("further", {})
    scores = content.get("scores", {})
    for sets in (content["sets"], content["missing"], *further.values(), *scores.values()):
        if not isinstance(sets, list) or not all(isinstance(name, str) for name in sets):
            raise DamagedCell(path, "it has sets without names")
    if not all(map(can_be_further, further)):
        raise DamagedCell(path, "its further sets have names that cannot be")
    if not all(map(SCORE.fullmatch, scores)):
        raise DamagedCell(path, "its scores have names that cannot be")
    if "test" not in content["sets"]:
        raise DamagedCell(path, "it has no set 'test'")
    took = content["seconds"]
    if "fit" not in took or not all(isinstance(seconds, int | float) for seconds in took.values()):
        raise DamagedCell(path, "it does not say how long fitting took")
    try:
        int(content["fit"]["recipe"]["epochs"])
        cells = tuple(cell_from(cell) for cell in content["cells"])
    except (TypeError, ValueError, KeyError) as error:
        raise DamagedCell(path, str(error).replace("Cell.__init__()", "a cell")) from None
    known = {f.name: content[f.name] for f in fields(Record) if f.name in content}
    tuples = {"sets": tuple(content["sets"]), "missing": tuple(content["missing"])}
    by_name = {
        name: {each: tuple(sets) for each, sets in table.items()}
        for name, table in {"further": further, "scores": scores}.items()
    }
    return Record(**known | tuples | by_name | {"cells": cells})


def cell_from(stored: Any) -> Cell:
    """Of any study: what its names mean need not be known here."""
    if not isinstance(stored, dict):
        raise TypeError(f"a cell is {stored!r:.40}")
    for name, value in stored.items():
        if name in CELL_TYPES and not isinstance(value, CELL_TYPES[name]):
            raise ValueError(f"a cell's {name} is {value!r}")
    outliers = current_name(stored.get("outliers"))
    cell = Cell(**{**stored, "outliers": outliers, "further": split_further(stored.get("further"))})
    for name, pattern in (("task", WORD), ("method", METHOD), ("convention", WORD)):
        if not pattern.fullmatch(getattr(cell, name)):
            raise ValueError(f"a cell's {name} is {getattr(cell, name)!r}")
    return cell


def read_records(runs: Path) -> Iterator[tuple[Path, Record]]:
    """The folders with a record, the oldest first; damaged ones are left out, and warned of."""
    for path in sorted(runs.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime_ns):
        try:
            yield path.parent, read_record(path.parent)
        except DamagedCell as error:
            leave_out(error)


def leave_out(error: DamagedCell) -> None:
    warnings.warn(f"left out: {error}", stacklevel=3)
