"""What the fuzz tries of models in use: compare, monitor, outliers, review, and what is fitted from what there is."""

import asyncio
import csv
import json
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from starlette.types import ASGIApp

from demur.classifier import Classifier
from demur.serving.monitor import Monitor
from experiments.simple_readers import read_image, read_simply
from experiments.trial import Trial, input_for, is_mixed, of_kind, whole_model, whole_read
from experiments.whole import KINDS, OTHERS

REHASHED = "junk in JSON, hashes right"  # another model, not a damaged one
TOKEN = "token"


# compare -------------------------------------------------------------------------------------------------------------


def to_compare(trial: Trial) -> tuple[object, ...]:
    """The whole model beside the damaged one, or twice, as a folder and as a file."""
    model = of_kind(trial)
    name = whole_model(trial).name
    other = trial.whole / (name if model.suffix == ".demur" else f"{name}.demur")
    ood = () if is_mixed(trial) or name == "texts" else ("--ood", trial.whole / "others.csv")
    return ("compare", model, other, input_for(trial), "--report", trial.out, *ood)


def compared_rightly(trial: Trial) -> bool:
    """Both are as accurate as the whole one."""
    with (trial.out / "comparison.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["set"], row["score"]) == ("inliers", "")]
    found = [float(row["value"]) for row in rows if row["metric"] == "accuracy"]
    if trial.case.how == REHASHED:
        return len(found) == 2
    read = whole_read(input_for(trial), is_mixed(trial))
    right = Classifier.load(whole_model(trial), device="cpu").predict(read.x).astype(str) == np.array(read.y)
    return len(found) == 2 and np.allclose(found, np.mean(right), atol=1e-9)


# monitor -------------------------------------------------------------------------------------------------------------


def to_monitor(trial: Trial) -> tuple[object, ...]:
    if "model" in trial.case.what:
        return "monitor", trial.given, trial.whole / "answers.csv"
    return "monitor", trial.whole / "tables", trial.given


def watched_rightly(trial: Trial) -> bool:
    """It says of the answers what is said of those that a simple reader reads, and its exit code is the verdict's."""
    if trial.case.how == REHASHED:
        return True
    of_model = "model" in trial.case.what
    head, *lines = (trial.whole / "answers.csv" if of_model else trial.given).read_text("utf-8").splitlines()
    columns = next(csv.reader([head]))
    rows = []
    for line in filter(None, lines):
        (cells,) = csv.reader([line])
        assert len(cells) == len(columns)
        row = dict(zip(columns, cells, strict=True))
        if row["decision"] != "invalid":
            assert row["decision"] in (row["label"], "unsure", "unknown")
            rows.append(row)
    scores = [None if row["outlier_score"] == "nan" else float(row["outlier_score"]) for row in rows]
    watched = Monitor.of(Classifier.load(whole_model(trial) if of_model else trial.whole / "tables"), 0.01)
    watched.observe(scores, [row["decision"] in ("unsure", "unknown") for row in rows], [row["label"] for row in rows])
    report = watched.report()
    return report.said in trial.printed and trial.code == (report.alarm is not None)


# outliers ------------------------------------------------------------------------------------------------------------


def to_propose(trial: Trial) -> tuple[object, ...]:
    inliers, source = _inliers_and_source(trial)
    return "outliers", inliers, "--from", source, "-o", trial.out, "--number", 500


def _inliers_and_source(trial: Trial) -> tuple[Path, Path]:
    name = trial.case.damaged
    if name in OTHERS:
        return trial.whole / OTHERS[name], trial.given
    return trial.given, trial.whole / next(source for source, of in OTHERS.items() if of == name)


def proposed_rightly(trial: Trial) -> bool:
    """What is written is of the source, and no inlier."""
    inliers, source = _inliers_and_source(trial)
    if trial.out.suffix == ".txt":
        written = trial.out.read_text("utf-8").splitlines()
        words = {word for text in read_simply(source).x for word in text.split()}  # type: ignore[attr-defined]
        inside = {" ".join(text.split()) for text in read_simply(inliers).x}  # type: ignore[attr-defined]
        return bool(written) and {*" ".join(written).split()} <= words and not inside & {*written}
    if trial.out.is_dir():
        files = [file for file in trial.out.rglob("*") if file.is_file()]
        found, there, inside = (
            {read_image(file).tobytes() for file in of if file.is_file()}
            for of in (files, source.rglob("*"), _readable(inliers))
        )
        return bool(found) and found <= there and not found & inside
    with trial.out.open(newline="") as file:
        head, *cells = csv.reader(file)
    inside_rows = read_simply(inliers, taken=None).x
    there_rows = read_simply(source, taken=tuple(inside_rows.column_names))  # type: ignore[attr-defined]
    assert not there_rows.wrong
    rows = {tuple(map(float, row)) for row in cells}
    shown, inliers_too = (
        {tuple(row.values()) for row in x.select(head).to_pylist()} for x in (there_rows.x, inside_rows)
    )  # type: ignore[attr-defined]
    return rows == shown - inliers_too


def _readable(folder: Path) -> list[Path]:
    read = read_simply(folder)
    return [folder / name for name in read.names if name not in read.wrong]


# review --------------------------------------------------------------------------------------------------------------


def ask_all(app: ASGIApp, listening: socket.socket) -> None:
    """What the page asks for, of every input; no answer may be an error of the server's."""
    status, overview = asyncio.run(_ask(app, "/v1/review"))
    assert status == 200, overview
    for one in json.loads(overview)["inputs"]:
        status, body = asyncio.run(_ask(app, f"/v1/review/{one['id']}"))
        assert status == 200 or (status < 500 and json.loads(body)["error"]), body


async def _ask(app: ASGIApp, path: str) -> tuple[int, str]:
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("test", 1)}
    scope |= {"server": ("127.0.0.1", 1), "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


def read_kept(folder: Path) -> dict[str, dict | None]:
    """Records of a folder by name, that with a verdict first; None where it cannot be read."""
    found: dict[str, dict | None] = {}
    for file in sorted(folder.iterdir()):  # abstained- comes before reviewed-
        match = re.fullmatch(r"(?:abstained|reviewed)-(\d{20}-\d{6})\.json", file.name)
        if match:
            try:
                record = json.loads(file.read_text("utf-8"))
                assert "input" in record
                found[match[1]] = record if _is_record(record) else None
            except (ValueError, RecursionError, OSError, TypeError, KeyError, AssertionError):
                found[match[1]] = None
    return found


def _is_record(record: dict) -> bool:
    given, verdict = record.get("given"), record.get("verdict")
    numbers, score = record.get("probabilities", {}), record.get("outlier_score")
    named = isinstance(given, str) and given.strip().isprintable() and 0 < len(given.strip()) <= 200
    return (
        isinstance(record["model"], str)
        and not any(isinstance(record.get(name), list | dict) for name in ("kind", "decision", "label", "time"))
        and isinstance(numbers, dict)
        and all(type(number) in (int, float) for number in numbers.values())
        and type(score or 0) in (int, float)
        and (verdict in (None, "junk") or (verdict == "class" and named and given.strip() not in ("unsure", "unknown")))
    )


def shown_rightly(trial: Trial) -> bool:
    """As many of each sort as there are."""
    counts = Counter(
        "unreadable" if record is None else record.get("verdict") or "waiting"
        for record in read_kept(trial.given).values()
    )
    known, new, junk, waiting = map(
        int,
        re.search(
            r"reviewed  (\d+) of known classes, (\d+) of new ones, (\d+) junk; (\d+) wait", trial.printed
        ).groups(),  # type: ignore[union-attr]
    )
    return (known + new, junk, waiting) == (counts["class"], counts["junk"], counts["waiting"])


# fit ----------------------------------------------------------------------------------------------------------------


def to_go_on(trial: Trial) -> tuple[object, ...]:
    data, before, reviewed = _parts_of_fit(trial)
    more = ("--reviewed", reviewed) if reviewed else ()
    return ("fit", data, "--from", before, "-o", trial.out, "--epochs", 1, "--device", "cpu", *more)


def _parts_of_fit(trial: Trial) -> tuple[Path, Path, Path | None]:
    """Data, the model before, and what was reviewed."""
    if trial.case.what.startswith("reviewed"):
        kind = trial.case.what.removeprefix("reviewed ")
        name = next(name for name, of in KINDS.items() if of == kind)
        return trial.whole / name, trial.whole / kind, trial.given
    return input_for(trial), of_kind(trial), None


def gone_on_rightly(trial: Trial) -> bool:
    """With as many inputs, and to the same classes, as simple readers find."""
    if trial.case.how == REHASHED:
        return True
    data, before, reviewed = _parts_of_fit(trial)
    read = whole_read(data, is_mixed(trial))
    labels = list(read.y or ())
    if reviewed is not None:
        records = read_kept(reviewed)
        names = {file.name for file in reviewed.iterdir()}
        if any(record is None and f"reviewed-{id}.json" in names for id, record in records.items()):
            return False  # a verdict is not left out without a word
        judged = [record for record in records.values() if record is not None and record.get("verdict")]
        if len({record["model"] for record in judged}) > 1:  # those of this model
            judged = [record for record in judged if record["model"] == before.name]
        labels += [record["given"].strip() for record in judged if record["verdict"] == "class"]
    return _is_fitted_to(trial, labels)


def to_fit_backbone(trial: Trial) -> tuple[object, ...]:
    given = ("--backbone", f"hf:{trial.given}", "--method", "map+nc", "--epochs", 1, "--device", "cpu")
    return ("fit", trial.whole / "texts.jsonl", "-o", trial.out, *given)


def fitted_backbone_rightly(trial: Trial) -> bool:
    """To every text, with features that are numbers."""
    read = read_simply(trial.whole / "texts.jsonl")
    probabilities = Classifier.load(trial.out, device="cpu").predict_proba(read.x)
    return bool(np.isfinite(probabilities).all()) and _is_fitted_to(trial, list(read.y or ()))


def _is_fitted_to(trial: Trial, labels: list[str]) -> bool:
    model = Classifier.load(trial.out, device="cpu")
    count = sum(model.report_[name] for name in ("trained", "tuned", "calibrated"))
    return count == len(labels) and list(map(str, model.classes_)) == sorted(set(labels))
