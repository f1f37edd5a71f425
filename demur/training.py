"""The one optimisation loop: tensors on their device, inliers and outliers in one pass."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from demur.checkpoint import Checkpoint
from demur.likelihoods import Likelihood
from demur.names import choose
from demur.streams import generator_for
from demur.tasks.base import Recipe, Task, as_input, check_finite


@dataclass(frozen=True)
class EpochReport:
    """Said after every epoch; loss is minus the objective, in nats per inlier, averaged over the epoch."""

    epoch: int
    epochs: int
    loss: float


_observer: ContextVar[Callable[[EpochReport], None] | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Callable[[EpochReport], None]) -> Iterator[None]:
    """Have `observer` called after every epoch of every network that is trained inside the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Randomness inside the block follows from the seed; outside, it goes on as if nothing had happened."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def cosine(done: float) -> float:
    """From 1 to 0 as the share of training that is done goes from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * done))


def optimizer_for(model: nn.Module, recipe: Recipe, undecayed: Collection[str] = ()) -> torch.optim.Optimizer:
    """The recipe's optimiser; coupled weight decay is the prior, from which the `undecayed` parameters are exempt."""
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name not in undecayed], "weight_decay": recipe.weight_decay},
        {"params": [p for name, p in named.items() if name in undecayed], "weight_decay": 0.0},
    ]
    return choose(OPTIMIZERS, recipe.optimizer, "optimizer")([group for group in groups if group["params"]], recipe.lr)


OPTIMIZERS: Mapping[str, Callable[[list[dict], float], torch.optim.Optimizer]] = MappingProxyType(
    {
        "adam": lambda groups, lr: torch.optim.Adam(groups, lr),
        "sgd": lambda groups, lr: torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True),
    }
)


def train(
    model: nn.Module,
    likelihood: Likelihood,
    task: Task,
    recipe: Recipe,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    rate: Callable[[float], float] = cosine,
    penalty: Callable[[], Tensor] | None = None,
    kept: dict[str, Tensor] | None = None,
) -> Iterator[int]:
    """Maximise log_prob - penalty(), both in nats per inlier, pausing after every epoch (1, 2, ...).

    The learning rate is the recipe's times rate(share of training done). The model gives logits (..., 2 B, C). `kept`
    is what the caller gathers in the pauses: it is part of a checkpoint, and filled from it.
    """
    optimizer = optimizer or optimizer_for(model, recipe)
    generator = batch_generator(task, recipe)
    checkpoint = Checkpoint(repr((likelihood, recipe)), model, optimizer, generator, {} if kept is None else kept)
    model.train()
    for epoch in range(checkpoint.restore(), recipe.epochs):
        steps = list_batches(task, recipe, likelihood.outside is not None, generator)
        total = torch.zeros((), device=task.train.x.device)
        for step, batch in enumerate(steps):
            set_rate(optimizer, recipe, rate, epoch, step / len(steps))
            logits = model(network_inputs(task, batch, generator))
            check_logits(logits, len(batch), likelihood)
            # one pass, so batch norm sees both kinds
            logits_in, logits_out = logits[..., : len(batch.inside), :], logits[..., len(batch.inside) :, :]
            loss = -likelihood.log_prob(logits_in, task.train.y[batch.inside], logits_out)
            if penalty is not None:
                loss = loss + penalty()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            total += loss.detach()
        tell(epoch + 1, recipe, float(total) / len(steps))
        yield epoch + 1
        checkpoint.write(epoch + 1)
    model.eval()


def set_rate(
    optimizer: torch.optim.Optimizer, recipe: Recipe, rate: Callable[[float], float], epoch: int, within: float
) -> None:
    done = (epoch + (within if recipe.cosine == "step" else 0)) / recipe.epochs
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate(done)


def tell(epoch: int, recipe: Recipe, loss: float) -> None:
    """Say how the epoch went; loudly if it went to ruin."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss became {loss} in epoch {epoch}; lower the learning rate ({recipe.lr}) or clip_norm"
        )
    if observer := _observer.get():
        observer(EpochReport(epoch, recipe.epochs, loss))


@dataclass(frozen=True)
class Batch:
    """Indices of inliers, and as many outliers, or None."""

    inside: Tensor
    outside: Tensor | None

    def __len__(self) -> int:
        return len(self.inside) + (0 if self.outside is None else len(self.outside))


def batch_generator(task: Task, recipe: Recipe) -> torch.Generator:
    """What batches are drawn and augmented with: the same for every method, whatever else it draws."""
    return generator_for("batches", recipe.seed, device=task.train.x.device)


def network_inputs(task: Task, batch: Batch, generator: torch.Generator) -> Tensor:
    """Inliers first, then outliers, augmented alike."""
    x = task.train.x[batch.inside]
    if batch.outside is not None:
        x = torch.cat([x, batch.outside])
    return as_input(task.augment(x, generator) if task.augment else x)


def list_batches(task: Task, recipe: Recipe, with_outliers: bool, generator: torch.Generator) -> list[Batch]:
    """One epoch of full batches; the few inliers that are left over differ from epoch to epoch."""
    device = task.train.x.device
    size = min(recipe.batch_size, len(task.train))
    inside = torch.randperm(len(task.train), generator=generator, device=device).split(size)
    inside = [rows for rows in inside if len(rows) == size]
    if not with_outliers:
        return [Batch(rows, None) for rows in inside]
    pool = task.outliers.epoch(generator)
    if pool.dtype != task.train.x.dtype:
        raise ValueError(f"outliers are {pool.dtype}, inliers {task.train.x.dtype}; bring them to one type and range")
    check_finite("an epoch of outliers", pool)
    rounds = math.ceil(len(inside) * size / len(pool))
    order = torch.cat([torch.randperm(len(pool), generator=generator, device=device) for _ in range(rounds)])
    outside = order[: len(inside) * size].split(size)
    return [Batch(rows, pool[out]) for rows, out in zip(inside, outside, strict=True)]


def check_logits(logits: Tensor, inputs: int, likelihood: Likelihood) -> None:
    """Refuse a network that is not a function of the head size."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"the network returned a {type(logits).__name__}; it must return a tensor of logits")
    if logits.shape[-2:] != (inputs, likelihood.num_outputs):
        raise ValueError(
            f"the network gave logits of shape {tuple(logits.shape)} for {inputs} inputs; the likelihood needs a head "
            f"of {likelihood.num_outputs}: build it from the head size that the network function is called with"
        )
