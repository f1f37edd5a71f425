"""What every inference method offers."""

from collections.abc import Sequence
from typing import Protocol

import torch

from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Posterior
from demur.training_data import Recipe, TrainingData, check_labels


class Inference(Protocol):
    """A frozen dataclass of hyperparameters."""

    def parts(self, recipe: Recipe) -> "list[tuple[Inference, Recipe]]":
        """The posteriors that this one is made from, to be fitted first; a study shares them between methods."""
        ...

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Posterior:
        """The posterior over the network's weights; without `parts` it fits them itself."""
        ...


def fit_parts(
    inference: Inference, network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe
) -> list[Posterior]:
    return [part.fit(network, likelihood, data, its_recipe) for part, its_recipe in inference.parts(recipe)]


def build(network: Network, likelihood: Likelihood, data: TrainingData) -> torch.nn.Module:
    """A fresh network with the right head, where the data is."""
    check_labels("the training data", data.train.y, likelihood.num_classes)
    return network(likelihood.num_outputs).to(data.device)
