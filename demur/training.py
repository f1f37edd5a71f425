"""The one optimisation loop: tensors on their device, inliers and outliers in one pass."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from threading import RLock
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from demur.checkpoint import Checkpoint
from demur.distributed import average_gradients, average_statistics, own_part, shared_batch_size, start_alike
from demur.graphs import WORTH_COMPILING, Recorded, can_compile, compiled
from demur.likelihoods import Likelihood
from demur.names import choose
from demur.networks import as_input, mixed_precision
from demur.provenance import digest
from demur.streams import generator_for
from demur.training_data import Fixed, Recipe, TrainingData, WatchedRecipe, check_finite
from demur.watching import Turn, Watch, next_turn


@dataclass(frozen=True)
class EpochReport:
    """Said after every epoch; loss is minus the objective, in nats per inlier, averaged over the epoch."""

    epoch: int
    epochs: int
    loss: float
    accuracy: float | None = None  # on validation data, where these are watched
    left: float | None = None  # seconds, where time is limited


SECONDS_BETWEEN = 1.0  # reports from within an epoch: each waits for the device

_observer: ContextVar[Callable[[EpochReport], None] | None] = ContextVar("observer", default=None)
_within: ContextVar[Callable[[EpochReport, float], None] | None] = ContextVar("within", default=None)


@contextmanager
def observed(
    observer: Callable[[EpochReport], None], within: Callable[[EpochReport, float], None] | None = None
) -> Iterator[None]:
    """Have `observer` called after every epoch of every network that is trained inside the block.

    `within` is called every second or so inside an epoch, with its report so far and the share of it that is done.
    """
    tokens = _observer.set(observer), _within.set(within)
    try:
        yield
    finally:
        _observer.reset(tokens[0])
        _within.reset(tokens[1])


_one_at_a_time = RLock()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Randomness inside the block follows from the seed; outside, it goes on as if nothing had happened.

    Dropout and fresh weights draw from torch's own generator, which all threads share; so they take turns.
    """
    with _one_at_a_time, torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def cosine(done: float) -> float:
    """From 1 to 0 as the share of training that is done goes from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * done))


def warmed_up(rate: Callable[[float], float], warmup: float, done: float) -> float:
    return min(1.0, done / warmup) * rate(done)


def optimizer_for(model: nn.Module, recipe: Recipe, undecayed: Collection[str] = ()) -> torch.optim.Optimizer:
    """The recipe's optimiser; coupled weight decay is the prior, from which the `undecayed` parameters are exempt."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    slow = isinstance(recipe, WatchedRecipe) and recipe.trunk_rate != 1
    tuned = {name for name in named if slow and name.startswith("features.")}
    exempt = {*undecayed} - tuned
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named.items() if name not in exempt | tuned], "weight_decay": recipe.weight_decay},
        {"params": [p for name, p in named.items() if name in exempt], "weight_decay": 0.0},
    ]
    if isinstance(recipe, WatchedRecipe):
        rate = recipe.lr * recipe.trunk_rate
        groups.append({"params": [named[name] for name in named if name in tuned], "weight_decay": 0.0, "lr": rate})
    on_gpu = next(iter(named.values())).is_cuda
    build = choose(OPTIMIZERS, recipe.optimizer, "optimizer")
    return build([group for group in groups if group["params"]], recipe.lr, on_gpu)


# fused, they pass over the weights once: ten times as fast on a CPU; a recorded step must find its count on the device
OPTIMIZERS: Mapping[str, Callable[[list[dict[str, Any]], float, bool], torch.optim.Optimizer]] = MappingProxyType(
    {
        "adam": lambda groups, lr, on_gpu: torch.optim.Adam(groups, lr, fused=True, capturable=on_gpu),
        "sgd": lambda groups, lr, on_gpu: torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True, fused=True),
    }
)


