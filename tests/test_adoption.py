"""A trained network becomes a classifier that abstains: what it knew stays, and how it is trained on is chosen."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import demur
from demur.classifier.adopting import Trial, choose_trial, divide
from demur.classifier.adoption import gather_batches, match_outputs
from demur.classifier.heads import Started, find_head, take_off
from demur.training_data import Split, TrainingData

pytestmark = [
    pytest.mark.filterwarnings("ignore:the best prior precision"),
    pytest.mark.filterwarnings("ignore:the model abstains on"),
]


class Convolutional(nn.Module):
    """As timm writes them."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.norm(self.stem(x)).relu()

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = torch.cat([x[:, :, :6].amax((2, 3))[:, :4], x[:, :, 6:].amax((2, 3))[:, 4:]], 1)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def images(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """A bright square in the upper or in the lower half."""
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 60, (count, 1, 12, 12)).astype(np.uint8), rng.randint(0, 2, count)
    for image, lower in zip(x, y, strict=True):
        row, column = rng.randint(0, 3) + 6 * lower, rng.randint(0, 9)
        image[0, row : row + 3, column : column + 3] = 255
    return x, np.array(["upper", "lower"])[y]


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """A network of two outputs that knows images(), `lower` first."""
    x, y = images()
    inputs, labels = torch.from_numpy(x).float() / 255, torch.from_numpy((y == "upper").astype(int))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Convolutional()
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model, x, y


def noise(count: int = 60) -> np.ndarray:
    return np.random.RandomState(1).randint(0, 256, (count, 1, 12, 12)).astype(np.uint8)


