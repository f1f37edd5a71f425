"""The contract: every likelihood under every inference method, with and without batch norm."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from demur.inference import INFERENCES, MAP, Ensemble, Laplace, VariationalBayes
from demur.inference.base import fit_parts
from demur.inference.together import train_together
from demur.likelihoods import LIKELIHOODS, none_class, plain
from demur.method import METHODS, parse_method
from demur.metrics import Prediction, accuracy, brier, nll
from demur.networks import mlp
from demur.posterior import Gaussian, Point, Tuning
from demur.posterior_file import load, save
from demur.predictive import predict
from demur.tasks.base import Fixed, Recipe, Split, Task
from tests.conftest import make_task
from tests.test_posterior import Normed

NETWORKS = {"plain": partial(mlp, inputs=4, hidden=(8,)), "batch norm": Normed}


@pytest.fixture(autouse=True)
def _grids_may_end() -> None:
    for message in ("the best prior precision", "every prior precision"):  # two epochs on 96 points promise nothing
        warnings.filterwarnings("ignore", message)


@pytest.mark.parametrize("network_name", NETWORKS)
@pytest.mark.parametrize("method_name", METHODS)
def test_every_method_keeps_the_contract(method_name, network_name, recipe, tmp_path):
    network, task = NETWORKS[network_name], make_task()
    method = parse_method(method_name)
    likelihood = method.likelihood(task.num_classes)
    recipe = replace(recipe, epochs=3)
    state = torch.get_rng_state()
    posterior = method.inference.fit(network, likelihood, task, recipe)
    assert torch.equal(torch.get_rng_state(), state)
    made = predict(posterior, likelihood, task.test.x)

    assert made.probs.shape == (60, 3)
    assert (made.none is None) == (likelihood.num_outputs == 3)
    total = made.probs.sum(1) + (0 if made.none is None else made.none)
    torch.testing.assert_close(total, torch.ones(60), rtol=0, atol=1e-5)
    assert (made.expected_entropy >= -1e-6).all()
    assert posterior.logits(task.test.x, posterior.num_draws - 1).shape == (60, likelihood.num_outputs)
    for _, component in posterior.components():
        assert not component.network.training

    # the same seed, once more, with parts fitted elsewhere
    parts = fit_parts(method.inference, network, likelihood, task, recipe)
    again = predict(method.inference.fit(network, likelihood, task, recipe, parts), likelihood, task.test.x)
    assert torch.equal(made.probs, again.probs)

    save(posterior, tmp_path / "posterior")
    loaded = load(tmp_path / "posterior", partial(network, likelihood.num_outputs))
    assert torch.equal(predict(loaded, likelihood, task.test.x).probs, made.probs)


@pytest.mark.parametrize("method_name", METHODS)
def test_every_method_learns(method_name):
    task, method = make_task(), parse_method(method_name)
    likelihood = method.likelihood(3)
    recipe = Recipe(epochs=60, batch_size=32, lr=1e-2)
    made = predict(method.inference.fit(NETWORKS["plain"], likelihood, task, recipe), likelihood, task.test.x)
    accuracy = (made.probs.argmax(1) == task.test.y).float().mean()
    assert accuracy > 0.9


def test_all_thirty_are_there():
    assert len(METHODS) == len(INFERENCES) * len(LIKELIHOODS) == 30


@pytest.mark.parametrize(("name", "near"), [("la+cn", "la+nc"), ("laplace", "la"), ("LA+NC", "la+nc"), ("map+", "map")])
def test_an_unknown_method_names_the_nearest(name, near):
    with pytest.raises(ValueError, match=r"unknown method .* did you mean '" + near.replace("+", r"\+")):
        parse_method(name)


def test_ensemble_members_are_maps_of_their_seeds(task, network, recipe):
    ensemble = Ensemble(members=3)
    posterior = ensemble.fit(network, plain(3), task, replace(recipe, seed=2))
    for member, seed in zip(posterior.parts, (6, 7, 8), strict=True):
        alone = MAP().fit(network, plain(3), task, replace(recipe, seed=seed))
        assert torch.equal(member.logits(task.test.x), alone.logits(task.test.x))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_members_trained_together_are_those_trained_alone(task, likelihood, optimizer):
    """To 1e-4 of the largest weight after 18 steps: sums are taken in another order."""
    network = partial(lenet_of_points, hidden=8)
    recipe = Recipe(epochs=6, batch_size=32, optimizer=optimizer, lr=1e-2)
    recipes = [its for _, its in Ensemble(members=3).parts(recipe)]
    together = train_together(network, likelihood, task, recipes)
    for its, member in zip(recipes, together, strict=True):
        alone = MAP().fit(network, likelihood, task, its)
        for p, q in zip(alone.network.parameters(), member.network.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-4 * float(p.detach().abs().max()))


def lenet_of_points(num_outputs: int, hidden: int) -> nn.Module:
    """A convolution, a pooling and an affine layer, on four numbers."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, hidden, 1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(hidden, num_outputs),
    )


def test_ensembles_of_anything(task, network, recipe):
    posterior = Ensemble(Laplace(prior_precision=10.0), members=2).fit(network, none_class(3), task, recipe)
    assert posterior.num_draws == 40
    assert len(list(posterior.components())) == 2
    predict(posterior, none_class(3), task.test.x)


