"""Images by frequency: how much power each has, and outliers filtered to be as sharp as the inliers."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from demur.networks import as_input
from demur.outliers.noise import CHUNK, Mixed
from demur.training_data import OutlierSource

ROUNDING = 1 / (12 * 255**2)  # the power, at any frequency, of rounding to whole grey values
COUNT, PIXELS = 10_000, 2**26  # of a set, at most, to tell it by


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform along `size` pixels: (size, size), a row a frequency."""
    place = torch.arange(size, dtype=torch.float64)
    waves = (math.pi / size * place[:, None] * (place + 0.5)).cos() * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves.float()


def mean_power(x: Tensor) -> Tensor:
    """Of images (N, C, H, W), by frequency down and across: (H, W)."""
    down, across = (cosines(size).to(x.device) for size in x.shape[2:])
    parts = [(down @ as_input(chunk) @ across.mT).square().sum((0, 1)) for chunk in x.split(CHUNK)]
    return torch.stack(parts).sum(0) / (x.shape[0] * x.shape[1])


def log_power(x: Tensor) -> np.ndarray:
    """By radial frequency, brightness left out, of as many of the images as are enough: (M, frequencies).

    They are drawn, since mixed outliers come one kind after the other.
    """
    count = min(COUNT, PIXELS // x[0].numel())
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]]
    down, across = (cosines(size).to(x.device) for size in x.shape[2:])
    power = (down @ as_input(x) @ across.mT).square().mean(1).flatten(1)
    radius = torch.cartesian_prod(*(torch.arange(float(size)) for size in x.shape[2:])).norm(dim=1).round()
    rings = [power[:, radius.to(x.device) == each].mean(1) for each in radius.unique()[1:]]
    return torch.stack(rings, 1).clamp_min(1e-9).log().numpy(force=True)


# as sharp as others -------------------------------------------------------------------------------------------------


def match_spectrum(x: Tensor, power: Tensor) -> Tensor:
    """Images filtered to a given mean power at every frequency but brightness, within their own range."""
    down, across = (cosines(size).to(x.device) for size in x.shape[2:])
    gain = (power / mean_power(x).clamp_min(ROUNDING)).sqrt()
    gain[0, 0] = 1
    whole = x.dtype == torch.uint8
    low, high = (0.0, 1.0) if whole else (x.min().item(), x.max().item())

    def filtered(chunk: Tensor) -> Tensor:
        changed = (down.mT @ (gain * (down @ as_input(chunk) @ across.mT)) @ across).clamp_(low, high)
        return changed.mul_(255).round_().to(torch.uint8) if whole else changed

    return torch.cat([filtered(chunk) for chunk in x.split(CHUNK)])


@dataclass(frozen=True)
class Matched:
    """Outliers as sharp as the inliers.

    Where they are sharper, which comes of how both were made small, a network learns to tell them by that, and lets
    others pass that are not.
    """

    source: OutlierSource
    power: Tensor  # the inliers', see mean_power

    @property
    def shape(self) -> torch.Size:
        return self.source.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        return match_spectrum(self.source.epoch(generator), self.power)

    def to(self, device: torch.device | str) -> "Matched":
        return Matched(self.source.to(device), self.power.to(device))


def original_images(source: OutlierSource) -> OutlierSource:
    """The images as they were before they were filtered."""
    if isinstance(source, Mixed):
        return Mixed(tuple(map(original_images, source.sources)))
    return source.source if isinstance(source, Matched) else source
