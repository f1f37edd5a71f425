"""Which network and which recipe go with which task."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from demur.names import choose
from demur.networks import Network, gru, lenet, mlp, wide_resnet
from demur.tasks.base import Recipe


@dataclass(frozen=True)
class Setting:
    network: Network
    recipe: Recipe


LENET = Setting(partial(lenet, channels=1, size=28), Recipe(epochs=100, optimizer="adam", lr=1e-3, weight_decay=5e-4))
WIDE_RESNET = Setting(
    partial(wide_resnet, depth=16, width=4), Recipe(epochs=100, optimizer="sgd", lr=0.1, weight_decay=5e-4)
)
GRU = Setting(gru, Recipe(epochs=5, batch_size=64, optimizer="adam", lr=0.01, weight_decay=0, cosine="epoch"))

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "digits": Setting(partial(mlp, inputs=64, hidden=(256, 256)), Recipe(epochs=150)),
        "blobs": Setting(partial(mlp, inputs=2, hidden=(100, 100)), Recipe(epochs=150)),
        "mnist": LENET,
        "fashion_mnist": LENET,
        "svhn": WIDE_RESNET,
        "cifar10": WIDE_RESNET,
        "cifar100": WIDE_RESNET,
        "sst": GRU,
        "trec": GRU,
    }
)

# the thirteen rows of the paper's tables
PAPER_ROWS = (
    "map",
    "de",
    "map+oe",
    *(first + second for first in ("vb", "la") for second in ("", "+nc", "+sl", "+ml", "+oe")),
)


def setting(task: str) -> Setting:
    return choose(SETTINGS, task, "task")
