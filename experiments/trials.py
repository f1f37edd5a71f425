"""What the fuzz tries: commands, what of their files is damaged, and how what they do is judged."""

import csv
import io
import json
import math
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from PIL import Image

from demur.classifier import Classifier
from demur.cli import main
from demur.data.store import Store
from demur.paper.grid import Cell
from demur.study.results import pack, unpack
from experiments.damage import ANYWHERE, FOLDERS, INPUT, RESULTS, SPECIAL, ZIPS, Damage, renamed_input
from experiments.simple_readers import MIXED, Read, read_simply

TOWNS = ("Ulm", "Bonn", "Hof", "Kiel")
WORDS = "red green blue round square heavy light fast slow old new warm cold loud soft".split()  # noqa: SIM905
KINDS = {"rows.csv": "tables", "mixed.csv": "mixed", "rows.npz": "tables", "texts.jsonl": "texts", "texts.txt": "texts"}
KINDS |= {"images.d": "images", "classes.d": "images"}


def called(*arguments: object, printed: list[str] | None = None) -> tuple[int, str]:
    """The exit code of the command line and what it said on the error stream; a traceback has the code 1."""
    out, said = io.StringIO(), io.StringIO()
    command = ["demur", *map(str, arguments)]
    quiet = mock.patch("demur.cli.progress.FIRST_LINE", 1e6)  # however slow the machine
    with mock.patch.object(sys, "argv", command), quiet, redirect_stdout(out), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
        except BaseException:
            return 1, traceback.format_exc()
        finally:
            if printed is not None:
                printed.append(out.getvalue())
    return 0, said.getvalue()


# what is whole -------------------------------------------------------------------------------------------------------


def make_whole(folder: Path) -> None:
    """A small model of each kind as a folder and as a file, inputs for each, and a study's results."""
    draw = np.random.default_rng(0)
    group = np.arange(150) % 3
    y = np.array(["a", "b", "c"])[group]
    rows = (draw.normal(size=(150, 3)) + 4 * group[:, None]).round(6)
    pixels = (draw.integers(0, 80, (150, 1, 12, 12)) + 80 * group[:, None, None, None]).astype(np.uint8)
    texts = [" ".join(draw.choice(WORDS[5 * kind :][:5], 6)) for kind in group]
    table = pa.table({f"c{column}": rows[:, column] for column in range(3)})
    towns = [str(draw.choice([TOWNS[kind], TOWNS[3], ""], p=[0.6, 0.3, 0.1])) for kind in group]
    sizes = [None if draw.random() < 0.1 else size for size in rows[:, 0].tolist()]
    mixed = pa.table({"size": sizes, "width": rows[:, 1], "town": [town or None for town in towns]})
    for kind, x in {"tables": table, "mixed": mixed, "images": pixels, "texts": texts}.items():
        model = Classifier("la+nc", epochs=3, device="cpu").fit(x, y)
        for name in (kind, f"{kind}.demur"):
            model.save(folder / name)
    write_csv(
        folder / "rows.csv",
        ["c0", "c1", "c2", "label"],
        ([*r, of] for r, of in zip(rows.tolist()[:30], y[:30], strict=True)),
    )
    write_csv(
        folder / "mixed.csv",
        [*MIXED, "label"],
        zip(
            ["" if size is None else size for size in sizes[:60]],
            rows[:60, 1].tolist(),
            towns[:60],
            y[:60],
            strict=True,
        ),
    )
    write_csv(folder / "texts.csv", ["text", "label"], zip(texts[:30], y[:30], strict=True))
    np.savez(folder / "rows.npz", x=rows[:30], y=y[:30])
    np.savez(folder / "pixels.npz", x=pixels[:30, 0], y=group[:30])
    lines = (json.dumps({"text": text, "label": str(of)}) for text, of in zip(texts[:30], y[:30], strict=True))
    (folder / "texts.jsonl").write_text("\n".join(lines))
    (folder / "texts.txt").write_text("\n".join(texts[:30]))
    (folder / "images.d").mkdir()
    for number, suffix in enumerate(("png", "jpg", "webp", "bmp", "gif", "tiff", "pgm")):
        Image.fromarray(pixels[number, 0]).save(folder / "images.d" / f"{number}.{suffix}")
    for number in range(18):
        (folder / "classes.d" / y[number]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number, 0]).save(folder / "classes.d" / y[number] / f"{number}.png")
    from tests.test_report import make_result, write_runs

    write_runs([make_result(Cell("mnist", method)) for method in ("map", "la+nc")], folder / "runs.d")
    code, said = called("report", folder / "runs.d", "--out", folder / "tables.d", "--jobs", 1)
    assert code == 0, said
    for path in (folder / "tables.d").iterdir():
        if path.name not in ("results.csv", "cells.csv"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (made,) = pack(folder / "runs.d", folder / "packs")
    shutil.move(made, folder / "pack.safetensors")
    shutil.rmtree(folder / "packs")


def write_csv(path: Path, head: list[str], rows: object) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])  # type: ignore[misc]


