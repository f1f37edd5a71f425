"""Label, "unsure" and "unknown": promises kept, and answers that do not contradict each other."""

import math

import numpy as np
import pytest
import torch

from demur.classifier.conformal import calibration_of
from demur.classifier.decision import (
    Decision,
    calibrate_decision,
    class_probs,
    conformal_quantile,
    default_score,
    least_count,
    post_hoc,
    score_of,
    turning_point,
)
from demur.likelihoods import none_class, plain
from demur.metrics import Prediction

CLASSES = np.array(["a", "b"])


def predictions(none: list[float], best: list[float]) -> Prediction:
    none_, best_ = torch.tensor(none), torch.tensor(best)
    probs = torch.stack([best_, 1 - none_ - best_], 1)
    return Prediction(probs, none_, torch.zeros(len(none_)))


def scored(scores) -> Prediction:
    """Inputs whose none_share is these."""
    none = torch.as_tensor(scores, dtype=torch.float32)
    return Prediction(torch.stack([1 - none, 0 * none], 1), none, 0 * none)


@pytest.mark.parametrize(("coverage", "count"), [(0.9, 30), (0.5, 9), (0.95, 19), (1e-11, 20)])
def test_fresh_inliers_are_accepted_as_often_as_promised(coverage, count):
    generator = torch.Generator().manual_seed(0)
    accepted = []
    for _ in range(2000):
        none = torch.rand(count + 20, generator=generator)
        accepted.append(
            calibrate_decision(scored(none[:count]), "none_share", coverage).accepts(scored(none[count:])).mean()
        )
    # without ties the probability is k / (n + 1), k = ceil((n + 1) coverage)
    exact = max(1, math.ceil(round((count + 1) * coverage, 9))) / (count + 1)
    assert np.mean(accepted) == pytest.approx(exact, abs=4 * np.std(accepted) / np.sqrt(len(accepted)))
    assert coverage <= exact


def test_a_quantile_that_needs_more_than_there_are():
    scores = np.arange(1.0, 20.0)
    assert conformal_quantile(scores, 0.95) == 19
    assert conformal_quantile(scores, 0.951) is None
    assert conformal_quantile(scores, 0.05) == 1
    assert conformal_quantile(scores, 0.051) == 2
    assert conformal_quantile(scores, 1e-11) == 1


@pytest.mark.parametrize(("coverage", "accepted"), [(0.5, 10), (0.9, 18), (0.95, 19), (0.05, 1)])
def test_of_those_that_calibrate_the_stated_number_is_accepted(coverage, accepted):
    """The limit is one of their scores, and accepted itself."""
    inliers = scored(np.linspace(0.1, 0.4, 19))
    assert calibrate_decision(inliers, "none_share", coverage).accepts(inliers).sum() == accepted


def test_where_they_are_too_few_the_largest_score_is_the_limit():
    scores = np.linspace(0.1, 0.4, 18)
    with pytest.warns(UserWarning, match="needs 19 inliers"):
        decision = calibrate_decision(scored(np.random.default_rng(0).permutation(scores)), "none_share", 0.95)
    assert decision.accept == (pytest.approx(0.4, rel=2e-5),)


def test_a_limit_at_the_turning_point_leaves_room_for_doubt():
    decision = calibrate_decision(scored([0.5] * 99), "none_share", 0.95)
    assert decision.accept == (pytest.approx(0.5, rel=2e-5),)
    decision = calibrate_decision(scored([0.1] * 94 + [0.5, 0.6, 0.7, 0.8, 0.9]), "none_share", 0.95)
    assert (*decision.accept, *decision.unknown) == pytest.approx((0.5, 0.9), rel=2e-5)


@pytest.mark.parametrize("value", [1e-6, 0.3, 1.0])
def test_equal_inputs_are_accepted_alike_however_their_score_is_rounded(value):
    """A table of a few categories has many equal rows, and float32 adds in another order in another batch."""
    low, high = np.nextafter(np.float32(value), np.float32([0, 2]))
    calibrating = scored([0.0] * 10 + [low] * 20 + [value] * 70)
    decision = calibrate_decision(calibrating, "none_share", 0.9)
    fresh = scored([low, value, high])
    assert decision.accepts(fresh).all()
    calibration = calibration_of(calibrating, torch.zeros(100, dtype=torch.long), decision)
    np.testing.assert_array_equal(calibration.p_values(fresh, decision), 91 / 101)
    assert calibration.label_sets(fresh, 0.9)[:, 0].all()


def test_a_sure_answer_is_accepted_though_its_probability_is_rounded_twice():
    """By half a unit in float32's last place each; its entropy is nothing, of which any part is nothing, too."""

    def sure(best: float) -> Prediction:
        return Prediction(torch.tensor([[best, 0.0]] * 20), None, torch.zeros(20))

    decision = calibrate_decision(sure(1.0), "entropy", 0.9)
    assert decision.accepts(sure(1 - 2**-23)).all()
    assert not decision.accepts(sure(1 - 2**-20)).any()


