"""Training by several processes: each takes its part of every batch, and all step by the mean of their gradients.

The processes are torch.distributed's, started by torchrun or another engine. All of them see the same data and draw the
same batches from the same seed, so they end with the same network: the one that a single process trains, up to
rounding. Two things differ. Batch norm sees a process's own part of a batch, and its running statistics are averaged
after every epoch. Dropout draws the same mask in every process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

_rank_and_count: ContextVar[tuple[int, int]] = ContextVar("rank and count", default=(0, 1))


@contextmanager
def shared_training() -> Iterator[None]:
    """Have every network that is trained inside the block be trained by all processes of the default group.

    Each of them must do the same things inside the block, in the same order; only the first writes checkpoints.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "there is no group of processes to train with; start them with torchrun and call "
            "torch.distributed.init_process_group()"
        )
    token = _rank_and_count.set((dist.get_rank(), dist.get_world_size()))
    try:
        yield
    finally:
        _rank_and_count.reset(token)


def num_processes() -> int:
    return _rank_and_count.get()[1]


def is_first() -> bool:
    return _rank_and_count.get()[0] == 0


def shared_batch_size(size: int) -> int:
    """Rounded down to a multiple of the number of processes: only of equal parts is the mean of means the mean."""
    count = num_processes()
    if size < count:
        raise ValueError(f"a batch of {size} inputs cannot be shared by {count} processes; start fewer of them")
    return size // count * count


def own_part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of a batch of inliers, and as many outliers behind them or none, those that are this process's to learn from."""
    rank, count = _rank_and_count.get()
    if count == 1:
        return x, y
    return x.unflatten(0, (-1, len(y)))[:, rank::count].flatten(0, 1), y[rank::count]


def start_alike(model: nn.Module, *numbers: int) -> None:
    """Give every process the first one's weights; refused unless all of them come with the same numbers."""
    if num_processes() == 1:
        return
    own = torch.tensor(numbers, device=_message_device())
    every = [torch.empty_like(own) for _ in range(num_processes())]
    dist.all_gather(every, own)
    if any(not torch.equal(own, other) for other in every):
        rows = ", ".join(str(other.tolist()) for other in every)
        raise ValueError(
            f"the processes do not train alike (inputs, epochs, seed, epochs done: {rows}); give all of them the same "
            "data, settings, seed and checkpoint folder"
        )
    for value in (*model.parameters(), *model.buffers()):
        dist.broadcast(value.detach(), 0)


def average_gradients(model: nn.Module, loss: Tensor) -> Tensor:
    """Replace every gradient by its mean over the processes; the mean of their losses."""
    if num_processes() == 1:
        return loss
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    averaged = _mean_of([*gradients, loss])
    for gradient, mean in zip(gradients, averaged, strict=False):
        gradient.copy_(mean)
    return averaged[-1]


def average_statistics(model: nn.Module) -> None:
    """Replace batch norm's running statistics by their means over the processes."""
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if num_processes() == 1 or not statistics:
        return
    for buffer, mean in zip(statistics, _mean_of(statistics), strict=True):
        buffer.copy_(mean)


def as_the_first_says(*values: float) -> tuple[float, ...]:
    """The first process's values, so that all of them decide alike."""
    if num_processes() == 1:
        return values
    agreed = torch.tensor(values, dtype=torch.float64, device=_message_device())
    dist.broadcast(agreed, 0)
    return tuple(agreed.tolist())


def _message_device() -> str:
    """NCCL, where it is the only backend, sends what is on a GPU alone."""
    return "cuda" if dist.get_backend() == dist.Backend.NCCL else "cpu"


def _mean_of(values: list[Tensor]) -> list[Tensor]:
    """In one message."""
    flat = torch.cat([value.detach().float().flatten() for value in values])
    dist.all_reduce(flat)
    parts = (flat / num_processes()).split([value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
