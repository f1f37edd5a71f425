"""What inference returns: a point, a Gaussian or a mixture, over parameters and buffers alike.

Every posterior is a list of weighted components, and a component is a set of networks that may share their trunk:

    for weight, component in posterior.components():
        shared = component.trunk(x)
        for network in component.networks():
            logits = network(shared)  # (B, C) of one sample, or (samples, B, C) of several

Any number of threads can use one posterior: a sampled network is a copy around the same tensors.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demur.streams import generator_for

HEADS = 64  # sampled at a time
MOST_SAMPLES = 100_000


class Borrowed:
    """A copy of a network's module tree around the same parameters, in which parameters can be replaced by others.

    The network itself is never touched, so any number of threads can use it, whatever fails meanwhile.
    """

    def __init__(self, network: nn.Module) -> None:
        # buffers are copied: a forward pass may write them
        self.network = deepcopy(network, {id(tensor): tensor for tensor in network.parameters()})
        self.places: dict[str, list[tuple[nn.Module, str]]] = {}
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        for name, parameter in self.network.named_parameters(remove_duplicate=False):  # a tied one has several places
            owner, _, attribute = name.rpartition(".")
            self.places.setdefault(names[id(parameter)], []).append((self.network.get_submodule(owner), attribute))

    def put(self, values: Mapping[str, Tensor]) -> nn.Module:
        for name, value in values.items():
            parameter = value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)
            for module, attribute in self.places[name]:
                setattr(module, attribute, parameter)
        return self.network


def copy_network(network: nn.Module) -> nn.Module:
    """A copy around the same parameters, for a pass may change buffers or count itself; the network if there is none.

    What cannot be copied, with a lock in it or a closure around it, can only be used as it is.
    """
    try:
        return Borrowed(network).network
    except (TypeError, RuntimeError, AttributeError):
        return network


class Posterior(Protocol):
    """Networks to average over, each with its share of the probability."""

    @property
    def num_samples(self) -> int: ...

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        """Points and Gaussians with their shares of the probability, which sum to one."""
        ...

    def logits(self, x: Tensor, sample: int) -> Tensor:
        """Logits (B, C) of the sample-th network; the same network for every x and in every process."""
        ...


@dataclass(frozen=True)
class Point:
    """One network, buffers included."""

    network: nn.Module
    over_head = False

    @property
    def num_samples(self) -> int:
        return 1

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        yield 1.0, self

    def trunk(self, x: Tensor) -> Tensor:
        return x

    def networks(self) -> Iterator[Callable[[Tensor], Tensor]]:
        yield copy_network(self.network)

    def logits(self, x: Tensor, sample: int = 0) -> Tensor:
        return copy_network(self.network)(x)


@dataclass(frozen=True)
class Tuning:
    """How a prior precision was chosen: what every one that was tried did on validation data, and the MAP network.

    A row is (precision, mean negative log-likelihood in nats, accuracy); `at_map` is the last two of the MAP network.
    """

    chosen: float
    rows: tuple[tuple[float, float, float], ...]
    at_map: tuple[float, float]


def check_settings(num_samples: object, seed: object, over_head: object) -> None:
    if type(num_samples) is not int or not 1 <= num_samples <= MOST_SAMPLES:
        raise ValueError(
            f"num_samples {num_samples!r} is not a whole number from 1 to {MOST_SAMPLES}; 20 will mostly do"
        )
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed {seed!r} is not a whole number of 64 bits; 0 will do")
    if type(over_head) is not bool:
        raise ValueError(f"over_head {over_head!r} is neither True nor False")


def check_variance(
    variance: Mapping[str, tuple[int, ...]], parameters: Mapping[str, tuple[int, ...]], over_head: bool
) -> None:
    """Shapes of variances go with those of parameters; over the head they are all the head's, and no others."""
    if not variance:
        raise ValueError("variance is empty; a Gaussian needs that of at least one parameter")
    for name, shape in variance.items():
        if parameters.get(name) != shape:
            raise ValueError(
                f"the variance of {name} has shape {shape}, the parameter {parameters.get(name, 'is absent')}; "
                "they must agree"
            )
    head = {name for name in parameters if name.startswith("head.")}
    if over_head and set(variance) != head:
        raise ValueError(f"variance has {', '.join(sorted(variance))}; over the head it must have {sorted(head)}")


