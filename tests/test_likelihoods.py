"""The paper's identities, and finite values and gradients wherever logits may go."""

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Dirichlet as TorchDirichlet
from torch.nn import functional as F

from demur.likelihoods import (
    LIKELIHOODS,
    Categorical,
    Dirichlet,
    Likelihood,
    Outliers,
    mixed_labels,
    none_class,
    outlier_exposure,
    plain,
    soft_labels,
)

K = 5


@pytest.fixture
def logits() -> torch.Tensor:
    return 2 * torch.randn(40, K, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision", [0.5, 1.0, 100.0])
def test_dirichlet_is_torchs(logits, precision):
    label = torch.distributions.Dirichlet(torch.ones(K)).sample((40,))
    ours = Dirichlet(precision).log_prob(logits, label)
    alpha = precision * logits.double().softmax(-1)
    theirs = TorchDirichlet(alpha, validate_args=False).log_prob(label.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_dirichlet_at_the_centre_has_the_closed_form(logits):
    g = 7.0
    alpha = g * logits.softmax(-1)
    expected = math.lgamma(g) - torch.lgamma(alpha).sum(-1) - (g - K) * math.log(K)
    torch.testing.assert_close(Dirichlet(g).log_prob(logits, torch.full((K,), 1 / K)), expected, rtol=1e-5, atol=1e-5)


def test_plain_is_minus_cross_entropy(logits):
    y = torch.arange(40) % K
    torch.testing.assert_close(plain(K).log_prob(logits, y), -F.cross_entropy(logits, y))


def test_none_class_is_a_categorical_of_one_more_class():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(2, 20, K + 1, generator=generator)
    y = torch.arange(20) % K
    both = TorchCategorical(logits=torch.cat([inside, outside])).log_prob(torch.cat([y, torch.full((20,), K)]))
    # N inliers and N outliers: the sum over all, per inlier
    torch.testing.assert_close(none_class(K).log_prob(inside, y, outside), both.sum() / 20)


def test_outlier_exposure_is_the_mean_over_all_labels(logits):
    label = torch.full((K,), 1 / K)
    over_labels = torch.stack([TorchCategorical(logits=logits).log_prob(torch.tensor(k)) for k in range(K)]).mean(0)
    torch.testing.assert_close(Categorical().log_prob(logits, label), over_labels)


def test_outlier_exposure_of_weight_k_is_the_replicated_data_set(logits):
    y = torch.arange(40) % K
    replicated = sum(plain(K).log_prob(logits, torch.full((40,), k)) for k in range(K))
    expected = plain(K).log_prob(logits, y) + replicated
    torch.testing.assert_close(outlier_exposure(K, weight=K).log_prob(logits, y, logits), expected)


def test_sample_dimensions_are_averaged(likelihood):
    logits = torch.randn(4, 12, likelihood.num_outputs, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3
    one_by_one = torch.stack([likelihood.log_prob(draw, y, draw) for draw in logits]).mean()
    torch.testing.assert_close(likelihood.log_prob(logits, y, logits), one_by_one)


@pytest.mark.parametrize("model", [Categorical(), Dirichlet(0.7), Dirichlet(20.0)])
def test_fisher_is_the_covariance_of_the_score(model):
    logits = torch.tensor([0.5, -1.0, 0.2, 0.8], dtype=torch.float64).float()
    torch.manual_seed(0)
    if isinstance(model, Categorical):
        labels = F.one_hot(TorchCategorical(logits=logits).sample((200_000,)), 4).float()
    else:
        labels = TorchDirichlet(model.precision * logits.double().softmax(-1)).sample((200_000,)).clamp_min(1e-300)
    at = logits.double().expand(200_000, 4).clone().requires_grad_()
    if isinstance(model, Categorical):
        value = (labels * at.log_softmax(-1)).sum()
    else:
        alpha = model.precision * at.softmax(-1)
        value = (-torch.lgamma(alpha) + (alpha - 1) * labels.log()).sum()
    (score,) = torch.autograd.grad(value, at)
    root = model.fisher_root(logits).double()
    assert score.mean(0).abs().max() < 0.02 * (1 + score.std())
    torch.testing.assert_close(score.T.cov(), root @ root.mT, rtol=0.05, atol=0.01)


def test_fisher_has_the_weight_once(logits):
    one, two = (outlier_exposure(K, weight=w).fisher(logits, logits) for w in (1.0, 2.0))
    torch.testing.assert_close(two[1], 2 * one[1])
    torch.testing.assert_close(two[0], one[0])


def test_dirichlet_fisher_formula(logits):
    model = Dirichlet(30.0)
    p, alpha = logits.double().softmax(-1), 30.0 * logits.double().softmax(-1)
    t = alpha**2 * torch.polygamma(1, alpha)
    cross = t.unsqueeze(-1) * p.unsqueeze(-2)
    expected = t.diag_embed() - cross - cross.mT + t.sum(-1)[:, None, None] * p.unsqueeze(-1) * p.unsqueeze(-2)
    root = model.fisher_root(logits)
    torch.testing.assert_close((root @ root.mT).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_everything_is_finite_at_extreme_logits(name):
    likelihood = LIKELIHOODS[name](K)
    extreme = torch.tensor([200.0, -200.0]).repeat(likelihood.num_outputs)[: likelihood.num_outputs]
    logits = torch.stack([extreme, -extreme, extreme.roll(1), 200 * torch.eye(likelihood.num_outputs)[0]])
    logits.requires_grad_()
    value = likelihood.log_prob(logits, torch.tensor([0, 1, 2, 3]), logits)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    assert all(part is None or part.isfinite().all() for part in likelihood.fisher(logits.detach(), logits.detach()))


def test_half_precision_logits_are_raised_before_use():
    logits = torch.randn(8, K, generator=torch.Generator().manual_seed(0))
    low = Dirichlet(100.0).log_prob(logits.bfloat16(), torch.full((K,), 1 / K))
    assert low.dtype == torch.float32


def test_probabilities_and_none_mass_sum_to_one(likelihood):
    probs, none = likelihood.probs(torch.randn(7, likelihood.num_outputs))
    total = probs.sum(-1) + (0 if none is None else none)
    torch.testing.assert_close(total, torch.ones(7))
    assert (none is None) == (likelihood.num_outputs == likelihood.num_classes)


def test_smoothing_moves_the_stated_mass():
    likelihood = soft_labels(4, smoothing=0.01)
    expected = torch.tensor([0.01, 0.97, 0.01, 0.01])
    torch.testing.assert_close(likelihood._label(torch.tensor([1]))[0], expected)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: soft_labels(3, smoothing=0.0), "smoothing 0.0"),
        (lambda: soft_labels(3, smoothing=0.5), "smoothing 0.5"),
        (lambda: mixed_labels(3, precision=-1.0), "precision -1.0"),
        (lambda: plain(1), "num_classes 1"),
        (lambda: outlier_exposure(3, weight=0.0), "weight 0.0"),
        (lambda: Likelihood(3, Categorical(), Outliers(Categorical(), (0.5, 0.5))), "2 entries"),
        (lambda: Outliers(Categorical(), (0.5, 0.6)), "simplex"),
        (lambda: none_class(3).log_prob(torch.zeros(1, 4), torch.tensor([0])), "logits_out"),
    ],
)
def test_nonsense_is_refused_with_its_value(build, says):
    with pytest.raises(ValueError, match=says):
        build()
