"""How long a fit will take, a limit on it, early stopping, and the training curve for the report."""

import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

import torch

from demur.inference import Inference, KroneckerLaplace, Laplace, VariationalBayes
from demur.inference.base import build, check_copies, networks_in
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Gaussian, Point, Posterior
from demur.predictive import predict
from demur.training import Learner, optimizer_for, seeded
from demur.training_data import Fixed, Recipe, Split, TrainingData, WatchedRecipe
from demur.watching import Curve, Watch, curves_kept, time_limited

LONG = 300.0  # seconds that nobody waits unasked
SAFETY = 1.2  # what comes after training, by how much more than was estimated
LEAST = 0.3  # of what is left, the fraction that training gets in any case
PREDICTIONS = 3  # that are made of what a fit holds out
FEW = 32  # inputs that the cost of a prediction is measured with
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


_begun: ContextVar[float | None] = ContextVar("begun", default=None)


@contextmanager
def counted_from(begun: float) -> Iterator[None]:
    """Have time limits of fits inside the block count from then, by `time.perf_counter`: a command reads before it."""
    token = _begun.set(begun)
    try:
        yield
    finally:
        _begun.reset(token)


def end_of_limit(limit: float | str | None, started: float) -> float | None:
    """When a fit that started then must be over; None where nothing limits it."""
    seconds, begun = parse_duration(limit), _begun.get()
    return None if seconds is None else seconds + (started if begun is None else begun)


def seconds_until(ends: float | None) -> float | None:
    return None if ends is None else ends - time.perf_counter()


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
    """Seconds of the parts of a fit, as they were measured before it."""

    forward: float  # an input that is predicted
    step: float  # of training
    draw: float = 0.0  # a sample of the weights
    curvature: float = 0.0  # an input that adds to the Fisher
    look: float = 0.0  # at the validation data, in training

    def training(self, data: TrainingData, recipe: Recipe, networks: int) -> float:
        steps = max(1, len(data.train) // recipe.batch_size)
        return networks * recipe.epochs * (steps * self.step + self.look)

    def after_training(self, inference: Inference, data: TrainingData, num_predicted: int) -> float:
        """For curvature, tuning and calibration: every input that is predicted goes through every sampled network."""
        over_head = isinstance(inference, VariationalBayes) or getattr(inference, "over", "all") == "head"
        samples = getattr(inference, "num_samples", networks_in(inference))
        passes, draws, curved = num_predicted * (1 if over_head else samples), PREDICTIONS * samples, 0
        if isinstance(inference, Laplace | KroneckerLaplace):
            trials = 0 if inference.prior_precision is not None else len(inference.grid)
            num_tuning = 0 if data.validation is None else len(data.validation)
            passes += num_tuning * (trials * (1 if over_head else inference.tuning_samples) + (trials > 0))
            draws += trials * inference.tuning_samples
            curved = 2 * len(data.train)
        return self.forward * passes + self.draw * draws + self.curvature * curved


def probe_cost(
    network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe, inference: Inference
) -> Cost:
    """Time each part with a network that is thrown away, the shorter of two times: the first sets things up."""
    with seeded(recipe.seed, data.device):
        model = build(network, likelihood, data)
        learner = Learner(model, likelihood, data, recipe, optimizer_for(model, recipe))
        learner.begin()
        learner.feed.shuffle()
        learner.feed.place.zero_()
        step = min(_seconds(learner) for _ in range(min(2, learner.feed.steps)))
        model.eval()
        few = Split(data.train.x[:FEW], data.train.y[:FEW])

        def predicting(posterior: Posterior) -> float:
            return min(_seconds(lambda: predict(posterior, likelihood, few.x)) for _ in range(2))

        once, draw, curvature, look = predicting(Point(model)), 0.0, 0.0, 0.0
        if isinstance(inference, Laplace | KroneckerLaplace):
            check_copies(model, data)
            learn = inference.fisher if isinstance(inference, Laplace) else inference.curvature
            curvature = min(
                _seconds(lambda: learn(model, likelihood, TrainingData(few, outliers=Fixed(few.x)))) for _ in range(2)
            )
            curvature /= len(few) * (1 if likelihood.outside is None else 2)
            if inference.over == "all":
                zero = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
                draw = max(0.0, predicting(Gaussian(model, zero, 1)) - once)
        if data.validation is not None:
            watch = Watch(model, likelihood, data.validation, None, {})
            look = min(_seconds(watch.measure) for _ in range(2))
    return Cost(once / len(few), step, draw, curvature, look)


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
    networks, begun = networks_in(inference), time.perf_counter()
    with curves_kept() as curves:
        if seconds_left is None and is_quick(data):
            return inference.fit(network, likelihood, data, recipe), curves
        cost = probe_cost(network, likelihood, data, recipe, inference)
        training, after = cost.training(data, recipe, networks), cost.after_training(inference, data, num_predicted)
        if seconds_left is None:
            if training + after > LONG:
                warnings.warn(
                    f"this fit will take up to {(training + after) / 60:.0f} minutes here ({networks} network(s), "
                    f"{recipe.epochs} epochs each); quicker: {hint}time_limit='5m', or fewer epochs",
                    stacklevel=4,
                )
            return inference.fit(network, likelihood, data, recipe), curves
        left = seconds_left - (time.perf_counter() - begun)
        with time_limited(left, networks, rest=SAFETY * after, look=cost.look, least=LEAST):
            return inference.fit(network, likelihood, data, recipe), curves


def curve_to_json(curves: list[Curve]) -> dict[str, Any]:
    """For a report: of each network its epochs."""
    if not curves:
        return {}
    rows = [[list(row) for row in curve] for curve in curves]
    return {"epochs": max(len(curve) for curve in curves), "epoch, loss, validation nll, accuracy": rows}
