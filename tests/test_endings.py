"""Fits end: when time is up, when nothing more is learned; and they say how it went."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import demur
from demur.checkpoint import checkpointed
from demur.classifier.augmentation import InTurn, Light, augmentation
from demur.classifier.labels import balance_rows
from demur.classifier.limits import Cost, counted_from, end_of_limit, parse_duration, watch_recipe
from demur.inference.base import networks_in
from demur.likelihoods import plain
from demur.networks import mlp
from demur.tasks.augment import Jitter
from demur.training import observed, train
from demur.training_data import Recipe, Split, TrainingData, WatchedRecipe
from demur.watching import Clock, Watch, curves_kept, next_turn, time_limited
from tests.conftest import make_task


def clouds(count: int, seed: int = 0, noise: float = 0.3) -> Split:
    """Two classes that overlap, and some labels that are wrong: whoever learns for long learns those."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    x = torch.randn(count, 2, generator=random) + 1.5 * y[:, None]
    wrong = torch.rand(count, generator=random) < noise
    return Split(x, torch.where(wrong, 1 - y, y))


def network(num_outputs: int) -> torch.nn.Module:
    return mlp(num_outputs, inputs=2, hidden=(64, 64))


DATA = TrainingData(clouds(60), clouds(200, 1))


def fitted(recipe: Recipe) -> tuple[torch.nn.Module, list]:
    with curves_kept() as curves:
        posterior = demur.MAP().fit(network, plain(2), DATA, recipe)
    return posterior.network, curves


def test_it_stops_where_validation_data_say_so_with_the_best_weights():
    model, ((*curve,),) = fitted(WatchedRecipe(epochs=300, batch_size=20, lr=0.01, patience=10))
    losses = [row[2] for row in curve]
    best = int(np.argmin(losses))
    assert [row[0] for row in curve] == list(range(1, len(curve) + 1))
    assert len(curve) == best + 1 + 10 < 300
    with torch.no_grad():
        logits = model(DATA.validation.x)
    nll = torch.nn.functional.cross_entropy(logits, DATA.validation.y).item()
    assert nll == pytest.approx(losses[best], abs=1e-5)
    accuracy = (logits.argmax(1) == DATA.validation.y).float().mean().item()
    assert accuracy == pytest.approx(curve[best][3])


def test_to_watch_changes_nothing_else():
    alone, curves = fitted(Recipe(epochs=5, batch_size=20))
    assert curves == []
    seen, (curve,) = fitted(WatchedRecipe(epochs=5, batch_size=20))
    assert len(curve) == 5
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), seen.parameters(), strict=True))


def test_only_who_asks_for_it_has_a_network_watched():
    """What has a noisy chain or a penalty in it is not stopped by the validation data."""
    with curves_kept() as curves:
        assert len(list(train(network(2), plain(2), DATA, WatchedRecipe(epochs=3, batch_size=20, patience=1)))) == 3
    assert curves == []


