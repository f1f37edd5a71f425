"""What is promised of p-values, of screening and of prediction sets holds, by simulation and in exact small cases."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control
from sklearn.datasets import load_wine

import demur
from demur.classifier import conformal
from demur.classifier import decision as decisions
from demur.classifier.conformal import Calibration, benjamini_hochberg, calibration_of, conformal_p, measure_sets
from demur.classifier.decision import calibrate_decision, score_of
from demur.metrics import Prediction
from tests.serving import categories

REPETITIONS = 200
OLD = Path(__file__).parent / "data" / "model-1.0-map.demur"


def predictions(rng, count, shift=0.0, classes=3):
    """Inliers whose labels follow their own probabilities, as far as `shift` is 0; and the labels."""
    probs = rng.dirichlet(np.full(classes, 0.6), count)
    y = np.array([rng.choice(classes, p=each) for each in probs])
    none = 1 / (1 + np.exp(-(rng.normal(size=count) + shift)))
    made = torch.from_numpy(np.column_stack([probs * (1 - none[:, None]), none]))
    return Prediction(made[:, :classes], made[:, classes], torch.zeros(count)), torch.from_numpy(y)


def calibration(rng, count, coverage=0.9, by_class=False):
    prediction, y = predictions(rng, count)
    decision = calibrate_decision(prediction, "none_share", coverage, by_class)
    return calibration_of(prediction, y, decision), decision


def test_a_p_value_is_its_rank_and_ties_count_against_the_input():
    known = np.array([1.0, 2.0, 2.0, 3.0])
    values = np.array([0.0, 1.0, 2.0, 2.5, 3.0, 4.0, np.nan])
    np.testing.assert_allclose(conformal_p(known, values), np.array([5, 5, 4, 2, 2, 1, 1]) / 5)


def test_p_values_of_inliers_are_uniform_or_larger():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(REPETITIONS):
        made, decision = calibration(rng, 50)
        found.append(made.p_values(predictions(rng, 50)[0], decision))
    for level in (0.02, 0.1, 0.5, 0.9):  # exactly floor(level * 51) / 51, for scores have no ties
        exact = np.floor(level * 51 + 1e-9) / 51
        below = np.mean(np.array(found) <= level + 1e-12, 1)
        assert abs(below.mean() - exact) < 4 * below.std() / np.sqrt(REPETITIONS) + 1e-9


@pytest.mark.parametrize("by_class", [False, True])
def test_an_input_is_accepted_exactly_where_its_p_value_is_large_enough(by_class):
    rng = np.random.default_rng(1)
    for count, coverage in ((200, 0.9), (319, 0.8), (173, 0.5)):
        made, decision = calibration(rng, count, coverage, by_class)
        fresh, _ = predictions(rng, 500, shift=1)
        np.testing.assert_array_equal(decision.accepts(fresh), made.p_values(fresh, decision) > 1 - coverage + 1e-9)


def test_rows_that_are_alike_are_accepted_as_often_as_promised_in_batches_of_any_size():
    """Their scores differ in the last digits, on either side of the limit, and each is that of many rows."""
    model = demur.Classifier("la+nc", epochs=8, validation=0.4, device="cpu").fit(*categories(1500))
    x, _ = categories(500, seed=2)
    together, held_out = model.prediction(x), model.prediction(categories(300, seed=1)[0])
    apart = [model.prediction(x.iloc[[row]]) for row in range(200)]
    for coverage in (0.5, 0.8, 0.85, 0.9, 0.95, 0.97):
        decision = calibrate_decision(held_out, model.decision_.score, coverage)
        calibration = Calibration(conformal.calibration_scores(held_out, decision), ((),))
        accepted = decision.accepts(together)
        assert accepted.mean() >= coverage - 4 * np.sqrt(coverage * (1 - coverage) * (1 / 300 + 1 / 500))
        assert np.array_equal([decision.accepts(each)[0] for each in apart], accepted[:200])
        p_values = np.concatenate([calibration.p_values(each, decision) for each in apart])
        np.testing.assert_array_equal(p_values, calibration.p_values(together, decision)[:200])
        np.testing.assert_array_equal(p_values > 1 - coverage + 1e-9, accepted[:200])


def test_screening_is_the_procedure_of_benjamini_and_hochberg():
    rng = np.random.default_rng(2)
    for count in (1, 2, 10, 300):
        p = rng.beta(0.5, 2, count)
        for fdr in (0.05, 0.1, 0.5):
            np.testing.assert_array_equal(benjamini_hochberg(p, fdr), false_discovery_control(p) <= fdr)
    assert not benjamini_hochberg(np.array([]), 0.1).size
    edge = np.array([0.1, 0.2, 0.3, 1.0])  # the third is 3 / 4 of 0.4, but for rounding
    assert benjamini_hochberg(edge, 0.4).tolist() == [True, True, True, False]
    assert not benjamini_hochberg(edge, 0.39).any()
    for fdr in (1.5, 1.0, 0.0, -0.5):
        with pytest.raises(ValueError, match=rf"fdr {fdr} is not a number between 0 and 1"):
            benjamini_hochberg(p, fdr)


def test_of_what_is_called_an_outlier_few_are_inliers():
    rng = np.random.default_rng(3)
    wrong, found = [], []
    for _ in range(REPETITIONS):
        made, decision = calibration(rng, 300)
        both = [made.p_values(predictions(rng, n, shift)[0], decision) for n, shift in ((160, 0), (40, 6))]
        called = benjamini_hochberg(np.concatenate(both), 0.2)
        wrong.append(called[:160].sum() / max(1, called.sum()))
        found.append(called[160:].mean())
    assert np.mean(wrong) < 0.2 * 160 / 200 + 3 * np.std(wrong) / np.sqrt(REPETITIONS)
    assert np.mean(found) > 0.8  # so that something was screened at all


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("level", [0.6, 0.9])
def test_prediction_sets_hold_the_label_as_often_as_promised(level, by_class):
    rng = np.random.default_rng(4)
    holds: list[list[float]] = [[], [], [], []]
    sizes = []
    for _ in range(REPETITIONS):
        made, _ = calibration(rng, 90)
        fresh, y = predictions(rng, 90)
        sets = made.label_sets(fresh, level, by_class)
        own = sets[np.arange(90), y]
        holds[3].append(own.mean())
        sizes.append(sets.sum(1).mean())
        for code in range(3):
            holds[code].append(own[y.numpy() == code].mean())
    for each in holds if by_class else holds[3:]:
        assert np.mean(each) > level - 3 * np.std(each) / np.sqrt(REPETITIONS)
    assert np.mean(holds[3]) < level + (0.06 if by_class else 0.03)  # and not much more often: 1 / (n + 1) at most
    assert level < np.mean(sizes) < 2.5  # below one at low levels: a set may be empty


@pytest.mark.parametrize("by_class", [False, True])
def test_what_calibrates_is_grouped_by_label_and_cut_where_there_is_much_of_it(by_class, monkeypatch):
    rng = np.random.default_rng(5)
    prediction, y = predictions(rng, 60)
    decision = calibrate_decision(prediction, "none_share", 0.5, by_class)
    probs, given = conformal.class_probs(prediction), conformal.score_of(prediction, "none_share")
    for most in (60, 20):
        for module in (conformal, decisions):
            monkeypatch.setattr(module, "MOST", most)
        made = calibration_of(prediction, y, decision)
        errors = [[1 - probs[i, y[i]] for i in range(most) if y[i] == code] for code in range(3)]
        answered = [[given[i] for i in range(60) if not by_class or probs[i].argmax() == code] for code in range(3)]
        drawn = [np.random.default_rng(0).permutation(len(group))[:most] for group in answered]
        answered = [[group[i] for i in rows] for group, rows in zip(answered, drawn, strict=True)]
        assert [list(each) for each in made.errors] == [sorted(each) for each in errors]
        assert [list(each) for each in made.scores] == [sorted(each) for each in answered[: 3 if by_class else 1]]


def test_how_often_sets_hold_the_label_is_told_by_class():
    """The label of a confident answer is in its set; a class that is not there is not told of."""
    made = Calibration(((0.1,),), ((0.05, *(9 * [0.1])), (0.15, *(9 * [0.2])), (0.3,)))
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.45, 0.4, 0.15], [0.15, 0.85, 0.0]], dtype=torch.float64)
    found = measure_sets(
        made, np.array(["a", "b", "c"]), Prediction(probs, None, torch.zeros(3)), torch.tensor([0, 0, 1])
    )
    assert found == {
        "level": 0.9,
        "coverage": pytest.approx(2 / 3),
        "coverage_by_class": {"a": 0.5, "b": 1.0},
        "labels": pytest.approx(2 / 3),
        "labels_by_class": {"a": 0.5, "b": 1.0},
    }


def test_a_class_that_calibrated_nothing_is_in_every_set():
    made = Calibration(((0.1, 0.2),), ((0.1, 0.2, 0.3), ()))
    prediction = Prediction(torch.tensor([[1.0, 0.0]]), None, torch.zeros(1))
    assert made.label_sets(prediction, 0.5, by_class=True).tolist() == [[True, True]]
    with pytest.raises(ValueError, match="level 1 is not a number between 0 and 1"):
        made.label_sets(prediction, 1)


@pytest.fixture(scope="module")
def model():
    x, y = load_wine(return_X_y=True)
    return demur.Classifier("map+nc", epochs=60, device="cpu").fit(x, y)


def test_a_model_keeps_its_promises_when_it_is_saved(model, tmp_path):
    x, y = load_wine(return_X_y=True)
    p = model.p_value(x)
    np.testing.assert_array_equal(model.predict_all(x).p_value, p)
    accepted = ~np.isin(model.decide(x).astype(str), ["unsure", "unknown"])
    np.testing.assert_array_equal(accepted, p > 0.05 + 1e-9)
    sets = model.prediction_sets(x, 0.9)
    assert all(set(each) <= {0, 1, 2} for each in sets)
    assert np.mean([of in each for of, each in zip(y, sets, strict=True)]) > 0.85
    assert model.screen(x * 5, fdr=0.1).all()
    assert set(model.report_["prediction_sets"]) == {
        "level",
        "coverage",
        "coverage_by_class",
        "labels",
        "labels_by_class",
    }
    model.save(tmp_path / "model.demur")
    again = demur.load_model(tmp_path / "model.demur")
    np.testing.assert_array_equal(again.p_value(x), p)
    assert [each.tolist() for each in again.prediction_sets(x, 0.6, by_class=True)] == [
        each.tolist() for each in model.prediction_sets(x, 0.6, by_class=True)
    ]


def test_a_model_from_before_says_so():
    old = demur.load_model(OLD)
    x = np.zeros((1, old.n_features_in_))
    assert old.predict_all(x).p_value is None
    with pytest.raises(ValueError, match="saved without calibration scores"):
        old.p_value(x)


@pytest.mark.parametrize("change", [{"scores": [[2.0, 1.0]]}, {"errors": [[0.1]]}, {"scores": [["a"]]}, {"scores": 1}])
def test_scores_that_were_tampered_with_are_refused(model, tmp_path, change):
    from tests.test_model_file import rewritten

    model.save(tmp_path / "model")
    rewritten(tmp_path / "model", lambda saved: saved["calibration"].update(change))
    json.loads((tmp_path / "model" / "model.json").read_text())
    with pytest.raises(ValueError, match="save it anew"):
        demur.load_model(tmp_path / "model")


@pytest.mark.parametrize("by_class", [False, True])
def test_more_inliers_than_are_kept_neither_contradict_the_limits_nor_depend_on_their_order(by_class):
    """Sorted, as a file may be, by class and score: fresh ones still have uniform p-values."""
    generator = torch.Generator().manual_seed(1)
    probs = torch.softmax(2 * torch.randn(48_000, 3, generator=generator), 1)
    inside, fresh = (Prediction(part, None, torch.zeros(len(part))) for part in probs.split([24_000, 24_000]))
    order = np.lexsort([score_of(inside, "entropy"), inside.probs.argmax(1).numpy()])
    given = Prediction(inside.probs[order], None, torch.zeros(24_000))
    decision = calibrate_decision(given, "entropy", 0.9, by_class)
    calibration = calibration_of(given, given.probs.argmax(1), decision)
    p_values = calibration.p_values(fresh, decision)
    np.testing.assert_array_equal(p_values > 1 - 0.9 + 1e-12, decision.accepts(fresh))
    for level in (0.05, 0.2, 0.5):
        assert abs((p_values <= level).mean() - level) < 0.015
    assert all(len(group) <= 10_000 for group in calibration.scores)


@pytest.mark.parametrize("level", [-0.5, 0, 1, 1.5])
def test_a_level_that_is_no_probability_is_refused(level):
    prediction = Prediction(torch.full((3, 2), 0.5), None, torch.zeros(3))
    with pytest.raises(ValueError, match=r"is not a number between 0 and 1; it is a probability, as 0\.9"):
        Calibration(((0.1,),), ((0.1,), (0.2,))).label_sets(prediction, level, False)
