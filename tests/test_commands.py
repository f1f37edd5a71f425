"""`demur fit`, `predict`, `evaluate`: from files to a model, to a csv of decisions, to a page of figures."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from demur.classifier import Classifier
from tests.fuzz import WORDS, called, fuzz

COMMAND = [sys.executable, "-c", "import torch; torch.set_num_threads(1); from demur.cli import main; main()"]


def write_rows(path, rows, y):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "kind"], *([*row, of] for row, of in zip(rows, y, strict=True))])


def write_pictures(path, pixels, y):
    for number, (picture, of) in enumerate(zip(pixels, y, strict=True)):
        (path / of).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path / of / f"{number:04d}.png")


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
    elif kind == "pictures":
        spots = np.zeros((240, 12, 12), np.uint8)
        for number, of in enumerate(group):
            spots[number, 4 * of : 4 * of + 4] = draw.integers(150, 256, (4, 12))
        noise = [draw.integers(0, 256, (60, 12, 12), dtype=np.uint8), spots[:60].transpose(0, 2, 1)]
        sets = (spots, noise[1], noise[0])
        write, names = write_pictures, ("train", "test", "shown", "other")
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


@pytest.mark.parametrize("kind", ["csv", "pictures", "jsonl"])
def test_fit_predict_evaluate(tmp_path, kind):
    (train, test, shown, other), y = make_data(kind, tmp_path)
    model = tmp_path / "model.demur"
    label = () if kind == "pictures" else ("--label", "kind")
    printed: list[str] = []
    epochs = {"csv": 40, "pictures": 15, "jsonl": 10}[kind]
    assert called("fit", train, "-o", model, "--outliers", shown, "--epochs", epochs, *label, printed=printed) == (
        0,
        "",
    )
    assert "3: high, low, mid" in printed[0]
    assert "60 given" in printed[0]
    out = tmp_path / "out.csv"
    assert called("predict", model, test, "-o", out) == (0, "")
    rows = read_csv(out)
    assert list(rows[0]) == ["input", "decision", "label", "probability", "outlier_score"]
    found = {row["input"]: row for row in rows}
    names = sorted(f"{of}/{n:04d}.png" for n, of in enumerate(y)) if kind == "pictures" else map(str, range(1, 61))
    assert list(found) == list(names)
    right = [
        row["label"] == (name.split("/")[0] if kind == "pictures" else y[int(name) - 1]) for name, row in found.items()
    ]
    assert np.mean(right) > 0.9
    assert all(row["decision"] in (row["label"], "unsure", "unknown") for row in rows)
    assert np.mean([row["decision"] == row["label"] for row in rows]) > 0.8
    assert called("predict", model, shown, "-o", out) == (0, "")
    assert np.mean([row["decision"] in ("unsure", "unknown") for row in read_csv(out)]) > 0.9

    report = tmp_path / "report"
    assert called("evaluate", model, test, "--ood", shown, "--ood", other, "--report", report, *label) == (0, "")
    figures = {
        (row["set"], row["score"], row["metric"]): float(row["value"]) for row in read_csv(report / "figures.csv")
    }
    assert figures["inliers", "", "accuracy"] == pytest.approx(np.mean(right))
    assert figures["shown", "", "kept"] < 0.1
    assert sum(figures["other", "", name] for name in ("kept", "unsure", "unknown")) == pytest.approx(1)
    assert figures["shown", "none_share", "auroc"] > 0.9
    assert next(score for name, score, _ in figures if score) == "none_share"  # what is refused by comes first
    page = (report / "index.html").read_text("utf-8")
    assert page.count("<figure ") == 3
    assert "http" not in page.replace("http://www.w3.org", "")  # needs no network


def test_outliers_that_sharpness_tells_are_said_to_be_so(tmp_path):
    (train, _, turned, noise), _ = make_data("pictures", tmp_path)
    said: list[str] = []
    for number, options in enumerate(((turned,), (noise,), (noise, "--made", "patches+levelled"))):
        model = tmp_path / f"{number}.demur"
        assert called("fit", train, "-o", model, "--epochs", 1, "--outliers", *options, printed=said) == (0, "")
    assert "sharpness alone" not in said[0]
    assert "sharpness alone tells these outliers from the inputs, AUROC 100.0 %; see whether" in said[1]
    assert "60 given+patches+levelled" in said[2]
    assert "sharpness alone tells these outliers from the inputs, AUROC 100.0 %\n" in said[2]


@pytest.fixture(scope="module")
def rows_model(tmp_path_factory):
    """A folder with `model`, fitted to columns a, b and c, and `test.csv`."""
    folder = tmp_path_factory.mktemp("rows")
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
    process = subprocess.Popen([*COMMAND, "predict", rows_model / "model", tmp_path / "bad.csv", "-o", out, "--overwrite"])
    while not list(tmp_path.glob(".out.csv.*.part")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "train.csv", "-o", "new"], "no column label or class or target or y; name the label's with --label"),
        (["fit", "prices.csv", "-o", "new"], "has 9 labels in 9 inputs; name the right column"),
        (["fit", "train.csv", "-o", "train.csv", "--label", "kind"], "train.csv is there already and is no model"),
        (
            ["fit", "train.csv", "-o", "new", "--label", "kind", "--method", "map", "--outliers", "box"],
            "does not train",
        ),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--outliers", "boxes"], "did you mean 'box'"),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--outliers", "gone.csv"], "gone.csv does not exist"),
        (["fit", "train.csv", "-o", "new", "--label", "kind", "--keep", "2"], "keep 2.0 is not between 0 and 1"),
        (["fit", "train.csv", "-o", "new", "--size", "big"], "size 'big' is not that of a picture"),
        (["fit", "train.csv", "-o", "no/where"], "the folder of no/where does not exist"),
        (["fit", "nothing", "-o", "new"], "nothing does not exist"),
        (["predict", "nothing", "test.csv"], "nothing does not exist"),
        (["predict", "test.csv", "test.csv"], "is not a model saved by demur"),
        (["predict", "model", "less.csv"], "has no column 'c'; its columns are a, b"),
        (["predict", "model", "texts.txt"], "holds texts, the model is for rows"),
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
    (rows_model / "prices.csv").write_text("a,b,y\n" + "".join(f"1,2,{price}.5\n" for price in range(9)))
    code, said = called(*arguments)
    assert code == 2
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_refused_or_read_rightly():
    ends, bad = fuzz(120)
    assert not bad, bad[0]
    assert sum(counts["refused"] for counts in ends.values()) > 80
