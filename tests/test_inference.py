"""The contract: every likelihood under every inference method, with and without batch norm."""

import math
import re
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from demur.inference import (
    INFERENCES,
    MAP,
    CyclicalSGHMC,
    Ensemble,
    Flipout,
    Laplace,
    VariationalBayes,
    ensemble,
)
from demur.inference.base import check_copies, fit_parts, networks_in
from demur.inference.fisher import diagonal_fisher
from demur.inference.prior import HARM, PriorSearch, Trial
from demur.inference.together import can_train_together, train_together
from demur.likelihoods import LIKELIHOODS, none_class, plain
from demur.methods import METHODS, parse_method
from demur.metrics import Prediction, accuracy, brier, nll
from demur.networks import mlp
from demur.posterior import Gaussian, Point, Tuning
from demur.posterior_file import load, save
from demur.predictive import predict
from demur.training import observed
from demur.training_data import Fixed, Recipe, Split, TrainingData
from tests.conftest import changed, make_task
from tests.test_fisher import assert_mean_is
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
    posterior = method.inference.fit(network, likelihood, task.training, recipe)
    assert torch.equal(torch.get_rng_state(), state)
    made = predict(posterior, likelihood, task.testing.test.x)

    assert made.probs.shape == (60, 3)
    assert (made.none is None) == (likelihood.num_outputs == 3)
    total = made.probs.sum(1) + (0 if made.none is None else made.none)
    torch.testing.assert_close(total, torch.ones(60), rtol=0, atol=1e-5)
    assert (made.expected_entropy >= -1e-6).all()
    assert posterior.logits(task.testing.test.x, posterior.num_samples - 1).shape == (60, likelihood.num_outputs)
    for _, component in posterior.components():
        assert not component.network.training

    # the same seed, once more, with parts fitted elsewhere
    parts = fit_parts(method.inference, network, likelihood, task.training, recipe)
    again = predict(
        method.inference.fit(network, likelihood, task.training, recipe, parts), likelihood, task.testing.test.x
    )
    assert torch.equal(made.probs, again.probs)

    save(posterior, tmp_path / "posterior")
    loaded = load(tmp_path / "posterior", partial(network, likelihood.num_outputs))
    assert torch.equal(predict(loaded, likelihood, task.testing.test.x).probs, made.probs)


@pytest.mark.parametrize("method_name", METHODS)
def test_every_method_learns(method_name):
    task, method = make_task(), parse_method(method_name)
    likelihood = method.likelihood(3)
    recipe = Recipe(epochs=60, batch_size=32, lr=1e-2)
    made = predict(
        method.inference.fit(NETWORKS["plain"], likelihood, task.training, recipe), likelihood, task.testing.test.x
    )
    accuracy = (made.probs.argmax(1) == task.testing.test.y).float().mean()
    assert accuracy > 0.9


def test_every_pair_is_a_method():
    assert len(METHODS) == len(INFERENCES) * len(LIKELIHOODS)


@pytest.mark.parametrize(("name", "near"), [("la+cn", "la+nc"), ("laplace", "la"), ("LA+NC", "la+nc"), ("map+", "map")])
def test_an_unknown_method_names_the_nearest(name, near):
    with pytest.raises(ValueError, match=r"unknown method .* did you mean '" + near.replace("+", r"\+")):
        parse_method(name)


def test_settings_are_the_papers():
    assert Ensemble() == Ensemble(MAP(), members=5)
    assert VariationalBayes() == VariationalBayes(0.1, 5e-4, None, -6.0, 5, 200)
    assert Flipout() == Flipout(0.1, prior_precision=1.0, log_variance=-6.0, num_samples=10, mean_kl=False)
    assert CyclicalSGHMC() == CyclicalSGHMC(0.1, 0.9, 1.0, cycles=4, samples_per_cycle=3, length=2.0)
    assert (Laplace().num_samples, Laplace().tuning_samples, Laplace().over, Laplace().estimator) == (
        20,
        20,
        "all",
        "sampled",
    )
    assert Laplace().grid == pytest.approx([1e-2, 1e-1, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8])


@pytest.mark.parametrize("inference", INFERENCES)
def test_a_likelihood_of_other_classes_than_the_tasks_is_refused(inference, task, network, recipe):
    with pytest.raises(ValueError, match="training data has label 2; 2 classes are numbered 0 to 1"):
        INFERENCES[inference]().fit(network, plain(2), task.training, recipe)


