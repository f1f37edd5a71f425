"""Training that was stopped goes on where it was: weights, optimiser, randomness and whatever a method has kept so far.

One safetensors file, replaced whole after an epoch, and removed by whoever asked for it once the result is safe. Where
several networks are trained one after another, a folder of such files, one a network.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from demur.distributed import is_first
from demur.files import read_tensors, replacing
from demur.provenance import digest

SECONDS_BETWEEN = 2.0  # an epoch that is shorter is not worth a file


@dataclass
class Kept:
    """Where checkpoints lie, and what came of them inside the block.

    `used` are the files that were continued from or may be written, `resumed` the epochs that networks had behind them
    when they went on.
    """

    path: Path
    made_with: str = ""
    resumed: list[int] = field(default_factory=list)
    used: set[Path] = field(default_factory=set)
    unwritten: bool = False  # whether a state could not be kept, of which is told once

    def file_of(self, identity: str) -> Path:
        """Of the network with that identity."""
        return self.path / f"{identity[:16]}.safetensors" if self.path.is_dir() else self.path

    def strangers(self) -> list[Path]:
        """Checkpoints of other networks than those of this block."""
        return sorted({*self.path.glob(f"{'[0-9a-f]' * 16}.safetensors")} - self.used) if self.path.is_dir() else []


_kept: ContextVar[Kept | None] = ContextVar("checkpoint", default=None)


@contextmanager
def checkpointed(path: Path, made_with: str = "") -> Iterator[Kept]:
    """Have networks that are trained inside the block continue from `path`, if it exists, and write themselves there.

    A file is one network's; in a folder, which must exist, each has a file of its own.
    Data, recipe, likelihood, optimiser and the shapes of the weights must be those of the checkpoint, or it is not
    taken; what else must be the same, such as a penalty's strength, is for the caller to say in `made_with`.
    """
    kept = Kept(path, made_with)
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def seconds_in(path: Path) -> float:
    """Of the training that was stopped and is kept there; 0 where nothing is."""
    state = _read(path)
    return 0.0 if state is None else float(state[0]["seconds"])


def epochs_in(path: Path) -> int:
    """That were done when training was stopped; 0 where nothing is kept."""
    state = _read(path)
    return 0 if state is None else int(state[0]["epoch"])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Header and tensors; None where there is no file, or a damaged one, which is set aside."""
    if not path.exists():
        return None
    try:
        if path.is_dir():
            raise ValueError("it is a folder")
        written, tensors = read_tensors(path)
        if not written or written.get("digest") != digest((written.get("demur"), tensors)):
            raise ValueError("its content is not what was written")
    except (SafetensorError, ValueError) as error:
        _set_aside(path, str(error))
        return None
    return json.loads(written["demur"]), tensors


def _set_aside(path: Path, reason: str) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    os.replace(path, aside)
    warnings.warn(
        f"the checkpoint {path} is damaged ({reason}), and training starts anew; "
        f"it is now called {aside.name} and may be deleted",
        stacklevel=4,
    )


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once; a state_dict lists them twice, and leaves out what is not persistent."""
    return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}


@torch.no_grad()
def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, value in state_of(model).items():
        value.copy_(state[name])


class Checkpoint:
    """All that training changes. `kept` is the method's own, filled in place. Another `identity`'s file is ignored.

    `identity` is asked for only where a checkpoint is kept.
    """

    def __init__(
        self,
        identity: Callable[[], str],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        kept: dict[str, Tensor],
    ) -> None:
        self.kept, self.place = kept, _kept.get()
        self.model, self.optimizer, self.generator = model, optimizer, generator
        self.identity = "" if self.place is None else self._identity(identity(), self.place.made_with)
        self.path = None if self.place is None else self.place.file_of(self.identity)
        self.written = time.monotonic()
        self.started = self.written  # less what was spent before, by whoever was stopped

    def _identity(self, *others: str) -> str:
        shapes = {name: tuple(value.shape) for name, value in state_of(self.model).items()}
        return digest((others, shapes, type(self.optimizer).__name__, self._settings()))

    def restore(self) -> int:
        """Go back to what was written last; the number of epochs that were done."""
        if self.place is None or self.path is None:
            return 0
        if not self.place.used and not self.path.exists() and self.place.strangers():
            warnings.warn(
                f"the checkpoint in {self.place.path} is of other data or other settings; it stays as it is, and "
                "training begins from the start",
                stacklevel=3,
            )
        self.place.used.add(self.path)
        state_before = _read(self.path)
        if state_before is None or state_before[0]["identity"] != self.identity:
            return 0
        header, tensors = state_before

        def under(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

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
        self.started -= header["seconds"]
        self.place.resumed.append(int(header["epoch"]))
        return int(header["epoch"])

    def write(self, epoch: int, last: bool = False) -> None:
        """Keep the state after so many epochs, unless the last was kept a moment ago.

        In a folder the last state is kept in any case, for other networks come after this one.
        """
        if self.place is None or self.path is None or not is_first():
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
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        header = {
            "identity": self.identity,
            "epoch": epoch,
            "seconds": time.monotonic() - self.started,
            "groups": self._settings(),
        }
        written = json.dumps(header)
        try:
            with replacing(self.path) as unfinished:
                save_file(tensors, unfinished, {"demur": written, "digest": digest((written, tensors))})
        except OSError as error:  # a full disk is no reason to lose what is being computed
            if not self.place.unwritten:
                kept = f"epoch {epochs_in(self.path)} is still kept" if self.path.is_file() else "nothing is kept yet"
                warnings.warn(
                    f"the checkpoint after epoch {epoch} could not be written ({error}); training goes on, and will be "
                    f"kept once there is room in {self.path.parent}; {kept}",
                    stacklevel=3,
                )
            self.place.unwritten = True
        self.written = time.monotonic()

    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.state_dict()["param_groups"]

    def _settings(self) -> list[dict[str, Any]]:
        """Without the rate, which may lie on the device, and is set before every step."""
        return [{k: value for k, value in group.items() if k not in ("params", "lr")} for group in self._groups()]
