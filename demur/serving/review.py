"""Abstained inputs, looked at by somebody: each is of a known class, of a new one, or junk.

What `demur serve --keep-inputs` wrote stays as it is. A verdict is a file of its own beside it, `reviewed-....json`,
which has the input as well: the server removes its oldest files in the end, and never these.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demur.classifier import Classifier
from demur.classifier.decision import INVALID, UNKNOWN, UNSURE
from demur.classifier.readers import X, join_names
from demur.files import replacing
from demur.serving.inputs import as_x
from demur.serving.keeping import ID, PREFIX
from demur.serving.limits import Limits, Refused

REVIEWED = "reviewed-"
CLASS, JUNK = "class", "junk"
LONGEST = 200  # characters of a label
ONE_VALUE = ("kind", "decision", "label", "time")  # of a record that are no list and no object
RESERVED = (UNSURE, UNKNOWN, INVALID)
Record = dict[str, Any]


class Review:
    """A folder of abstained inputs and of verdicts on them."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; give the one that demur serve --keep-inputs names")
        self.folder, self._lock = folder, threading.Lock()
        if not self.ids():
            raise ValueError(f"{folder} has no abstained inputs; demur serve --keep-inputs {folder} collects them")

    def ids(self) -> list[str]:
        """From the oldest to the newest."""
        names = (file.name.removesuffix(".json") for file in self.folder.glob("*.json"))
        ids = {name.removeprefix(prefix) for name in names for prefix in (PREFIX, REVIEWED) if name.startswith(prefix)}
        return sorted(each for each in ids if ID.fullmatch(each))

    def record(self, id: str) -> Record:
        """What was kept, and the verdict: `verdict` is `class` (its name is `given`), `junk`, or None."""
        if not ID.fullmatch(id):
            raise Refused(f"{id[:40]!r} is no name of an input", 404)
        for prefix in (REVIEWED, PREFIX):
            file = self.folder / f"{prefix}{id}.json"
            if os.path.lexists(file):  # a link to nothing is no verdict that was never given
                return read_record(file)
        raise Refused(f"input {id} is no longer there; the server keeps the newest only", 404)

    def records(self) -> Iterator[tuple[str, Record | None]]:
        """All of them by name; None for what cannot be read."""
        for id in self.ids():
            try:
                yield id, self.record(id)
            except ValueError:
                yield id, None

    def judge(self, id: str, verdict: str | None, given: str | None = None) -> Record:
        """Write the verdict, None to take it back."""
        label = check_verdict(verdict, given)
        with self._lock:
            record = self.record(id) | {"verdict": verdict, "given": label}
            with replacing(self.folder / f"{REVIEWED}{id}.json") as unfinished:
                unfinished.write_text(json.dumps(record), "utf-8")
        return record

    def counts(self) -> Counter[str]:
        """By verdict; `waiting` for those without, `new` for the classes that no model knew."""
        counts: Counter[str] = Counter()
        for _, record in self.records():
            counts[sort_of(record)] += 1
        return counts


def read_record(file: Path) -> Record:
    try:
        record = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:  # by now
        raise Refused(f"{file.name} is no longer there; the server keeps the newest only", 404) from None
    except (ValueError, OSError, RecursionError) as error:
        raise Refused(f"{file} is no abstained input ({error}); move it away") from None
    if not isinstance(record, dict) or "input" not in record or not isinstance(record.get("model"), str):
        raise Refused(f"{file} is no abstained input (it has no input and model); move it away")
    record = {"verdict": None, "given": None, "probabilities": {}, "outlier_score": None} | record
    numbers: tuple[Any, ...] = record["probabilities"], {"": record["outlier_score"] or 0}
    if not all(isinstance(each, dict) and {*map(type, each.values())} <= {int, float} for each in numbers):
        raise Refused(f"{file} is no abstained input (its probabilities are no numbers); move it away")
    odd = next((name for name in ONE_VALUE if isinstance(record.get(name), dict | list)), None)
    if odd is not None:
        raise Refused(f"{file} is no abstained input (its {odd} is {str(record[odd])[:40]}); move it away")
    return record | {"given": check_verdict(record["verdict"], record["given"])}


