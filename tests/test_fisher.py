"""The diagonal Fisher against a per-example loop with the same signs, closed forms, and laplace-torch's figures."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from demur.inference import Laplace
from demur.inference.fisher import batch_mean_fisher, diagonal_fisher, make_plan
from demur.inference.rules import RULES
from demur.likelihoods import LIKELIHOODS, none_class, outlier_exposure, plain
from demur.networks import as_input, gru, lenet, mlp, wide_resnet
from demur.training_data import Fixed
from tests.conftest import changed, make_task


class Unusual(nn.Module):
    """Layers without a rule, a bare parameter, a layer used twice, an in-place ReLU, tied weights."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.twice = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.gate = nn.PReLU()
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.conv = nn.Conv1d(5, 3, 1)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.twice.weight
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(18, num_outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.embed(x))
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.norm(self.twice(self.gate(self.twice(h))))
        return (self.scale * self.conv(self.tied(h))).flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Mixed(nn.Module):
    """Group norm, batch norm, grouped, strided and dilated convolutions, each with a rule."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 6, 3, padding=2, dilation=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 10),
            nn.BatchNorm1d(10),
            nn.LayerNorm(10),
        )
        self.head = nn.Linear(10, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def _tokens() -> torch.Tensor:
    tokens = torch.randint(1, 20, (5, 7), generator=torch.Generator().manual_seed(0))
    tokens[0, :4], tokens[1, 3:] = 0, 6  # padding, and a word that is said four times
    return tokens


NETWORKS = {
    "mlp": (partial(mlp, inputs=4, hidden=(6, 5)), torch.randn(9, 4)),
    "lenet": (partial(lenet, size=8, hidden=16), torch.rand(5, 1, 8, 8)),
    "wide_resnet": (partial(wide_resnet, depth=10, width=1), torch.rand(4, 3, 16, 16)),
    "gru": (partial(gru, vocabulary=20, embedding=4, hidden=5), _tokens()),
    "unusual": (Unusual, torch.randn(6, 5, 4)),
    "mixed": (Mixed, torch.randn(5, 2, 9, 9)),
}


def built(name: str, num_outputs: int) -> tuple[nn.Module, torch.Tensor]:
    network, x = NETWORKS[name]
    torch.manual_seed(3)
    model = network(num_outputs)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):  # statistics, scales and shifts as after training
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, 0, 0.1)
    return model.eval(), x


def one_by_one(model, root, x, signs=None) -> dict[str, torch.Tensor]:
    """The definition: per example, J' v for every v, squared and summed."""
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for index in range(len(x)):
        logits = model(as_input(x[index : index + 1]))[0]
        s = root(logits.detach()[None])[0]
        vectors = s.T if signs is None else (s @ signs[index].float())[None]
        for v in vectors:
            gradients = torch.autograd.grad(logits, list(named.values()), v, retain_graph=True, allow_unused=True)
            for name, gradient in zip(named, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient**2
    return total


def random_signs(count: int, outputs: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, (count, outputs), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def assert_same(ours, theirs, tolerance=1e-5):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        error = (ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp_min(1e-12)
        assert error < tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("likelihood_name", LIKELIHOODS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "exact"])
def test_equals_the_per_example_loop(name, likelihood_name, sampled):
    likelihood = LIKELIHOODS[likelihood_name](3)
    model, x = built(name, likelihood.num_outputs)
    signs = random_signs(len(x), likelihood.num_outputs) if sampled else None
    roots = [likelihood.inside.fisher_root] + ([likelihood.outside.model.fisher_root] if likelihood.outside else [])
    for root in roots:
        assert_same(diagonal_fisher(model, root, x, signs=signs), one_by_one(model, root, x, signs))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_chunk_does_not_matter(name):
    model, x = built(name, 4)
    root, signs = none_class(3).inside.fisher_root, random_signs(len(x), 4)
    assert_same(diagonal_fisher(model, root, x, signs=signs, budget=1), diagonal_fisher(model, root, x, signs=signs))


def test_every_layer_has_its_path():
    rules = {name: make_plan(*built(name, 3), budget=2**30) for name in NETWORKS}
    for name in ("mlp", "lenet", "wide_resnet", "mixed"):
        assert not rules[name].rest
    assert all(name.startswith("features.gru") for name in rules["gru"].rest)
    assert not rules["gru"].vectorised
    assert rules["unusual"].vectorised
    assert rules["unusual"].layers == ("embed", "norm", "head")
    assert {type(m) for n in NETWORKS for m in built(n, 3)[0].modules()} >= set(RULES)


CONVOLUTIONS = {
    "of two directions": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
    "of the other two": {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 3), "groups": 2},
    "that wraps around": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "that mirrors, as large as before": {"kernel_size": 3, "padding": "same", "padding_mode": "reflect"},
    "as large as before": {"kernel_size": 3, "padding": "same"},
    "without padding": {"kernel_size": 3, "padding": "valid"},
}


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_every_convolution_has_its_fisher(convolution):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, **CONVOLUTIONS[convolution])
    x = torch.randn(4, 2, 8, 7)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(layer(x)[0].numel(), 3)).eval()
    root = plain(3).inside.fisher_root
    assert_same(diagonal_fisher(model, root, x), one_by_one(model, root, x))


