"""Every number of an evaluation and of a comparison, computed again by scikit-learn or by hand."""

import csv
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from demur.classifier import comparison
from demur.classifier.comparison import rank_models
from demur.classifier.conformal import calibration_of
from demur.classifier.decision import calibrate_decision, class_probs, score_of
from demur.classifier.evaluation import Evaluation, Example, as_csv
from demur.classifier.selective import aurc, aurc_with_outliers, risk_coverage
from demur.metrics import Prediction
from demur.report.comparison import write_comparison
from demur.report.evaluation import write_evaluation
from demur.report.gallery import card

CLASSES = ("cat", "dog", "owl")


def made(rng, count, none):
    every = rng.dirichlet([0.7, 0.7, 0.7, none], count).astype(np.float32)
    return Prediction(torch.from_numpy(every[:, :3]), torch.from_numpy(every[:, 3]), torch.zeros(count))


def evaluation(seed=0, model="a", noise=0.0):
    rng = np.random.default_rng(seed)
    inside, outside, inliers = made(rng, 300, 0.3), made(rng, 120, 3.0), made(rng, 200, 0.3)
    y = torch.from_numpy(np.array([rng.choice(3, p=each) for each in class_probs(inside)]))
    wrong = torch.from_numpy(rng.random(300) < noise)
    y = torch.where(wrong, (y + 1) % 3, y)
    decision = calibrate_decision(inliers, "none_share", 0.8)
    known = calibration_of(inliers, torch.from_numpy(class_probs(inliers).argmax(1)), decision)
    examples = [Example("7", {"a": 1.0, "b": None}, "unsure", "cat", 0.6, 0.4, "dog")]
    return Evaluation(model, CLASSES, decision, inside, y, {"far": outside}, known, examples, {"far": []})


def written(one):
    rows = list(csv.DictReader(as_csv(one).splitlines()))
    return {(row["set"], row["score"], row["metric"]): float(row["value"]) for row in rows}


def test_every_number_is_what_scikit_learn_says():
    one = evaluation()
    found, y, probs = written(one), one.y.numpy(), class_probs(one.inside)
    best, score = probs.argmax(1), score_of(one.inside, "none_share")
    outside = score_of(one.ood["far"], "none_share")
    accepted, unknown = score <= one.decision.accept[0], score > one.decision.unknown[0]
    expected = {
        ("inliers", "", "accuracy"): accuracy_score(y, best),
        ("inliers", "", "nll"): log_loss(y, probs),
        ("inliers", "", "brier"): brier_score_loss(y, probs),
        ("inliers", "", "accuracy_of_accepted"): accuracy_score(y[accepted], best[accepted]),
        ("inliers", "", "accepted"): accepted.mean(),
        ("inliers", "", "unknown"): unknown.mean(),
        ("inliers", "", "aurc"): by_hand(score, best != y),
        ("inliers", "", "aurc_by_confidence"): by_hand(-probs.max(1), best != y),
        ("far", "", "aurc_with_outliers"): aurc_with_outliers(score, best != y, outside),
        ("far", "", "accepted"): (outside <= one.decision.accept[0]).mean(),
    }
    matrix = confusion_matrix(y[accepted], best[accepted], labels=[0, 1, 2])
    recall = recall_score(y, best, average=None)
    of_accepted = recall_score(y[accepted], best[accepted], average=None)
    precision = precision_score(y[accepted], best[accepted], average=None)
    for code, name in enumerate(CLASSES):
        expected |= {(f"class {name}", "", f"answered {CLASSES[to]}"): matrix[code, to] for to in range(3)}
        expected |= {
            (f"class {name}", "", "answered unsure"): ((y == code) & ~accepted & ~unknown).sum(),
            (f"class {name}", "", "count"): (y == code).sum(),
            (f"class {name}", "", "accuracy"): recall[code],
            (f"class {name}", "", "accepted"): accepted[y == code].mean(),
            (f"class {name}", "", "accuracy_of_accepted"): of_accepted[code],
            (f"class {name}", "", "precision_of_accepted"): precision[code],
            ("far", "", f"answered {name}"): (
                (class_probs(one.ood["far"]).argmax(1) == code) & (outside <= one.decision.accept[0])
            ).sum(),
        }
    truth, both = np.repeat([1, 0], [300, 120]), -np.concatenate([score, outside])
    false, true, _ = roc_curve(truth, both, drop_intermediate=False)
    expected |= {
        ("far", "none_share", "auroc"): roc_auc_score(truth, both),
        ("far", "none_share", "aupr"): average_precision_score(truth, both),
        ("far", "none_share", "fpr95"): false[np.searchsorted(true, 0.95)],
    }
    for place, value in expected.items():
        assert found[place] == pytest.approx(value, abs=1e-6), place
    for name, chosen in (("ece", np.ones(300, bool)), ("ece_of_accepted", accepted)):
        sure, right = probs.max(1)[chosen], (best == y)[chosen]
        bins = np.ceil(15 * sure) - 1
        gaps = [abs((sure - right)[bins == place].sum()) for place in range(15)]
        assert found["inliers", "", name] == pytest.approx(sum(gaps) / chosen.sum())


