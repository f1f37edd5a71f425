"""The estimator keeps scikit-learn's contract and its own: decisions, thresholds, kinds of data, own networks."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import demur
from demur.classifier.held_out import split_outliers, split_rows
from demur.outliers.spectrum import Matched, mean_power
from demur.outliers.synthetic import widened_box
from demur.outliers.values import synthetic
from demur.training_data import Fixed

FAST = demur.Classifier(method="map+nc", epochs=12, batch_size=16, lr=5e-3, device="cpu")
few_to_calibrate = pytest.mark.filterwarnings("ignore:coverage=.* needs")


@few_to_calibrate
@parametrize_with_checks([FAST])  # no exceptions; the one that skips itself needs a package for other array types
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of two wines, their names, and rows of a third."""
    x, y = load_wine(return_X_y=True)
    return x[y < 2], np.array(["barolo", "grignolino"])[y[y < 2]], x[y == 2]


@pytest.fixture(scope="module")
def fitted(wine) -> demur.Classifier:
    return demur.Classifier("map+nc", epochs=60, device="cpu").fit(wine[0], wine[1])


def test_scikit_learn_tools_take_it(wine):
    x, y, outliers = wine
    scores = cross_val_score(make_pipeline(MinMaxScaler(), FAST), x, y, cv=2)
    assert scores.mean() > 0.9
    search = GridSearchCV(
        replace_parameters(FAST, epochs=2), {"method": ["map", "map+oe"]}, cv=2, error_score="raise"
    ).fit(x, y)
    assert set(search.cv_results_["param_method"]) == {"map", "map+oe"}
    with pytest.raises(ValueError, match="does not train with them"):
        demur.Classifier("la").fit(x, y, outliers)


def test_synthetic_outliers_stand_beside_those_given(wine):
    """The third wine is not what the box around the others is made of: only shown both, it is sure of both."""
    x, y, third = wine
    box = widened_box(torch.from_numpy(x), torch.Generator().manual_seed(0)).numpy()
    model = demur.Classifier("map+nc", epochs=60, device="cpu")
    told, both = (clone(model).set_params(synthetic=name).fit(x, y, third) for name in (None, "box"))
    assert told.report_["outliers"] == "48 given"
    assert both.report_["outliers"] == "48 given+box"
    assert min(one.outlier_score(third, "none").mean() for one in (told, both)) > 0.9
    less, more = (one.outlier_score(box, "none").mean() for one in (told, both))
    assert less < 0.9 < more
    same = clone(model).set_params(synthetic=synthetic("box")).fit(x, y, third)  # a value in place of its name
    assert (same.predict_proba(x) == both.predict_proba(x)).all()


def test_names_that_no_outliers_have_are_refused(wine):
    x, y, third = wine
    model = demur.Classifier("map+nc", epochs=1, device="cpu")
    for shown in (None, third):
        for name in ("bix", ""):
            with pytest.raises(ValueError, match=f"unknown synthetic outliers for tables '{name}'"):
                clone(model).set_params(synthetic=name).fit(x, y, shown)
    with pytest.raises(ValueError, match="'spectrum_matched' are images, and the data is tables"):
        clone(model).set_params(synthetic="spectrum_matched").fit(x, y, third)
    with pytest.raises(ValueError, match="'spectrum_matched' goes beside real outliers, and there are none"):
        clone(model).set_params(synthetic="spectrum_matched").fit(x, y)
    with pytest.raises(
        ValueError, match=r"outliers 'box' is a name; give inputs like X, or Classifier\(synthetic='box'\)"
    ):
        model.fit(x, y, "box")
    with pytest.raises(ValueError, match="'map' does not train with them"):
        demur.Classifier("map", synthetic="box").fit(x, y)


def test_a_search_compares_synthetic_outliers(wine):
    search = GridSearchCV(replace_parameters(FAST, epochs=2), {"synthetic": ["box", "columns"]}, cv=2).fit(*wine[:2])
    assert search.best_estimator_.report_["outliers"] in ("box", "columns")


