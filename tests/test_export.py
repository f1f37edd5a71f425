"""An exported graph gives what the model gives: the same numbers, the same decisions, for any number of inputs."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from demur.classifier import Classifier, export
from demur.classifier.export import export_onnx
from demur.cli import app
from demur.posterior import fewer_samples
from experiments.fuzz import WORDS

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

DRAW = np.random.default_rng(0)
GROUP = np.arange(1000) % 3
Y = np.array(["low", "mid", "high"])[GROUP]
INPUTS = {
    "tables": 1e6 + 100 * (DRAW.normal(size=(1000, 4)) + 3 * GROUP[:, None]),  # far from 0: standardised in the graph
    "images": (DRAW.integers(0, 90, (1000, 1, 8, 8)) + 80 * GROUP[:, None, None, None]).astype(np.uint8),
    "texts": [" ".join(DRAW.choice(WORDS[4 * of :][:7], DRAW.integers(1, 12))) for of in GROUP],
}


@pytest.mark.filterwarnings("ignore:outliers of texts")
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("tables", "la+nc"),
        ("tables", "de+nc"),
        ("tables", "map"),
        ("tables", "vb+sl"),
        ("images", "la+nc"),
        ("texts", "la+nc"),
    ],
)
def test_a_graph_gives_what_the_model_gives(tmp_path, kind, method):
    x = INPUTS[kind]
    model = Classifier(method, epochs=2, batch_size=64, device="cpu").fit(x[:200], Y[:200])
    said = export_onnx(model, tmp_path / "model.onnx")
    assert said.startswith("256 random inputs give the same")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    raw = model.preprocessing_.read(x).numpy() if kind == "texts" else x
    probabilities, score, decision = session.run(["probabilities", "outlier_score", "decision"], {"input": raw})
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=1e-4)
    np.testing.assert_allclose(score, model.outlier_score(x), atol=1e-4)
    clear = (
        np.abs(
            score[:, None]
            - [limit for limit in (*model.decision_.accept, *model.decision_.unknown) if limit is not None]
        ).min(1)
        > 1e-4
    )
    assert clear.mean() > 0.9
    assert (decision == model.decide(x))[clear].all()
    one = session.run(["probabilities"], {"input": raw[:1]})[0]  # the batch is as long as one likes
    np.testing.assert_allclose(one, probabilities[:1], atol=1e-6)
    about = json.loads(session.get_modelmeta().custom_metadata_map["demur"])
    assert about["classes"] == ["high", "low", "mid"]
    assert about["accept"] == list(model.decision_.accept)


def test_a_graph_of_fewer_samples_is_smaller(tmp_path):
    x = INPUTS["images"]
    model = Classifier("la+nc", epochs=1, device="cpu").fit(x[:200], Y[:200])
    model.save(tmp_path / "model.demur")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "model.demur"), "--onnx", "--samples", "2"])
    assert (result.exit_code, "256 random inputs give the same" in result.output) == (0, True)
    export_onnx(model, tmp_path / "whole.onnx")
    few, whole = ((tmp_path / name).stat().st_size for name in ("model.onnx", "whole.onnx"))
    assert few < 0.15 * whole  # 2 of 20
    model.posterior_ = fewer_samples(model.posterior_, 2)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    np.testing.assert_allclose(session.run(["probabilities"], {"input": x})[0], model.predict_proba(x), atol=1e-4)


@pytest.fixture(scope="module")
def model():
    return Classifier("map+nc", epochs=1, device="cpu").fit(INPUTS["tables"][:60], Y[:60])


def test_far_from_all_data_the_numbers_stay_finite(tmp_path, model):
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    far = np.array([[1e300] * 4, [-1e300] * 4, [1e12, 0, 0, 0]])
    for values in session.run(["probabilities", "outlier_score"], {"input": far}):
        assert np.isfinite(values).all()


def test_a_graph_that_differs_is_not_written(tmp_path, model, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differs from the model"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tmp_path, model, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(ValueError, match="GiB of weights"):
        export_onnx(model, tmp_path / "model.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ValueError, match=r"the package onnx is needed.*demur\[onnx\]"):
        export_onnx(model, tmp_path / "model.onnx")
    ready = Classifier("map", lambda outputs: torch.nn.Linear(4, outputs), kind="ready", epochs=1, device="cpu")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="a model of ready inputs cannot be exported"):
        export_onnx(ready.fit(INPUTS["tables"][:60].astype(np.float32), Y[:60]), tmp_path / "model.onnx")
