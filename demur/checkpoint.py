"""Training that was stopped goes on where it was: weights, optimiser, randomness and whatever a method has kept so far.

One safetensors file, replaced whole after an epoch, and removed by whoever asked for it once the result is safe. Where
several networks are trained one after another, a folder of such files, one a network.
"""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

SECONDS_BETWEEN = 2.0  # an epoch that is shorter is not worth a file


@dataclass
class Place:
    """Where checkpoints lie; `used` are the files that were continued from or written."""

    path: Path
    used: set[Path] = field(default_factory=set)

    def file_of(self, identity: str) -> Path:
        """Of the network with that identity."""
        return self.path / f"{identity[:16]}.safetensors" if self.path.is_dir() else self.path

    def strangers(self) -> list[Path]:
        """Checkpoints of other networks than those of this block."""
        return sorted({*self.path.glob(f"{'[0-9a-f]' * 16}.safetensors")} - self.used) if self.path.is_dir() else []


_place: ContextVar[Place | None] = ContextVar("checkpoint", default=None)


@contextmanager
def checkpointed(path: Path) -> Iterator[Place]:
    """Have networks that are trained inside the block continue from `path`, if it exists, and write themselves there.

    In a folder each has a file of its own; a file is one network's.
    """
    token = _place.set(place := Place(path))
    try:
        yield place
    finally:
        _place.reset(token)


def digest_of(*values: Any) -> str:
    """A hash of all that values are made of: tensors by their content, functions by name, dataclasses by fields."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(_described(value) + b"\0")
    return digest.hexdigest()


def _described(value: Any) -> bytes:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        content = hashlib.sha256(plain.numpy().data).hexdigest()
        return f"{value.dtype} {tuple(value.shape)} {content}".encode()
    if is_dataclass(value) and not isinstance(value, type):
        return digest_of(type(value).__name__, *(getattr(value, each.name) for each in fields(value))).encode()
    if isinstance(value, list | tuple):
        return digest_of(len(value), *value).encode()
    if isinstance(value, partial):
        return digest_of(value.func, value.args, sorted(value.keywords.items())).encode()
    return str(getattr(value, "__qualname__", value)).encode()


def seconds_in(path: Path) -> float:
    """Of the training that was stopped and is kept there; 0 where nothing is."""
    return float(_header(path).get("seconds", 0.0)) if path.exists() else 0.0


def epochs_in(path: Path) -> int:
    """That were done when training was stopped; 0 where nothing is kept."""
    return int(_header(path)["epoch"]) if path.exists() else 0


def _header(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["demur"])


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once; a state_dict lists them twice, and leaves out what is not persistent."""
    return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}


@torch.no_grad()
def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, value in state_of(model).items():
        value.copy_(state[name])


class Checkpoint:
    """All that training changes. `kept` is the method's own, filled in place. Another `identity`'s file is ignored.

    The identity is asked for only where there is a place for checkpoints.
    """

    def __init__(
        self,
        identity: Callable[[], str],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        kept: dict[str, Tensor],
    ) -> None:
        self.kept = kept
        self.model, self.optimizer, self.generator = model, optimizer, generator
        self.place = _place.get()
        self.identity = identity() if self.place else ""
        self.path = self.place.file_of(self.identity) if self.place else None
        self.written = time.monotonic()
        self.started = self.written  # less what was spent before, by whoever was stopped

    def restore(self) -> int:
        """Go back to what was written last; the number of epochs that were done."""
        if self.path is None or self.place is None:
            return 0
        if not self.path.exists():
            if not self.place.used and self.place.strangers():
                warnings.warn(
                    f"the checkpoint in {self.place.path} is of other data or other settings; it stays as it is, and "
                    "training begins from the start",
                    stacklevel=3,
                )
            self.place.used.add(self.path)
            return 0
        self.place.used.add(self.path)
        with safe_open(self.path, "pt") as file:
            header = json.loads(file.metadata()["demur"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)

        def under(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        if header["identity"] != self.identity:
            return 0
        put_state(self.model, under("model/"))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in under("optimizer/").items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = value
        groups = [{**own, **group} for group, own in zip(header["groups"], self._groups(), strict=True)]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        for p, entries in self.optimizer.state.items():
            for name, value in entries.items():
                if value.shape == p.shape:  # fused optimisers take both for memory of one layout
                    entries[name] = torch.empty_like(p).copy_(value)
        self.generator.set_state(tensors["random/batches"])
        torch.set_rng_state(tensors["random/cpu"])
        if "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], self.generator.device)
        self.kept.update(under("kept/"))
        self.started -= header.get("seconds", 0.0)
        return int(header["epoch"])

    def write(self, epoch: int, last: bool = False) -> None:
        """Keep the state after so many epochs, unless the last was kept a moment ago.

        In a folder the last state is kept in any case, for other networks come after this one.
        """
        if self.path is None or self.place is None:
            return
        soon = time.monotonic() - self.written < SECONDS_BETWEEN
        if soon and not (last and self.place.path.is_dir()):
            return
        tensors = {f"model/{name}": value for name, value in state_of(self.model).items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value for name, value in entries.items()}
        tensors |= {"random/batches": self.generator.get_state(), "random/cpu": torch.get_rng_state()}
        if self.generator.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.generator.device)
        tensors |= {f"kept/{name}": value for name, value in self.kept.items()}
        # the rate may lie on the device, and is set before every step
        groups = [{k: value for k, value in group.items() if k not in ("params", "lr")} for group in self._groups()]
        unfinished = self.path.with_name(f"{self.path.name}.part")
        seconds = time.monotonic() - self.started
        header = {"identity": self.identity, "epoch": epoch, "seconds": seconds, "groups": groups}
        save_file({k: v.contiguous() for k, v in tensors.items()}, unfinished, metadata={"demur": json.dumps(header)})
        os.replace(unfinished, self.path)
        self.written = time.monotonic()

    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.state_dict()["param_groups"]
