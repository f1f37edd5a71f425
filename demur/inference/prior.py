"""Choosing a prior precision by validation data, for every posterior that is a Gaussian around the MAP network."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Literal

from torch import Tensor

from demur.likelihoods import Likelihood
from demur.metrics import accuracy, brier, nll
from demur.posterior import Point, Posterior, Tuning
from demur.predictive import predict
from demur.training_data import Split

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
    answers: Tensor = field(compare=False, repr=False)  # the most probable class of every input, (N,)


@dataclass(frozen=True)
class PriorSearch:
    """The least precision of `grid` that costs next to nothing.

    The negative log-likelihood is flat towards the MAP network, where all precisions serve equally well. So the least
    of `grid` is taken whose NLL exceeds the best, the MAP network's included, by no more than the fraction `slack`, and
    whose accuracy is at most half a point below the MAP network's: the most doubt that costs next to nothing. Where no
    precision of the grid will do, greater ones are tried, which come ever closer to the MAP network.

    Of fewer than 200 inputs half a point is less than one: that accuracy is the same may then be luck. So there the
    class of no input may change, whether it was right or wrong.

    The criterion `brier` is the paper's code's: the best Brier score, whatever becomes of likelihood and accuracy.
    """

    grid: Sequence[float] = DECADES
    slack: float = 0.01
    criterion: Literal["nll", "brier"] = "nll"

    def tune(self, point: Point, at: Callable[[float], Posterior], likelihood: Likelihood, held_out: Split) -> Tuning:
        """`at` gives the posterior of a precision."""
        y = held_out.y

        def attempt(posterior: Posterior, precision: float) -> Trial:
            prediction = predict(posterior, likelihood, held_out.x)
            by_nll, losses = nll(prediction, y), -prediction.probs.double()[range(len(y)), y.cpu()].log()
            criterion = by_nll if self.criterion == "nll" else brier(prediction, y)
            return Trial(precision, criterion, by_nll, accuracy(prediction, y), losses, prediction.probs.argmax(1))

        at_map = attempt(point, math.inf)
        trials: list[Trial] = []
        for precision in sorted(self.grid, reverse=True):
            trials.append(attempt(at(precision), precision))
            # past the optimum less precision only blurs more
            if trials[-1].criterion > 1.05 * (1 + self.slack) * self._best(trials, at_map):
                break
        beyond = 0
        while not (harmless := self._harmless(trials, at_map)) and beyond < BEYOND:
            beyond += 1
            trials.insert(0, attempt(at(10 * trials[0].precision), 10 * trials[0].precision))
        # the end of the unbroken run from the MAP network on: beyond a gap it is luck
        run = list(takewhile(lambda trial: trial in harmless, dropwhile(lambda trial: trial not in harmless, trials)))
        chosen = (run or trials)[-1 if run else 0]
        self._warn(trials, chosen, at_map)
        self._warn_of_noise(trials, chosen)
        rows = tuple((trial.precision, trial.nll, trial.accuracy) for trial in trials)
        return Tuning(chosen.precision, rows, (at_map.nll, at_map.accuracy))

    def _sound(self, trials: Sequence[Trial], at_map: Trial) -> list[Trial]:
        """Those that answer as well as the MAP network."""
        if self.criterion == "brier":
            return list(trials)
        if len(at_map.answers) * HARM < 1:
            return [trial for trial in trials if bool((trial.answers == at_map.answers).all())]
        return [trial for trial in trials if trial.accuracy >= at_map.accuracy - HARM]

    def _best(self, trials: Sequence[Trial], at_map: Trial) -> float:
        limit = [at_map] if self.criterion == "nll" else []
        return min(trial.criterion for trial in (*self._sound(trials, at_map), *limit))

    def _harmless(self, trials: Sequence[Trial], at_map: Trial) -> list[Trial]:
        most = (1 + self.slack) * self._best(trials, at_map)
        return [trial for trial in self._sound(trials, at_map) if trial.criterion <= most]

    def _warn(self, trials: Sequence[Trial], chosen: Trial, at_map: Trial) -> None:
        """Say so where the best precision is not inside the grid."""
        shown = (
            f"(validation NLL {chosen.nll:.3g} and accuracy {chosen.accuracy:.3f}, "
            f"the MAP network's {at_map.nll:.3g} and {at_map.accuracy:.3f})"
        )
        low, high = min(self.grid), max(self.grid)
        if chosen.precision > high:
            warnings.warn(
                f"every prior precision of Laplace's grid ({low:g} to {high:g}) makes the network worse, so "
                f"{chosen.precision:g} is taken, which leaves it almost as it is {shown}; more training data, or a "
                "network trained for longer, may help",
                stacklevel=5,
            )
            return
        neighbours = {high: trials[:2], low: trials[-2:]}.get(chosen.precision, [])
        if any(abs(trial.criterion - chosen.criterion) > self.slack * chosen.criterion for trial in neighbours):
            name = "NLL" if self.criterion == "nll" else "Brier score"
            warnings.warn(
                f"the best prior precision, {chosen.precision:g}, is at the edge of the grid, where the {name} is "
                f"still changing {shown}; widen Laplace's grid ({low:g} to {high:g})",
                stacklevel=5,
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
                f"{count} validation input{'s are' if count > 1 else ' is'} too few to tune Laplace's prior with: "
                f"precision {chosen.precision:g} is taken and {later[0].precision:g} is not, whose NLL differs by "
                f"{float(worse.mean()):+.2g} +- {error:.2g} and whose accuracy by "
                f"{later[0].accuracy - chosen.accuracy:+.2f}; give more data, a larger validation fraction, or "
                "Laplace(prior_precision=...)",
                stacklevel=5,
            )
