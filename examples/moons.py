"""A study of one's own: two moons, a small and a large network, three methods, three training seeds.

demur study examples/moons.py --runs moons
demur report moons --out moons-report
"""

from functools import partial

import torch
from sklearn.datasets import make_moons

import demur
from demur.study import study


def moons() -> demur.Task:
    """Outliers to train with lie in a square around the moons, those to test with on a circle."""

    def split(count: int, seed: int) -> demur.Split:
        x, y = make_moons(count, noise=0.1, random_state=seed)
        return demur.Split(torch.tensor(x, dtype=torch.float32), torch.tensor(y))

    generator = torch.Generator().manual_seed(0)
    square = 8 * torch.rand(1000, 2, generator=generator) - 4
    angle = 2 * torch.pi * torch.rand(500, generator=generator)
    circle = 4 * torch.stack([angle.cos(), angle.sin()], 1)
    training = demur.TrainingData(split(500, 0), validation=split(200, 1), outliers=square)
    return demur.Task("moons", ("upper", "lower"), training, demur.TestData(split(500, 2), {"circle": circle}))


grid = study(
    tasks={"moons-small": moons, "moons-large": moons},
    networks={
        "moons-small": partial(demur.mlp, inputs=2, hidden=(20,)),
        "moons-large": partial(demur.mlp, inputs=2, hidden=(100, 100)),
    },
    methods=["map", "map+nc", "la+nc"],
    recipe=demur.Recipe(epochs=30, lr=1e-2),
    seeds=3,
)
