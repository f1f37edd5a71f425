"""Metrics against scikit-learn and by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipys_entropy
from sklearn.metrics import auc, average_precision_score, log_loss, precision_recall_curve, roc_auc_score

from demur.measures import STANDARD, measures_with, ood_metrics
from demur.metrics import (
    METRICS,
    Prediction,
    Separation,
    accuracy,
    accuracy_with_none,
    brier,
    calibration,
    ece,
    ece_class,
    ece_published,
    metric_named,
    mmc,
    nll,
    spread,
)
from demur.scores import (
    MEASURED,
    SCORES,
    entropy_score,
    max_prob_score,
    mutual_information_score,
    none_score,
    none_share_score,
    score_named,
)

INF = float("inf")


def prediction(probs, none=None, expected_entropy=None) -> Prediction:
    probs = torch.as_tensor(probs, dtype=torch.float32)
    none = None if none is None else torch.as_tensor(none, dtype=torch.float32)
    zeros = torch.zeros(len(probs))
    return Prediction(probs, none, zeros if expected_entropy is None else torch.as_tensor(expected_entropy))


scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(-3, 3), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(scores, scores)
def test_separation_is_scikit_learns_with_ties(positive, negative):
    values = np.array(positive + negative)
    truth = np.array([1] * len(positive) + [0] * len(negative))
    ours = Separation(np.array(positive), np.array(negative))
    assert ours.auroc == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
    assert ours.aupr == pytest.approx(average_precision_score(truth, values), abs=1e-12)
    precision, recall, _ = precision_recall_curve(truth, values)
    assert ours.aupr_published == pytest.approx(auc(recall, precision), abs=1e-12)
    passing = np.array(negative) >= np.quantile(positive, 0.05)
    assert ours.fpr95 == pytest.approx(passing.mean(), abs=1e-12)
    turned, anew = ours.other_way, Separation(-np.array(negative), -np.array(positive))
    assert (turned.auroc, turned.aupr, turned.fpr95) == (anew.auroc, anew.aupr, anew.fpr95)


def test_fpr95_is_the_definition():
    inside, outside = np.arange(101) / 100, np.array([0.04, 0.05, 0.5, 0.9])
    # the 5th percentile of 0, 0.01, ..., 1 is 0.05, and three of the four outliers are at least as confident
    assert Separation(inside, outside).fpr95 == 0.75


def test_ood_figures_have_both_directions():
    inside = prediction([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    outside = prediction([[0.5, 0.5], [0.7, 0.3]])
    figures = ood_metrics(inside, outside)
    confidence, truth = [0.9, 0.8, 0.6, 0.5, 0.7], [1, 1, 1, 0, 0]
    assert figures["auroc"] == pytest.approx(roc_auc_score(truth, confidence))
    assert figures["auroc_out"] == pytest.approx(figures["auroc"])
    assert figures["aupr"] == pytest.approx(average_precision_score(truth, confidence))
    flipped = average_precision_score(1 - np.array(truth), -np.array(confidence))
    assert figures["aupr_out"] == pytest.approx(flipped)
    assert figures["mmc"] == pytest.approx(0.6)
    assert "entropy_fpr95_out" in figures
    assert "none_fpr95" not in figures


def test_ood_figures_of_every_score_are_scikit_learns():
    draw = np.random.default_rng(0)
    inside, outside = (
        prediction(p[:, :3], p[:, 3], scipys_entropy(p, axis=1) / 2)
        for p in (draw.dirichlet([8, 1, 1, 1], 40), draw.dirichlet([2, 2, 1, 4], 30))
    )
    figures = ood_metrics(inside, outside)
    truth = np.array([1] * 40 + [0] * 30)
    for name, score in MEASURED.items():
        values, prefix = np.concatenate([score(inside), score(outside)]), "" if name == "max_prob" else f"{name}_"
        precision, recall, _ = precision_recall_curve(truth, -values)
        expected = {
            "auroc": roc_auc_score(truth, -values),
            "auroc_out": roc_auc_score(1 - truth, values),
            "aupr": average_precision_score(truth, -values),
            "aupr_out": average_precision_score(1 - truth, values),
            "aupr_published": auc(recall, precision),
            "fpr95": (values[40:] <= np.quantile(values[:40], 0.95)).mean(),
            "fpr95_out": (values[:40] >= np.quantile(values[40:], 0.05)).mean(),
        }
        for figure, value in expected.items():
            assert figures.pop(prefix + figure) == pytest.approx(value, abs=1e-12), (name, figure)
    assert figures == {"mmc": pytest.approx(outside.probs.amax(1).double().mean().item())}


def test_a_set_without_none_has_no_figures_of_it():
    with_none, without = prediction([[0.6, 0.3]], none=[0.1]), prediction([[0.6, 0.4]])
    for pair in ((with_none, without), (without, with_none)):
        assert not any(name.startswith("none") for name in ood_metrics(*pair))


def test_fpr95_where_some_scores_are_infinite():
    inside = np.array([-np.inf, 1.0, 2.0])  # the 5th percentile is minus infinity, which every outlier passes
    assert Separation(inside, np.array([0.0, -np.inf])).fpr95 == 1.0
    assert Separation(np.array([0.0, np.inf, np.inf]), np.array([5.0, -1.0])).fpr95 == 0.5  # the lower of both


def test_ece_by_hand():
    # bin 14 of 15 is (13/15, 14/15]: confidences .9 and .9, one right; the last bin: .95 right and 1.0 wrong
    probs = [[0.9, 0.1], [0.9, 0.1], [0.95, 0.05], [1.0, 0.0]]
    y = torch.tensor([0, 1, 0, 1])
    assert ece(prediction(probs), y) == pytest.approx((2 * abs(0.9 - 0.5) + 2 * abs(0.975 - 0.5)) / 4, abs=1e-6)
    # published: the last two are left out, and the rest divided by two
    assert ece_published(prediction(probs), y) == pytest.approx(0.4, abs=1e-6)


def test_published_ece_has_no_value_for_a_sure_classifier():
    sure = prediction([[0.99, 0.01]] * 3)
    assert math.isnan(ece_published(sure, torch.zeros(3, dtype=torch.long)))
    assert ece(sure, torch.zeros(3, dtype=torch.long)) == pytest.approx(0.01)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 1.0), st.booleans()), min_size=1, max_size=50))
def test_ece_keeps_the_bound_that_the_published_one_breaks(rows):
    confidence = torch.tensor([c for c, _ in rows], dtype=torch.float64).float()
    y = torch.tensor([0 if right else 1 for _, right in rows])
    made = prediction(torch.stack([confidence, 1 - confidence], 1))
    assert ece(made, y) <= (1 - accuracy(made, y)) + (1 - mmc(made)) + 1e-6


def test_the_published_ece_breaks_the_bound():
    # 98 sure and right, 2 at .6 and wrong: the two alone are counted
    probs = torch.tensor([[1.0, 0.0]] * 98 + [[0.6, 0.4]] * 2)
    y = torch.tensor([0] * 98 + [1] * 2)
    made = prediction(probs)
    bound = (1 - accuracy(made, y)) + (1 - mmc(made))
    assert ece_published(made, y) == pytest.approx(0.6, abs=1e-6)
    assert ece_published(made, y) > bound > ece(made, y)


def test_every_input_is_in_a_bin():
    edges = np.concatenate([[0.0], np.arange(1, 16) / 15, np.random.default_rng(0).random(500)])
    count, _, _ = calibration(edges, np.ones(len(edges), bool))
    assert count.sum() == len(edges)


def test_fifteen_bins_are_closed_above():
    edges = np.arange(1, 16) / 15
    for confidence in (edges, edges - 1 / 30, edges - 1e-9):  # the upper edges, the middles, just below the edges
        assert (calibration(confidence, confidence > 0)[0] == np.ones(15)).all()
    count, mean_confidence, share_right = calibration(np.array([0.0, 0.05, 0.6, 0.62]), np.array([1, 0, 1, 1]) > 0)
    assert count.tolist() == [2] + [0] * 7 + [1, 1] + [0] * 5  # 0.6 is the upper edge of the ninth
    assert mean_confidence[[0, 8, 9]] == pytest.approx([0.025, 0.6, 0.62])
    assert share_right[[0, 8, 9]] == pytest.approx([0.5, 1, 1])
    assert np.isnan(np.delete(mean_confidence, [0, 8, 9])).all()
    assert np.isnan(np.delete(share_right, [0, 8, 9])).all()


def test_calibration_has_no_value_where_all_are_called_none():
    y = torch.tensor([0, 1])
    assert math.isnan(ece_class(prediction([[0.3, 0.2], [0.1, 0.1]], none=[0.5, 0.8]), y))  # one half is "none"
    assert ece_class(prediction([[0.3, 0.2], [0.1, 0.5]], none=[0.5, 0.4]), y) == pytest.approx(1 / 6, abs=1e-6)


def test_none_class_aware_calibration():
    # the third is called none and left out; the others are renormalised to .9 and .6
    made = prediction([[0.45, 0.05], [0.36, 0.24], [0.1, 0.1]], none=[0.5 - 1e-6, 0.4, 0.8])
    y = torch.tensor([0, 0, 1])
    assert ece_class(made, y) == pytest.approx((0.1 + 0.4) / 2, abs=1e-5)
    assert ece_class(prediction([[0.9, 0.1]]), y[:1]) == ece(prediction([[0.9, 0.1]]), y[:1])


def test_accuracy_over_classes_and_over_classes_with_none():
    # right, but "none" is larger; right; wrong; right, "none" being as large
    made = prediction([[0.4, 0.1], [0.6, 0.2], [0.5, 0.3], [0.375, 0.25]], none=[0.5, 0.2, 0.2, 0.375])
    y = torch.tensor([0, 0, 1, 0])
    assert accuracy(made, y) == 0.75
    assert accuracy_with_none(made, y) == 0.5
    assert accuracy_with_none(prediction([[0.4, 0.6], [0.6, 0.4]]), y[:2]) == 0.5


def test_brier_and_nll():
    made = prediction([[0.7, 0.2]], none=[0.1])
    y = torch.tensor([0])
    assert brier(made, y) == pytest.approx(0.3**2 + 0.2**2 + 0.1**2, abs=1e-6)
    assert nll(made, y) == pytest.approx(-math.log(0.7), abs=1e-6)


def test_figures_are_means_over_inputs():
    draw = np.random.default_rng(0)
    probs, y = draw.dirichlet([1, 1, 1], 20).astype(np.float32), draw.integers(3, size=20)
    made = prediction(probs)
    assert nll(made, torch.tensor(y)) == pytest.approx(log_loss(y, probs, labels=[0, 1, 2]), rel=1e-5)
    assert brier(made, torch.tensor(y)) == pytest.approx(((probs - np.eye(3)[y]) ** 2).sum() / 20, rel=1e-6)
    assert accuracy(made, torch.tensor(y)) == (probs.argmax(1) == y).mean()
    assert mmc(made) == METRICS["mmc"](made, torch.tensor(y)) == pytest.approx(probs.max(1).mean())
    half = prediction(probs / 2, none=[0.5] * 20)
    error = ((probs / 2 - np.eye(3)[y]) ** 2).sum() / 20
    assert brier(half, torch.tensor(y)) == pytest.approx(error + 0.25, rel=1e-6)


@pytest.mark.parametrize("with_none", [False, True])
def test_a_resample_has_the_metric_of_its_rows(with_none):
    """Counts, a column a resample, say how often each row is drawn."""
    draw = np.random.default_rng(0)
    probs, y = draw.dirichlet([1, 1, 1, 1] if with_none else [1, 1, 1], 30), torch.tensor(draw.integers(3, size=30))
    made = prediction(probs[:, :3], probs[:, 3] if with_none else None)
    rows = [draw.integers(30, size=30) for _ in range(4)]
    counts = np.stack([np.bincount(its, minlength=30) for its in rows], 1)
    for name, metric in METRICS.items():
        if metric.again is None:
            continue
        drawn = [
            Prediction(made.probs[its], made.none[its] if with_none else None, made.expected_entropy) for its in rows
        ]
        expected = [metric(some, y[torch.as_tensor(its)]) for some, its in zip(drawn, rows, strict=True)]
        assert metric.again(made, y, counts) == pytest.approx(expected), name


def test_how_metrics_are_printed():
    assert {name for name, metric in METRICS.items() if not metric.percent} == {"nll", "brier"}  # no fractions
    assert {name for name, metric in METRICS.items() if metric.higher_is_better} == {
        "accuracy", "accuracy_with_none", "mmc"
    }  # fmt: skip
    for named in (score_named, metric_named):
        with pytest.raises(ValueError, match=r"math:pi' is 3\.14.*, not a function"):
            named("math:pi")


def test_an_impossible_label_costs_no_more_than_float32s_smallest_number():
    made = prediction([[1.0, 0.0], [1.0, 0.0]])
    assert nll(made, torch.tensor([0, 1])) == pytest.approx(-0.5 * math.log(2.0**-126))


def test_scores_by_hand():
    made = prediction([[0.5, 0.1, 0.1], [0.2, 0.2, 0.0]], none=[0.3, 0.6], expected_entropy=[0.4, 0.2])
    spread_out = np.array([[0.6, 0.2, 0.2], [0.4, 0.4, 0.2]])  # a third of the none mass to each class
    assert max_prob_score(made) == pytest.approx([-0.5, -0.2])
    assert none_score(made) == pytest.approx([0.3, 0.6])
    assert none_share_score(made) == pytest.approx([0.3 / 0.8, 0.6 / 0.8])
    assert entropy_score(made) == pytest.approx(scipys_entropy(spread_out, axis=1))
    assert mutual_information_score(made) == pytest.approx(scipys_entropy(spread_out, axis=1) - [0.4, 0.2])
    assert none_score(prediction([[1.0]])) is none_share_score(prediction([[1.0]])) is None


def test_the_none_score_keeps_the_ranking_that_a_difference_loses():
    generator = torch.Generator().manual_seed(0)
    none = 10 ** (-6 - 6 * torch.rand(2000, generator=generator).double())
    outlier = torch.rand(2000, generator=generator) < (none > 1e-9).double() * 0.8 + 0.1
    top = 1 - none
    probs = torch.stack([top * 0.7, top * 0.2, top * 0.1], 1).float()
    kept = none_score(Prediction(probs, none.float(), torch.zeros(2000)))
    lost = 1 - probs.sum(1)
    by_none = Separation(kept[outlier.numpy()], kept[~outlier.numpy()]).auroc
    truth = roc_auc_score(outlier.numpy(), none.numpy())
    by_difference = roc_auc_score(outlier.numpy(), lost.numpy())
    assert by_none == pytest.approx(truth, abs=1e-4)
    assert by_difference < truth - 0.02


def test_a_confident_none_does_not_rank_as_an_inlier():
    sure_digit, sure_none = [[0.98, 0.01, 0.0]], [[0.01, 0.0, 0.0]]
    made = prediction(sure_digit + sure_none, none=[0.01, 0.99])
    assert entropy_score(made)[1] > entropy_score(made)[0]
    assert max_prob_score(made)[1] > max_prob_score(made)[0]


def test_mutual_information_is_what_draws_disagree_about():
    # two draws, each sure of another class: entropy of the average log 2, average entropy 0
    made = prediction([[0.5, 0.5]], expected_entropy=[0.0])
    assert mutual_information_score(made)[0] == pytest.approx(math.log(2))


def test_a_point_has_no_mutual_information():
    probs = torch.rand(500, 10).softmax(1)
    entropies = -(probs.double() * probs.double().log()).sum(1)
    assert (mutual_information_score(Prediction(probs, None, entropies.float())) == 0).all()
    # what is larger than float32's rounding is told, however small
    assert mutual_information_score(Prediction(probs, None, entropies - 3e-6)) == pytest.approx(3e-6, rel=1e-3)


def test_every_metric_is_a_number_for_both_kinds_of_head():
    y = torch.tensor([0, 1])
    for made in (prediction([[0.6, 0.4], [0.3, 0.7]]), prediction([[0.5, 0.3], [0.3, 0.6]], none=[0.2, 0.1])):
        assert all(math.isfinite(metric(made, y)) for metric in METRICS.values())


@pytest.mark.parametrize(
    ("positive", "negative", "fpr95"),
    [
        ([-INF] + 9 * [1.0], [-INF, 0.0, 2.0], 1.0),  # the fifth percentile lies between -inf and 1
        ([-INF] + 39 * [1.0], [-INF, 0.0, 2.0], 1 / 3),  # and here at 1
        (10 * [-INF], [-INF, 0.0], 1.0),
        ([0.0] + 9 * [INF], [-1.0, 0.0, 1.0, INF], 0.75),  # at least 95 % pass the lower of both
        ([-INF] + 9 * [INF], [-INF, 0.0, INF], 1.0),
        (10 * [INF], [0.0, INF], 0.5),
    ],
)
def test_fpr95_of_infinite_scores(positive, negative, fpr95):
    assert Separation(np.array(positive), np.array(negative)).fpr95 == pytest.approx(fpr95)


def test_nothing_to_compare_is_refused():
    one, none, nan = np.array([1.0]), np.array([]), np.array([1.0, np.nan])
    for positive, negative, says in (
        (nan, one, "positive scores contain NaN"),
        (one, nan, "negative scores contain NaN"),
        (none, one, "positive scores are empty"),
        (one, none, "negative scores are empty"),
    ):
        with pytest.raises(ValueError, match=says):
            Separation(positive, negative)


def test_none_is_spread_over_the_classes_whatever_comes_before():
    probs, none = torch.full((2, 5, 3), 0.2), torch.full((2, 5), 0.4)
    torch.testing.assert_close(spread(probs, none), torch.full((2, 5, 3), 1 / 3))


def test_what_is_measured_beside_the_usual_is_added_to_it():
    more = measures_with(metrics=["accuracy"], scores=["energy"])
    assert more.metrics == METRICS
    assert more.scores == {**MEASURED, "energy": SCORES["energy"]}
    assert measures_with() == STANDARD


def test_a_function_becomes_a_metric_under_its_name():
    metric = metric_named("tests.test_metrics:wrong")
    assert metric.title == "tests.test_metrics:wrong"
    assert metric(prediction([[0.7, 0.3]] * 4), torch.tensor([0, 1, 0, 0])) == 0.25


def wrong(made: Prediction, y: torch.Tensor) -> float:
    return 1 - accuracy(made, y)