def test_given_images_can_be_made_as_sharp_as_the_inliers():
    """Dark and bright are classes, middling is neither; told by noise alone, a network goes by that it is noise."""
    draw = torch.Generator().manual_seed(0)
    y = np.repeat(["dark", "bright"], 100)
    x = torch.where(torch.from_numpy(y == "dark"), 0.3, 0.7)[:, None, None, None].expand(-1, 1, 12, 12)
    x = x + 0.02 * torch.randn(200, 1, 1, 1, generator=draw)
    noise = torch.rand(200, 1, 12, 12, generator=draw)
    soft = Matched(Fixed(noise), mean_power(x)).epoch(draw)
    assert soft.flatten(1).std(1).max() < 0.01
    model = demur.Classifier("map+nc", epochs=120, lr=3e-3, device="cpu")
    with pytest.warns(UserWarning, match=r"sharpness alone tells the outliers from the inliers \(AUROC 1\.000\)"):
        told = clone(model).fit(x, y, noise)
    both = clone(model).set_params(synthetic="spectrum_matched").fit(x, y, noise)
    assert both.report_["outliers"] == "200 given+spectrum_matched"
    less, more = (one.outlier_score(soft, "none").mean() for one in (told, both))
    assert less < 0.7 < 0.9 < more


# answers -----------------------------------------------------------------------------------------------------------


def test_one_pass_says_what_the_methods_say(fitted, wine):
    x = np.concatenate([wine[0], wine[2]])
    answers = fitted.predict_all(x)
    probs = fitted.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    raw = fitted.prediction(x)
    np.testing.assert_allclose(probs, raw.probs / (1 - raw.none[:, None]), atol=1e-3)
    assert (answers.label == fitted.predict(x)).all()
    assert (answers.probability == probs.max(1)).all()
    assert (answers.outlier_score == fitted.outlier_score(x)).all()
    assert (answers.decision == fitted.decide(x)).all()
    kept = ~np.isin(answers.decision, ["unsure", "unknown"])
    assert (kept == (answers.outlier_score <= fitted.decision_.accept[0])).all()
    assert (answers.decision[kept] == answers.label[kept]).all()
    assert kept[: len(wine[0])].mean() > 0.9


def test_what_is_held_out_is_not_trained_with_and_every_class_is():
    labels = torch.tensor([0] * 60 + [1] * 59 + [2])
    for seed in range(20):
        train, tuning, calibration = split_rows(labels, 0.1, 0.95, seed)
        assert sorted(torch.cat([train, tuning, calibration]).tolist()) == list(range(120))
        assert 2 in labels[train]
        assert len(calibration) == 19
    for count, classes, least in ((2, 2, 4), (11, 11, 13)):
        with pytest.raises(ValueError, match=f"too few for {classes} classes: .* give at least {least}"):
            split_rows(torch.arange(count) % classes, 0.1, 0.95, 0)
        assert all(map(len, split_rows(torch.arange(least) % classes, 0.1, 0.95, 0)))
        with pytest.raises(ValueError, match="too few"):
            split_rows(torch.arange(least - 1) % classes, 0.1, 0.95, 0)


# what a fit says and leaves behind ---------------------------------------------------------------------------------


def state(model: demur.Classifier) -> dict:
    return dict(vars(model))


def failing_fits(x: np.ndarray, y: np.ndarray) -> dict[str, tuple]:
    """Every one fails at another place."""
    dates = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]")[(y == y[0]).astype(int)]
    return {
        "coverage nan is not a number": ({"coverage": float("nan")}, x, y),
        "unknown kind": ({"kind": "sounds"}, x, y),
        "one label an input": ({}, x, y[1:]),
        "labels of type": ({}, x, dates),
        "needs at least 2": ({}, x, np.zeros(len(x))),
        "Input y contains NaN; leave out inputs without a label": ({}, x, np.where(y == y[0], 0.0, np.nan)),
        "patience 1.5 is no number of epochs": ({"patience": 1.5}, x, y),
        "too large to be standardised": ({}, x * 1e200, y),
        "unknown network": ({"network": "gru"}, x, y),
        "unknown optimizer|lr|loss became": ({"lr": 1e30}, x, y),
        "feature names|column": ({}, pd.DataFrame(x, columns=[0, *"bcdefghijklm"]), y),
    }


def test_a_fit_that_fails_leaves_the_estimator_as_it_was(wine, fitted):
    x, y, _ = wine
    again = deepcopy(fitted)
    for why, (changed, x_bad, y_bad) in failing_fits(x, y).items():
        first = demur.Classifier("map+nc", epochs=2, device="cpu").set_params(**changed)
        before = state(first)
        with pytest.raises((ValueError, FloatingPointError, TypeError), match=why):
            first.fit(x_bad, y_bad)
        assert state(first) == before
        again.set_params(**changed)
        before = state(again)
        with pytest.raises((ValueError, FloatingPointError, TypeError), match=why):
            again.fit(x_bad, y_bad)
        assert state(again) == before
        again.set_params(**{name: fitted.get_params()[name] for name in changed})
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()


