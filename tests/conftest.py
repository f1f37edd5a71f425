"""Small tasks and networks that the tests share."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from demur.likelihoods import LIKELIHOODS, Likelihood
from demur.networks import mlp
from demur.tasks.base import Task, TestData
from demur.training_data import Fixed, Recipe, Split, TrainingData

torch.set_num_threads(1)  # the tests run in two processes


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The real data sets: DEMUR_DATA, or ../shared/data beside the repository."""
    root = Path(os.environ.get("DEMUR_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"no data sets at {root}; set DEMUR_DATA")
    return root


@pytest.fixture(params=LIKELIHOODS)
def likelihood(request: pytest.FixtureRequest) -> Likelihood:
    """Each of the five, of three classes."""
    return LIKELIHOODS[request.param](3)


def make_task(shape: tuple[int, ...] = (4,), classes: int = 3, count: int = 96) -> Task:
    """Clouds around random centres, outliers far around them."""
    generator = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(classes, *shape, generator=generator)

    def draw(count: int) -> Split:
        y = torch.arange(count) % classes
        return Split(centres[y] + 0.6 * torch.randn(count, *shape, generator=generator), y)

    outliers = 4 * torch.randn(2, count, *shape, generator=generator)
    return Task(
        "clouds",
        ("a", "b", "c")[:classes],
        TrainingData(draw(count), draw(48), Fixed(outliers[0])),
        TestData(draw(60), {"around": outliers[1]}),
    )


def changed(task: Task, **training: Any) -> Task:
    """The same task with other data to fit with."""
    return replace(task, training=replace(task.training, **training))


@pytest.fixture
def task() -> Task:
    return make_task()


@pytest.fixture
def network() -> partial:
    return partial(mlp, inputs=4, hidden=(8,))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(epochs=2, batch_size=32)