class Shared(nn.Module):
    """Two layers with one weight, each with its own bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).tanh()).tanh())


def test_the_gradients_of_a_shared_weight_are_summed_before_they_are_squared():
    torch.manual_seed(0)
    model, x, root = Shared().eval(), torch.randn(5, 4), plain(3).inside.fisher_root
    assert_same(diagonal_fisher(model, root, x), one_by_one(model, root, x))


def test_so_many_examples_at_a_time_as_the_budget_holds_and_one_at_least():
    model, x = built("lenet", 3)
    bytes_each = make_plan(model, x, 1).bytes_per_example
    for budget, chunk in ((0, 1), (1, 1), (2 * bytes_each - 1, 1), (2 * bytes_each, 2), (7 * bytes_each, 7)):
        assert make_plan(model, x, budget).chunk == chunk


def test_an_example_takes_at_least_its_largest_gradient():
    """Of a layer on sequences, whose gradient is no outer product, before layers that need next to nothing."""
    model = nn.Sequential(nn.Linear(300, 200), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(3, 3)).eval()
    assert make_plan(model, torch.randn(2, 3, 300), 2**30).bytes_per_example >= 4 * 200 * 300


class InPlace(nn.Module):
    """Begins in place; its parameters have a rule, none, and none that vmap knows."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 4) + 0.5)
        self.gru = nn.GRU(4, 4, batch_first=True) if recurrent else None
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.relu_().sub_(0.5) * self.scale
        return self.head((h if self.gru is None else self.gru(h)[0]).flatten(1))


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_network_may_begin_in_place_and_the_data_stays(recurrent):
    torch.manual_seed(0)
    model, x = InPlace(recurrent).eval(), torch.randn(5, 3, 4)
    before, root = x.clone(), plain(3).inside.fisher_root
    fisher = diagonal_fisher(model, root, x)
    assert torch.equal(x, before)
    assert_same(fisher, one_by_one(model, root, before.clone()))
    assert make_plan(model, x, 2**30).vectorised is not recurrent


