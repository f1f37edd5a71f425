"""Maximum a posteriori: the ordinary network, weight decay being the prior."""

from collections.abc import Sequence
from dataclasses import dataclass

from demur.inference.base import Inference, build
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Point, Posterior
from demur.training import seeded, train
from demur.training_data import Recipe, TrainingData


@dataclass(frozen=True)
class MAP:
    """One network, trained in the ordinary way; weight decay is the prior."""

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return []

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Point:
        with seeded(recipe.seed, data.device):
            model = build(network, likelihood, data)
            for _ in train(model, likelihood, data, recipe, watched=True):
                pass
        return Point(model)
