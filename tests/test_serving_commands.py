"""`demur serve`, `monitor` and `calibrate`: signals, files, exit codes; and the folder of abstained inputs."""

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

import demur
from demur.classifier.decision import Decision
from demur.cli.program import run
from demur.serving import app
from demur.serving.answers import Answer
from demur.serving.app import Settings
from demur.serving.inputs import as_x
from demur.serving.keeping import Keeper
from demur.serving.limits import Limits
from tests.serving import ask, images, served, table

COMMAND = [sys.executable, "-m", "demur"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    x, y = table(400)
    demur.Classifier(epochs=30, device="cpu", validation=0.5).fit(x, y).save(folder / "table.demur")
    return folder / "table.demur"


@pytest.fixture
def called(monkeypatch, capsys):
    """The command in this process: its exit code, what it printed, and what it said on stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["demur", *map(str, arguments)])
        code = run()
        out, error = capsys.readouterr()
        return code, out, error

    return call


def test_serve_loads_anew_on_a_signal_and_stops_when_asked(model, tmp_path):
    path, token, kept = tmp_path / "mine.demur", tmp_path / "token", tmp_path / "kept"
    shutil.copy(model, path)
    token.write_text("correct-horse\n")
    options = ["--port", "0", "--token-file", str(token), "--keep-inputs", str(kept)]
    with (tmp_path / "log").open("w") as log:
        command = [*COMMAND, "serve", str(path), *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        headers = {"authorization": "Bearer correct-horse"}
        status, said, _ = ask(port, "/v1/predict", {"inputs": [[2, 2, 2], [98765.5, -900, 900]]}, headers)
        assert (status, said["answers"][0]["label"]) == (200, "high")
        assert len(list(kept.glob("abstained-*.json"))) == 1
        path.write_bytes(b"broken")
        server.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while ask(port, "/v1/models", None, headers)[1][0]["error"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert ask(port, "/v1/predict", {"inputs": [[2, 2, 2]]}, headers)[0] == 200
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        server.stdout.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    asked = [line for line in lines if line.get("inputs")]
    assert asked[0]["decisions"] == {"label": 1, "unknown": 1}
    assert "98765.5" not in json.dumps(asked)
    assert not any("traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "nothing.demur", "--port", "0"], "does not exist"),
        (["serve", "{model}", "--host", "256.1.1.1"], "cannot be listened to"),
        (["serve", "{model}", "--token-file", "{model}"], "has no token"),
        (["serve", "a b={model}", "--port", "0"], "does not fit into an address"),
        (["monitor", "{model}", "{model}"], "demur predict"),
        (["calibrate", "{model}", "{data}", "-o", "{model}"], "{model}"),
        (["calibrate", "{model}", "{data}", "-o", "new.demur", "--coverage", "1.5"], "coverage 1.5 is not between"),
    ],
)
def test_what_is_wrong_is_one_sentence(called, model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    table(60, seed=1)[0].to_csv(tmp_path / "data.csv", index=False)
    places = {"model": str(model), "data": str(tmp_path / "data.csv")}
    before = model.read_bytes()
    code, _, error = called(*(argument.format(**places) for argument in arguments))
    assert code == 2
    assert said.format(**places) in error
    assert len(error.strip().splitlines()) == 1
    assert model.read_bytes() == before


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_a_server_for_this_machine_knows_that_it_is_one(called, model, monkeypatch, host, local):
    """So that pages of other sites get no answers from it."""

    def create(models: object, settings: Settings) -> None:
        raise ValueError(f"local is {settings.local}")

    monkeypatch.setattr(app, "create_app", create)
    assert f"local is {local}" in called("serve", model, "--host", host, "--port", 0)[2]


def test_monitor_tells_a_shift_by_its_exit_code(called, model, tmp_path):
    x, _ = table(400, seed=5)
    for name, rows, expected in (("calm", x, 0), ("shifted", 4 * x[["b", "c", "a"]].set_axis(x.columns, axis=1), 1)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        assert called("predict", model, tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}_answers.csv")[0] == 0
        code, out, _ = called("monitor", model, tmp_path / f"{name}_answers.csv")
        assert (code, "no sign of a shift" in out) == (expected, expected == 0), out


def test_calibrate_sets_a_new_threshold_and_keeps_the_old_model(called, model, tmp_path):
    x, _ = table(300, seed=7)
    (1.3 * x).to_csv(tmp_path / "fresh.csv", index=False)
    before = model.read_bytes()
    code, out, error = called(
        "calibrate", model, tmp_path / "fresh.csv", "-o", tmp_path / "new.demur", "--coverage", 0.8
    )
    assert code == 0, error
    assert model.read_bytes() == before
    assert "old" in out
    assert "of the fresh inliers" in out
    old, new = demur.Classifier.load(model, device="cpu"), demur.Classifier.load(tmp_path / "new.demur", device="cpu")
    assert new.decision_.coverage == 0.8
    scores = np.sort(old.outlier_score(1.3 * x))
    assert new.decision_.accept[0] == pytest.approx(scores[int(np.ceil(301 * 0.8)) - 1], rel=2e-5)
    np.testing.assert_array_equal(old.predict_proba(x), new.predict_proba(x))
    np.testing.assert_allclose(new.calibration_.scores[0], scores)  # p-values and the monitor go by the fresh ones, too


def test_a_recalibrated_threshold_keeps_its_promise(model):
    """Over 200 repetitions of calibrating and asking, from one source, inliers are accepted as often as promised."""
    from demur.classifier.decision import calibrate_decision

    classifier = demur.Classifier.load(model, device="cpu")
    predictions = [classifier.predict_tensor(classifier.inputs(table(200, seed=100 + n)[0])) for n in range(200)]
    fractions = []
    for first, second in zip(predictions, [*predictions[1:], predictions[0]], strict=True):
        fractions.append(calibrate_decision(first, classifier.decision_.score, 0.9).accepts(second).mean())
    error = np.std(fractions) / np.sqrt(len(fractions))
    assert 0.9 - 3 * error <= np.mean(fractions) <= 0.9 + 1 / 201 + 3 * error


def answer(decision: str) -> Answer:
    accepted = None if decision == "cat" else "with a threshold of 1 or more"
    return Answer(decision, "cat", 1.0, {"cat": 1.0}, 0.5, 0.4, None, 0.0, "", accepted)


def test_the_folder_of_inputs_is_bounded_and_only_its_own_files_are_removed(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    keeper = Keeper(tmp_path, most=5)
    for number in range(12):
        keeper.keep("m", "texts", [f"text {number}", "accepted"], [answer("unknown"), answer("cat")])
    kept = sorted(tmp_path.glob("abstained-*.json"))
    assert [json.loads(file.read_text())["input"] for file in kept] == [f"text {number}" for number in range(7, 12)]
    assert (tmp_path / "mine.json").exists()
    again = Keeper(tmp_path, most=3)
    again.keep("m", "images", [b"bytes"], [answer("unsure")])
    assert len(list(tmp_path.glob("abstained-*.json"))) == 3
    assert json.loads(max(tmp_path.glob("abstained-*.json")).read_text())["input"] == {"image": "Ynl0ZXM="}


def test_files_that_only_begin_like_its_own_stay(tmp_path):
    for name in ("abstained-notes.json", f"abstained-{'1' * 20}-000001.json.bak", "abstained-1.json"):
        (tmp_path / name).write_text("mine")
    (tmp_path / f"abstained-{'1' * 20}-000001.json").symlink_to(tmp_path / "nothing")
    (tmp_path / f"abstained-{'1' * 20}-000002.json").mkdir()
    keeper = Keeper(tmp_path, most=1)
    for number in range(3):
        keeper.keep("m", "texts", [f"text {number}"], [answer("unknown")])
    left = {path.name for path in tmp_path.iterdir()}
    assert {"abstained-notes.json", "abstained-1.json", f"abstained-{'1' * 20}-000002.json"} <= left
    assert f"abstained-{'1' * 20}-000001.json" not in left  # a link of that name went, not what it leads to
    assert len(left) == 5


def test_whatever_is_nested_beside_a_row_is_answered(model, tmp_path):
    kept = tmp_path / "kept"
    with served({"m": model}, Settings(keep_inputs=kept)) as (port, _):
        for depth in range(900, 1000, 3):
            body = b'{"inputs": [{"a": 900, "b": -900, "c": 900, "more": %b}]}' % (b"[" * depth + b"]" * depth)
            assert ask(port, "/v1/predict", body)[0] in (200, 422)
        assert ask(port, "/v1/predict", {"inputs": [[900, -900, 900]]})[0] == 200
    assert len(list(kept.glob("abstained-*.json"))) > 1


@pytest.mark.parametrize("dtype", ["UINT8", "FP32", "INT64"])
def test_images_that_come_as_tensors_are_kept_as_files(tmp_path, dtype):
    x, y = images(60)
    demur.Classifier("map+nc", epochs=1, device="cpu").fit(x, y).save(tmp_path / "image.demur")
    noise = np.random.default_rng(0).integers(0, 256, (2, 1, 16, 16))
    tensor = {"name": "x", "datatype": dtype, "shape": [2, 1, 16, 16]}
    data = noise / 255 if dtype == "FP32" else noise
    with served({"image": tmp_path / "image.demur"}, Settings(keep_inputs=tmp_path / "kept")) as (port, server):
        server.models["image"].now.model.decision_ = Decision("none_share", (-1.0,), (2.0,), 0.95, 100)
        status, said, _ = ask(
            port, "/v2/models/image/infer", {"inputs": [{**tensor, "data": data.reshape(-1).tolist()}]}
        )
        assert (status, said["outputs"][0]["data"]) == (200, ["unsure"] * 2)
        model = server.models["image"].now.model
        kept = [json.loads(file.read_text())["input"] for file in sorted((tmp_path / "kept").iterdir())]
        np.testing.assert_array_equal(as_x(model, kept, Limits()), noise)


def test_a_full_disk_costs_the_sample_and_no_answer(model, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with served({"m": model}, Settings(keep_inputs=tmp_path / "kept")) as (port, _):
        monkeypatch.setattr(Path, "write_text", full)
        assert ask(port, "/v1/predict", {"inputs": [[900, -900, 900]]})[0] == 200
        monkeypatch.undo()
        assert os.listdir(tmp_path / "kept") == []
        assert ask(port, "/v1/predict", {"inputs": [[900, -900, 900]]})[0] == 200
        assert len(os.listdir(tmp_path / "kept")) == 1
