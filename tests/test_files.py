"""What was read stays what it was, whatever becomes of the file."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import demur
from demur.classifier.model_file import MANIFEST, POSTERIOR, read_model
from demur.files import filling
from demur.networks import mlp
from demur.posterior import Gaussian
from demur.posterior_file import load, save
from demur.study.results import tensors_in, write_tensors

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.where(X[:, 0] > 0, "left", "right")


def overwritten(path: Path) -> None:
    """In place, as `cp` and `rsync --inplace` do it: the same file, of the same length, with other bytes."""
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 8)
        file.write(b"\x3f" * (size - size // 8))


def answers(folder: Path) -> Callable[[], np.ndarray]:
    method = replace(demur.parse_method("la+nc"), inference=demur.Laplace(prior_precision=1.0))
    demur.Classifier(method, epochs=1, device="cpu").fit(X, Y).save(folder)
    return partial(demur.load_model(folder, device="cpu").predict_proba, X)


def test_a_loaded_model_does_not_change_with_its_file(tmp_path: Path):
    asked = answers(tmp_path / "model")
    before = asked()
    overwritten(tmp_path / "model" / POSTERIOR)
    assert (asked() == before).all()


def test_nor_does_a_posterior_or_a_prediction(tmp_path: Path):
    network = mlp(2, inputs=3, hidden=(4,)).eval()
    variance = {name: torch.full_like(value, 0.5) for name, value in network.named_parameters()}
    save(Gaussian(network, variance), tmp_path / "posterior")
    posterior = load(tmp_path / "posterior", partial(mlp, 2, inputs=3, hidden=(4,)))
    assert isinstance(posterior, Gaussian)
    write_tensors(tmp_path / "predictions", {"probs": torch.full((4, 2), 0.5)})
    found = tensors_in(tmp_path / "predictions")
    for name in ("posterior", "predictions"):
        overwritten(tmp_path / name)
    read: list[Tensor] = [*posterior.variance.values(), *found.values()]
    assert all((value == 0.5).all() for value in read)


def test_a_model_that_is_replaced_while_it_is_read_is_not_half_of_each(tmp_path: Path):
    answers(tmp_path / "model")
    manifest = tmp_path / "model" / MANIFEST
    with (
        pytest.raises(ValueError, match="replaced by another model while it was read"),
        read_model(tmp_path / "model"),
    ):
        manifest.write_bytes(manifest.read_bytes() + b"\n")


def test_a_report_is_replaced_whole_or_not_at_all(tmp_path: Path):
    """On a full disk the page of before stays with its own figures and numbers."""
    report = tmp_path / "a" / "report"

    def written(text: str, stop: BaseException | None = None) -> None:
        with filling(report) as folder:
            (folder / "figures").mkdir()
            (folder / "figures" / "one.svg").write_text(text)
            if stop is not None:
                raise stop
            (folder / "index.html").write_text(text)

    with pytest.raises(OSError, match="full"):
        written("half", OSError(28, "full"))
    assert not report.exists()
    for text in ("old", "new"):
        written(text)
        assert {path.read_text() for path in report.rglob("*.*")} == {text}
    with pytest.raises(KeyboardInterrupt):
        written("half", KeyboardInterrupt())
    assert sorted(path.name for path in report.rglob("*")) == ["figures", "index.html", "one.svg"]
    assert {path.read_text() for path in report.rglob("*.*")} == {"new"}
