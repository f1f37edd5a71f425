"""Flipout against per-example weights, closed forms and torch.distributions; conversion there and back."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad, jacrev, vmap

from demur.inference import Flipout
from demur.inference.flipout import FlipoutLayer, convert, restore
from demur.likelihoods import Likelihood, Outliers, none_class
from demur.networks import wide_resnet
from demur.posterior import Gaussian
from demur.training import observed
from demur.training_data import Recipe
from tests.conftest import make_task
from tests.test_fisher import Mixed, Unusual
from tests.test_variational import Silent, UnitNormal, check_regression, kl_by_torch

DRAWS = 20_000
LAYERS = {
    "linear": (partial(nn.Linear, 4, 3), (4,)),
    "linear without bias": (partial(nn.Linear, 4, 3, bias=False), (4,)),
    "linear along a sequence": (partial(nn.Linear, 4, 3), (2, 4)),
    "conv1d": (partial(nn.Conv1d, 2, 3, 2), (2, 4)),
    "conv2d": (partial(nn.Conv2d, 2, 4, 3, stride=2, padding=1, groups=2), (2, 4, 4)),
}


@pytest.fixture(params=LAYERS)
def layer_and_shape(request: pytest.FixtureRequest) -> tuple[FlipoutLayer, tuple[int, ...]]:
    """A layer whose variances differ from weight to weight, and the shape of its input."""
    make, shape = LAYERS[request.param]
    torch.manual_seed(5)
    layer = FlipoutLayer(make(), 0.0)
    for value in layer.log_variance.values():
        nn.init.uniform_(value, -3, 0)
    return layer, shape


def sampled(function: Callable[[], Tensor | dict[str, Tensor]]) -> Tensor | dict[str, Tensor]:
    """The function's random values, DRAWS of them in front."""
    return vmap(lambda _: function(), randomness="different", chunk_size=2000)(torch.zeros(DRAWS))


def test_mean_and_variance_are_those_of_random_weights(layer_and_shape) -> None:
    """Tolerance: five standard errors."""
    layer, shape = layer_and_shape
    x = torch.randn(3, *shape)
    y = sampled(lambda: layer(x)).detach()
    # weights are independent: sum x**2 sigma**2, plus the bias's
    variance = functional_call(layer.mean, layer.variance(""), (x**2,))
    squares = (y - layer.mean(x)).square().detach()
    assert ((y.mean(0) - layer.mean(x)) / (variance / DRAWS).sqrt()).abs().max() < 5
    assert ((squares.mean(0) - variance) / squares.std(0) * DRAWS**0.5).abs().max() < 5


def test_examples_are_decorrelated_but_the_outputs_of_one_are_not(layer_and_shape) -> None:
    """Two equal inputs: the covariance within each is J diag(sigma**2) J', and between them 0, where one sample of the
    weights for both would give the same again. Tolerance: five standard errors."""
    layer, shape = layer_and_shape
    x = torch.randn(1, *shape).expand(2, *shape)
    weights = {name: value.detach() for name, value in layer.mean.named_parameters()}
    jacobian = jacrev(lambda weights: functional_call(layer.mean, weights, (x[:1],)).flatten())(weights)
    by_weight = {name: (j.flatten(1), layer.variance("")[name].flatten()) for name, j in jacobian.items()}
    covariance = sum(j * variance @ j.T for j, variance in by_weight.values())

    noise = (sampled(lambda: layer(x)) - layer.mean(x)).detach().flatten(2)
    for other, expected in ((0, covariance), (1, torch.zeros_like(covariance))):
        products = noise[:, 0, :, None] * noise[:, other, None, :]
        assert ((products.mean(0) - expected) / products.std(0) * DRAWS**0.5).abs().max() < 5


