"""A fit that continues a fitted model: the same kind of input and network, and its weights.

Inputs are read as the fitted model reads them, so that weights keep their meaning. Classes are matched by name; the
head gets a fresh row for each new one. What was held out stays held out: see `demur.classifier.held_out`.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier import heads, kinds
from demur.classifier.backbones import Backbone
from demur.classifier.builders import describe_network
from demur.likelihoods import Likelihood
from demur.networks import HeadedNetwork, Network
from demur.posterior import Posterior

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier


@dataclass(frozen=True)
class Continued:
    """A network function whose networks begin with fitted weights, wherever shapes agree.

    An ensemble's members begin with those of its members: the seed that a network is made under says which.
    """

    network: Network
    states: tuple[Mapping[str, Tensor], ...] = field(repr=False)
    head: str | None  # the layer whose outputs are the logits
    rows: tuple[tuple[int, int], ...]  # of the head: new, old

    def __call__(self, num_outputs: int) -> nn.Module:
        network = self.network(num_outputs)
        state = self.states[torch.initial_seed() % len(self.states)]
        with torch.no_grad():
            for slot, old, rows in self._matches(network.state_dict(), state):
                if rows is None:
                    slot.copy_(old)
                else:
                    for new_row, old_row in rows:
                        slot[new_row] = old[old_row]
        return network

    def count_weights(self, num_outputs: int) -> tuple[int, int]:
        """Those that are copied, and all of them."""
        with torch.random.fork_rng(devices=[]):
            parameters = dict(self.network(num_outputs).named_parameters())
        matches = self._matches(parameters, self.states[0])
        copied = sum(slot.numel() if rows is None else len(rows) * slot[0].numel() for slot, _, rows in matches)
        return copied, sum(value.numel() for value in parameters.values())

    def _matches(
        self, slots: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, tuple[tuple[int, int], ...] | None]]:
        """Weights of a new network and of the fitted one that go together: of the head some rows, else all (None)."""
        for name, slot in slots.items():
            old = state.get(name)
            if old is None:
                continue
            in_head = self.head is not None and name.rpartition(".")[0] == self.head
            if in_head and slot.shape[1:] == old.shape[1:]:
                yield slot, old, self.rows
            elif slot.shape == old.shape:
                yield slot, old, None


def check_settings(model: "Classifier", previous: "Classifier", X: Any) -> None:
    """Refuse inputs of another kind, and another backbone or network, than the weights of `previous` are for."""
    kind = previous.preprocessing_.kind
    given = kind if kind == "ready" else kinds.kind_of(X)
    if given != kind:
        raise ValueError(f"X are {given}, and the model to continue is for {kind}; give it {kind}")
    backbone, network = previous.backbone_, previous.network_
    same = {"tune": backbone is None or model.tune == previous.report_.get("tune", model.tune)}
    if isinstance(model.backbone, str):
        same["backbone"] = backbone is not None and model.backbone == backbone.name
    elif model.backbone is not None:
        same["backbone"] = backbone is not None and _is_made_of(backbone, model.backbone)
    if isinstance(model.network, str):
        described = describe_network(network)
        same["network"] = described is not None and described["name"] == model.network
    elif callable(model.network) and backbone is None:
        same["network"] = model.network is network or model.network in getattr(network, "args", ())
    for name, agrees in same.items():
        if not agrees:
            raise ValueError(
                f"{name} {getattr(model, name)!r:.60} is not that of the model to continue; leave it as it was, or "
                "fit a new one with warm_start=False"
            )


def _is_made_of(backbone: Backbone, given: Any) -> bool:
    """A module is copied into the backbone that is made of it."""
    return backbone is given or (not isinstance(given, Backbone) and type(given).__name__ == backbone.name)


def continue_network(
    previous: "Classifier", likelihood: Likelihood, classes: np.ndarray, x: Tensor
) -> tuple[Network, dict[str, Any]]:
    """The network function to fit with, and for the report what it begins with; `x` are a few inputs."""
    new, old = list(map(str, classes)), list(map(str, previous.classes_))
    rows = [(place, old.index(name)) for place, name in enumerate(new) if name in old]
    if likelihood.has_none_class and previous.likelihood_.has_none_class:
        rows.append((len(new), len(old)))
    head = _find_head(next(iter(previous.posterior_.components()))[1].network, x)
    network = Continued(previous.network_, states_of(previous.posterior_), head, tuple(rows))
    copied, total = network.count_weights(likelihood.num_outputs)
    if not copied:
        raise ValueError("the network has no weights of the shapes that the fitted model has; fit a new model instead")
    dropped = [name for name in old if name not in new]
    if dropped:
        warnings.warn(
            f"the model to continue has classes of which there are no inputs, {', '.join(dropped[:12])}: the new one "
            "does not have them; give inputs of each, such as those that it was fitted to",
            stacklevel=5,
        )
    added = [name for name in new if name not in old]
    return network, {"weights": copied, "of": total, "new_classes": added, "dropped_classes": dropped}


def states_of(posterior: Posterior) -> tuple[dict[str, Tensor], ...]:
    """Of every network that it lies around."""
    return tuple(part.network.state_dict() for _, part in posterior.components())


def _find_head(network: nn.Module, x: Tensor) -> str | None:
    if isinstance(network, HeadedNetwork):
        return "head"
    try:
        return heads.find_head(network, x)
    except ValueError:  # a network of one's own whose logits are made otherwise: shapes alone decide
        return None
