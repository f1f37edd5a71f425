"""SG-HMC against Gaussians and SGD; the cyclical schedule against what a chain would do without it."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from demur.inference import CyclicalSGHMC
from demur.inference.sgmcmc import SGHMC
from demur.likelihoods import Likelihood, plain
from demur.networks import wide_resnet
from demur.tasks.base import Task, TestData
from demur.training import observed
from demur.training_data import Fixed, Recipe, Split, TrainingData
from tests.conftest import make_task
from tests.test_variational import Silent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("temperature", "friction"), [(1.0, 0.9), (0.25, 0.9), (1.0, 0.1), (0.25, 0.1)])
def test_samples_a_correlated_gaussian(seed: int, temperature: float, friction: float) -> None:
    """The density is exp(-N (loss + decay / 2 * w**2)) ** (1 / T); every row of the parameter is a chain of its own.

    Tolerance: covariance 3 % of a variance, mean 3 % of a standard deviation. Finite steps enlarge variances by
    lr * curvature / (4 - 2 * friction), here at most 1.1 %; the rest is the error of 20,000 chains.
    """
    torch.manual_seed(seed)
    count, decay, lr = 50, 0.1, 0.025
    curvature, centre = torch.tensor([[0.6, 0.3], [0.3, 0.5]]), torch.tensor([1.0, -2.0])
    chains = torch.zeros(20_000, 2, requires_grad=True)
    sampler = SGHMC([chains], lr, friction=friction, count=count, temperature=temperature, weight_decay=decay)
    for _ in range(1000):
        chains.grad = (chains.detach() - centre) @ curvature  # of (w - centre)' curvature (w - centre) / 2
        sampler.step()

    precision = curvature + decay * torch.eye(2)
    mean, covariance = torch.linalg.solve(precision, curvature @ centre), temperature / count * precision.inverse()
    deviation = covariance.diagonal().sqrt()
    errors = (
        (chains.detach().mean(0) - mean) / deviation,
        (chains.detach().T.cov() - covariance) / deviation.outer(deviation),
    )
    assert errors[0].abs().max() < 0.03
    assert errors[1].abs().max() < 0.03


def test_zero_temperature_is_sgd_with_momentum() -> None:
    torch.manual_seed(0)
    target = torch.randn(5)
    ours, theirs = (torch.ones(5, requires_grad=True) for _ in range(2))
    chain = SGHMC([ours], 0.01, friction=0.3, count=7, temperature=0.0, weight_decay=0.05)
    descent = torch.optim.SGD([theirs], 0.01, momentum=0.7, weight_decay=0.05)
    for _ in range(50):
        for w, optimizer in ((ours, chain), (theirs, descent)):
            optimizer.zero_grad()
            (w - target).pow(4).sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_descent_draws_no_random_numbers() -> None:
    for temperature, drawn in ((0.0, False), (1e-9, True)):
        w = torch.zeros(2, requires_grad=True)
        w.grad = torch.ones(2)
        before = torch.get_rng_state()
        SGHMC([w], 0.1, friction=0.9, count=10, temperature=temperature).step()
        assert torch.equal(torch.get_rng_state(), before) is not drawn


def test_gradients_are_clipped_in_descent_and_not_in_sampling() -> None:
    """A clipped gradient has another stationary density."""
    for temperature, moved in ((0.0, 0.1 * 0.5), (1e-12, 0.1 * 5.0)):
        w = torch.zeros(2, requires_grad=True)
        chain = SGHMC([w], 0.1, friction=0.9, count=10, temperature=temperature, clip_norm=0.5)
        w.grad = torch.tensor([3.0, -4.0])
        chain.step()
        torch.testing.assert_close(w.detach(), torch.tensor([-0.6, 0.8]) * moved, rtol=1e-4, atol=1e-5)


def test_what_has_no_gradient_stays() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    chain = SGHMC([unused, used], 0.1, friction=0.9, count=10, temperature=1.0, weight_decay=1.0)
    used.grad = torch.ones(2)
    chain.step()
    assert torch.equal(unused, torch.ones(2))
    assert (used != 1).all()


def test_every_sample_has_its_own_weights_and_statistics() -> None:
    task = make_task((3, 8, 8), count=32)
    posterior = CyclicalSGHMC(cycles=2, samples_per_cycle=3).fit(
        partial(wide_resnet, depth=10, width=1, dropout=0.0), plain(3), task.training, Recipe(epochs=4, batch_size=16)
    )
    networks = [component.network for _, component in posterior.components()]
    assert posterior.num_samples == len(networks) == 2 * 3
    assert not any(module.training for network in networks for module in network.modules())
    for tensors in ([dict(n.named_parameters()) for n in networks], [dict(n.named_buffers()) for n in networks]):
        for name in tensors[0]:
            assert len({named[name].data_ptr() for named in tensors}) == 6
    means = torch.stack([network.get_buffer("features.1.norm1.running_mean") for network in networks])
    assert torch.pdist(means).min() > 0


def test_no_noise_before_the_first_sampling_phase() -> None:
    def losses(temperature: float) -> list[float]:
        said: list[float] = []
        chain = CyclicalSGHMC(temperature=temperature, cycles=2, samples_per_cycle=2, length=1.0)
        with observed(lambda report: said.append(report.loss)):
            chain.fit(partial(nn.Linear, 4), plain(3), make_task().training, Recipe(epochs=10, batch_size=16))
        return said

    cold, warm = losses(0.0), losses(100.0)
    assert cold[:3] == warm[:3]
    assert all(a != b for a, b in zip(cold[3:], warm[3:], strict=True))


def watched(chain: CyclicalSGHMC, recipe: Recipe) -> list[torch.Tensor]:
    """The weights after every epoch of a chain that the data leaves alone."""
    built: list[nn.Linear] = []

    def network(outputs: int) -> nn.Module:
        built.append(nn.Linear(4, outputs))
        return built[0]

    weights: list[torch.Tensor] = []
    with observed(lambda report: weights.append(built[0].weight.detach().clone())):
        chain.fit(network, Likelihood(3, Silent()), make_task().training, recipe)
    return weights


@pytest.mark.parametrize(
    ("chain", "epochs", "told"),
    [
        (CyclicalSGHMC(), 100, 200),  # the paper's
        (CyclicalSGHMC(cycles=4, samples_per_cycle=3), 1, 24),  # twice as long as its samples, at least
        (CyclicalSGHMC(cycles=2, samples_per_cycle=1, length=0.5), 12, 6),
        (CyclicalSGHMC(cycles=3, samples_per_cycle=1, length=1.0), 10, 9),
    ],
)
def test_a_chain_has_the_stated_length_and_samples(chain: CyclicalSGHMC, epochs: int, told: int) -> None:
    reports: list[int] = []
    with observed(lambda report: reports.append(report.epoch)):
        posterior = chain.fit(partial(nn.Linear, 4), plain(3), make_task(count=12).training, Recipe(epochs=epochs))
    assert reports == list(range(1, told + 1))
    assert posterior.num_samples == chain.cycles * chain.samples_per_cycle
    assert chain.parts(Recipe()) == []


def test_samples_are_the_networks_at_the_end_of_the_last_epochs_of_each_cycle() -> None:
    chain = CyclicalSGHMC(cycles=2, samples_per_cycle=2, length=1.0)
    weights = watched(chain, recipe := Recipe(epochs=8, batch_size=16))
    posterior = chain.fit(partial(nn.Linear, 4), Likelihood(3, Silent()), make_task().training, recipe)
    kept = [part.network.weight for part in posterior.parts]
    assert all(torch.equal(sample, weights[epoch - 1]) for sample, epoch in zip(kept, (3, 4, 7, 8), strict=True))


def test_the_shortest_cycles_begin_without_noise() -> None:
    chain = CyclicalSGHMC(friction=1.0, cycles=2, samples_per_cycle=1, length=1e-9)  # two epochs each
    weights = watched(chain, recipe := Recipe(epochs=1, batch_size=16, weight_decay=0.0))
    torch.manual_seed(recipe.seed)
    fresh = nn.Linear(4, 3).weight.detach()
    assert [not torch.equal(before, after) for before, after in pairwise([fresh, *weights])] == [False, True] * 2


def test_the_posterior_itself_is_sampled_unless_said_otherwise() -> None:
    recipe = Recipe(epochs=4, batch_size=32)
    by_default, by_value = (watched(chain, recipe) for chain in (CyclicalSGHMC(), CyclicalSGHMC(temperature=1.0)))
    assert all(torch.equal(a, b) for a, b in zip(by_default, by_value, strict=True))


def test_the_temperature_may_be_one_nth() -> None:
    recipe = Recipe(epochs=4, batch_size=32)
    by_name, by_value = (
        watched(CyclicalSGHMC(temperature=temperature, cycles=1), recipe) for temperature in ("1/N", 1 / 96)
    )
    assert all(torch.equal(a, b) for a, b in zip(by_name, by_value, strict=True))


def test_the_recipes_prior_and_clipping_are_the_chains() -> None:
    """One step, in descent: weights shrink by lr * decay, data saying nothing, or move by lr times the clipped norm."""
    chain = CyclicalSGHMC(lr=0.2, cycles=1, samples_per_cycle=1, length=1.0, temperature=0.0)
    recipe = Recipe(epochs=2, batch_size=96, weight_decay=0.3)
    torch.manual_seed(recipe.seed)
    fresh = nn.Linear(4, 3)
    torch.testing.assert_close(watched(chain, recipe)[0], fresh.weight.detach() * (1 - 0.2 * 0.3))

    built: list[nn.Linear] = []

    def network(outputs: int) -> nn.Module:
        built.append(nn.Linear(4, outputs))
        return built[-1]

    moves: list[float] = []

    def note(report: object) -> None:
        parameters = zip(built[-1].parameters(), fresh.parameters(), strict=True)
        moves.append(float(torch.cat([(p - q).detach().flatten() for p, q in parameters]).norm()))

    with observed(note):
        for norm in (1e-3, None):
            chain.fit(
                network, plain(3), make_task().training, Recipe(epochs=2, batch_size=96, weight_decay=0, clip_norm=norm)
            )
    assert moves[0] == pytest.approx(0.2 * 1e-3, rel=1e-2)
    assert moves[2] > 10 * moves[0]


def test_the_loop_clips_nothing_while_sampling() -> None:
    """Two epochs of one step each, descent and sampling; friction 1 leaves no velocity from one to the other."""
    built: list[nn.Linear] = []

    def network(outputs: int) -> nn.Module:
        built.append(nn.Linear(4, outputs, bias=False))
        return built[-1]

    weights: list[torch.Tensor] = []
    chain = CyclicalSGHMC(lr=0.2, friction=1.0, temperature=1e-12, cycles=1, samples_per_cycle=1, length=1.0)
    recipe = Recipe(epochs=2, batch_size=96, weight_decay=0.0, clip_norm=1e-3)
    with observed(lambda report: weights.append(built[-1].weight.detach().clone())):
        chain.fit(network, plain(3), (task := make_task()).training, recipe)
    before = weights[0].clone().requires_grad_()
    nn.functional.cross_entropy(task.training.train.x @ before.T, task.training.train.y).backward()
    torch.testing.assert_close(weights[1], weights[0] - 0.5 * 0.2 * before.grad, rtol=1e-4, atol=1e-5)


def test_only_sampling_phases_have_noise() -> None:
    # friction 1: no velocity is left from step to step
    chain = CyclicalSGHMC(friction=1.0, cycles=3, samples_per_cycle=2, length=3.0)
    weights = watched(chain, Recipe(epochs=5, batch_size=16, weight_decay=0.0))
    moved = [not torch.equal(before, after) for before, after in pairwise(weights)]
    assert [False, *moved] == [False, False, False, True, True] * 3


def test_every_cycle_starts_at_the_full_rate() -> None:
    """One step an epoch, of weight decay alone: weights shrink by lr * rate; 15 / 22 * 22 is less than 15 in floats."""
    chain = CyclicalSGHMC(friction=1.0, temperature=0.0, cycles=22, samples_per_cycle=1, length=1.0)
    weights = watched(chain, Recipe(epochs=44, batch_size=96, weight_decay=1.0))
    shrunk = [1 - float(after.norm() / before.norm()) for before, after in pairwise(weights)]
    assert [0.1, *shrunk] == pytest.approx([0.1, 0.05] * 22, abs=1e-5)


class TwoModes(nn.Module):
    """Labels of equal share want equal logits, so w is +1 or -1."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.w**2 - 1, torch.zeros(())]).expand(len(x), 2)


