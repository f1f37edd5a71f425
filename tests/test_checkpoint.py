"""A network killed in training and trained on equals one that was never killed, byte for byte."""

import pytest
import torch
from torch import nn

from demur import checkpoint, training
from demur.checkpoint import checkpointed
from demur.inference import MAP, CyclicalSGHMC, Ensemble, Flipout, VariationalBayes
from demur.likelihoods import none_class
from demur.predictive import predict
from demur.tasks.base import Recipe
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
