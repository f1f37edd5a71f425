"""How long a fit will take, a limit on it, early stopping, and the training curve for the report."""

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


def parse_duration(limit: float | str | None) -> float | None:
    """Seconds: of 90, "90s", "10m" or "2h"."""
    if limit is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h)?", str(limit).strip())
    if match is None or isinstance(limit, bool) or not (seconds := float(match[1]) * UNITS[match[2] or ""]) > 0:
        raise ValueError(f"time_limit {limit!r} is no duration; give seconds, or such as '90s', '10m' or '2h'")
    return seconds


def is_quick(data: TrainingData) -> bool:
    """Tables, and features, are learned in seconds."""
    return data.train.x.dim() == 2 and data.train.x.is_floating_point()


def watch_recipe(recipe: Recipe, patience: int | str | None, data: TrainingData) -> WatchedRecipe:
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

    def after_training(self, inference: Inference, data: TrainingData, num_predicted: int) -> float:
        """Seconds for curvature, tuning and calibration: forward passes, a gradient counted as six."""
        samples = getattr(inference, "num_samples", 1)
        over_head = getattr(inference, "over", "all") == "head"
        passes = num_predicted * (1 if over_head else samples)
        if isinstance(inference, Laplace):
            grid_size = 0 if inference.prior_precision is not None else len(inference.grid)
            num_tuning = 0 if data.validation is None else len(data.validation)
            passes += 2 * len(data.train) * (1 if over_head else 6)
            passes += num_tuning * (grid_size if over_head else grid_size * inference.tuning_samples)
        return self.forward * passes


def probe_cost(network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe) -> Cost:
    """Time two training steps and a forward pass of a network that is thrown away."""
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
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def fit_within_limit(
    inference: Inference,
    network: Network,
    likelihood: Likelihood,
    data: TrainingData,
    recipe: Recipe,
    *,
    seconds_left: float | None,
    num_predicted: int,
    hint: str,
) -> tuple[Posterior, list[Curve]]:
    """Fit within `seconds_left` of a time limit; return the posterior and the training curves of its networks.

    Without a limit (None) a long fit is announced by a warning, with `hint` for a quicker one. `num_predicted` inputs
    will be predicted after the fit.
    """
    networks = networks_in(inference)
    with curves_kept() as curves:
        if seconds_left is None and is_quick(data):
            return inference.fit(network, likelihood, data, recipe), curves
        cost = probe_cost(network, likelihood, data, recipe)
        training, after = cost.training(data, recipe, networks), cost.after_training(inference, data, num_predicted)
        if seconds_left is None:
            if training + after > LONG:
                warnings.warn(
                    f"this fit will take up to {(training + after) / 60:.0f} minutes here ({networks} network(s), "
                    f"{recipe.epochs} epochs each); quicker: {hint}time_limit='5m', or fewer epochs",
                    stacklevel=5,
                )
            return inference.fit(network, likelihood, data, recipe), curves
        with time_limited(max(LEAST * seconds_left, seconds_left - SAFETY * after), networks):
            return inference.fit(network, likelihood, data, recipe), curves


def curve_to_json(curves: list[Curve]) -> dict[str, Any]:
    """For a report: of each network its epochs."""
    if not curves:
        return {}
    rows = [[list(row) for row in curve] for curve in curves]
    return {"epochs": max(len(curve) for curve in curves), "epoch, loss, validation nll, accuracy": rows}
