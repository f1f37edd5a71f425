"""Maximum a posteriori: the ordinary network, weight decay being the prior."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from demur.inference.base import Inference, build
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Point, Posterior
from demur.tasks.base import Recipe, Task
from demur.training import seeded, train


@dataclass(frozen=True)
class MAP:
    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return []

    def fit(
        self, network: Network, likelihood: Likelihood, task: Task, recipe: Recipe, parts: Sequence[Posterior] = ()
    ) -> Point:
        with seeded(recipe.seed, task.train.x.device):
            model = build(network, likelihood, task)
            deque(train(model, likelihood, task, recipe), maxlen=0)
        return Point(model)
