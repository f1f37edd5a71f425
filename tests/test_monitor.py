"""The monitor keeps its level however often one looks, finds shifts, and its intervals hold at all times at once."""

import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import gammaln
from scipy.stats import beta, binom

import demur
from demur.classifier.conformal import Calibration
from demur.classifier.decision import Decision, by_answer
from demur.classifier.held_out import hash_rows, was_trained_with
from demur.classifier.readers import Batch, Inputs
from demur.serving import recalibration
from demur.serving.answered import read_answers
from demur.serving.monitor import PATIENCE, Bet, Monitor, Ranks, Urn, cuts_of, rate_interval, reference_of, to_json
from demur.serving.recalibration import recalibrate, usual_repeats
from tests.serving import categories, table

COVERAGE = 0.9


def alarm_of(calibration: np.ndarray, stream: np.ndarray, *, seed: int, by_score: bool = True, level: float = 0.01):
    known = np.sort(calibration)
    reference = reference_of(tuple(known.tolist()) if by_score else (), len(known), COVERAGE)
    monitor = Monitor([reference], 1 - COVERAGE, level, seed=seed)
    monitor.observe(stream.tolist(), (stream > known[reference.accepted - 1]).tolist())
    return monitor.report().alarm


@pytest.mark.parametrize(("count", "by_score", "rounded"), [(30, True, False), (200, True, True), (200, False, False)])
def test_false_alarms_stay_below_the_level_whenever_one_looks(count, by_score, rounded):
    """300 streams of 400 inputs at level 0.1: at most 30 alarms are expected, 45 are three deviations more."""
    rng = np.random.default_rng(count)
    alarms = 0
    for seed in range(300):
        scores = rng.normal(size=count + 400)
        scores = np.round(2 * scores) / 2 if rounded else scores  # many ties
        alarms += alarm_of(scores[:count], scores[count:], seed=seed, by_score=by_score, level=0.1) is not None
    assert alarms <= 45


@pytest.mark.parametrize("before", [0, 3000])
def test_more_abstentions_are_found_soon_even_late_in_a_stream(before):
    rng, delays = np.random.default_rng(1), []
    for seed in range(20):
        calm, far = rng.normal(size=before), rng.random(1000) < 0.3
        shifted = np.where(far, 5.0, rng.normal(size=1000))
        alarm = alarm_of(rng.normal(size=500), np.concatenate([calm, shifted]), seed=seed)
        assert alarm is not None
        assert alarm > before
        delays.append(alarm - before)
    assert np.median(delays) < 60


def test_a_shift_that_changes_no_decision_is_found_by_the_scores():
    rng = np.random.default_rng(2)
    stream = -np.abs(rng.normal(size=2000))  # all accepted, and all below the median
    assert alarm_of(rng.normal(size=500), stream, seed=0) < 200


def test_the_urn_is_the_probability_of_ranks_among_exchangeable_scores():
    """Chain of predictive probabilities = Dirichlet-multinomial of the bins, whatever the order."""
    reference = reference_of((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), 7, 0.75)
    urn = Urn(reference, [2, 6])
    assert urn.ranks == [2, 4, 2]
    logs, places = 0.0, [0, 2, 2, 1, 0, 2]
    for place in places:
        logs += math.log(urn.probability(place))
        urn.seen[place] += 1
    prior, seen = np.array([2, 4, 2]), np.bincount(places, minlength=3)
    expected = gammaln(8) - gammaln(8 + 6) + (gammaln(prior + seen) - gammaln(prior)).sum()
    assert logs == pytest.approx(expected)


def test_the_money_is_a_fair_game():
    """Over all sequences of four inputs, weighted by the urn's probabilities, the mean money stays one."""
    reference = reference_of((1.0, 2.0, 3.0, 4.0), 4, 0.75)
    mean = 0.0
    for code in range(3**4):
        urn = Urn(reference, [2, 4])
        bet, weight = Bet([urn], memory=3), 1.0
        for step in range(4):
            place = code // 3**step % 3
            probability = urn.probability(place)
            bet.step(0, place, probability)
            urn.seen[place] += 1
            weight *= probability
        mean += weight * bet.money
    assert mean == pytest.approx(1)


