"""Diagonal Laplace: a Gaussian around the MAP network, as precise as in- and outliers and the prior make it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from demur.inference.base import Inference, fit_parts
from demur.inference.fisher import Root, batch_mean_fisher, diagonal_fisher
from demur.inference.map import MAP
from demur.inference.variational import with_head
from demur.likelihoods import Likelihood
from demur.metrics import brier
from demur.networks import Network
from demur.posterior import Gaussian, Point, Posterior
from demur.predictive import predict
from demur.streams import generator_for
from demur.tasks.base import Recipe, Task

DECADES = tuple(10.0**k for k in range(-2, 9))


@dataclass(frozen=True)
class Laplace:
    """With `prior_precision` None it is tuned on the Brier score of the validation data.

    That score is flat towards the MAP network, where all precisions serve equally well; so the least of `grid` is taken
    whose score exceeds the best by no more than the share `slack`: the most doubt that costs next to nothing.
    """

    over: Literal["all", "head"] = "all"
    estimator: Literal["sampled", "exact", "batch_mean"] = "sampled"
    prior_precision: float | None = None
    grid: Sequence[float] = field(default=DECADES, repr=False)
    slack: float = 0.01
    tuning_draws: int = 20
    num_draws: int = 20
    budget: int | None = None  # bytes of memory for the Fisher; None: 256 MiB, on a GPU a sixteenth of what it has

    def __post_init__(self) -> None:
        if self.over not in ("all", "head"):
            raise ValueError(f"over {self.over!r} is not known; choose 'all' layers or the 'head'")
        if self.estimator not in ("sampled", "exact", "batch_mean"):
            raise ValueError(f"estimator {self.estimator!r} is not known; choose 'sampled' or 'exact'")
        if self.num_draws < 1 or self.tuning_draws < 1 or not self.grid:
            raise ValueError("num_draws, tuning_draws and grid must not be empty; the defaults are 20, 20 and decades")
        if self.prior_precision is not None and not self.prior_precision > 0:
            raise ValueError(f"prior_precision {self.prior_precision} is not positive; None has it tuned")

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return [(MAP(), recipe)]

    def fit(
        self, network: Network, likelihood: Likelihood, task: Task, recipe: Recipe, parts: Sequence[Posterior] = ()
    ) -> Gaussian:
        (point,) = parts or fit_parts(self, network, likelihood, task, recipe)
        assert isinstance(point, Point)
        fisher = self.fisher(point.network, likelihood, task, recipe.seed)
        precision = self.prior_precision or self._tuned(point.network, fisher, likelihood, task, recipe.seed)
        return self._gaussian(point.network, fisher, precision, self.num_draws, recipe.seed)

    def fisher(self, model: nn.Module, likelihood: Likelihood, task: Task, seed: int = 0) -> dict[str, Tensor]:
        """Sum over the inliers, plus w * N / M times the sum over the outliers."""
        only = None
        if self.over == "head":
            only = [
                name for name, _ in with_head(model, task.train.x[:2]).named_parameters() if name.startswith("head.")
            ]
        generator = generator_for("fisher", seed, device=task.train.x.device)

        def total(x: Tensor, root: Root) -> dict[str, Tensor]:
            if self.estimator == "exact":
                return diagonal_fisher(model, root, x, budget=self.budget, only=only)
            shape = (len(x), likelihood.num_outputs)
            signs = torch.randint(2, shape, generator=generator, device=x.device, dtype=torch.int8) * 2 - 1
            if self.estimator == "batch_mean":
                return batch_mean_fisher(model, root, x, signs, only=only)
            return diagonal_fisher(model, root, x, signs=signs, budget=self.budget, only=only)

        inside = total(task.train.x, likelihood.fisher_root)
        if likelihood.outside is None:
            return inside
        # as many outliers as inliers: the data is passed twice, however many outliers there are
        pool = task.outliers.epoch(generator)
        some = pool[torch.randperm(len(pool), generator=generator, device=pool.device)[: len(task.train)]]
        from_outliers = total(some, partial(likelihood.fisher_root, outliers=True))
        scale = len(task.train) / len(some)
        return {name: value + scale * from_outliers[name] for name, value in inside.items()}

    def _tuned(
        self, model: nn.Module, fisher: dict[str, Tensor], likelihood: Likelihood, task: Task, seed: int
    ) -> float:
        scores: dict[float, float] = {}
        for precision in sorted(self.grid, reverse=True):
            posterior = self._gaussian(model, fisher, precision, self.tuning_draws, seed)
            scores[precision] = brier(predict(posterior, likelihood, task.validation.x), task.validation.y)
            best = min(scores.values())
            if scores[precision] > 1.05 * (1 + self.slack) * best:  # past the optimum less precision only blurs more
                break
        chosen = min(precision for precision, score in scores.items() if score <= (1 + self.slack) * best)
        edges = {max(self.grid): list(scores)[:2], min(self.grid): list(scores)[-2:]}
        if chosen in edges and any(abs(scores[p] - scores[chosen]) > self.slack * best for p in edges[chosen]):
            warnings.warn(
                f"the best prior precision, {chosen:g}, is at the edge of the grid, where the Brier score is still "
                f"changing; widen Laplace's grid ({min(self.grid):g} to {max(self.grid):g})",
                stacklevel=3,
            )
        return chosen

    def _gaussian(
        self, model: nn.Module, fisher: dict[str, Tensor], precision: float, num_draws: int, seed: int
    ) -> Gaussian:
        return Gaussian(
            model,
            {name: 1 / (value + precision) for name, value in fisher.items()},
            num_draws,
            seed,
            self.over == "head",
        )