def test_a_refit_on_another_kind_leaves_nothing_of_the_old(wine, tmp_path):
    frame = pd.DataFrame(wine[0], columns=[f"c{i}" for i in range(13)])
    model = replace_parameters(FAST, epochs=2).fit(frame, wine[1])
    assert model.n_features_in_ == 13
    x, y = images()
    model.fit(x, y)
    assert not {"n_features_in_", "feature_names_in_"} & set(vars(model))
    model.save(tmp_path / "model.demur")
    assert (demur.load_model(tmp_path / "model.demur", device="cpu").predict_proba(x) == model.predict_proba(x)).all()


def test_outliers_that_were_not_shown_are_counted(wine):
    x, y, outliers = wine
    generator = np.random.default_rng(0)
    far = x[:100] + 20 * x.std(0)
    model = demur.Classifier("map+nc", epochs=40, device="cpu").fit(x, y, far)
    assert model.report_["unseen_outliers"] == 10
    assert model.report_["outliers_abstained"] == 1.0
    with pytest.warns(UserWarning, match=r"abstains on \d+% of 13 outliers .* hardly more than on inliers \(5%\)"):
        model.fit(x, y, x[generator.permutation(len(x))])  # shown its own inliers, it cannot tell
    model.fit(x, y, outliers[:19])  # too few to hold any out
    assert (model.report_["unseen_outliers"], model.report_["outliers_abstained"]) == (0, None)
    made_up = demur.Classifier("map+nc", epochs=40, device="cpu").fit(x, y)
    assert made_up.report_["unseen_outliers"] == 2 * made_up.report_["tuned"]  # columns and box, of held-out rows
    assert 0.5 < made_up.report_["outliers_abstained"] <= 1


def test_outliers_are_either_shown_or_measured_with():
    every = torch.arange(200.0).unsqueeze(1)
    shown, unseen = split_outliers(every, 0.1, 0)
    assert len(unseen) == 20
    assert sorted(torch.cat([shown, unseen]).flatten().tolist()) == every.flatten().tolist()
    assert not torch.equal(split_outliers(every, 0.1, 1)[1], unseen)
    assert len(split_outliers(torch.zeros(30_000, 1), 0.1, 0)[1]) == 1000


def test_the_tuned_prior_and_coverage_by_class_are_reported(wine):
    x, y, _ = wine
    report = demur.Classifier("la+nc", epochs=20, device="cpu").fit(x, y).report_
    rows = report["tuning"]["precision, nll, accuracy"]
    assert report["prior_precision"] in [row[0] for row in rows]
    assert set(report["coverage_by_class"]) <= {"barolo", "grignolino"}
    assert all(0 <= value <= 1 for value in report["coverage_by_class"].values())


def test_the_scaler_is_fitted_to_training_rows_alone(wine, fitted):
    x = np.delete(wine[0], fitted.held_out_, axis=0)
    np.testing.assert_allclose(fitted.preprocessing_.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(fitted.preprocessing_.scale, x.std(0), rtol=1e-12)


def test_the_seed_decides(wine):
    x, y, _ = wine
    quick = replace_parameters(FAST, epochs=2)
    first, again = (quick.fit(x, y).predict_proba(x) for _ in range(2))
    assert (first == again).all()
    assert (replace_parameters(quick, random_state=1).fit(x, y).predict_proba(x) != first).any()


def replace_parameters(estimator: demur.Classifier, **changed) -> demur.Classifier:
    return demur.Classifier(**estimator.get_params() | changed)


# kinds of data -----------------------------------------------------------------------------------------------------


def test_columns_are_known_by_name(wine):
    frame = pd.DataFrame(wine[0], columns=[f"c{i}" for i in range(13)])
    model = replace_parameters(FAST, epochs=2).fit(
        frame, pd.Series(wine[1]), pd.DataFrame(wine[2], columns=frame.columns)
    )
    assert model.report_["outliers"] == "48 given"
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[frame.columns[::-1]])
    far = model.predict_all(frame * 1e200)  # more than float32 can hold
    assert np.isfinite(far.outlier_score).all()
    assert np.isfinite(far.probability).all()


