"""A fit that goes on from a model: weights, new classes, and rows that stay held out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_wine
from torch import nn

import demur
from demur.classifier.backbones import Backbone
from demur.classifier.continuing import Continued, states_of
from demur.classifier.held_out import hash_rows
from demur.predictive import predict
from tests.serving import images, table, texts

STILL = {"epochs": 1, "lr": 1e-12}  # trained, and where it was
pytestmark = pytest.mark.filterwarnings("ignore:coverage=.* needs", "ignore:outliers of texts are made")


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_wine(return_X_y=True)
    return x, np.array(["barolo", "grignolino", "barbera"])[y]


@pytest.fixture(scope="module")
def two(wine) -> tuple[np.ndarray, np.ndarray]:
    known = wine[1] != "barbera"
    return wine[0][known], wine[1][known]


def again(model: demur.Classifier, tmp_path, **settings: Any) -> demur.Classifier:
    """Saved, loaded, and ready to go on."""
    model.save(tmp_path / "before.demur")
    return demur.load_model(tmp_path / "before.demur", device="cpu").set_params(warm_start=True, **settings)


@pytest.mark.parametrize("method", ["map+nc", "map", "de+oe", "la+ml", "la_kron+nc", "icla+nc", "vb+sl", "flipout+nc"])
def test_a_network_that_goes_on_gives_what_it_gave(method, wine, two, tmp_path):
    """Among the classes that it knew, whose places in the head have changed, though nothing is trained."""
    before = demur.Classifier(method, epochs=20, device="cpu").fit(*two)
    after = again(before, tmp_path, **STILL).fit(*wine)
    assert after.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    for (_, old), (_, new) in zip(before.posterior_.components(), after.posterior_.components(), strict=True):
        x = before.inputs(wine[0])
        with torch.no_grad():
            expected, found = old.network.eval()(x), new.network.eval()(x)
        kept = [1, 2, *range(3, found.shape[1])]
        torch.testing.assert_close(found[:, kept], expected, rtol=1e-4, atol=1e-4)
    told = after.report_["continued"]
    assert told["new_classes"] == ["barbera"]
    assert told["of"] - told["weights"] == 101  # the new class's row of the head


def test_samples_of_a_chain_are_gone_on_from(wine, two, tmp_path):
    after = again(demur.Classifier("csghmc+nc", epochs=8, device="cpu").fit(*two), tmp_path).fit(*wine)
    assert after.report_["continued"]["weights"] == after.report_["continued"]["of"] - 101


def test_each_member_goes_on_from_its_own(two):
    before = demur.Classifier("de", epochs=2, device="cpu").fit(*two)
    states = states_of(before.posterior_)
    network = Continued(before.network_, states, "head", ((0, 0), (1, 1)))
    for member, state in enumerate(states):
        with torch.random.fork_rng():
            torch.manual_seed(10 + member)  # as members' seeds are: the recipe's times their number, and which it is
            made = network(2)
        assert all(torch.equal(value, state[name]) for name, value in made.state_dict().items())


def test_what_was_held_out_is_held_out_again_and_nothing_else_of_old_classes(wine, two, tmp_path):
    """Else a threshold would be set by inputs that the weights were trained with."""
    before = demur.Classifier("map+nc", epochs=2, device="cpu", validation=0.4).fit(*two)
    order = np.random.default_rng(0).permutation(len(wine[0]))
    x, y = wine[0][order], wine[1][order]
    after = again(before, tmp_path, epochs=2, random_state=7).fit(x, y)
    old = {row.tobytes() for row in two[0][before.held_out_]}
    held_out = [(row.tobytes(), label) for row, label in zip(x[after.held_out_], y[after.held_out_], strict=True)]
    assert {row for row, label in held_out if label != "barbera"} == old
    new = sum(label == "barbera" for _, label in held_out)
    assert new == 2 * np.ceil(0.2 * (y == "barbera").sum())
    assert after.report_["trained"] + len(after.held_out_) == len(x)
    again_hashed = hash_rows(after.inputs(x[after.held_out_]))
    assert sorted(again_hashed) == sorted(after.held_out_hashes_["tuning"] + after.held_out_hashes_["calibration"])


def test_rows_that_are_all_new_are_held_out_at_random(two, tmp_path):
    before = demur.Classifier("map+nc", epochs=2, device="cpu").fit(*two)
    x = two[0] + 0.01
    after = again(before, tmp_path, epochs=2).fit(x, two[1])
    fresh = demur.Classifier("map+nc", epochs=2, device="cpu").fit(x, two[1])
    np.testing.assert_array_equal(after.held_out_, fresh.held_out_)


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, count)
    return generator.normal(size=(count, 6)) + y[:, None], y


def rows_of(x: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in x}


def test_no_fit_of_several_calibrates_with_what_another_was_trained_with(tmp_path):
    """Other inputs in between, and the first ones again: what the first fit held out is still known."""
    (x, y), (more, labels) = drawn(200, 1), drawn(150, 2)
    model = demur.Classifier("map+nc", epochs=1, device="cpu", warm_start=True).fit(x, y)
    first = rows_of(x[model.held_out_])
    model = again(model.set_params(random_state=1).fit(more, labels), tmp_path, random_state=2)
    second = rows_of(more[model.fit(more, labels).held_out_])
    assert rows_of(x[model.fit(x, y).held_out_]) == first
    every, both = np.concatenate([x, more]), np.concatenate([y, labels])
    assert rows_of(every[model.fit(every, both).held_out_]) == first | second


def test_inputs_that_were_all_trained_with_cannot_calibrate(tmp_path):
    x, y = drawn(200, 1)
    model = demur.Classifier("map+nc", epochs=1, device="cpu", warm_start=True).fit(x, y)
    trained = np.setdiff1d(np.arange(200), model.held_out_)
    with pytest.raises(ValueError, match="cannot set its threshold"):
        model.set_params(random_state=3).fit(x[trained], y[trained])
    tuned = trained.tolist() + model.held_out_[: model.report_["tuned"]].tolist()
    with pytest.raises(ValueError, match="cannot set its threshold"):
        model.fit(x[tuned], y[tuned])
    calibrated = trained.tolist() + model.held_out_[model.report_["tuned"] :].tolist()
    model.fit(x[calibrated], y[calibrated])
    assert rows_of(x[calibrated][model.held_out_]).isdisjoint(rows_of(x[trained]))


def test_a_few_that_were_held_out_do_not_calibrate_alone(tmp_path):
    """Among many new ones, as short texts or rows of categories are the same by chance."""
    (x, y), (more, labels) = drawn(200, 1), drawn(400, 2)
    before = demur.Classifier("map+nc", epochs=1, device="cpu").fit(x, y)
    held_out, trained = rows_of(x[before.held_out_]), np.setdiff1d(np.arange(200), before.held_out_)[:50]
    few = [*before.held_out_[[0, -1]], *trained]
    after = again(before, tmp_path).fit(np.concatenate([x[few], more]), np.concatenate([y[few], labels]))
    usual = demur.Classifier("map+nc", epochs=1, device="cpu").fit(more, labels).report_
    assert after.report_["calibrated"] >= usual["calibrated"]
    rows = rows_of(np.concatenate([x[few], more])[after.held_out_])
    assert len(rows & held_out) == 2
    assert rows.isdisjoint(rows_of(x[trained]))


def test_outliers_that_were_trained_with_are_not_measured_with(tmp_path):
    (x, y), outliers = drawn(200, 1), 9 * drawn(60, 3)[0]
    before = demur.Classifier("map+nc", epochs=1, device="cpu", validation=0.3).fit(x, y, outliers)
    known = before.held_out_hashes_["outliers"]
    shown = np.array(
        [row for row, each in zip(outliers, hash_rows(before.inputs(outliers)), strict=True) if each not in known]
    )
    after = again(before, tmp_path).fit(x, y, shown)
    assert after.report_["unseen_outliers"] == 0
    assert after.held_out_hashes_["outliers"] == known
    new = 9 * drawn(40, 4)[0]
    after = again(before, tmp_path).fit(x, y, np.concatenate([shown, new]))
    assert set(after.held_out_hashes_["outliers"]) - set(known) <= set(hash_rows(after.inputs(new)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tune": "all"}, "tune 'all'"),
        ({"backbone": "minilm"}, "backbone 'minilm'"),
        ({"network": "linear"}, "network"),
    ],
)
def test_another_network_than_the_weights_are_of_is_refused(settings, named):
    x, y = images(60)
    backbone = Backbone.of(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)), size=16)
    model = demur.Classifier("map+nc", backbone=backbone, epochs=1, device="cpu", warm_start=True).fit(x, y)
    with pytest.raises(ValueError, match=rf"{named}.* is not that of the model"):
        model.set_params(**settings).fit(x, y)


def test_another_network_of_ones_own_is_refused(two):
    model = demur.Classifier("map+nc", plain, epochs=1, device="cpu", warm_start=True).fit(*two)
    for network in (Twice, "mlp"):
        with pytest.raises(ValueError, match=r"network .* is not that of the model"):
            model.set_params(network=network).fit(*two)
    assert "continued" in model.set_params(network=plain).fit(*two).report_


def test_outliers_that_were_measured_with_are_not_trained_with(wine, two, tmp_path):
    outliers = wine[0][wine[1] == "barbera"]
    before = demur.Classifier("map+nc", epochs=2, device="cpu", validation=0.3).fit(*two, outliers)
    measured = before.held_out_hashes_["outliers"]
    more = np.concatenate([outliers + 1.0, outliers])
    after = again(before, tmp_path, epochs=2).fit(*two, more)
    assert sorted(after.held_out_hashes_["outliers"]) == sorted(measured)
    assert after.report_["unseen_outliers"] == len(measured)


def test_a_model_that_does_not_say_what_it_held_out_is_warned_of(two, tmp_path):
    before = again(demur.Classifier("map+nc", epochs=2, device="cpu").fit(*two), tmp_path, epochs=1)
    before.held_out_hashes_ = None
    with pytest.warns(UserWarning, match="does not say which inputs it held out"):
        before.fit(*two)


def test_a_class_without_inputs_goes_and_is_warned_of(wine, two, tmp_path):
    before = demur.Classifier("map+nc", epochs=2, device="cpu").fit(*wine)
    with pytest.warns(UserWarning, match="no inputs, barbera: the new one does not"):
        after = again(before, tmp_path, epochs=1).fit(*two)
    assert after.classes_.tolist() == ["barolo", "grignolino"]
    assert after.report_["continued"]["dropped_classes"] == ["barbera"]


def test_a_clone_begins_anew_and_so_does_a_fit_that_is_not_asked_to_go_on(two):
    model = demur.Classifier("map+nc", epochs=2, device="cpu", warm_start=True).fit(*two)
    first = model.predict_proba(two[0])
    copy = clone(model)
    assert copy.warm_start is True
    assert not hasattr(copy, "posterior_")
    np.testing.assert_array_equal(copy.fit(*two).predict_proba(two[0]), first)
    assert "continued" not in copy.report_
    assert "continued" in model.fit(*two).report_
    assert "continued" not in model.set_params(warm_start=False).fit(*two).report_
    with pytest.raises(ValueError, match="warm_start 'yes' is neither"):
        model.set_params(warm_start="yes").fit(*two)


def test_going_on_learns_a_class_in_fewer_epochs(tmp_path):
    """Against a fit from the start with as many epochs, on rows that neither saw."""
    x, y = table(400)
    third = x * 0 + np.random.default_rng(1).normal([6.0, -6.0, 0.0], 1.0, x.shape)
    every, labels = pd.concat([x, third[:100]], ignore_index=True), [*y, *["third"] * 100]
    unseen, expected = pd.concat([table(200, seed=9)[0], third[100:200]]), [*table(200, seed=9)[1], *["third"] * 100]
    before = demur.Classifier("map+nc", epochs=30, device="cpu").fit(x, y)
    after = again(before, tmp_path, epochs=3).fit(every, labels)
    assert np.mean(after.predict(unseen) == np.array(expected)) > 0.97
    assert (after.decide(unseen.iloc[200:]) == "third").mean() > 0.8
    assert (before.decide(unseen.iloc[200:]) == "third").mean() == 0


@pytest.mark.parametrize(("make", "settings"), [(images, {}), (texts, {}), (table, {})])
def test_every_kind_reads_inputs_as_before(make: Callable[..., Any], settings, tmp_path):
    x, y = make(200)
    before = demur.Classifier("map+nc", epochs=2, device="cpu").fit(x, y)
    after = again(before, tmp_path, **STILL).fit(x, y)
    assert after.preprocessing_ == before.preprocessing_
    np.testing.assert_allclose(after.predict_proba(x), before.predict_proba(x), atol=1e-5)
    np.testing.assert_array_equal(np.sort(after.held_out_), np.sort(before.held_out_))
    other = texts(200)[0] if make is not texts else images(200)[0]
    with pytest.raises(ValueError, match=f"is for {before.preprocessing_.kind}"):
        after.fit(other, y)


def test_mixed_tables_keep_their_columns(tmp_path):
    x, y = table(200)
    x["colour"] = np.where(np.arange(200) % 3 > 0, "red", "white")
    x.loc[::7, "a"] = np.nan
    before = demur.Classifier("map+nc", epochs=2, device="cpu").fit(x, y)
    after = again(before, tmp_path, **STILL).fit(x, y)
    np.testing.assert_allclose(after.predict_proba(x), before.predict_proba(x), atol=1e-5)
    with pytest.raises(ValueError, match="feature names"):
        after.fit(x.rename(columns={"colour": "hue"}), y)


class Twice(nn.Module):
    """Logits of a layer, halved: no layer gives them as they are."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.trunk, self.last = nn.Linear(13, 8), nn.Linear(8, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.trunk(x))) / 2


