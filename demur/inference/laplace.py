"""Diagonal Laplace: a Gaussian around the MAP network, as precise as in- and outliers and the prior make it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from demur.inference.around import (
    check_over,
    check_prior,
    head_parameters,
    map_network,
    passes,
    random_signs,
    with_prior,
)
from demur.inference.base import Inference
from demur.inference.fisher import batch_mean_fisher, diagonal_fisher
from demur.inference.map import MAP
from demur.inference.prior import DECADES, PriorSearch
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Gaussian, Posterior
from demur.streams import generator_for
from demur.training_data import Recipe, TrainingData


@dataclass(frozen=True)
class Laplace:
    """A Gaussian around the MAP network, independent over its weights.

    Without `prior_precision`, it is tuned on validation data; the posterior's `tuning` says what was tried.
    """

    over: Literal["all", "head"] = "all"
    estimator: Literal["sampled", "exact", "batch_mean"] = "sampled"
    prior_precision: float | None = None
    grid: Sequence[float] = field(default=DECADES, repr=False)
    criterion: Literal["nll", "brier"] = "nll"
    slack: float = 0.01
    tuning_samples: int = 20
    num_samples: int = 20
    budget: int | None = None  # bytes of memory for the Fisher; None: 256 MiB, on a GPU a sixteenth of what it has

    def __post_init__(self) -> None:
        check_over(self.over)
        if self.estimator not in ("sampled", "exact", "batch_mean"):
            raise ValueError(f"estimator {self.estimator!r} is not known; choose 'sampled' or 'exact'")
        if self.criterion not in ("nll", "brier"):
            raise ValueError(f"criterion {self.criterion!r} is not known; choose 'nll' or 'brier'")
        check_prior(self)

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return [(MAP(), recipe)]

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Gaussian:
        point = map_network(self, network, likelihood, data, recipe, parts)
        fisher = self.fisher(point.network, likelihood, data, recipe.seed)

        def at(precision: float, num_samples: int) -> Gaussian:
            variance = {name: 1 / (value + precision) for name, value in fisher.items()}
            return Gaussian(point.network, variance, num_samples, recipe.seed, self.over == "head")

        search = PriorSearch(self.grid, self.slack, self.criterion)
        return with_prior(self, search, point, at, likelihood, data)

    def fisher(self, model: nn.Module, likelihood: Likelihood, data: TrainingData, seed: int = 0) -> dict[str, Tensor]:
        """Sum over the inliers, plus w * N / M times the sum over the outliers."""
        only = head_parameters(model, data) if self.over == "head" else None
        generator = generator_for("fisher", seed, device=data.device)
        total: dict[str, Tensor] = {}
        for x, root, scale in passes(likelihood, data, generator):
            signs = None if self.estimator == "exact" else random_signs(x, likelihood.num_outputs, generator)
            if self.estimator == "batch_mean":
                assert signs is not None
                fisher = batch_mean_fisher(model, root, x, signs, only=only)
            else:
                fisher = diagonal_fisher(model, root, x, signs=signs, budget=self.budget, only=only)
            total = {name: total.get(name, 0) + scale * value for name, value in fisher.items()}
        return total
