"""Several networks trained at once on a GPU, which one small network does not fill: their steps are recorded side by
side as one CUDA graph.

Each keeps its own seed, batches and optimiser, so it becomes what it would have become alone, up to rounding. On a CPU,
which one network fills, nothing would be gained.
"""

from collections.abc import Sequence

from torch import nn

from demur.graphs import Recorded
from demur.inference.base import build
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Point
from demur.training import Learner, cosine, optimizer_for, report_epoch, run_epoch, seeded
from demur.training_data import Recipe, TrainingData


def can_train_together(network: Network, likelihood: Likelihood, data: TrainingData) -> bool:
    """Whether members can be trained at once: on a GPU, if nothing in them is random, for that they would share."""
    device = data.device
    if device.type != "cuda":
        return False
    with seeded(0, device):
        model = build(network, likelihood, data)
    return not any(isinstance(m, nn.modules.dropout._DropoutNd | nn.RNNBase) for m in model.modules())


def train_together(
    network: Network, likelihood: Likelihood, data: TrainingData, recipes: Sequence[Recipe]
) -> list[Point]:
    """MAP networks of several recipes that differ in their seeds alone."""
    learners = []
    for recipe in recipes:
        with seeded(recipe.seed, data.device):
            model = build(network, likelihood, data)
        learners.append(Learner(model, likelihood, data, recipe, optimizer_for(model, recipe)))
        learners[-1].begin()
    step = Recorded(learners)
    with seeded(recipes[0].seed, data.device):
        for epoch in range(recipes[0].epochs):
            report_epoch(epoch + 1, recipes[0], run_epoch(learners, step, recipes[0], cosine, epoch))
    return [Point(learner.model.eval()) for learner in learners]
