"""What inference returns: a point, a Gaussian or a mixture, over parameters and buffers alike.

Every posterior is a list of weighted components, and a component is a set of networks that may share their trunk:

    for weight, component in posterior.components():
        shared = component.trunk(x)
        for network in component.networks():
            logits = network(shared)  # (B, C) of one draw, or (draws, B, C) of several

Saved as one safetensors file with a JSON header; nothing in it is code.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from demur.streams import generator_for

HEADS = 64  # drawn at a time


class Posterior(Protocol):
    @property
    def num_draws(self) -> int: ...

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        """Points and Gaussians with their shares of the probability, which sum to one."""
        ...

    def logits(self, x: Tensor, draw: int) -> Tensor:
        """Logits (B, C) of the draw-th network; the same network for every x and in every process."""
        ...


@dataclass(frozen=True)
class Point:
    """One network, buffers included."""

    network: nn.Module
    over_head = False

    @property
    def num_draws(self) -> int:
        return 1

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        yield 1.0, self

    def trunk(self, x: Tensor) -> Tensor:
        return x

    def networks(self) -> Iterator[Callable[[Tensor], Tensor]]:
        yield self.network

    def logits(self, x: Tensor, draw: int = 0) -> Tensor:
        return self.network(x)


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussians over the parameters named in `variance`, around the network's own; the rest are points.

    With `over_head` they are the head's alone; then `trunk` is the network's `.features` and runs once for all draws.
    """

    network: nn.Module
    variance: Mapping[str, Tensor]
    num_draws: int = 20
    seed: int = 0
    over_head: bool = False

    def __post_init__(self) -> None:
        if self.num_draws < 1:
            raise ValueError(f"num_draws {self.num_draws} is not positive; an average needs at least 1")

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        yield 1.0, self

    def trunk(self, x: Tensor) -> Tensor:
        if not self.over_head:
            return x
        return self.network.features(x).to(self.network.get_parameter("head.weight").dtype)  # type: ignore[operator]

    def network_at(self, draw: int) -> Callable[[Tensor], Tensor]:
        sample = self.sample(draw)
        if not self.over_head:
            return lambda x: functional_call(self.network, sample, (x,))
        head = {name.removeprefix("head."): value for name, value in sample.items()}
        return lambda features: functional_call(self.network.get_submodule("head"), head, (features,))

    def networks(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """From what the trunk gives to logits: of one draw, or of many heads in one product, (draws, B, C)."""
        if not self.over_head:
            yield from map(self.network_at, range(self.num_draws))
            return
        for start in range(0, self.num_draws, HEADS):
            yield self._heads(range(start, min(start + HEADS, self.num_draws)))

    def _heads(self, draws: range) -> Callable[[Tensor], Tensor]:
        mean = dict(self.network.named_parameters())
        drawn = [mean | self.sample(draw) for draw in draws]
        weight = torch.stack([sample["head.weight"] for sample in drawn])
        bias = torch.stack([sample["head.bias"] for sample in drawn]).flatten() if "head.bias" in mean else None
        return lambda features: (
            F.linear(features.to(weight), weight.flatten(0, 1), bias).unflatten(1, weight.shape[:2]).movedim(1, 0)
        )

    def logits(self, x: Tensor, draw: int) -> Tensor:
        return self.network_at(draw)(self.trunk(x))

    def sample(self, draw: int) -> dict[str, Tensor]:
        """The draw-th parameters; the same every time and on every device."""
        # in the network's order, whatever the mapping's
        means = {name: mean for name, mean in self.network.named_parameters() if name in self.variance}
        shapes, device = tuple(mean.shape for mean in means.values()), next(iter(means.values())).device
        kept = device.type == "cuda" and sum(shape.numel() for shape in shapes) <= KEPT
        noise = (_kept_noise if kept else _noise)(self.seed, draw, shapes, device)
        sample = {}
        for (name, mean), its in zip(means.items(), noise, strict=True):
            drawn = mean + self.variance[name].sqrt() * its
            sample[name] = torch.empty_like(mean).copy_(drawn)  # in the mean's memory layout
        return sample


def _noise(seed: int, draw: int, shapes: tuple[torch.Size, ...], device: torch.device) -> list[Tensor]:
    generator = generator_for("draws", seed, draw)  # on the CPU, so that every device has the same
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


# on a GPU noise takes longer to make than to use, and every set of inputs is predicted with the same
_kept_noise = lru_cache(maxsize=32)(_noise)
KEPT = 2**23  # numbers of a draw that are worth keeping: 1 GiB in all


@dataclass(frozen=True)
class Mixture:
    """Posteriors of equal weight: an ensemble, or the samples of a chain."""

    parts: tuple[Posterior, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts is empty; a mixture needs at least one posterior")

    @property
    def num_draws(self) -> int:
        return sum(part.num_draws for part in self.parts)

    def components(self) -> Iterator[tuple[float, Point | Gaussian]]:
        for part in self.parts:
            for weight, component in part.components():
                yield weight / len(self.parts), component

    def logits(self, x: Tensor, draw: int) -> Tensor:
        for part in self.parts:
            if draw < part.num_draws:
                return part.logits(x, draw)
            draw -= part.num_draws
        raise ValueError(f"draw {draw + self.num_draws} is too large; this posterior has {self.num_draws}")


FORMAT = 1


def save(posterior: Posterior, path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write the posterior to one file, whole or not at all. `about` says what it is, for whoever reads it back."""
    tensors: dict[str, Tensor] = {}
    header = {"format": FORMAT, "posterior": _pack(posterior, "", tensors), "about": dict(about or {})}
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(_apart(tensors), unfinished, metadata={"demur": json.dumps(header)})
        os.replace(unfinished, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: str | Path, build: Callable[[], nn.Module], device: torch.device | str = "cpu") -> Posterior:
    """Read a posterior back; `build` makes a fresh network of the kind it was fitted with, its head included."""
    header, tensors = _read(path)
    return _unpack(header["posterior"], "", tensors, build, device)


def read_about(path: str | Path) -> dict[str, str]:
    """What the file says that it is."""
    return _read(path)[0]["about"]


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})["demur"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        if header["format"] != FORMAT:
            raise ValueError(f"{path} has format {header['format']}, this demur reads {FORMAT}; save it anew")
        header["posterior"]["kind"], header["about"]
        wild = next((key for key, value in tensors.items() if not value.isfinite().all()), None)
        if wild is not None:
            raise ValueError(f"{path} has NaN or infinite weights, in {wild}; fit and save it anew")
    except FileNotFoundError:
        raise ValueError(f"posterior {path} does not exist; fit one and save it first") from None
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a posterior saved by demur, or it is damaged ({error}); save it anew"
        ) from None
    return header, tensors


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory, as components around one network do, each with its own."""
    seen: set[int] = set()
    apart = {}
    for key, value in tensors.items():
        pointer = value.untyped_storage().data_ptr()
        apart[key] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return apart


def _pack(posterior: Posterior, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Put the tensors under their names and return what else there is to say."""
    if isinstance(posterior, Mixture):
        return {
            "kind": "mixture",
            "parts": [_pack(part, f"{prefix}{index}/", tensors) for index, part in enumerate(posterior.parts)],
        }
    assert isinstance(posterior, Point | Gaussian)
    # parameters and buffers rather than the state_dict, which lists tied weights twice
    for kind, named in (("mean", posterior.network.named_parameters()), ("buffer", posterior.network.named_buffers())):
        tensors |= {f"{prefix}{kind}/{name}": value.detach().contiguous() for name, value in named}
    if isinstance(posterior, Point):
        return {"kind": "point"}
    tensors |= {f"{prefix}variance/{name}": value.contiguous() for name, value in posterior.variance.items()}
    settings = {"num_draws": posterior.num_draws, "seed": posterior.seed, "over_head": posterior.over_head}
    return {"kind": "gaussian", "settings": settings}


def _unpack(
    header: dict[str, Any],
    prefix: str,
    tensors: Mapping[str, Tensor],
    build: Callable[[], nn.Module],
    device: torch.device | str,
) -> Posterior:
    if header["kind"] == "mixture":
        parts = enumerate(header["parts"])
        return Mixture(tuple(_unpack(part, f"{prefix}{index}/", tensors, build, device) for index, part in parts))
    network = build().to(device).eval()
    found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    slots: dict[str, Tensor] = {f"mean/{name}": value for name, value in network.named_parameters()}
    slots |= {f"buffer/{name}": value for name, value in network.named_buffers()}
    for key in slots.keys() | {key for key in found if not key.startswith("variance/")}:
        saved, fresh = (tuple(side[key].shape) if key in side else None for side in (found, slots))
        if saved != fresh:
            raise ValueError(
                f"{key.split('/', 1)[1]} is {saved or 'absent'} in the saved posterior, {fresh or 'absent'} in the "
                "network; pass the network that it was fitted with"
            )
    with torch.no_grad():
        for key, slot in slots.items():
            slot.copy_(found[key])
    if header["kind"] == "point":
        return Point(network)
    variance = {
        key.removeprefix("variance/"): value.to(device) for key, value in found.items() if key.startswith("variance/")
    }
    return Gaussian(network, variance, **header["settings"])
