"""Data to measure with: random images of the paper's shapes, varied in training as its own are."""

import torch

from demur.tasks.augment import Jitter
from demur.tasks.base import Task, TestData
from demur.tasks.images import to_train_with
from demur.training_data import Split, TrainingData

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
NUM_CLASSES = 10


def images(count: int, shape: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8).to(device)


def random_task(count: int, shape: tuple[int, ...], device: str = "cpu", classes: int = NUM_CLASSES) -> Task:
    """As many 32x32 photographs beside, as outliers."""
    train, validation, test = (Split(images(n, shape), torch.arange(n) % classes) for n in (count, 128, 128))
    outliers = to_train_with(images(count, COLOUR), torch.Size(shape))
    jitter = Jitter(2) if shape == GREY else Jitter(4, "reflect", flip=True)
    names = tuple(map(str, range(classes)))
    training = TrainingData(train, validation, outliers, jitter)
    return Task("random", names, training, TestData(test, {"same": test.x})).to(device)
