"""Which network and which recipe go with which task."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from demur.names import choose
from demur.networks import Network, mlp
from demur.tasks.base import Recipe


@dataclass(frozen=True)
class Setting:
    network: Network
    recipe: Recipe


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "digits": Setting(partial(mlp, inputs=64, hidden=(256, 256)), Recipe(epochs=100)),
        "blobs": Setting(partial(mlp, inputs=2, hidden=(100, 100)), Recipe(epochs=150)),
    }
)

# the thirteen rows of the paper's tables
PAPER_ROWS = ("map", "de", "map+oe", *(i + l for i in ("vb", "la") for l in ("", "+nc", "+sl", "+ml", "+oe")))


def setting(task: str) -> Setting:
    return choose(SETTINGS, task, "task")