def train(
    model: nn.Module,
    likelihood: Likelihood,
    data: TrainingData,
    recipe: Recipe,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    rate: Callable[[float], float] = cosine,
    penalty: Callable[[], Tensor] | None = None,
    kept: dict[str, Tensor] | None = None,
    watched: bool = False,
) -> Iterator[int]:
    """Maximise log_prob - penalty(), both in nats per inlier, pausing after every epoch (1, 2, ...).

    The learning rate is the recipe's times rate(share of training done). The model gives logits (..., 2 B, C). `kept`
    is what the caller gathers in the pauses: it is part of a checkpoint, and filled from it. Where it is `watched`, a
    `WatchedRecipe` has the model measured on validation data, and training may end early, with the best weights.
    """
    optimizer = optimizer or optimizer_for(model, recipe)
    if isinstance(recipe, WatchedRecipe) and recipe.warmup:
        rate = partial(warmed_up, rate, recipe.warmup)
    learner = Learner(model, likelihood, data, recipe, optimizer, penalty)
    generator = learner.feed.generator

    def identity() -> str:
        shown = None if likelihood.outside is None else data.outliers
        return digest((repr((likelihood, recipe)), data.train, shown, data.augment, rate))

    kept = {} if kept is None else kept
    checkpoint = Checkpoint(identity, model, optimizer, generator, kept)
    first = checkpoint.restore()
    watch = None
    if watched and isinstance(recipe, WatchedRecipe) and data.validation is not None:
        watch = Watch(model, likelihood, data.validation, recipe.patience, kept)
    start_alike(model, len(data.train), recipe.epochs, recipe.seed, first)
    learner.begin()
    step, turn = Recorded([learner]), next_turn()
    for epoch in range(first, recipe.epochs):
        if watch is not None and watch.over():  # as it was when training was stopped
            break
        step = step.unless_changed()
        loss = run_epoch([learner], step, recipe, rate, epoch, turn)
        report_epoch(epoch + 1, recipe, loss, None if watch is None else watch.look(epoch + 1, loss), turn)
        yield epoch + 1
        over = turn is not None and turn.done() >= 1
        checkpoint.write(epoch + 1, last=over or epoch + 1 == recipe.epochs)
        if over:
            break
    if watch is not None:
        watch.end()
    model.eval()


class Learner:
    """A network in training. A call takes one step; all it needs is on the data's device, and stays where it is."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        optimizer: torch.optim.Optimizer,
        penalty: Callable[[], Tensor] | None = None,
    ) -> None:
        self.model, self.likelihood, self.optimizer, self.penalty = model, likelihood, optimizer, penalty
        self.forward: Callable[[Tensor], Tensor] = model
        self.feed = Feed(data, recipe, likelihood.outside is not None)
        self.steps = recipe.epochs * self.feed.steps
        self.clip_norm = recipe.clip_norm
        self.device = data.device
        self.loss = torch.zeros((), device=self.device)  # summed over an epoch's steps

    def begin(self) -> None:
        """Get ready for the first step, now that weights and optimiser are what they are to start from."""
        self.model.train()
        if self.device.type == "cuda":
            if self.steps >= WORTH_COMPILING and can_compile(self.model):
                self.forward = compiled(self.model)
            for group in self.optimizer.param_groups:  # a recorded step reads the rate from the device
                group.setdefault("initial_lr", float(group["lr"]))
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)

    def __call__(self) -> None:
        x, y = self.feed.next()
        with mixed_precision(self.model, self.device):
            logits = self.forward(x)
        check_logits(logits, len(x), self.likelihood)
        # one pass, so batch norm sees both kinds
        logits_in, logits_out = logits[..., : len(y), :], logits[..., len(y) :, :]
        loss = -self.likelihood.log_prob(logits_in, y, logits_out)
        if self.penalty is not None:
            loss = loss + self.penalty()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        total = average_gradients(self.model, loss.detach())  # over the processes that train together
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        self.loss += total

    @property
    def generator(self) -> torch.Generator:
        return self.feed.generator

    @property
    def settings(self) -> list[dict[str, object]]:
        """What a recording takes for granted."""
        groups = self.optimizer.param_groups
        return [{name: value for name, value in group.items() if name not in ("params", "lr")} for group in groups]


def run_epoch(
    learners: Sequence[Learner],
    step: Callable[[], None],
    recipe: Recipe,
    rate: Callable[[float], float],
    epoch: int,
    turn: Turn | None = None,
) -> float:
    """Shuffle, and step through the data once, or till time is up; the mean loss. `step` steps with all learners."""
    for learner in learners:
        learner.feed.shuffle()
        learner.loss.zero_()
    steps, last_report = learners[0].feed.steps, time.monotonic()

    def loss(steps_done: int) -> float:
        return sum(float(learner.loss) for learner in learners) / (steps_done * len(learners))

    steps_done = 0
    while steps_done < steps:
        done = (epoch + (steps_done / steps if recipe.cosine == "step" else 0)) / recipe.epochs
        for learner in learners:
            set_rate(learner.optimizer, rate(done if turn is None else max(done, turn.done())))
        step()
        steps_done += 1
        if (within := _within.get()) and time.monotonic() - last_report > SECONDS_BETWEEN:
            left = None if turn is None else turn.left()
            within(EpochReport(epoch + 1, recipe.epochs, loss(steps_done), left=left), steps_done / steps)
            last_report = time.monotonic()
        if turn is not None and turn.done() >= 1:
            break
    for learner in learners:
        average_statistics(learner.model)
    return loss(steps_done)


def set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        lr = group.setdefault("initial_lr", group["lr"]) * share
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def report_epoch(
    epoch: int, recipe: Recipe, loss: float, accuracy: float | None = None, turn: Turn | None = None
) -> None:
    """Say how the epoch went; loudly if it went to ruin."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss became {loss} in epoch {epoch}; lower the learning rate ({recipe.lr}) or clip_norm"
        )
    if observer := _observer.get():
        observer(EpochReport(epoch, recipe.epochs, loss, accuracy, None if turn is None else turn.left()))