def test_laplace_precision_is_fisher_plus_prior(task, network, recipe):
    laplace = Laplace(prior_precision=3.0, estimator="exact")
    likelihood = none_class(3)
    point = MAP().fit(network, likelihood, task, recipe)
    gaussian = laplace.fit(network, likelihood, task, recipe, [point])
    fisher = laplace.fisher(point.network, likelihood, task)
    for name, variance in gaussian.variance.items():
        torch.testing.assert_close(1 / variance, fisher[name] + 3.0)


def test_laplace_over_the_head_leaves_the_trunk_alone(task, network, recipe):
    gaussian = Laplace(over="head", prior_precision=3.0).fit(network, plain(3), task, recipe)
    assert sorted(gaussian.variance) == ["head.bias", "head.weight"]
    assert gaussian.over_head


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_the_tuned_prior_costs_no_more_than_the_slack(task, network, criterion):
    recipe = Recipe(epochs=20, batch_size=32, lr=1e-2)
    likelihood = none_class(3)
    laplace = Laplace(slack=0.02, criterion=criterion, grid=(1.0, 10.0, 100.0, 1e3, 1e4, 1e6))
    point = MAP().fit(network, likelihood, task, recipe)
    fisher = laplace.fisher(point.network, likelihood, task, recipe.seed)
    metric = {"nll": nll, "brier": brier}[criterion]

    def tried(precision: float) -> Prediction:
        variance = {name: 1 / (value + precision) for name, value in fisher.items()}
        posterior = Gaussian(point.network, variance, laplace.tuning_draws, recipe.seed)
        return predict(posterior, likelihood, task.validation.x)

    y, at_map = task.validation.y, predict(point, likelihood, task.validation.x)
    trials = {precision: tried(precision) for precision in laplace.grid}
    if criterion == "nll":
        trials = {p: made for p, made in trials.items() if accuracy(made, y) >= accuracy(at_map, y) - 0.005}
    scores = {precision: metric(made, y) for precision, made in trials.items()}
    best = min(*scores.values(), *([nll(at_map, y)] if criterion == "nll" else []))
    expected = min(p for p, s in scores.items() if s <= 1.02 * best)
    chosen = laplace.fit(network, likelihood, task, recipe, [point])
    torch.testing.assert_close(1 / chosen.variance["head.bias"], fisher["head.bias"] + expected)
    assert chosen.tuning.chosen == expected
    assert chosen.tuning.at_map == (nll(at_map, y), accuracy(at_map, y))
    for precision, by_nll, right in chosen.tuning.rows:
        assert (by_nll, right) == (nll(tried(precision), y), accuracy(tried(precision), y))


def test_tuning_never_ruins_a_network():
    """A network that is always right, but thinks of all inputs that they are likely none of the classes.

    Doubt takes mass off "none", which both Brier score and likelihood reward, and makes the answers a matter of chance.
    """
    classes, x = 8, torch.eye(8).repeat(4, 1)
    split = Split(x, torch.arange(8).repeat(4))
    task = Task("corners", tuple("abcdefgh"), split, split, split, Fixed(torch.zeros(4, 8)), {})
    network = nn.Sequential(nn.Linear(classes, classes + 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(classes + 1, classes))
        network[0].bias.copy_(torch.tensor([0.0] * classes + [4.0]))
    point, likelihood = Point(network.eval()), none_class(classes)

    def right(**settings: Any) -> tuple[float, Tuning]:
        laplace = Laplace(estimator="exact", num_draws=200, tuning_draws=200, **settings)
        posterior = laplace.fit(lambda _: network, likelihood, task, Recipe(), [point])
        return accuracy(predict(posterior, likelihood, x), split.y), posterior.tuning

    assert right(criterion="brier")[0] < 0.6
    found, tuning = right()
    assert found == 1
    by_precision = {precision: (likely, share) for precision, likely, share in tuning.rows}
    assert by_precision[tuning.chosen][1] == tuning.at_map[1] == 1
    assert min(likely for likely, _ in by_precision.values()) < by_precision[tuning.chosen][0]


def test_no_precision_of_the_grid_will_do(task, network, recipe):
    with pytest.warns(UserWarning, match=r"every prior precision .* \(0.01 to 1\) makes the network worse, so .* NLL"):
        posterior = Laplace(grid=(0.01, 0.1, 1.0)).fit(network, plain(3), task, replace(recipe, epochs=20))
    assert posterior.tuning.chosen > 1
    _, found, right = next(row for row in posterior.tuning.rows if row[0] == posterior.tuning.chosen)
    assert found <= 1.01 * posterior.tuning.at_map[0]
    assert right >= posterior.tuning.at_map[1] - 0.005


def test_methods_over_the_head_say_what_a_network_must_have(task, recipe):
    bare = lambda c: nn.Sequential(nn.Linear(4, c))  # noqa: E731
    for inference in (VariationalBayes(), Laplace(over="head")):
        with pytest.raises(ValueError, match=r"\.features and \.head"):
            inference.fit(bare, plain(3), task, recipe)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Laplace(over="tail"), "over 'tail'"),
        (lambda: Laplace(estimator="guess"), "estimator 'guess'"),
        (lambda: Laplace(prior_precision=-1.0), "prior_precision -1.0"),
        (lambda: Ensemble(members=0), "members 0"),
    ],
)
def test_nonsense_is_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()
