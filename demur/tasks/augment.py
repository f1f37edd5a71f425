"""Images varied while training: batched, on their device, and without waiting for it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Jitter:
    """Half of the images, a coin each, move by up to `reach` pixels; with `flip`, half of these are mirrored too.

    Moving is cropping an image that has been padded by `reach`. What comes in from outside is black (`zero`), the
    image mirrored in its outermost pixels (`reflect`), or its outermost pixels again (`edge`).
    """

    reach: int
    border: Literal["zero", "reflect", "edge"] = "zero"
    flip: bool = False

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """(N, C, H, W) to the same, of the same dtype."""
        count, _, height, width = x.shape

        def draw(below: int) -> Tensor:
            return torch.randint(below, (count, 1), generator=generator, device=x.device)

        chosen = draw(2)
        rows = torch.arange(height, device=x.device) + chosen * (draw(2 * self.reach + 1) - self.reach)
        columns = torch.arange(width, device=x.device) + chosen * (draw(2 * self.reach + 1) - self.reach)
        if self.flip:
            columns = torch.where((chosen * draw(2)).bool(), columns.flip(1), columns)
        match self.border:
            case "zero":
                x, rows, columns = F.pad(x, 4 * (self.reach,)), rows + self.reach, columns + self.reach
            case "reflect":
                rows, columns = mirror(rows, height), mirror(columns, width)
            case "edge":
                rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        return take(x, rows, columns)


def mirror(place: Tensor, size: int) -> Tensor:
    """Places outside 0 to size - 1, by less than size, brought back as by mirrors in the first and the last."""
    return (size - 1) - ((size - 1) - place.abs()).abs()


def random_crops(x: Tensor, height: int, width: int, generator: torch.Generator) -> Tensor:
    """A window of every image, anywhere in it: (N, C, H, W) to (N, C, height, width)."""

    def draw(size: int, length: int) -> Tensor:
        start = torch.randint(size - length + 1, (len(x), 1), generator=generator, device=x.device)
        return start + torch.arange(length, device=x.device)

    return take(x, draw(x.shape[2], height), draw(x.shape[3], width))


def take(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of every image its own rows and columns: (N, C, H, W), (N, h), (N, w) to (N, C, h, w)."""
    places = rows[:, :, None] * x.shape[3] + columns[:, None, :]
    index = places.flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).unflatten(2, places.shape[1:])