class Feed:
    """Full batches, epoch after epoch, of inliers and as many outliers; the few that are left over differ every time.

    Which batch is next is known to the device alone, and tensors stay where they are, so that steps can be recorded.
    """

    def __init__(self, data: TrainingData, recipe: Recipe, with_outliers: bool) -> None:
        self.data, device = data, data.device
        # the same for every method, whatever else it draws
        self.generator = generator_for("batches", recipe.seed, device=device)
        self.size = shared_batch_size(min(recipe.batch_size, len(data.train)))
        self.steps = len(data.train) // self.size
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.inside = torch.zeros(self.steps, self.size, dtype=torch.long, device=device)
        self.outside = torch.zeros_like(self.inside) if with_outliers else None
        self.pool: Tensor | None = None

    def shuffle(self) -> None:
        """Begin an epoch."""
        self.place.zero_()
        self.inside.copy_(self._order(len(self.data.train)))
        if self.outside is None:
            return
        pool, x = self.data.shown.epoch(self.generator), self.data.train.x
        if pool.dtype != x.dtype:
            raise ValueError(f"outliers are {pool.dtype}, inliers {x.dtype}; bring them to one type and range")
        check_finite("an epoch of outliers", pool)
        if self.pool is None or not pool.is_cuda:
            self.pool = pool if isinstance(self.data.outliers, Fixed) or not pool.is_cuda else pool.clone()
        elif pool is not self.pool:
            self.pool.copy_(pool)
        self.outside.copy_(self._order(len(pool)))

    def _order(self, count: int) -> Tensor:
        """So many things in random order, again and again if they are too few."""
        needed = self.steps * self.size
        rounds = [
            torch.randperm(count, generator=self.generator, device=self.generator.device)
            for _ in range(math.ceil(needed / count))
        ]
        return torch.cat(rounds)[:needed].view(self.steps, self.size)

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs, inliers first, then outliers, augmented alike; and the inliers' labels."""
        rows = self.inside[self.place].squeeze(0)
        x = self.data.train.x[rows]
        if self.outside is not None and self.pool is not None:
            x = torch.cat([x, self.pool[self.outside[self.place].squeeze(0)]])
        if self.data.augment:
            x = self.data.augment(x, self.generator)
        self.place += 1
        x, y = own_part(x, self.data.train.y[rows])
        return as_input(x), y


def check_logits(logits: Tensor, inputs: int, likelihood: Likelihood) -> None:
    """Refuse a network that is not a function of the head size."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"the network returned a {type(logits).__name__}; it must return a tensor of logits")
    if logits.shape[-2:] != (inputs, likelihood.num_outputs):
        raise ValueError(
            f"the network gave logits of shape {tuple(logits.shape)} for {inputs} inputs; the likelihood needs a head "
            f"of {likelihood.num_outputs}: build it from the head size that the network function is called with"
        )
