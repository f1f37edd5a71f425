"""How far is the choice of Laplace's prior precision luck? One network, many tunings; nothing is trained anew.

    python experiments/tuning_luck.py                          digits, which needs no data
    python experiments/tuning_luck.py mnist --data DATA --epochs 2 --limit 10000

A tuning draws its own signs for the Fisher and its own samples of the posterior. For either criterion (the likelihood
of the corrected convention, the Brier score of the published one) a line says which precisions were chosen, how often,
and what they make of accuracy and of mean FPR95, in per cent.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from demur.inference import Laplace
from demur.measures import ood_metrics
from demur.methods import parse_method
from demur.metrics import accuracy
from demur.paper.grid import setting
from demur.predictive import predict
from demur.study.run import FAR_AWAY
from demur.tasks import Store, load

METHODS = ("la", "la+nc", "la+sl", "la+ml", "la+oe")
TUNINGS = 10
PUBLISHED = {
    "estimator": "batch_mean",
    "grid": tuple(10 ** (3 + 3 * k / 99) for k in range(100)),
    "criterion": "brier",
    "slack": 0.0,
    "tuning_samples": 5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = load(given.task, store=Store(given.data) if given.data else None, limit=given.limit)
    for name in METHODS:
        method, of_task = parse_method(name), setting(given.task, name)
        recipe = replace(of_task.recipe, epochs=given.epochs or of_task.recipe.epochs)
        likelihood, usual = method.likelihood(task.num_classes), of_task.inference or method.inference
        assert isinstance(usual, Laplace)
        ((point, of_point),) = usual.parts(recipe)
        network = point.fit(of_task.network, likelihood, task.training, of_point)
        for criterion, inference in (("likelihood", usual), ("Brier", replace(usual, **PUBLISHED))):
            chosen, right, passed = [], [], []
            for seed in range(TUNINGS):
                posterior = inference.fit(
                    of_task.network, likelihood, task.training, replace(recipe, seed=seed), [network]
                )
                assert posterior.tuning is not None
                chosen.append(posterior.tuning.chosen)
                test = predict(posterior, likelihood, task.testing.test.x)
                right.append(100 * accuracy(test, task.testing.test.y))
                sets = [x for name, x in task.testing.ood.items() if name != FAR_AWAY]
                outside = [ood_metrics(test, predict(posterior, likelihood, x))["fpr95"] for x in sets]
                passed.append(100 * float(np.mean(outside)))
            counted = ", ".join(f"{value:.3g} {count} times" for value, count in sorted(Counter(chosen).items()))
            print(
                f"{given.task} {name}, by {criterion}: {counted}; accuracy {min(right):.1f} to {max(right):.1f}, "
                f"mean FPR95 {min(passed):.1f} to {max(passed):.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