@pytest.mark.parametrize("scores", [(), (1.0, 2.0, 3.0, 4.0)])
def test_the_evidence_is_a_fair_game(scores):
    """Over all streams of four inputs, weighted by the probabilities of their ranks, its mean stays one."""
    accepted, mean = 3, 0.0
    for ranks in itertools.product(range(5), repeat=4):  # how many of four inliers score below
        monitor = Monitor([reference_of(scores, 4, 0.6)], 0.4)
        monitor.observe([rank + 0.5 for rank in ranks], [rank >= accepted for rank in ranks])
        probability = math.prod((1 + ranks[:place].count(rank)) / (5 + place) for place, rank in enumerate(ranks))
        mean += probability * monitor.report().evidence
    assert mean == pytest.approx(1)


def test_the_interval_holds_the_rate_at_all_times_at_once():
    rng, misses = np.random.default_rng(3), 0
    for _ in range(200):
        counts = np.cumsum(rng.random(300) < 0.2)
        bounds = [rate_interval(int(counts[trials - 1]), trials, 0.1) for trials in range(5, 300, 5)]
        misses += any(not low <= 0.2 <= high for low, high in bounds)
    assert misses <= 20 + 3 * math.sqrt(200 * 0.1 * 0.9)
    assert rate_interval(0, 0, 0.1) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(3, 10), (1, 1), (10, 10), (0, 7), (40, 2000), (1999, 2000)])
@pytest.mark.parametrize("level", [0.01, 0.3])
def test_the_interval_ends_where_the_mixture_is_one_over_the_level_times_as_likely(successes, trials, level):
    rates = (np.arange(100_000) + 0.5) / 100_000
    mixture = (binom.pmf(successes, trials, rates) * beta.pdf(rates, 0.5, 0.5)).mean()
    low, high = rate_interval(successes, trials, level)
    for end, is_edge in ((low, successes > 0), (high, successes < trials)):
        if is_edge:
            assert mixture / binom.pmf(successes, trials, end) == pytest.approx(1 / level, rel=0.01)
    assert (low == 0, high == 1) == (successes == 0, successes == trials)


def test_ranks_count_the_inliers_below_and_break_ties_evenly():
    reference, chance = reference_of((1.0, 2.0, 2.0, 3.0), 4, 0.75), random.Random(0)
    scores = (-math.inf, 0.0, 1.5, 2.5, 9.0, math.inf, None)
    assert [Ranks(reference, chance).rank(score, False) for score in scores] == [0, 0, 1, 3, 4, 4, 4]
    tied = [Ranks(reference, chance).rank(2.0, False) for _ in range(3000)]
    assert np.bincount(tied, minlength=5) == pytest.approx([0, 1000, 1000, 1000, 0], abs=4 * math.sqrt(3000 * 2 / 9))
    rounded = [Ranks(reference, chance).rank(2.000002, False) for _ in range(100)]  # as a csv has six digits
    assert {*rounded} == {1, 2, 3}
    unscored = reference_of((), 100, 0.9)
    assert [Ranks(unscored, chance).rank(0.0, abstained) for abstained in (False, True)] == [0, unscored.accepted]


def test_ranks_of_tied_scores_follow_the_urn():
    """The second falls where the first fell with probability 3/5, not 1/2: an inlier keeps its place among equals."""
    reference, chance = reference_of((1.0,) * 3, 3, 0.5), random.Random(1)
    same = 0
    for _ in range(4000):
        ranks = Ranks(reference, chance)
        first, second = (ranks.rank(1.0, False) >= 2 for _ in range(2))
        same += first == second
    assert same / 4000 == pytest.approx(3 / 5, abs=4 * math.sqrt(0.24 / 4000))


def test_rows_that_are_alike_raise_no_alarm():
    """Their scores differ in the last digits from batch to batch, and a csv has six digits of them."""
    model = demur.Classifier("la+nc", epochs=8, coverage=0.9, validation=0.4, device="cpu").fit(*categories(1500))
    for seed in (1, 2, 3):
        x, _ = categories(400, seed=seed)
        together = model.outlier_score(x)
        apart = np.concatenate([model.outlier_score(x.iloc[[row]]) for row in range(150)])
        for scores in (together, [float(f"{score:.6g}") for score in together], apart):
            monitor = Monitor.of(model)
            monitor.observe(list(map(float, scores)), [False] * len(scores))
            assert monitor.report().alarm is None


