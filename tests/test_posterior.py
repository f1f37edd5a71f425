"""Posteriors: the same samples everywhere, one pass of the trunk, saved and loaded without loss; and their average."""

import json
import pickle
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from demur import posterior_file
from demur.likelihoods import none_class, plain
from demur.metrics import entropy, spread
from demur.networks import lenet, mlp
from demur.posterior import (
    MOST_SAMPLES,
    Gaussian,
    Mixture,
    Point,
    check_settings,
    fewer_samples,
    keep_samples,
    kept_bytes,
)
from demur.posterior_file import load, read_about, save
from demur.predictive import BLOCK, predict
from demur.streams import generator_for


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
        return Gaussian(model, variance, num_samples=7, seed=5, over_head=kind == "head")
    return Mixture((make("point", build, 1), make("all", build, 2), make("head", build, 3)))


KINDS = ["point", "all", "head", "mixture"]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(11, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_the_same_network_for_every_input(kind, x):
    posterior = make(kind)
    for sample in range(posterior.num_samples):
        whole = posterior.logits(x, sample)
        pieces = torch.cat([posterior.logits(piece, sample) for piece in x.split(4)])
        torch.testing.assert_close(whole, pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_is_the_average_of_softmaxes(kind, x):
    posterior, likelihood = make(kind), none_class(3)
    made = predict(posterior, likelihood, x, batch_size=3)
    parts = posterior.parts if isinstance(posterior, Mixture) else (posterior,)
    softmax = torch.stack(
        [
            torch.stack([part.logits(x, d).double().softmax(-1) for d in range(part.num_samples)]).mean(0)
            for part in parts
        ]
    ).mean(0)
    torch.testing.assert_close(made.probs, softmax[:, :3].float())
    torch.testing.assert_close(made.none, softmax[:, 3].float())
    entropies = torch.stack(
        [
            torch.stack([_entropy(part.logits(x, d).double().softmax(-1)) for d in range(part.num_samples)]).mean(0)
            for part in parts
        ]
    ).mean(0)
    torch.testing.assert_close(made.expected_entropy, entropies.float(), rtol=1e-5, atol=1e-6)


def _entropy(softmax: torch.Tensor) -> torch.Tensor:
    """Of classes, the last column being "none", whose probability is theirs in equal parts."""
    return entropy(spread(softmax[:, :-1], softmax[:, -1]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_average_is_right_to_float32s_last_bit(kind):
    """Half a unit in the last place: what adding in float32 would lose."""
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    posterior = make(kind)
    made = predict(posterior, none_class(3), x, batch_size=len(x))
    exact = torch.zeros(len(x), 4, dtype=torch.float64)
    for weight, component in posterior.components():
        for network in component.networks():
            softmax = network(component.trunk(x)).detach().float().softmax(-1).double().reshape(-1, len(x), 4)
            exact += weight / component.num_samples * softmax.sum(0)
    last_bit = 2.0**-24 * 1.001
    torch.testing.assert_close(made.probs.double(), exact[:, :3], rtol=last_bit, atol=0)
    torch.testing.assert_close(made.none.double(), exact[:, 3], rtol=last_bit, atol=0)


def test_gaussian_draws_have_the_stated_mean_and_variance():
    """Tolerance: five standard errors of 2,000 samples."""
    network = SMALL().eval()
    variance = {name: torch.rand_like(p) + 0.01 for name, p in network.named_parameters()}
    posterior = Gaussian(network, variance, num_samples=2000)
    samples = [posterior.parameters_at(sample) for sample in range(2000)]
    for name, mean in network.named_parameters():
        noise = (torch.stack([sample[name] for sample in samples]) - mean) / variance[name].sqrt()
        assert noise.mean(0).abs().max() < 5 * 2000**-0.5
        assert (noise.var(0) - 1).abs().max() < 5 * (2 / 2000) ** 0.5


def test_draws_follow_from_seed_and_number_alone():
    network = SMALL().eval()
    variance = {name: torch.ones_like(p) for name, p in network.named_parameters()}
    turned = dict(reversed(variance.items()))
    first, second, other = (
        Gaussian(network, named, seed=seed) for named, seed in ((variance, 1), (turned, 1), (variance, 2))
    )
    weights = [torch.cat([v.flatten() for v in p.parameters_at(d).values()]) for p in (first, other) for d in (0, 1)]
    assert torch.pdist(torch.stack(weights)).min() > 1  # all four differ
    for name, value in first.parameters_at(1).items():
        assert torch.equal(value, second.parameters_at(1)[name])
    assert (Gaussian(network, variance).num_samples, Gaussian(network, variance).seed) == (20, 0)


def test_a_draw_is_the_mean_plus_noise_of_its_stream():
    """So that a saved model answers tomorrow as it does today."""
    network = SMALL().eval()
    variance = {name: torch.rand_like(p) for name, p in network.named_parameters()}
    generator = generator_for("draws", 5, 2)
    for name, value in Gaussian(network, variance, seed=5).parameters_at(2).items():
        mean = network.get_parameter(name).detach()
        torch.testing.assert_close(value, mean + variance[name].sqrt() * torch.randn(mean.shape, generator=generator))


def test_draws_have_the_memory_layout_of_their_mean():
    network = lenet(3, size=8, hidden=8).eval()
    posterior = Gaussian(network, {name: torch.ones(p.shape) for name, p in network.named_parameters()})
    for name, value in posterior.parameters_at(0).items():
        assert value.stride() == network.get_parameter(name).stride()


@pytest.mark.parametrize("bias", [True, False])
def test_many_heads_in_one_product_are_the_draws_one_by_one(x, bias):
    network = SMALL().eval()
    if not bias:
        network.head = nn.Linear(8, 4, bias=False)
    variance = {f"head.{name}": torch.ones_like(p) for name, p in network.head.named_parameters()}
    posterior = Gaussian(network, variance, num_samples=150, over_head=True)  # more than are sampled at a time
    together = torch.cat([heads(posterior.trunk(x)) for heads in posterior.networks()])
    one_by_one = torch.stack([posterior.logits(x, sample) for sample in range(150)])
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=1e-5)


def test_components_share_the_probability_equally_within_each_mixture():
    a, b, c = (make("point", seed=seed) for seed in range(3))
    shares = {component: share for share, component in Mixture((Mixture((a, b)), c)).components()}
    assert shares == {a: 0.25, b: 0.25, c: 0.5}
    assert Mixture((make("mixture"), make("all"))).num_samples == 15 + 7


def test_impossible_posteriors_are_refused():
    with pytest.raises(ValueError, match="parts is empty"):
        Mixture(())
    variance = {"head.bias": torch.ones(4)}
    with pytest.raises(ValueError, match="num_samples 0"):
        Gaussian(SMALL(), variance, num_samples=0)
    assert Gaussian(SMALL(), variance, num_samples=1).num_samples == 1
    for seed in (-(2**63), 2**64 - 1):  # what a generator takes
        assert Gaussian(SMALL(), variance, seed=seed).parameters_at(0)
    for seed in (-(2**63) - 1, 2**64, 1.0, "1", True):
        with pytest.raises(ValueError, match=f"seed {seed!r}"):
            Gaussian(SMALL(), variance, seed=seed)
    with pytest.raises(ValueError, match="over_head 1 is neither"):
        Gaussian(SMALL(), variance, over_head=1)
    for odd in (-1e-30, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"the variance of head\.bias is negative, NaN or infinite"):
            Gaussian(SMALL(), {"head.bias": torch.tensor([1.0, odd, 1.0, 1.0])})
    assert Gaussian(SMALL(), {"head.bias": torch.zeros(4)}).variance


def test_the_trunk_runs_once_for_all_draws_of_the_head(x):
    posterior = make("head")
    calls = []
    posterior.network.features.register_forward_hook(lambda *_: calls.append(1))
    predict(posterior, none_class(3), x)
    assert len(calls) == 1


def test_blocks_do_not_matter():
    posterior, x = make("all"), torch.randn(BLOCK + 3, 4)
    whole, tail = predict(posterior, none_class(3), x), predict(posterior, none_class(3), x[-5:])
    assert len(whole) == len(whole.none) == len(whole.expected_entropy) == BLOCK + 3
    torch.testing.assert_close(whole.probs[-5:], tail.probs)
    torch.testing.assert_close(whole.none[-5:], tail.none)
    torch.testing.assert_close(whole.expected_entropy[-5:], tail.expected_entropy)


@pytest.mark.parametrize("kind", KINDS)
def test_how_many_logits_are_averaged_at_a_time_does_not_matter(kind, x, monkeypatch):
    posterior, parts = make(kind), ("logits", "logit_variance")
    held = predict(posterior, none_class(3), x, batch_size=2, parts=parts)
    monkeypatch.setattr("demur.predictive.HELD", 1)
    at_once = predict(posterior, none_class(3), x, batch_size=2, parts=parts)
    for part in ("probs", "none", "expected_entropy", *parts):
        torch.testing.assert_close(getattr(held, part), getattr(at_once, part), rtol=1e-6, atol=1e-7)


def test_no_more_logits_are_held_than_a_batch_beyond_the_limit(x, monkeypatch):
    """A sample of 11 inputs has 44 logits, and the posterior has seven."""
    monkeypatch.setattr("demur.predictive.HELD", 100)
    likelihood, given = none_class(3), []
    probs = type(likelihood).probs
    monkeypatch.setattr(type(likelihood), "probs", lambda self, z: (given.append(z.numel()), probs(self, z))[1])
    predict(make("all"), likelihood, x)
    assert given == [3 * 44, 3 * 44, 44]


def test_a_network_may_begin_in_place_and_the_data_stays(x):
    def begins_in_place(made: nn.Module) -> nn.Module:
        made.features = nn.Sequential(nn.ReLU(inplace=True), made.features)
        return made

    before = x.clone()
    for kind in KINDS:
        posterior = make(kind, lambda: begins_in_place(SMALL()))
        first, second = (predict(posterior, none_class(3), x) for _ in range(2))
        assert torch.equal(x, before)
        assert torch.equal(first.probs, second.probs)


@pytest.mark.parametrize("count", [1, 3])
def test_inputs_may_be_as_wide_as_they_like(count):
    wide = torch.randn(count, 2**18)
    network = nn.Linear(2**18, 3).eval()
    torch.testing.assert_close(predict(Point(network), plain(3), wide).probs, network(wide).detach().softmax(1))


def test_a_network_in_training_mode_is_refused(x):
    for network in (SMALL().train(), Normed(4).train()):
        with pytest.raises(ValueError, match=r"in training mode; call \.eval\(\)"):
            predict(Mixture((make("point"), Point(network))), none_class(3), x)


def test_uint8_images_are_read_as_zero_to_one():
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    posterior = Point(lenet(3, size=8, hidden=8).eval())
    a, b = predict(posterior, plain(3), images), predict(posterior, plain(3), images.float() / 255)
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
    for sample in range(posterior.num_samples):
        assert torch.equal(posterior.logits(x, sample), again.logits(x, sample))
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path, x):
    posterior = Gaussian(model := Tied().eval(), {"first.weight": torch.ones(4, 4)}, num_samples=2)
    save(posterior, tmp_path / "p")
    again = load(tmp_path / "p", Tied)
    assert torch.equal(posterior.logits(x, 1), again.logits(x, 1))
    w = posterior.parameters_at(1)["first.weight"]  # a sample has it in both places
    torch.testing.assert_close(posterior.logits(x, 1), (x @ w.T).relu() @ w.T)
    torch.testing.assert_close([sampled(x).detach() for sampled in posterior.networks()][1], (x @ w.T).relu() @ w.T)
    assert again.network.second.weight is again.network.first.weight
    assert model.second.weight is model.first.weight


def test_components_around_one_network_are_saved_apart(tmp_path, x):
    network = SMALL().eval()
    variance = {name: torch.rand_like(p) for name, p in network.named_parameters()}
    posterior = Mixture(
        (Point(network), Gaussian(network, variance, 3, seed=1), Gaussian(network, variance, 2, seed=2))
    )
    save(posterior, tmp_path / "p")
    again = load(tmp_path / "p", SMALL)
    for sample in range(6):
        assert torch.equal(posterior.logits(x, sample), again.logits(x, sample))


def test_what_it_is_can_be_read_without_the_network(tmp_path):
    save(make("head"), tmp_path / "p", {"task": "wine"})
    assert read_about(tmp_path / "p") == {"task": "wine"}
    save(make("head"), tmp_path / "p")
    assert read_about(tmp_path / "p") == {}
    with safe_open(tmp_path / "p", "pt") as file:
        assert json.loads(file.metadata()["demur"])["format"] == 1  # files that are out there say so


@pytest.mark.parametrize(
    "tuning",
    [{}, {"chosen": 1.0, "rows": [[1.0, 0.5]], "at_map": [0.5, 0.9]}, {"chosen": "1", "rows": [], "at_map": [0, 0]}],
)
def test_how_it_was_tuned_must_be_a_table_of_numbers(tmp_path, tuning):
    save(make("head"), tmp_path / "p")
    with safe_open(tmp_path / "p", "pt") as file:
        header = json.loads(file.metadata()["demur"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    header["posterior"]["tuning"] = tuning
    save_file(tensors, tmp_path / "p", metadata={"demur": json.dumps(header)})
    for read in (read_about, lambda path: load(path, SMALL)):
        with pytest.raises(ValueError, match="is not a posterior saved by demur, or it is damaged"):
            read(tmp_path / "p")


def test_a_header_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    save(make("point"), tmp_path / "p", {"said": "much"})
    with safe_open(tmp_path / "p", "pt") as file:
        length = len(file.metadata()["demur"])
    monkeypatch.setattr(posterior_file, "LONGEST", length)
    assert read_about(tmp_path / "p") == {"said": "much"}
    monkeypatch.setattr(posterior_file, "LONGEST", length - 1)
    with pytest.raises(ValueError, match=f"its header has more than {length - 1} characters"):
        load(tmp_path / "p", SMALL)


def test_a_loaded_posterior_has_its_settings_and_is_ready_to_predict(tmp_path):
    save(make("head"), tmp_path / "p")
    again = load(tmp_path / "p", lambda: SMALL().train())
    assert (again.num_samples, again.seed, again.over_head) == (7, 5, True)
    assert not again.network.training


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    for value in (torch.nan, torch.inf):
        posterior = make("all")
        posterior.network.head.bias.data[1] = value
        save(posterior, tmp_path / "p")
        with pytest.raises(ValueError, match=r"NaN or infinite weights, in mean/head\.bias"):
            load(tmp_path / "p", SMALL)


def test_a_save_that_fails_says_so_and_leaves_what_was_there(tmp_path):
    with pytest.raises(OSError, match="cannot write"):
        save(make("point"), tmp_path / "nowhere" / "p")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        save(make("point"), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _bad_files(folder):
    """What is said of each."""
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
    header = {"format": 1, "posterior": {"kind": "point"}, "about": ["wine"]}
    save_file({"mean/a": torch.zeros(1)}, folder / "about", metadata={"demur": json.dumps(header)})
    save(make("point", partial(mlp, 5, inputs=4, hidden=(8,))), folder / "other head")
    save(make("point", partial(mlp, 4, inputs=4, hidden=(8, 8))), folder / "deeper")
    save(make("point", partial(Normed, 4)), folder / "normed")
    damaged = "is not a posterior saved by demur, or it is damaged"
    return {
        **dict.fromkeys(("empty", "truncated", "text", "pickle", "odd", "."), damaged),
        "about": rf"{damaged} \(about is no object\)",
        "foreign": rf"{damaged} \('demur'\)",
        "newer": "has format 99, this demur reads 1; save it anew",
        "other head": r"head\.(weight is \(5, 8\)|bias is \(5,\)) in the saved posterior, \(4.*\) in the network",
        "deeper": r"features\.3\.(weight|bias) is \(8.*\) in the saved posterior, absent in the network",
        "normed": r"features\..* is .* in the saved posterior, .* in the network; pass the network",
        "absent": "absent does not exist; fit one and save it first",
    }


def test_damaged_and_foreign_files_are_refused(tmp_path):
    for name, says in _bad_files(tmp_path).items():
        with pytest.raises(ValueError, match=says):
            load(tmp_path / name, partial(mlp, 4, inputs=4, hidden=(8,)))
    load(tmp_path / "good", partial(mlp, 4, inputs=4, hidden=(8,)))


def test_variances_must_go_with_the_network():
    network = SMALL().eval()
    good = {"head.weight": torch.ones(4, 8), "head.bias": torch.ones(4)}
    Gaussian(network, good, over_head=True)
    for change, why in (
        ({"head.bias": -torch.ones(4)}, "head.bias is negative"),
        ({"head.bias": torch.tensor([1.0, 1.0, -1e-9, 1.0])}, "head.bias is negative"),
        ({"head.bias": torch.full((4,), torch.inf)}, "infinite"),
        ({"head.bias": torch.ones(1)}, r"shape \(1,\), the parameter \(4,\)"),
        ({"tail.bias": torch.ones(4)}, "the parameter is absent"),
        ({"features.1.bias": torch.ones(8)}, "over the head it must have"),
    ):
        with pytest.raises(ValueError, match=why):
            Gaussian(network, good | change, over_head=True)
    with pytest.raises(ValueError, match="variance is empty"):
        Gaussian(network, {})
    for samples in (0, -1, 2.5, True, 10**6):
        with pytest.raises(ValueError, match="num_samples"):
            Gaussian(network, good, num_samples=samples)


def test_a_draw_too_many_is_refused(x):
    with pytest.raises(ValueError, match="sample 15"):
        make("mixture").logits(x, 15)


def test_nothing_to_predict_is_refused():
    with pytest.raises(ValueError, match="empty"):
        predict(make("point"), plain(4), torch.zeros(0, 4))


def test_as_many_samples_are_kept_as_there_is_room_for_each_as_it_was():
    network = partial(mlp, inputs=4, hidden=(8,))
    model = network(3)
    variance = {name: torch.full_like(p, 0.1) for name, p in model.named_parameters()}
    gaussian = Gaussian(model, variance, num_samples=5, seed=1)
    each = 4 * sum(p.numel() for p in model.parameters())
    for room, count in ((0, 0), (each - 1, 0), (2 * each, 2), (100 * each, 5)):
        kept = keep_samples(gaussian, room)
        assert kept_bytes(kept) == count * each
        again = keep_samples(kept, room)
        x = torch.randn(6, 4)
        for sample in range(5):
            assert torch.equal(kept.logits(x, sample), gaussian.logits(x, sample))
            assert torch.equal(again.logits(x, sample), gaussian.logits(x, sample))
    three = keep_samples(Mixture((gaussian, Point(model), gaussian, gaussian)), 7 * each)
    assert [kept_bytes(part) for part in three.parts] == [5 * each, 0, 2 * each, 0]


def test_a_million_samples_are_no_more_than_are_allowed():
    check_settings(MOST_SAMPLES, 0, False)
    for odd in (MOST_SAMPLES + 1, 0, 2.0, True):
        with pytest.raises(ValueError, match="not a whole number from 1 to"):
            check_settings(odd, 0, False)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_samples_are_the_first_ones(kind, x):
    posterior = make(kind)
    for whole in (posterior, keep_samples(posterior, 2**20)):
        fewer = fewer_samples(whole, 3)
        for (_, part), (_, before) in zip(fewer.components(), posterior.components(), strict=True):
            assert part.num_samples == min(3, before.num_samples)
            assert len(getattr(part, "kept", ())) <= 3  # what is not used takes no memory
            for sample in range(part.num_samples):
                assert torch.equal(part.logits(x, sample), before.logits(x, sample))
    assert fewer_samples(posterior, 100).num_samples == posterior.num_samples
    with pytest.raises(ValueError, match="samples 0 is not a whole number from 1 on"):
        fewer_samples(posterior, 0)
