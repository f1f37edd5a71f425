"""A network killed in training and trained on equals one that was never killed, byte for byte."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from demur import checkpoint, training
from demur.checkpoint import checkpointed, epochs_in, seconds_in
from demur.inference import MAP, CyclicalSGHMC, Ensemble, Flipout, VariationalBayes
from demur.likelihoods import none_class, plain
from demur.networks import lenet, mlp, wide_resnet
from demur.outliers.synthetic import FromInliers, independent_columns
from demur.predictive import predict
from demur.tasks.base import Task
from demur.training_data import Fixed, Recipe, Split
from tests.conftest import changed, make_task
from tests.test_posterior import Normed, Tied


class Killed(Exception):
    """Stands for a process that is no more."""


METHODS = {
    "map": MAP(),
    "vb": VariationalBayes(num_samples=3),
    "flipout": Flipout(num_samples=3),
    "csghmc": CyclicalSGHMC(cycles=2, samples_per_cycle=2, length=1.0),
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", METHODS)
def test_killed_and_resumed_equals_never_killed(name, optimizer, task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    recipe = Recipe(epochs=8, batch_size=32, optimizer=optimizer, lr=1e-2)
    whole = METHODS[name].fit(Normed, none_class(3), task.training, recipe)

    for dies_after in (2, 5, 7):

        def die(report: training.EpochReport, at: int = dies_after) -> None:
            if report.epoch == at:
                raise Killed

        with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
            METHODS[name].fit(Normed, none_class(3), task.training, recipe)
        torch.rand(3)  # a new process has another random state
    told = []
    with checkpointed(tmp_path / "c") as kept, training.observed(told.append):
        resumed = METHODS[name].fit(Normed, none_class(3), task.training, recipe)
    assert [report.epoch for report in told] == [7, 8]
    assert kept.resumed == [6]
    made, expected = (predict(p, none_class(3), task.testing.test.x) for p in (resumed, whole))
    assert torch.equal(made.probs, expected.probs)


def test_the_seconds_of_every_try_are_counted(task, tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert seconds_in(tmp_path / "c") == epochs_in(tmp_path / "c") == 0
    for dies_after, an_epoch, in_all in ((2, 10, 10), (5, 20, 10 + 3 * 20), (7, 30, 10 + 3 * 20 + 2 * 30)):

        def die(report: training.EpochReport, at: int = dies_after, seconds: int = an_epoch) -> None:
            now[0] += seconds
            if report.epoch == at:
                raise Killed

        with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
            MAP().fit(Normed, none_class(3), task.training, Recipe(epochs=8, batch_size=32))
        now[0] += 500  # while nobody trains
        assert seconds_in(tmp_path / "c") == in_all
        assert epochs_in(tmp_path / "c") == dies_after - 1  # the last was not kept


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    "network", [partial(lenet, channels=3, size=8, hidden=8), partial(wide_resnet, depth=10, width=1)]
)
def test_weights_in_another_memory_layout_resume_alike(network, optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    task, recipe = make_task((3, 8, 8), count=32), Recipe(epochs=3, batch_size=16, optimizer=optimizer, lr=1e-2)
    whole = MAP().fit(network, none_class(3), task.training, recipe)

    def die(report: training.EpochReport) -> None:
        if report.epoch == 3:
            raise Killed

    with pytest.raises(Killed), checkpointed(tmp_path / "c"), training.observed(die):
        MAP().fit(network, none_class(3), task.training, recipe)
    with checkpointed(tmp_path / "c") as kept:
        resumed = MAP().fit(network, none_class(3), task.training, recipe)
    assert kept.resumed == [2]
    for resumed_p, p in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(resumed_p, p)


def test_members_of_an_ensemble_do_not_take_each_others_checkpoints(task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    recipe = Recipe(epochs=3, batch_size=32)
    alone = Ensemble(members=2).fit(Normed, none_class(3), task.training, recipe)
    with checkpointed(tmp_path / "c") as kept:
        together = Ensemble(members=2).fit(Normed, none_class(3), task.training, recipe)
    assert kept.resumed == []
    for draw in range(2):
        assert torch.equal(alone.logits(task.testing.test.x, draw), together.logits(task.testing.test.x, draw))


def test_tied_weights_are_continued(task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    network = lambda outputs: nn.Sequential(Tied(), nn.Linear(4, outputs))  # noqa: E731
    recipe = Recipe(epochs=3, batch_size=32)
    with checkpointed(tmp_path / "c") as kept:
        first, second = (MAP().fit(network, none_class(3), task.training, recipe) for _ in range(2))
    assert kept.resumed == [3]
    assert torch.equal(first.logits(task.testing.test.x), second.logits(task.testing.test.x))


# whose checkpoint it is ---------------------------------------------------------------------------------------------

RECIPE = Recipe(epochs=3, batch_size=32)


def fit_beside(path: Path, task: Task, made_with: str = "", **changed: Any) -> list[int]:
    """Fit with a checkpoint there; after which epochs it went on."""
    network, likelihood = changed.get("network", Normed), changed.get("likelihood", none_class(3))
    method, recipe = changed.get("method", MAP()), changed.get("recipe", RECIPE)
    with checkpointed(path, made_with) as kept:
        method.fit(network, likelihood, task.training, recipe)
    return kept.resumed


@pytest.fixture
def written(task, tmp_path, monkeypatch) -> Path:
    """The checkpoint of a network that was trained to its end."""
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    assert fit_beside(tmp_path / "c", task) == []
    return tmp_path / "c"


def test_the_same_data_held_elsewhere_goes_on(task, written):
    train, outliers = (
        Split(task.training.train.x.clone(), task.training.train.y.clone()),
        Fixed(task.training.outliers.x.clone()),
    )
    same = changed(task, train=train, outliers=outliers, validation=task.testing.test)
    assert fit_beside(written, same) == [3]


def one_changed(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:-1], x[-1:] + 1])


@pytest.mark.parametrize(
    "other",
    [
        lambda task: changed(task, train=Split(one_changed(task.training.train.x), task.training.train.y)),
        lambda task: changed(task, train=Split(task.training.train.x, task.training.train.y.roll(1))),
        lambda task: changed(
            task,
            train=Split(task.training.train.x.double(), task.training.train.y),
            outliers=task.training.outliers.x.double(),
        ),
        lambda task: changed(task, outliers=Fixed(one_changed(task.training.outliers.x))),
        lambda task: changed(task, outliers=FromInliers(task.training.outliers.x, independent_columns)),
        lambda task: changed(task, augment=lambda x, generator: x),
    ],
    ids=["inputs", "labels", "type", "outliers", "how outliers are made", "augmentation"],
)
def test_a_checkpoint_of_other_data_is_not_continued(other, task, written):
    assert fit_beside(written, other(task)) == []


def test_outliers_that_are_not_looked_at_do_not_matter(task, written):
    fit_beside(written, task, likelihood=plain(3))
    others = changed(task, outliers=Fixed(one_changed(task.training.outliers.x)))
    assert fit_beside(written, others, likelihood=plain(3)) == [3]


@pytest.mark.parametrize(
    "changed",
    [
        {"recipe": replace(RECIPE, seed=1)},
        {"recipe": replace(RECIPE, epochs=4)},
        {"likelihood": none_class(3, weight=2.0)},
        {"network": partial(mlp, inputs=4, hidden=(8,))},
        {"method": CyclicalSGHMC(cycles=1, samples_per_cycle=1, length=1.0)},
        {"made_with": "another prior"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_nor_one_of_another_network_or_recipe(changed, task, written):
    assert fit_beside(written, task, **changed) == []


# damage -------------------------------------------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def change_header(path: Path, **changed: object) -> None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    header = json.loads(metadata["demur"]) | changed
    save_file(load_file(path), path, metadata | {"demur": json.dumps(header)})


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"something else"),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: flip(path, -1),
        lambda path: change_header(path, epoch=1),
        lambda path: save_file({"a": torch.zeros(1)}, path),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "other", "cut", "flipped", "another epoch", "no checkpoint", "folder"],
)
def test_a_damaged_checkpoint_is_set_aside(damage, task, written):
    """Once: the next time there is none, and then a whole one."""
    expected = MAP().fit(Normed, none_class(3), task.training, RECIPE)
    damage(written)
    with pytest.warns(UserWarning, match=r"c is damaged .*, and training starts anew; .* c.damaged and may be deleted"):
        assert seconds_in(written) == 0
    assert written.with_name("c.damaged").exists()
    assert fit_beside(written, task) == []
    assert fit_beside(written, task) == [3]
    with checkpointed(written):
        again = MAP().fit(Normed, none_class(3), task.training, RECIPE)
    assert torch.equal(again.logits(task.testing.test.x), expected.logits(task.testing.test.x))


def test_training_itself_sets_it_aside(task, written):
    flip(written, -1)
    with pytest.warns(UserWarning, match="training starts anew"):
        assert fit_beside(written, task) == []


def test_without_a_checkpoint_no_data_is_hashed(task, monkeypatch):
    monkeypatch.setattr(training, "digest", None)
    MAP().fit(Normed, none_class(3), task.training, RECIPE)


# several networks, a folder -----------------------------------------------------------------------------------------


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
    whole = Ensemble(members=3).fit(Normed, none_class(3), task.training, recipe)
    told = []
    with pytest.raises(Killed), checkpointed(tmp_path), training.observed(killed_after(2, network=3)):
        Ensemble(members=3).fit(Normed, none_class(3), task.training, recipe)
    with checkpointed(tmp_path) as place, training.observed(told.append):
        resumed = Ensemble(members=3).fit(Normed, none_class(3), task.training, recipe)
    assert [report.epoch for report in told] == [1, 2, 3]  # of the third alone: the others were finished
    assert place.used == {*tmp_path.iterdir()}
    for draw in range(3):
        assert torch.equal(resumed.logits(task.testing.test.x, draw), whole.logits(task.testing.test.x, draw))


def test_in_a_folder_the_checkpoint_of_other_data_stays(task, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    other = changed(task, train=Split(one_changed(task.training.train.x), task.training.train.y))
    fit_beside(tmp_path, task)
    (kept,) = tmp_path.iterdir()
    before = kept.read_bytes()
    with pytest.warns(UserWarning, match="is of other data or other settings"):
        assert fit_beside(tmp_path, other) == []
    assert kept.read_bytes() == before  # another's work is not lost
    assert fit_beside(tmp_path, task) == [3]


def test_a_checkpoint_of_another_method_is_not_continued(task, tmp_path):
    recipe = Recipe(epochs=4, batch_size=32)
    chain = CyclicalSGHMC(cycles=1, samples_per_cycle=2, length=1.0)
    with checkpointed(tmp_path):
        MAP().fit(Normed, none_class(3), task.training, recipe)
    with pytest.warns(UserWarning, match="is of other data"), checkpointed(tmp_path):
        resumed = chain.fit(Normed, none_class(3), task.training, recipe)
    alone = chain.fit(Normed, none_class(3), task.training, recipe)
    assert torch.equal(
        predict(resumed, none_class(3), task.testing.test.x).probs,
        predict(alone, none_class(3), task.testing.test.x).probs,
    )
