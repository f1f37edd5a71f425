"""Kronecker-factored and identity-curvature Laplace: exact small cases, dense oracles, laplace-torch's figures."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from demur.inference import INFERENCES, IdentityLaplace, KroneckerLaplace, Laplace
from demur.inference.fisher import diagonal_fisher
from demur.inference.kronecker import Curvature, kronecker_factors
from demur.likelihoods import none_class, plain
from demur.networks import mlp
from demur.posterior import Gaussian, Point
from demur.posterior_file import load, save
from demur.predictive import predict
from demur.training_data import Fixed, Recipe, Split, TrainingData
from tests.conftest import make_task
from tests.test_fisher import built, random_signs

STORED = json.loads((Path(__file__).parent / "laplace_torch_kron.json").read_text())


def fixed(shape: tuple[int, ...], factor: float) -> torch.Tensor:
    """The same numbers everywhere: laplace-torch's were made from them."""
    count = int(torch.tensor(shape).prod())
    return torch.sin(torch.arange(1.0, count + 1) * factor).reshape(shape)


class Small(nn.Module):
    def __init__(self, num_outputs: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, num_outputs)
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters()):
                parameter.copy_(fixed(tuple(parameter.shape), 0.9 + 0.3 * index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def small_data() -> TrainingData:
    return TrainingData(Split(fixed((12, 3), 1.7), torch.arange(12) % 3))


def covariance(gaussian: Gaussian, name: str) -> torch.Tensor:
    """Of a parameter, flattened, written out: Q diag(variance) Q', Q a Kronecker product."""
    variance = gaussian.variance[name].flatten().diag()
    if name not in gaussian.bases:
        return variance
    left, *right = gaussian.bases[name]
    q = torch.kron(left, right[0]) if right else left
    return q @ variance @ q.T


@pytest.mark.parametrize("over", ["all", "head"])
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_the_posterior_is_laplace_torchs(over, structure):
    """Variances of all weights, in their order: laplace-torch 0.3, BackPackGGN, prior precision 2."""
    data, point = small_data(), Point(Small().eval())
    kind = KroneckerLaplace if structure == "kron" else Laplace
    made = kind(over=over, estimator="exact", prior_precision=2.0).fit(Small, plain(3), data, Recipe(), [point])
    found = torch.cat(
        [covariance(made, name).diagonal() for name, _ in Small().named_parameters() if name in made.variance]
    )
    stored = STORED[f"{'all' if over == 'all' else 'last_layer'}/{structure}"]
    torch.testing.assert_close(found, torch.tensor(stored), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "mixed", "lenet"])
def test_factors_are_sums_over_rows_of_outer_products(name):
    """The last layer by hand, and of every bias of an affine layer the exact block of the Fisher."""
    model, x = built(name, 3)
    likelihood = plain(3)
    factors = kronecker_factors(model, likelihood.fisher_root, x)
    with torch.no_grad():
        z, logits = model.features(x), model(x)
    information = likelihood.fisher(logits)[0].sum(0)
    torch.testing.assert_close(factors.gradients["head.weight"], information, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(factors.gradients["head.bias"], information, rtol=1e-4, atol=1e-5)
    mean = factors.inputs["head.weight"] / factors.rows["head.weight"]
    torch.testing.assert_close(mean, z.T @ z / len(z), rtol=1e-4, atol=1e-5)


class Patched(nn.Module):
    """A convolution whose two directions differ, and a head on all its places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
        self.head = nn.Linear(4 * 5 * 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).flatten(1))


def test_a_convolutions_rows_are_its_patches():
    """Cut out one by one; the gradient of its output is the head's."""
    torch.manual_seed(0)
    model, x = Patched().eval(), torch.randn(4, 2, 5, 4)
    likelihood = plain(3)
    factors = kronecker_factors(model, likelihood.fisher_root, x)
    padded = nn.functional.pad(x, (1, 1, 2, 2))
    patches = [padded[:, :, row : row + 5 : 2, 2 * column : 2 * column + 2] for row in range(5) for column in range(3)]
    a = torch.stack(patches, 1).flatten(2).flatten(0, 1)
    torch.testing.assert_close(factors.inputs["conv.weight"] / factors.rows["conv.weight"], a.T @ a / len(a))
    with torch.no_grad():
        information = likelihood.fisher(model(x))[0].sum(0)
        at_places = model.head.weight.reshape(3, 4, 15)
        weight = torch.einsum("oap,od,dbp->ab", at_places, information, at_places)
        bias = torch.einsum("oap,od,dbq->ab", at_places, information, at_places)
    torch.testing.assert_close(factors.gradients["conv.weight"], weight)
    torch.testing.assert_close(factors.gradients["conv.bias"], bias)


@pytest.mark.parametrize("places", [(5,), (2, 3)])
def test_an_affine_layers_rows_are_all_its_places(places):
    """The same weights at every place, whose outputs are summed: rows are places, a bias's gradient is the sum."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).flatten(1, -2).sum(1)

    torch.manual_seed(0)
    model, x, likelihood = Summed().eval(), torch.randn(6, *places, 4), plain(3)
    factors = kronecker_factors(model, likelihood.fisher_root, x)
    count, a = torch.Size(places).numel(), x.reshape(-1, 4)
    with torch.no_grad():
        information = likelihood.fisher(model(x))[0].sum(0)
    torch.testing.assert_close(factors.inputs["layer.weight"] / factors.rows["layer.weight"], a.T @ a / len(a))
    torch.testing.assert_close(factors.gradients["layer.weight"], count * information)
    torch.testing.assert_close(factors.gradients["layer.bias"], count**2 * information)


@pytest.mark.parametrize("name", ["mixed", "unusual", "gru"])
def test_biases_and_layers_without_factors_agree_with_the_diagonal_fisher(name):
    model, x = built(name, 3)
    root, signs = plain(3).fisher_root, random_signs(len(x), 3)
    factors = kronecker_factors(model, root, x, signs=signs)
    diagonal = diagonal_fisher(model, root, x, signs=signs)
    for name, expected in diagonal.items():
        if name in factors.diagonal:
            torch.testing.assert_close(factors.diagonal[name], expected, rtol=1e-4, atol=1e-6)
        elif name.endswith("bias"):
            torch.testing.assert_close(factors.gradients[name].diagonal(), expected, rtol=1e-4, atol=1e-6)
    assert factors.diagonal.keys() | factors.gradients.keys() == diagonal.keys()
    if name == "mixed":  # a grouped convolution is no product of two matrices
        assert "features.3.weight" in factors.diagonal


def test_of_one_example_the_product_is_the_fisher_itself():
    """With a single example and place nothing is taken to be independent."""
    model, x = built("mlp", 3)
    root = plain(3).fisher_root
    curvature = Curvature.of(kronecker_factors(model, root, x[:1]), model)
    exact = diagonal_fisher(model, root, x[:1])
    for name, expected in exact.items():
        gaussian = Gaussian(model, curvature.values, 1, bases=curvature.bases)
        found = covariance(gaussian, name).diagonal().reshape(expected.shape)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_chunks_and_estimators_agree():
    model, x = built("lenet", 3)
    root = plain(3).fisher_root
    whole, parts = (kronecker_factors(model, root, x, budget=budget) for budget in (None, 1))
    for name, expected in whole.gradients.items():
        torch.testing.assert_close(parts.gradients[name], expected, rtol=1e-3, atol=1e-5)
    sampled = [kronecker_factors(model, root, x, signs=random_signs(len(x), 3, seed)) for seed in range(400)]
    for name, expected in whole.gradients.items():
        assert_mean_is(torch.stack([each.gradients[name] for each in sampled]), expected)


def assert_mean_is(samples: torch.Tensor, expected: torch.Tensor) -> None:
    """To five standard errors, which must be small enough to tell."""
    error, largest = samples.std(0) / len(samples) ** 0.5, expected.abs().max()
    assert ((samples.mean(0) - expected).abs() <= 5 * error + 1e-6 * largest).all()
    assert error.max() < 0.05 * largest, "too noisy to tell"


def test_outliers_count_as_their_weight_says():
    """Twice as many inliers as outliers: each outlier counts twice, with the likelihood's weight in its information."""
    task, likelihood = make_task(), none_class(3, weight=0.5)
    model = mlp(4, inputs=4, hidden=(5,)).eval()
    data = replace(task.training, outliers=Fixed(task.training.shown.epoch(torch.Generator())[:48]))
    laplace = KroneckerLaplace(estimator="exact")
    curvature = laplace.curvature(model, likelihood, data)
    with torch.no_grad():
        inside, outside = likelihood.fisher(model(data.train.x), model(data.shown.epoch(torch.Generator())))
    assert outside is not None
    expected = inside.sum(0) + 2 * outside.sum(0)
    found = curvature.bases["head.bias"][0] @ curvature.values["head.bias"].diag() @ curvature.bases["head.bias"][0].T
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


# the Gaussian -------------------------------------------------------------------------------------------------------


def turned(num_samples: int = 4000) -> Gaussian:
    generator = torch.Generator().manual_seed(0)
    left, right, bias = (torch.linalg.qr(torch.randn(n, n, generator=generator))[0].contiguous() for n in (3, 4, 3))
    variance = {"head.weight": torch.rand(3, 4, generator=generator), "head.bias": torch.rand(3, generator=generator)}
    return Gaussian(
        Small().eval(),
        variance,
        num_samples,
        over_head=True,
        bases={"head.weight": (left, right), "head.bias": (bias,)},
    )


def test_samples_have_the_stated_covariance():
    gaussian = turned()
    for name in gaussian.variance:
        mean = gaussian.network.get_parameter(name).detach().flatten()
        drawn = torch.stack([gaussian.parameters_at(i)[name].flatten() for i in range(gaussian.num_samples)]) - mean
        assert_mean_is(drawn.unsqueeze(2) * drawn.unsqueeze(1), covariance(gaussian, name))


def test_saved_and_loaded_it_is_the_same(tmp_path):
    gaussian = turned(5)
    save(gaussian, tmp_path / "posterior")
    same = load(tmp_path / "posterior", Small)
    x = fixed((6, 3), 0.4)
    assert torch.equal(predict(same, plain(3), x).probs, predict(gaussian, plain(3), x).probs)


def test_bases_that_do_not_fit_are_refused():
    gaussian, (left, right) = turned(), turned().bases["head.weight"]
    for wrong in ((left, left), (left[:2],), (), (left, right, right)):
        with pytest.raises(ValueError, match=r"the bases of head\.weight have shapes"):
            replace(gaussian, bases={"head.weight": wrong})
    with pytest.raises(ValueError, match="the variance is absent"):
        replace(gaussian, bases={"features.0.weight": (left, right)})


# identity curvature -------------------------------------------------------------------------------------------------


def test_identity_curvature_is_one_beside_the_prior():
    task = make_task()
    made = IdentityLaplace(prior_precision=3.0).fit(
        partial(mlp, inputs=4, hidden=(5,)), plain(3), task.training, Recipe(epochs=1)
    )
    assert made.over_head
    assert made.variance.keys() == {"head.weight", "head.bias"}
    for value in made.variance.values():
        torch.testing.assert_close(value, torch.full_like(value, 0.25))


@pytest.mark.parametrize("kind", [KroneckerLaplace, IdentityLaplace])
def test_the_prior_is_tuned_as_laplaces_is(kind):
    task = make_task()
    made = kind().fit(partial(mlp, inputs=4, hidden=(8,)), plain(3), task.training, Recipe(epochs=40, lr=1e-2))
    assert made.tuning is not None
    assert made.tuning.chosen in [row[0] for row in made.tuning.rows]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: KroneckerLaplace(over="trunk"), "over 'trunk' is not known"),
        (lambda: KroneckerLaplace(estimator="batch_mean"), "estimator 'batch_mean' is not known"),
        (lambda: KroneckerLaplace(prior_precision=0), "prior_precision 0 is not positive"),
        (lambda: IdentityLaplace(prior_precision=-1.0), "prior_precision -1.0 is not positive"),
    ],
)
def test_nonsense_is_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_every_laplace_tunes_alike():
    every = Laplace(), KroneckerLaplace(), IdentityLaplace()
    assert {(each.grid, each.slack, each.tuning_samples, each.num_samples) for each in every} == {
        (tuple(10.0**k for k in range(-2, 9)), 0.01, 20, 20)
    }


def test_no_laplace_spells_out_its_grid():
    for each in (Laplace(), KroneckerLaplace(), IdentityLaplace()):
        assert "grid" not in repr(each)


def test_names():
    assert INFERENCES["la_head"]() == Laplace(over="head")
    assert (INFERENCES["la_kron"](), INFERENCES["icla"]()) == (KroneckerLaplace(), IdentityLaplace())