@pytest.mark.parametrize("tune", ["head", "all"])
def test_an_adopted_network_keeps_what_it_knew(trained, tune):
    model, x, y = trained
    before = deepcopy(model.state_dict())
    adopted = demur.adopt(model, x, y, noise(), epochs=2, lr=1e-3, classes=["lower", "upper"], tune=tune, device="cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert adopted.report_["original_accuracy"] == 1.0
    assert adopted.report_["accuracy"] >= 0.95
    assert adopted.report_["unseen_outliers"] == 6
    assert list(adopted.classes_) == ["lower", "upper"]
    assert adopted.likelihood_.has_none_class


def test_the_outputs_names_are_taken_at_their_word(trained):
    model, x, y = trained
    with pytest.warns(UserWarning, match=r"right on 0% of 38 held-out inputs.*are classes in the order of its outputs"):
        shuffled = demur.adopt(model, x, y, noise(), epochs=0, classes=["upper", "lower"], device="cpu")
    assert shuffled.report_["original_accuracy"] == 0.0


def test_without_epochs_the_weights_stay_as_they_are(trained):
    model, x, y = trained
    adopted = demur.adopt(model, x, y, method="map", epochs=0, tune="all", device="cpu")
    with torch.no_grad():
        own = model.eval()(torch.from_numpy(x).float() / 255).softmax(1).numpy()
    np.testing.assert_allclose(adopted.predict_proba(x), own, atol=1e-6)
    assert adopted.report_["epochs"] == 0
    sampled = demur.adopt(model, x, y, method="la", epochs=0, device="cpu")
    assert (sampled.predict(x) == adopted.predict(x)).mean() > 0.95
    assert sampled.report_["prior_precision"] > 0


def test_what_is_chosen_makes_left_out_in_and_outliers_most_probable(trained):
    model, x, y = trained
    adopted = demur.adopt(model, x, y, noise(), device="cpu")
    tried = [Trial(**trial) for trial in adopted.report_["choice"]]
    assert tried[0].epochs == 0
    assert {trial.lr for trial in tried} == {1e-3, 1e-2}
    best = max((trial for trial in tried if trial.accuracy >= tried[0].accuracy - 0.005), key=lambda t: t.objective)
    assert (adopted.report_["epochs"], adopted.report_["lr"]) == (best.epochs, best.lr)
    assert best.objective > tried[0].objective  # outliers that are easily told are learned
    assert adopted.report_["outliers_abstained"] == 1.0


def test_training_that_costs_accuracy_is_not_chosen():
    stays, harms, helps = Trial(0, 1e-3, -2.0, 0.95), Trial(100, 1e-2, -0.1, 0.90), Trial(10, 1e-3, -1.0, 0.95)
    assert choose_trial([stays, harms, helps]) == helps
    assert choose_trial([stays, harms]) == stays


def test_what_chooses_is_not_fitted_to():
    data = TrainingData(Split(torch.arange(40.0).view(-1, 1), torch.arange(40) % 2), outliers=100 + torch.ones(8, 1))
    fitting, left_out = divide(data, seed=3)
    assert (len(fitting.train), len(left_out.train)) == (30, 10)
    assert sorted(torch.cat([fitting.train.x, left_out.train.x]).flatten().tolist()) == list(range(40))
    assert (fitting.shown.shape[0], left_out.shown.shape[0]) == (6, 2)


def test_the_head_is_widened_by_a_row_and_nothing_else(trained):
    model, x, _ = trained
    inputs = torch.from_numpy(x).float() / 255
    assert find_head(model, inputs[:2]) == "fc"
    trunk, head = take_off(model, "fc", [1, 0], inputs[:2])
    model = deepcopy(model).eval()
    for start, features in ((Started(head), trunk(inputs)), (Started(head, trunk), inputs)):
        wider = start(3).eval()(features)
        torch.testing.assert_close(wider[:, :2], model(inputs)[:, [1, 0]])
        assert (wider[:, 2] == 0).all()
    with pytest.raises(ValueError, match="gives its output as it is"):
        find_head(nn.Sequential(model, nn.Softmax(1)), inputs[:2])
    with pytest.raises(ValueError, match="is not an affine layer"):
        take_off(model, "stem", [0, 1], inputs[:2])
    with pytest.raises(ValueError, match=r"is more than layer '0.fc' on the features"):
        take_off(nn.Sequential(model, nn.Softmax(1)), "0.fc", [0, 1], inputs[:2])


def test_data_loaders_are_read_whole(trained):
    model, x, y = trained
    codes = torch.from_numpy((y == "upper").astype(int))
    loader = DataLoader(TensorDataset(torch.from_numpy(x), codes), batch_size=64)
    outside = DataLoader(TensorDataset(torch.from_numpy(noise())), batch_size=16)
    by_loader = demur.adopt(model, loader, outliers=outside, epochs=0, device="cpu")
    by_arrays = demur.adopt(model, x, codes.numpy(), noise(), epochs=0, device="cpu")
    assert (by_loader.predict_proba(x) == by_arrays.predict_proba(x)).all()
    named, labels = gather_batches([{"pixel_values": torch.ones(2, 1), "labels": torch.ones(2)}] * 2, "X")  # type: ignore[arg-type]
    assert (len(named), labels.tolist()) == (4, [1] * 4)
    with pytest.raises(ValueError, match="leave out y"):
        demur.adopt(model, loader, y)
    with pytest.raises(ValueError, match="have no labels; give batches"):
        demur.adopt(model, outside)
    with pytest.raises(ValueError, match="without a batch"):
        gather_batches([], "X")  # type: ignore[arg-type]


def test_labels_of_a_loader_can_be_names_and_inputs_have_one_shape(trained):
    model, x, y = trained
    loader = DataLoader([(image, label) for image, label in zip(torch.from_numpy(x), y, strict=True)], batch_size=64)  # type: ignore[arg-type,var-annotated]
    adopted = demur.adopt(model, loader, outliers=noise(), classes=["lower", "upper"], epochs=0, device="cpu")
    assert (adopted.predict(x) == y).mean() > 0.9
    with pytest.raises(ValueError, match=r"of inputs of shapes \(3,\) and \(4,\); bring them to one shape"):
        gather_batches([(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 4), torch.ones(2))], "X")  # type: ignore[arg-type]


