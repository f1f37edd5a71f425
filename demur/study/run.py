"""From a task and a method to figures."""

from collections.abc import Mapping
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
    missing: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def mean_fpr95(self) -> float:
        """Over the OOD sets, the far-away one apart: it asks something else."""
        near = [figures["fpr95"] for name, figures in self.ood.items() if name != "far_away"]
        return sum(near) / len(near)


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
    chosen, given = parse_method(method), setting(task.name)
    likelihood = chosen.likelihood(task.num_classes)
    recipe = replace(given.recipe, seed=seed, epochs=given.recipe.epochs if epochs is None else epochs)
    if load_from is None:
        posterior = chosen.inference.fit(given.network, likelihood, task, recipe)
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
        task.missing,
    )
