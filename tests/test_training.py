"""The loop: repeatable, unbiased in its units, one pass for both kinds."""

import math
import random
import warnings
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from demur import graphs
from demur.graphs import Recorded, can_compile, compiled, fastest_convolutions, needs_host, of_start_up
from demur.inference import MAP, Laplace
from demur.likelihoods import none_class, outlier_exposure, plain
from demur.networks import PatchConv2d, gru, lenet, mlp, wide_resnet
from demur.streams import generator_for
from demur.training import (
    Feed,
    Learner,
    check_logits,
    cosine,
    observed,
    optimizer_for,
    run_epoch,
    seeded,
    set_rate,
    train,
    warmed_up,
)
from demur.training_data import Fixed, Recipe, Split, TrainingData, WatchedRecipe
from tests.conftest import changed, make_task


def weights(point) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in point.network.parameters()])


def test_a_seed_repeats_bit_for_bit_and_leaves_the_global_state_alone(task, network, recipe):
    state = torch.get_rng_state()
    first, second = (MAP().fit(network, none_class(3), task.training, recipe) for _ in range(2))
    other = MAP().fit(network, none_class(3), task.training, replace(recipe, seed=1))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))
    assert MAP().parts(recipe) == []
    assert torch.equal(torch.get_rng_state(), state)


def test_one_full_batch_step_is_gradient_ascent_on_the_log_posterior(task, network):
    """SGD with Nesterov momentum makes a first step of (1 + momentum) lr times the gradient; decay is the prior's."""
    recipe = Recipe(epochs=1, batch_size=96, optimizer="sgd", lr=0.1, weight_decay=0.01)
    likelihood = outlier_exposure(3)
    after = MAP().fit(network, likelihood, task.training, recipe).network
    torch.manual_seed(recipe.seed)
    before = network(3)
    logits = before(torch.cat([task.training.train.x, task.training.outliers.x]))
    value = likelihood.log_prob(logits[:96], task.training.train.y, logits[96:])
    prior = -0.5 * 0.01 * sum((p**2).sum() for p in before.parameters())
    (value + prior).backward()
    for p, q in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(q, p + 0.1 * 1.9 * p.grad, rtol=1e-4, atol=1e-6)


def test_a_long_gradient_is_shortened_to_the_recipes_norm(task, network):
    recipe = Recipe(epochs=1, batch_size=96, optimizer="sgd", lr=0.1, weight_decay=0.0, clip_norm=0.01)
    steps = {}
    for norm in (0.01, 1e6, None):
        moved = weights(MAP().fit(network, plain(3), task.training, replace(recipe, clip_norm=norm)))
        torch.manual_seed(recipe.seed)
        steps[norm] = moved - torch.cat([p.detach().flatten() for p in network(3).parameters()])
    assert steps[0.01].norm() == pytest.approx(0.1 * 1.9 * 0.01, rel=1e-3)
    assert steps[1e6].norm() > 10 * steps[0.01].norm()
    torch.testing.assert_close(steps[1e6], steps[None])
    torch.testing.assert_close(steps[0.01] / steps[0.01].norm(), steps[None] / steps[None].norm(), rtol=1e-3, atol=1e-4)


def test_adam_is_torchs(task, network):
    recipe = Recipe(epochs=3, batch_size=96, lr=0.01, weight_decay=0.1, clip_norm=None)
    torch.manual_seed(recipe.seed)
    model = network(3)
    theirs = torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)
    for epoch in range(3):
        theirs.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * epoch / 3))
        theirs.zero_grad()
        nn.functional.cross_entropy(model(task.training.train.x), task.training.train.y).backward()
        theirs.step()
    ours = MAP().fit(network, plain(3), task.training, recipe)
    torch.testing.assert_close(weights(ours), torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_the_undecayed_are_exempt_from_the_prior(network):
    model = network(3)
    for name, recipe in (("sgd", Recipe(optimizer="sgd", lr=0.2, weight_decay=0.5)), ("adam", Recipe())):
        optimizer = optimizer_for(model, recipe, ["head.bias"])
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert {n: decays[id(p)] for n, p in model.named_parameters()} == {
            n: 0.0 if n == "head.bias" else recipe.weight_decay for n, _ in model.named_parameters()
        }
        assert all(group["lr"] == recipe.lr for group in optimizer.param_groups), name
    (everything,) = optimizer_for(model, Recipe()).param_groups
    assert len(everything["params"]) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="unknown optimizer 'adamw'"):
        optimizer_for(model, replace(Recipe(), optimizer="adamw"))