# commands, and how each is judged ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command, what of its files is damaged and how, and by which of the whole files it is given."""

    command: str
    what: str
    how: str
    damaged: str
    damage: Damage


@dataclass(frozen=True)
class Trial:
    """The folder of a run, what is given there, and where the whole things are."""

    folder: Path
    whole: Path
    given: Path
    case: Case

    @property
    def out(self) -> Path:
        return self.folder / ("out.csv" if self.case.command == "predict" else "out")


Arguments = Callable[[Trial], tuple[object, ...]]
Judge = Callable[[Trial], bool]


def is_mixed(trial: Trial) -> bool:
    return trial.case.damaged.split(".")[0] == "mixed"


def of_kind(trial: Trial, name: str | None = None) -> Path:
    """The whole model for the damaged input, or the damaged one."""
    return trial.given if "model" in trial.case.what else trial.whole / KINDS[name or trial.case.damaged]


def input_for(trial: Trial) -> Path:
    """The damaged input, or a whole one for the damaged model."""
    if "model" not in trial.case.what:
        return trial.given
    kind = trial.case.damaged.removesuffix(".demur")
    return trial.whole / next(name for name, of in KINDS.items() if of == kind)


def predicted_rightly(trial: Trial) -> bool:
    with trial.out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if trial.case.how == "junk in JSON, hashes right":  # with its hashes right it is another model, not a damaged one
        return "nan" not in trial.out.read_text()
    given = input_for(trial)
    read, model = (
        read_simply(given, mixed=is_mixed(trial)),
        trial.whole / KINDS.get(given.name, KINDS.get(trial.case.damaged, "")),
    )
    said = Classifier.load(model, device="cpu").predict_all(read.x)
    right = [row for row in rows if row["input"] not in read.wrong]
    numbers = [(float(row["probability"]), float(row["outlier_score"])) for row in right]
    return (
        [row["input"] for row in rows] == read.names
        and all(row["decision"] == "invalid" for row in rows if row["input"] in read.wrong)
        and [row["decision"] for row in right] == said.decision.tolist()
        and [row["label"] for row in right] == said.label.tolist()
        and np.allclose(numbers, np.stack([said.probability, said.outlier_score], 1), atol=1e-5, rtol=1e-4)
    )


def whole_read(path: Path, mixed: bool) -> Read:
    """Of an input in which nothing is wrong."""
    read = read_simply(path, mixed=mixed)
    assert not read.wrong
    return read


def fitted_rightly(trial: Trial) -> bool:
    """To as many inputs, and to the same classes and outliers, as a simple reader finds."""
    model = Classifier.load(trial.out, device="cpu")
    of_outliers = trial.case.what.startswith("outliers")
    mixed, given = is_mixed(trial), trial.whole / trial.case.damaged if of_outliers else trial.given
    read = read_simply(given, taken=None, mixed=mixed)
    assert read.every_y is not None or not read.wrong  # of tables alone, rows with a gap or a word are learned
    count = sum(model.report_[name] for name in ("trained", "tuned", "calibrated"))
    if of_outliers:
        shown = f"{len(whole_read(trial.given, mixed).names)} given"
        if model.report_["outliers"] != (f"{shown}+unseen" if mixed else shown):
            return False
    return count == len(read.names) and list(map(str, model.classes_)) == sorted(set(read.every_y or read.y or ()))


def evaluated_rightly(trial: Trial) -> bool:
    with (trial.out / "evaluation.csv").open(newline="") as file:
        found = {(row["set"], row["score"], row["metric"]): float(row["value"]) for row in csv.DictReader(file)}
    if trial.case.how == "junk in JSON, hashes right":
        return True
    of_outliers = trial.case.what.startswith("outliers")
    kind = KINDS.get(trial.case.damaged, trial.case.damaged.removesuffix(".demur"))
    model = Classifier.load(trial.whole / kind, device="cpu")
    mixed = is_mixed(trial)
    read = whole_read(trial.whole / trial.case.damaged if of_outliers else input_for(trial), mixed)
    label = model.predict(read.x).astype(str)
    if of_outliers:
        outside = model.decide(whole_read(trial.given, mixed).x)
        accepted = next(value for (of, _, name), value in found.items() if of != "inliers" and name == "accepted")
        if not np.isclose(accepted, np.mean(~np.isin(outside, ["unsure", "unknown"])), atol=1e-9):
            return False
    return bool(np.isclose(found["inliers", "", "accuracy"], np.mean(label == np.array(read.y)), atol=1e-9))


def set_anew_rightly(trial: Trial) -> bool:
    """With the limits that the inputs have, as a simple reader reads them."""
    if trial.case.how == "junk in JSON, hashes right":
        return True
    given, new = input_for(trial), Classifier.load(trial.out, device="cpu")
    model = trial.whole / KINDS.get(given.name, KINDS.get(trial.case.damaged, ""))
    scores = np.sort(Classifier.load(model, device="cpu").outlier_score(whole_read(given, is_mixed(trial)).x))
    place = min(len(scores), math.ceil(round((len(scores) + 1) * new.decision_.coverage, 9)))
    return new.decision_.count == len(scores) and np.isclose(new.decision_.accept[0], scores[place - 1], rtol=1e-5)


