"""How cost grows: each of the sizes of a problem doubled four times, the others as they were.

A fit of `la+nc` (one epoch, then the sampled Fisher) and a prediction, in a process of its own, so that memory is too.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks.frame import peak_memory
from benchmarks.problems import GREY, images, random_task
from demur.inference import Laplace
from demur.likelihoods import none_class
from demur.networks import lenet
from demur.predictive import predict
from demur.training_data import Fixed, Recipe


@dataclass(frozen=True)
class Size:
    """LeNet has about 3,136 parameters a hidden unit."""

    training_points: int = 128
    outliers: int = 128
    classes: int = 10
    samples: int = 10
    hidden: int = 64


# by what is doubled; each starts where it begins to matter
DOUBLED: dict[str, Callable[[int], Size]] = {
    "training points": lambda factor: Size(training_points=128 * factor),
    "outliers": lambda factor: Size(outliers=128 * factor),
    "classes": lambda factor: Size(classes=10 * factor),
    "samples": lambda factor: Size(samples=10 * factor),
    "parameters": lambda factor: Size(hidden=128 * factor),
}
FACTORS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Line:
    """Seconds and bytes at each of FACTORS times the first size."""

    name: str
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    @property
    def slopes(self) -> tuple[float, float]:
        """Of time and memory, both axes logarithmic: 1 is linear, 0 is constant."""
        time_slope, memory_slope = (
            float(np.polyfit(np.log(FACTORS), np.log(values), 1)[0]) for values in (self.seconds, self.bytes)
        )
        return time_slope, memory_slope


def measure_growth(small: bool = False) -> Iterator[Line]:
    """A line for each of DOUBLED, as soon as it is known."""
    for name, size_at in DOUBLED.items():
        costs = [cost_apart(shrunk(size_at(factor)) if small else size_at(factor)) for factor in FACTORS]
        seconds, peaks = zip(*costs, strict=True)
        yield Line(name, seconds, peaks)


def shrunk(size: Size) -> Size:
    return replace(size, training_points=size.training_points // 16, hidden=size.hidden // 16)


def cost_apart(size: Size) -> tuple[float, float]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(cost, size).result()


def cost(size: Size) -> tuple[float, float]:
    """Seconds, and bytes beyond what a process takes that has fitted next to nothing."""
    torch.set_num_threads(1)  # steadier
    work(Size(training_points=16, outliers=16, samples=1, hidden=4))
    before = peak_memory()
    started = time.perf_counter()
    work(size)
    seconds = time.perf_counter() - started
    return seconds, max(1, peak_memory() - before)


def work(size: Size) -> None:
    task = random_task(size.training_points, GREY, classes=size.classes)
    data = replace(task.training, outliers=Fixed(images(size.outliers, GREY)))
    likelihood, method = none_class(size.classes), Laplace(prior_precision=1.0, num_samples=size.samples)
    posterior = method.fit(partial(lenet, hidden=size.hidden), likelihood, data, Recipe(epochs=1, batch_size=64))
    predict(posterior, likelihood, task.testing.test.x)


def draw_growth(lines: list[Line], path: Path) -> None:
    """Time and memory against size, a line each, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axis, values_of, title, slope in zip(
        figure.subplots(1, 2),
        (lambda line: line.seconds, lambda line: [n / 2**20 for n in line.bytes]),
        ("seconds", "MiB"),
        (0, 1),
        strict=True,
    ):
        for line in lines:
            axis.loglog(FACTORS, values_of(line), "o-", label=f"{line.name}: slope {line.slopes[slope]:.2f}")
        low = min(min(values_of(line)) for line in lines)
        axis.loglog(FACTORS, [low * factor for factor in FACTORS], "k:", label="linear")
        axis.set_xticks(FACTORS, [f"x {factor}" for factor in FACTORS])
        axis.minorticks_off()
        axis.set_xlabel("size, against the first")
        axis.set_title(title)
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
