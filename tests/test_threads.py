"""Any number of threads can predict with one posterior, and whatever fails on the way, the network stays as it is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from threading import Lock

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import demur
from demur.cli import app, predicting
from demur.inference import CyclicalSGHMC, Ensemble, KroneckerLaplace, Laplace
from demur.likelihoods import none_class
from demur.networks import gru, mlp
from demur.posterior import Gaussian, Posterior
from demur.predictive import predict
from demur.training import observed
from tests.conftest import make_task
from tests.serving import table

SETTINGS = {
    "la": Laplace(prior_precision=5.0),
    "la_kron": KroneckerLaplace(prior_precision=5.0),
    "de": Ensemble(Laplace(prior_precision=5.0), members=2),
}


class Failing(nn.Module):
    """Raises in the middle of a pass, where asked to."""

    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("in the middle")
        return x


def breakable(num_outputs: int) -> nn.Module:
    network = mlp(num_outputs, inputs=4, hidden=(8,))
    network.features.append(Failing())
    return network


def fitted(name: str) -> Posterior:
    inference = SETTINGS.get(name) or demur.INFERENCES[name]()
    if isinstance(inference, CyclicalSGHMC):
        inference = replace(inference, cycles=1)
    return inference.fit(breakable, none_class(3), make_task().training, demur.Recipe(epochs=4, batch_size=32))


def weights(posterior: Posterior) -> list[torch.Tensor]:
    return [tensor.clone() for _, part in posterior.components() for tensor in part.network.state_dict().values()]


def in_threads(call: Callable[[int], object], times: int) -> list:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(call, range(times)))


@pytest.mark.parametrize("name", demur.INFERENCES)
def test_threads_answer_as_one_would(name):
    posterior, x = fitted(name), torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    before, alone = weights(posterior), [predict(posterior, none_class(3), x[i : i + 8]) for i in range(40)]
    for number, made in enumerate(in_threads(lambda i: predict(posterior, none_class(3), x[i % 40 : i % 40 + 8]), 80)):
        expected = alone[number % 40]
        assert torch.equal(made.probs, expected.probs)
        assert torch.equal(made.none, expected.none)
    assert all(map(torch.equal, before, weights(posterior)))


@pytest.mark.parametrize("name", demur.INFERENCES)
def test_a_failure_in_the_middle_leaves_the_network_as_it_was(name, monkeypatch):
    posterior, x = fitted(name), torch.randn(16, 4)
    before, alone = weights(posterior), predict(posterior, none_class(3), x)
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises(RuntimeError, match="in the middle"):
        predict(posterior, none_class(3), x)
    with pytest.raises(RuntimeError, match="in the middle"):
        posterior.logits(x, posterior.num_samples - 1)
    monkeypatch.setattr(Failing, "fails", False)
    assert all(map(torch.equal, before, weights(posterior)))
    assert torch.equal(predict(posterior, none_class(3), x).probs, alone.probs)


def test_recurrent_and_tied_weights_are_sampled_in_a_copy():
    """A GRU keeps a list of its weights beside them, which must be the sample's, too."""
    network = gru(3, vocabulary=9, embedding=4, hidden=5).eval()
    variance = {name: torch.full_like(value, 0.3) for name, value in network.named_parameters()}
    posterior, tokens = Gaussian(network, variance, num_samples=3), torch.randint(1, 9, (6, 7))
    for sample in range(3):
        by_hand = deepcopy(network)
        with torch.no_grad():
            for name, value in posterior.parameters_at(sample).items():
                by_hand.get_parameter(name).copy_(value)
        torch.testing.assert_close(posterior.logits(tokens, sample), by_hand(tokens))


def test_fits_in_threads_are_as_one_after_another():
    """Dropout samples from torch's own generator, which threads share."""

    def network(num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, num_outputs))

    def fit(seed: int) -> list[torch.Tensor]:
        recipe = demur.Recipe(epochs=3, batch_size=16, seed=seed % 4)
        return weights(demur.MAP().fit(network, none_class(3), make_task().training, recipe))

    alone = [fit(seed) for seed in range(4)]
    for number, found in enumerate(in_threads(fit, 16)):
        assert all(map(torch.equal, found, alone[number % 4]))


def test_a_classifier_serves_threads():
    x, y = make_task().training.train.x.numpy(), make_task().training.train.y.numpy()
    method = replace(demur.parse_method("la+nc"), inference=Laplace(prior_precision=5.0))
    model = demur.Classifier(method, epochs=60, lr=0.01, device="cpu").fit(x, y)
    expected = model.predict_all(x)
    for answers in in_threads(lambda _: model.predict_all(x), 40):
        assert (answers.decision == expected.decision).all()
        assert (answers.probability == expected.probability).all()


class Locked(nn.Module):
    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.linear, self.lock = nn.Linear(4, num_outputs), Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Remembering(Locked):
    """Keeps its last activation, which has a graph behind it."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(num_outputs)
        self.lock = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        return self.last


class Closed(Remembering):
    """Calls its layer by way of a closure, which a copy shares."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(num_outputs)
        self.step = lambda x: self.linear(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(x)


class Twofold(Closed):
    """One module under two names."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__(num_outputs)
        self.again = self.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(x)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Locked, "cannot be copied .*lock"),
        (Remembering, "cannot be copied"),
        (Closed, "refers to the original"),
        (Twofold, "module again of the network .Twofold. stands in it twice"),
    ],
)
@pytest.mark.parametrize("name", ["la", "flipout", "csghmc"])
def test_networks_that_samples_cannot_be_put_into_are_refused_before_training(name, network, why):
    epochs: list[object] = []
    with pytest.raises(ValueError, match=why), observed(epochs.append):
        demur.INFERENCES[name]().fit(network, none_class(3), make_task().training, demur.Recipe(epochs=2))
    assert not epochs
    if network is not Twofold:
        demur.MAP().fit(network, none_class(3), make_task().training, demur.Recipe(epochs=1))


def test_a_buffer_that_is_written_in_a_pass_stays_as_it_was():
    class Counting(nn.Module):
        def __init__(self, num_outputs: int) -> None:
            super().__init__()
            self.linear = nn.Linear(4, num_outputs)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            return self.linear(x) * (1 + self.passes)

    posterior = Gaussian(Counting(4).eval(), {"linear.bias": torch.ones(4)}, num_samples=3)
    first, second = (predict(posterior, none_class(3), torch.ones(2, 4)).probs for _ in range(2))
    assert torch.equal(first, second)
    assert posterior.network.passes == 0


def test_a_small_network_answers_a_file_with_one_thread(tmp_path, monkeypatch):
    rows, labels = table(60)
    demur.Classifier("map", epochs=1, device="cpu").fit(rows, labels).save(tmp_path / "model.demur")
    rows[:3].to_csv(tmp_path / "rows.csv", index=False)
    said: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", said.append)

    def answer(out: str) -> list[int]:
        said.clear()
        arguments = ["predict", tmp_path / "model.demur", tmp_path / "rows.csv", "-o", tmp_path / out]
        assert CliRunner().invoke(app, [*map(str, arguments)]).exit_code == 0
        return said

    assert answer("one.csv") == [1]
    assert answer("one.parquet") == [1]
    monkeypatch.setattr(predicting, "SMALL", 1)
    assert answer("more.csv") == []
