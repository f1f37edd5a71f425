"""Networks by name, fitted to the data, that a model file can name too; and foreign networks brought to our form."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from demur.names import choose
from demur.networks import CONVOLUTIONS, HeadedNetwork, Network, as_input, gru, lenet, mlp, wide_resnet


def convnet(
    num_outputs: int, *, channels: int = 3, widths: Sequence[int] = (32, 64, 128), stride: int = 1
) -> nn.Module:
    """3x3 convolutions, each halving the image, and their average over it: for images of any size.

    The first convolution takes steps of `stride` pixels: 2 makes all of them five times as fast.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip((channels, *widths), widths, strict=False):
        step = 1 if layers else stride
        layers += [nn.Conv2d(fan_in, fan_out, 3, step, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)]
    features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return HeadedNetwork(features, widths[-1], num_outputs).to(memory_format=CONVOLUTIONS)  # type: ignore[call-overload]


def linear(num_outputs: int, *, inputs: int) -> nn.Module:
    """A head alone, on features."""
    return HeadedNetwork(nn.Flatten(), inputs, num_outputs)


LARGE = 48  # pixels

BUILDERS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"mlp": mlp, "lenet": lenet, "convnet": convnet, "wide_resnet": wide_resnet, "gru": gru, "linear": linear}
)

# what each kind of data says of the networks that it can be given to; shape is that of one input, or the vocabulary
ARGUMENTS: Mapping[str, Mapping[str, Callable[[Sequence[int]], dict[str, Any]]]] = MappingProxyType(
    {
        "tables": {"mlp": lambda shape: {"inputs": shape[0]}, "linear": lambda shape: {"inputs": shape[0]}},
        "images": {
            "mlp": lambda shape: {"inputs": math.prod(shape)},
            "lenet": lambda shape: {"channels": shape[0], "size": _side(shape)},
            "convnet": lambda shape: {"channels": shape[0], "stride": 2 if min(shape[1:]) >= LARGE else 1},
            "wide_resnet": lambda shape: {"channels": shape[0]},
        },
        "texts": {"gru": lambda shape: {"vocabulary": shape[0]}},
    }
)


def _side(shape: Sequence[int]) -> int:
    if shape[1] != shape[2] or shape[1] < 4:
        raise ValueError(f"images of {shape[1]}x{shape[2]} do not fit network 'lenet'; choose 'convnet'")
    return shape[1]


def builder(name: str, kind: str, shape: Sequence[int]) -> Network:
    """The network of that name for inputs of that shape."""
    arguments = choose(ARGUMENTS[kind], name, f"network for {kind}")(shape)
    return partial(BUILDERS[name], **arguments)


def describe_network(network: Network) -> dict[str, Any] | None:
    """A builder of ours and its arguments, for a model file; None for anything else."""
    if not isinstance(network, partial) or network.args:
        return None
    names = [name for name, known in BUILDERS.items() if known is network.func]
    return {"name": names[0], "arguments": dict(network.keywords)} if names else None


MOST_LAYERS, MOST_UNITS = 1_000, 2**24
COUNTS_LAYERS = ("depth", "layers")  # arguments that say how many layers are built


def network_from_description(saved: Mapping[str, Any]) -> Network:
    """What a model file names, if it is of a size that can be built."""
    for name, value in saved["arguments"].items():
        most = MOST_LAYERS if name in COUNTS_LAYERS else MOST_UNITS
        if isinstance(value, list) and len(value) > MOST_LAYERS:
            raise ValueError(f"the network's {name} has {len(value)} entries; at most {MOST_LAYERS} are built")
        for number in value if isinstance(value, list) else [value]:
            if type(number) not in (int, float) or not 0 <= number <= most:
                raise ValueError(f"the network's {name} {number!r} is not a number from 0 to {most}; save it anew")
    return partial(choose(BUILDERS, saved["name"], "network"), **saved["arguments"])


def forward(model: nn.Module, x: Tensor) -> Any:
    """What the model returns; Hugging Face's are told which token numbers are padding: 0."""
    masked = not x.is_floating_point() and "attention_mask" in signature(model.forward).parameters
    return model(x, attention_mask=(x != 0).long()) if masked else model(x)


class Logits(nn.Module):
    """A network that returns an object with `.logits`, as Hugging Face's do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return forward(self.model, x).logits


def logits_of(model: nn.Module, x: Tensor) -> tuple[Tensor, bool]:
    """Logits of a few inputs, and whether they are an attribute of what the model returns; refused if neither."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output = forward(model.to(x.device).eval(), as_input(x))
        except RuntimeError as error:
            other = next((p.dtype for p in model.parameters() if p.dtype != torch.float32), None)
            if other is None:
                raise
            raise ValueError(
                f"the network's weights are {other} and inputs are float32, which it does not take ({error}); "
                "return network.float(), or convert inputs in its forward pass"
            ) from error
    is_attribute = not isinstance(output, Tensor)
    logits = getattr(output, "logits", None) if is_attribute else output
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"the network returned a {type(output).__name__}; it must return a tensor of logits, or an object that "
            "has one as `.logits`"
        )
    return logits, is_attribute


def wrap_logits(network: Network) -> Network:
    """The same networks, returning plain logits."""
    return partial(_wrap, network)


def _wrap(network: Network, num_outputs: int) -> nn.Module:
    return Logits(network(num_outputs))
