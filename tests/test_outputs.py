"""Nothing that is there is written over unasked, what is read never is, and all is checked before work begins."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from demur.classifier import Classifier
from demur.cli.outputs import check_file, check_folder
from experiments.fuzz import called

OWN = b"ours,"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `model.demur` and `test.csv`."""
    folder = tmp_path_factory.mktemp("fitted")
    draw, group = np.random.default_rng(0), np.arange(90) % 2
    rows = draw.normal(size=(90, 2)) + 5 * group[:, None]
    table = pa.table({"a": rows[:, 0], "b": rows[:, 1]})
    for name in ("model", "model.demur"):
        Classifier("map+nc", epochs=1, device="cpu").fit(table, group).save(folder / name)
    with (folder / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "label"], *([*row, of] for row, of in zip(rows, group, strict=True))])
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_file_that_is_there_is_replaced_only_if_it_is_the_commands_own_or_on_request(tmp_path):
    out = tmp_path / "out.csv"
    check_file(out, overwrite=False, mark=OWN)
    for there, allowed in ((b"ours,1", True), (b"yours, and ours,", False), (b"", False)):
        out.write_bytes(there)
        check_file(out, overwrite=True, mark=OWN)
        if allowed:
            check_file(out, overwrite=False, mark=OWN)
        else:
            with pytest.raises(ValueError, match=r"is there already, and not by this command; .* --overwrite"):
                check_file(out, overwrite=False, mark=OWN)
        with pytest.raises(ValueError, match="is there already"):
            check_file(out, overwrite=False)
        assert content(tmp_path) == {"out.csv": there}


def test_what_is_read_is_never_written_to(tmp_path):
    inputs, model = tmp_path / "in", tmp_path / "model"
    for folder in (inputs, model):
        folder.mkdir()
        (folder / "x").write_text("ours,")
    os.link(inputs / "x", tmp_path / "hard")
    (tmp_path / "soft").symlink_to(inputs / "x")
    for path in (inputs / "x", tmp_path / "hard", tmp_path / "soft"):
        with pytest.raises(ValueError, match="is what is read"):
            check_file(path, overwrite=True, mark=OWN, reads=[inputs / "x"])
    with pytest.raises(ValueError, match="is what is read"):
        check_file(inputs / "x", overwrite=True, mark=OWN, reads=[inputs])
    check_file(inputs / "new", overwrite=False, reads=[inputs])
    for name in ("x", "new"):
        with pytest.raises(ValueError, match="is the model"):
            check_file(model / name, overwrite=True, mark=OWN, model=model)
    with pytest.raises(ValueError, match="is the model"):
        check_folder(model / "report", overwrite=True, writes=["index.html"], model=model)
    with pytest.raises(ValueError, match="is what is read"):
        check_folder(tmp_path, overwrite=True, writes=["in"], reads=[inputs])


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "nothing").symlink_to(tmp_path / "nowhere")
    for path, why in {
        tmp_path: "is no file",
        tmp_path / "no" / "where": "the folder of .* does not exist",
        tmp_path / "file" / "x": "the folder of .* does not exist",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / ("x" * 250): "File name too long",  # with the ending of what is unfinished
        tmp_path / "nothing": "is no file",
        Path("/proc/x"): "cannot be written to",
    }.items():
        with pytest.raises(ValueError, match=why):
            check_file(path, overwrite=True)
    for path, why in {
        tmp_path / "file": "is no folder",
        tmp_path / "file" / "x": "is no folder",
        tmp_path / ("x" * 300): "File name too long",
        Path("/proc/x"): "cannot be written to",
    }.items():
        with pytest.raises(ValueError, match=why):
            check_folder(path, overwrite=True)
    check_folder(tmp_path / "new" / "newer", overwrite=False)
    assert not (tmp_path / "new").exists()


def test_a_folder_is_written_into_if_nothing_is_in_the_way_or_it_is_the_commands_own(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    check = {"writes": ["index.html", "evaluation.csv"], "marks": {"evaluation.csv": OWN}}
    check_folder(tmp_path, overwrite=False, **check)
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ValueError, match=r"index.html is there already, and not by this command"):
        check_folder(tmp_path, overwrite=False, **check)
    check_folder(tmp_path, overwrite=True, **check)
    (tmp_path / "evaluation.csv").write_text("ours,")
    check_folder(tmp_path, overwrite=False, **check)


