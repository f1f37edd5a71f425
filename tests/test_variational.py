"""Last-layer variational Bayes against Bayesian linear regression and torch.distributions."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from demur.inference import VariationalBayes
from demur.inference.variational import MeanFieldHead, with_head
from demur.likelihoods import Likelihood
from demur.networks import HeadedNetwork, mlp
from demur.posterior import Gaussian
from demur.tasks.base import Task
from demur.training import observed
from demur.training_data import Recipe
from tests.conftest import make_task


@dataclass(frozen=True)
class UnitNormal:
    """Labels are real vectors, the logits plus standard noise: the posterior of an linear head is Gaussian."""

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        return -0.5 * (logits - label).square().sum(-1)

    def fisher_root(self, logits: Tensor) -> Tensor:
        return torch.diag_embed(torch.ones_like(logits))


@dataclass(frozen=True)
class Silent:
    """Labels say nothing: what is left of an objective is its penalty."""

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        return 0 * logits.sum(-1)

    def fisher_root(self, logits: Tensor) -> Tensor:
        return torch.diag_embed(torch.zeros_like(logits))


def kl_by_torch(posterior: Gaussian, precision: float) -> float:
    means, prior = dict(posterior.network.named_parameters()), Normal(0.0, precision**-0.5)
    divergences = [kl_divergence(Normal(means[n], v.sqrt()), prior).sum() for n, v in posterior.variance.items()]
    return sum(divergence.item() for divergence in divergences)


def check_regression(posterior: Gaussian, layer: str, task: Task, precision: float, variance_error: float) -> None:
    """The Gaussian over `layer` has the exact posterior's mean, and variance 1 / diag(precision): mean field's best.

    Tolerance: a tenth of a standard deviation for the mean, the share `variance_error` for the variance; that much is
    left to the noise of samples and batches.
    """
    x = torch.cat([task.training.train.x, torch.ones(len(task.training.train), 1)], 1)
    exact_precision = x.T @ x + precision * torch.eye(x.shape[1])
    mean = torch.linalg.solve(exact_precision, x.T @ nn.functional.one_hot(task.training.train.y).float()).T
    variance = 1 / exact_precision.diagonal()
    found = dict(posterior.network.named_parameters()), posterior.variance
    found_mean, found_variance = (torch.cat([f[f"{layer}.weight"], f[f"{layer}.bias"][:, None]], 1) for f in found)
    assert ((found_mean - mean) / variance.sqrt()).abs().max() < 0.1
    assert (found_variance / variance - 1).abs().max() < variance_error


@pytest.mark.parametrize("batch_size", [96, 32])
def test_reaches_bayesian_linear_regression(batch_size: int) -> None:
    task = make_task()
    count, decay = len(task.training.train), 0.05
    method = VariationalBayes(tau=1.0, prior_decay=decay, log_variance=-9.0, training_samples=50)
    recipe = Recipe(epochs=1500 * batch_size // count, batch_size=batch_size, lr=0.03)
    posterior = method.fit(partial(HeadedNetwork, nn.Identity(), 4), Likelihood(3, UnitNormal()), task.training, recipe)
    check_regression(posterior, "head", task, decay * count, variance_error=0.1)


@pytest.mark.parametrize("batch_size", [96, 16])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_kl_is_torchs_and_weighs_one_nth_whatever_the_batch(batch_size: int, tau: float) -> None:
    task, losses = make_task(), []
    with observed(lambda report: losses.append(report.loss)):
        posterior = VariationalBayes(tau=tau, prior_decay=0.01).fit(
            partial(mlp, inputs=4, hidden=(8,)),
            Likelihood(3, Silent()),
            task.training,
            Recipe(epochs=1, batch_size=batch_size, lr=1e-12),
        )
    assert losses == [pytest.approx(tau * kl_by_torch(posterior, 0.01 * 96) / 96, rel=1e-5)]


def test_the_kl_may_be_divided_by_another_number() -> None:
    """As the paper's code does, by the batch size."""
    task, losses = make_task(), []
    with observed(lambda report: losses.append(report.loss)):
        posterior = VariationalBayes(kl_count=7).fit(
            partial(mlp, inputs=4, hidden=(8,)), Likelihood(3, Silent()), task.training, Recipe(epochs=1, lr=1e-12)
        )
    assert losses == [pytest.approx(0.1 * kl_by_torch(posterior, 5e-4 * 96) / 7, rel=1e-5)]
    assert (posterior.num_samples, posterior.seed, posterior.over_head) == (200, 0, True)
    assert VariationalBayes().parts(Recipe()) == []
    assert all((value.log() + 6).abs().max() < 1e-5 for value in posterior.variance.values())


class Scaled(HeadedNetwork):
    """Its head is not all that follows its features."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.1 * super().forward(x)


def test_a_head_that_can_be_treated_apart() -> None:
    x = torch.randn(2, 4)
    for network in (Scaled(nn.Identity(), 4, 3), nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)):
        with pytest.raises(ValueError, match=rf"{type(network).__name__}\) has no \.features and \.head"):
            with_head(network, x)
    other = HeadedNetwork(nn.Identity(), 4, 3)
    other.head = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"has no \.features and \.head \(nn\.Linear\)"):
        with_head(other, x)
    # dropout would give two answers; the mode is as it was before
    for mode in (True, False):
        model = HeadedNetwork(nn.Dropout(0.5), 4, 3).train(mode)
        assert with_head(model, x) is model
        assert model.training is mode
    begins_in_place, before = HeadedNetwork(nn.ReLU(inplace=True), 4, 3), x.clone()
    with_head(begins_in_place, x)
    assert torch.equal(x, before)
    images = torch.randint(256, (2, 4), dtype=torch.uint8)
    with_head(HeadedNetwork(nn.Identity(), 4, 3), images)


def test_a_head_without_a_bias() -> None:
    torch.manual_seed(0)
    head = MeanFieldHead(nn.Linear(4, 3, bias=False), -40.0, 2)  # next to no variance
    x = torch.randn(5, 4)
    torch.testing.assert_close(head(x), head.mean(x).expand(2, 5, 3), rtol=1e-4, atol=1e-5)


def test_only_the_head_is_random_and_only_the_trunk_decays() -> None:
    recipe = Recipe(epochs=1, batch_size=96, lr=1e-3, optimizer="sgd", weight_decay=10.0)
    network = partial(mlp, inputs=4, hidden=(8,))
    torch.manual_seed(recipe.seed)
    fresh = dict(network(3).named_parameters())
    posterior = VariationalBayes(tau=0.0).fit(network, Likelihood(3, Silent()), make_task().training, recipe)
    assert set(posterior.variance) == {"head.weight", "head.bias"}
    for name, value in posterior.network.named_parameters():
        shrunk = (
            torch.equal(value, fresh[name]) if name.startswith("head.") else (value.abs() < fresh[name].abs()).all()
        )
        assert shrunk, name


def test_draws_of_the_head_have_the_stated_moments() -> None:
    """Tolerance: five standard errors of 20,000 samples."""
    torch.manual_seed(0)
    head = MeanFieldHead(nn.Linear(4, 3), -1.0, 20_000)
    x = torch.randn(2, 4)
    logits = head(x).detach()
    variance = torch.e**-1 * (x.square().sum(1, keepdim=True) + 1).expand(2, 3)
    assert ((logits.mean(0) - head.mean(x)) / variance.sqrt()).abs().max() < 5 * 20_000**-0.5
    assert (logits.var(0) / variance - 1).abs().max() < 5 * (2 / 20_000) ** 0.5
