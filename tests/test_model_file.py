"""A model file gives the same answers anywhere, and one that is not whole gives none."""

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import demur
from demur import model_file
from demur.model_file import MANIFEST, MODEL, PARTS, POSTERIOR
from demur.networks import mlp

X = np.random.default_rng(0).normal(size=(120, 3)) * 2
Y = np.where(X[:, 0] > 0, "left", "right")
ASK = """
import sys, numpy as np, torch, demur
torch.set_num_threads(1)
np.save(sys.argv[2], demur.load_model(sys.argv[1], device="cpu").predict_proba(np.load(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def model() -> demur.Classifier:
    method = replace(demur.parse_method("la+nc"), inference=demur.Laplace(prior_precision=1.0))
    return demur.Classifier(method, partial(mlp, inputs=3, hidden=(16,)), epochs=10, device="cpu").fit(X, Y)


@pytest.fixture
def folder(model, tmp_path) -> Path:
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["model", "model.demur"])
def test_moved_and_read_by_another_process_it_answers_alike(model, tmp_path, name):
    model.save(tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
    np.save(tmp_path / "x.npy", X)
    arguments = [f"elsewhere/{name}", "answers.npy", "x.npy"]
    subprocess.run([sys.executable, "-c", ASK, *arguments], cwd=tmp_path, check=True)
    assert (np.load(tmp_path / "answers.npy") == model.predict_proba(X)).all()

    loaded = demur.load_model(tmp_path / "elsewhere" / name, device="cpu")
    assert (loaded.decide(X) == model.decide(X)).all()
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.n_features_in_ == 3
    assert (loaded.thresholds_, loaded.preprocessing_) == (model.thresholds_, model.preprocessing_)
    assert (loaded.likelihood_, loaded.report_) == (model.likelihood_, model.report_)


@pytest.mark.parametrize("method", ["map+sl", "de+ml"])
@pytest.mark.parametrize("labels", [np.int64, np.float32, np.bool_, object])
def test_likelihoods_and_labels_of_every_type_come_back(tmp_path, method, labels):
    y = (X[:, 0] > 0).astype(np.int64).astype(labels) if labels is not object else Y.astype(object)
    model = demur.Classifier(method, epochs=1, device="cpu").fit(X, y)
    model.save(tmp_path / "model.demur")
    loaded = demur.load_model(tmp_path / "model.demur", device="cpu")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.likelihood_ == model.likelihood_
    assert (loaded.predict_all(X).decision == model.predict_all(X).decision).all()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("part", [MANIFEST, *PARTS])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: flipped(content, len(content) // 2),
        lambda content: flipped(content, 3),
        lambda content: pickle.dumps(print),
        lambda content: b"[" * 10**5,
    ],
    ids=["empty", "cut", "longer", "flipped inside", "flipped at the start", "pickle", "nested"],
)
def test_a_damaged_part_is_refused(folder, part, damage):
    (folder / part).write_bytes(damage((folder / part).read_bytes()))
    with pytest.raises(ValueError, match=r"is not a model saved by demur, or it is damaged \("):
        demur.load_model(folder)


def test_missing_and_additional_parts_are_refused(folder, tmp_path):
    (folder / "extra.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="its parts are not"):
        demur.load_model(folder)
    (folder / "extra.pkl").unlink()
    (folder / POSTERIOR).rename(tmp_path / "away")
    with pytest.raises(ValueError, match="its parts are not"):
        demur.load_model(folder)
    (folder / POSTERIOR).symlink_to(tmp_path / "away")
    with pytest.raises(ValueError, match="not a plain file"):
        demur.load_model(folder)
    with pytest.raises(ValueError, match="does not exist"):
        demur.load_model(tmp_path / "nowhere")


def test_only_plain_zips_of_the_three_parts_are_opened(folder, tmp_path):
    path, outside = tmp_path / "model.demur", tmp_path / "outside"

    def written(names: dict[str, str], compression: int = zipfile.ZIP_STORED) -> Path:
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, part in names.items():
                archive.write(folder / part, name)
        return path

    good = {name: name for name in (MANIFEST, *PARTS)}
    demur.load_model(written(good))
    for names in ({**good, "../outside": MODEL}, {**good, str(outside): MODEL}, {f"x/{n}": n for n in good}, {}):
        with pytest.raises(ValueError, match="its parts are not"):
            demur.load_model(written(names))
    assert not outside.exists()
    with pytest.raises(ValueError, match="is compressed"):
        demur.load_model(written(good, zipfile.ZIP_DEFLATED))
    whole = written(good).read_bytes()
    for content in (whole[: len(whole) // 2], b"", pickle.dumps([1]), flipped(whole, len(whole) // 2)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            demur.load_model(path)


def rewritten(folder: Path, change: Callable[[dict], None]) -> None:
    """Changed by someone who knows how to make the hashes right."""
    saved = json.loads((folder / MODEL).read_text())
    change(saved)
    content = json.dumps(saved).encode()
    (folder / MODEL).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"][MODEL] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["network"].update(name="system"),
        lambda saved: saved["network"].update(name="os.system", arguments={"command": "true"}),
        lambda saved: saved["network"]["arguments"].update(hidden=[10**9]),
        lambda saved: saved["network"]["arguments"].update(hidden=[]),
        lambda saved: saved["network"]["arguments"].update(more=1),
        lambda saved: saved["classes"].update(dtype="O8 and more"),
        lambda saved: saved["likelihood"].update(num_classes=7),
        lambda saved: saved["likelihood"]["inside"].update(name="Popen"),
        lambda saved: saved["preprocessing"].update(kind="pickled"),
        lambda saved: saved.pop("thresholds"),
        lambda saved: saved.update(parameters=[]),
        lambda saved: saved["parameters"].update(extra=1),
    ],
)
def test_only_what_is_known_is_built(folder, change):
    rewritten(folder, change)
    with pytest.raises(ValueError, match=r"unknown|damaged|larger|bytes of weights|entries|network"):
        demur.load_model(folder)


def test_versions(folder, monkeypatch):
    monkeypatch.setattr(model_file, "FORMAT", (1, 3))
    demur.load_model(folder)  # written as 1.0
    for other in ((1, -1), (2, 0), (0, 9)):
        monkeypatch.setattr(model_file, "FORMAT", other)
        with pytest.raises(ValueError, match=r"has format 1\.0, this demur reads"):
            demur.load_model(folder)


def test_a_network_of_ones_own_must_be_passed(tmp_path):
    def network(num_outputs: int) -> torch.nn.Module:
        return mlp(num_outputs, inputs=3, hidden=(4,))

    model = demur.Classifier("map+nc", network, epochs=1, device="cpu").fit(X, Y)
    model.save(tmp_path / "model.demur")
    with pytest.raises(ValueError, match="load it with network="):
        demur.load_model(tmp_path / "model.demur")
    loaded = demur.load_model(tmp_path / "model.demur", network, device="cpu")
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    with pytest.raises(ValueError, match="pass the network that it was fitted with"):
        demur.load_model(tmp_path / "model.demur", partial(mlp, inputs=3, hidden=(5,)))


@pytest.mark.parametrize("name", ["model", "model.demur"])
def test_a_save_that_fails_leaves_the_old_model(model, tmp_path, monkeypatch, name):
    model.save(tmp_path / name)
    model.save(tmp_path / name)  # over itself
    monkeypatch.setattr(model_file, "save_posterior", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        model.save(tmp_path / name)
    assert (demur.load_model(tmp_path / name, device="cpu").predict_proba(X) == model.predict_proba(X)).all()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_of_something_else_is_not_replaced(model, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    with pytest.raises(ValueError, match="folder of something else"):
        model.save(tmp_path / "photos")
    assert (tmp_path / "photos" / "one.png").exists()
    for name in ("notes.csv", "notes.demur"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ValueError, match="no model"):
            model.save(tmp_path / name)
        assert (tmp_path / name).read_text() == "mine"