def test_ensemble_members_are_maps_of_their_seeds(task, network, recipe):
    ensemble = Ensemble(members=3)
    posterior = ensemble.fit(network, plain(3), task.training, replace(recipe, seed=2))
    for member, seed in zip(posterior.parts, (6, 7, 8), strict=True):
        alone = MAP().fit(network, plain(3), task.training, replace(recipe, seed=seed))
        assert torch.equal(member.logits(task.testing.test.x), alone.logits(task.testing.test.x))


def test_an_ensemble_trains_its_members_at_once_only_where_that_pays(task, network, recipe, monkeypatch):
    made = [MAP().fit(network, plain(3), task.training, replace(recipe, seed=seed)) for seed in range(2)]
    calls: list[list[Recipe]] = []

    def together(network, likelihood, task, recipes):
        assert (network, likelihood) == (given, plain(3))
        calls.append(recipes)
        return made

    given = network
    assert can_train_together(network, plain(3), task.training) is False  # on a CPU
    monkeypatch.setattr(ensemble, "train_together", together)
    Ensemble(members=2).fit(network, plain(3), task.training, recipe)
    assert not calls
    monkeypatch.setattr(
        ensemble, "can_train_together", lambda its, likelihood, task: (its, likelihood) == (given, plain(3))
    )
    assert Ensemble(members=2).fit(network, plain(3), task.training, replace(recipe, seed=4)).parts == tuple(made)
    assert [[its.seed for its in recipes] for recipes in calls] == [[8, 9]]
    assert Ensemble(members=2).fit(network, plain(3), task.training, recipe, made[::-1]).parts == tuple(made[::-1])
    Ensemble(Laplace(prior_precision=1.0), members=2).fit(network, plain(3), task.training, recipe)
    assert len(calls) == 1  # neither where members are given, nor for others than MAP


def test_networks_built_for_prediction_are_trained_together_as_alone(task, recipe):
    """A network function may return one in eval mode; in training batch norm goes by the batch all the same."""
    network = lambda outputs: Normed(outputs).eval()  # noqa: E731
    recipes = [its for _, its in Ensemble(members=2).parts(recipe)]
    for its, member in zip(recipes, train_together(network, plain(3), task.training, recipes), strict=True):
        alone = MAP().fit(network, plain(3), task.training, its)
        assert not member.network.training
        for name, value in alone.network.named_buffers():
            torch.testing.assert_close(value, member.network.get_buffer(name))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_members_trained_together_are_those_trained_alone(task, likelihood, optimizer):
    """To 1e-4 of the largest weight after 18 steps: sums are taken in another order."""
    network = partial(lenet_of_points, hidden=8)
    recipe = Recipe(epochs=6, batch_size=32, optimizer=optimizer, lr=1e-2)
    recipes = [its for _, its in Ensemble(members=3).parts(recipe)]
    together = train_together(network, likelihood, task.training, recipes)
    for its, member in zip(recipes, together, strict=True):
        alone = MAP().fit(network, likelihood, task.training, its)
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
    posterior = Ensemble(Laplace(prior_precision=10.0), members=2).fit(network, none_class(3), task.training, recipe)
    assert posterior.num_samples == 40
    assert len(list(posterior.components())) == 2
    predict(posterior, none_class(3), task.testing.test.x)


def test_laplace_precision_is_fisher_plus_prior(task, network, recipe):
    laplace = Laplace(prior_precision=3.0, estimator="exact")
    likelihood = none_class(3)
    point = MAP().fit(network, likelihood, task.training, recipe)
    gaussian = laplace.fit(network, likelihood, task.training, recipe, [point])
    fisher = laplace.fisher(point.network, likelihood, task.training)
    for name, variance in gaussian.variance.items():
        torch.testing.assert_close(1 / variance, fisher[name] + 3.0)


