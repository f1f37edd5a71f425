"""The tasks that need no download."""

import math

import pytest
import torch

import demur
from demur.tasks import load


def test_digits_are_real_disjoint_and_whole():
    task = load("digits")
    assert [len(split) for split in (task.training.train, task.training.validation, task.testing.test)] == [
        1000,
        297,
        500,
    ]
    from sklearn.datasets import load_digits

    ours = (
        torch.cat([split.x for split in (task.training.train, task.training.validation, task.testing.test)])
        .flatten(1)
        .float()
        * 16
        / 255
    )
    theirs = torch.from_numpy(load_digits().data).float()
    # the same 1,797 images in another order
    assert torch.equal(ours.round().sort(0).values, theirs.sort(0).values)
    assert {row.numpy().tobytes() for row in ours.round()} == {row.numpy().tobytes() for row in theirs}


def test_digits_come_with_outliers_of_another_photograph():
    task = load("digits")
    assert list(task.testing.ood) == ["flower", "letters", "uniform", "smooth", "far_away"]
    trained_on = {row.numpy().tobytes() for row in task.training.outliers.x.flatten(1)}
    shared = [row.numpy().tobytes() in trained_on for row in task.testing.ood["flower"].flatten(1)]
    assert sum(shared) / len(shared) < 0.01  # a blank patch may occur in both
    assert task.testing.ood["far_away"].max() > 4900


def test_tasks_are_the_same_every_time():
    first, second = load("digits"), load("digits")
    assert torch.equal(first.training.outliers.x, second.training.outliers.x)
    for name, x in first.testing.ood.items():
        assert torch.equal(x, second.testing.ood[name])


def test_blobs_are_four_classes_among_uniform_outliers():
    task = load("blobs")
    assert task.num_classes == 4
    assert task.training.train.y.bincount().tolist() == [200] * 4
    outliers = task.training.outliers.x
    assert outliers.abs().max() <= 6
    assert outliers.std(0).sub(12 / math.sqrt(12)).abs().max() < 0.15  # a uniform's standard deviation


def test_limit_keeps_so_many_inputs():
    assert len(load("digits", limit=100).training.train) == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "digts"}, "did you mean 'digits'"),
        ({"name": "mnist"}, "store"),
        ({"name": "digits", "limit": 0}, "limit 0"),
    ],
)
def test_nonsense_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        load(**arguments)


@pytest.mark.parametrize("classes", [2, "cat"])
def test_classes_that_are_no_names_are_refused_in_a_sentence(classes):
    split = demur.Split(torch.zeros(4, 2), torch.arange(4) % 2)
    with pytest.raises(ValueError, match=f"classes {classes!r} of task 'mine' are no names; give a tuple"):
        demur.Task("mine", classes, demur.TrainingData(split), demur.TestData(split, {}))
