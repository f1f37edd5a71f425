"""What the fuzz tries: commands, what of their files is damaged, and how what they do is judged."""

import csv
import math
import shutil
from collections.abc import Iterator

import numpy as np

from demur.classifier import Classifier
from demur.data.store import Store
from demur.study.results import unpack
from experiments import trials_in_use as in_use
from experiments.damage import ANYWHERE, FOLDERS, INPUT, RESULTS, SPECIAL, ZIPS, renamed_input
from experiments.damage_in_use import ANSWERS, BACKBONES, KEPT
from experiments.simple_readers import read_simply
from experiments.trial import (
    Arguments,
    Case,
    Judge,
    Trial,
    input_for,
    is_mixed,
    of_kind,
    read_for,
    whole_model,
    whole_read,
)
from experiments.whole import KINDS, OTHERS


def predicted_rightly(trial: Trial) -> bool:
    with trial.out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if trial.case.how == "junk in JSON, hashes right":  # with its hashes right it is another model, not a damaged one
        return "nan" not in trial.out.read_text()
    given = input_for(trial)
    read = read_for(trial, given)
    said = Classifier.load(whole_model(trial), device="cpu").predict_all(read.x)
    right = [row for row in rows if row["input"] not in read.wrong]
    numbers = [(float(row["probability"]), float(row["outlier_score"])) for row in right]
    return (
        [row["input"] for row in rows] == read.names
        and all(row["decision"] == "invalid" for row in rows if row["input"] in read.wrong)
        and [row["decision"] for row in right] == said.decision.tolist()
        and [row["label"] for row in right] == said.label.tolist()
        and np.allclose(numbers, np.stack([said.probability, said.outlier_score], 1), atol=1e-5, rtol=1e-4)
    )


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
    model = Classifier.load(whole_model(trial), device="cpu")
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
    model = Classifier.load(whole_model(trial), device="cpu")
    scores = np.sort(model.outlier_score(whole_read(given, is_mixed(trial)).x))
    place = min(len(scores), math.ceil(round((len(scores) + 1) * new.decision_.coverage, 9)))
    return new.decision_.count == len(scores) and np.isclose(
        new.decision_.accept[0], scores[place - 1], rtol=2e-5, atol=1e-6
    )


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
    return ("evaluate", whole_model(trial), given, "--report", trial.out) + (("--ood", ood) if ood else ())


COMMANDS: dict[str, tuple[Arguments, Judge]] = {
    "predict": (lambda t: ("predict", of_kind(t), input_for(t), "-o", t.out, "--device", "cpu"), predicted_rightly),
    "fit": (to_fit, fitted_rightly),
    "evaluate": (to_evaluate, evaluated_rightly),
    "calibrate": (lambda t: ("calibrate", of_kind(t), input_for(t), "-o", t.out, "--device", "cpu"), set_anew_rightly),
    "export": (lambda t: ("export", t.given, t.out.with_suffix(".onnx"), "--onnx"), exported_rightly),
    "report": (lambda t: ("report", t.given, "--out", t.out, "--jobs", 1), reported_rightly),
    "unpack": (lambda t: ("unpack", t.given, "--runs", t.out), unpacked_rightly),
    "data add": (lambda t: ("data", "add", "mine", t.given, "--data", t.out), added_rightly),
    "compare": (in_use.to_compare, in_use.compared_rightly),
    "monitor": (in_use.to_monitor, in_use.watched_rightly),
    "outliers": (in_use.to_propose, in_use.proposed_rightly),
    "review": (lambda t: ("review", t.given, "--port", 0), in_use.shown_rightly),
    "fit --from": (in_use.to_go_on, in_use.gone_on_rightly),
    "fit --backbone": (in_use.to_fit_backbone, in_use.fitted_backbone_rightly),
}


BESIDES = {"texts": ("predict", "fit --from"), "bert": ("predict", "evaluate", "calibrate", "fit --from")}


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
            if name in ("rows.csv", "texts.jsonl"):
                yield Case("compare", name, how, name, damage)
                yield Case("fit --from", name, how, name, damage)
            if name in OTHERS.values():
                yield Case("outliers", name, how, name, damage)
    for name, of in OTHERS.items():
        for how, damage in {**ANYWHERE, **SPECIAL.get(of, {}), "renamed": renamed_input}.items():
            if name != "others.d" or how in ANYWHERE:
                yield Case("outliers", f"source {name}", how, name, damage)
    for kind in ("tables", "mixed", "images", "texts", "bert", "vit"):
        every = ("predict", "evaluate", "calibrate", "export", "compare", "monitor", "fit --from")
        for command in every if kind in ("tables", "mixed") else BESIDES.get(kind, ("predict",)):
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
    for how, damage in (ANYWHERE | ANSWERS).items():
        yield Case("monitor", "answers.csv", how, "answers.csv", damage)
    for command, names in {"review": ("tables", "texts"), "fit --from": ("tables", "texts")}.items():
        for name in names:
            for how, damage in (ANYWHERE | KEPT).items():
                yield Case(command, f"reviewed {name}", how, f"kept-{name}.d", damage)
    for how, damage in (ANYWHERE | BACKBONES).items():
        yield Case("fit --backbone", "a backbone's folder", how, "hf.d", damage)
