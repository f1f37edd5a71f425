"""Which network, recipe and inference go with which task and method."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from demur.inference import Inference, Laplace
from demur.names import choose
from demur.networks import Network, gru, lenet, mlp, wide_resnet
from demur.tasks.base import Recipe


@dataclass(frozen=True)
class Setting:
    """What a method is fitted with; `inference` replaces the method's own where a task needs another."""

    network: Network
    recipe: Recipe
    inference: Inference | None = None


BY_DEFAULT = "*"
DIGITS = {BY_DEFAULT: Setting(partial(mlp, inputs=64, hidden=(256, 256)), Recipe(epochs=150))}
BLOBS = {BY_DEFAULT: Setting(partial(mlp, inputs=2, hidden=(100, 100)), Recipe(epochs=150))}
LENET = {BY_DEFAULT: Setting(partial(lenet, channels=1, size=28), Recipe(epochs=100, optimizer="adam", lr=1e-3))}

_sgd = Recipe(epochs=100, optimizer="sgd", lr=0.1)
# where the weights themselves are noisy in training, dropout would be noise upon noise
_without_dropout = Setting(partial(wide_resnet, depth=16, width=4, dropout=0.0), _sgd)
WIDE_RESNET = {
    BY_DEFAULT: Setting(partial(wide_resnet, depth=16, width=4, dropout=0.3), _sgd),
    "flipout": _without_dropout,
    "csghmc": _without_dropout,
}

_text = Recipe(epochs=5, batch_size=64, optimizer="adam", lr=0.01, weight_decay=0.0, cosine="epoch")
GRU = {
    BY_DEFAULT: Setting(gru, _text),
    "la": Setting(gru, replace(_text, weight_decay=5e-4), Laplace(over="head")),
}

# by task, then by inference
SETTINGS: Mapping[str, Mapping[str, Setting]] = MappingProxyType(
    {
        "digits": DIGITS,
        "blobs": BLOBS,
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


def setting(task: str, inference: str) -> Setting:
    """What the inference of that name is fitted with on the task."""
    by_inference = choose(SETTINGS, task, "task")
    return by_inference.get(inference, by_inference[BY_DEFAULT])
