"""What `Classifier` can be asked for: refused, before any work, where it is something else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from demur.methods import Method
from demur.outliers.values import Shown


def check_parameters(given: Mapping[str, Any]) -> None:
    """By their names; what needs the data to be judged is judged where it is used."""
    method, network, synthetic = given["method"], given["network"], given["synthetic"]
    if not isinstance(method, str | Method):
        raise ValueError(f"method {method!r} is no name such as 'la+nc', and no demur.Method; give one")
    if isinstance(network, nn.Module) or not (network is None or isinstance(network, str) or callable(network)):
        raise ValueError(
            f"network {type(network).__name__} is no function from the head size to a network; give one, a name such "
            "as 'mlp', or None; demur.adopt goes on from a network that is trained"
        )
    if not isinstance(synthetic, Shown | str | None):
        raise ValueError(f"synthetic {synthetic!r} is neither a name nor a value of demur.outliers.values; give one")
    if not isinstance(given["abstain_by"], str | None):
        raise ValueError(f"abstain_by {given['abstain_by']!r:.60} is no name of a score; give one, such as 'energy'")
    if given["tune"] != "head" and given["backbone"] is None and not given["warm_start"]:
        raise ValueError(f"tune {given['tune']!r} says what of a backbone is trained; give a backbone, or leave it out")
    for name in ("by_class", "balance", "warm_start"):
        if not isinstance(given[name], bool | np.bool_):
            raise ValueError(f"{name} {given[name]!r} is neither True nor False")
    for name in ("coverage", "validation"):
        value = given[name]
        if not isinstance(value, int | float | np.number) or not 0 < value < 1:
            raise ValueError(f"{name} {value!r} is not a number between 0 and 1; it is a fraction of the inliers")


def device_of(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {name!r} is not known; give 'cpu', 'cuda', 'cuda:1' or 'auto'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not available here; give 'cpu' or 'auto'")
    return device
