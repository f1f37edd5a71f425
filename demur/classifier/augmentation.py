"""How images are varied while a network is trained with them, in- and outliers alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from demur.names import choose
from demur.tasks.augment import Jitter
from demur.training_data import Augment

FLIPPED_FROM = 48  # pixels; smaller images are often of characters, and those are not the same mirrored


@dataclass(frozen=True)
class Light:
    """Brightness and contrast of every image, changed by a factor of up to 1 +- `reach` each."""

    reach: float = 0.3

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """(N, C, H, W) to the same, of the same dtype."""
        whole = x.dtype == torch.uint8
        pixels = x.float() / 255 if whole else x
        factors = 1 + self.reach * (2 * torch.rand(2, len(x), 1, 1, 1, generator=generator, device=x.device) - 1)
        mean = pixels.mean((1, 2, 3), keepdim=True)
        pixels = (((pixels - mean) * factors[0] + mean) * factors[1]).clamp(0, 1)
        return (255 * pixels).round().to(torch.uint8) if whole else pixels


@dataclass(frozen=True)
class InTurn:
    parts: tuple[Augment, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        for part in self.parts:
            x = part(x, generator)
        return x


def _light(channels: int, side: int) -> Augment:
    flip = channels == 3 and side >= FLIPPED_FROM
    return Jitter(max(1, side // 16), "zero" if channels == 1 else "reflect", flip)


def _strong(channels: int, side: int) -> Augment:
    flip = channels == 3 and side >= FLIPPED_FROM
    return InTurn((Jitter(max(1, side // 8), "zero" if channels == 1 else "reflect", flip), Light()))


AUGMENTATIONS: Mapping[str, Callable[[int, int], Augment | None]] = MappingProxyType(
    {"auto": _light, "off": lambda channels, side: None, "light": _light, "strong": _strong}
)


def augmentation(named: str | Augment, kind: str, shape: torch.Size, frozen: bool) -> Augment | None:
    """The augmentation of that name for inputs of that shape; None where there is nothing to vary."""
    if not callable(named):
        choose(AUGMENTATIONS, named, "augmentation")
    varies = callable(named) or named not in ("auto", "off")
    if frozen and varies:
        raise ValueError(
            f"augment {named!r} varies images from epoch to epoch, and a frozen backbone's features are computed once; "
            "choose tune='last', or augment='auto'"
        )
    if callable(named):
        return named
    if kind != "images":
        if varies:
            raise ValueError(f"augment {named!r} is for images, and X are {kind}; leave it out")
        return None
    return None if frozen else AUGMENTATIONS[named](shape[1], min(shape[2:]))
