"""What all Gaussians around the MAP network share: that network, the inputs of their curvature, the prior precision."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from demur.inference.base import Inference, build, check_copies, fit_parts
from demur.inference.fisher import Root
from demur.inference.prior import PriorSearch
from demur.inference.variational import with_head
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Gaussian, Point, Posterior
from demur.training import seeded
from demur.training_data import Recipe, TrainingData


class AroundMap(Protocol):
    """Hyperparameters that they all have."""

    @property
    def prior_precision(self) -> float | None: ...  # None: tuned on validation data

    @property
    def grid(self) -> Sequence[float]: ...

    @property
    def tuning_samples(self) -> int: ...

    @property
    def num_samples(self) -> int: ...


def check_prior(inference: AroundMap) -> None:
    if inference.num_samples < 1 or inference.tuning_samples < 1 or not inference.grid:
        raise ValueError("num_samples, tuning_samples and grid must not be empty; the defaults are 20, 20 and decades")
    if inference.prior_precision is not None and not inference.prior_precision > 0:
        raise ValueError(f"prior_precision {inference.prior_precision} is not positive; None has it tuned")


def check_over(over: str) -> None:
    if over not in ("all", "head"):
        raise ValueError(f"over {over!r} is not known; choose 'all' layers or the 'head'")


def map_network(
    inference: Inference,
    network: Network,
    likelihood: Likelihood,
    data: TrainingData,
    recipe: Recipe,
    parts: Sequence[Posterior],
) -> Point:
    """The one part; where it has yet to be trained, a network that cannot be sampled is refused first."""
    if not parts:
        with seeded(recipe.seed, data.device):
            check_copies(build(network, likelihood, data), data)
    (point,) = parts or fit_parts(inference, network, likelihood, data, recipe)
    assert isinstance(point, Point)
    return point


def with_prior(
    inference: AroundMap,
    search: PriorSearch,
    point: Point,
    at: Callable[[float, int], Gaussian],
    likelihood: Likelihood,
    data: TrainingData,
) -> Gaussian:
    """The posterior of the given prior precision, or of the one that `search` finds; `at` makes that of a precision and
    a number of samples."""
    if inference.prior_precision is not None:
        return at(inference.prior_precision, inference.num_samples)
    tuning = search.tune(point, lambda precision: at(precision, inference.tuning_samples), likelihood, data.held_out)
    return replace(at(tuning.chosen, inference.num_samples), tuning=tuning)


def passes(
    likelihood: Likelihood, data: TrainingData, generator: torch.Generator
) -> Iterator[tuple[Tensor, Root, float]]:
    """What the Fisher is a sum over: inputs, the root of the information about their logits, and what they count.

    First the inliers, then as many outliers at most: the data is passed twice, however many outliers there are.
    """
    yield data.train.x, likelihood.fisher_root, 1.0
    if likelihood.outside is not None:
        pool = data.shown.epoch(generator)
        outliers = pool[torch.randperm(len(pool), generator=generator, device=pool.device)[: len(data.train)]]
        yield outliers, partial(likelihood.fisher_root, outliers=True), len(data.train) / len(outliers)


def random_signs(x: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    shape = (len(x), outputs)
    return torch.randint(2, shape, generator=generator, device=x.device, dtype=torch.int8) * 2 - 1


def head_parameters(model: nn.Module, data: TrainingData) -> list[str]:
    """Their names."""
    return [name for name, _ in with_head(model, data.train.x[:2]).named_parameters() if name.startswith("head.")]
