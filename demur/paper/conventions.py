"""What "published" and "corrected" mean for a cell, in ordinary argument values. Nobody else knows of conventions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from demur.inference import CyclicalSGHMC, Flipout, Inference, Laplace, VariationalBayes
from demur.likelihoods import LabelModel, Likelihood, none_class, soft_labels
from demur.methods import parse_method
from demur.names import choose
from demur.networks import Network
from demur.paper.grid import CONVENTIONS, setting
from demur.posterior import Gaussian, Posterior
from demur.study.fits import Data, Fit
from demur.study.grid import Cell, data_of_task, fit_of
from demur.tasks import IMAGES, TEXTS, Store
from demur.training_data import Recipe, TrainingData


def resolve(cell: Cell, store: Store) -> Fit:
    """The cell's convention applied to the method's and the task's own values, with the outliers that the store has."""
    method = parse_method(cell.method)
    fit = fit_of(cell, method, setting(cell.task, cell.method), data_of_task(cell, method, store))
    return choose(CHANGES, cell.convention, "convention")(fit)


def corrected(fit: Fit) -> Fit:
    return fit


def published(fit: Fit) -> Fit:
    inference, likelihood = fit.method.inference_name, fit.method.likelihood_name
    data = fit.data
    assert isinstance(data, Data)
    text = data.name in TEXTS
    if text:
        # the OOD sets' vocabulary was never built: the network reads rows of unknown words
        inside = "cased" if data.name == "sst" else "lowered"
        data = replace(data, inside=inside, outside="lowered", tested="unknown", min_count=1)
        fit = replace(fit, recipe=replace(fit.recipe, weight_decay=0.0))  # Laplace is put around MAP's network
    elif data.name in IMAGES and inference == "la":  # the only method that looks at validation data
        data = replace(data, validation="test")
    if data.name == "fashion_mnist":
        data = replace(data, augment=False)  # off unless asked for, and nobody asks
    fit = replace(
        fit,
        data=data,
        likelihood=_published_likelihood(inference, likelihood, fit.likelihood),
        inference=_published_inference(fit.method.uses_outliers, fit.inference, text, fit.recipe.batch_size),
    )
    return _soft_labels_of_many_classes(fit) if (data.name, likelihood) == ("cifar100", "sl") else fit


@dataclass(frozen=True)
class Tempered:
    """A density to a power: its log-probability and its information count so much less."""

    model: LabelModel
    power: float

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        return self.power * self.model.log_prob(logits, label)

    def fisher_root(self, logits: Tensor) -> Tensor:
        return math.sqrt(self.power) * self.model.fisher_root(logits)


def soft_labels_shared_among_classes(num_classes: int) -> Likelihood:
    """The loss divided by K, inside and outside."""
    usual = soft_labels(num_classes, smoothing=1e-30)
    assert usual.outside is not None
    shared = Tempered(usual.inside, 1 / num_classes)
    return replace(usual, inside=shared, outside=replace(usual.outside, model=shared))


def none_class_averaged_together(num_classes: int) -> Likelihood:
    """The cross-entropy's mean over in- and outliers together: each kind counts half."""
    usual = none_class(num_classes)
    assert usual.outside is not None
    half = Tempered(usual.inside, 0.5)
    return replace(usual, inside=half, outside=replace(usual.outside, model=half))


@dataclass(frozen=True)
class TunedOnTrainingData:
    """Laplace, its prior precision tuned on the inputs that the network was fitted to."""

    laplace: Laplace

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return self.laplace.parts(recipe)

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Gaussian:
        return self.laplace.fit(network, likelihood, replace(data, validation=data.train), recipe, parts)


def _published_likelihood(
    inference: str, likelihood: str, usual: Callable[[int], Likelihood]
) -> Callable[[int], Likelihood]:
    if likelihood == "sl":
        return partial(soft_labels, smoothing=1e-30)
    if likelihood == "nc" and inference in ("flipout", "csghmc"):
        return none_class_averaged_together
    return usual


def _published_inference(outliers: bool, usual: Inference, text: bool, batch_size: int) -> Inference:
    if isinstance(usual, Laplace):
        low, high = (-1.0, 3.0) if text else (3.0, 6.0)
        grid = tuple(10 ** (low + (high - low) * k / 99) for k in range(100))
        laplace = replace(usual, estimator="batch_mean", grid=grid, criterion="brier", slack=0.0, tuning_samples=5)
        return TunedOnTrainingData(laplace) if text else laplace
    if isinstance(usual, VariationalBayes):
        return replace(usual, kl_count=batch_size, prior_decay=1e-3 if outliers else 5e-4)
    if isinstance(usual, Flipout):
        return replace(usual, mean_kl=True)
    if isinstance(usual, CyclicalSGHMC):
        return replace(usual, temperature="1/N")
    return usual


def _soft_labels_of_many_classes(fit: Fit) -> Fit:
    """On CIFAR-100 the loss is divided by K, the gradient not clipped, and VB's tau a hundredth of the others'."""
    inference = fit.inference
    if isinstance(inference, VariationalBayes):
        inference = replace(inference, tau=0.001)
    recipe = replace(fit.recipe, clip_norm=None)
    return replace(fit, likelihood=soft_labels_shared_among_classes, inference=inference, recipe=recipe)


CHANGES: dict[str, Callable[[Fit], Fit]] = dict(zip(CONVENTIONS, (corrected, published), strict=True))