def images(count: int = 90, side: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Bright halves of dark images, upper or lower, in noise; uint8."""
    generator = np.random.default_rng(0)
    y = np.arange(count) % 2
    x = generator.integers(0, 60, (count, 1, side, side))
    x[y == 0, :, : side // 2] += 150
    x[y == 1, :, side // 2 :] += 150
    return x.astype(np.uint8), y


def test_images_may_be_whole_or_floats_and_have_their_channel_left_out():
    x, y = images()
    quick = replace_parameters(FAST, epochs=3)
    model = quick.fit(x, y)
    assert model.report_["outliers"] == "smooth+patches"
    expected = model.predict_proba(x)
    assert (model.predict(x) == y).all()
    for same in (x[:, 0], torch.from_numpy(x), x.astype(np.float64) / 255, x.astype(np.int64)):
        assert (model.predict_proba(same) == expected).all()
    floats = quick.fit(x.astype(np.float32) / 255, y)
    assert floats.predict_proba(x).shape == (90, 2)
    for wrong, why in (
        (x.transpose(0, 2, 3, 1), "channels last"),
        (x * 2.0, "floats from 0 to 1"),
        (x[:, :, 1:], "bring"),
    ):
        with pytest.raises(ValueError, match=why):
            model.predict(wrong)
    odd = np.repeat(x[:, :, :, :9], 3, axis=1)  # three channels, not square
    assert type(quick.fit(odd, y).network_(3).features[0]) is nn.Conv2d


QUESTIONS = [
    "who wrote this book",
    "who is that man",
    "who painted it",
    "where is the sea",
    "where do birds go",
    "where was he",
] * 12


@pytest.mark.filterwarnings("ignore:the best prior precision")
def test_texts_are_read_by_the_training_words():
    y = ["person" if text.startswith("who") else "place" for text in QUESTIONS]
    model = demur.Classifier("la+nc", epochs=3, device="cpu")
    with pytest.warns(UserWarning, match="real ones do better"):
        model.fit(QUESTIONS, y)
    assert model.report_["outliers"] == "words"
    assert (model.predict(QUESTIONS) == y).mean() > 0.9
    assert (model.predict_proba(["Who IS that man?"]) == model.predict_proba(["who is that man"])).all()
    assert model.report_["laplace_over"] == "head"
    with pytest.warns(UserWarning, match="real ones do better"):
        assert model.set_params(method="la_kron+nc", epochs=1).fit(QUESTIONS, y).report_["laplace_over"] == "head"
    asked = replace(demur.parse_method("la+nc"), inference=demur.Laplace())
    with pytest.raises(ValueError, match="would take hours"), pytest.warns(UserWarning, match="real ones do better"):
        demur.Classifier(asked, epochs=1, device="cpu").fit(QUESTIONS, y)
    with pytest.raises(ValueError, match="float in row 1"):
        model.predict(["who", float("nan")])


# networks of one's own ---------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """As timm writes them."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.norm(self.stem(x)).relu()

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = torch.cat([x[:, :, :6].amax((2, 3))[:, :4], x[:, :, 6:].amax((2, 3))[:, 4:]], 1)
        return x if pre_logits else self.fc(x)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class Tied(nn.Module):
    """Words in and words out are one matrix; the label is read off the first outputs' projection."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 16)
        self.back = nn.Linear(16, 64, bias=False)
        self.back.weight = self.words.weight
        self.head = nn.Linear(64, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.back(self.words(tokens).mean(1)))


def test_a_backbone_in_the_manner_of_timm():
    x, y = images()
    model = demur.Classifier(
        "la+nc", Backbone, synthetic="patches", epochs=8, lr=0.01, batch_size=16, device="cpu"
    ).fit(x, y)
    assert model.score(x, y) > 0.9


@few_to_calibrate
@pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:outliers of texts")
def test_hugging_face_models_and_tied_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    def bert(num_outputs: int) -> nn.Module:
        config = transformers.BertConfig(vocab_size=64, num_labels=num_outputs, **size)
        return transformers.BertForSequenceClassification(config)

    y = ["person" if text.startswith("who") else "place" for text in QUESTIONS]
    for network in (bert, Tied):
        model = demur.Classifier("la+nc", network, epochs=10, lr=0.01, batch_size=16, device="cpu").fit(QUESTIONS, y)
        assert model.score(QUESTIONS, y) > 0.8
        model.save(tmp_path / "model.demur")
        loaded = demur.load_model(tmp_path / "model.demur", network, device="cpu")
        assert (loaded.predict_proba(QUESTIONS) == model.predict_proba(QUESTIONS)).all()
    with pytest.raises(ValueError, match="tied to another; Flipout"):
        demur.Classifier("flipout+nc", Tied, epochs=1, device="cpu").fit(QUESTIONS, y)

    class Pair(Tied):
        def forward(self, tokens):
            return super().forward(tokens), None

    with pytest.raises(ValueError, match="returned a tuple"):
        demur.Classifier("map+nc", Pair, device="cpu").fit(QUESTIONS, y)