def plain(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, num_outputs))


@pytest.mark.parametrize(("network", "left_out"), [(plain, 9), (Twice, 36)])
def test_a_network_of_ones_own_goes_on_too(network, left_out, wine, two):
    model = demur.Classifier("map+nc", network, epochs=2, device="cpu", warm_start=True).fit(*two)
    told = model.fit(*wine).report_["continued"]
    assert told["of"] - told["weights"] == left_out  # a row of the head, or all of it where it cannot be told


def test_a_frozen_backbone_keeps_the_scaling_of_its_features(tmp_path):
    x, y = images(120)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 12))
    backbone = Backbone.of(trunk, size=16)
    model = demur.Classifier("map+nc", backbone=backbone, epochs=5, device="cpu", warm_start=True).fit(x, y)
    before, scaling = model.predict_proba(x), model.encoder_.scaling
    model.set_params(**STILL).fit(x[:80], y[:80])
    assert model.encoder_.scaling == scaling
    np.testing.assert_allclose(model.predict_proba(x), before, atol=1e-5)


def test_the_posterior_can_be_predicted_with_as_any_other(wine, two, tmp_path):
    after = again(demur.Classifier("la+nc", epochs=5, device="cpu").fit(*two), tmp_path, epochs=2).fit(*wine)
    after.save(tmp_path / "after.demur")
    loaded = demur.load_model(tmp_path / "after.demur", device="cpu")
    found = predict(loaded.posterior_, loaded.likelihood_, loaded.inputs(wine[0]))
    torch.testing.assert_close(found.probs, after.prediction(wine[0]).probs)
    assert loaded.report_["continued"] == after.report_["continued"]
    assert loaded.warm_start is False