def test_the_rate_is_a_share_of_the_first():
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.5)
    for share in (1.0, 0.25, 0.5):
        set_rate(optimizer, share)
        assert optimizer.param_groups[0]["lr"] == 0.5 * share
    # a tensor stays where it is, for whoever has recorded its place
    optimizer = torch.optim.SGD([w], lr := torch.tensor(0.5))
    optimizer.param_groups[0]["initial_lr"] = 0.5
    for share in (0.25, 0.5):
        set_rate(optimizer, share)
        assert optimizer.param_groups[0]["lr"] is lr
        assert float(lr) == 0.5 * share


def test_cosine_falls_from_one_to_zero():
    assert [cosine(done) for done in (0, 1 / 3, 0.5, 2 / 3, 1)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_inliers_and_outliers_go_through_batch_norm_in_one_pass(task, recipe):
    sizes = []

    class Watching(nn.Sequential):
        def forward(self, x):
            if self.training:
                sizes.append(len(x))
            return super().forward(x)

    build = lambda c: Watching(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, c))  # noqa: E731
    MAP().fit(build, none_class(3), task.training, recipe)
    assert set(sizes) == {64}
    sizes.clear()
    MAP().fit(build, plain(3), task.training, recipe)
    assert set(sizes) == {32}


def test_streams_of_different_purpose_are_independent():
    """A CPU generator keeps 32 bits of its seed: adding to a seed, or shifting it, gives the same numbers again."""
    purposes = [("batches", 0), ("batches", 1), ("fisher", 0), ("draws", 0, 0), ("draws", 0, 1), ("test noise",)]
    firsts = [torch.rand(1000, generator=generator_for(*purpose)) for purpose in purposes]
    firsts += [torch.rand(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    assert torch.corrcoef(torch.stack(firsts)).fill_diagonal_(0).abs().max() < 0.15


def test_outliers_of_another_type_are_refused(task, network, recipe):
    images = changed(
        task,
        train=Split(torch.zeros(8, 4, dtype=torch.uint8), torch.arange(8) % 3),
        validation=Split(torch.zeros(8, 4, dtype=torch.uint8), torch.arange(8) % 3),
    )
    with pytest.raises(ValueError, match=r"outliers are torch.float32, inliers torch.uint8"):
        MAP().fit(network, none_class(3), images.training, recipe)


def test_numpys_types_are_taken(task, network, recipe):
    as_numpy = changed(
        task,
        train=Split(task.training.train.x.double(), task.training.train.y.int()),
        outliers=Fixed(task.training.outliers.x.double()),
    )
    same = weights(MAP().fit(network, none_class(3), as_numpy.training, recipe))
    assert torch.equal(same, weights(MAP().fit(network, none_class(3), task.training, recipe)))


def test_an_epoch_shows_every_inlier_once_and_as_many_outliers(task, recipe):
    feed = Feed(task.training, recipe, with_outliers=True)
    for _ in range(2):
        feed.shuffle()
        batches = [feed.next() for _ in range(feed.steps)]
        inside = torch.cat([x[: len(y)] for x, y in batches])
        assert torch.equal(inside.sort(0).values, task.training.train.x.sort(0).values)
        assert all(len(x) == 2 * len(y) for x, y in batches)
        for x, y in batches:
            assert torch.equal(
                y, torch.stack([task.training.train.y[(task.training.train.x == row).all(1)][0] for row in x[: len(y)]])
            )
    few = changed(task, outliers=Fixed(task.training.outliers.x[:10]))
    feed = Feed(few.training, recipe, with_outliers=True)
    feed.shuffle()
    shown = torch.cat([x[len(y) :] for x, y in (feed.next() for _ in range(feed.steps))])
    counts = (shown[:, None] == few.training.outliers.x).all(2).sum(0)
    assert counts.min() >= 9  # 96 outliers shown, ten different ones in turn
    assert counts.max() <= 10


def shown(feed: Feed) -> tuple[torch.Tensor, torch.Tensor]:
    """An epoch's inliers and outliers."""
    feed.shuffle()
    batches = [feed.next() for _ in range(feed.steps)]
    return tuple(torch.cat(its) for its in zip(*((x[: len(y)], x[len(y) :]) for x, y in batches), strict=True))


def test_batches_are_full_and_what_is_left_over_differs(task, recipe):
    feed = Feed(task.training, replace(recipe, batch_size=40), with_outliers=True)
    assert feed.steps == 2
    epochs = [shown(feed) for _ in range(2)]
    for inside, outside in epochs:
        assert len(inside) == len(inside.unique(dim=0)) == len(outside) == len(outside.unique(dim=0)) == 80
    assert not torch.equal(*(inside.sort(0).values for inside, _ in epochs))
    whole = Feed(task.training, replace(recipe, batch_size=1000), with_outliers=False)
    assert (whole.steps, len(shown(whole)[0])) == (1, 96)


def test_batches_follow_from_the_seed_alone(task, recipe):
    with_outliers, without, other = (
        shown(Feed(task.training, replace(recipe, seed=seed), with_outliers=outliers))[0]
        for seed, outliers in ((3, True), (3, False), (4, False))
    )
    assert torch.equal(with_outliers, without)
    assert not torch.equal(without, other)


@dataclass(frozen=True)
class Counted:
    """Outliers that say which epoch they were made for."""

    made: list[torch.Tensor] = field(default_factory=list)
    shape = torch.Size((50, 4))

    def epoch(self, generator: torch.Generator) -> torch.Tensor:
        self.made.append(torch.full((50, 4), len(self.made) + 1.0 if len(self.made) < 3 else torch.nan))
        return self.made[-1]


def test_outliers_may_be_made_anew_every_epoch(task, recipe):
    source = Counted()
    feed = Feed(changed(task, outliers=source).training, recipe, with_outliers=True)
    for epoch in (1, 2, 3):
        assert (shown(feed)[1] == epoch).all()
    assert [float(made.unique()) for made in source.made] == [1, 2, 3]  # what was given stays as it was
    with pytest.raises(ValueError, match="an epoch of outliers has a NaN or infinite value in input 0"):
        feed.shuffle()


def test_inliers_and_outliers_are_augmented_alike_and_anew(task, recipe):
    given = []

    def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        given.append(x)
        return x + torch.rand(len(x), 1, generator=generator)

    feed = Feed(changed(task, augment=augment).training, recipe, with_outliers=True)
    epochs = [shown(feed) for _ in range(2)]
    for (inside, outside), first in zip(epochs, (0, 3), strict=True):
        before = torch.cat([x[:32] for x in given[first : first + 3]]), torch.cat([x[32:] for x in given[first:][:3]])
        for made, original in zip((inside, outside), before, strict=True):
            moved = made - original
            assert len(moved[:, 0].unique()) == 96
            torch.testing.assert_close(moved, moved[:, :1].expand(-1, 4), rtol=0, atol=1e-5)


def test_the_rate_falls_to_zero_by_step_or_by_epoch(task, network):
    for kind, steps in (("step", 6), ("epoch", 2)):
        recipe = Recipe(epochs=2, batch_size=32, optimizer="sgd", cosine=kind)
        model = network(3)
        seen = []

        class Spy(torch.optim.SGD):
            def step(self, closure=None):
                seen.append(self.param_groups[0]["lr"])  # noqa: B023
                return super().step(closure)

        list(train(model, plain(3), task.training, recipe, optimizer=Spy(model.parameters(), 1.0)))
        expected = [cosine(i / steps) for i in range(steps) for _ in range(6 // steps)]
        assert seen == pytest.approx(expected)
        seen.clear()


def test_progress_is_told_after_every_epoch(task, network, recipe):
    told = []
    with observed(told.append):
        MAP().fit(network, plain(3), task.training, recipe)
    assert [(p.epoch, p.epochs) for p in told] == [(1, 2), (2, 2)]
    assert told[1].loss < told[0].loss
    MAP().fit(network, plain(3), task.training, recipe)
    assert len(told) == 2  # outside the block nobody is told


@pytest.mark.parametrize("batch_size", [96, 32])
def test_the_loss_is_minus_the_objective_in_nats_per_inlier(task, network, batch_size):
    """Of a network that hardly moves; 0.25 is the penalty."""
    model, told = network(4), []
    recipe = Recipe(epochs=1, batch_size=batch_size, lr=1e-12)
    with torch.no_grad():
        value = none_class(3).log_prob(
            model(task.training.train.x), task.training.train.y, model(task.training.outliers.x)
        )
    with observed(told.append):
        for epoch in train(model, none_class(3), task.training, recipe, penalty=lambda: torch.tensor(0.25)):
            assert (epoch, model.training) == (1, True)
    assert not model.training
    assert told[0].loss == pytest.approx(0.25 - float(value), rel=1e-5)


def test_an_epoch_of_learners_side_by_side_gives_their_mean_loss(task, network):
    recipe = Recipe(epochs=1, batch_size=32, lr=1e-12)

    def learners() -> list[Learner]:
        made = []
        for seed in range(2):
            torch.manual_seed(seed)
            model = network(3)
            made.append(Learner(model, plain(3), task.training, recipe, optimizer_for(model, recipe)))
        return made

    first, second, both = (
        run_epoch(some, Recorded(some), recipe, cosine, 0) for some in (learners()[:1], learners()[1:], learners())
    )
    assert first != pytest.approx(second, rel=1e-3)
    assert both == pytest.approx((first + second) / 2)


def test_a_recording_is_given_up_where_settings_change_other_than_the_rate(task, network, recipe):
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    recorded = Recorded([learner := Learner(model, plain(3), task.training, recipe, optimizer)])
    optimizer.param_groups[0]["lr"] = 0.2
    assert recorded.unless_changed() is recorded
    optimizer.param_groups[0]["weight_decay"] = 0.2
    assert recorded.unless_changed() is not recorded
    assert recorded.unless_changed().learners == [learner]


def test_randomness_goes_on_as_if_nothing_had_happened():
    torch.manual_seed(0)
    first, second = torch.rand(1), torch.rand(1)
    torch.manual_seed(0)
    assert torch.rand(1) == first
    with seeded(7, torch.device("cpu")):
        inside = torch.rand(1)
    assert torch.rand(1) == second
    torch.manual_seed(7)
    assert torch.rand(1) == inside


@pytest.mark.parametrize(
    ("step", "needed"),
    [
        (lambda: None, False),
        (lambda: warnings.warn("called a synchronizing operation", stacklevel=1), True),
        (lambda: warnings.warn("Attempting to run cuBLAS", stacklevel=1), False),
        (lambda: torch.rand(1), True),
        (random.random, True),
        (lambda: np.random.random(1000), True),  # noqa: NPY002 (others do)
    ],
)
def test_steps_that_wait_for_the_host_or_draw_there_are_noticed(monkeypatch, step, needed):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    assert needs_host(step) is needed
    assert modes == ["warn", 0]


def test_other_warnings_of_a_step_are_passed_on(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with pytest.warns(UserWarning, match="of the network's own"):
        assert not needs_host(lambda: warnings.warn("of the network's own", stacklevel=1))
    with pytest.raises(KeyError):
        needs_host(lambda: {}["a"])
    assert modes == ["warn", 0] * 2


def test_what_libraries_say_of_their_start_up():
    assert of_start_up(UserWarning("TensorFloat32 tensor cores available"))
    assert of_start_up("cuBLAS")
    assert not of_start_up(UserWarning("lr_scheduler"))


def test_many_heads_of_a_network_are_compiled_and_the_limit_is_torchs_again(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # which needs no compiler
    before = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for classes in range(2, before + 6):
        model, x = mlp(classes, inputs=4, hidden=(8,)), torch.rand(3, 4)
        torch.testing.assert_close(compiled(model)(x), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 4
    assert torch._dynamo.config.recompile_limit == before


def test_only_what_gains_from_it_is_compiled(monkeypatch):
    tools = {"gcc": "/usr/bin/gcc"}
    monkeypatch.setattr(graphs.shutil, "which", tools.get)
    monkeypatch.setattr(graphs, "find_spec", {"triton": "there"}.get)
    assert can_compile(mlp(3))
    assert not can_compile(gru(3, vocabulary=5))
    monkeypatch.setattr(graphs, "find_spec", {}.get)
    assert not can_compile(mlp(3))
    monkeypatch.setattr(graphs, "find_spec", {"triton": "there"}.get)
    tools.clear()
    assert not can_compile(mlp(3))


def test_logits_may_have_draws_in_front():
    check_logits(torch.zeros(5, 8, 4), 8, none_class(3))
    for shape in ((8, 3), (7, 4), (4, 8), (8, 4, 1)):
        with pytest.raises(ValueError, match="head of 4"):
            check_logits(torch.zeros(shape), 8, none_class(3))


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (lambda c: nn.Linear(4, 7), "head of 4"),
        (lambda c: nn.Sequential(nn.Linear(4, c), nn.Flatten(0)), "head of 4"),
        (lambda c: nn.LSTM(4, c), "tuple"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(task, recipe, network, says):
    with pytest.raises(ValueError, match=says):
        MAP().fit(network, none_class(3), task.training, recipe)


def test_a_diverging_loss_is_loud(task, network):
    with pytest.raises(FloatingPointError, match=r"in epoch [12]; lower the learning rate \(1e\+30\)"):
        MAP().fit(network, plain(3), task.training, Recipe(epochs=2, batch_size=32, optimizer="sgd", lr=1e30))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))}, "training data is empty"),
        ({"train": Split(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))}, "NaN or infinite value in input 0"),
        ({"train": Split(torch.zeros(2, 4), torch.tensor([0, 3]))}, "label 3; 3 classes"),
        ({"train": Split(torch.zeros(2, 4), torch.tensor([0]))}, "2 inputs and 1 labels"),
        ({"outliers": Fixed(torch.zeros(5, 3))}, r"outliers has inputs of shape \(3,\)"),
        ({"outliers": Fixed(torch.zeros(0, 4))}, "outliers is empty"),
        ({"validation": Split(torch.zeros(5, 2), torch.zeros(5, dtype=torch.long))}, r"validation data has inputs of"),
    ],
)
def test_a_task_that_cannot_be_learned_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        changed(make_task(), **change)


def test_sets_to_test_with_are_of_one_shape():
    task = make_task()
    with pytest.raises(ValueError, match=r"OOD set odd has inputs of shape \(2,\)"):
        replace(task.testing, ood={"odd": torch.zeros(5, 2)})
    other = Split(torch.zeros(5, 2), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"clouds's test data has inputs of shape \(2,\), the training data \(4,\)"):
        replace(task, testing=replace(task.testing, test=other, ood={}))


def test_what_a_method_needs_and_does_not_get_is_named(task, network, recipe):
    with pytest.raises(ValueError, match="trains with outliers, and there are none"):
        MAP().fit(network, none_class(3), replace(task.training, outliers=None), recipe)
    with pytest.raises(ValueError, match="no validation data to tune with"):
        Laplace().fit(network, plain(3), replace(task.training, validation=None), recipe)
    MAP().fit(network, plain(3), TrainingData(task.training.train), recipe)


@pytest.mark.parametrize("field", ["epochs", "batch_size", "lr"])
def test_a_recipe_that_learns_nothing_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} 0 is not positive"):
        Recipe(**{field: 0})


