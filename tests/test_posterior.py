"""Posteriors: the same draws everywhere, one pass of the trunk, saved and loaded without loss; and their average."""

import json
import pickle
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from demur.likelihoods import none_class, plain
from demur.metrics import entropy, spread
from demur.networks import lenet, mlp
from demur.posterior import Gaussian, Mixture, Point
from demur.posterior_file import load, save
from demur.predictive import BLOCK, predict


class Normed(nn.Module):
    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


SMALL = partial(mlp, 4, inputs=4, hidden=(8,))


def make(kind: str, build=SMALL, seed: int = 0):
    torch.manual_seed(seed)
    model = build().eval()
    if kind == "point":
        return Point(model)
    names = [n for n, _ in model.named_parameters() if kind == "all" or n.startswith("head.")]
    if kind in ("all", "head"):
        variance = {n: torch.full_like(model.get_parameter(n), 0.1) for n in names}
        return Gaussian(model, variance, num_draws=7, seed=5, over_head=kind == "head")
    return Mixture((make("point", build, 1), make("all", build, 2), make("head", build, 3)))


KINDS = ["point", "all", "head", "mixture"]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(11, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_the_same_network_for_every_input(kind, x):
    posterior = make(kind)
    for draw in range(posterior.num_draws):
        whole = posterior.logits(x, draw)
        pieces = torch.cat([posterior.logits(piece, draw) for piece in x.split(4)])
        torch.testing.assert_close(whole, pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_is_the_average_of_softmaxes(kind, x):
    posterior, likelihood = make(kind), none_class(3)
    made = predict(posterior, likelihood, x, batch_size=3)
    parts = posterior.parts if isinstance(posterior, Mixture) else (posterior,)
    softmax = torch.stack(
        [torch.stack([part.logits(x, d).double().softmax(-1) for d in range(part.num_draws)]).mean(0) for part in parts]
    ).mean(0)
    torch.testing.assert_close(made.probs, softmax[:, :3].float())
    torch.testing.assert_close(made.none, softmax[:, 3].float())
    if kind == "point":
        torch.testing.assert_close(made.expected_entropy, entropy(spread(made.probs, made.none)), rtol=1e-4, atol=1e-5)


def test_gaussian_draws_have_the_stated_mean_and_variance():
    posterior = make("all")
    name = "features.1.weight"
    draws = torch.stack([posterior.sample(d)[name] for d in range(2000)])
    mean = dict(posterior.network.named_parameters())[name]
    torch.testing.assert_close(draws.mean(0), mean, rtol=0, atol=0.05)
    torch.testing.assert_close(draws.var(0), torch.full_like(mean, 0.1), rtol=0.25, atol=0)


def test_the_trunk_runs_once_for_all_draws_of_the_head(x):
    posterior = make("head")
    calls = []
    posterior.network.features.register_forward_hook(lambda *_: calls.append(1))
    predict(posterior, none_class(3), x)
    assert len(calls) == 1


def test_blocks_do_not_matter():
    posterior, x = make("all"), torch.randn(BLOCK + 3, 4)
    whole, tail = predict(posterior, plain(4), x), predict(posterior, plain(4), x[-5:])
    torch.testing.assert_close(whole.probs[-5:], tail.probs)


def test_uint8_pictures_are_read_as_zero_to_one():
    pictures = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    posterior = Point(lenet(3, size=8, hidden=8).eval())
    a, b = predict(posterior, plain(3), pictures), predict(posterior, plain(3), pictures.float() / 255)
    torch.testing.assert_close(a.probs, b.probs)


@pytest.mark.parametrize(
    "build", [partial(mlp, 4, inputs=4, hidden=(8,)), partial(Normed, 4)], ids=["mlp", "batch norm"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_predicts_the_same(kind, build, x, tmp_path):
    posterior = make(kind, build)
    for _, component in posterior.components():
        for module in component.network.modules():
            if isinstance(module, nn.BatchNorm1d):  # every component has statistics of its own
                nn.init.normal_(module.running_mean)
    save(posterior, tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors", build)
    for draw in range(posterior.num_draws):
        assert torch.equal(posterior.logits(x, draw), again.logits(x, draw))
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path, x):
    posterior = Gaussian(model := Tied().eval(), {"first.weight": torch.ones(4, 4)}, num_draws=2)
    save(posterior, tmp_path / "p")
    again = load(tmp_path / "p", Tied)
    assert torch.equal(posterior.logits(x, 1), again.logits(x, 1))
    assert again.network.second.weight is again.network.first.weight
    assert model.second.weight is model.first.weight


def _bad_files(folder):
    save(make("all"), good := folder / "good")
    content = good.read_bytes()
    (folder / "empty").write_bytes(b"")
    (folder / "truncated").write_bytes(content[: len(content) // 2])
    (folder / "text").write_text("not a posterior")
    (folder / "pickle").write_bytes(pickle.dumps({"a": 1}))
    save_file({"a": torch.zeros(1)}, folder / "foreign")
    header = {"format": 99, "posterior": {"kind": "point"}}
    save_file({"a": torch.zeros(1)}, folder / "newer", metadata={"demur": json.dumps(header)})
    save_file({"a": torch.zeros(1)}, folder / "odd", metadata={"demur": "[]"})
    save(make("point", partial(mlp, 5, inputs=4, hidden=(8,))), folder / "other head")
    damaged = "is not a posterior saved by demur, or it is damaged"
    return {
        **dict.fromkeys(("empty", "truncated", "text", "pickle", "odd", "."), damaged),
        "foreign": rf"{damaged} \('demur'\)",
        "newer": "has format 99, this demur reads 1",
        "other head": r"head\.\w+ is \(5.*\) in the saved posterior, \(4.*\) in the network; pass the network",
        "absent": "does not exist; fit one",
    }


def test_damaged_and_foreign_files_are_refused(tmp_path):
    for name, why in _bad_files(tmp_path).items():
        with pytest.raises(ValueError, match=why):
            load(tmp_path / name, partial(mlp, 4, inputs=4, hidden=(8,)))


def test_variances_must_go_with_the_network():
    network = SMALL().eval()
    good = {"head.weight": torch.ones(4, 8), "head.bias": torch.ones(4)}
    Gaussian(network, good, over_head=True)
    for change, why in (
        ({"head.bias": -torch.ones(4)}, "head.bias is negative"),
        ({"head.bias": torch.full((4,), torch.inf)}, "infinite"),
        ({"head.bias": torch.ones(1)}, r"shape \(1,\), the parameter \(4,\)"),
        ({"tail.bias": torch.ones(4)}, "the parameter is absent"),
        ({"features.1.bias": torch.ones(8)}, "over the head it must have"),
    ):
        with pytest.raises(ValueError, match=why):
            Gaussian(network, good | change, over_head=True)
    with pytest.raises(ValueError, match="variance is empty"):
        Gaussian(network, {})
    for draws in (0, -1, 2.5, True, 10**6):
        with pytest.raises(ValueError, match="num_draws"):
            Gaussian(network, good, num_draws=draws)


def test_a_draw_too_many_is_refused(x):
    with pytest.raises(ValueError, match="draw 15"):
        make("mixture").logits(x, 15)


def test_nothing_to_predict_is_refused():
    with pytest.raises(ValueError, match="empty"):
        predict(make("point"), plain(4), torch.zeros(0, 4))
