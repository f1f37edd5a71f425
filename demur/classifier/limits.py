"""Fits that end: how long one will take, a limit to it, and the curve that it leaves."""

import re
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from demur.inference import Inference, Laplace
from demur.inference.base import build, networks_in
from demur.likelihoods import Likelihood
from demur.networks import Network, own_input
from demur.posterior import Posterior
from demur.training import Learner, optimizer_for, seeded
from demur.training_data import Recipe, TrainingData, WatchedRecipe
from demur.watching import Curve, curves_kept, time_limited

LONG = 300.0  # seconds that nobody waits unasked
SAFETY = 1.2  # what comes after training, by how much more than was estimated
LEAST = 0.3  # of what is left, the fraction that training gets in any case
WATCHED = 40  # validation inputs whose likelihood is worth stopping by
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds_in(limit: float | str | None) -> float | None:
    """Of 90, "90s", "10m" or "2h"."""
    if limit is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h)?", str(limit).strip())
    if found is None or isinstance(limit, bool) or not (seconds := float(found[1]) * UNITS[found[2] or ""]) > 0:
        raise ValueError(f"time_limit {limit!r} is no duration; give seconds, or such as '90s', '10m' or '2h'")
    return seconds


def is_quick(data: TrainingData) -> bool:
    """Tables, and features, are learned in seconds."""
    return data.train.x.dim() == 2 and data.train.x.is_floating_point()


def watched(recipe: Recipe, patience: int | str | None, data: TrainingData) -> WatchedRecipe:
    """The recipe with an end: after `patience` epochs without a better likelihood of the validation data.

    `auto` is a quarter of the epochs where waiting is worth avoiding and there are validation inputs enough to tell.
    """
    if isinstance(patience, str):
        if patience != "auto":
            raise ValueError(f"patience {patience!r} is not known; give a number of epochs, 'auto' or None")
        enough = data.validation is not None and len(data.validation) >= WATCHED
        patience = max(5, recipe.epochs // 4) if enough and not is_quick(data) else None
    return WatchedRecipe(**{**asdict(recipe), "patience": patience})


@dataclass(frozen=True)
class Cost:
    """Seconds that an input takes to be predicted, and a step of training."""

    forward: float
    step: float

    def training(self, data: TrainingData, recipe: Recipe, networks: int) -> float:
        steps = max(1, len(data.train) // recipe.batch_size)
        return networks * recipe.epochs * steps * self.step

    def afterwards(self, inference: Inference, data: TrainingData, measured: int) -> float:
        """Of curvature, tuning and calibration: passes of inputs through the network, a gradient of each as six."""
        samples = getattr(inference, "num_samples", 1)
        over_head = getattr(inference, "over", "all") == "head"
        passes = measured * (1 if over_head else samples)
        if isinstance(inference, Laplace):
            tried = 0 if inference.prior_precision is not None else len(inference.grid)
            tuned = 0 if data.validation is None else len(data.validation)
            passes += 2 * len(data.train) * (1 if over_head else 6)
            passes += tuned * (tried if over_head else tried * inference.tuning_samples)
        return self.forward * passes


def probed(network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe) -> Cost:
    """Measured on two steps of a network that is thrown away."""
    with seeded(recipe.seed, data.device):
        model = build(network, likelihood, data)
        learner = Learner(model, likelihood, data, recipe, optimizer_for(model, recipe))
        learner.begin()
        learner.feed.shuffle()
        learner.feed.place.zero_()
        step = min(_seconds(learner) for _ in range(min(2, learner.feed.steps)))
        few = own_input(data.train.x[: recipe.batch_size])
        model.eval()
        with torch.inference_mode():
            forward = _seconds(lambda: model(few)) / len(few)
    return Cost(forward, step)


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def fitted(
    inference: Inference,
    network: Network,
    likelihood: Likelihood,
    data: TrainingData,
    recipe: Recipe,
    *,
    left: float | None,
    measured: int,
    quicker: str,
) -> tuple[Posterior, list[Curve]]:
    """The posterior, in what is `left` of a time limit in seconds, and the curves of its networks.

    Without a limit a fit that will take long is announced, with what would be `quicker`. `measured` is how many inputs
    will be predicted after it.
    """
    networks = networks_in(inference)
    with curves_kept() as curves:
        if left is None and is_quick(data):
            return inference.fit(network, likelihood, data, recipe), curves
        cost = probed(network, likelihood, data, recipe)
        training, after = cost.training(data, recipe, networks), cost.afterwards(inference, data, measured)
        if left is None:
            if training + after > LONG:
                warnings.warn(
                    f"this fit will take up to {(training + after) / 60:.0f} minutes here ({networks} network(s), "
                    f"{recipe.epochs} epochs each); quicker: {quicker}time_limit='5m', or fewer epochs",
                    stacklevel=5,
                )
            return inference.fit(network, likelihood, data, recipe), curves
        with time_limited(max(LEAST * left, left - SAFETY * after), networks):
            return inference.fit(network, likelihood, data, recipe), curves


def curve_to_json(curves: list[Curve]) -> dict[str, Any]:
    """For a report: of each network its epochs."""
    if not curves:
        return {}
    rows = [[list(row) for row in curve] for curve in curves]
    return {"epochs": max(len(curve) for curve in curves), "epoch, loss, validation nll, accuracy": rows}
