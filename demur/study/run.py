"""From a task and a method to figures."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from demur.likelihoods import Likelihood
from demur.method import parse_method
from demur.metrics import METRICS, Prediction, ood_metrics
from demur.posterior import Posterior, load, save
from demur.predictive import predict
from demur.study.grid import setting
from demur.tasks.base import Task


@dataclass(frozen=True)
class Evaluation:
    """What a posterior predicts on a task's test data and OOD sets; all figures follow from it."""

    test: Prediction
    ood: Mapping[str, Prediction]


def evaluate(posterior: Posterior, likelihood: Likelihood, task: Task) -> Evaluation:
    return Evaluation(
        predict(posterior, likelihood, task.test.x),
        {name: predict(posterior, likelihood, x) for name, x in task.ood_test.items()},
    )


@dataclass(frozen=True)
class Row:
    """A method's figures on a task, as fractions; `ood` has a dict for every OOD set."""

    task: str
    method: str
    seed: int
    epochs: int
    convention: str
    metrics: Mapping[str, float]
    ood: Mapping[str, Mapping[str, float]]
    majority: float  # accuracy of always answering the most frequent class
    missing: tuple[str, ...]  # OOD sets that were to be had nowhere
    notes: Mapping[str, str]  # what stands in for what

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def mean_over_ood(self, metric: str) -> float:
        """Over the OOD sets, the far-away one apart: it asks something else."""
        near = [figures[metric] for name, figures in self.ood.items() if name != "far_away"]
        return sum(near) / len(near)

    @property
    def mean_fpr95(self) -> float:
        return self.mean_over_ood("fpr95")

    @property
    def collapsed(self) -> bool:
        """Whether the classifier tells no classes apart, whatever its FPR95."""
        return self.metrics["accuracy"] < self.majority + 0.01


def run(
    task: Task,
    method: str,
    *,
    seed: int = 0,
    epochs: int | None = None,
    save_to: Path | None = None,
    load_from: Path | None = None,
) -> Row:
    """Fit (or load) a posterior with the task's network and recipe, and measure it."""
    chosen = parse_method(method)
    given = setting(task.name, chosen.inference_name)
    inference = given.inference or chosen.inference
    likelihood = chosen.likelihood(task.num_classes)
    recipe = replace(given.recipe, seed=seed, epochs=given.recipe.epochs if epochs is None else epochs)
    if load_from is None:
        posterior = inference.fit(given.network, likelihood, task, recipe)
    else:
        posterior = load(load_from, partial(given.network, likelihood.num_outputs), task.train.x.device)
    if save_to is not None:
        save(posterior, save_to)
    evaluation = evaluate(posterior, likelihood, task)
    return Row(
        task.name,
        method,
        seed,
        recipe.epochs,
        "corrected",
        {name: metric(evaluation.test, task.test.y) for name, metric in METRICS.items()},
        {name: ood_metrics(evaluation.test, prediction) for name, prediction in evaluation.ood.items()},
        float(task.test.y.bincount().max() / len(task.test)),
        task.missing,
        task.notes,
    )


def run_all(task: Task, methods: Sequence[str], folder: Path, *, seed: int = 0) -> Iterator[tuple[Row, float]]:
    """Every method's row and seconds, read from the folder where it was measured before."""
    folder.mkdir(parents=True, exist_ok=True)
    for method in methods:
        file = folder / f"{task.name}-{method}-{seed}.json"
        if not file.exists():
            started = time.perf_counter()
            row = run(task, method, seed=seed)
            record = row.as_json() | {"duration": time.perf_counter() - started}
            unfinished = file.with_suffix(".part")
            unfinished.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            os.replace(unfinished, file)
        record = json.loads(file.read_text("utf-8"))
        seconds = record.pop("duration")
        yield Row(**record), seconds
