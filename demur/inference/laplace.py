"""Diagonal Laplace: a Gaussian around the MAP network, as precise as in- and outliers and the prior make it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile, takewhile
from typing import Literal

import torch
from torch import Tensor, nn

from demur.inference.base import Inference, build, check_copies, fit_parts
from demur.inference.fisher import Root, batch_mean_fisher, diagonal_fisher
from demur.inference.map import MAP
from demur.inference.variational import with_head
from demur.likelihoods import Likelihood
from demur.metrics import accuracy, brier, nll
from demur.networks import Network
from demur.posterior import Gaussian, Point, Posterior, Tuning
from demur.predictive import predict
from demur.streams import generator_for
from demur.training import seeded
from demur.training_data import Recipe, TrainingData

DECADES = tuple(10.0**k for k in range(-2, 9))


HARM = 0.005  # accuracy on validation data that doubt may cost
FEW = 15  # validation inputs, below which it is asked whether they tell precisions apart
BEYOND = 12  # decades past the grid, where nothing is left of the doubt


@dataclass(frozen=True)
class Trial:
    """What a posterior did on validation data; the criterion is what it is chosen by, the lower the better."""

    precision: float
    criterion: float
    nll: float
    accuracy: float
    losses: Tensor = field(compare=False, repr=False)  # the negative log-likelihood of every input, (N,)


@dataclass(frozen=True)
class Laplace:
    """With `prior_precision` None it is tuned on validation data, and the posterior's `tuning` says how.

    The negative log-likelihood is flat towards the MAP network, where all precisions serve equally well. So the least
    of `grid` is taken whose NLL exceeds the best, the MAP network's included, by no more than the fraction `slack`, and
    whose accuracy is at most half a point below the MAP network's: the most doubt that costs next to nothing. Where no
    precision of the grid will do, greater ones are tried, which come ever closer to the MAP network.

    The criterion `brier` is the paper's code's: the best Brier score, whatever becomes of likelihood and accuracy.
    """

    over: Literal["all", "head"] = "all"
    estimator: Literal["sampled", "exact", "batch_mean"] = "sampled"
    prior_precision: float | None = None
    grid: Sequence[float] = field(default=DECADES, repr=False)
    criterion: Literal["nll", "brier"] = "nll"
    slack: float = 0.01
    tuning_samples: int = 20
    num_samples: int = 20
    budget: int | None = None  # bytes of memory for the Fisher; None: 256 MiB, on a GPU a sixteenth of what it has

    def __post_init__(self) -> None:
        if self.over not in ("all", "head"):
            raise ValueError(f"over {self.over!r} is not known; choose 'all' layers or the 'head'")
        if self.estimator not in ("sampled", "exact", "batch_mean"):
            raise ValueError(f"estimator {self.estimator!r} is not known; choose 'sampled' or 'exact'")
        if self.criterion not in ("nll", "brier"):
            raise ValueError(f"criterion {self.criterion!r} is not known; choose 'nll' or 'brier'")
        if self.num_samples < 1 or self.tuning_samples < 1 or not self.grid:
            raise ValueError(
                "num_samples, tuning_samples and grid must not be empty; the defaults are 20, 20 and decades"
            )
        if self.prior_precision is not None and not self.prior_precision > 0:
            raise ValueError(f"prior_precision {self.prior_precision} is not positive; None has it tuned")

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
        if not parts:
            with seeded(recipe.seed, data.device):
                check_copies(build(network, likelihood, data), data)
        (point,) = parts or fit_parts(self, network, likelihood, data, recipe)
        assert isinstance(point, Point)
        fisher = self.fisher(point.network, likelihood, data, recipe.seed)
        if self.prior_precision is not None:
            return self._gaussian(point.network, fisher, self.prior_precision, self.num_samples, recipe.seed)
        tuning = self._tuned(point, fisher, likelihood, data, recipe.seed)
        gaussian = self._gaussian(point.network, fisher, tuning.chosen, self.num_samples, recipe.seed)
        return replace(gaussian, tuning=tuning)

    def fisher(self, model: nn.Module, likelihood: Likelihood, data: TrainingData, seed: int = 0) -> dict[str, Tensor]:
        """Sum over the inliers, plus w * N / M times the sum over the outliers."""
        only = None
        if self.over == "head":
            only = [
                name for name, _ in with_head(model, data.train.x[:2]).named_parameters() if name.startswith("head.")
            ]
        generator = generator_for("fisher", seed, device=data.device)

        def total(x: Tensor, root: Root) -> dict[str, Tensor]:
            if self.estimator == "exact":
                return diagonal_fisher(model, root, x, budget=self.budget, only=only)
            shape = (len(x), likelihood.num_outputs)
            signs = torch.randint(2, shape, generator=generator, device=x.device, dtype=torch.int8) * 2 - 1
            if self.estimator == "batch_mean":
                return batch_mean_fisher(model, root, x, signs, only=only)
            return diagonal_fisher(model, root, x, signs=signs, budget=self.budget, only=only)

        inside = total(data.train.x, likelihood.fisher_root)
        if likelihood.outside is None:
            return inside
        # as many outliers as inliers: the data is passed twice, however many outliers there are
        pool = data.shown.epoch(generator)
        some = pool[torch.randperm(len(pool), generator=generator, device=pool.device)[: len(data.train)]]
        from_outliers = total(some, partial(likelihood.fisher_root, outliers=True))
        scale = len(data.train) / len(some)
        return {name: value + scale * from_outliers[name] for name, value in inside.items()}

    def _tuned(
        self, point: Point, fisher: dict[str, Tensor], likelihood: Likelihood, data: TrainingData, seed: int
    ) -> Tuning:
        x, y = data.held_out.x, data.held_out.y

        def tried(posterior: Posterior, precision: float) -> Trial:
            prediction = predict(posterior, likelihood, x)
            by_nll, losses = nll(prediction, y), -prediction.probs.double()[range(len(y)), y.cpu()].log()
            criterion = by_nll if self.criterion == "nll" else brier(prediction, y)
            return Trial(precision, criterion, by_nll, accuracy(prediction, y), losses)

        def with_prior(precision: float) -> Trial:
            return tried(self._gaussian(point.network, fisher, precision, self.tuning_samples, seed), precision)

        at_map = tried(point, math.inf)
        trials: list[Trial] = []
        for precision in sorted(self.grid, reverse=True):
            trials.append(with_prior(precision))
            # past the optimum less precision only blurs more
            if trials[-1].criterion > 1.05 * (1 + self.slack) * self._best(trials, at_map):
                break
        beyond = 0
        while not (harmless := self._harmless(trials, at_map)) and beyond < BEYOND:
            beyond += 1
            trials.insert(0, with_prior(10 * trials[0].precision))
        # the end of the unbroken run from the MAP network on: beyond a gap it is luck
        run = list(takewhile(lambda trial: trial in harmless, dropwhile(lambda trial: trial not in harmless, trials)))
        chosen = (run or trials)[-1 if run else 0]
        self._warn(trials, chosen, at_map)
        self._warn_of_noise(trials, chosen)
        rows = tuple((trial.precision, trial.nll, trial.accuracy) for trial in trials)
        return Tuning(chosen.precision, rows, (at_map.nll, at_map.accuracy))

    def _sound(self, trials: Sequence[Trial], at_map: Trial) -> list[Trial]:
        """Those that answer as well as the MAP network."""
        return [trial for trial in trials if self.criterion == "brier" or trial.accuracy >= at_map.accuracy - HARM]

    def _best(self, trials: Sequence[Trial], at_map: Trial) -> float:
        limit = [at_map] if self.criterion == "nll" else []
        return min(trial.criterion for trial in (*self._sound(trials, at_map), *limit))

    def _harmless(self, trials: Sequence[Trial], at_map: Trial) -> list[Trial]:
        most = (1 + self.slack) * self._best(trials, at_map)
        return [trial for trial in self._sound(trials, at_map) if trial.criterion <= most]

    def _warn(self, trials: Sequence[Trial], chosen: Trial, at_map: Trial) -> None:
        """Say so where the best precision is not inside the grid."""
        figures = (
            f"(validation NLL {chosen.nll:.3g} and accuracy {chosen.accuracy:.3f}, "
            f"the MAP network's {at_map.nll:.3g} and {at_map.accuracy:.3f})"
        )
        low, high = min(self.grid), max(self.grid)
        if chosen.precision > high:
            warnings.warn(
                f"every prior precision of Laplace's grid ({low:g} to {high:g}) makes the network worse, so "
                f"{chosen.precision:g} is taken, which leaves it almost as it is {figures}; more training data, or a "
                "network trained for longer, may help",
                stacklevel=4,
            )
            return
        neighbours = {high: trials[:2], low: trials[-2:]}.get(chosen.precision, [])
        if any(abs(trial.criterion - chosen.criterion) > self.slack * chosen.criterion for trial in neighbours):
            name = "NLL" if self.criterion == "nll" else "Brier score"
            warnings.warn(
                f"the best prior precision, {chosen.precision:g}, is at the edge of the grid, where the {name} is "
                f"still changing {figures}; widen Laplace's grid ({low:g} to {high:g})",
                stacklevel=4,
            )

    def _warn_of_noise(self, trials: Sequence[Trial], chosen: Trial) -> None:
        """Say so where few inputs have decided, and might as well have decided otherwise."""
        count, later = len(chosen.losses), trials[trials.index(chosen) + 1 :]
        if self.criterion != "nll" or count >= FEW or not later:
            return
        worse = later[0].losses - chosen.losses
        error = float(worse.std()) / math.sqrt(count) if count > 1 else math.inf
        if float(worse.mean()) < 2 * error:
            warnings.warn(
                f"{count} validation inputs are few to tune Laplace's prior with: precision {chosen.precision:g} is "
                f"taken and {later[0].precision:g} is not, whose NLL differs by {float(worse.mean()):+.2g} "
                f"+- {error:.2g} and whose accuracy by {later[0].accuracy - chosen.accuracy:+.2f}; give more data, a "
                "larger validation fraction, or Laplace(prior_precision=...)",
                stacklevel=4,
            )

    def _gaussian(
        self, model: nn.Module, fisher: dict[str, Tensor], precision: float, num_samples: int, seed: int
    ) -> Gaussian:
        return Gaussian(
            model,
            {name: 1 / (value + precision) for name, value in fisher.items()},
            num_samples,
            seed,
            self.over == "head",
        )
