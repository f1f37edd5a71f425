"""How long, and how fast, a head that is trained already is trained on with outliers: chosen by validation data."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from demur.classifier.kinds import steps_to_epochs
from demur.inference import MAP, Inference
from demur.inference.base import build
from demur.likelihoods import Likelihood
from demur.networks import Network, own_input
from demur.posterior import Point, Posterior
from demur.streams import generator_for
from demur.training import seeded, train
from demur.training_data import Fixed, Recipe, Split, TrainingData

STEPS, RATES = (100, 300, 1000, 3000), (1e-3, 1e-2)
MOST = 200  # epochs
CHOOSING = 0.25  # of what is trained with, to choose by
FEWEST = 20  # inputs of which a part can choose
USUAL_STEPS, USUAL_RATES = (300,), (1e-3,)  # where they are fewer
HARM = 0.005  # accuracy that training may cost, on the inputs that choose


@dataclass(frozen=True)
class Trial:
    """What so many epochs at this rate gave on inputs that choose: the objective in nats per inlier, the accuracy."""

    epochs: int
    lr: float
    objective: float
    accuracy: float


@dataclass(frozen=True)
class Adopting:
    """An inference that goes on from weights as the network function gives them.

    The recipe's `epochs` and `lr` are replaced by these here or, where they are None, by those that make in- and
    outliers most probable which were left out, and cost no accuracy; not to train at all is one choice.
    """

    inference: Inference
    epochs: int | None = None
    lr: float | None = None
    trials: list[Trial] = field(default_factory=list, compare=False)  # filled by fit

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return []

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Posterior:
        self.trials[:] = self._try_recipes(network, likelihood, data, recipe)
        best = choose_trial(self.trials)
        if best.epochs:
            return self.inference.fit(network, likelihood, data, replace(recipe, epochs=best.epochs, lr=best.lr))
        with seeded(recipe.seed, data.device):
            point = Point(build(network, likelihood, data).eval())
        # a network that is to stay as it is, is its own MAP
        return (
            point if isinstance(self.inference, MAP) else self.inference.fit(network, likelihood, data, recipe, [point])
        )

    def _try_recipes(self, network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe) -> list[Trial]:
        count, enough = len(data.train), len(data.train) >= FEWEST
        lengths = [
            steps_to_epochs(each, count, recipe.batch_size, 1, MOST) for each in (STEPS if enough else USUAL_STEPS)
        ]
        lengths = [0, *dict.fromkeys(lengths)] if self.epochs is None else [self.epochs]
        rates = (RATES if enough else USUAL_RATES) if self.lr is None else (self.lr,)
        if lengths == [0] or not enough or len(lengths) * len(rates) == 1:
            return [Trial(lengths[-1], rates[0], math.nan, math.nan)]
        fitting, left_out = divide(data, recipe.seed)
        return [
            try_recipe(
                network, likelihood, fitting, left_out, replace(recipe, epochs=max(1, epochs), lr=lr), epochs > 0
            )
            for epochs in lengths
            for lr in (rates if epochs else rates[:1])
        ]

    def to_json(self) -> dict[str, Any]:
        """For a report: what was chosen, and from what."""
        best = choose_trial(self.trials)
        tried = [asdict(trial) for trial in self.trials]
        return {"epochs": best.epochs, "lr": best.lr, **({"choice": tried} if len(tried) > 1 else {})}


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """The most probable of those that are as accurate as the first, which is the least trained."""
    if len(trials) == 1:
        return trials[0]
    sound = [trial for trial in trials if trial.accuracy >= trials[0].accuracy - HARM]
    return max(sound, key=lambda trial: trial.objective)


def divide(data: TrainingData, seed: int) -> tuple[TrainingData, TrainingData]:
    """What is trained with, in two: to fit, and to choose by."""

    def halves(count: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(count, generator=generator_for("choosing", seed)).to(data.device)
        cut = max(1, round(CHOOSING * count))
        return order[cut:], order[:cut]

    inside = [Split(data.train.x[rows], data.train.y[rows]) for rows in halves(len(data.train))]
    if data.outliers is None:
        return TrainingData(inside[0]), TrainingData(inside[1])
    pool = data.outliers.epoch(generator_for("choosing", seed, device=data.device))
    rows = halves(len(pool)) if len(pool) > 1 else (torch.zeros(1, dtype=torch.long),) * 2
    first, second = (TrainingData(split, outliers=Fixed(pool[each])) for split, each in zip(inside, rows, strict=True))
    return first, second


def try_recipe(
    network: Network, likelihood: Likelihood, data: TrainingData, left_out: TrainingData, recipe: Recipe, trained: bool
) -> Trial:
    with seeded(recipe.seed, data.device):
        model = build(network, likelihood, data)
        if trained:
            for _ in train(model, likelihood, data, recipe):
                pass
    model.eval()
    split = left_out.train
    with torch.no_grad():
        logits = model(own_input(split.x))
        pool = split.x[:0] if likelihood.outside is None else left_out.shown.epoch(generator_for("choosing"))
        objective = float(likelihood.log_prob(logits, split.y, model(own_input(pool))))
    right = likelihood.probs(logits)[0].argmax(1) == split.y
    return Trial(recipe.epochs if trained else 0, recipe.lr, objective, float(right.double().mean()))
