"""What only a GPU does: steps recorded as a CUDA graph, bfloat16, networks trained side by side; and what it must do as
a CPU does: samples, predictions, the Fisher, resumed training. Skipped where there is none.

Bits are compared with cuDNN held to one way of computing a convolution; which way is fastest may differ between runs.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from demur import checkpoint, fused, graphs, training
from demur.checkpoint import checkpointed
from demur.graphs import Recorded
from demur.inference import MAP, CyclicalSGHMC, Ensemble, Flipout, Inference, VariationalBayes, together
from demur.inference.fisher import diagonal_fisher
from demur.inference.together import can_train_together, train_together
from demur.likelihoods import none_class, plain
from demur.metrics import METRICS
from demur.networks import HeadedNetwork, gru, lenet, mixed_precision, mlp, wide_resnet
from demur.posterior import Gaussian, Mixture, Point, Posterior
from demur.predictive import predict
from demur.tasks.base import Task
from demur.training import EpochReport, Learner, observed
from demur.training_data import Recipe
from tests.conftest import make_task
from tests.test_posterior import Normed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here; run this file where one is")

NETWORKS = {
    "mlp": (partial(mlp, inputs=4, hidden=(32,)), (4,)),
    "lenet": (partial(lenet, size=8, hidden=32), (1, 8, 8)),
}
METHODS: dict[str, Inference] = {
    "map": MAP(),
    "vb": VariationalBayes(num_samples=3),
    "flipout": Flipout(num_samples=3),
    "csghmc": CyclicalSGHMC(cycles=2, samples_per_cycle=2, length=1.0),
}
RECIPE = Recipe(epochs=8, batch_size=32, lr=1e-2)  # 24 steps, of which 3 are plain before the rest is recorded


@pytest.fixture(autouse=True)
def _one_way_to_convolve() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many learners each graph that was recorded has."""
    found: list[int] = []

    class Watched(Recorded):
        def _record(self) -> None:
            super()._record()
            if self.graph is not None:
                found.append(len(self.learners))

    for module in (training, together):
        monkeypatch.setattr(module, "Recorded", Watched)
    return found


def never_recorded(step: Callable[[], None]) -> bool:
    step()
    return True