NETWORKS = {
    "mlp": (partial(mlp, inputs=4), torch.zeros(2, 4)),
    "lenet": (lenet, torch.zeros(2, 1, 28, 28)),
    "wide_resnet": (wide_resnet, torch.zeros(2, 3, 32, 32)),
    "gru": (gru, torch.ones(2, 9, dtype=torch.long)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_heads_on_features_of_the_asked_size(name):
    network, x = NETWORKS[name]
    model = network(11).eval()
    assert model(x).shape == (2, 11)
    torch.testing.assert_close(model(x), model.head(model.features(x)))


def test_lenet_and_wide_resnet_are_the_papers():
    convolutions = 32 * 25 + 32 + 64 * 32 * 25 + 64
    assert sum(p.numel() for p in lenet(10).parameters()) == convolutions + 3136 * 1024 + 1024 + 1024 * 10 + 10
    assert sum(p.numel() for p in wide_resnet(10).parameters()) == 2_748_890
    with pytest.raises(ValueError, match="depth 15"):
        wide_resnet(10, depth=15)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_by_patches_is_a_convolution(channels):
    torch.manual_seed(0)
    layer = PatchConv2d(channels, 6, (5, 3), padding=(2, 1)).to(memory_format=torch.channels_last)
    x = torch.rand(4, channels, 9, 8)
    torch.testing.assert_close(layer.by_patches(x), layer(x))
    assert layer.by_patches(x).is_contiguous(memory_format=torch.channels_last)


def test_pooling_before_the_relu_is_the_same(task):
    torch.manual_seed(0)
    model = lenet(5)
    x = torch.rand(3, 1, 28, 28)
    h = nn.functional.max_pool2d(model.features[0](x).relu(), 2)
    h = nn.functional.max_pool2d(model.features[3](h).relu(), 2)
    torch.testing.assert_close(model.head(model.features[7](h.flatten(1)).relu()), model(x))


def test_labels_must_be_whole_numbers():
    with pytest.raises(ValueError, match=r"labels are torch.float32; give whole numbers"):
        Split(torch.zeros(2, 4), torch.zeros(2))


@pytest.mark.parametrize(
    ("deterministic", "everywhere", "before", "tried"),
    [(False, False, False, True), (True, False, False, False), (False, True, False, False), (True, True, True, True)],
)
def test_ways_to_convolve_are_tried_unless_the_same_bits_are_wanted(
    monkeypatch, deterministic, everywhere, before, tried
):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: everywhere)
    with fastest_convolutions():
        assert torch.backends.cudnn.benchmark is tried
    assert torch.backends.cudnn.benchmark is before


def test_a_warm_up_begins_at_nothing_and_ends_at_the_rate_itself():
    assert [warmed_up(lambda done: 10 - done, 0.1, done) for done in (0.0, 0.05, 0.1, 0.5)] == [0, 4.975, 9.9, 9.5]


def test_a_trunk_that_is_tuned_learns_at_a_rate_of_its_own_and_is_not_drawn_to_zero():
    model = nn.Sequential()
    model.features, model.head = nn.Linear(3, 4), nn.Linear(4, 2)  # type: ignore[assignment]

    def own(recipe: Recipe) -> dict[tuple[float, float], int]:
        groups = optimizer_for(model, recipe).param_groups
        return {(group["lr"], group["weight_decay"]): len(group["params"]) for group in groups}

    assert own(WatchedRecipe(lr=0.1, weight_decay=0.5, trunk_rate=0.25)) == {(0.1, 0.5): 2, (0.025, 0.0): 2}
    assert own(WatchedRecipe(lr=0.1, weight_decay=0.5, trunk_rate=1)) == {(0.1, 0.5): 4}
    assert own(Recipe(lr=0.1, weight_decay=0.5)) == {(0.1, 0.5): 4}


def test_processes_are_asked_whether_they_train_alike_before_the_first_step(task, network, recipe, monkeypatch):
    asked = []
    monkeypatch.setattr("demur.training.start_alike", lambda *what: asked.append(what))
    MAP().fit(network, plain(3), task.training, recipe)
    ((model, *numbers),) = asked
    assert isinstance(model, nn.Module)
    assert numbers == [len(task.training.train), recipe.epochs, recipe.seed, 0]