def test_classes_with_few_inliers_are_compared_together():
    """Each alone is not like the group that they have in common."""
    rng = np.random.default_rng(5)
    means, names = np.array([0.0, 3.0, -2.0]), ["cat", "dog", "cow"]

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        kind = rng.choice(3, count, p=[0.03, 0.03, 0.94])
        return rng.normal(size=count) + means[kind], kind

    alarms = 0
    for _ in range(40):
        scores, kind = drawn(250)
        calibration = by_answer(scores, kind, 3, 0.95)
        assert np.array_equal(calibration[0], calibration[1])
        model = SimpleNamespace(
            decision_=Decision("entropy", (1.0,) * 3, (None,) * 3, 0.95, 20),
            calibration_=Calibration(tuple(tuple(np.sort(each).tolist()) for each in calibration), ((),) * 3),
            classes_=np.array(names),
        )
        monitor = Monitor.of(model, level=0.1)
        fresh, kind = drawn(1500)
        monitor.observe(fresh.tolist(), [False] * 1500, [names[each] for each in kind])
        alarms += monitor.report().alarm is not None
    assert alarms <= 4 + 3 * math.sqrt(40 * 0.1 * 0.9)


def test_bins_are_even_parts_of_what_is_accepted_and_one_beyond_every_inlier():
    reference = reference_of((), 99, 0.8)
    assert reference.accepted == 80
    assert cuts_of(reference) == [10, 20, 30, 40, 50, 60, 70, 80, 99]


def test_money_is_put_in_little_by_little():
    """On bins that nothing can be won on it stays one, and what is in reserve falls from the first input on."""
    bet = Bet([Urn(reference_of((), 4, 0.75), [])], memory=math.inf)
    for step in range(1, 4):
        bet.step(0, 0, 1.0)
        assert bet.reserve == pytest.approx(1 / (1 + math.log1p(step / PATIENCE)))
        assert bet.money == pytest.approx(1)


def test_each_class_is_compared_with_its_own_calibration():
    low, high = tuple(np.linspace(0, 1, 100)), tuple(np.linspace(10, 11, 100))
    references = [reference_of(group, 100, COVERAGE) for group in (low, high)]
    monitor = Monitor(references, 0.1, places={"cat": 0, "dog": 1})
    rng = np.random.default_rng(4)
    dogs = rng.random(400) < 0.5
    scores = rng.random(400) + 10 * dogs
    monitor.observe(scores.tolist(), [False] * 400, np.where(dogs, "dog", "cat").tolist())
    assert monitor.report().alarm is None
    monitor.observe([10.5] * 50, [True] * 50, ["cat"] * 50)
    assert monitor.report().alarm is not None
    with pytest.raises(ValueError, match="'cow' is none of the model's classes"):
        monitor.observe([1.0], [False], ["cow"])


def test_the_report_is_bounded_and_says_how_far_it_is():
    monitor = Monitor([reference_of((), 100, 0.95)], 0.05)
    before = monitor.report()
    assert before.said == "nothing has arrived yet"
    assert (before.rate, before.recent_rate, before.level, before.evidence) == (None, None, 0.01, 1.0)
    monitor.observe([0.0] * 100, [False] * 100)
    assert [point[0] for point in monitor.report().course] == list(range(1, 101))
    monitor.observe([0.0] * 4900, [False] * 4900)
    report = monitor.report()
    assert len(report.course) < 300
    assert [point[0] for point in report.course] == list(range(32, 5001, 32))  # after five times half were dropped
    assert report.recent_rate == pytest.approx(0, abs=1e-6)
    assert (report.inputs, report.rate) == (5000, 0.0)
    for level in (2, 1, 0, -0.01, math.nan):
        with pytest.raises(ValueError, match=f"level {level} is not between 0 and 1"):
            Monitor([reference_of((), 100, 0.95)], 0.05, level=level)


def test_answers_are_read_as_predict_writes_them(tmp_path: Path):
    file = tmp_path / "answers.csv"
    file.write_text("input,decision,label,probability,outlier_score\n1,a,a,0.9,0.1\n2,unsure,a,0.5,0.7\n3,invalid,,,\n")
    assert list(read_answers(file)) == [([0.1, 0.7], [False, True], ["a", "a"])]
    file.write_text("input,decision,label,probability,outlier_score\n1,a,a,0.9,high\n")
    with pytest.raises(ValueError, match="'high' as an outlier score"):
        list(read_answers(file))
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no column 'decision'"):
        list(read_answers(file))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by_class", [False, True])
