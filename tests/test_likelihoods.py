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


def test_each_is_what_the_papers_table_says(likelihood):
    """In doubles, by torch.distributions: densities, precisions, smoothing and weights, as the defaults have them."""
    generator = torch.Generator().manual_seed(0)
    inside, outside = 2 * torch.randn(2, 8, likelihood.num_outputs, dtype=torch.float64, generator=generator)
    y = torch.arange(8) % 3
    smooth = torch.full((8, 3), 1e-6).double()
    smooth[torch.arange(8), y] = 1 - 2e-6

    def categorical(logits):
        return TorchCategorical(logits=logits)

    def dirichlet(logits, precision):
        return TorchDirichlet(precision * logits.softmax(-1), validate_args=False)

    centre, name = torch.full((3,), 1 / 3).double(), next(n for n in LIKELIHOODS if LIKELIHOODS[n](3) == likelihood)
    over_labels = torch.stack([categorical(outside).log_prob(torch.tensor(k)) for k in range(3)]).mean(0)
    of_class = categorical(inside).log_prob(y)
    expected = {
        "plain": lambda: of_class,
        "nc": lambda: of_class + categorical(outside).log_prob(torch.tensor(3)),
        "sl": lambda: dirichlet(inside, 100).log_prob(smooth) + dirichlet(outside, 100).log_prob(centre),
        "ml": lambda: of_class + dirichlet(outside, 1).log_prob(centre),
        "oe": lambda: of_class + 0.5 * over_labels,
    }[name]().mean()
    value = likelihood.log_prob(inside.float(), y, outside.float())
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-4)


def test_outliers_weigh_one_unless_said_otherwise():
    by_hand = Likelihood(3, Categorical(), Outliers(Categorical(), (0.0, 0.0, 0.0, 1.0)))
    assert by_hand == none_class(3) == none_class(3, weight=1.0)


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


def test_categorical_fisher_formula(logits):
    p = logits.softmax(-1)
    for inside, outside in (none_class(K - 1).fisher(logits, logits), outlier_exposure(K, 1.0).fisher(logits, logits)):
        torch.testing.assert_close(inside, p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2))
        torch.testing.assert_close(outside, inside)
    assert plain(K).fisher(logits)[1] is None


def test_dirichlet_information_does_not_vanish_with_a_probability():
    """alpha**2 trigamma(alpha) tends to 1 as alpha does to 0, where a Categorical would have no information left."""
    g, p = 5.0, torch.tensor([1.0, 0.0, 0.0])
    t = torch.tensor([g**2 * torch.polygamma(1, torch.tensor(g)), 1.0, 1.0])
    expected = t.diag() - t.outer(p) - p.outer(t) + t.sum() * p.outer(p)
    for far in (60.0, 200.0, 1e4):  # e**-60 is a float32, e**-200 is none
        root = Dirichlet(g).fisher_root(torch.tensor([far, 0.0, 0.0]))
        torch.testing.assert_close(root @ root.mT, expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("model", [Categorical(), Dirichlet(100.0)])
def test_half_precision_logits_are_raised_before_use(model):
    logits = torch.randn(8, K, generator=torch.Generator().manual_seed(0)).bfloat16()
    label = torch.full((K,), 1 / K)
    assert torch.equal(model.log_prob(logits, label), model.log_prob(logits.float(), label))
    assert torch.equal(model.fisher_root(logits), model.fisher_root(logits.float()))


def test_what_was_asked_first_in_inference_mode_can_be_trained_with():
    likelihood = Likelihood(2, Categorical(), Outliers(Categorical(), (0.375, 0.625)))  # a label that no other test has
    logits, y = torch.zeros(1, 2, requires_grad=True), torch.tensor([0])
    with torch.inference_mode():
        likelihood.log_prob(torch.zeros(1, 2), y, torch.zeros(1, 2))
    likelihood.log_prob(logits, y, logits).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5 - 0.125, -0.5 + 0.125]]))


def test_probabilities_and_none_mass_sum_to_one(likelihood):
    logits = torch.randn(2, 7, likelihood.num_outputs, generator=torch.Generator().manual_seed(0))  # of two draws
    probs, none = likelihood.probs(logits)
    torch.testing.assert_close(probs, logits.softmax(-1)[..., :3])
    total = probs.sum(-1) + (0 if none is None else none)
    torch.testing.assert_close(total, torch.ones(2, 7))
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
        (lambda: soft_labels(4, smoothing=0.25), r"smoothing 0.25 is not in \[0, 1/4\)"),
        (lambda: Likelihood(4, Categorical(), smoothing=-1e-9), "smoothing -1e-09"),
        (lambda: Likelihood(4, Categorical(), none_class(4).outside, smoothing=0.2), r"0.2 is not in \[0, 1/5\)"),
        (lambda: mixed_labels(3, precision=-1.0), "precision -1.0"),
        (lambda: mixed_labels(3, precision=0.0), "precision 0.0"),
        (lambda: mixed_labels(3, precision=math.nan), "precision nan"),
        (lambda: plain(1), "num_classes 1"),
        (lambda: outlier_exposure(3, weight=0.0), "weight 0.0"),
        (lambda: outlier_exposure(3, weight=-0.5), "weight -0.5"),
        (lambda: Likelihood(3, Categorical(), Outliers(Categorical(), (0.5, 0.5))), "2 entries"),
        (lambda: Likelihood(3, Categorical(), Outliers(Categorical(), (0.2,) * 5)), "5 entries"),
        (lambda: Likelihood(3, Categorical(), Outliers(Dirichlet(1.0), (0.0, 0.5, 0.5))), "no density at the outliers"),
        (lambda: Outliers(Categorical(), (0.5, 0.6)), "simplex"),
        (lambda: Outliers(Categorical(), (0.5, 0.4)), "simplex"),
        (lambda: Outliers(Categorical(), (0.5, 0.4999985)), "simplex"),
        (lambda: Outliers(Categorical(), (1.5, -0.5)), "simplex"),
        (lambda: none_class(3).log_prob(torch.zeros(1, 4), torch.tensor([0])), "logits_out"),
        (lambda: none_class(3).fisher(torch.zeros(1, 4)), "logits_out"),
        (lambda: none_class(3).probs(torch.zeros(1, 3)), "3 logits do not fit this likelihood of 4 outputs"),
        (lambda: plain(3).probs(torch.zeros(1, 4)), "4 logits do not fit this likelihood of 3 outputs"),
        (lambda: plain(3).fisher_root(torch.zeros(1, 3), outliers=True), "outliers have no likelihood here"),
    ],
)
def test_nonsense_is_refused_with_its_value(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_what_is_just_possible_is_taken():
    assert plain(2).num_outputs == 2
    assert soft_labels(4, smoothing=0.2499).num_outputs == 4
    assert Outliers(Categorical(), (1.0, 0.0)).weight == 1.0  # a corner, with an entry of 0
    assert Outliers(Categorical(), (1 / 3 + 8e-7, 1 / 3, 1 / 3)).weight == 1.0  # as thirds in float32 may sum
    assert Likelihood(3, Categorical(), none_class(3).outside, smoothing=0.0).has_none_class
    assert not outlier_exposure(3).has_none_class
