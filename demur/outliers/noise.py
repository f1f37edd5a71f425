"""Synthetic outliers, made on the device of what they are made from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from demur.networks import as_input
from demur.training_data import OutlierSource

FAR_AWAY = 5000.0
CHUNK = 4096
MAX_SIGMA = 2.5


def uniform(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Every pixel independently uniform; uint8."""
    return torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8, device=generator.device)


def far_away(x: Tensor) -> Tensor:
    """Uniform noise far outside the range of any image: 5000 times as large, as floats."""
    return FAR_AWAY * as_input(x)


def smooth(x: Tensor, generator: torch.Generator) -> Tensor:
    """Smooth noise with the images' own grey values: (N, C, H, W) uint8 to the same.

    Pixels are permuted (one permutation for all channels), blurred by a Gaussian of sigma in U[1, 2.5], and brought
    back to full contrast by sigmoid(g (x - 0.5)), g in U[5, 30]; all three are drawn anew for every image.
    """
    return torch.cat([_smooth_chunk(chunk, generator) for chunk in x.split(CHUNK)])


def _smooth_chunk(x: Tensor, generator: torch.Generator) -> Tensor:
    count, _, height, width = x.shape

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=x.device)

    order = draw(count, 1, height * width).argsort(-1).expand(-1, x.shape[1], -1)
    pixels = as_input(x).flatten(2).gather(2, order).unflatten(2, (height, width))
    sigma = 1 + (MAX_SIGMA - 1) * draw(count)
    blurred = blur_matrix(height, sigma)[:, None] @ pixels @ blur_matrix(width, sigma)[:, None].mT
    gain = 5 + 25 * draw(count)[:, None, None, None]
    return (gain * (blurred - 0.5)).sigmoid_().mul_(255).round_().to(torch.uint8)


def blur_matrix(size: int, sigma: Tensor) -> Tensor:
    """Gaussian blur along `size` pixels, cut off at 4 sigma and mirrored at the ends: (N,) to (N, size, size)."""
    reach = int(4 * MAX_SIGMA + 0.5)
    away = torch.arange(-reach, reach + 1, device=sigma.device)
    kernel = (-0.5 * (away / sigma[:, None]) ** 2).exp() * (away.abs() <= (4 * sigma[:, None] + 0.5).floor())
    pixel = torch.arange(size, device=sigma.device)
    place = (pixel[:, None] + away) % (2 * size)
    seen = torch.minimum(place, 2 * size - 1 - place)[:, :, None] == pixel
    return torch.einsum("na,iaj->nij", kernel / kernel.sum(1, keepdim=True), seen.float())


@dataclass(frozen=True)
class Mixed:
    """Equal parts of several sources; an epoch has as many as the smallest allows."""

    sources: tuple[OutlierSource, ...]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.sources) * self._each, *self.sources[0].shape[1:]))

    @property
    def _each(self) -> int:
        return min(source.shape[0] for source in self.sources)

    def epoch(self, generator: torch.Generator) -> Tensor:
        parts = []
        for source in self.sources:
            pool = source.epoch(generator)
            parts.append(pool[torch.randperm(len(pool), generator=generator, device=pool.device)[: self._each]])
        return torch.cat(parts)

    def to(self, device: torch.device | str) -> "Mixed":
        return Mixed(tuple(source.to(device) for source in self.sources))
