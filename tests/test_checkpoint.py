"""A network killed in training and trained on equals one that was never killed, byte for byte."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from demur import checkpoint, training
from demur.checkpoint import checkpointed, seconds_in
from demur.inference import MAP, CyclicalSGHMC, Ensemble, Flipout, VariationalBayes
from demur.likelihoods import none_class
from demur.networks import lenet, wide_resnet
from demur.predictive import predict
from demur.tasks.base import Fixed, Recipe, Split
from tests.conftest import make_task
from tests.test_posterior import Normed, Tied


class Killed(Exception):
    """Stands for a process that is no more."""


METHODS = {
    "map": MAP(),
    "vb": VariationalBayes(num_draws=3),
    "flipout": Flipout(num_draws=3),
    "csghmc": CyclicalSGHMC(cycles=2, samples_per_cycle=2, length=1.0),
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", METHODS)
def test_killed_and_resumed_equals_never_killed(name, optimizer, task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    recipe = Recipe(epochs=8, batch_size=32, optimizer=optimizer, lr=1e-2)
    whole = METHODS[name].fit(Normed, none_class(3), task, recipe)

    for dies_after in (2, 5, 7):

        def die(report: training.EpochReport, at: int = dies_after) -> None:
            if report.epoch == at:
                raise Killed

        with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
            METHODS[name].fit(Normed, none_class(3), task, recipe)
        torch.rand(3)  # a new process has another random state
    told = []
    with checkpointed(tmp_path / "c"), training.observed(told.append):
        resumed = METHODS[name].fit(Normed, none_class(3), task, recipe)
    assert [report.epoch for report in told] == [7, 8]
    made, expected = (predict(p, none_class(3), task.test.x) for p in (resumed, whole))
    assert torch.equal(made.probs, expected.probs)


def test_the_seconds_of_every_try_are_counted(task, tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert seconds_in(tmp_path / "c") == 0
    for dies_after in (2, 5, 7):

        def die(report: training.EpochReport, at: int = dies_after) -> None:
            now[0] += 10
            if report.epoch == at:
                raise Killed

        with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
            MAP().fit(Normed, none_class(3), task, Recipe(epochs=8, batch_size=32))
        now[0] += 500  # while nobody trains
        assert seconds_in(tmp_path / "c") == 10 * (dies_after - 1)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    "network", [partial(lenet, channels=3, size=8, hidden=8), partial(wide_resnet, depth=10, width=1)]
)
def test_weights_in_another_memory_layout_resume_alike(network, optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    task, recipe = make_task((3, 8, 8), count=32), Recipe(epochs=3, batch_size=16, optimizer=optimizer, lr=1e-2)
    whole = MAP().fit(network, none_class(3), task, recipe)

    def die(report: training.EpochReport) -> None:
        if report.epoch == 3:
            raise Killed

    with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
        MAP().fit(network, none_class(3), task, recipe)
    with checkpointed(tmp_path / "c"):
        resumed = MAP().fit(network, none_class(3), task, recipe)
    for resumed_p, p in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(resumed_p, p)


def test_members_of_an_ensemble_do_not_take_each_others_checkpoints(task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    recipe = Recipe(epochs=3, batch_size=32)
    alone = Ensemble(members=2).fit(Normed, none_class(3), task, recipe)
    with checkpointed(tmp_path / "c"):
        together = Ensemble(members=2).fit(Normed, none_class(3), task, recipe)
    for draw in range(2):
        assert torch.equal(alone.logits(task.test.x, draw), together.logits(task.test.x, draw))


def test_tied_weights_are_continued(task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    network = lambda outputs: nn.Sequential(Tied(), nn.Linear(4, outputs))  # noqa: E731
    recipe = Recipe(epochs=3, batch_size=32)
    with checkpointed(tmp_path / "c"):
        first, second = (MAP().fit(network, none_class(3), task, recipe) for _ in range(2))
    assert torch.equal(first.logits(task.test.x), second.logits(task.test.x))


def killed_after(epoch: int, network: int = 1):
    """An observer that dies after so many epochs of the so-many-th network."""
    begun = []

    def die(report: training.EpochReport) -> None:
        begun.extend([report] if report.epoch == 1 else [])
        if (report.epoch, len(begun)) == (epoch, network):
            raise Killed

    return die


def test_in_a_folder_every_member_of_an_ensemble_is_kept(task, tmp_path):
    recipe = Recipe(epochs=3, batch_size=32)
    whole = Ensemble(members=3).fit(Normed, none_class(3), task, recipe)
    told = []
    with pytest.raises(Killed), checkpointed(tmp_path), training.observed(killed_after(2, network=3)):
        Ensemble(members=3).fit(Normed, none_class(3), task, recipe)
    with checkpointed(tmp_path) as place, training.observed(told.append):
        resumed = Ensemble(members=3).fit(Normed, none_class(3), task, recipe)
    assert [report.epoch for report in told] == [1, 2, 3]  # of the third alone: the others were finished
    assert place.used == {*tmp_path.iterdir()}
    for draw in range(3):
        assert torch.equal(resumed.logits(task.test.x, draw), whole.logits(task.test.x, draw))


def other_inputs(task):
    return replace(task, train=Split(task.train.x + 1e-3, task.train.y))


def other_labels(task):
    return replace(task, train=Split(task.train.x, task.train.y.roll(1)))


def other_outliers(task):
    return replace(task, outliers=Fixed(task.outliers.x.flip(0)))


@pytest.mark.parametrize("change", [other_inputs, other_labels, other_outliers])
@pytest.mark.parametrize("folder", [True, False])
def test_a_checkpoint_of_other_data_is_not_continued(change, folder, task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    recipe, path = Recipe(epochs=3, batch_size=32), tmp_path if folder else tmp_path / "c"
    with pytest.raises(Killed), checkpointed(path), training.observed(killed_after(3)):
        MAP().fit(Normed, none_class(3), task, recipe)
    (kept,) = tmp_path.iterdir()
    before, told = kept.read_bytes(), []
    said = pytest.warns(UserWarning, match="is of other data or other settings") if folder else nullcontext()
    with said, checkpointed(path), training.observed(told.append):
        fresh = MAP().fit(Normed, none_class(3), change(task), recipe)
    assert [report.epoch for report in told] == [1, 2, 3]
    alone = MAP().fit(Normed, none_class(3), change(task), recipe)
    assert torch.equal(fresh.logits(task.test.x), alone.logits(task.test.x))
    if folder:
        assert kept.read_bytes() == before  # another's work is not lost


def test_a_checkpoint_of_another_method_is_not_continued(task, tmp_path):
    recipe = Recipe(epochs=4, batch_size=32)
    chain = CyclicalSGHMC(cycles=1, samples_per_cycle=2, length=1.0)
    with checkpointed(tmp_path):
        MAP().fit(Normed, none_class(3), task, recipe)
    with pytest.warns(UserWarning, match="is of other data"), checkpointed(tmp_path):
        resumed = chain.fit(Normed, none_class(3), task, recipe)
    alone = chain.fit(Normed, none_class(3), task, recipe)
    assert torch.equal(
        predict(resumed, none_class(3), task.test.x).probs, predict(alone, none_class(3), task.test.x).probs
    )
