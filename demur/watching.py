"""Training that ends: when its time is up, or when validation data say that it learns nothing more."""

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from demur.checkpoint import put_state, state_of
from demur.distributed import as_the_first_says
from demur.likelihoods import Likelihood
from demur.networks import own_input
from demur.training_data import Split

BATCH = 256  # validation inputs that are looked at together
LATEST = 5  # looks that say how fast the machine is now


@dataclass
class Clock:
    """When everything must be over, how many networks are yet to be trained, and what is to follow their training."""

    ends: float
    networks: int
    rest: float = 0.0  # seconds for what follows, at the pace at which a look at the validation data takes `look`
    look: float = 0.0
    least: float = 0.0  # of the time, the fraction that training gets in any case
    begun: float = field(default_factory=lambda: time.monotonic())
    looks: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))  # seconds of each

    @property
    def training_ends(self) -> float:
        """As much before the end as what follows will take at the pace of the latest looks."""
        pace = statistics.median(self.looks) / self.look if self.look and self.looks else 1.0
        return max(self.begun + self.least * (self.ends - self.begun), self.ends - pace * self.rest)


@dataclass(frozen=True)
class Turn:
    """One network's part of the time, which is one of `networks` equal ones."""

    begun: float
    clock: Clock
    networks: int

    @property
    def ends(self) -> float:
        return self.begun + max(0.0, self.clock.training_ends - self.begun) / self.networks

    def done(self) -> float:
        """The fraction of it that is over."""
        return as_the_first_says(min(1.0, (time.monotonic() - self.begun) / max(self.ends - self.begun, 1e-9)))[0]

    def left(self) -> float:
        return max(0.0, self.ends - time.monotonic())


_clock: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def time_limited(
    seconds: float, networks: int, *, rest: float = 0.0, look: float = 0.0, least: float = 0.0
) -> Iterator[None]:
    """Have the networks that are trained inside the block be done in time, one after another, each in an equal part.

    What is left unused by one is the others'. The learning rate has come to its end when time is up. Of the time `rest`
    seconds are kept for what follows training; more, or less, where a look at the validation data takes longer than
    `look` seconds, or shorter. The fraction `least` is training's in any case.
    """
    token = _clock.set(Clock(time.monotonic() + seconds, networks, rest, look, least))
    try:
        yield
    finally:
        _clock.reset(token)


def next_turn() -> Turn | None:
    """Of the network that is to be trained now; None where time is not limited."""
    clock = _clock.get()
    if clock is None:
        return None
    turn = Turn(time.monotonic(), clock, max(1, clock.networks))
    clock.networks -= 1
    return turn


Curve = list[tuple[int, float, float, float]]  # epoch, training loss, validation NLL, validation accuracy
_curves: ContextVar[list[Curve] | None] = ContextVar("curves", default=None)


@contextmanager
def curves_kept() -> Iterator[list[Curve]]:
    """The learning curves of the networks that are watched inside the block."""
    curves: list[Curve] = []
    token = _curves.set(curves)
    try:
        yield curves
    finally:
        _curves.reset(token)


class Watch:
    """What validation data say of a network after every epoch, and its weights when they said the best.

    All of it lies in `kept`, which is part of a checkpoint: training that goes on knows what it has seen.
    """

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, split: Split, patience: int | None, kept: dict[str, Tensor]
    ) -> None:
        self.model, self.likelihood, self.split, self.patience, self.kept = model, likelihood, split, patience, kept

    @property
    def curve(self) -> Curve:
        rows = self.kept.get("curve")
        return [] if rows is None else [(int(row[0]), row[1], row[2], row[3]) for row in rows.tolist()]

    def look(self, epoch: int, loss: float) -> float:
        """Measure, and keep the weights if they are the best so far; the accuracy."""
        begun = time.monotonic()
        nll, accuracy = self.measure()
        if (clock := _clock.get()) is not None:
            clock.looks.append(time.monotonic() - begun)
        best = min((row[2] for row in self.curve), default=math.inf)
        row = torch.tensor([[epoch, loss, nll, accuracy]], dtype=torch.float64)
        self.kept["curve"] = torch.cat([self.kept["curve"], row]) if "curve" in self.kept else row
        if self.patience is not None and nll < best:
            self.kept |= {f"best/{name}": value.clone() for name, value in state_of(self.model).items()}
        return accuracy

    def over(self) -> bool:
        """Whether there has been nothing better for `patience` epochs."""
        curve = self.curve
        if self.patience is None or not curve:
            return False
        best = min(curve, key=lambda row: row[2])
        return curve[-1][0] - best[0] >= self.patience

    def end(self) -> None:
        """Go back to the best weights, and hand the curve to whoever keeps it."""
        best = {key.removeprefix("best/"): value for key, value in self.kept.items() if key.startswith("best/")}
        if best:
            put_state(self.model, best)
        if (curves := _curves.get()) is not None:
            curves.append(self.curve)

    @torch.no_grad()
    def measure(self) -> tuple[float, float]:
        """Negative log-likelihood and accuracy on the validation data."""
        mode = self.model.training
        self.model.eval()
        total, right = 0.0, 0
        for x, y in zip(self.split.x.split(BATCH), self.split.y.split(BATCH), strict=True):
            probs, _ = self.likelihood.probs(self.model(own_input(x)).float())
            total -= float(probs[torch.arange(len(y)), y].clamp_min(1e-38).log().sum())
            right += int((probs.argmax(1) == y).sum())
        self.model.train(mode)
        nll, accuracy = as_the_first_says(total / len(self.split), right / len(self.split))
        return nll, accuracy