@pytest.mark.parametrize("count", [10, 96, 400])
def test_outliers_count_as_many_as_inliers_whatever_their_number(task, network, count):
    """Of outliers that are all alike: the inliers' sum, plus w * N times the information of one."""
    torch.manual_seed(0)
    model, likelihood = network(4).eval(), none_class(3, weight=2.0)
    alike = changed(task, outliers=task.training.outliers.x[:1].expand(count, -1))
    laplace = Laplace(estimator="exact")
    inside = diagonal_fisher(model, likelihood.inside.fisher_root, task.training.train.x)
    one = diagonal_fisher(model, likelihood.outside.model.fisher_root, task.training.outliers.x[:1])
    for name, value in laplace.fisher(model, likelihood, alike.training).items():
        torch.testing.assert_close(value, inside[name] + 2.0 * 96 * one[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("over", ["all", "head"])
def test_laplaces_estimates_tend_to_the_exact_fisher(task, network, over):
    torch.manual_seed(0)
    model = network(4).eval()
    exact = Laplace(over, "exact").fisher(model, none_class(3), task.training)
    samples = [Laplace(over).fisher(model, none_class(3), task.training, seed) for seed in range(300)]
    assert_mean_is(samples, exact)
    assert set(exact) == {name for name, _ in model.named_parameters() if over == "all" or name.startswith("head.")}
    first, again = Laplace(over).fisher(model, none_class(3), task.training), samples[0]
    assert all(torch.equal(first[name], again[name]) for name in exact)


def test_the_papers_estimate_is_on_request(task, network):
    torch.manual_seed(0)
    model = network(4).eval()
    published = Laplace(estimator="batch_mean").fisher(model, none_class(3), task.training)
    corrected = Laplace(estimator="sampled").fisher(model, none_class(3), task.training)
    assert sum(v.sum() for v in published.values()) < 0.2 * sum(v.sum() for v in corrected.values())


def test_laplace_over_the_head_leaves_the_trunk_alone(task, network, recipe):
    gaussian = Laplace(over="head", prior_precision=3.0).fit(network, plain(3), task.training, recipe)
    assert sorted(gaussian.variance) == ["head.bias", "head.weight"]
    assert gaussian.over_head


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_the_tuned_prior_costs_no_more_than_the_slack(task, network, criterion):
    recipe = Recipe(epochs=20, batch_size=32, lr=1e-2)
    likelihood = none_class(3)
    laplace = Laplace(slack=0.02, criterion=criterion, grid=(1.0, 10.0, 100.0, 1e3, 1e4, 1e6))
    point = MAP().fit(network, likelihood, task.training, recipe)
    fisher = laplace.fisher(point.network, likelihood, task.training, recipe.seed)
    metric = {"nll": nll, "brier": brier}[criterion]

    def tried(precision: float) -> Prediction:
        variance = {name: 1 / (value + precision) for name, value in fisher.items()}
        posterior = Gaussian(point.network, variance, laplace.tuning_samples, recipe.seed)
        return predict(posterior, likelihood, task.training.validation.x)

    y, at_map = task.training.validation.y, predict(point, likelihood, task.training.validation.x)
    trials = {precision: tried(precision) for precision in laplace.grid}
    if criterion == "nll":
        trials = {p: made for p, made in trials.items() if accuracy(made, y) >= accuracy(at_map, y) - 0.005}
    scores = {precision: metric(made, y) for precision, made in trials.items()}
    best = min(*scores.values(), *([nll(at_map, y)] if criterion == "nll" else []))
    expected = min(p for p, s in scores.items() if s <= 1.02 * best)
    chosen = laplace.fit(network, likelihood, task.training, recipe, [point])
    torch.testing.assert_close(1 / chosen.variance["head.bias"], fisher["head.bias"] + expected)
    assert chosen.tuning.chosen == expected
    assert chosen.tuning.at_map == (nll(at_map, y), accuracy(at_map, y))
    for precision, by_nll, right in chosen.tuning.rows:
        assert (by_nll, right) == (nll(tried(precision), y), accuracy(tried(precision), y))


def prediction_of(by_nll: float, right: float) -> Prediction:
    """Of 1,000 inputs of class 0, with that mean negative log-likelihood and that accuracy."""
    count = round(1000 * right)
    wrong = (1 - right) * -math.log(0.4)
    of_label = torch.full((1000,), 0.4, dtype=torch.float64)
    of_label[:count] = math.exp((wrong - by_nll) / right)
    probs = torch.stack([of_label, 1 - of_label, 0 * of_label], 1)
    made = Prediction(probs, None, torch.zeros(1000))
    assert (nll(made, torch.zeros(1000).long()), accuracy(made, torch.zeros(1000).long())) == pytest.approx(
        (by_nll, right)
    )
    return made


SAME = (0.4, 0.95)  # NLL and accuracy of the MAP network, unless another is given
EVERY, EDGE = "every prior precision .* makes the network worse", "edge of the grid, where the NLL is still changing"


@pytest.mark.parametrize(
    ("curve", "at_map", "chosen", "tried", "warns"),
    [
        # four inputs of 1,000 may be lost, six may not
        ({100: SAME, 10: (0.4, 0.946), 1: (0.4, 0.944), 0.1: (0.4, 0.944)}, SAME, 10, 4, None),
        # the NLL may be 1 % above the best, whose it is, the MAP network's included
        ({100: SAME, 10: (0.4039, 0.95), 1: (0.4041, 0.95), 0.1: (0.41, 0.95)}, SAME, 10, 4, None),
        ({100: (0.3935, 0.95), 10: (0.3943, 0.95), 1: SAME, 0.1: SAME}, (0.39, 0.95), 100, 4, None),
        # an NLL more than 5 % above what may be chosen ends the search
        ({100: SAME, 10: (0.4252, 0.95), 1: SAME, 0.1: SAME}, SAME, 100, 2, EDGE),
        # beyond a gap it is luck
        ({100: SAME, 10: (0.4232, 0.95), 1: SAME, 0.1: (0.5, 0.95)}, SAME, 100, 4, EDGE),
        # beyond the grid, by decades, as far as need be and no farther than twelve
        ({1e4: SAME, 1e3: (0.45, 0.95), 100: (0.5, 0.95)}, SAME, 1e4, 3, EVERY),
        ({100 * 10.0**k: (0.5, 0.95) for k in range(13)}, SAME, 1e14, 13, EVERY),
        # at the edge: still falling, or level
        ({100: (0.5, 0.95), 10: (0.45, 0.95), 1: (0.42, 0.95), 0.1: SAME}, (0.6, 0.95), 0.1, 4, EDGE),
        ({100: (0.5, 0.95), 10: (0.45, 0.95), 1: (0.402, 0.95), 0.1: SAME}, (0.6, 0.95), 0.1, 4, None),
    ],
)
def test_the_prior_is_chosen_by_the_rule(task, network, recipe, monkeypatch, curve, at_map, chosen, tried, warns):
    def scripted(posterior, likelihood, x):
        if isinstance(posterior, Point):
            return prediction_of(*at_map)
        assert (posterior.num_samples, posterior.seed, posterior.over_head) == (7, 3, False)
        precision = 1 / float(posterior.variance["head.bias"])
        return prediction_of(*next(its for of, its in curve.items() if math.isclose(of, precision, rel_tol=1e-5)))

    task = changed(task, validation=Split(torch.zeros(1000, 4), torch.zeros(1000, dtype=torch.long)))
    model = nn.Sequential()
    model.head = nn.Linear(1, 1)
    monkeypatch.setattr(Laplace, "fisher", lambda *_: {"head.bias": torch.zeros(1)})
    monkeypatch.setattr("demur.inference.prior.predict", scripted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        laplace = Laplace(grid=(1, 0.1, 100, 10), tuning_samples=7, num_samples=9)
        posterior = laplace.fit(network, plain(3), task.training, replace(recipe, seed=3), [Point(model)])
    assert posterior.tuning.chosen == pytest.approx(chosen)
    assert float(posterior.variance["head.bias"]) == pytest.approx(1 / chosen)
    assert (posterior.num_samples, posterior.seed) == (9, 3)
    rows = [row[0] for row in posterior.tuning.rows]
    assert (len(rows), rows) == (tried, sorted(rows, reverse=True))
    assert len(caught) == (warns is not None)
    assert all(re.search(warns, str(warning.message)) for warning in caught)


def test_tuning_never_ruins_a_network():
    """A network that is always right, but thinks of all inputs that they are likely none of the classes.

    Doubt takes mass off "none", which both Brier score and likelihood reward, and makes the answers a matter of chance.
    """
    classes, x = 8, torch.eye(8).repeat(4, 1)
    split = Split(x, torch.arange(8).repeat(4))
    data = TrainingData(split, split, Fixed(torch.zeros(4, 8)))
    network = nn.Sequential(nn.Linear(classes, classes + 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(classes + 1, classes))
        network[0].bias.copy_(torch.tensor([0.0] * classes + [4.0]))
    point, likelihood = Point(network.eval()), none_class(classes)

    def right(**settings: Any) -> tuple[float, Tuning]:
        laplace = Laplace(estimator="exact", num_samples=200, tuning_samples=200, **settings)
        posterior = laplace.fit(lambda _: network, likelihood, data, Recipe(), [point])
        return accuracy(predict(posterior, likelihood, x), split.y), posterior.tuning

    assert right(criterion="brier")[0] < 0.6
    found, tuning = right()
    assert found == 1
    by_precision = {precision: (likely, share) for precision, likely, share in tuning.rows}
    assert by_precision[tuning.chosen][1] == tuning.at_map[1] == 1
    assert min(likely for likely, _ in by_precision.values()) < by_precision[tuning.chosen][0]


def test_no_precision_of_the_grid_will_do(task, network, recipe):
    with pytest.warns(UserWarning, match=r"every prior precision .* \(0.01 to 1\) makes the network worse, so .* NLL"):
        posterior = Laplace(grid=(0.01, 0.1, 1.0)).fit(network, plain(3), task.training, replace(recipe, epochs=20))
    assert posterior.tuning.chosen > 1
    _, found, right = next(row for row in posterior.tuning.rows if row[0] == posterior.tuning.chosen)
    assert found <= 1.01 * posterior.tuning.at_map[0]
    assert right >= posterior.tuning.at_map[1] - 0.005


def test_methods_over_the_head_say_what_a_network_must_have(task, recipe):
    bare = lambda c: nn.Sequential(nn.Linear(4, c))  # noqa: E731
    for inference in (VariationalBayes(), Laplace(over="head")):
        with pytest.raises(ValueError, match=r"\.features and \.head"):
            inference.fit(bare, plain(3), task.training, recipe)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Laplace(over="tail"), "over 'tail'"),
        (lambda: Laplace(estimator="guess"), "estimator 'guess'"),
        (lambda: Laplace(prior_precision=-1.0), "prior_precision -1.0"),
        (lambda: Laplace(prior_precision=0.0), "prior_precision 0.0"),
        (lambda: Laplace(num_samples=0), "num_samples"),
        (lambda: Laplace(tuning_samples=0), "tuning_samples"),
        (lambda: Laplace(grid=()), "grid"),
        (lambda: Ensemble(members=0), "members 0"),
        (lambda: VariationalBayes(num_samples=0), "num_samples"),
        (lambda: VariationalBayes(training_samples=0), "training_samples"),
    ],
)
def test_nonsense_is_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_one_of_each_is_enough(task, network, recipe):
    for inference in (
        Laplace(prior_precision=1.0, num_samples=1, tuning_samples=1),
        VariationalBayes(training_samples=1, num_samples=1),
        Ensemble(members=1),
    ):
        assert inference.fit(network, plain(3), task.training, recipe).num_samples == 1


def test_networks_are_counted():
    assert [networks_in(each) for each in (MAP(), Laplace(), Ensemble(members=3), Ensemble(Laplace(), 2))] == [
        1,
        1,
        3,
        2,
    ]


def test_a_network_that_could_not_be_copied_is_refused_and_stays_as_it_was(task):
    model = mlp(3, inputs=4, hidden=(8,)).train()
    check_copies(model, task.training)
    assert model.training
    model.again = model.features  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"module again.* stands in it twice; share its weights instead"):
        check_copies(model, task.training)