def state(posterior: Posterior) -> list[Tensor]:
    """Every parameter, buffer and variance."""
    found: list[Tensor] = []
    for _, component in posterior.components():
        found += [*component.network.parameters(), *component.network.buffers()]
        found += component.variance.values() if isinstance(component, Gaussian) else []
    return [value.detach() for value in found]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("network_name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_are_plain_ones_bit_for_bit(method, network_name, optimizer, recorded, monkeypatch):
    network, shape = NETWORKS[network_name]
    task, recipe = make_task(shape).to("cuda"), replace(RECIPE, optimizer=optimizer)
    by_graph = METHODS[method].fit(network, none_class(3), task.training, recipe)
    assert recorded, "nothing was recorded, so nothing is compared"
    recorded.clear()
    monkeypatch.setattr(graphs, "needs_host", never_recorded)
    one_by_one = METHODS[method].fit(network, none_class(3), task.training, recipe)
    assert not recorded
    for a, b in zip(state(by_graph), state(one_by_one), strict=True):
        assert torch.equal(a, b)


class Waiting(nn.Module):
    """Asks the host about every batch."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if float(x.sum()) > -1e9 else self.head(-x)


def test_steps_that_wait_for_the_host_stay_plain(recorded):
    reports: list[EpochReport] = []
    with observed(reports.append):
        MAP().fit(Waiting, none_class(3), make_task().to("cuda").training, RECIPE)
    assert not recorded
    assert reports[-1].loss < reports[0].loss


def test_a_network_with_batch_norm_and_dropout_is_recorded_as_it_is_plain(recorded, monkeypatch):
    network = partial(wide_resnet, depth=10, width=1)
    task, recipe = make_task((3, 8, 8)).to("cuda"), replace(RECIPE, epochs=3)
    by_graph = MAP().fit(network, none_class(3), task.training, recipe)
    assert recorded == [1]
    monkeypatch.setattr(graphs, "needs_host", never_recorded)
    for a, b in zip(state(by_graph), state(MAP().fit(network, none_class(3), task.training, recipe)), strict=True):
        assert torch.equal(a, b)


# kernels -----------------------------------------------------------------------------------------------------------


def set_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).cuda().eval()
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean):
            value.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.1, 3)  # type: ignore[union-attr]
    return norm


@pytest.mark.parametrize("shape", [(64, 64, 16, 16), (7, 5, 3, 9), (256, 256, 8, 8), (2, 16, 1, 1)])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
def test_batch_norm_and_relu_by_the_kernel_are_torchs(kind, tolerance, shape):
    torch.manual_seed(0)
    norm = set_norm(shape[1])
    x = (3 + 2 * torch.randn(shape, device="cuda")).to(kind).contiguous(memory_format=torch.channels_last)
    x[0, 0] = float("nan")
    with torch.no_grad():
        assert fused.fits(x, norm)
        exact = deepcopy(norm).double()(x.double()).relu()
        found = fused.norm_relu(x, norm)
    assert found.dtype == kind
    torch.testing.assert_close(
        found.double(), exact, rtol=0, atol=tolerance * float(exact.nan_to_num().max()), equal_nan=True
    )


def test_where_gradients_are_asked_for_in_eval_mode_the_norm_is_torchs():
    norm = set_norm(4)
    x = torch.randn(2, 4, 3, 3, device="cuda").contiguous(memory_format=torch.channels_last)
    assert not fused.fits(x, norm)
    fused.norm_relu(x, norm)[0].sum().backward()
    assert norm.bias.grad is not None


# bfloat16 ----------------------------------------------------------------------------------------------------------


def in_float32(network: nn.Module, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, enabled=False)


@pytest.fixture
def _bfloat16() -> None:
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no units for bfloat16")


@pytest.mark.usefixtures("_bfloat16")
@pytest.mark.parametrize("network_name", NETWORKS)
def test_predictions_in_bfloat16_are_those_in_float32(network_name, monkeypatch):
    """Tolerance: 0.005 of a probability, 0.001 on average; bfloat16 has 8 bits, a relative error of 0.4 % a number."""
    network, shape = NETWORKS[network_name]
    torch.manual_seed(0)
    posterior, x = Point(network(4).cuda().eval()), make_task(shape).testing.test.x.cuda()
    fast = predict(posterior, none_class(3), x)
    monkeypatch.setattr("demur.predictive.mixed_precision", in_float32)
    plain_ones = predict(posterior, none_class(3), x)
    error = (fast.probs - plain_ones.probs).abs()
    assert 0 < error.max() < 0.005  # 0 would be float32 against itself
    assert error.mean() < 0.001


@pytest.mark.usefixtures("_bfloat16")
@pytest.mark.parametrize("network_name", NETWORKS)
def test_a_step_in_bfloat16_goes_where_one_in_float32_goes(network_name, monkeypatch):
    """One step of gradient descent on all data. Tolerance: 5 % of the step's length."""
    network, shape = NETWORKS[network_name]
    task = make_task(shape).to("cuda")
    recipe = Recipe(epochs=1, batch_size=96, optimizer="sgd", lr=0.1, weight_decay=0.0)

    def weights() -> Tensor:
        return torch.cat([p.flatten() for p in state(MAP().fit(network, none_class(3), task.training, recipe))])

    torch.manual_seed(recipe.seed)
    start = torch.cat([p.detach().flatten() for p in network(4).parameters()]).cuda()
    fast = weights()
    monkeypatch.setattr(training, "mixed_precision", in_float32)
    slow = weights()
    assert 0 < (fast - slow).norm() < 0.05 * (slow - start).norm()


@pytest.mark.usefixtures("_bfloat16")
def test_heads_and_networks_of_other_makes_stay_float32():
    x = torch.randn(2, 4, device="cuda")
    for network, inside in ((mlp(3, inputs=4).cuda(), torch.bfloat16), (nn.Linear(4, 3).cuda(), torch.float32)):
        with mixed_precision(network, x.device):
            assert network(x).dtype == torch.float32
            if isinstance(network, HeadedNetwork):
                assert network.features(x).dtype == inside


# side by side ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("network_name", NETWORKS)
def test_networks_side_by_side_are_those_trained_one_after_another(network_name, optimizer, likelihood, recorded):
    """To 1e-4 of the largest weight after 24 steps: sums may be taken in another order."""
    network, shape = NETWORKS[network_name]
    task = make_task(shape).to("cuda")
    recipes = [its for _, its in Ensemble(members=3).parts(replace(RECIPE, optimizer=optimizer))]
    members = train_together(network, likelihood, task.training, recipes)
    assert recorded == [3]
    for recipe, member in zip(recipes, members, strict=True):
        alone = MAP().fit(network, likelihood, task.training, recipe)
        for p, q in zip(state(alone), state(member), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-4 * float(p.abs().max()))


def test_side_by_side_is_for_networks_that_draw_nothing(recorded):
    task = make_task().to("cuda")
    assert can_train_together(partial(mlp, inputs=4), plain(3), task.training) is True
    assert can_train_together(partial(gru, vocabulary=5), plain(3), task.training) is False
    assert (
        can_train_together(
            lambda outputs: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, outputs)), plain(3), task.training
        )
        is False
    )
    before = torch.cuda.get_rng_state()
    Ensemble(members=2).fit(NETWORKS["mlp"][0], plain(3), task.training, RECIPE)
    assert recorded == [2]
    assert torch.equal(torch.cuda.get_rng_state(), before)