def test_predict_replaces_its_own_answers_and_nothing_else(fitted, tmp_path):
    model, given, out = fitted / "model", fitted / "test.csv", tmp_path / "out.csv"
    before = content(fitted)
    for _ in range(2):
        assert called("predict", model, given, "-o", out) == (0, "")
    out.write_text("mine")
    code, said = called("predict", model, given, "-o", out)
    assert (code, out.read_text()) == (2, "mine"), said
    assert called("predict", model, given, "-o", out, "--overwrite") == (0, "")
    packed = fitted / "model.demur"
    for of, target in ((model, given), (model, model), (model, model / "model.json"), (packed, packed)):
        code, said = called("predict", of, given, "-o", target, "--overwrite")
        assert code == 2, target
        assert said.count("\n") == 1
    assert content(fitted) == before


def test_export_replaces_its_own_graphs_and_nothing_else(fitted, tmp_path):
    pytest.importorskip("onnx")
    out = tmp_path / "model.onnx"
    for _ in range(2):
        assert called("export", fitted / "model", out, "--onnx") == (0, "")
    out.write_bytes(b"\x08\x08\x12\x07pytorch")
    assert called("export", fitted / "model", out, "--onnx")[0] == 2
    assert out.read_bytes() == b"\x08\x08\x12\x07pytorch"
    assert called("export", fitted / "model", out, "--onnx", "--overwrite") == (0, "")
    code, said = called("export", fitted / "model", fitted / "test.csv", "--onnx", "--overwrite")
    assert code == 2
    assert "does not end in .onnx" in said


def test_an_export_is_named_after_the_whole_name_of_its_model(fitted, tmp_path):
    pytest.importorskip("onnx")
    model = tmp_path / "wine.v2"
    Classifier.load(fitted / "model").save(model)
    assert called("export", model, "--onnx") == (0, "")
    assert (tmp_path / "wine.v2.onnx").is_file()


def test_an_evaluation_replaces_its_own_report_and_nothing_else(fitted, tmp_path):
    arguments = ("evaluate", fitted / "model", fitted / "test.csv", "--report")
    for _ in range(2):
        assert called(*arguments, tmp_path / "report")[0] == 0
    (tmp_path / "index.html").write_text("mine")
    code, said = called(*arguments, tmp_path)
    assert code == 2
    assert "index.html is there already" in said
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "test.csv", "-o", "mine.demur"], "is a file that is no model"),
        (["fit", "test.csv", "-o", "own"], "is a folder of something else"),
        (["fit", "test.csv", "-o", "x" * 300], "File name too long"),
        (["fit", "test.csv", "-o", "new", "--checkpoint", "new/kept"], "is where the model is to be"),
        (["fit", "test.csv", "-o", "new", "--checkpoint", "test.csv"], "is no folder"),
        (["evaluate", "model", "test.csv", "--report", "test.csv"], "is no folder"),
        (["run", "digits", "map", "--json", "test.csv"], "is there already"),
        (["run", "digits", "map", "--save", "test.csv"], "is there already"),
        (["run", "digits", "map", "--json", "x", "--save", "x"], "is named for two outputs"),
        (["study", "digits", "--markdown", "test.csv"], "is there already"),
        (["study", "digits", "--runs", "test.csv"], "is no folder"),
        (["toy", "mine.png"], "is there already"),
        (["demo", "--out", "own"], "toy.png is there already"),
        (["audit", "digits", "--figure", "mine.png"], "is there already"),
        (["audit", "digits", "--figure", "new.bmp"], "does not end in .png, .svg or .pdf"),
        (["bench", "--json", "test.csv"], "is there already"),
        (["bench", "--figure", "mine.png"], "is there already"),
        (["report", "--out", "own"], "index.html is there already"),
        (["pack", "own"], "pack-00000-of-00001.safetensors is there already"),
        (["unpack", "test.csv", "--runs", "test.csv"], "is no folder"),
    ],
)
def test_every_command_looks_at_its_outputs_before_it_works(fitted, tmp_path, monkeypatch, arguments, says):
    for name in ("test.csv", "mine.demur", "mine.png"):
        (tmp_path / name).write_bytes((fitted / "test.csv").read_bytes())
    (tmp_path / "model").symlink_to(fitted / "model")
    (tmp_path / "own").mkdir()
    for name in ("manifest.json", "thesis.tex", "toy.png", "index.html", "pack-00000-of-00001.safetensors"):
        (tmp_path / "own" / name).write_text("{}")
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, said = called(*arguments)
    assert code == 2
    assert says in said
    assert said.count("\n") == 1
    assert content(tmp_path) == before


def test_outputs_are_looked_at_before_torch_is_loaded(fitted):
    code = (
        "import sys; from demur.cli.program import run; sys.argv = ['demur', *sys.argv[1:]]; code = run();"
        "sys.exit(code if 'torch' not in sys.modules else 9)"
    )
    arguments = ["predict", fitted / "model", fitted / "test.csv", "-o", fitted / "test.csv"]
    assert subprocess.run([sys.executable, "-c", code, *arguments], check=False).returncode == 2