@pytest.mark.parametrize(
    ("layer", "channels_first"), [(nn.Conv1d(3, 2, 1, bias=False), True), (nn.Linear(3, 2, bias=False), False)]
)
def test_every_channel_of_an_example_has_a_sign_of_its_own(layer: nn.Module, channels_first: bool) -> None:
    """Signs of examples alone would show one the other's perturbation up to a sign.

    Of two equal inputs, three channels' signs agree, or all differ, a quarter of the time; the places of a channel
    always share theirs.
    """
    torch.manual_seed(0)
    flipout = FlipoutLayer(layer, 0.0)
    x = torch.randn(1, 3, 1).expand(2, 3, 4) if channels_first else torch.randn(1, 1, 3).expand(2, 4, 3)
    noise = (sampled(lambda: flipout(x)) - layer(x)).detach()
    if not channels_first:
        noise = noise.mT
    torch.testing.assert_close(noise, noise[..., :1].expand_as(noise), rtol=1e-3, atol=1e-4)
    alike = torch.isclose(noise[:, 0].abs(), noise[:, 1].abs(), rtol=1e-3, atol=1e-4).all((1, 2)).float().mean()
    assert alike == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / DRAWS) ** 0.5 + 0.001)


def test_gradients_agree_with_per_example_weights(layer_and_shape) -> None:
    """In expectation, for a quadratic loss; tolerance: five standard errors of the difference."""
    layer, shape = layer_and_shape
    x = torch.randn(3, *shape)
    target = torch.randn_like(layer.mean(x))
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def by_flipout(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, parameters, (x,))

    def by_example(parameters: dict[str, Tensor]) -> Tensor:
        def one(x: Tensor) -> Tensor:
            weights = {}
            for name in layer.log_variance:
                mean, log_variance = parameters[f"mean.{name}"], parameters[f"log_variance.{name}"]
                weights[name] = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
            return functional_call(layer.mean, weights, (x[None],))[0]

        return vmap(one, randomness="different")(x)

    def gradients(network: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, Tensor]:
        loss = lambda parameters: 0.5 * (network(parameters) - target).square().sum()  # noqa: E731
        return sampled(lambda: grad(loss)(parameters))

    ours, oracle = gradients(by_flipout), gradients(by_example)
    for name in parameters:
        error = ((ours[name].var(0) + oracle[name].var(0)) / DRAWS).sqrt()
        assert ((ours[name].mean(0) - oracle[name].mean(0)) / error).abs().max() < 5, name
        assert (oracle[name].mean(0).abs() / error).max() > 10, f"{name}: too noisy to tell"


