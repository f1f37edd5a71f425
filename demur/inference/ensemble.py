"""Deep ensembles, of any method: members differ in their seeds alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from demur.inference.base import Inference, fit_parts
from demur.inference.map import MAP
from demur.inference.together import can_train_together, train_together
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Mixture, Posterior
from demur.training_data import Recipe, TrainingData


@dataclass(frozen=True)
class Ensemble:
    """Several networks that differ in their seeds alone. `member` may be any inference method."""

    member: Inference = field(default_factory=MAP)
    members: int = 5

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members {self.members} is not positive; an ensemble needs at least 1, the paper has 5")

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        first = recipe.seed * self.members
        return [(self.member, replace(recipe, seed=seed)) for seed in range(first, first + self.members)]

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Mixture:
        if not parts and self.member == MAP() and can_train_together(network, likelihood, data):
            parts = train_together(network, likelihood, data, [own for _, own in self.parts(recipe)])
        return Mixture(tuple(parts or fit_parts(self, network, likelihood, data, recipe)))