def test_training_that_was_stopped_knows_what_it_has_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("demur.checkpoint.SECONDS_BETWEEN", 0.0)
    recipe = WatchedRecipe(epochs=300, batch_size=20, lr=0.01, patience=10)
    whole, (curve,) = fitted(recipe)
    (tmp_path / "kept").mkdir()
    for epochs in (7, len(curve) - 2):
        with checkpointed(tmp_path / "kept"):
            torch.manual_seed(recipe.seed)
            with pytest.raises(KeyboardInterrupt), observed(stop_at(epochs)):
                demur.MAP().fit(network, plain(2), DATA, recipe)
    with checkpointed(tmp_path / "kept") as place:
        resumed, (again,) = fitted(recipe)
    assert place.resumed == [len(curve) - 3]
    assert again == curve
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def stop_at(epoch: int):
    def observer(report) -> None:
        if report.epoch == epoch:
            raise KeyboardInterrupt

    return observer


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Time that passes only where it is moved."""
    now = [100.0]
    monkeypatch.setattr("demur.watching.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def slow(clock: list[float]):
    """Networks that take a second for a batch."""

    def build(num_outputs: int) -> torch.nn.Module:
        model = torch.nn.Linear(2, num_outputs)

        def pass_time(*_) -> None:
            if model.training:
                clock[0] += 1.0

        model.register_forward_hook(pass_time)
        return model

    return build


def test_time_is_shared_by_the_networks_and_the_rate_comes_to_its_end(clock):
    recipe, rates = Recipe(epochs=10_000, batch_size=20), []

    def rate(done: float) -> float:
        rates.append(done)
        return 1 - done

    with time_limited(25.5, 2):
        for taken in (13, 13):
            begun, rates[:] = clock[0], []
            list(train(slow(clock)(2), plain(2), DATA, recipe, rate=rate))
            assert clock[0] - begun == taken  # half of it, and the step that was begun
            assert rates == sorted(rates)
            assert rates[-1] > 0.9
    assert next_turn() is None
    epochs = list(train(slow(clock)(2), plain(2), DATA, replace(recipe, epochs=40), rate=rate))
    assert len(epochs) == 40


def test_what_one_network_leaves_is_the_others(clock):
    with time_limited(30.0, 2):
        list(train(slow(clock)(2), plain(2), DATA, Recipe(epochs=1, batch_size=20)))
        turn = next_turn()
    assert turn.left() == 27
    with time_limited(30.0, 3):
        assert [next_turn().left() for _ in range(5)] == [10, 15, 30, 30, 30]


def test_the_time_left_is_told_from_within_an_epoch(clock, monkeypatch):
    monkeypatch.setattr("demur.training.SECONDS_BETWEEN", -1.0)
    within, after = [], []
    with time_limited(4.5, 1), observed(after.append, lambda report, share: within.append(report.left)):
        list(train(slow(clock)(2), plain(2), DATA, Recipe(epochs=9, batch_size=20)))
    assert within == [3.5, 2.5, 1.5, 0.5, 0.0]
    assert [report.left for report in after] == [1.5, 0.0]


def test_where_what_follows_takes_all_the_time_a_turn_is_over_as_it_begins(clock):
    with time_limited(30.0, 2, rest=300.0):
        turn = next_turn()
    assert turn.ends == clock[0]
    assert turn.left() == 0
    clock[0] += 0.001
    assert turn.done() == 1


def test_training_gets_its_least_whatever_is_to_follow():
    assert Clock(ends=110.0, networks=1, rest=30.0, least=0.5, begun=10.0).training_ends == 80.0
    assert Clock(ends=110.0, networks=1, rest=70.0, least=0.5, begun=10.0).training_ends == 60.0
    assert Clock(ends=110.0, networks=1, rest=700.0, begun=10.0).training_ends == 10.0
    assert Clock(ends=110.0, networks=1, begun=10.0).training_ends == 110.0


def test_what_is_to_follow_takes_as_long_as_the_median_of_the_latest_looks_says():
    def ends(**known: float) -> float:
        clock = Clock(ends=110.0, networks=1, rest=30.0, begun=10.0, **known)
        clock.looks.extend([9.0, 1.0, 1.0, 8.0, 4.0, 2.0])  # of which five are the latest
        return clock.training_ends

    assert ends(look=1.0) == 50.0
    assert ends(look=2.0) == 80.0
    assert ends() == 80.0  # what a look should take is not known


def test_a_classifiers_training_ends_in_time_and_is_told(clock):
    x, y = np.random.default_rng(0).normal(size=(200, 2)), np.arange(200) % 2
    told = []
    with observed(told.append), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = demur.Classifier("map", slow(clock), kind="ready", epochs=10_000, time_limit=60, device="cpu")
        model.fit(x, y)
    assert model.report_["epochs"] == told[-1].epoch < 60
    assert told[0].left > told[-1].left == 0
    assert told[-1].accuracy is not None


class Pace:
    """Time that passes as inputs go through a network: seconds of each, another number from a certain time on."""

    def __init__(self, monkeypatch, first: float, later: float, changes: float = 20.0) -> None:
        self.now, self.first, self.later, self.changes = 0.0, first, later, changes
        stopped = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        monkeypatch.setattr("demur.watching.time", stopped)
        monkeypatch.setattr("demur.classifier.limits.time", stopped)
        monkeypatch.setattr("demur.classifier.features.time", stopped)
        monkeypatch.setattr("demur.classifier.frozen.time", stopped)
        monkeypatch.setattr("demur.classifier.estimator.perf_counter", lambda: self.now)

    def __deepcopy__(self, memo: dict) -> "Pace":
        return self

    def network(self, num_outputs: int) -> torch.nn.Module:
        model = mlp(num_outputs, inputs=2, hidden=(8,))
        model.features.register_forward_pre_hook(self.spend)
        return model

    def spend(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.now += len(inputs[0]) * (self.first if self.now < self.changes else self.later)


@pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")
@pytest.mark.parametrize("later", [0.001, 0.01, 0.0001])
def test_a_limit_holds_what_comes_after_training_however_the_machine_slows_down(monkeypatch, later):
    x, y = np.random.default_rng(0).normal(size=(300, 2)) + 2 * (np.arange(300) % 2)[:, None], np.arange(300) % 2
    pace = Pace(monkeypatch, 0.001, later)
    model = demur.Classifier("la", pace.network, kind="ready", epochs=10**6, time_limit=100, device="cpu").fit(x, y)
    assert model.report_["laplace_over"] == "all"
    assert 70 < pace.now < 110
    assert model.report_["seconds"] == pace.now


class Channels(torch.nn.Module):
    """A frozen trunk: the mean of each colour."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def coloured(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of three classes, of which the last has two, and outliers behind them without a label."""
    y = np.arange(count) % 2
    y[[5, 6]] = 2
    x = np.random.default_rng(seed).integers(0, 100, (count, 3, 8, 8), dtype=np.uint8)
    for row, code in enumerate(y):
        x[row, code] += 100
    return x, y


@pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")
def test_a_limit_holds_for_the_features_of_a_frozen_backbone(monkeypatch, tmp_path):
    pace, trunk = Pace(monkeypatch, 0.1, 0.1), Channels()
    trunk.register_forward_pre_hook(pace.spend)
    backbone, (x, y), outliers = demur.Backbone.of(trunk, 8), coloured(600), coloured(400, 1)[0]
    pace.now = 0.0
    settings = {"backbone": backbone, "epochs": 5, "device": "cpu", "time_limit": 40}
    with pytest.warns(
        UserWarning, match=r"time for the features of 2\d% of the inputs and outliers, .* \(time_limit\)$"
    ):
        model = demur.Classifier(**settings).fit(x, y, outliers)
    assert 25 < pace.now < 44
    assert 80 < model.report_["trained"] < 250
    assert model.report_["tuned"] + model.report_["calibrated"] == 125
    assert model.classes_.tolist() == [0, 1, 2]
    assert len(model.fitted_scores_) == 0
    trained = []
    for _ in range(4):  # with a cache the same again goes on
        pace.now = 0.0
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = demur.Classifier(cache=tmp_path, balance=True, abstain_by="knn", **settings).fit(x, y, outliers)
        assert pace.now < 44
        trained.append(model.report_["trained"])
    assert trained == sorted(trained)
    assert trained[0] < trained[1] < trained[-1] == 475
    assert not any("there is time" in str(each.message) for each in said)


def test_long_computing_of_features_is_announced(monkeypatch, tmp_path):
    pace, trunk = Pace(monkeypatch, 0.5, 0.5), Channels()
    trunk.register_forward_pre_hook(pace.spend)
    backbone, (x, y) = demur.Backbone.of(trunk, 8), coloured(600)
    model = demur.Classifier("map", backbone=backbone, epochs=1, device="cpu")
    expected = r"features of 4\d\d inputs will take about [45] minutes here; quicker: time_limit='5m', or fewer inputs"
    monkeypatch.setattr("demur.classifier.frozen.LONG", 200.0)
    with pytest.warns(UserWarning, match=expected + " and outliers; with cache=FOLDER"):
        model.fit(x, y)
    with pytest.warns(UserWarning, match=expected):
        model.set_params(cache=tmp_path).fit(x, y)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the backbone's features")
        model.fit(x, y)  # they are kept


