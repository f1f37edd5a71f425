"""How far is the choice of Laplace's prior precision luck? One network, many tunings; nothing is trained anew.

    python -m experiments.tuning_luck                                        digits, which needs no data
    python -m experiments.tuning_luck cifar10 --data DATA --runs RUNS        networks that a study left in RUNS
    python -m experiments.tuning_luck trec --data DATA --runs RUNS --convention published --method la --seed 3

A tuning draws its own signs for the Fisher and its own samples of the posterior. A line for each method and convention
says which precisions were chosen, how often, and what they make of accuracy, ECE and mean FPR95, in per cent. Networks
that RUNS lacks are trained there with --train (digits: always), and else left out.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from demur.measures import ood_metrics
from demur.metrics import accuracy, ece
from demur.paper.conventions import resolve
from demur.paper.grid import CONVENTIONS
from demur.predictive import predict
from demur.study.cells import Place, load_data, parts_of, read_or_fit
from demur.study.grid import Cell
from demur.study.results import POSTERIOR
from demur.study.run import FAR_AWAY
from demur.tasks import Store

METHODS = ("la", "la+nc", "la+sl", "la+ml", "la+oe")


def tunings(cell: Cell, place: Place, count: int, may_train: bool) -> str:
    """What so many of them make of the cell's network."""
    fit = resolve(cell, place.store)
    (part,) = parts_of(fit)
    if not may_train and not (place.folder(part) / POSTERIOR).exists():
        return f"left out: no network in {place.folder(part)}"
    network, task = read_or_fit(part, place), load_data(fit.data, place.store, place.device)
    likelihood = fit.likelihood(task.num_classes)
    ood = [x for name, x in task.testing.ood.items() if name != FAR_AWAY]
    chosen: list[float] = []
    values: dict[str, list[float]] = {"accuracy": [], "ECE": [], "mean FPR95": []}
    for seed in range(count):
        recipe = replace(fit.recipe, seed=seed)
        posterior = fit.inference.fit(fit.network, likelihood, task.training, recipe, [network])
        chosen.append(posterior.tuning.chosen)  # type: ignore[attr-defined]
        test, y = predict(posterior, likelihood, task.testing.test.x), task.testing.test.y.cpu()
        apart = [ood_metrics(test, predict(posterior, likelihood, x))["fpr95"] for x in ood]
        for name, value in zip(values, (accuracy(test, y), ece(test, y), float(np.mean(apart))), strict=True):
            values[name].append(100 * value)
    counted = ", ".join(f"{value:.3g} {times} times" for value, times in sorted(Counter(chosen).items()))
    return "; ".join([counted, *(f"{name} {min(each):.1f} to {max(each):.1f}" for name, each in values.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="digits")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--convention", action="append", choices=CONVENTIONS)
    parser.add_argument("--seed", type=int, default=0, help="of the network")
    parser.add_argument("--tunings", type=int, default=10)
    parser.add_argument("--train", action="store_true", help="networks that are not there")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    place = Place(given.runs, Store(given.data), given.device)
    for method in given.method or METHODS:
        for convention in given.convention or CONVENTIONS:
            cell = Cell(given.task, method, given.seed, convention)
            told = tunings(cell, place, given.tunings, given.train or given.task == "digits")
            print(f"{given.task} {method}, seed {given.seed}, {convention}: {told}", flush=True)


if __name__ == "__main__":
    main()
