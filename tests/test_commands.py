"""`demur fit`, `predict`, `evaluate`: from files to a model, to a csv of decisions, to a page of figures."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demur.classifier import Classifier
from experiments.fuzz import COMMANDS, WORDS, called, fuzz

COMMAND = [sys.executable, "-c", "import torch; torch.set_num_threads(1); from demur.cli import main; main()"]


def write_rows(path, rows, y):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "kind"], *([*row, of] for row, of in zip(rows, y, strict=True))])


def write_images(path, pixels, y):
    for number, (image, of) in enumerate(zip(pixels, y, strict=True)):
        (path / of).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / of / f"{number:04d}.png")


def write_texts(path, texts, y):
    path.write_text("".join(json.dumps({"text": t, "kind": of}) + "\n" for t, of in zip(texts, y, strict=True)))


def make_data(kind, folder):
    """Three easy classes to fit and to test with, and outliers of two sorts: to train with, and others."""
    draw = np.random.default_rng(0)
    group = np.arange(240) % 3
    y = np.array(["low", "mid", "high"])[group].tolist()
    if kind == "csv":
        sets = (draw.normal(size=(240, 3)) + 5 * group[:, None], *(c + draw.normal(size=(60, 3)) for c in (25, -25)))
        write, names = write_rows, ("train.csv", "test.csv", "shown.csv", "other.csv")
    elif kind == "images":
        spots = np.zeros((240, 12, 12), np.uint8)
        for number, of in enumerate(group):
            spots[number, 4 * of : 4 * of + 4] = draw.integers(150, 256, (4, 12))
        noise = [draw.integers(0, 256, (60, 12, 12), dtype=np.uint8), spots[:60].transpose(0, 2, 1)]
        sets = (spots, noise[1], noise[0])
        write, names = write_images, ("train", "test", "shown", "other")
    else:
        sets = (
            [" ".join(draw.choice(WORDS[5 * of :][:5], 6)) for of in group],
            [" ".join(draw.choice(WORDS, 6)) for _ in range(60)],
            [" ".join(draw.choice(WORDS[::3], 6)) for _ in range(60)],
        )
        write, names = write_texts, ("train.jsonl", "test.jsonl", "shown.jsonl", "other.jsonl")
    inside, shown, other = sets
    parts = ((inside[:180], y[:180]), (inside[180:], y[180:]), (shown, ["?"] * 60), (other, ["?"] * 60))
    for name, (x, of) in zip(names, parts, strict=True):
        write(folder / name, x, of)
    return [folder / name for name in names], y[180:]


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["csv", "images", "jsonl"])
def test_fit_predict_evaluate(tmp_path, kind):
    (train, test, shown, other), y = make_data(kind, tmp_path)
    model = tmp_path / "model.demur"
    label = () if kind == "images" else ("--label", "kind")
    printed: list[str] = []
    epochs = {"csv": 40, "images": 15, "jsonl": 10}[kind]
    assert called("fit", train, "-o", model, "--outliers", shown, "--epochs", epochs, *label, printed=printed) == (
        0,
        "",
    )
    assert "3: high, low, mid" in printed[0]
    assert f"outliers  54: {'rows' if kind == 'csv' else 'texts' if kind == 'jsonl' else kind} of {shown}" in printed[0]
    abstained = 100 * Classifier.load(model).report_["outliers_abstained"]
    assert f"abstained on {abstained:.1f} % of 6 outliers that it was not shown" in printed[0]
    out = tmp_path / "out.csv"
    assert called("predict", model, test, "-o", out) == (0, "")
    rows = read_csv(out)
    assert list(rows[0]) == ["input", "decision", "label", "probability", "outlier_score", "p_value"]
    found = {row["input"]: row for row in rows}
    names = sorted(f"{of}/{n:04d}.png" for n, of in enumerate(y)) if kind == "images" else map(str, range(1, 61))
    assert list(found) == list(names)
    right = [
        row["label"] == (name.split("/")[0] if kind == "images" else y[int(name) - 1]) for name, row in found.items()
    ]
    assert np.mean(right) > 0.9
    assert all(row["decision"] in (row["label"], "unsure", "unknown") for row in rows)
    assert np.mean([row["decision"] == row["label"] for row in rows]) > 0.8
    assert called("predict", model, shown, "-o", out) == (0, "")
    assert np.mean([row["decision"] in ("unsure", "unknown") for row in read_csv(out)]) > 0.9

    report = tmp_path / "report"
    assert called("evaluate", model, test, "--ood", shown, "--ood", other, "--report", report, *label) == (0, "")
    figures = {
        (row["set"], row["score"], row["metric"]): float(row["value"]) for row in read_csv(report / "evaluation.csv")
    }
    assert figures["inliers", "", "accuracy"] == pytest.approx(np.mean(right))
    assert figures["shown", "", "accepted"] < 0.1
    assert sum(figures["other", "", name] for name in ("accepted", "unsure", "unknown")) == pytest.approx(1)
    assert figures["shown", "none_share", "auroc"] > 0.9
    assert next(score for name, score, _ in figures if score) == "none_share"  # what is refused by comes first
    page = (report / "index.html").read_text("utf-8")
    assert page.count("<figure ") == 4
    assert "http" not in page.replace("http://www.w3.org", "")  # needs no network


@pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")
def test_a_time_limit_counts_from_the_commands_beginning(tmp_path, monkeypatch):
    """Reading takes time, too: here all that there was."""
    (train, *_), _ = make_data("csv", tmp_path)
    monkeypatch.setattr("demur.cli.models.perf_counter", lambda: time.perf_counter() - 100)
    printed: list[str] = []
    asked = ("--label", "kind", "--epochs", 500, "--time-limit", "100s")
    assert called("fit", train, "-o", tmp_path / "model.demur", *asked, printed=printed) == (0, "")
    assert " 1 epochs, " in printed[0]


@pytest.mark.filterwarnings("always:sharpness alone tells")
def test_outliers_that_sharpness_tells_are_said_to_be_so(tmp_path):
    (train, _, turned, noise), _ = make_data("images", tmp_path)
    said: list[str] = []
    for number, options in enumerate(((turned,), (noise,), (noise, "--synthetic", "patches+spectrum_matched"))):
        model = tmp_path / f"{number}.demur"
        code, noted = called("fit", train, "-o", model, "--epochs", 1, "--outliers", *options, printed=said)
        assert code == 0
        assert ("sharpness alone tells the outliers" in noted) == (number == 1)
    assert "the same as sharp as yours; patches, made from yours anew in every epoch" in said[2]


@pytest.fixture(scope="module")
def rows_model(tmp_path_factory):
    """A folder with `model`, fitted to columns a, b and c, and `test.csv`."""
    folder = tmp_path_factory.mktemp("tables")
    make_data("csv", folder)
    code, said = called("fit", folder / "train.csv", "-o", folder / "model", "--label", "kind", "--quick")
    assert code == 0, said
    return folder


def test_a_long_csv_gives_what_its_rows_give(rows_model, tmp_path):
    rows = np.random.default_rng(1).normal(size=(40_000, 3)).round(9) * 6
    write_rows(tmp_path / "long.csv", rows.tolist(), ["?"] * len(rows))  # 2 MiB: three batches
    assert called("predict", rows_model / "model", tmp_path / "long.csv", "-o", tmp_path / "out.csv") == (0, "")
    said = Classifier.load(rows_model / "model").preprocessing_
    assert len(said.mean) == 3
    found = read_csv(tmp_path / "out.csv")
    some = np.arange(0, 40_000, 401)
    write_rows(tmp_path / "some.csv", rows[some].tolist(), ["?"] * len(some))
    assert called("predict", rows_model / "model", tmp_path / "some.csv", "-o", tmp_path / "few.csv") == (0, "")
    for row, few in zip(some, read_csv(tmp_path / "few.csv"), strict=True):
        assert found[row]["input"] == str(row + 1)
        assert found[row]["label"] == few["label"]
        assert float(found[row]["outlier_score"]) == pytest.approx(float(few["outlier_score"]), abs=1e-5)


def test_standard_input_is_read_and_a_reader_may_stop_early(rows_model):
    content = (rows_model / "test.csv").read_bytes()
    command = [*COMMAND, "predict", rows_model / "model"]
    piped = subprocess.run([*command, "-"], input=content, capture_output=True, check=False)
    assert called("predict", rows_model / "model", rows_model / "test.csv", "-o", rows_model / "named.csv") == (0, "")
    assert (piped.returncode, piped.stdout) == (0, (rows_model / "named.csv").read_bytes()), piped.stderr
    assert piped.stdout.count(b"\n") == 61
    with subprocess.Popen([*command, rows_model / "test.csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as early:
        early.stdout.close()
        assert b"Traceback" not in early.stderr.read()


def test_a_run_that_fails_or_is_killed_leaves_the_old_file(rows_model, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    lines = "a,b,c\n" + "1,2,3\n" * 200_000
    (tmp_path / "bad.csv").write_text(lines + "1,2,x\n")
    strictly = ("--strict", "--overwrite")
    code, said = called("predict", rows_model / "model", tmp_path / "bad.csv", "-o", out, *strictly)
    assert code == 2
    assert "has 'x' in column 'c', row 200001" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "out.csv"]
    process = subprocess.Popen(
        [*COMMAND, "predict", rows_model / "model", tmp_path / "bad.csv", "-o", out, "--overwrite"]
    )
    while not list(tmp_path.glob(".out.csv.*.part")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert out.read_text() == "old"


def test_sets_of_outliers_keep_names_of_their_own(rows_model, tmp_path):
    """Whatever they are called: as the inliers, as each other, or as the same file in two folders."""
    content = (rows_model / "shown.csv").read_text()
    paths = [tmp_path / name for name in ("inliers.csv", "a/far.csv", "b/far.csv", "near.csv", "inliers/x.csv")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    ood = [argument for path in paths for argument in ("--ood", path)]
    arguments = ("evaluate", rows_model / "model", rows_model / "test.csv", "--label", "kind")
    assert called(*arguments, *ood, "--report", tmp_path / "report") == (0, "")
    alone = called(*arguments, "--report", tmp_path / "alone")
    assert alone == (0, "")
    with_outliers, without = (
        [row for row in read_csv(tmp_path / name / "evaluation.csv") if row["set"] == "inliers"]
        for name in ("report", "alone")
    )
    assert with_outliers == without
    sets = dict.fromkeys(row["set"] for row in read_csv(tmp_path / "report" / "evaluation.csv"))
    assert [name for name in sets if not name.startswith("class ")] == [
        "inliers",
        str(paths[0]),
        str(paths[1]),
        str(paths[2]),
        "near",
        "x",
    ]
    code, said = called(*arguments, "--ood", paths[3], "--ood", tmp_path / "a" / ".." / "near.csv")
    assert code == 2
    assert "near.csv is given twice as --ood" in said


def test_a_folder_called_inliers_is_a_set_of_outliers_too(tmp_path, monkeypatch):
    from demur.cli.models import _set_names

    monkeypatch.chdir(tmp_path)
    names = _set_names([Path("inliers"), Path("outliers inliers"), Path("x/inliers"), Path("class a.csv")])
    assert list(names) == ["outliers inliers", "outliers outliers inliers", "x/inliers", "outliers class a"]


def test_rows_that_cannot_be_read_are_invalid_and_the_others_answered(rows_model, tmp_path):
    rows = ["1,2,3", "1,,3", "2,3,4", "1,x,3", "1,2", "1,2,3,4", "3,4,5", "nan,1,2", "1e999,1,2", "4,5,6", "7"]
    bad = [2, 4, 5, 6, 8, 9, 11]
    (tmp_path / "mixed.csv").write_text("a,b,c\n" + "\n".join(rows) + "\n")
    good = [row for number, row in enumerate(rows, 1) if number not in bad]
    (tmp_path / "good.csv").write_text("a,b,c\n" + "\n".join(good) + "\n")
    model = rows_model / "model"
    code, said = called("predict", model, tmp_path / "mixed.csv", "-o", tmp_path / "mixed.out")
    assert code == 0
    assert said.startswith("demur: note: 7 of 11 inputs are invalid; ")
    assert said.count("\n") == 1
    assert called("predict", model, tmp_path / "good.csv", "-o", tmp_path / "good.out") == (0, "")
    found = read_csv(tmp_path / "mixed.out")
    assert [row["input"] for row in found] == [str(number) for number in range(1, 12)]
    assert [int(row["input"]) for row in found if row["decision"] == "invalid"] == bad
    assert {
        (row["label"], row["probability"], row["outlier_score"]) for row in found if row["decision"] == "invalid"
    } == {("", "", "")}
    answered = [row for row in found if row["decision"] != "invalid"]
    for row, alone in zip(answered, read_csv(tmp_path / "good.out"), strict=True):
        assert {**row, "input": ""} == {**alone, "input": ""}
    strict = called("predict", model, tmp_path / "mixed.csv", "-o", tmp_path / "strict.out", "--strict")
    assert strict[0] == 2
    assert not (tmp_path / "strict.out").exists()
    assert called("evaluate", model, tmp_path / "mixed.csv")[0] == 2


def test_invalid_rows_far_into_a_long_file_keep_their_numbers(rows_model, tmp_path):
    lines = ["1.25,2.5,3.75"] * 200_000  # three blocks
    for number in (1, 90_000, 90_001, 150_000, 200_000):
        lines[number - 1] = "1,2"
    (tmp_path / "long.csv").write_text("a,b,c\n" + "\n".join(lines) + "\n")
    code, _ = called("predict", rows_model / "model", tmp_path / "long.csv", "-o", tmp_path / "out.csv")
    assert code == 0
    found = read_csv(tmp_path / "out.csv")
    assert [row["input"] for row in found] == [str(number) for number in range(1, 200_001)]
    assert [row["input"] for row in found if row["decision"] == "invalid"] == [
        "1",
        "90000",
        "90001",
        "150000",
        "200000",
    ]


def test_where_nothing_can_be_read_the_file_is_refused(rows_model, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b,c\n1,,2\n,,\n")
    code, said = called("predict", rows_model / "model", tmp_path / "bad.csv", "-o", tmp_path / "out.csv")
    assert code == 2
    assert "empty, NaN or infinite cell in row 1, column 'b'" in said
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture
def stopped_at(monkeypatch):
    """Have Ctrl-C pressed after an epoch of the so-many-th network."""
    from demur.cli.progress import Training

    monkeypatch.setattr("demur.checkpoint.SECONDS_BETWEEN", 0.0)
    update = Training.update

    def stop(epoch, network=0):
        def interrupted(self, report, share=1.0):
            update(self, report, share)
            if (report.epoch, self.network) == (epoch, network):
                raise KeyboardInterrupt

        monkeypatch.setattr(Training, "update", interrupted if epoch else update)

    return stop


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("method", "network", "epochs"), [("la+nc", 0, 3), ("de+nc", 2, 15)])
def test_fit_that_was_stopped_goes_on_to_the_same_model(rows_model, tmp_path, stopped_at, method, network, epochs):
    train, kept = rows_model / "train.csv", tmp_path / "kept"
    arguments = ("fit", train, "--label", "kind", "--epochs", 6, "--method", method)
    assert called(*arguments, "-o", tmp_path / "whole")[0] == 0
    stopped_at(4, network)
    resumable = (*arguments, "-o", tmp_path / "model", "--checkpoint", kept)
    says = f"demur: stopped; {epochs} epochs are kept in {kept}, and the same command goes on from there\n"
    assert called(*resumable) == (130, says)
    assert not (tmp_path / "model").exists()
    assert called("fit", train, "--label", "kind", "-o", tmp_path / "other", "--checkpoint", kept, "--epochs", 2) == (
        0,
        f"demur: note: the checkpoint in {kept} is of other data or other settings; it stays as it is, and training "
        "begins from the start\n",
    )
    stopped_at(None)
    assert called(*resumable) == (0, "")
    assert not kept.exists()
    whole, resumed = ((tmp_path / name / "posterior.safetensors").read_bytes() for name in ("whole", "model"))
    assert whole == resumed


def test_fit_that_was_stopped_says_that_nothing_was_kept(rows_model, tmp_path, stopped_at):
    arguments = ("fit", rows_model / "train.csv", "--label", "kind", "--epochs", 3, "-o", tmp_path / "model")
    stopped_at(1)
    says = "demur: stopped; nothing was kept; with --checkpoint FOLDER the next run can be continued\n"
    assert called(*arguments) == (130, says)
    code, said = called(*arguments, "--checkpoint", tmp_path / "kept")
    assert (code, said) == (
        130,
        "demur: stopped; nothing was kept, because training had not lasted two seconds\n",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "train.csv", "-o", "new"], "no column label or class or target or y; name the label's with --label"),
        (["fit", "prices.csv", "-o", "new"], "has 9 labels in 9 inputs; name the right column"),
        (["fit", "train.csv", "-o", "train.csv", "--label", "kind"], "train.csv is a file that is no model"),
        (
            ["fit", "train.csv", "-o", "new", "--label", "kind", "--method", "map", "--outliers", "box"],
            "does not train",
        ),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--outliers", "boxes"], "did you mean 'box'"),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--outliers", "gone.csv"], "gone.csv does not exist"),
        (
            ["fit", "train.csv", "-o", "new", "--label", "kind", "--coverage", "2"],
            "coverage 2.0 is not between 0 and 1",
        ),
        (["fit", "nothing", "-o", "new", "--coverage", "nan"], "coverage nan is not between 0 and 1"),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--device", "meta"], "device 'meta' is not available"),
        (["fit", "train.csv", "-o", "new", "--size", "big"], "size 'big' is not that of an image"),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--size", "32"], "size '32' is that of images"),
        (["fit", "train.csv", "-o", "new", "--tune", "last"], "tune 'last' says what of a backbone is trained"),
        (["outliers", "train.csv", "--label", "kind", "--from", "columns", "--size", "32"], "size '32' is that of"),
        (
            ["outliers", "train.csv", "--label", "kind", "--from", "columns", "--without", "low"],
            "class 'low' is in none of the sources; leave it out: they have no classes",
        ),
        (["outliers", "train.csv", "--label", "kind", "-o", "test.csv"], "test.csv is there already; name a new place"),
        (["evaluate", "model", "rows.npz", "--label", "kind"], "label 'kind' names a column, and rows.npz has none"),
        (["calibrate", "model", "test.csv", "-o", "new", "--label", "sort"], "test.csv has no column 'sort'"),
        (["calibrate", "model", "test.csv", "-o", "model"], "model is the model; name another place"),
        (["calibrate", "model", "test.csv", "-o", "test.csv"], "test.csv is a file that is no model"),
        (["calibrate", "model", "shown.csv", "-o", "again"], "again is there already, and stays as it is; name a new"),
        (["fit", "train.csv", "-o", "no/where"], "the folder of no/where does not exist"),
        (["fit", "nothing", "-o", "new"], "nothing does not exist"),
        (["predict", "nothing", "test.csv"], "nothing does not exist"),
        (["predict", "test.csv", "test.csv"], "is not a model saved by demur"),
        (["predict", "model", "less.csv"], "has no column 'c'; its columns are a, b"),
        (["predict", "model", "texts.txt"], "holds texts, the model is for tables"),
        (["predict", "model", "test.csv", "-o", "."], "cannot be written to"),
        (
            ["evaluate", "model", "shown.csv", "--label", "kind"],
            "label '?' is none of the model's classes (high, low, mid)",
        ),
        (["export", "model"], "no format is named; add --onnx"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(rows_model, monkeypatch, arguments, says):
    monkeypatch.chdir(rows_model)
    (rows_model / "less.csv").write_text("a,b\n1,2\n")
    (rows_model / "texts.txt").write_text("red\n")
    np.savez(rows_model / "rows.npz", x=np.zeros((9, 3)), y=np.zeros(9, int))
    shutil.copytree(rows_model / "model", rows_model / "again", dirs_exist_ok=True)
    (rows_model / "prices.csv").write_text("a,b,y\n" + "".join(f"1,2,{price}.5\n" for price in range(9)))
    code, said = called(*arguments)
    assert code == 2
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_refused_or_read_rightly():
    ends, bad = fuzz(200)
    assert not bad, bad[0]
    assert {command for command, *_ in ends} == set(COMMANDS)
    assert sum(counts["refused"] for counts in ends.values()) > 100