def test_scores_are_those_that_were_measured_to_be_best():
    assert (default_score(none_class(3)), default_score(plain(3))) == ("none_share", "entropy")


def test_too_few_to_calibrate_with_are_told():
    assert least_count(0.95) == 19
    some = predictions([0.1] * 18, [0.8] * 18)
    with pytest.warns(UserWarning, match="needs 19 inliers"):
        assert calibrate_decision(some, "none", 0.95).guaranteed == pytest.approx(18 / 19)
    assert calibrate_decision(predictions([0.1] * 19, [0.8] * 19), "none", 0.95).guaranteed == 0.95


def test_what_is_abstained_on_is_unknown_where_none_is_more_probable_than_the_best_class():
    made = predictions([0.01, 0.3, 0.6, float("nan")], [0.9, 0.4, 0.3, 0.5])
    np.testing.assert_allclose(score_of(made, "none_share")[:3], [0.01 / 0.91, 0.3 / 0.7, 0.6 / 0.9], rtol=1e-6)
    decision = calibrate_decision(scored(np.linspace(0, 0.2, 99)), "none_share", 0.95)
    assert decision.unknown == (0.5,)
    assert decision.answers(made, CLASSES).tolist() == ["a", "unsure", "unknown", "unknown"]

    without = Prediction(
        torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.3, 0.3, 0.2, 0.2], [0.9, 0.1, 0.0, 0.0]]), None, torch.zeros(3)
    )
    assert turning_point("entropy", 4) == pytest.approx(math.log(2))
    decision = Decision("entropy", (0.4,), (turning_point("entropy", 4) + 1e-6,), 0.95, 99)
    # one of two is unsure, any of four is unknown
    assert decision.answers(without, np.array([*"abcd"])).tolist() == ["unsure", "unknown", "a"]
    with pytest.raises(ValueError, match="needs a none class"):
        score_of(without, "none")


def test_both_scores_of_none_turn_where_none_takes_half():
    """Of the mass that the best class and none share, and of all."""
    made = predictions([0.4, 0.5], [0.4, 0.3])
    assert score_of(made, "none_share")[0] == pytest.approx(turning_point("none_share", 2))
    assert score_of(made, "none")[1] == pytest.approx(turning_point("none", 2))


def test_a_score_of_ones_own_is_imported_only_where_asked():
    """A name may come from a model file, and a file runs no code."""
    made = predictions([0.1], [0.7])
    with pytest.raises(ValueError, match=r"unknown score 'tests\.test_decision:halves'"):
        score_of(made, "tests.test_decision:halves")
    assert score_of(made, "tests.test_decision:halves", own=True) == [0.5]


def halves(prediction: Prediction) -> np.ndarray:
    return np.full(len(prediction.probs), 0.5)


@pytest.mark.parametrize("hardest", [0.2, 0.49, 0.51, 0.85, 0.99])
@pytest.mark.parametrize("count", [19, 99, 400])
def test_answers_go_from_label_to_unsure_to_unknown_whatever_the_threshold(hardest, count):
    """An inlier may well be called "none" by the network: then that word alone does not make an input unknown."""
    inliers = scored(np.linspace(0, hardest, count))
    decision = calibrate_decision(inliers, "none_share", 0.95)
    answers = decision.answers(scored(np.linspace(0, 1, 2001)), CLASSES)
    order = {"a": 0, "unsure": 1, "unknown": 2}
    levels = np.array([order[answer] for answer in answers])
    assert (np.diff(levels) >= 0).all()  # the higher the score, the less is said
    assert {"a", "unsure", "unknown"} == set(answers)
    called = decision.calls_unknown(inliers).mean()
    if decision.accept[0] < 0.5:
        assert decision.unknown == (0.5,)
        assert called <= 0.05
    elif count < 99:  # too few to say how rare such a score is
        assert decision.unknown[0] == pytest.approx((decision.accept[0] + 1) / 2)
    else:
        assert 0.5 < decision.accept[0] < decision.unknown[0] <= hardest * (1 + 2e-5)
        assert called <= 0.01  # a fifth of those that are abstained on


@pytest.mark.parametrize("limits", [((0.2,), (0.6,)), ((0.2,), (None,)), ((0.1, 0.5), (0.4, None))])
def test_the_thresholds_of_an_input_are_those_it_is_answered_by(limits):
    rng = np.random.default_rng(0)
    none = rng.uniform(size=200)
    prediction = predictions(none.tolist(), (rng.uniform(size=200) * (1 - none)).tolist())
    decision = Decision("none_share", *limits, coverage=0.9, count=20)
    accept, unknown = decision.thresholds(prediction)
    score = score_of(prediction, "none_share")
    answers = decision.answers(prediction, CLASSES)
    np.testing.assert_array_equal(np.isin(answers, CLASSES), score <= accept)
    np.testing.assert_array_equal(answers == "unknown", score > unknown)
    assert np.isinf(unknown).any() == (None in limits[1])


