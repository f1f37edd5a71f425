"""From a task and a method, or from a study's result, to values."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from demur.measures import STANDARD, Measures, ood_metrics, value_name
from demur.methods import Method
from demur.metrics import Prediction
from demur.outliers.values import sets_of
from demur.posterior_file import load, read_about, save
from demur.predictive import fit_scores, predict_scored
from demur.scores import USUAL_SCORE
from demur.study.grid import Setting
from demur.study.measuring import measures_of
from demur.study.results import Result
from demur.tasks.base import Task

FAR_AWAY = "far_away"  # an OOD set that asks something else than the others


@dataclass(frozen=True)
class Row:
    """A method's values on a task, as fractions; `ood` has a dict for every OOD set."""

    task: str
    method: str
    seed: int
    epochs: int
    convention: str
    metrics: Mapping[str, float]
    ood: Mapping[str, Mapping[str, float]]
    majority: float  # accuracy of always answering the most frequent class
    trained_with: str | None  # the outliers
    missing: tuple[str, ...]  # OOD sets that were to be had nowhere
    notes: Mapping[str, str]  # what stands in for what

    def as_json(self) -> dict[str, Any]:
        """Strict JSON has no nan: a metric without a value is null."""
        return asdict(self) | {"metrics": {k: None if math.isnan(v) else v for k, v in self.metrics.items()}}

    def mean_over_ood(self, metric: str) -> float:
        """Over the OOD sets, but those trained with, and the far-away one: it asks something else."""
        left_out = {FAR_AWAY, *sets_of(self.trained_with)}
        near = [values[metric] for name, values in self.ood.items() if name not in left_out]
        return sum(near) / len(near)

    def mean_fpr95(self, score: str = USUAL_SCORE) -> float:
        return self.mean_over_ood(value_name("fpr95", score))

    @property
    def collapsed(self) -> bool:
        """Whether the classifier tells no classes apart, whatever its FPR95."""
        return self.metrics["accuracy"] < self.majority + 0.01


def measure_values(
    test: Prediction,
    y: Tensor,
    ood: Mapping[str, Prediction],
    measures: Measures = STANDARD,
) -> dict[str, Any]:
    """The part of a Row that is computed from predictions."""
    return {
        "metrics": {name: metric(test, y) for name, metric in measures.metrics.items()},
        "ood": {name: ood_metrics(test, prediction, measures.scores) for name, prediction in ood.items()},
        "majority": float(y.bincount().max() / len(y)),
    }


def row_of(result: Result) -> Row:
    cell, record = result.cell, result.record
    return Row(
        cell.task,
        cell.method,
        cell.seed,
        record.epochs,
        cell.convention,
        trained_with=record.trained_with,
        missing=record.missing,
        notes=record.notes,
        **measure_values(result.test, result.y, result.ood, measures_of(result)),
    )


def run(
    task: Task,
    method: Method,
    given: Setting,
    *,
    seed: int = 0,
    epochs: int | None = None,
    save_to: Path | None = None,
    load_from: Path | None = None,
    measures: Measures = STANDARD,
) -> Row:
    """Fit (or load) a posterior with this network and recipe, and measure it."""
    inference = given.inference or method.inference
    likelihood = method.likelihood(task.num_classes)
    recipe = replace(given.recipe, seed=seed, epochs=given.recipe.epochs if epochs is None else epochs)
    if load_from is None:
        posterior = inference.fit(given.network, likelihood, task.training, recipe)
    else:
        about = read_about(load_from)
        if about != {"task": task.name, "method": method.name}:
            raise ValueError(
                f"{load_from} holds {about or 'no method'}, not {method.name} on {task.name}; "
                "name what it was fitted as"
            )
        posterior = load(load_from, partial(given.network, likelihood.num_outputs), task.training.train.x.device)
    if save_to is not None:
        save(posterior, save_to, {"task": task.name, "method": method.name})
    scores = measures.scores.values()
    learnt = fit_scores(scores, posterior, likelihood, task.training.train)
    test = predict_scored(posterior, likelihood, task.testing.test.x, scores, learnt)
    ood = {name: predict_scored(posterior, likelihood, x, scores, learnt) for name, x in task.testing.ood.items()}
    return Row(
        task.name,
        method.name,
        seed,
        recipe.epochs,
        "corrected",
        trained_with=None if likelihood.outside is None else task.trained_with,
        missing=task.missing,
        notes=task.notes,
        **measure_values(test, task.testing.test.y.cpu(), ood, measures),
    )