# as on a CPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over_head", [False, True])
def test_draws_and_predictions_are_the_cpus(over_head):
    """A network of another make than ours, so in float32. Tolerance: 1e-5 of a probability."""
    torch.manual_seed(0)
    network, x = Normed(4).eval(), torch.randn(50, 4)
    names = [name for name, _ in network.named_parameters() if name.startswith("head.") or not over_head]
    variance = {name: torch.rand_like(network.get_parameter(name)) for name in names}
    here = Mixture((Point(network), Gaussian(network, variance, seed=3, over_head=over_head)))
    on_cpu = predict(here, none_class(3), x)
    sample = here.parts[1].parameters_at(5)
    network.cuda()
    there = Gaussian(network, {name: v.cuda() for name, v in variance.items()}, seed=3, over_head=over_head)
    for name, value in sample.items():
        torch.testing.assert_close(there.parameters_at(5)[name].cpu(), value, rtol=1e-6, atol=1e-6)
    for _ in range(2):  # the second time with what was kept of the first
        on_gpu = predict(Mixture((Point(network), there)), none_class(3), x.cuda())
        for name in ("probs", "none", "expected_entropy"):
            assert getattr(on_gpu, name).device.type == "cpu"
            torch.testing.assert_close(getattr(on_gpu, name), getattr(on_cpu, name), rtol=1e-4, atol=1e-5)
    y = torch.arange(50) % 3
    for metric in METRICS.values():
        assert metric(on_gpu, y.cuda()) == metric(on_gpu, y)


def test_the_fisher_is_the_cpus():
    """To 1e-3 of a parameter's largest; the network is of another make than ours, so in float32."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3)
    ).eval()
    x, root = torch.randn(20, 1, 8, 8), plain(3).inside.fisher_root
    signs = torch.randint(2, (20, 3)) * 2 - 1
    expected = {its: diagonal_fisher(network, root, x, signs=given) for its, given in (("s", signs), ("e", None))}
    network.cuda()
    for its, given in (("s", signs.cuda()), ("e", None)):
        for name, value in diagonal_fisher(network, root, x.cuda(), signs=given).items():
            scale = float(expected[its][name].max())
            torch.testing.assert_close(value.cpu(), expected[its][name], rtol=0, atol=1e-3 * scale)


class Killed(Exception):
    """Stands for a process that is no more."""


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_equals_never_killed(method, recorded, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    network, shape = NETWORKS["lenet"]
    task = make_task(shape).to("cuda")
    whole = METHODS[method].fit(network, none_class(3), task.training, RECIPE)
    assert recorded

    def die(report: EpochReport) -> None:
        if report.epoch == 5:
            raise Killed

    with pytest.raises(Killed), checkpointed(tmp_path / "c"), observed(die):
        METHODS[method].fit(network, none_class(3), task.training, RECIPE)
    torch.rand(3, device="cuda")  # a new process has another random state
    told: list[EpochReport] = []
    with checkpointed(tmp_path / "c"), observed(told.append):
        resumed = METHODS[method].fit(network, none_class(3), task.training, RECIPE)
    assert [report.epoch for report in told] == [5, 6, 7, 8]
    for a, b in zip(state(resumed), state(whole), strict=True):
        assert torch.equal(a, b)


def test_a_learners_rate_lies_where_a_recording_finds_it():
    task: Task = make_task().to("cuda")
    model = mlp(3, inputs=4).cuda()
    learner = Learner(model, plain(3), task.training, RECIPE, training.optimizer_for(model, RECIPE))
    learner.begin()
    (group,) = learner.optimizer.param_groups
    place = group["lr"].data_ptr()
    training.set_rate(learner.optimizer, 0.25)
    assert (group["lr"].data_ptr(), group["lr"].device.type) == (place, "cuda")
    assert float(group["lr"]) == pytest.approx(0.25 * RECIPE.lr)