def test_a_threshold_is_set_anew_by_what_is_fresh_and_told(by_class):
    model = demur.Classifier("map+nc", by_class=by_class, epochs=3, device="cpu").fit(*table(200))
    x, _ = table(150, seed=5)
    batches, seen = [Batch(["a"] * 75, part) for part in (x[:75], x[75:])], list[int]()
    for wrong in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="is not between 0 and 1"):
            recalibrate(model, Inputs("tables", iter(batches)), wrong, seen.append)
    fresh, found = recalibrate(model, Inputs("tables", iter(batches)), 0.8, seen.append)
    assert seen == [75, 75]
    assert (fresh.decision_.coverage, model.decision_.coverage) == (0.8, 0.95)
    assert len(fresh.decision_.accept) == (2 if by_class else 1)
    accepted = np.mean(~np.isin(model.decide(x), ["unsure", "unknown"]))
    assert found.accepted == pytest.approx(accepted)
    assert found.interval == rate_interval(round(accepted * 150), 150, 0.05)
    assert np.mean(~np.isin(fresh.decide(x), ["unsure", "unknown"])) == pytest.approx(0.8, abs=0.03)
    kept = np.concatenate([np.ravel(scores) for scores in fresh.calibration_.scores])
    np.testing.assert_allclose(np.sort(kept), np.sort(model.outlier_score(x)), rtol=1e-6)
    assert fresh.report_["recalibrated"] == {"inliers": 150, "accepted_before": found.accepted, "coverage_before": 0.95}
    assert model.report_.get("recalibrated") is None
    old = dict(found.lines())["old"]
    limits = sorted(model.decision_.accept)
    said = f"thresholds {limits[0]:.4g} to {limits[-1]:.4g}, by class" if by_class else f"threshold {limits[0]:.4g},"
    assert old.startswith(said)


@pytest.mark.parametrize("make", [table, categories])
def test_inliers_that_were_trained_with_set_no_threshold_in_silence(make, recwarn):
    """Fresh ones do, also where rows are alike."""
    x, y = make(400)
    model = demur.Classifier("map+nc", epochs=3, validation=0.3, device="cpu").fit(x, y)
    for given, told in ((make(300, seed=1)[0], False), (x, make is table)):
        recwarn.clear()
        recalibrate(model, Inputs("tables", iter([Batch(["a"] * len(given), given)])), None, lambda count: None)
        assert any("is such as" in str(each.message) or "are such as" in str(each.message) for each in recwarn) == told


@pytest.mark.parametrize(("repeats", "allowed"), [(0.0, 2), (0.25, 102)])
def test_one_in_a_hundred_is_chance_and_twice_as_many_repeats_as_usual_are_none_to_warn_of(
    repeats, allowed, monkeypatch, recwarn
):
    x, y = table(300)
    model = demur.Classifier("map+nc", epochs=1, device="cpu").fit(x, y)
    was = was_trained_with(hash_rows(model.inputs(x)), model.held_out_hashes_).numpy()
    monkeypatch.setattr(recalibration, "usual_repeats", lambda model: repeats)
    for trained in (allowed, allowed + 1):
        given = pd.concat([x[was][:trained], table(200, seed=1)[0][trained:]])
        recwarn.clear()
        recalibrate(model, Inputs("tables", iter([Batch(["a"] * 200, given)])), None, lambda count: None)
        said = [str(each.message) for each in recwarn if "the model was trained with" in str(each.message)]
        assert [each.partition(" inliers")[0] for each in said] == [f"{trained} of 200"] * (trained > allowed)


def test_repeats_are_usual_as_far_as_the_file_of_the_model_knows():
    """A quarter of what is held out here is like something trained with; older files do not tell."""
    known = {
        "tuning": ["aaaaaaaa11", "bbbbbbbb22"],
        "calibration": ["cccccccc33", "dddddddd44"],
        "outliers": ["e" * 10],
    }

    def repeats(hashes) -> float:
        return usual_repeats(SimpleNamespace(held_out_hashes_=hashes))

    assert repeats(known | {"trained": ["aaaaaaaa", "eeeeeeee", "ffffffff"]}) == 0.25
    assert repeats({"tuning": [], "calibration": [], "outliers": [], "trained": ["aaaaaaaa"]}) == 0.0
    assert repeats(known) == repeats(None) == 0.0


def test_a_report_as_json_has_its_verdict():
    report = Monitor([reference_of((), 100, 0.95)], 0.05).report()
    assert to_json(report)["said"] == report.said
    assert to_json(report)["level"] == report.level
