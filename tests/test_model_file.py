"""A model file gives the same answers anywhere, and one that is not whole gives none."""

import hashlib
import json
import pickle
import re
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
from safetensors import safe_open
from safetensors.torch import save_file

import demur
from demur.classifier import model_file
from demur.classifier.model_file import MANIFEST, MODEL, PARTS, POSTERIOR, check_target
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
    assert (loaded.decision_, loaded.preprocessing_) == (model.decision_, model.preprocessing_)
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
    with pytest.raises(ValueError, match=damaged(folder, r"\.json" if part == MANIFEST else part)):
        demur.load_model(folder)


def damaged(path: Path, why: str) -> str:
    return rf"^{re.escape(str(path))} is not a model saved by demur, or it is damaged \(.*{why}.*\); save it anew$"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda manifest: [], "manifest.json is not an object"),
        (lambda manifest: {"demur": manifest["demur"]}, "manifest.json is not a manifest"),
        (lambda manifest: manifest | {"parts": [MODEL, POSTERIOR]}, "manifest.json is not a manifest"),
        (lambda manifest: manifest | {"more": 1}, "manifest.json is not a manifest"),
        (lambda manifest: manifest | {"parts": {MODEL: manifest["parts"][MODEL]}}, "manifest.json lists other parts"),
        *(
            (lambda manifest, version=version: manifest | {"demur": version}, f"its format is {version!r}")
            for version in ("one", 1.0, "1", "1.0.0", None)
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(folder, change, why):
    (folder / MANIFEST).write_text(json.dumps(change(json.loads((folder / MANIFEST).read_text()))))
    with pytest.raises(ValueError, match=damaged(folder, why)):
        demur.load_model(folder)


@pytest.mark.parametrize(("limit", "part"), [("LONGEST_MANIFEST", MANIFEST), ("LONGEST_MODEL", MODEL)])
def test_parts_that_are_too_long_are_not_read(folder, monkeypatch, limit, part):
    size = (folder / part).stat().st_size
    monkeypatch.setattr(model_file, limit, size)
    demur.load_model(folder)
    monkeypatch.setattr(model_file, limit, size - 1)
    with pytest.raises(ValueError, match=damaged(folder, f"{part} has more than {size - 1} bytes")):
        demur.load_model(folder)


def test_it_is_written_beside_its_place_into_folders_that_need_not_exist(model, tmp_path, monkeypatch):
    """So that its last step is a renaming within one file system."""
    written: list[Path] = []

    def save(posterior: object, path: Path) -> None:
        written.append(path)
        save_posterior(posterior, path)

    save_posterior = model_file.save_posterior
    monkeypatch.setattr(model_file, "save_posterior", save)
    for name in ("model", "model.demur"):
        model.save(tmp_path / "new" / "er" / name)
        assert (tmp_path / "new" / "er") in written.pop().parents
        assert (demur.load_model(tmp_path / "new" / "er" / name, device="cpu").decide(X) == model.decide(X)).all()


def test_missing_and_additional_parts_are_refused(folder, tmp_path):
    (folder / "extra.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match=damaged(folder, "its parts are not")):
        demur.load_model(folder)
    (folder / "extra.pkl").unlink()
    (folder / POSTERIOR).rename(tmp_path / "away")
    with pytest.raises(ValueError, match=damaged(folder, "its parts are not")):
        demur.load_model(folder)
    (folder / POSTERIOR).symlink_to(tmp_path / "away")
    with pytest.raises(ValueError, match=damaged(folder, "not a plain file")):
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
        with pytest.raises(ValueError, match=damaged(path, "its parts are not")):
            demur.load_model(written(names))
    assert not outside.exists()
    with pytest.raises(ValueError, match=damaged(path, "is compressed")):
        demur.load_model(written(good, zipfile.ZIP_DEFLATED))
    whole = written(good).read_bytes()
    for content in (whole[: len(whole) // 2], b"", pickle.dumps([1]), flipped(whole, len(whole) // 2)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=damaged(path, "")):
            demur.load_model(path)


def rewritten(folder: Path, change: Callable[[dict], None]) -> None:
    """Changed by someone who knows how to make the hashes right."""
    saved = json.loads((folder / MODEL).read_text())
    change(saved)
    (folder / MODEL).write_text(json.dumps(saved))
    manifest = json.loads((folder / MANIFEST).read_text())
    for part in PARTS:
        content = (folder / part).read_bytes()
        manifest["parts"][part] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
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
        lambda saved: saved.pop("decision"),
        lambda saved: saved.update(parameters=[]),
        lambda saved: saved["parameters"].update(extra=1),
    ],
)
def test_only_what_is_known_is_built(folder, change):
    rewritten(folder, change)
    with pytest.raises(ValueError, match=r"unknown|damaged|larger|bytes of weights|entries|network"):
        demur.load_model(folder)


def test_versions(folder, monkeypatch):
    monkeypatch.setattr(model_file, "FORMAT", (1, 6))
    demur.load_model(folder)  # written as 1.5
    for other in ((1, 0), (2, 0), (0, 9)):
        monkeypatch.setattr(model_file, "FORMAT", other)
        with pytest.raises(ValueError, match=r"has format 1\.5, this demur reads"):
            demur.load_model(folder)
    monkeypatch.undo()
    major, minor = model_file.FORMAT
    manifest = json.loads((folder / MANIFEST).read_text())
    for version, readable in ((minor, True), (0, True), (minor + 1, False)):
        (folder / MANIFEST).write_text(json.dumps(manifest | {"demur": f"{major}.{version}"}))
        if readable:
            demur.load_model(folder)
        else:
            with pytest.raises(ValueError, match=rf"reads {major}\.0 to {major}\.{minor}; use the demur that saved it"):
                demur.load_model(folder)


def test_what_is_no_number_is_not_written(model, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        model_file.write_model(tmp_path / "model", {"accuracy": float("nan")}, model.posterior_)
    assert not list(tmp_path.iterdir())


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


def test_a_swap_that_fails_brings_the_old_model_back(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model")
    replace_ = model_file.os.replace

    def interrupted(source, target):
        if Path(source).name == "new":
            raise KeyboardInterrupt
        replace_(source, target)

    monkeypatch.setattr(model_file.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.save(tmp_path / "model")
    assert (demur.load_model(tmp_path / "model", device="cpu").predict_proba(X) == model.predict_proba(X)).all()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_but_a_model_is_replaced(model, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    model.save(tmp_path / "with thesis")
    (tmp_path / "with thesis" / "thesis.tex").write_text("ten years")
    (tmp_path / "other").mkdir()
    for name in (MANIFEST, *PARTS):
        (tmp_path / "other" / name).write_text('{"name": "a web app"}')  # a manifest of another kind
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / MANIFEST).write_text("{}")
    (tmp_path / "notes.csv").write_text("mine")
    (tmp_path / "notes.demur").write_text("mine")
    with zipfile.ZipFile(tmp_path / "zip.demur", "w") as archive:
        archive.writestr("holiday.jpg", "mine")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in (
        "photos",
        "with thesis",
        "other",
        "web",
        "notes.csv",
        "notes.demur",
        "zip.demur",
        "link",
        "photos/one.png/x",
    ):
        with pytest.raises(ValueError, match=r"folder of something else|no model|no folder"):
            model.save(tmp_path / name)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_who_may_read_one_part_may_read_all(model, tmp_path):
    model.save(tmp_path / "model")
    assert len({(tmp_path / "model" / part).stat().st_mode for part in (MANIFEST, *PARTS)}) == 1


def test_the_current_folder_is_not_replaced(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the current folder, which cannot be replaced"):
        model.save(".")


def test_a_link_to_a_model_stays_a_link(model, tmp_path):
    model.save(tmp_path / "model")
    (tmp_path / "latest").symlink_to(tmp_path / "model")
    model.save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert (demur.load_model(tmp_path / "model", device="cpu").predict_proba(X) == model.predict_proba(X)).all()


def test_models_of_earlier_versions_answer_as_they_did():
    """Formats 1.0 and 1.1, of which the latter has other names: rows, pictures, num_draws, keep."""
    folder = Path(__file__).parent / "data"
    older = json.loads((folder / "older-models.json").read_text("utf-8"))
    assert sorted(older) == sorted(path.name for path in folder.glob("*.demur"))
    for name, expected in older.items():
        kind = {"pictures": "uint8"}.get(name.removesuffix(".demur").rpartition("-")[2])
        x = np.array(expected["x"], dtype=kind)
        model = demur.load_model(folder / name, device="cpu")
        assert 0 < model.report_["coverage"] <= 1
        answers = model.predict_all(x)
        assert answers.decision.tolist() == expected["decision"]
        np.testing.assert_allclose(answers.probability, expected["probability"], rtol=1e-6)
        np.testing.assert_allclose(answers.outlier_score, expected["outlier_score"], rtol=1e-6)


# what a file asks for -------------------------------------------------------------------------------------------------


def network(name: str, **arguments) -> Callable[[dict], None]:
    return lambda saved: saved["network"].update(name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (network("wide_resnet", depth=1_200_004), "depth 1200004 is not a number from 0 to 1000"),
        (network("gru", layers=10**6), "layers 1000000 is not"),
        (network("mlp", inputs=3, hidden=[1] * 100_000), "hidden has 100000 entries"),
        (network("mlp", inputs=10**12), "inputs 1000000000000 is not"),
        (network("mlp", inputs="3"), "inputs '3' is not a number"),
        (network("mlp", inputs=True), "inputs True is not a number"),
        (lambda saved: saved["classes"].update(dtype="<U500000000"), None),
        (lambda saved: saved["classes"].update(dtype="<M8[D]"), "dtype datetime64"),
        (lambda saved: saved["classes"].update(dtype="V1000000000"), "dtype .V"),
        (lambda saved: saved["decision"].update(accept=[0.1, 0.2, 0.3]), "as many|3 limits"),
        (lambda saved: saved["decision"].update(accept=[float("inf")], unknown=[None]), "accept is not what"),
        (lambda saved: saved["decision"].update(coverage="0.95"), "coverage is not what"),
    ],
)
def test_what_a_file_may_ask_for_is_bounded(folder, change, why):
    """Nothing is built or allocated first: each would take minutes, or all memory."""
    rewritten(folder, change)
    if why is None:  # strings take the room that they need
        assert demur.load_model(folder).classes_.dtype.itemsize < 100
        return
    with pytest.raises(ValueError, match=why):
        demur.load_model(folder)


def reposted(folder: Path, change: Callable[[dict, dict], None]) -> None:
    """The posterior's header and tensors changed, and the manifest's hashes with them."""
    with safe_open(folder / POSTERIOR, "pt") as file:
        header = json.loads(file.metadata()["demur"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(header["posterior"], tensors)
    save_file(tensors, folder / POSTERIOR, metadata={"demur": json.dumps(header)})
    rewritten(folder, lambda saved: None)


def nested(header: dict, tensors: dict) -> None:
    inner = dict(header)
    for _ in range(20):
        inner = {"kind": "mixture", "parts": [inner]}
    header.clear()
    header.update(inner)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h, t: h["settings"].update(num_samples=10**12), "num_samples 1000000000000 is not a whole number"),
        (lambda h, t: h["settings"].update(num_samples=2.5), "num_samples 2.5"),
        (lambda h, t: h["settings"].update(num_samples=0), "num_samples 0"),
        (lambda h, t: h["settings"].update(seed="0"), "seed '0'"),
        (lambda h, t: h["settings"].update(over_head=1), "over_head 1"),
        (lambda h, t: h["settings"].update(over_head=True), "over the head"),
        (lambda h, t: h["settings"].update(more=1), "settings are others"),
        (lambda h, t: h.update(kind="pickle"), "'pickle' is no kind"),
        (lambda h, t: h.update(kind="point"), "a point has variances"),
        (lambda h, t: h.update(kind="mixture", parts=[]), "a mixture has no parts"),
        (lambda h, t: h.update(kind="mixture", parts=[{"kind": "point"}] * 10**5), "0/ has no weights"),
        (nested, "too many within each other"),
        (lambda h, t: t["variance/head.bias"].mul_(-1), "variance of head.bias is negative"),
        (lambda h, t: t["variance/head.bias"].fill_(float("nan")), "NaN or infinite"),
        (
            lambda h, t: t.update({"variance/head.bias": torch.ones(1)}),
            r"head.bias has shape \(1,\), the parameter \(3,\)",
        ),
        (lambda h, t: t.pop("variance/head.bias"), "a variance is missing"),
        (lambda h, t: [t.pop(key) for key in list(t) if key.startswith("variance/")], "variance is empty"),
        (lambda h, t: t.update({"variance/head.more": torch.ones(3)}), "head.more has shape"),
        (lambda h, t: t.update({"mean/head.bias": torch.ones(3, dtype=torch.int64)}), "dtype I64"),
        (lambda h, t: t.update({"mean/head.bias": torch.ones(4)}), "head.bias"),
        (lambda h, t: t.update({"elsewhere": torch.ones(4)}), "elsewhere belongs to no network"),
        (lambda h, t: h.update(tuning={"chosen": "1", "rows": [], "at_map": [0, 0]}), "tuning has something else"),
        (lambda h, t: h.update(tuning={"chosen": 1, "rows": [[1]], "at_map": [0, 0]}), "tuning is no table"),
    ],
)
def test_crafted_posteriors_are_refused(folder, change, why):
    reposted(folder, change)
    with pytest.raises(ValueError, match=why):
        demur.load_model(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h, t: None, None),
        (lambda h, t: t.pop("right/head.weight"), "a basis is missing"),
        (lambda h, t: t.pop("left/head.weight"), "a basis is missing"),
        (lambda h, t: h.pop("turned"), "a basis is missing, or one too many"),
        (lambda h, t: h.update(turned=5), "not iterable"),
        (lambda h, t: t.update({"left/head.weight": torch.ones(3, 4)}), r"head.weight have shapes \[\(3, 4\)"),
        (lambda h, t: t.update({"left/head.bias": torch.ones(4, 4)}), "the bases of head.bias have shapes"),
        (lambda h, t: t["left/head.bias"].fill_(float("inf")), "NaN or infinite"),
        (lambda h, t: t.update({"left/head.bias": torch.ones(3, 3, dtype=torch.int64)}), "dtype I64"),
    ],
)
def test_crafted_bases_are_refused(tmp_path, change, why):
    network = partial(mlp, inputs=3, hidden=(4,))
    model = demur.Classifier("la_kron", network, epochs=2, device="cpu").fit(X, Y)
    model.save(tmp_path / "model")
    reposted(tmp_path / "model", change)
    if why is None:
        same = demur.load_model(tmp_path / "model", network, device="cpu")
        assert (same.outlier_score(X) == model.outlier_score(X)).all()
        return
    with pytest.raises(ValueError, match=why):
        demur.load_model(tmp_path / "model", network)


def test_an_untouched_posterior_passes_and_keeps_how_it_was_tuned(tmp_path):
    model = demur.Classifier("la+nc", partial(mlp, inputs=3, hidden=(4,)), epochs=2, device="cpu").fit(X, Y)
    model.save(tmp_path / "model")
    reposted(tmp_path / "model", lambda header, tensors: None)
    assert demur.load_model(tmp_path / "model", device="cpu").posterior_.tuning == model.posterior_.tuning != None  # noqa: E711


def test_nothing_is_written_below_a_file_however_it_may_be_run(tmp_path):
    (tmp_path / "program").touch(0o755)
    with pytest.raises(ValueError, match="program is no folder that you may write to"):
        check_target(tmp_path / "program" / "model")