@pytest.mark.parametrize("seed", range(4))
def test_cycles_find_both_modes_and_one_long_run_does_not(seed: int) -> None:
    data = Split(torch.zeros(40, 1), torch.arange(40) % 2)
    task = Task("coin", ("heads", "tails"), TrainingData(data, data, Fixed(data.x)), TestData(data, {}))
    recipe = Recipe(epochs=160, batch_size=4, weight_decay=0.0, seed=seed)

    def samples(cycles: int) -> torch.Tensor:
        chain = CyclicalSGHMC(lr=1.5, cycles=cycles, samples_per_cycle=20 // cycles, length=1.0)
        return torch.stack(
            [part.network.w.detach() for part in chain.fit(TwoModes, plain(2), task.training, recipe).parts]
        )

    cyclical, single = samples(10), samples(1)
    assert len(cyclical) == len(single) == 20
    assert torch.cat([cyclical, single]).abs().min() > 0.3  # in a mode, not on the hill between them
    assert len(cyclical.sign().unique()) == 2
    assert len(single.sign().unique()) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.0),
        ("friction", 0.0),
        ("friction", 1.5),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("cycles", 0),
        ("samples_per_cycle", 0),
        ("length", 0.0),
    ],
)
def test_impossible_chains_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{field} {value} of CSGHMC"):
        CyclicalSGHMC(**{field: value})


def test_chains_that_are_just_possible() -> None:
    chain = CyclicalSGHMC(friction=1.0, temperature=0.0, cycles=1, samples_per_cycle=1)
    assert chain.fit(partial(nn.Linear, 4), plain(3), make_task().training, Recipe(epochs=1)).num_samples == 1
