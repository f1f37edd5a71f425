"""How a command trains: going on from where it was stopped, and with others where torchrun started several."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


@contextmanager
def resume_training(checkpoint: Path | None, made_with: str = "") -> Iterator[None]:
    """Keep training that is stopped inside the block, if it may be kept, and say so; forget it after the block.

    `made_with` is what else must be the same to go on with it.
    """
    from demur.checkpoint import checkpointed, epochs_in
    from demur.distributed import is_first

    if checkpoint is None:
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Abort("nothing was kept; with --checkpoint FOLDER the next run can be continued") from None
        return
    checkpoint.mkdir(parents=True, exist_ok=True)
    used: set[Path] = set()
    try:
        with checkpointed(checkpoint, made_with) as place:
            used = place.used
            yield
    except KeyboardInterrupt:
        epochs = sum(map(epochs_in, used))
        kept = f"{epochs} epochs are kept in {checkpoint}, and the same command goes on from there"
        raise typer.Abort(kept if epochs else "nothing was kept, because training had not lasted two seconds") from None
    else:
        for file in used if is_first() else ():
            file.unlink(missing_ok=True)
    finally:
        if is_first() and not any(checkpoint.iterdir()):
            checkpoint.rmdir()


def num_started() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_spokesman() -> bool:
    """Whether this process says what all of them would say."""
    return num_started() == 1 or os.environ["RANK"] == "0"


def own_gpu(device: str) -> str:
    """Of several processes each takes the GPU of its own number, unless one is named."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and num_started() > 1 else device


@contextmanager
def join_processes() -> Iterator[None]:
    """Where torchrun started several processes, have them train together inside the block.

    The first one speaks. Of those that fail, the first to do so says why, and the others end with the same code.
    """
    if num_started() == 1:
        yield
        return
    import torch
    from torch import distributed as dist
    from torch.distributed.rendezvous import rendezvous

    from demur.distributed import shared_training

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    store, rank, count = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    streams = sys.stdout, sys.stderr
    nothing = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for good)
    if not is_spokesman():
        sys.stdout = sys.stderr = nothing
    try:
        with shared_training():
            yield
            dist.barrier()  # the others wait until the first has written
    except BaseException:
        first_to_fail = _is_first_to_fail(store, rank)
        sys.stdout, sys.stderr = streams if first_to_fail else (nothing, nothing)
        _await_failures(store, count)
        raise
    sys.stdout, sys.stderr = streams
    dist.destroy_process_group()


def _is_first_to_fail(store: "Store", rank: int) -> bool:
    try:
        return bool(store.compare_set("failed", "", str(rank)) == str(rank).encode())
    except RuntimeError:  # the store has gone with the process that kept it
        return False


def _await_failures(store: "Store", count: int) -> None:
    """Until all processes have failed, or two seconds: when one has ended, torchrun ends the others."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending, and with a code that says why
    waits_until = time.monotonic() + 2
    try:
        store.add("failures", 1)
        while store.add("failures", 0) < count and time.monotonic() < waits_until:
            time.sleep(0.02)
    except RuntimeError:  # the store has gone with the process that kept it
        return