def exported_rightly(trial: Trial) -> bool:
    """Export itself compares the graph with the model."""
    return trial.out.with_suffix(".onnx").read_bytes()[2:9] == b"\x12\x05demur"


def reported_rightly(trial: Trial) -> bool:
    """Every row is one of the whole results, or of the damaged table, and those of whole cells are all there."""
    with (trial.whole / "tables.d" / "results.csv").open(newline="") as file:
        whole = {tuple(row) for row in csv.reader(file)}
    with (trial.out / "results.csv").open(newline="") as file:
        found = {tuple(row) for row in csv.reader(file)}
    if trial.case.damaged == "tables.d":
        return len(found) > 1
    return found <= whole and len({row[2] for row in found}) > 1  # at least one cell beside the head


def unpacked_rightly(trial: Trial) -> bool:
    """What was unpacked is what was packed."""
    expected = trial.folder.parent / f"{trial.folder.name}.expected"
    try:
        unpack([trial.whole / "pack.safetensors"], expected)
        return all(
            (expected / file.relative_to(trial.out)).read_bytes() == file.read_bytes()
            for file in trial.out.rglob("*.safetensors")
        )
    finally:
        shutil.rmtree(expected, ignore_errors=True)


def added_rightly(trial: Trial) -> bool:
    store = Store(trial.out)
    name = trial.case.damaged
    split = next(path.name.split("-")[0] for path in (trial.out / "mine").glob("*.parquet"))
    if name.startswith("texts"):
        texts, _ = store.texts("mine", split)
        return texts == read_simply(trial.given).x
    pixels, _ = store.images("mine", split)
    if name == "pixels.npz":
        return np.array_equal(pixels[:, 0], np.load(trial.given)["x"])
    return np.array_equal(pixels[:, 0], read_simply(trial.given).x)  # type: ignore[arg-type]


def outliers_too(trial: Trial) -> tuple[object, object]:
    name = trial.case.damaged
    return (trial.whole / name, trial.given) if trial.case.what.startswith("outliers") else (trial.given, None)


def to_fit(trial: Trial) -> tuple[object, ...]:
    given, outliers = outliers_too(trial)
    return ("fit", given, "-o", trial.out, "--epochs", 1, "--method", "map+nc", "--device", "cpu") + (
        ("--outliers", outliers) if outliers else ()
    )


def to_evaluate(trial: Trial) -> tuple[object, ...]:
    if "model" in trial.case.what:
        return "evaluate", trial.given, input_for(trial), "--report", trial.out
    given, ood = outliers_too(trial)
    model = trial.whole / KINDS[trial.case.damaged]
    return ("evaluate", model, given, "--report", trial.out) + (("--ood", ood) if ood else ())


COMMANDS: dict[str, tuple[Arguments, Judge]] = {
    "predict": (lambda t: ("predict", of_kind(t), input_for(t), "-o", t.out, "--device", "cpu"), predicted_rightly),
    "fit": (to_fit, fitted_rightly),
    "evaluate": (to_evaluate, evaluated_rightly),
    "calibrate": (lambda t: ("calibrate", of_kind(t), input_for(t), "-o", t.out, "--device", "cpu"), set_anew_rightly),
    "export": (lambda t: ("export", t.given, t.out.with_suffix(".onnx"), "--onnx"), exported_rightly),
    "report": (lambda t: ("report", t.given, "--out", t.out, "--jobs", 1), reported_rightly),
    "unpack": (lambda t: ("unpack", t.given, "--runs", t.out), unpacked_rightly),
    "data add": (lambda t: ("data", "add", "mine", t.given, "--data", t.out), added_rightly),
}


def cases() -> Iterator[Case]:
    for name in KINDS:
        ways = {**ANYWHERE, **SPECIAL.get(name, {}), "renamed": renamed_input}
        labelled = name not in ("texts.txt", "images.d")
        for how, damage in ways.items():
            yield Case("predict", name, how, name, damage)
            yield Case("calibrate", name, how, name, damage)
            if labelled:
                for command in ("fit", "evaluate"):
                    yield Case(command, name, how, name, damage)
                    yield Case(command, f"outliers {name}", how, name, damage)
    for kind in ("tables", "mixed", "images", "texts"):
        every = ("predict", "evaluate", "calibrate", "export")
        for command in every if kind in ("tables", "mixed") else ("predict",):
            for how, damage in (ANYWHERE | FOLDERS).items():
                yield Case(command, "model folder", how, kind, damage)
            for how, damage in (ANYWHERE | ZIPS).items():
                yield Case(command, "model file", how, f"{kind}.demur", damage)
    for name in ("texts.csv", "texts.txt", "pixels.npz", "classes.d"):
        for how, damage in (ANYWHERE | INPUT.get(name, {})).items():
            yield Case("data add", name, how, name, damage)
    for command, name in (("report", "runs.d"), ("report", "tables.d"), ("unpack", "pack.safetensors")):
        for how, damage in (ANYWHERE | RESULTS[name]).items():
            yield Case(command, name, how, name, damage)
