"""What people do by mistake, and what happens to them: one sentence before any work, and nothing lost."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import demur
from demur import checkpoint, training
from demur.checkpoint import checkpointed, epochs_in
from demur.classifier.readers import open_inputs
from demur.inference.laplace import Laplace
from demur.inference.prior import FEW, PriorSearch, Trial
from demur.likelihoods import none_class
from demur.networks import HeadedNetwork, mlp
from demur.predictive import predict
from demur.serving.answered import read_answers
from demur.study.cells import Place
from demur.study.engine import run_cells
from demur.study.grid import Cell
from demur.training_data import Recipe
from tests.test_study import NOWHERE, folder_of, nothing, of, quick

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.where(X[:, 0] > 0, "left", "right")


def with_label(label: object, dtype: type = object) -> np.ndarray:
    labels = Y.astype(dtype)
    labels[3] = label
    return labels


# what is given -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (with_label(1), "y has strings and other labels, such as 'left' and 1; give strings alone"),
        (with_label(np.nan), "y has strings and other labels, such as 'left' and nan"),
        (["a", 1] * 30, "y has strings and other labels, such as 'a' and 1"),
        (with_label(None), "y has labels of type NoneType"),
        (np.where(X[:, 0] > 0, 1.0, np.nan), "y contains NaN"),
        (None, "y is None; give one label an input"),
        (Y[:10], "X has 60 inputs and y 10 labels"),
    ],
)
def test_labels_are_refused_alike_by_fit_and_adopt(y: Any, said: str):
    with pytest.raises(ValueError, match=said):
        demur.Classifier(epochs=1).fit(X, y)
    with pytest.raises(ValueError, match=said):
        demur.adopt(nn.Linear(3, 2), X, y, epochs=1)


def test_numbers_that_pandas_holds_as_objects_are_numbers():
    y = np.array([int(x > 0) for x in X[:, 0]], dtype=object)
    assert demur.Classifier("map", epochs=1).fit(X, y).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(("one", "other"), [("a", "a "), ("b c", "b  c"), ("caf\u00e9", "cafe\u0301")])
def test_classes_that_look_alike_are_named(one: str, other: str):
    y = [one, other, "z"] * 20
    said = " and ".join(re.escape(f"{name!r} (20 inputs)") for name in sorted([one, other]))
    with pytest.warns(UserWarning, match=f"classes that look alike, {said}, and they are learned as different"):
        assert len(demur.Classifier("map", epochs=1).fit(X, y).classes_) == 3


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda:1' is not available here; give 'cpu' or 'auto'"):
        demur.Classifier("map", epochs=1, device="cuda:1").fit(X, Y)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 1.5}, "epochs 1.5 is not a whole number"),
        ({"epochs": "3"}, "epochs '3' is no number"),
        ({"epochs": 0}, "epochs 0 is not positive"),
        ({"batch_size": 2.5}, "batch_size 2.5 is not a whole number"),
        ({"lr": "1"}, "lr '1' is no number"),
        ({"method": 3}, "method 3 is no name such as 'la[+]nc'"),
        ({"network": nn.Linear(3, 2)}, "network Linear is no function from the head size.*demur.adopt"),
        ({"network": 3}, "network int is no function"),
        ({"kind": 3}, "unknown kind of data 3"),
        ({"synthetic": 3}, "synthetic 3 is neither a name nor a value"),
        ({"device": "gpu"}, "device 'gpu' is not known"),
        ({"tune": "last"}, "tune 'last' says what of a backbone is trained; give a backbone"),
        ({"tune": "feet"}, "tune 'feet' says what of a backbone is trained"),
        (
            {"network": lambda outputs: nn.Linear(3, outputs).double()},
            "weights are torch.float64 and inputs are float32",
        ),
    ],
)
def test_parameters_of_another_kind_are_refused(given: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        demur.Classifier(**{"epochs": 1, **given}).fit(X, Y)


def test_a_network_of_doubles_that_converts_its_inputs_is_its_own_affair():
    class Doubles(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(3, outputs).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.double())

    demur.Classifier("map+nc", Doubles, epochs=1).fit(X, Y)
    with pytest.raises(ValueError, match=r"weights are torch.float64 and inputs are float32.*return network.float"):
        demur.adopt(nn.Linear(3, 2).double(), X, Y)


def test_numbers_of_numpy_can_be_saved(tmp_path: Path):
    """Epochs went into the report as they came, and were noticed by the JSON after training."""
    given = {"epochs": np.int64(1), "batch_size": np.int32(16), "lr": np.float32(0.01), "coverage": np.float64(0.9)}
    demur.Classifier("map+nc", **given).fit(X, Y).save(tmp_path / "model")
    assert demur.load_model(tmp_path / "model").report_["epochs"] == 1


def test_a_second_label_is_no_feature_without_a_word(tmp_path: Path):
    rows = "".join(f"{k},{k % 2},{k % 2}\n" for k in range(20))
    (tmp_path / "two.csv").write_text(f"a,label,y\n{rows}", "utf-8")
    with pytest.warns(UserWarning, match=r"has its labels in column 'label', and 'y' will be a feature; if it is"):
        assert open_inputs(tmp_path / "two.csv", labelled=True).columns == ("a", "y")
    assert open_inputs(tmp_path / "two.csv", labelled=True, label="y").columns == ("a", "label")
    # whoever was fitted to `y` has said so
    known = open_inputs(tmp_path / "two.csv", labelled=True, columns=("a", "y")).gather()
    assert known.y == [str(k % 2) for k in range(20)]
    (tmp_path / "texts.csv").write_text("text,label,y\nred,a,1\n", "utf-8")
    assert open_inputs(tmp_path / "texts.csv", labelled=True).gather().y == ["a"]


# what is learned -----------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts its passes, in a buffer and in an attribute."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 8)
        self.register_buffer("passes", torch.zeros(()))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.count += 1
        return self.layer(x).relu()


def counted(num_outputs: int) -> nn.Module:
    return HeadedNetwork(Counting(4), 8, num_outputs)


@pytest.mark.parametrize("name", ["map", "de", "la", "la over the head", "vb", "csghmc"])
def test_predicting_leaves_every_fitted_network_untouched(name: str, task, recipe: Recipe):
    inference = Laplace(over="head") if "head" in name else demur.parse_method(f"{name}+nc").inference
    posterior = inference.fit(counted, none_class(3), task.training, recipe)

    def state() -> list[Any]:
        networks = [part.network for _, part in posterior.components()]
        return [(network.features.count, float(network.features.passes)) for network in networks]  # type: ignore[union-attr, arg-type]

    before, x = state(), task.testing.test.x
    first = predict(posterior, none_class(3), x).probs
    posterior.logits(x, 0)
    assert torch.equal(predict(posterior, none_class(3), x).probs, first)
    assert state() == before


def trial(precision: float, losses: list[float]) -> Trial:
    mean = sum(losses) / len(losses)
    return Trial(precision, mean, mean, 1.0, torch.tensor(losses, dtype=torch.float64), torch.zeros(len(losses)))


def test_a_prior_that_few_inputs_cannot_decide_on_is_told_with_figures(recwarn: pytest.WarningsRecorder):
    chosen, left = trial(1e4, [0.1, 0.3, 0.1, 0.3]), trial(1e3, [0.3, 0.2, 0.3, 0.4])  # + 0.1 +- 0.071
    with pytest.warns(
        UserWarning, match=r"^4 validation inputs are too few.* 10000 is taken and 1000 is not, .* by \+0.1 \+- 0.071"
    ):
        PriorSearch()._warn_of_noise([chosen, left], chosen)
    PriorSearch()._warn_of_noise([chosen, trial(1e3, [0.2, 0.4, 0.2, 0.4])], chosen)  # worse for each: no doubt
    enough = trial(1e4, [0.1, 0.3] * FEW)
    PriorSearch()._warn_of_noise([enough, trial(1e3, [0.3, 0.2] * FEW)], enough)
    assert not recwarn.list


# what is in the way --------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_no_training(task, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    network, likelihood, recipe = partial(mlp, inputs=4, hidden=(8,)), none_class(3), replace(recipe, epochs=5)
    expected = demur.MAP().fit(network, likelihood, task.training, recipe)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    whole, epochs = checkpoint.save_file, list[int]()

    def save_file(*arguments: Any) -> None:
        epochs.append(len(epochs) + 1)
        if epochs[-1] in (2, 3):
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        whole(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    told: list[training.EpochReport] = []
    with (
        pytest.warns(
            UserWarning, match=r"after epoch 2 could not be written .*No space left.*epoch 1 is still kept"
        ) as said,
        checkpointed(tmp_path / "c"),
        training.observed(told.append),
    ):
        found = demur.MAP().fit(network, likelihood, task.training, recipe)
    assert len(said) == 1
    assert [report.epoch for report in told] == epochs == [1, 2, 3, 4, 5]
    assert epochs_in(tmp_path / "c") == 5  # there was room again
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    pairs = zip(expected.network.parameters(), found.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_file_in_the_place_of_a_cell_fails_that_cell_alone(tmp_path: Path):
    place, cells = Place(tmp_path, NOWHERE), (Cell("blobs", "map", epochs=1, limit=200), *quick("map+nc"))
    in_the_way = folder_of(cells[0], place)
    in_the_way.write_text("mine", "utf-8")
    (failure,) = run_cells(of(cells), place, nothing)
    assert failure.cell == cells[0]
    assert f"{in_the_way} is a file where a folder is to be; move it away" in failure.reason
    assert in_the_way.read_text("utf-8") == "mine"
    assert folder_of(cells[1], place).is_dir()


def test_answers_that_are_none_are_refused_by_the_monitor(tmp_path: Path):
    """A quote that is not closed had hidden every other answer without a word."""
    head, rows = "input,decision,label,probability,outlier_score\n", [f"{k},a,a,0.9,0.1\n" for k in range(6)]
    (tmp_path / "whole.csv").write_text(head + "".join(rows), "utf-8")
    (tmp_path / "broken.csv").write_text(head + "".join(row.replace(",a,", ',"a,', 1) for row in rows), "utf-8")
    assert sum(len(scores) for scores, *_ in read_answers(tmp_path / "whole.csv")) == 6
    with pytest.raises(ValueError, match=r"cannot be read as csv .* expected after"):
        list(read_answers(tmp_path / "broken.csv"))
    (tmp_path / "other.csv").write_text(f"{head}{rows[0]}1,b,a,0.9,0.1\n", "utf-8")
    with pytest.raises(ValueError, match="which is no answer; is a quote not closed"):
        list(read_answers(tmp_path / "other.csv"))


@pytest.mark.parametrize("more", ["", 'a,a,0.4,"0.7\n', "a,a,0.4,0.7\n"])
def test_a_quote_in_the_last_column_hides_no_answers_from_the_monitor(tmp_path: Path, more: str):
    rows = 'a,a,0.1,0.5\na,a,0.2,"0.6\na,a,0.3,0.6\n'
    (tmp_path / "answers.csv").write_text(f"decision,label,outlier_score,p_value\n{rows}{more}", "utf-8")
    with pytest.raises(ValueError, match="cannot be read as csv"):
        list(read_answers(tmp_path / "answers.csv"))


@pytest.mark.parametrize("row", ["a,a,0.3,a,a,0.2", "a,a", "unsure"])
def test_rows_that_ran_together_are_no_answers(tmp_path, row):
    """Where a line's end was lost, one of two answers had been left out without a word."""
    (tmp_path / "answers.csv").write_text(f"decision,label,outlier_score\na,a,0.1\n{row}\na,a,0.2\n")
    with pytest.raises(ValueError, match="has rows of more or fewer cells than columns"):
        list(read_answers(tmp_path / "answers.csv"))
