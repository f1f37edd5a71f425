"""The loop: repeatable, unbiased in its units, one pass for both kinds."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from demur.inference import MAP
from demur.likelihoods import none_class, outlier_exposure, plain
from demur.networks import PatchConv2d, gru, lenet, mlp, wide_resnet
from demur.streams import generator_for
from demur.tasks.base import Fixed, Recipe, Split
from demur.training import Feed, cosine, fastest_convolutions, observed, train
from tests.conftest import make_task


def weights(point) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in point.network.parameters()])


def test_a_seed_repeats_bit_for_bit_and_leaves_the_global_state_alone(task, network, recipe):
    state = torch.get_rng_state()
    first, second = (MAP().fit(network, none_class(3), task, recipe) for _ in range(2))
    other = MAP().fit(network, none_class(3), task, replace(recipe, seed=1))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))
    assert torch.equal(torch.get_rng_state(), state)


def test_one_full_batch_step_is_gradient_ascent_on_the_log_posterior(task, network):
    """SGD with Nesterov momentum makes a first step of (1 + momentum) lr times the gradient; decay is the prior's."""
    recipe = Recipe(epochs=1, batch_size=96, optimizer="sgd", lr=0.1, weight_decay=0.01)
    likelihood = outlier_exposure(3)
    after = MAP().fit(network, likelihood, task, recipe).network
    torch.manual_seed(recipe.seed)
    before = network(3)
    logits = before(torch.cat([task.train.x, task.outliers.x]))
    value = likelihood.log_prob(logits[:96], task.train.y, logits[96:])
    prior = -0.5 * 0.01 * sum((p**2).sum() for p in before.parameters())
    (value + prior).backward()
    for p, q in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(q, p + 0.1 * 1.9 * p.grad, rtol=1e-4, atol=1e-6)


def test_inliers_and_outliers_go_through_batch_norm_in_one_pass(task, recipe):
    sizes = []

    class Watching(nn.Sequential):
        def forward(self, x):
            if self.training:
                sizes.append(len(x))
            return super().forward(x)

    build = lambda c: Watching(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, c))  # noqa: E731
    MAP().fit(build, none_class(3), task, recipe)
    assert set(sizes) == {64}
    sizes.clear()
    MAP().fit(build, plain(3), task, recipe)
    assert set(sizes) == {32}


def test_streams_of_different_purpose_are_independent():
    """A CPU generator keeps 32 bits of its seed: adding to a seed, or shifting it, gives the same numbers again."""
    purposes = [("batches", 0), ("batches", 1), ("fisher", 0), ("draws", 0, 0), ("draws", 0, 1), ("test noise",)]
    firsts = [torch.rand(1000, generator=generator_for(*purpose)) for purpose in purposes]
    firsts += [torch.rand(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    assert torch.corrcoef(torch.stack(firsts)).fill_diagonal_(0).abs().max() < 0.15


def test_outliers_of_another_type_are_refused(task, network, recipe):
    pictures = replace(
        task,
        train=Split(torch.zeros(8, 4, dtype=torch.uint8), torch.arange(8) % 3),
        validation=Split(torch.zeros(8, 4, dtype=torch.uint8), torch.arange(8) % 3),
    )
    with pytest.raises(ValueError, match=r"outliers are torch.float32, inliers torch.uint8"):
        MAP().fit(network, none_class(3), pictures, recipe)


def test_numpys_types_are_taken(task, network, recipe):
    as_numpy = replace(
        task, train=Split(task.train.x.double(), task.train.y.int()), outliers=Fixed(task.outliers.x.double())
    )
    same = weights(MAP().fit(network, none_class(3), as_numpy, recipe))
    assert torch.equal(same, weights(MAP().fit(network, none_class(3), task, recipe)))


def test_an_epoch_shows_every_inlier_once_and_as_many_outliers(task, recipe):
    feed = Feed(task, recipe, with_outliers=True)
    for _ in range(2):
        feed.shuffle()
        batches = [feed.next() for _ in range(feed.steps)]
        inside = torch.cat([x[: len(y)] for x, y in batches])
        assert torch.equal(inside.sort(0).values, task.train.x.sort(0).values)
        assert all(len(x) == 2 * len(y) for x, y in batches)
    few = replace(task, outliers=Fixed(task.outliers.x[:10]))
    feed = Feed(few, recipe, with_outliers=True)
    feed.shuffle()
    shown = torch.cat([x[len(y) :] for x, y in (feed.next() for _ in range(feed.steps))])
    counts = (shown[:, None] == few.outliers.x).all(2).sum(0)
    assert counts.min() >= 9  # 96 outliers shown, ten different ones in turn
    assert counts.max() <= 10


def test_the_rate_falls_to_zero_by_step_or_by_epoch(task, network):
    for kind, steps in (("step", 6), ("epoch", 2)):
        recipe = Recipe(epochs=2, batch_size=32, optimizer="sgd", cosine=kind)
        model = network(3)
        seen = []

        class Spy(torch.optim.SGD):
            def step(self, closure=None):
                seen.append(self.param_groups[0]["lr"])  # noqa: B023
                return super().step(closure)

        list(train(model, plain(3), task, recipe, optimizer=Spy(model.parameters(), 1.0)))
        expected = [cosine(i / steps) for i in range(steps) for _ in range(6 // steps)]
        assert seen == pytest.approx(expected)
        seen.clear()


def test_progress_is_told_after_every_epoch(task, network, recipe):
    told = []
    with observed(told.append):
        MAP().fit(network, plain(3), task, recipe)
    assert [(p.epoch, p.epochs) for p in told] == [(1, 2), (2, 2)]
    assert told[1].loss < told[0].loss


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
        MAP().fit(network, none_class(3), task, recipe)


def test_a_diverging_loss_is_loud(task, network):
    with pytest.raises(FloatingPointError, match=r"learning rate \(1e\+30\)"):
        MAP().fit(network, plain(3), task, Recipe(epochs=2, batch_size=32, optimizer="sgd", lr=1e30))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))}, "train data is empty"),
        ({"train": Split(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))}, "NaN or infinite value in input 0"),
        ({"train": Split(torch.zeros(2, 4), torch.tensor([0, 3]))}, "label 3; 3 classes"),
        ({"train": Split(torch.zeros(2, 4), torch.tensor([0]))}, "2 inputs and 1 labels"),
        ({"outliers": Fixed(torch.zeros(5, 3))}, r"outliers has inputs of shape \(3,\)"),
        ({"outliers": Fixed(torch.zeros(0, 4))}, "outliers is empty"),
        ({"ood_test": {"odd": torch.zeros(5, 2)}}, r"odd has inputs of shape \(2,\)"),
    ],
)
def test_a_task_that_cannot_be_learned_is_refused(change, says):
    task = make_task()
    with pytest.raises(ValueError, match=says):
        replace(task, **change)


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