def test_a_commands_limit_counts_from_its_beginning(clock):
    """Of ten seconds a command has taken six to start and to read."""
    clock[0] = 6.0
    with counted_from(0.0):
        assert end_of_limit("10s", clock[0]) == 10.0
    assert end_of_limit("10s", clock[0]) == 16.0
    assert end_of_limit(None, clock[0]) is None


@pytest.mark.parametrize(
    ("limit", "seconds"), [(None, None), (90, 90), ("90", 90), ("90s", 90), ("1.5m", 90), ("10 min", 600), ("2h", 7200)]
)
def test_limits_are_read(limit, seconds):
    assert parse_duration(limit) == seconds


@pytest.mark.parametrize("limit", ["soon", "-3", 0, True, "10 days", "1m30s", ""])
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises(ValueError, match="is no duration; give seconds, or such as '90s', '10m' or '2h'"):
        parse_duration(limit)


def test_patience_by_itself():
    train, validation = (Split(torch.zeros(count, 1, 4, 4), torch.zeros(count).long()) for count in (8, 50))
    images = TrainingData(train, validation)
    assert watch_recipe(Recipe(epochs=80), "auto", images).patience == 20
    assert watch_recipe(Recipe(epochs=80), "auto", DATA).patience is None  # a table
    assert watch_recipe(Recipe(epochs=80), 7, DATA).patience == 7
    assert watch_recipe(Recipe(epochs=80, lr=0.5), None, images) == WatchedRecipe(epochs=80, lr=0.5)
    with pytest.raises(ValueError, match="patience 'long' is not known"):
        watch_recipe(Recipe(), "long", DATA)
    for patience in (0, 1.5, float("nan"), True):
        with pytest.raises(ValueError, match=f"patience {patience!r} is no number of epochs"):
            watch_recipe(Recipe(), patience, DATA)
    with pytest.raises(ValueError, match="epochs True is no number"):
        Recipe(epochs=True)


def test_a_long_fit_is_announced(monkeypatch):
    monkeypatch.setattr("demur.classifier.limits.LONG", 0.0)
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 12, 12), dtype=np.uint8)
    with pytest.warns(UserWarning, match=r"will take up to \d+ minutes here .*; quicker: .*time_limit='5m'"):
        demur.Classifier("map", epochs=1, device="cpu").fit(x, np.arange(60) % 2)


def test_the_cost_of_a_fit_counts_passes():
    cost = Cost(forward=1.0, step=10.0, draw=0.01, curvature=5.0, look=100.0)
    data = TrainingData(clouds(60), clouds(20))
    assert cost.training(data, Recipe(epochs=3, batch_size=20), networks=5) == 5 * 3 * (3 * 10 + 100)
    passes = 2 * 60 * 5 + 20  # curvature; the MAP network on the inputs that tune
    laplace = demur.Laplace(over="head", grid=(1.0, 10.0))
    assert cost.after_training(laplace, data, num_predicted=7) == pytest.approx(passes + 7 + 20 * 2 + 0.01 * 20 * 5)
    everywhere = demur.Laplace(grid=(1.0, 10.0), tuning_samples=4, num_samples=6)
    assert cost.after_training(everywhere, data, num_predicted=7) == pytest.approx(
        passes + 7 * 6 + 20 * 2 * 4 + 0.01 * (2 * 4 + 3 * 6)
    )
    assert cost.after_training(demur.MAP(), data, num_predicted=7) == pytest.approx(7.03)
    assert cost.after_training(demur.Ensemble(), data, num_predicted=7) == pytest.approx(35.15)
    assert networks_in(demur.Ensemble()) == 5


