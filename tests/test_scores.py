"""Post-hoc scores against scikit-learn and scipy, on features of networks that were fitted to real images."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.special
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from demur.feature_scores import Training, fdbd, fit_fdbd, fit_knn, fit_rmds, fit_vim, knn, rmds
from demur.inference import MAP, Ensemble, Laplace
from demur.likelihoods import none_class, plain
from demur.measures import score_named_in, value_name
from demur.metrics import Prediction, Separation, accuracy
from demur.networks import as_input, lenet, mlp
from demur.posterior import Gaussian, Mixture
from demur.predictive import fit_scores, predict, predict_scored
from demur.scores import MEASURED, SCORES, Score, score_named
from demur.tasks import Store, Task, load
from demur.training_data import Recipe

OF_SAMPLES = ("mutual_information", "logit_variance")  # zero of a single network
LEARN = ("knn", "rmds", "vim", "fdbd")


def fitted_to(task: Task, network, epochs: int):
    posterior = MAP().fit(network, plain(10), task.training, Recipe(epochs=epochs))
    assert accuracy(predict(posterior, plain(10), task.testing.test.x), task.testing.test.y) > 0.8
    return task, posterior


@pytest.fixture(scope="module")
def digits():
    return fitted_to(load("digits"), partial(mlp, inputs=64, hidden=(256, 64)), epochs=20)


@pytest.fixture(scope="module")
def mnist(data_root):
    task = load("mnist", store=Store(data_root), outliers="uniform", limit=1500)
    return fitted_to(task, partial(lenet, hidden=128), epochs=5)


@pytest.fixture(scope="module", params=["digits", "mnist"])
def real(request):
    """Features and logits of training, test and outlying images, labels, and the head: as numpy arrays."""
    task, posterior = request.getfixturevalue(request.param)
    x = {"train": task.training.train.x, "test": task.testing.test.x, **task.testing.ood}
    network = posterior.network
    with torch.no_grad():
        features = {name: network.features(as_input(some)) for name, some in x.items()}
        logits = {name: network.head(some).double().numpy() for name, some in features.items()}
    features = {name: some.double().numpy() for name, some in features.items()}
    fitted = fit_scores([SCORES[name] for name in LEARN], posterior, plain(10), task.training.train)
    made = {
        name: predict_scored(posterior, plain(10), some, SCORES.values(), fitted)
        for name, some in x.items()
        if name != "train"
    }
    head = network.head.weight.detach().double().numpy(), network.head.bias.detach().double().numpy()
    return made, features, logits, task.training.train.y.numpy(), head


def assert_same(made, name: str, expected, rtol: float) -> None:
    for each, prediction in made.items():
        found, wanted = SCORES[name](prediction), expected(each)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * scale, err_msg=f"{name} on {each}")


def test_logit_scores_are_scipys(real):
    made, _, logits, _, _ = real
    assert_same(made, "max_logit", lambda name: -logits[name].max(1), 1e-5)
    assert_same(made, "energy", lambda name: -scipy.special.logsumexp(logits[name], axis=1), 1e-5)

    def generalised_entropy(name: str):
        probs = np.sort(scipy.special.softmax(logits[name], axis=1), axis=1)
        return sum(probs[:, column] ** 0.1 * (1 - probs[:, column]) ** 0.1 for column in range(10))

    assert_same({"test": made["test"]}, "gen", generalised_entropy, 1e-5)


def test_of_a_single_network_max_prob_is_the_softmax_of_the_logits(real):
    made, _, logits, _, _ = real
    assert_same(made, "max_prob", lambda name: -scipy.special.softmax(logits[name], axis=1).max(1), 1e-5)


def test_knn_is_scikit_learns(real):
    made, features, _, y, _ = real
    unit = {name: some / np.linalg.norm(some, axis=1, keepdims=True).clip(1e-12) for name, some in features.items()}
    k = min(50, len(y) // 20)
    neighbours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit["train"])
    assert_same(made, "knn", lambda name: neighbours.kneighbors(unit[name])[0][:, -1], 1e-4)


def test_rmds_is_scikit_learns(real):
    made, features, _, y, _ = real
    train = features["train"]
    means = {label: train[y == label].mean(0) for label in range(10)}
    within = EmpiricalCovariance(assume_centered=True).fit(train - np.stack([means[label] for label in y]))
    overall = EmpiricalCovariance().fit(train)

    def distance(name: str):
        to_classes = [within.mahalanobis(features[name] - mean) for mean in means.values()]
        return np.min(to_classes, axis=0) - overall.mahalanobis(features[name])

    # scikit-learn's own pseudo-inverse is of the same cut, and no more exact than this
    assert_same(made, "rmds", distance, 1e-4)


def test_vim_is_scikit_learns(real):
    made, features, logits, _, (weight, bias) = real
    origin = -np.linalg.pinv(weight) @ bias
    both = np.concatenate([features["train"] - origin, origin - features["train"]])  # centred, so PCA does not move it
    directions = PCA(svd_solver="full").fit(both).components_[weight.shape[1] // 2 :]
    norm = {name: np.linalg.norm((some - origin) @ directions.T, axis=1) for name, some in features.items()}
    alpha = logits["train"].max(1).mean() / norm["train"].mean()
    virtual = lambda name: alpha * norm[name] - scipy.special.logsumexp(logits[name], axis=1)  # noqa: E731
    assert_same(made, "vim", virtual, 1e-4)


def test_fdbd_is_a_loop_over_boundaries(real):
    made, features, _, _, (weight, bias) = real
    mean = features["train"].mean(0)

    def one(z):
        best = int(np.argmax(weight @ z + bias))
        distances = [
            ((weight[best] - weight[other]) @ z + bias[best] - bias[other])
            / np.linalg.norm(weight[best] - weight[other])
            for other in range(len(weight))
            if other != best
        ]
        return -np.mean(distances) / np.linalg.norm(z - mean)

    assert_same(made, "fdbd", lambda name: np.array([one(z) for z in features[name]]), 1e-4)


def test_every_score_is_higher_on_outliers(digits):
    """Whatever a score is worth, one whose sign is wrong would be below chance."""
    task, posterior = digits
    scores = [score for name, score in SCORES.items() if not name.startswith("none") and name not in OF_SAMPLES]
    fitted = fit_scores(scores, posterior, plain(10), task.training.train)
    inside, outside = (
        predict_scored(posterior, plain(10), x, scores, fitted)
        for x in (task.testing.test.x, task.testing.ood["letters"])
    )
    for score in scores:
        assert Separation(score(outside), score(inside)).auroc > 0.55, score.name


# posteriors of several networks -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble(digits):
    task, _ = digits
    return Ensemble(members=3).fit(
        partial(mlp, inputs=64, hidden=(24,)), none_class(10), task.training, Recipe(epochs=3)
    )


def test_mean_logits_and_their_variance_are_those_of_the_samples(digits, ensemble):
    task, _ = digits
    x, likelihood = as_input(task.testing.test.x[:50]), none_class(10)
    gaussian = Laplace(prior_precision=100.0, num_samples=7).fit(
        partial(mlp, inputs=64, hidden=(24,)), likelihood, task.training, Recipe(epochs=1)
    )
    for posterior in (ensemble, gaussian, Mixture((gaussian, *ensemble.parts))):
        made = predict(posterior, likelihood, x, batch_size=16, parts=("logits", "logit_variance"))
        shares, logits = [], []
        with torch.no_grad():
            for share, component in posterior.components():
                for sample in range(component.num_samples):
                    shares.append(share / component.num_samples)
                    logits.append(component.logits(x, sample).double())
        weights, every = torch.tensor(shares)[:, None, None], torch.stack(logits)
        mean = (weights * every).sum(0)
        torch.testing.assert_close(made.logits.double(), mean, rtol=1e-5, atol=1e-5)
        variance = (weights * (every - mean) ** 2).sum(0)
        torch.testing.assert_close(made.logit_variance.double(), variance, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            SCORES["energy"](made), -scipy.special.logsumexp(mean[:, :10], axis=1), rtol=1e-5, atol=1e-5
        )


def test_features_of_several_networks_lie_side_by_side_and_their_heads_give_the_mean_logits(digits, ensemble):
    task, _ = digits
    x, likelihood = as_input(task.testing.test.x[:50]), none_class(10)
    made = predict(ensemble, likelihood, x, parts=("logits", "features"))
    with torch.no_grad():
        expected = torch.cat([part.network.features(x) for part in ensemble.parts], 1)
    torch.testing.assert_close(made.features, expected)
    learnt = fit_scores([SCORES["fdbd"]], ensemble, likelihood, task.training.train)["fdbd"]
    again = made.features.double() @ learnt["weight"].T + learnt["bias"]
    torch.testing.assert_close(again, made.logits[:, :10].double(), rtol=1e-4, atol=1e-5)


def test_features_of_a_gaussian_are_the_mean_over_its_samples(digits):
    task, posterior = digits
    x = as_input(task.testing.test.x[:20])
    variance = {name: torch.full_like(p, 1e-3).detach() for name, p in posterior.network.named_parameters()}
    gaussian = Gaussian(posterior.network, variance, 4)
    made = predict(gaussian, plain(10), x, parts=("features",))
    with torch.no_grad():
        expected = torch.stack([gaussian.network_at(sample).features(x) for sample in range(4)]).mean(0)
    torch.testing.assert_close(made.features, expected)
    head = Gaussian(posterior.network, {n: v for n, v in variance.items() if n.startswith("head.")}, 4, over_head=True)
    torch.testing.assert_close(
        predict(head, plain(10), x, parts=("features",)).features, posterior.network.features(x).detach()
    )


def test_asking_for_more_changes_no_probability(digits, ensemble):
    task, point = digits
    for posterior, likelihood in ((point, plain(10)), (ensemble, none_class(10))):
        bare = predict(posterior, likelihood, task.testing.test.x)
        more = predict(posterior, likelihood, task.testing.test.x, parts=("logits", "features", "logit_variance"))
        assert torch.equal(bare.probs, more.probs)
        assert torch.equal(bare.expected_entropy, more.expected_entropy)
        assert bare.logits is bare.features is bare.logit_variance is None


def test_what_a_score_needed_of_a_prediction_is_let_go(digits):
    task, posterior = digits
    scores = [SCORES[name] for name in ("energy", "logit_variance", "knn")]
    fitted = fit_scores(scores, posterior, plain(10), task.training.train)
    made = predict_scored(posterior, plain(10), task.testing.test.x[:5], scores, fitted)
    assert made.logits is made.features is made.logit_variance is None
    assert list(made.scores) == ["energy", "logit_variance", "knn"]


def test_scores_of_samples_are_those_that_are_zero_of_a_single_network(digits):
    task, posterior = digits
    scores = [score for score in SCORES.values() if not score.name.startswith("none")]
    fitted = fit_scores(scores, posterior, plain(10), task.training.train)
    made = predict_scored(posterior, plain(10), task.testing.test.x, scores, fitted)
    for score in scores:
        assert score.of_samples == (not score(made).any()), score.name
    assert {score.name for score in scores if score.of_samples} == set(OF_SAMPLES)


# small cases --------------------------------------------------------------------------------------------------------


def test_doubt_counts_both_kinds():
    probs = torch.tensor([[0.98, 0.0, 0.0], [0.33, 0.33, 0.32], [0.02, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    none = 1 - probs.sum(1)
    score = SCORES["doubt"](Prediction(probs, none, torch.zeros(4)))
    assert score == pytest.approx([0.02, 0.02 / 0.35 + 1, 0.98, 2.0], abs=2e-3)
    plainly = SCORES["doubt"](Prediction(probs[:2] / probs[:2].sum(1, keepdim=True), None, torch.zeros(2)))
    assert plainly == pytest.approx([0.0, 1.0], abs=2e-3)


def test_a_sure_none_is_no_inlier_by_logits():
    logits = torch.tensor([[9.0, 0, 0, 0], [0, 0, 0, 9.0]])
    probs = logits.softmax(1)
    made = Prediction(probs[:, :3], probs[:, 3], torch.zeros(2), logits=logits)
    for name in ("max_logit", "energy", "gen"):
        assert SCORES[name](made)[1] > SCORES[name](made)[0], name


def test_units_that_never_fire_and_features_of_nothing_are_no_trouble():
    generator = torch.Generator().manual_seed(0)
    features = torch.cat([torch.randn(60, 3, generator=generator), torch.zeros(60, 2)], 1)
    training = Training(features, features[:, :3], torch.arange(60) % 3, torch.eye(3, 5), torch.zeros(3))
    values = rmds(torch.zeros(1, 5), fit_rmds(training)), knn(torch.zeros(1, 5), fit_knn(training))
    assert all(torch.isfinite(value).all() for value in values)


def test_what_every_result_has_is_as_before():
    assert list(MEASURED) == ["max_prob", "none", "none_share", "entropy", "mutual_information"]
    assert all(not score.needs and score.fit is None for score in MEASURED.values())
    assert all(score.name == name for name, score in SCORES.items())


# errors -------------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_said_in_a_sentence(digits):
    task, posterior = digits
    made = predict(posterior, plain(10), task.testing.test.x[:2])
    with pytest.raises(ValueError, match="score 'energy' needs logits"):
        SCORES["energy"](made)
    with pytest.raises(ValueError, match="score 'knn' needs what it learns from training inputs"):
        SCORES["knn"](replace(made, features=torch.zeros(2, 3)))
    with pytest.raises(ValueError, match="unknown score 'enrgy'; did you mean 'energy'"):
        score_named("enrgy")
    with pytest.raises(ValueError, match="score 'mine' needs 'weights' of a prediction; it can have logits"):
        Score("mine", "mine", lambda prediction, fitted: None, needs=("weights",))
    headless = Gaussian(
        torch.nn.Sequential(torch.nn.Linear(64, 10)).eval(), {"0.bias": torch.full((10,), math.ulp(1.0))}, 2
    )
    with pytest.raises(ValueError, match=r"the network \(Sequential\) has no .features and .head"):
        predict(headless, plain(10), task.testing.test.x[:2], parts=("features",))


def test_the_variance_of_logits_is_averaged_over_the_classes_alone():
    variance = torch.tensor([[1.0, 2.0, 6.0, 100.0], [0.0, 0.0, 3.0, 100.0]])  # the last is none's
    made = Prediction(torch.full((2, 3), 0.2), torch.full((2,), 0.4), torch.zeros(2), logit_variance=variance)
    np.testing.assert_allclose(SCORES["logit_variance"](made), [3.0, 1.0])


def test_a_neighbour_in_twenty_is_asked_and_fifty_at_most():
    for count, k in ((1, 1), (19, 1), (39, 1), (40, 2), (999, 49), (1000, 50), (5000, 50)):
        empty = torch.zeros(count, 0)
        assert fit_knn(Training(torch.ones(count, 2), empty, empty, empty, empty))["k"] == k


def test_classes_of_equal_weights_have_no_boundary():
    """Their biases may differ: one of the two is the better everywhere."""
    weight, bias = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0, 0.0])
    nothing = torch.zeros(4, 2)
    fitted = fit_fdbd(Training(nothing, nothing, nothing, weight, bias))
    # logits 3, 2 and 1: the boundary with the third is sqrt(2) away, and the mean of all features sqrt(5)
    assert fdbd(torch.tensor([[2.0, 1.0]]), fitted).tolist() == pytest.approx([-(math.sqrt(2) / 2) / math.sqrt(5)])


def test_the_principal_space_is_as_large_as_the_papers_code_has_it(monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: (x[0], x))  # it takes long, and only the size is looked at
    for width, left_out in ((10, 5), (767, 383), (768, 512), (2047, 512), (2048, 1000)):
        x = torch.randn(20, width, generator=torch.Generator().manual_seed(0))
        training = Training(x, x[:, :3], torch.zeros(20, dtype=torch.long), torch.eye(3, width), torch.zeros(3))
        assert fit_vim(training)["residual"].shape == (width, width - left_out)


@pytest.mark.parametrize("score", ["max_prob", "none", "none_share", "mine:own"])
def test_the_name_of_a_value_tells_its_score(score):
    for metric in ("fpr95", "auroc_out", "aupr_published"):
        assert score_named_in(value_name(metric, score), metric) == score
        assert score_named_in(value_name("mmc", score), metric) is None
    assert value_name("accuracy", score) == "accuracy"  # no score has a say in it


def test_a_function_becomes_a_score_under_its_name():
    score = score_named("tests.test_scores:doubled")
    made = Prediction(torch.tensor([[0.7, 0.3]]), None, torch.zeros(1))
    assert (score.name, score.title) == ("tests.test_scores:doubled",) * 2
    assert score(made) == pytest.approx([1.4])


def test_a_function_may_have_the_arguments_of_a_score():
    score = score_named("tests.test_scores:doubled_or_fitted")
    assert score(Prediction(torch.tensor([[0.7, 0.3]]), None, torch.zeros(1))) == pytest.approx([1.4])


def doubled(prediction: Prediction):
    return 2 * prediction.probs[:, 0].double().numpy()


def doubled_or_fitted(prediction: Prediction, fitted: object):
    return fitted or doubled(prediction)


def test_what_a_score_of_probabilities_is_high_for_is_said_in_words():
    """The page of an evaluation says it."""
    assert all(score.meaning for score in SCORES.values() if not score.needs)


def test_results_have_intervals_of_the_scores_that_the_report_compares_by():
    assert [name for name, score in MEASURED.items() if score.bounded] == ["max_prob", "none", "none_share"]


def test_what_drawings_show_side_by_side_differs_in_colour():
    assert len({score.colour for score in MEASURED.values()} | {Score("x", "x", lambda *_: None).colour}) == 6