def test_half_a_point_of_accuracy_is_what_doubt_may_cost():
    answers = torch.zeros(200)
    trials = [Trial(1.0, 0.1, 0.1, accuracy, torch.zeros(200), answers) for accuracy in (0.505, 0.5, 0.499)]
    assert [trial.accuracy for trial in PriorSearch()._sound(trials, trials[0])] == [0.505, 0.505 - HARM]
    assert PriorSearch(criterion="brier")._sound(trials, trials[0]) == trials


@pytest.mark.parametrize("criterion", ["nll", "brier"])
@pytest.mark.parametrize("count", [199, 200])
def test_few_inputs_allow_no_other_answer(count, criterion):
    """One input is answered otherwise, and it is as wrong as before: accuracy cannot tell."""
    one = torch.zeros(count).index_fill(0, torch.tensor([3]), 1)
    at_map, same, other = (
        Trial(precision, 0.1, 0.1, 0.9, torch.zeros(count), answers)
        for precision, answers in [(math.inf, one), (10.0, one), (1.0, 2 * one)]
    )
    sound = [same, other] if criterion == "brier" or count == 200 else [same]
    assert PriorSearch(criterion=criterion)._sound([same, other], at_map) == sound


def test_few_is_fewer_than_fifteen_and_may_be_one():
    for count in (1, 14, 15):
        losses = torch.tensor([0.1, 0.3] * count, dtype=torch.float64)[:count]
        answers = torch.zeros(count)
        chosen = Trial(10.0, 0.2, 0.2, 1.0, losses, answers)
        left = Trial(1.0, 0.2, 0.2, 1.0, 0.4 - losses, answers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            PriorSearch()._warn_of_noise([chosen, left], chosen)
        assert len(caught) == (count < 15)
        assert all(str(its.message).startswith(f"{count} validation input") for its in caught)


def test_two_standard_errors_tell_precisions_apart():
    """Of losses that differ by 1 and 3 the mean is 2, and its standard error 1."""
    for losses, doubted in ([1.0, 3.0], False), ([1.0, 3.0001], True):
        chosen, left = (
            Trial(1.0, 0.0, 0.0, 1.0, torch.tensor(its, dtype=torch.float64), torch.zeros(2))
            for its in ([0.0, 0.0], losses)
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            PriorSearch()._warn_of_noise([chosen, left], chosen)
        assert len(caught) == doubted


def searched(monkeypatch, curve, at_map, inputs=1000):
    """What `PriorSearch` makes, with its defaults, of posteriors with these NLLs, and what it says; all are right."""

    def scripted(posterior, likelihood, x):
        of_label = math.exp(-(at_map if posterior == "map" else curve[posterior]))
        probs = torch.tensor([of_label, 1 - of_label], dtype=torch.float64).expand(len(x), 2)
        return Prediction(probs, None, torch.zeros(len(x)))

    monkeypatch.setattr("demur.inference.prior.predict", scripted)
    held_out = Split(torch.zeros(inputs, 1), torch.zeros(inputs, dtype=torch.long))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuning = PriorSearch().tune("map", lambda precision: round(math.log10(precision)), plain(2), held_out)
    return tuning, [str(its.message) for its in caught]


@pytest.mark.parametrize(("last", "chosen"), [(1.0098, -2), (1.0102, -1)])
def test_every_decade_down_to_a_hundredth_is_tried_and_one_per_cent_is_no_loss(monkeypatch, last, chosen):
    """And the edge of the grid is no worry where the NLL is level there, however steep it was before."""
    curve = {k: 0.4 + 0.01 * (k + 1) for k in range(8, -2, -1)} | {-2: 0.4 * last}
    tuning, said = searched(monkeypatch, curve, 0.6)
    assert [row[0] for row in tuning.rows] == pytest.approx([10.0**k for k in range(8, -3, -1)])
    assert tuning.chosen == pytest.approx(10.0**chosen)
    assert not said


def test_the_doubt_that_is_told_is_in_negative_log_likelihood(monkeypatch):
    """The next precision's is greater by 0.01; how far one input's may lead astray cannot be known."""
    curve = dict.fromkeys(range(8, 1, -1), 0.4) | {1: 0.41} | dict.fromkeys(range(0, -3, -1), 0.5)
    tuning, said = searched(monkeypatch, curve, 0.4, inputs=1)
    assert tuning.chosen == pytest.approx(100)
    assert len(said) == 1
    assert re.search(r"^1 validation input is too few .* 100 is taken and 10 is not, .* by \+0\.01 \+- inf", said[0])


def test_a_single_network_can_be_trained_together(task, network, recipe):
    (member,) = train_together(network, plain(3), task.training, [recipe])
    alone = MAP().fit(network, plain(3), task.training, recipe)
    for p, q in zip(alone.network.parameters(), member.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-4 * float(p.detach().abs().max()))


def test_networks_trained_together_tell_their_epochs(task):
    recipes = [Recipe(epochs=3, batch_size=32, seed=seed) for seed in (1, 2)]
    said = []
    with observed(said.append):
        train_together(NETWORKS["plain"], plain(3), task.training, recipes)
    assert [(report.epoch, report.epochs) for report in said] == [(1, 3), (2, 3), (3, 3)]
    assert all(report.loss > 0 for report in said)