def test_watched_networks_may_have_a_none_class():
    likelihood = demur.none_class(2)
    watch = Watch(network(3), likelihood, DATA.validation, None, {})
    assert 0 <= watch.look(1, 0.0) <= 1
    assert watch.curve[0][2] > 0.6  # nats: a fresh network of three outputs knows nothing
    assert not watch.over()


# augmentation, balance -----------------------------------------------------------------------------------------------


def test_augmentations_by_name_and_kind():
    small, large = torch.Size((8, 1, 28, 28)), torch.Size((8, 3, 64, 64))
    assert augmentation("auto", "images", small, False) == Jitter(1, "zero")
    assert augmentation("auto", "images", large, False) == Jitter(4, "reflect", flip=True)
    assert augmentation("strong", "images", large, False) == InTurn((Jitter(8, "reflect", flip=True), Light()))
    assert augmentation("off", "images", large, False) is None
    assert augmentation("auto", "rows", torch.Size((8, 3)), False) is None
    assert augmentation("auto", "images", torch.Size((8, 12)), True) is None
    with pytest.raises(ValueError, match="varies images from epoch to epoch"):
        augmentation("strong", "images", large, True)
    with pytest.raises(ValueError, match="is for images, and X are texts"):
        augmentation("light", "texts", torch.Size((8, 3)), False)
    with pytest.raises(ValueError, match="did you mean 'strong'"):
        augmentation("stong", "images", large, False)


def test_light_keeps_type_and_range_and_changes_each_image_as_a_whole():
    x = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made = Light()(x, torch.Generator().manual_seed(1))
    assert made.dtype == torch.uint8
    assert len({round(float(a.float().mean() / b.float().mean()), 2) for a, b in zip(made, x, strict=True)}) > 5
    floats = Light()(x.float() / 255, torch.Generator().manual_seed(1))
    assert torch.allclose(255 * floats, made.float(), atol=0.51)
    assert torch.equal(Light(0.0)(x, torch.Generator()), x)


def test_own_augmentation_sees_in_and_outliers_alike():
    sizes = []

    def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        sizes.append(len(x))
        return x

    x = np.random.default_rng(0).integers(0, 256, (80, 1, 12, 12), dtype=np.uint8)
    demur.Classifier("map+nc", augment=augment, epochs=1, batch_size=16, device="cpu").fit(x, np.arange(80) % 2)
    assert set(sizes) == {32}


def test_balanced_classes_are_trained_with_alike_and_none_is_lost():
    codes = torch.tensor([0] * 90 + [1] * 30 + [2] * 4)
    rows = torch.arange(124)[torch.randperm(124)]
    shown = balance_rows(rows, codes)
    assert codes[shown].bincount().tolist() == [90, 90, 40]  # the last ten times, which is the most
    assert set(shown.tolist()) == set(rows.tolist())
    assert sorted(shown[codes[shown] == 0].tolist()) == list(range(90))


def test_thresholds_of_a_balanced_fit_are_those_of_the_data():
    random = np.random.default_rng(0)
    y = (random.random(3000) < 0.05).astype(int)
    x = random.normal(size=(3000, 2)) + 1.5 * y[:, None]
    recalls, coverages = [], []
    for balance in (False, True):
        model = demur.Classifier("map+nc", balance=balance, epochs=10, device="cpu").fit(x[:2000], y[:2000])
        answers = model.predict_all(x[2000:])
        recalls.append((answers.label[y[2000:] == 1] == 1).mean())
        coverages.append(1 - np.isin(answers.decision, ["unsure", "unknown"]).mean())
    assert recalls[1] > recalls[0] + 0.2
    assert all(0.91 < coverage < 0.99 for coverage in coverages)


def test_a_curve_is_as_exact_as_what_was_measured():
    task = make_task()
    watch = Watch(mlp(3, inputs=4, hidden=(8,)), plain(3), task.training.train, None, {})
    watch.look(1, 0.1)
    assert watch.curve[0][:2] == (1, 0.1)