def by_hand(scores, wrong):
    order = np.argsort(scores)
    return np.mean([1 - accuracy_score(np.zeros(k), wrong[order][:k]) for k in range(1, len(scores) + 1)])


def test_risk_and_coverage_in_small_cases():
    coverage, risk = risk_coverage(np.array([3.0, 1.0, 2.0, 4.0]), np.array([True, False, False, True]))
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(risk, [0, 0, 1 / 3, 1 / 2])
    tied = aurc(np.zeros(4), np.array([True, False, False, False]))  # any order: a quarter is wrong all along
    assert tied == pytest.approx(0.25)
    rng = np.random.default_rng(0)
    scores, wrong, outside = rng.normal(size=200), rng.random(200) < 0.2, rng.normal(size=200) + 1
    both = aurc(np.concatenate([scores, outside]), np.concatenate([wrong, np.ones(200, bool)]))
    assert aurc_with_outliers(scores, wrong, outside) == pytest.approx(both)
    assert aurc_with_outliers(scores, wrong, np.repeat(outside, 5)) == pytest.approx(both, abs=0.02)


def test_inputs_of_equal_score_are_answered_in_any_order():
    """A model that is certain of all outliers is not worse than one that ranks them."""
    rng = np.random.default_rng(0)
    scores, wrong, outside = rng.random(60).round(1), rng.random(60) < 0.2, rng.choice([0.8, 1.0], 25)
    in_some_order = [
        aurc_with_outliers(scores + 1e-6 * rng.random(60), wrong, outside + 1e-6 * rng.random(25)) for _ in range(400)
    ]
    error = np.std(in_some_order) / 20
    assert aurc_with_outliers(scores, wrong, outside) == pytest.approx(np.mean(in_some_order), abs=4 * error)
    right, far = np.zeros(60, bool), np.linspace(1.1, 2, 60)
    assert aurc_with_outliers(scores, right, np.ones(60) + 1) == pytest.approx(aurc_with_outliers(scores, right, far))


def test_models_are_ranked_and_the_order_has_an_interval():
    good, bad = evaluation(model="good"), evaluation(model="bad", noise=0.5)
    places = rank_models([bad, good])
    assert [place.evaluation.model for place in places] == ["good", "bad"]
    score = score_of(good.inside, "none_share")
    assert places[0].risk == pytest.approx(
        aurc_with_outliers(score, ~good.right, score_of(good.ood["far"], "none_share"))
    )
    low, high = places[1].more
    assert 0 < low < places[1].risk - places[0].risk < high
    again = rank_models([good, evaluation(model="same")])[1].more
    assert again == (0, 0)
    without = Evaluation("without", CLASSES, good.decision, good.inside, good.y, {})
    with pytest.raises(ValueError, match="not evaluated on the same inputs"):
        rank_models([good, without])
    lines = comparison.as_csv(places).splitlines()
    assert lines[0] == "model,set,score,metric,value"
    assert len(lines) == 1 + 2 * len(written(good))


def test_pages_hold_the_numbers_and_the_inputs(tmp_path):
    one = evaluation()
    write_evaluation(one, tmp_path / "one")
    page = (tmp_path / "one" / "index.html").read_text("utf-8")
    cells = set(re.findall(r"<t[dh][^>]*>(?:<strong>|<span>)?([^<]+)", page))
    found = written(one)
    for value in ("accuracy", "accuracy_of_accepted", "ece_of_accepted", "aurc"):
        assert f"{100 * found['inliers', '', value]:.1f}" in cells
    assert f"{found['class cat', '', 'answered cat']:.0f}" in cells
    assert f"{100 * one.sets['coverage']:.1f}" in cells
    for term in ("FPR95 is the fraction", "AUROC is the probability", "AURC is the mean error rate", "(missing)"):
        assert term in page
    write_comparison(rank_models([one, evaluation(model="b", noise=0.3)]), "data.csv", tmp_path / "two")
    page = (tmp_path / "two" / "index.html").read_text("utf-8")
    assert "2 models on data.csv" in page
    assert (tmp_path / "two" / "comparison.csv").exists()


def test_an_example_is_shown_as_what_it_is():
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert card(Example("a.png", pixels, "cat", "cat", 0.9, 0.1)).image
    assert card(Example("1", np.zeros((3, 4, 4), np.float32), "cat", "cat", 0.9, 0.1)).image
    shown = card(Example("3", "word " * 100, "unknown", "cat", 0.9, 0.1, "dog"))
    assert shown.text.endswith("…")
    assert shown.caption == "unknown; best guess cat 90 %; is dog; score 0.1"
