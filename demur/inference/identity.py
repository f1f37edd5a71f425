"""Laplace with identity curvature (ICLA): an equally wide Gaussian around every weight of the head.

Zhdanov, Dereka and Kolesnikov (2025) replace the Fisher by the identity matrix and tune the prior precision alone:
every weight of the last layer has variance 1 / (1 + prior precision). No curvature is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from demur.inference.around import check_prior, head_parameters, map_network, with_prior
from demur.inference.base import Inference
from demur.inference.map import MAP
from demur.inference.prior import DECADES, PriorSearch
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Gaussian, Posterior
from demur.training_data import Recipe, TrainingData


@dataclass(frozen=True)
class IdentityLaplace:
    """The same variance for every weight of the head, from the prior precision alone; tuned as in `Laplace`."""

    prior_precision: float | None = None
    grid: Sequence[float] = field(default=DECADES, repr=False)
    slack: float = 0.01
    tuning_samples: int = 20
    num_samples: int = 20

    def __post_init__(self) -> None:
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
        model, head = point.network, head_parameters(point.network, data)

        def at(precision: float, num_samples: int) -> Gaussian:
            variance = {name: torch.full_like(model.get_parameter(name), 1 / (1 + precision)).detach() for name in head}
            return Gaussian(model, variance, num_samples, recipe.seed, over_head=True)

        search = PriorSearch(self.grid, self.slack)
        return with_prior(self, search, point, at, likelihood, data)