def test_outputs_are_matched_with_labels_by_name():
    y = np.array(["dog", "cat", "dog"])
    assert match_outputs(["dog", None, "cat"], y, 3)[0] == [2, 0]
    assert match_outputs(None, np.array([4, 2]), 2)[0] == [0, 1]
    assert match_outputs(np.array([4, 2]), np.array([4, 2]), 2)[0] == [1, 0]
    with pytest.raises(ValueError, match="3 outputs, y 2 classes"):
        match_outputs(None, y, 3)
    with pytest.raises(ValueError, match="3 outputs, classes 2 names; give a label for every output"):
        match_outputs(["cat", "dog"], y, 3)
    with pytest.raises(ValueError, match="not the labels of y"):
        match_outputs(["cat", "cow"], y, 2)


def test_what_cannot_be_adopted_is_refused(trained):
    model, x, y = trained
    with pytest.raises(ValueError, match="starts from fresh weights"):
        demur.adopt(model, x, y, method="de+nc")
    with pytest.raises(ValueError, match="2 outputs, y 3 classes"):
        demur.adopt(model, x, np.arange(200) % 3)
    with pytest.raises(ValueError, match="tune 'some' is not known"):
        demur.adopt(model, x, y, tune="some")
    with pytest.raises(ValueError, match="epochs -1 is negative; give 0 or more"):
        demur.adopt(model, x, y, epochs=-1)
    with pytest.raises(ValueError, match="epochs '3' is no number"):
        demur.adopt(model, x, y, epochs="3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown method 3; known: map"):
        demur.adopt(model, x, y, method=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model is a function; give a network"):
        demur.adopt(lambda x: x, x, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="outliers were given, but method 'map' does not train with them"):
        demur.adopt(model, x, y, noise(), method="map", epochs=0)


FRESH = """
import sys, numpy as np, demur
sys.path.insert(0, sys.argv[3])
from test_adoption import Convolutional
model = demur.load_model(sys.argv[1], backbone=Convolutional(), device="cpu")
np.save(sys.argv[2], model.predict_proba(np.load(sys.argv[2])))
"""


@pytest.mark.parametrize("tune", ["head", "all"])
def test_a_saved_one_answers_the_same_in_a_fresh_process(trained, tmp_path, tune):
    model, x, y = trained
    adopted = demur.adopt(model, x, y, noise(), epochs=1, lr=1e-3, tune=tune, classes=["lower", "upper"], device="cpu")
    adopted.save(tmp_path / "a.demur")
    np.save(tmp_path / "x.npy", x)
    command = [
        sys.executable,
        "-c",
        FRESH,
        str(tmp_path / "a.demur"),
        str(tmp_path / "x.npy"),
        str(Path(__file__).parent),
    ]
    subprocess.run(command, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), adopted.predict_proba(x), atol=1e-6)
    with pytest.raises(ValueError, match="adopted from a model of your own, Convolutional; load it with backbone="):
        demur.load_model(tmp_path / "a.demur")
    with pytest.raises(ValueError, match="no affine layer 'fc'; give the model that was adopted"):
        demur.load_model(
            tmp_path / "a.demur", backbone=nn.Sequential(nn.Conv2d(1, 3, 12), nn.Flatten(), nn.Linear(3, 2))
        )


def test_a_classifier_of_transformers_is_adopted(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).eval()
        tokens = torch.randint(1, 20, (90, 6))
    tokens[::2, 4:] = 0
    with torch.no_grad():
        logits = model(tokens, attention_mask=(tokens != 0).long()).logits
    y = np.array(["a", "c"])[logits[:, [0, 2]].argmax(1).numpy()]
    y[:2] = "a", "c"
    adopted = demur.adopt(model, tokens, y, method="map", classes=["a", None, "c"], epochs=0, device="cpu")
    own = logits[:, [0, 2]].softmax(1).numpy()
    np.testing.assert_allclose(adopted.predict_proba(tokens), own, atol=1e-5)
    adopted.save(tmp_path / "bert.demur")
    again = demur.load_model(tmp_path / "bert.demur", backbone=transformers.BertForSequenceClassification(config))
    np.testing.assert_allclose(again.predict_proba(tokens), own, atol=1e-5)