def check_verdict(verdict: Any, given: Any) -> str | None:
    """The class that is given, where it is one."""
    if verdict not in (CLASS, JUNK, None):
        raise Refused(f"verdict {str(verdict)[:40]!r} is not known; give 'class', 'junk' or null")
    if verdict != CLASS:
        return None
    label = given.strip() if isinstance(given, str) else ""
    if not label or len(label) > LONGEST or not label.isprintable():
        raise Refused(f"class {str(given)[:40]!r} is no name; give 1 to {LONGEST} printable characters")
    if label in RESERVED:
        raise Refused(f"class {label!r} is an answer of demur's own; give another name")
    return label


def known_classes(record: Record) -> list[str]:
    """Of the model that abstained; from the most probable one."""
    probabilities = record["probabilities"] or {str(record.get("label")): 1.0}  # kept by an older demur
    return sorted(probabilities, key=lambda name: -probabilities[name])


def sort_of(record: Record | None) -> str:
    if record is None:
        return "unreadable"
    if record["verdict"] != CLASS:
        return str(record["verdict"] or "waiting")
    return "known" if record["given"] in known_classes(record) else "new"


# to fit with --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reviewed:
    """Inputs as a model takes them, with their classes, and those that belong to none; None where there are none."""

    x: X | None
    y: Sequence[str]
    junk: X | None
    num_junk: int

    def __str__(self) -> str:
        classes = ", ".join(f"{count} {name}" for name, count in sorted(Counter(self.y).items()))
        return f"{len(self.y)} of classes ({classes}), {self.num_junk} junk" if self.y else f"{self.num_junk} junk"


def read_reviewed(folder: str | Path, model: Classifier, name: str | None = None) -> Reviewed:
    """The inputs of a folder that have a verdict, as `model` takes them.

    Where the folder has those of several models, `name` says which: what the server called it.
    """
    review = Review(Path(folder))
    judged = []
    for id, record in review.records():
        if record is None and os.path.lexists(review.folder / f"{REVIEWED}{id}.json"):
            record = review.record(id)  # says what is wrong with it: a verdict is not to be lost without a word
        if record is not None and record["verdict"] is not None:
            judged.append(record)
    if not judged:
        raise ValueError(f"{folder} has no reviewed inputs; demur review {folder} is where they get their labels")
    models = sorted({record["model"] for record in judged})
    if len(models) > 1:
        if name not in models:
            raise ValueError(f"{folder} has inputs of several models, {join_names(models)}, none of them {name!r}")
        judged = [record for record in judged if record["model"] == name]
    odd = {record["kind"] for record in judged if "kind" in record} - {model.preprocessing_.kind}
    if odd:
        raise ValueError(f"{folder} has {odd.pop()}, the model is for {model.preprocessing_.kind}; give that model's")
    inside = [record for record in judged if record["verdict"] == CLASS]
    junk = [record["input"] for record in judged if record["verdict"] == JUNK]
    limits = Limits(inputs=len(judged))
    return Reviewed(
        as_x(model, [record["input"] for record in inside], limits) if inside else None,
        [record["given"] for record in inside],
        as_x(model, junk, limits) if junk else None,
        len(junk),
    )


def shown(record: Record) -> Mapping[str, Any]:
    """The input, for somebody to look at: an image as base64, a text, or a row's cells by their names."""
    given, kind = record["input"], record.get("kind")
    if isinstance(given, Mapping) and isinstance(given.get("image"), str):
        given, kind = given["image"], "images"
    elif isinstance(given, Mapping) and kind in ("texts", None) and isinstance(given.get("text"), str):
        given, kind = given["text"], "texts"
    if kind == "images" and isinstance(given, str):
        return {"image": given.partition(",")[2] if given.startswith("data:") else given}
    if isinstance(given, str):
        return {"text": given}
    cells = given.items() if isinstance(given, Mapping) else enumerate(given if isinstance(given, list) else [given], 1)
    return {
        "cells": [[str(name), json.dumps(value) if isinstance(value, list | dict) else value] for name, value in cells]
    }