def test_every_class_keeps_its_promise_where_asked():
    """Of inputs that would be called b many have high scores; one threshold for all abstains on these alone."""
    generator = torch.Generator().manual_seed(0)

    def inliers(count: int) -> tuple[Prediction, np.ndarray]:
        is_b = torch.rand(count, generator=generator) < 0.3
        none = 0.3 * torch.rand(count, generator=generator) + 0.3 * is_b
        best = (1 - none).unsqueeze(1) * torch.stack([~is_b, is_b], 1)
        return Prediction(best, none, 0 * none), is_b.numpy()

    pooled, single = [], []
    for _ in range(300):
        held_out, (fresh, is_b) = inliers(200)[0], inliers(400)
        for by_class, found in ((False, pooled), (True, single)):
            accepted = calibrate_decision(held_out, "none_share", 0.9, by_class).accepts(fresh)
            found.append((accepted[~is_b].mean(), accepted[is_b].mean()))
    assert np.mean(pooled, 0)[0] == 1
    assert np.mean(pooled, 0)[1] < 0.75
    errors = np.std(single, 0) / np.sqrt(len(single))
    assert (np.mean(single, 0) > 0.9 - 3 * errors).all()
    assert (np.mean(single, 0) < 0.9 + 1 / 40 + 3 * errors).all()


@pytest.mark.filterwarnings("ignore:.* of 3 classes are answered")
def test_classes_with_few_answers_keep_the_promise_together():
    """Two rare classes are hard. The limit of all, which leans on the easy class, would keep half of their inputs."""
    generator, found, guaranteed = torch.Generator().manual_seed(0), [], []

    def inliers(count: int) -> tuple[Prediction, np.ndarray]:
        code = torch.multinomial(torch.tensor([0.88, 0.06, 0.06]), count, True, generator=generator)
        none = 0.2 * torch.rand(count, generator=generator) + 0.25 * (code > 0)
        return Prediction((1 - none).unsqueeze(1) * torch.eye(3)[code], none, 0 * none), (code > 0).numpy()

    for _ in range(300):
        held_out, (fresh, rare) = inliers(220)[0], inliers(400)
        decision = calibrate_decision(held_out, "none_share", 0.95, by_class=True)
        accepted = decision.accepts(fresh)
        found.append((accepted.mean(), accepted[rare].mean()))
        guaranteed.append(decision.guaranteed)
        assert min(decision.accept[1:]) > decision.accept[0]
    errors = np.std(found, 0) / np.sqrt(len(found))
    assert (np.mean(found, 0) > np.mean(guaranteed) - 3 * errors).all()
    assert 0.8 < min(guaranteed) < np.mean(guaranteed) <= max(guaranteed) == 0.95


def test_few_answers_are_told():
    with pytest.warns(
        UserWarning, match=r"1 of 2 classes are answered for fewer than 9 .* coverage=0\.9 needs.* from 0 inl"
    ):
        decision = calibrate_decision(scored(np.linspace(0, 0.2, 50)), "none_share", 0.9, by_class=True)
    assert decision.accept[0] == decision.accept[1]


def test_class_probabilities_are_given_a_class():
    probs = torch.tensor([[0.2, 0.1], [0.0, 0.0], [0.3, 0.0]])
    made = Prediction(probs, 1 - probs.sum(1), torch.zeros(3))
    np.testing.assert_allclose(class_probs(made), [[2 / 3, 1 / 3], [0.5, 0.5], [1, 0]], rtol=1e-6)


def test_limits_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match=r"limit of the unknown, 0\.1, lies below"):
        Decision("none_share", (0.2,), (0.1,), 0.95, 99)
    with pytest.raises(ValueError, match="must be as many"):
        Decision("none_share", (0.2, 0.3), (0.5,), 0.95, 99)


def test_an_input_exactly_at_a_limit_is_on_its_lower_side():
    answers = Decision("none", (0.25,), (0.75,), 0.95, 99).answers(scored([0.25, 0.5, 0.75, 0.875]), CLASSES)
    assert answers.tolist() == ["a", "unsure", "unsure", "unknown"]


def test_scores_that_learn_are_told_from_those_that_can_be_computed_with_any_model():
    assert post_hoc("energy").name == "energy"
    with pytest.raises(ValueError, match="'knn' learns from training inputs"):
        post_hoc("knn")


def test_too_few_inliers_to_call_anything_unknown_are_told_of_with_how_many_it_takes():
    by_logit = Prediction(
        torch.full((40, 2), 0.5), None, torch.zeros(40), scores={"max_logit": np.arange(40, dtype=float)}
    )
    with pytest.warns(
        UserWarning, match=r"^nothing will be 'unknown'.* 49 inliers are needed to set one; there are 40$"
    ):
        decision = calibrate_decision(by_logit, "max_logit", 0.9)
    assert decision.unknown == (None,)