class Idle(nn.Module):
    """Computes what nobody asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.head = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.idle(x)
        return self.head(x)


def test_nothing_is_known_of_layers_that_logits_do_not_depend_on():
    model, x = Idle().eval(), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    root = plain(3).inside.fisher_root
    fisher = diagonal_fisher(model, root, x)
    assert_same(fisher, one_by_one(model, root, x))
    assert (fisher["idle.weight"] == 0).all()


def test_padding_that_is_looked_up_learns_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.Linear(12, 3)).eval()
    nn.init.normal_(model[0].weight)
    x, root = torch.tensor([[0, 0, 1, 2], [3, 0, 4, 4], [5, 1, 1, 1]]), plain(3).inside.fisher_root
    fisher = diagonal_fisher(model, root, x)
    assert_same(fisher, one_by_one(model, root, x))
    assert (fisher["0.weight"][0] == 0).all()
    assert (fisher["0.weight"][1:] > 0).all()


def test_only_the_head_on_request():
    model, x = built("lenet", 3)
    root = plain(3).inside.fisher_root
    head = diagonal_fisher(model, root, x, only=["head.weight", "head.bias"])
    whole = diagonal_fisher(model, root, x)
    assert_same(head, {name: whole[name] for name in ("head.weight", "head.bias")})


def test_frozen_parameters_stay_points():
    model, x = built("gru", 3)
    model.features.requires_grad_(False)
    assert list(diagonal_fisher(model, plain(3).inside.fisher_root, x)) == ["head.weight", "head.bias"]


def assert_mean_is(draws: list[dict[str, torch.Tensor]], expected: dict[str, torch.Tensor]) -> None:
    """To five standard errors, which must be small enough to tell."""
    for name, value in expected.items():
        its = torch.stack([draw[name] for draw in draws])
        error = its.std(0) / len(draws) ** 0.5
        assert ((its.mean(0) - value).abs() <= 5 * error + 1e-6 * value.max()).all(), name
        assert (error / value.clamp_min(1e-12)).median() < 0.05, f"{name}: too noisy to tell"


def test_sampled_tends_to_exact():
    model, x = built("mlp", 4)
    root = none_class(3).inside.fisher_root
    draws = [diagonal_fisher(model, root, x, signs=random_signs(len(x), 4, seed)) for seed in range(1500)]
    assert_mean_is(draws, diagonal_fisher(model, root, x))


def test_exact_is_the_closed_form_of_softmax_regression():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 3).eval()
    p = model(x).softmax(-1).detach()
    fisher = diagonal_fisher(model, plain(3).inside.fisher_root, x)
    torch.testing.assert_close(fisher["weight"], (p * (1 - p)).T @ x**2)
    torch.testing.assert_close(fisher["bias"], (p * (1 - p)).sum(0))


def test_exact_is_the_generalised_gauss_newton_diagonal():
    model, x = built("lenet", 3)
    named = {name: p.detach() for name, p in model.named_parameters()}
    jacobian = jacrev(lambda p: functional_call(model, p, (x,)))(named)
    p = model(x).softmax(-1).detach()
    hessian = p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)
    expected = {n: torch.einsum("bc...,bcd,bd...->...", j, hessian, j) for n, j in jacobian.items()}
    assert_same(diagonal_fisher(model, plain(3).inside.fisher_root, x), expected, tolerance=1e-4)


def test_exact_is_laplace_torchs():
    """Figures of laplace-torch; how they were made is said in the file."""
    stored = json.loads((Path(__file__).parent / "laplace_torch.json").read_text())
    weights = {name: torch.tensor(value) for name, value in stored["weights"].items()}
    model = mlp(3, inputs=4, hidden=(5,))
    model.load_state_dict(weights)
    fisher = diagonal_fisher(model.eval(), plain(3).inside.fisher_root, torch.tensor(stored["inputs"]))
    flat = torch.cat([fisher[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(flat, torch.tensor(stored["diagonal"]), rtol=1e-4, atol=1e-6)


def test_doubling_the_weight_doubles_the_outliers_part():
    task = make_task()
    torch.manual_seed(0)
    model = mlp(3, inputs=4, hidden=(8,)).eval()
    laplace = Laplace(estimator="exact")
    zero, one, two = (
        laplace.fisher(model, likelihood, task.training)["head.weight"]
        for likelihood in (plain(3), outlier_exposure(3, weight=1.0), outlier_exposure(3, weight=2.0))
    )
    torch.testing.assert_close(two - zero, 2 * (one - zero), rtol=1e-4, atol=1e-4)


def test_the_number_of_outliers_does_not_matter_but_their_kind():
    task = make_task()
    repeated = Fixed(task.training.outliers.x[:24].repeat(4, 1))
    once = Fixed(task.training.outliers.x[:24])
    torch.manual_seed(0)
    model = mlp(4, inputs=4, hidden=(8,)).eval()

    sums = [
        Laplace(estimator="exact").fisher(model, none_class(3), changed(task, outliers=o).training)
        for o in (repeated, once)
    ]
    for name in sums[0]:
        torch.testing.assert_close(sums[0][name], sums[1][name], rtol=1e-4, atol=1e-4)


MEMORY = """
import torch
from pathlib import Path
from demur.inference.fisher import diagonal_fisher, make_plan
from demur.likelihoods import plain
from demur.networks import wide_resnet
torch.set_num_threads(1)
model, x = wide_resnet(10).eval(), torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)
root = plain(10).inside.fisher_root
signs = torch.ones(64, 10)
peak = lambda: 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
diagonal_fisher(model, root, x[:1], signs=signs[:1])
before = peak()
budget = 400 * 2**20
assert 4 < make_plan(model, x, budget).chunk < 64, make_plan(model, x, budget)
diagonal_fisher(model, root, x, signs=signs, budget=budget)
print(peak() - before, budget)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_memory_stays_under_the_budget():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used, budget = map(int, done.stdout.split())
    assert 0.2 * budget < used < budget


@pytest.mark.parametrize(("name", "cudnn"), [("gru", False), ("mlp", True)])
def test_recurrent_layers_are_differentiated_without_cudnn(name, cudnn):
    """Whose own have no backward pass in eval mode; whether it is used is said on a CPU, too."""
    model, x = built(name, 3)
    root, seen = plain(3).inside.fisher_root, []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.enabled))
    batch_mean_fisher(model, root, x, random_signs(len(x), 3))
    diagonal_fisher(model, root, x)
    assert (seen[0], seen[-1], torch.backends.cudnn.enabled) == (cudnn, cudnn, True)


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match="eval"):
        diagonal_fisher(mlp(3, inputs=4), plain(3).inside.fisher_root, torch.zeros(1, 4))


def test_the_papers_estimate_is_smaller_by_the_square_of_the_batch():
    model, _ = built("mlp", 4)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    root = none_class(3).inside.fisher_root
    draws = [batch_mean_fisher(model, root, x, random_signs(40, 4, seed), batch_size=8) for seed in range(1500)]
    assert_mean_is(draws, {name: value / 64 for name, value in diagonal_fisher(model, root, x).items()})


def test_the_papers_estimate_is_the_square_of_each_batchs_mean():
    """The definition, with the same signs; the last batch is smaller."""
    model, _ = built("mlp", 4)
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    root, signs = none_class(3).inside.fisher_root, random_signs(300, 4)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for rows in (slice(0, 128), slice(128, 256), slice(256, 300)):
        logits = model(x[rows])
        v = torch.einsum("bcr,br->bc", root(logits.detach()), signs[rows].float())
        (logits * v).sum(1).mean().backward()
        for name, p in model.named_parameters():
            expected[name] += p.grad**2
        model.zero_grad()
    assert_same(batch_mean_fisher(model, root, x, signs), expected)
    head = batch_mean_fisher(model, root, x, signs, only=["head.bias"])
    assert_same(head, {"head.bias": expected["head.bias"]})