class Attentive(nn.Module):
    """Layers to convert at several depths, norms, and attention, which uses an affine layer without calling it."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(2)])
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.unsqueeze(1)).mT
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm((h + self.attention(h, h, h)[0]).flatten(1)))


@pytest.mark.parametrize(
    ("network", "converted", "shape"),
    [
        (Attentive, {"conv", "blocks.0.0", "blocks.1.0", "head"}, (4,)),
        (Mixed, {"features.0", "features.3", "features.6", "features.9", "head"}, (2, 9, 9)),
    ],
)
def test_conversion_there_and_back(network: Callable[[int], nn.Module], converted: set[str], shape) -> None:
    model, x = network(3).eval(), torch.randn(2, *shape)
    modules, parameters, before = dict(model.named_modules()), dict(model.named_parameters()), model(x)
    values = {name: value.clone() for name, value in model.state_dict().items()}

    assert set(convert(model, -1.0)) == converted
    assert {name for name, module in model.named_modules() if isinstance(module, FlipoutLayer)} == converted
    assert not torch.equal(model(x), model(x))
    restore(model)

    assert list(model.named_modules()) == list(modules.items())  # the same objects under the same names
    assert all(model.get_parameter(name) is value for name, value in parameters.items())
    torch.testing.assert_close(dict(model.state_dict()), values, rtol=0, atol=0)
    assert torch.equal(model(x), before)


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter tied\.weight is tied"):
        convert(Unusual(3), -1.0)
    for network in (nn.Linear(4, 3), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))):
        with pytest.raises(ValueError, match="no affine or convolutional layer inside"):
            convert(network, -1.0)


def test_reaches_bayesian_linear_regression() -> None:
    task, method = make_task(), Flipout(tau=1.0, prior_precision=5.0, log_variance=-9.0)
    network = lambda outputs: nn.Sequential(nn.Linear(4, outputs))  # noqa: E731
    posterior = method.fit(
        network, Likelihood(3, UnitNormal()), task.training, Recipe(epochs=2000, batch_size=96, lr=0.03)
    )
    check_regression(posterior, "0", task, 5.0, variance_error=0.25)


@pytest.mark.parametrize("batch_size", [96, 16])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_penalty_is_torchs_kl_times_tau_over_n_whatever_the_batch(batch_size: int, tau: float) -> None:
    losses: list[float] = []
    recipe = Recipe(epochs=1, batch_size=batch_size, lr=1e-12)
    with observed(lambda report: losses.append(report.loss)):
        posterior = Flipout(tau=tau, prior_precision=3.0).fit(
            Attentive, Likelihood(3, Silent()), make_task().training, recipe
        )
    assert losses == [pytest.approx(tau * kl_by_torch(posterior, 3.0) / 96, rel=1e-5)]


def test_the_papers_penalty_averages_within_a_layer() -> None:
    losses: list[float] = []
    with observed(lambda report: losses.append(report.loss)):
        posterior = Flipout(mean_kl=True).fit(
            Attentive, Likelihood(3, Silent()), make_task().training, Recipe(epochs=1, lr=1e-12)
        )
    layers = {name.rpartition(".")[0] for name in posterior.variance}
    means = []
    for layer in layers:
        its = {name: value for name, value in posterior.variance.items() if name.rpartition(".")[0] == layer}
        of_layer = Gaussian(posterior.network, its)
        means.append(kl_by_torch(of_layer, 1.0) / sum(value.numel() for value in its.values()))
    assert losses == [pytest.approx(0.1 * sum(means) / 96, rel=1e-5)]
    assert all((value.log() + 6).abs().max() < 1e-5 for value in posterior.variance.values())
    assert (posterior.num_samples, posterior.seed, posterior.over_head) == (10, 0, False)
    assert Flipout().parts(Recipe()) == []


def test_norms_and_attention_stay_points_and_nothing_decays() -> None:
    recipe = Recipe(epochs=1, batch_size=96, lr=1e-3, optimizer="sgd", weight_decay=10.0)
    torch.manual_seed(recipe.seed)
    fresh = Attentive(4)
    posterior = Flipout(tau=0.0).fit(Attentive, none_class(3), make_task().training, recipe)
    layers = ("conv", "blocks.0.0", "blocks.1.0", "head")
    assert set(posterior.variance) == {f"{layer}.{name}" for layer in layers for name in ("weight", "bias")}
    says_nothing = Likelihood(3, Silent(), Outliers(Silent(), (0.0, 0.0, 0.0, 1.0)))
    silent = Flipout(tau=0.0).fit(Attentive, says_nothing, make_task().training, recipe)
    assert all(torch.equal(value, silent.network.get_parameter(name)) for name, value in fresh.named_parameters())


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """What autograd keeps of a forward pass beside the model itself; the larger part of a training step's memory."""
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor  # kept, so that no address is used twice
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(x).logsumexp(1).sum()
    del loss
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(t.untyped_storage().nbytes() for pointer, t in storages.items() if pointer not in own)


def test_a_training_step_needs_at_most_three_times_the_memory_of_map() -> None:
    model, x = wide_resnet(10, dropout=0.0), torch.rand(8, 3, 32, 32)
    alone = saved_bytes(model, x)
    convert(model, -6.0)
    assert alone < saved_bytes(model, x) < 3 * alone
