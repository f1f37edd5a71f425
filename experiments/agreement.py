"""Train the fast way and the plain way, and compare: `python -m experiments.agreement DATA [--task cifar10]`.

Fast is what a GPU does by itself: bfloat16, a compiled network, steps recorded as a CUDA graph. Plain is float32 (no
TF32), eager, step by step. Both begin from the same weights and see the same batches; rounding parts them, so what has
to agree is what people go by: last epoch's loss, accuracy, mean FPR95, as closely as two plain runs of different seeds.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from unittest import mock

import torch
from torch import nn

from demur.inference import MAP
from demur.likelihoods import none_class
from demur.measures import ood_metrics
from demur.metrics import accuracy
from demur.paper.grid import setting
from demur.predictive import predict
from demur.study.run import FAR_AWAY
from demur.tasks import Store, Task
from demur.tasks import load as load_task
from demur.training import EpochReport, observed

SEEDS = range(3)


@contextmanager
def plainly() -> Iterator[None]:
    def float32(network: nn.Module, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, enabled=False)

    def never_recorded(step: Callable[[], None]) -> bool:
        step()
        return True

    with ExitStack() as stack:
        stack.enter_context(mock.patch("demur.training.mixed_precision", float32))
        stack.enter_context(mock.patch("demur.predictive.mixed_precision", float32))
        stack.enter_context(mock.patch("demur.graphs.needs_host", never_recorded))
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
        yield


@contextmanager
def fast() -> Iterator[None]:
    with mock.patch("demur.training.WORTH_COMPILING", 0):  # compiled, however short
        yield


def trained(task: Task, seed: int, epochs: int) -> dict[str, float]:
    given, likelihood = setting(task.name, "map+nc"), none_class(task.num_classes)
    losses: list[EpochReport] = []
    with observed(losses.append):
        posterior = MAP().fit(given.network, likelihood, task.training, replace(given.recipe, seed=seed, epochs=epochs))
    test = predict(posterior, likelihood, task.testing.test.x)
    outside = [predict(posterior, likelihood, x) for name, x in task.testing.ood.items() if name != FAR_AWAY]
    return {
        "loss, nats": losses[-1].loss,
        "accuracy, %": 100 * accuracy(test, task.testing.test.y.cpu()),
        "mean FPR95, %": 100 * mean(ood_metrics(test, out)["fpr95"] for out in outside),
    }


def main(data: Path, name: str, epochs: int, limit: int | None) -> None:
    task = load_task(name, store=Store(data), limit=limit).to("cuda")
    found: dict[str, list[dict[str, float]]] = {"fast": [], "plain": []}
    for seed in SEEDS:
        for way, applied in (("fast", fast), ("plain", plainly)):
            with applied():
                found[way].append(trained(task, seed, epochs))
            print(f"seed {seed}, {way}: {found[way][-1]}", flush=True)
    print(f"\n{name}, map+nc, {epochs} epochs of {len(task.training.train)} inliers, {torch.cuda.get_device_name()}")
    for figure in found["fast"][0]:
        values = {way: [one[figure] for one in runs] for way, runs in found.items()}
        ways = "   ".join(f"{way} {mean(of):8.4f} +- {stdev(of):.4f}" for way, of in values.items())
        differences = ", ".join(f"{a - b:+.4f}" for a, b in zip(*values.values(), strict=True))
        print(f"{figure:14} {ways}   fast - plain of the same seed: {differences}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="fashion_mnist")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    main(given.data, given.task, given.epochs, given.limit)