def check_bases(bases: Mapping[str, list[tuple[int, ...]]], variance: Mapping[str, tuple[int, ...]]) -> None:
    """Shapes of bases: square, one for a parameter's first dimension and perhaps one for the others together."""
    for name, basis in bases.items():
        shape = variance.get(name, ())
        sides = (shape[0], math.prod(shape[1:])) if shape else ()
        if len(basis) not in (1, 2) or not shape or [(side, side) for side in sides[: len(basis)]] != basis:
            raise ValueError(
                f"the bases of {name} have shapes {basis}, the variance {shape or 'is absent'}; give a square one for "
                "its first dimension, and one for the others together"
            )


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussians over the parameters named in `variance`, around the network's own; the rest are points.

    With `over_head` they are the head's alone; then `trunk` is the network's `.features` and runs once for all samples.

    A parameter in `bases` is independent in other coordinates: those of the columns of an orthogonal matrix for its
    first dimension and, if there are two, of another for all others together. That is a Kronecker-factored Gaussian.
    """

    network: nn.Module
    variance: Mapping[str, Tensor]
    num_samples: int = 20
    seed: int = 0
    over_head: bool = False
    tuning: Tuning | None = None  # how its prior was chosen, where it was
    kept: tuple[dict[str, Tensor], ...] = field(default=(), repr=False)  # the first samples, see keep_samples
    bases: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self.num_samples, self.seed, self.over_head)
        parameters = dict(self.network.named_parameters())
        check_variance(
            {name: tuple(value.shape) for name, value in self.variance.items()},
            {name: tuple(value.shape) for name, value in parameters.items()},
            self.over_head,
        )
        check_bases(
            {name: [tuple(basis.shape) for basis in each] for name, each in self.bases.items()},
            {name: tuple(value.shape) for name, value in self.variance.items()},
        )
        for name, value in self.variance.items():
            if not (value.isfinite().all() and (value >= 0).all()):
                raise ValueError(f"the variance of {name} is negative, NaN or infinite; fit it anew")

    def components(self) -> Iterator[tuple[float, "Point | Gaussian"]]:
        yield 1.0, self

    def trunk(self, x: Tensor) -> Tensor:
        if not self.over_head:
            return x
        network = copy_network(self.network)
        return network.features(x).to(network.get_parameter("head.weight").dtype)  # type: ignore[operator]

    def network_at(self, sample: int) -> nn.Module:
        """The sample-th network, or its head where the samples share their trunk; the caller's own."""
        network = Borrowed(self.network).put(self.parameters_at(sample))
        return network.get_submodule("head") if self.over_head else network

    def networks(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """From what the trunk gives to logits: of one sample, or of many heads in one product, (samples, B, C).

        Each serves until the next is asked for.
        """
        if not self.over_head:
            borrowed = Borrowed(self.network)
            yield from (borrowed.put(self.parameters_at(sample)) for sample in range(self.num_samples))
            return
        for start in range(0, self.num_samples, HEADS):
            yield self._heads(range(start, min(start + HEADS, self.num_samples)))

    def _heads(self, samples: range) -> Callable[[Tensor], Tensor]:
        mean = dict(self.network.named_parameters())
        sampled = [mean | self.parameters_at(sample) for sample in samples]
        weight = torch.stack([each["head.weight"] for each in sampled])
        bias = torch.stack([each["head.bias"] for each in sampled]).flatten() if "head.bias" in mean else None
        return lambda features: (
            F.linear(features.to(weight), weight.flatten(0, 1), bias).unflatten(1, weight.shape[:2]).movedim(1, 0)
        )

    def logits(self, x: Tensor, sample: int) -> Tensor:
        return self.network_at(sample)(self.trunk(x))

    def parameters_at(self, sample: int) -> dict[str, Tensor]:
        """The sample-th parameters; the same every time and on every device."""
        if sample < len(self.kept):
            return self.kept[sample]
        # in the network's order, whatever the mapping's
        means = {name: mean for name, mean in self.network.named_parameters() if name in self.variance}
        shapes, device = tuple(mean.shape for mean in means.values()), next(iter(means.values())).device
        kept = device.type == "cuda" and sum(shape.numel() for shape in shapes) <= KEPT
        noises = (_kept_noise if kept else _noise)(self.seed, sample, shapes, device)
        parameters = {}
        for (name, mean), noise in zip(means.items(), noises, strict=True):
            sampled = mean + self._rotated(name, self.variance[name].sqrt() * noise)
            parameters[name] = torch.empty_like(mean).copy_(sampled)  # in the mean's memory layout
        return parameters

    def _rotated(self, name: str, noise: Tensor) -> Tensor:
        """From the coordinates of its bases to the parameter's own."""
        if name not in self.bases:
            return noise
        left, *right = self.bases[name]
        turned = left @ noise.reshape(len(left), -1)
        return (turned @ right[0].mT if right else turned).reshape(noise.shape)


def _noise(seed: int, sample: int, shapes: tuple[torch.Size, ...], device: torch.device) -> list[Tensor]:
    generator = generator_for("draws", seed, sample)  # on the CPU, so that every device has the same
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


# on a GPU noise takes longer to make than to use, and every set of inputs is predicted with the same
_kept_noise = lru_cache(maxsize=32)(_noise)
KEPT = 2**23  # numbers of a sample that are worth keeping: 1 GiB in all


@dataclass(frozen=True)
class Mixture:
    """Posteriors of equal weight: an ensemble, or the samples of a chain."""

    parts: tuple[Posterior, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts is empty; a mixture needs at least one posterior")

    @property
    def num_samples(self) -> int:
        return sum(part.num_samples for part in self.parts)

    def components(self) -> Iterator[tuple[float, Point | Gaussian]]:
        for part in self.parts:
            for weight, component in part.components():
                yield weight / len(self.parts), component

    def logits(self, x: Tensor, sample: int) -> Tensor:
        for part in self.parts:
            if sample < part.num_samples:
                return part.logits(x, sample)
            sample -= part.num_samples
        raise ValueError(f"sample {sample + self.num_samples} is too large; this posterior has {self.num_samples}")


def keep_samples(posterior: Posterior, budget: int) -> Posterior:
    """The same posterior, bit for bit, with as many samples in memory as `budget` bytes hold, not drawn for every call.

    Any number of threads can still use it: a pass through a network writes none of its weights.
    """
    if isinstance(posterior, Mixture):
        parts: list[Posterior] = []
        for part in posterior.parts:
            parts.append(keep_samples(part, budget))
            budget -= kept_bytes(parts[-1])
        return replace(posterior, parts=tuple(parts))
    if not isinstance(posterior, Gaussian):
        return posterior
    each = sum(value.numel() * value.element_size() for value in posterior.variance.values())
    count = min(posterior.num_samples, budget // each)
    fresh = replace(posterior, kept=())
    kept = (fresh.parameters_at(sample).items() for sample in range(count))
    return replace(
        posterior, kept=tuple({name: nn.Parameter(value, requires_grad=False) for name, value in each} for each in kept)
    )


def fewer_samples(posterior: Posterior, most: int) -> Posterior:
    """The same posterior with the first `most` samples of each Gaussian: smaller and quicker, and another average."""
    if type(most) is not int or most < 1:
        raise ValueError(f"samples {most!r} is not a whole number from 1 on")
    if isinstance(posterior, Mixture):
        return replace(posterior, parts=tuple(fewer_samples(part, most) for part in posterior.parts))
    if isinstance(posterior, Gaussian):
        return replace(posterior, num_samples=min(most, posterior.num_samples), kept=posterior.kept[:most])
    return posterior


def kept_bytes(posterior: Posterior) -> int:
    """What `keep_samples` has taken."""
    kept = [sample for _, part in posterior.components() for sample in getattr(part, "kept", ())]
    return sum(value.numel() * value.element_size() for sample in kept for value in sample.values())
