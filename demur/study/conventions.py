"""What "published" and "corrected" mean for a cell, in ordinary argument values. Nobody else knows of conventions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from demur.inference import CyclicalSGHMC, Flipout, Inference, Laplace, VariationalBayes
from demur.likelihoods import Likelihood, outlier_exposure, soft_labels
from demur.method import parse_method
from demur.names import choose
from demur.networks import Network
from demur.study.grid import TEXTS, Cell, setting
from demur.tasks import IMAGES
from demur.tasks.base import Recipe


@dataclass(frozen=True)
class Data:
    """A task by name, and the options it is loaded with."""

    name: str
    outliers: str | None = None
    limit: int | None = None
    validation: Literal["train", "test"] = "train"
    inside: str = "levelled"
    outside: str = "levelled"


@dataclass(frozen=True)
class Fit:
    """All that determines a posterior, and the name of its method."""

    method: str
    data: Data
    network: Network
    likelihood: Callable[[int], Likelihood]  # of the number of classes
    inference: Inference
    recipe: Recipe


def resolve(cell: Cell) -> Fit:
    """The cell's convention applied to the method's and the task's own values."""
    method = parse_method(cell.method)
    given = setting(cell.task, method.inference_name)
    recipe = replace(given.recipe, seed=cell.seed, epochs=cell.epochs or given.recipe.epochs)
    # a likelihood that looks at no outliers is the same network whatever the outliers are
    outliers = cell.outliers if method.likelihood(2).outside is not None else None
    data = Data(cell.task, outliers, cell.limit)
    fit = Fit(cell.method, data, given.network, method.likelihood, given.inference or method.inference, recipe)
    return choose(CONVENTIONS, cell.convention, "convention")(fit)


def corrected(fit: Fit) -> Fit:
    return fit


def published(fit: Fit) -> Fit:
    inference, _, likelihood = fit.method.partition("+")
    text = fit.data.name in TEXTS
    data = fit.data
    if text:
        data = replace(data, inside="cased", outside="lowered")
    elif data.name in IMAGES and inference == "la":  # the only method that looks at validation data
        data = replace(data, validation="test")
    return replace(
        fit,
        data=data,
        likelihood=_published_likelihood(inference, likelihood, fit.likelihood),
        inference=_published_inference(inference, likelihood, fit.inference, text),
        recipe=_published_recipe(inference, likelihood, fit.recipe),
    )


def exposure_shared_among_classes(num_classes: int) -> Likelihood:
    """Outlier exposure of weight 0.5 / K."""
    return outlier_exposure(num_classes, weight=0.5 / num_classes)


def _published_likelihood(
    inference: str, likelihood: str, usual: Callable[[int], Likelihood]
) -> Callable[[int], Likelihood]:
    if likelihood == "oe" and inference in ("map", "la", "de"):
        return exposure_shared_among_classes
    if likelihood == "sl":
        return partial(soft_labels, smoothing=1e-30)
    return usual


def _published_inference(inference: str, likelihood: str, usual: Inference, text: bool) -> Inference:
    halved = bool(likelihood)  # in- and outliers averaged together: both terms count half
    if isinstance(usual, Laplace):
        low, high = (-1.0, 3.0) if text else (3.0, 6.0)
        grid = tuple(10 ** (low + (high - low) * k / 99) for k in range(100))
        return replace(usual, estimator="batch_mean", grid=grid, slack=0.0, tuning_draws=5)
    if isinstance(usual, VariationalBayes):
        return replace(usual, kl_count=128, prior_decay=1e-3 if likelihood else 5e-4)
    if isinstance(usual, Flipout):
        return replace(usual, mean_kl=True, tau=0.2 if halved else 0.1)
    if isinstance(usual, CyclicalSGHMC):
        return replace(usual, temperature="1/N", lr=0.05 if halved else 0.1)
    return usual


def _published_recipe(inference: str, likelihood: str, usual: Recipe) -> Recipe:
    if inference == "csghmc" and likelihood:
        return replace(usual, weight_decay=2 * usual.weight_decay)
    return usual


CONVENTIONS: dict[str, Callable[[Fit], Fit]] = {"corrected": corrected, "published": published}
