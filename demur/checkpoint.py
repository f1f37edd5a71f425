"""Training that was stopped goes on where it was: weights, optimiser, randomness and whatever a method has kept so far.

One safetensors file, replaced whole after an epoch, and removed by whoever asked for it once the result is safe.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

SECONDS_BETWEEN = 2.0  # an epoch that is shorter is not worth a file

_path: ContextVar[Path | None] = ContextVar("checkpoint", default=None)


@contextmanager
def checkpointed(path: Path) -> Iterator[None]:
    """Have the network that is trained inside the block continue from `path`, if it exists, and write itself there."""
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


def seconds_in(path: Path) -> float:
    """Of the training that was stopped and is kept there; 0 where nothing is."""
    if not path.exists():
        return 0.0
    with safe_open(path, "pt") as file:
        return float(json.loads(file.metadata()["demur"]).get("seconds", 0.0))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once; a state_dict lists them twice, and leaves out what is not persistent."""
    return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}


@torch.no_grad()
def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, value in state_of(model).items():
        value.copy_(state[name])


class Checkpoint:
    """All that training changes. `kept` is the method's own, filled in place. Another `identity`'s file is ignored."""

    def __init__(
        self,
        identity: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        kept: dict[str, Tensor],
    ) -> None:
        self.identity, self.kept = identity, kept
        self.model, self.optimizer, self.generator = model, optimizer, generator
        self.path = _path.get()
        self.written = time.monotonic()
        self.started = self.written  # less what was spent before, by whoever was stopped

    def restore(self) -> int:
        """Go back to what was written last; the number of epochs that were done."""
        if self.path is None or not self.path.exists():
            return 0
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

    def write(self, epoch: int) -> None:
        """Keep the state after so many epochs, unless the last was kept a moment ago."""
        if self.path is None or time.monotonic() - self.written < SECONDS_BETWEEN:
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
