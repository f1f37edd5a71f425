"""What a model file says of a classifier, as JSON, and back; whatever it says, only what is known here is built."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import nn

from demur.classifier.builders import network_from_description, wrap_logits
from demur.classifier.decision import Decision, turning_point
from demur.likelihoods import Categorical, Dirichlet, LabelModel, Likelihood, Outliers
from demur.names import choose, with_current_names
from demur.networks import Network

LABEL_MODELS: Mapping[str, type[Categorical] | type[Dirichlet]] = MappingProxyType(
    {"Categorical": Categorical, "Dirichlet": Dirichlet}
)


def parameters_to_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """An estimator's parameters; one that has no JSON, such as a network function, becomes None."""
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    return {name: value if isinstance(value, str | int | float) else None for name, value in values.items()}


def labels_to_json(labels: np.ndarray) -> dict[str, Any]:
    """Labels that are numbers, truth values or strings; other objects have no JSON."""
    if labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels):
        raise ValueError(f"classes of type {type(labels[0]).__name__} cannot be saved; use strings or numbers")
    return {"dtype": labels.dtype.str, "values": labels.tolist()}


def labels_from_json(saved: Mapping[str, Any]) -> np.ndarray:
    """Strings take what room they need, whatever the file says."""
    dtype = np.dtype(saved["dtype"])
    if dtype.kind not in "biufUO" or not isinstance(saved["values"], list):
        raise TypeError(f"labels are of dtype {dtype}")
    labels = np.array(saved["values"], dtype=str if dtype.kind == "U" else dtype)
    if labels.ndim != 1 or (dtype.kind == "O" and not all(isinstance(label, str) for label in labels)):
        raise TypeError("labels are no list of numbers or strings")
    return labels


def likelihood_to_json(likelihood: Likelihood) -> dict[str, Any]:
    outside = likelihood.outside
    return {
        "num_classes": likelihood.num_classes,
        "inside": _label_model_to_json(likelihood.inside),
        "outside": outside
        and {"model": _label_model_to_json(outside.model), "label": outside.label, "weight": outside.weight},
        "smoothing": likelihood.smoothing,
    }


def likelihood_from_json(saved: Mapping[str, Any]) -> Likelihood:
    outside = saved["outside"] and Outliers(
        _label_model(saved["outside"]["model"]), tuple(saved["outside"]["label"]), saved["outside"]["weight"]
    )
    return Likelihood(saved["num_classes"], _label_model(saved["inside"]), outside, saved["smoothing"])


def _label_model_to_json(model: LabelModel) -> dict[str, Any]:
    name = type(model).__name__
    if LABEL_MODELS.get(name) is not type(model):
        raise ValueError(f"a likelihood of {name} cannot be saved; a model file knows {', '.join(LABEL_MODELS)}")
    return {"name": name, **asdict(model)}


def _label_model(saved: Mapping[str, Any]) -> LabelModel:
    arguments = dict(saved)
    return choose(LABEL_MODELS, arguments.pop("name"), "density of labels")(**arguments)


def decision_from_json(saved: Mapping[str, Any], num_classes: int) -> Decision:
    """As saved; files of format 1.0 have one limit, `refuse`, and the other is the score's own."""
    if "decision" in saved:
        given = with_current_names(saved["decision"])
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        decision = Decision(**values)
    else:
        old = with_current_names(saved["thresholds"])
        accept, turning = old.pop("refuse"), turning_point(old["score"], num_classes)
        decision = Decision(accept=(accept,), unknown=(None if turning is None else max(accept, turning),), **old)
    if len(decision.accept) not in (1, num_classes):
        raise ValueError(f"it has {len(decision.accept)} limits for {num_classes} classes; save it anew")
    return decision


def restored_network(saved: Mapping[str, Any], network: Network | None, path: str | Path) -> Network:
    """The function that the caller gives, or the builder that the file names."""
    if network is None:
        if saved["network"] is None:
            raise ValueError(f"{path} was fitted with a network of your own; load it with network=, its function")
        network = network_from_description(saved["network"])
    return wrap_logits(network) if saved["wraps_logits"] else network


def check_size(build: Callable[[], nn.Module], weights: Path) -> None:
    """Refuse a network that is larger than the file it is to be filled from, before memory is taken for it.

    How many layers it has was checked by `from_description`.
    """
    with torch.device("meta"):
        network = build()
    needed, present = sum(p.numel() * p.element_size() for p in network.parameters()), weights.stat().st_size
    if needed > present:
        raise ValueError(
            f"the network has {needed} bytes of weights, the file {present}; pass the one it was fitted with"
        )


def check_types(*values: Any) -> None:
    """Dataclasses that were filled from JSON hold what their fields declare."""
    for value in values:
        for name, declared in get_type_hints(type(value)).items():
            if get_origin(declared) is not ClassVar and not _fits(getattr(value, name), declared):
                raise TypeError(f"{name} is not what it should be")


def _fits(value: Any, declared: Any) -> bool:
    if get_origin(declared) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(declared)[0]) for item in value)
    if get_origin(declared) is UnionType:
        return any(_fits(value, each) for each in get_args(declared))
    if is_dataclass(declared):
        check_types(value) if type(value) is declared else None
        return type(value) is declared
    if declared is float:
        return type(value) in (int, float) and abs(value) < math.inf
    return type(value) is declared


@contextmanager
def telling_damage(path: str | Path) -> Iterator[None]:
    """A file whose hashes are right can still say nonsense."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{path} is not a model saved by demur, or it is damaged ({type(error).__name__}: {error}); save it anew"
        ) from None
