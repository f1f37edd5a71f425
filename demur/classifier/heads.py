"""The last affine layer of somebody's network: found, taken off, and put back with other outputs."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demur.classifier import trunks
from demur.classifier.builders import forward, logits_of
from demur.networks import HeadedNetwork, as_input


class Headless(nn.Module):
    """A network without its last affine layer: what that layer was given, (N, width)."""

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        self.model = nn.Identity() if head == "" else deepcopy(model)
        if head:
            set_layer(self.model, head, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        output = forward(self.model, x)
        return output if isinstance(output, Tensor) else output.logits


@dataclass(frozen=True)
class Started:
    """A network function whose networks begin with given weights: a head alone, or one on a trunk that is tuned."""

    head: nn.Linear
    trunk: nn.Module | None = None
    last: bool = False

    def __call__(self, num_outputs: int) -> nn.Module:
        features = (
            nn.Flatten() if self.trunk is None else trunks.Tuned(trunks.unfreeze(deepcopy(self.trunk), self.last))
        )
        network = HeadedNetwork(features, self.head.in_features, num_outputs)
        with torch.no_grad():
            for new, old in zip(network.head.parameters(), self.head.parameters(), strict=True):
                new.zero_()[: len(old)] = old
        return network


def find_head(model: nn.Module, x: Tensor) -> str:
    """The name of the affine layer whose output is the model's own, tried on a few inputs."""
    model = deepcopy(model).cpu().eval()
    given: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, output, name=name: given.update({name: output}))
    output, _ = logits_of(model, x)
    names = [name for name, value in given.items() if value.shape == output.shape and torch.equal(value, output)]
    if not names:
        raise ValueError(
            f"no affine layer of the model ({type(model).__name__}) gives its output as it is; name the one that gives "
            "the logits, head='...', and let the model return these"
        )
    return names[-1]


def layer_named(model: nn.Module, head: str) -> nn.Linear:
    layer = dict(model.named_modules()).get(head)
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"head {head!r} is not an affine layer (nn.Linear) of the model; leave it out to have it found"
        )
    return layer


def set_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)


def take_off(model: nn.Module, head: str, outputs: Sequence[int], x: Tensor) -> tuple[Headless, nn.Linear]:
    """The network without its head, and a head of these of its outputs; refused unless both together are the model."""
    old = layer_named(model, head)
    new = nn.Linear(old.in_features, len(outputs))
    rows = torch.tensor(outputs, device=old.weight.device)
    with torch.no_grad():
        new.weight.copy_(old.weight[rows])
        new.bias.zero_() if old.bias is None else new.bias.copy_(old.bias[rows])
    trunk = Headless(model, head).cpu().float().eval().requires_grad_(False)
    logits, _ = logits_of(deepcopy(model).cpu(), x)
    with torch.no_grad():
        features = trunk(as_input(x))
        fits = features.shape == (len(x), new.in_features)
        if not (fits and torch.allclose(new(features.float()), logits[:, outputs].float(), rtol=1e-3, atol=1e-4)):
            raise ValueError(
                f"the model ({type(model).__name__}) is more than layer {head!r} on the features before it; "
                "give one that returns what its last affine layer does"
            )
    return trunk, new
