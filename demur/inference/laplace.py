"""Diagonal Laplace: a Gaussian around the MAP network, as precise as in- and outliers and the prior make it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from demur.inference.base import Inference, build, check_copies, fit_parts
from demur.inference.fisher import Root, batch_mean_fisher, diagonal_fisher
from demur.inference.map import MAP
from demur.inference.prior import DECADES, PriorSearch
from demur.inference.variational import with_head
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Gaussian, Point, Posterior
from demur.streams import generator_for
from demur.training import seeded
from demur.training_data import Recipe, TrainingData


@dataclass(frozen=True)
class Laplace:
    """With `prior_precision` None it is tuned on validation data, as `PriorSearch` says, and the posterior's `tuning`
    says what was tried."""

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
        if self.over not in ("all", "head"):
            raise ValueError(f"over {self.over!r} is not known; choose 'all' layers or the 'head'")
        if self.estimator not in ("sampled", "exact", "batch_mean"):
            raise ValueError(f"estimator {self.estimator!r} is not known; choose 'sampled' or 'exact'")
        if self.criterion not in ("nll", "brier"):
            raise ValueError(f"criterion {self.criterion!r} is not known; choose 'nll' or 'brier'")
        if self.num_samples < 1 or self.tuning_samples < 1 or not self.grid:
            raise ValueError(
                "num_samples, tuning_samples and grid must not be empty; the defaults are 20, 20 and decades"
            )
        if self.prior_precision is not None and not self.prior_precision > 0:
            raise ValueError(f"prior_precision {self.prior_precision} is not positive; None has it tuned")

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
        if not parts:
            with seeded(recipe.seed, data.device):
                check_copies(build(network, likelihood, data), data)
        (point,) = parts or fit_parts(self, network, likelihood, data, recipe)
        assert isinstance(point, Point)
        fisher = self.fisher(point.network, likelihood, data, recipe.seed)
        if self.prior_precision is not None:
            return self._gaussian(point.network, fisher, self.prior_precision, self.num_samples, recipe.seed)

        def at(precision: float) -> Gaussian:
            return self._gaussian(point.network, fisher, precision, self.tuning_samples, recipe.seed)

        tuning = PriorSearch(self.grid, self.slack, self.criterion).tune(point, at, likelihood, data.held_out)
        gaussian = self._gaussian(point.network, fisher, tuning.chosen, self.num_samples, recipe.seed)
        return replace(gaussian, tuning=tuning)

    def fisher(self, model: nn.Module, likelihood: Likelihood, data: TrainingData, seed: int = 0) -> dict[str, Tensor]:
        """Sum over the inliers, plus w * N / M times the sum over the outliers."""
        only = head_only(model, data) if self.over == "head" else None
        generator = generator_for("fisher", seed, device=data.device)
        total: dict[str, Tensor] = {}
        for x, root, scale in passes(likelihood, data, generator):
            signs = None
            if self.estimator != "exact":
                signs = random_signs(x, likelihood.num_outputs, generator)
            if self.estimator == "batch_mean":
                assert signs is not None
                found = batch_mean_fisher(model, root, x, signs, only=only)
            else:
                found = diagonal_fisher(model, root, x, signs=signs, budget=self.budget, only=only)
            total = {name: value + scale * found[name] for name, value in total.items()} or found
        return total

    def _gaussian(
        self, model: nn.Module, fisher: dict[str, Tensor], precision: float, num_samples: int, seed: int
    ) -> Gaussian:
        return Gaussian(
            model,
            {name: 1 / (value + precision) for name, value in fisher.items()},
            num_samples,
            seed,
            self.over == "head",
        )


def passes(
    likelihood: Likelihood, data: TrainingData, generator: torch.Generator
) -> Iterator[tuple[Tensor, Root, float]]:
    """What the Fisher is a sum over: inputs, the root of the information about their logits, and what they count.

    First the inliers, then as many outliers at most: the data is passed twice, however many outliers there are.
    """
    yield data.train.x, likelihood.fisher_root, 1.0
    if likelihood.outside is not None:
        pool = data.shown.epoch(generator)
        some = pool[torch.randperm(len(pool), generator=generator, device=pool.device)[: len(data.train)]]
        yield some, partial(likelihood.fisher_root, outliers=True), len(data.train) / len(some)


def random_signs(x: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    shape = (len(x), outputs)
    return torch.randint(2, shape, generator=generator, device=x.device, dtype=torch.int8) * 2 - 1


def head_only(model: nn.Module, data: TrainingData) -> list[str]:
    """The names of the head's parameters."""
    return [name for name, _ in with_head(model, data.train.x[:2]).named_parameters() if name.startswith("head.")]
