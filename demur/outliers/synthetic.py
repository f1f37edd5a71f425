"""Outliers for whoever has none: made anew each epoch from the inliers themselves, each kind of data in its own way.

They keep what is cheap to recognise (the values of a column, the texture of an image, the words of a text) and break
what the classes are made of (columns that go together, the places of parts, the order and company of words).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from demur.networks import as_input
from demur.outliers.noise import smooth, uniform
from demur.training_data import OutlierSource

WIDENED = 0.5  # on each side, of a column's range
PATCHES = 4  # along an image's shorter side


@dataclass(frozen=True)
class IndependentColumns:
    """Rows whose columns were drawn independently: each column has its own values, in another order."""

    rows: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        order = torch.rand(self.rows.shape, generator=generator, device=self.rows.device).argsort(0)
        return self.rows.gather(0, order)

    def to(self, device: torch.device | str) -> "IndependentColumns":
        return IndependentColumns(self.rows.to(device))


@dataclass(frozen=True)
class WidenedBox:
    """Uniform in the box around the rows, widened on every side by half its length."""

    rows: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        low, high = self.rows.amin(0), self.rows.amax(0)
        share = torch.rand(self.rows.shape, generator=generator, device=self.rows.device)
        return low + ((1 + 2 * WIDENED) * share - WIDENED) * (high - low)

    def to(self, device: torch.device | str) -> "WidenedBox":
        return WidenedBox(self.rows.to(device))


@dataclass(frozen=True)
class SmoothNoise:
    """Smooth noise with the images' own grey values, over their own range if they are floats."""

    images: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.images.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        if self.images.dtype == torch.uint8:
            return smooth(self.images, generator)
        low, high = self.images.aminmax()
        noise = smooth((self.images - low) / (high - low).clamp_min(1e-12), generator)
        return low + (high - low) * as_input(noise)

    def to(self, device: torch.device | str) -> "SmoothNoise":
        return SmoothNoise(self.images.to(device))


@dataclass(frozen=True)
class UniformNoise:
    """Every value independently uniform, over the images' own range if they are floats."""

    images: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.images.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        if self.images.dtype == torch.uint8:
            return uniform(self.shape[0], tuple(self.shape[1:]), generator)
        low, high = self.images.aminmax()
        return low + (high - low) * torch.rand(self.shape, generator=generator, device=self.images.device)

    def to(self, device: torch.device | str) -> "UniformNoise":
        return UniformNoise(self.images.to(device))


@dataclass(frozen=True)
class ShuffledPatches:
    """Images cut into square patches, four along the shorter side, and put together in another order.

    What is left over at the right and at the bottom stays where it was.
    """

    images: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.images.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        count, _, height, width = self.images.shape
        side = max(1, min(height, width) // PATCHES)
        down, across = height // side, width // side
        inside = self.images[:, :, : down * side, : across * side]
        patches = inside.unflatten(3, (across, side)).unflatten(2, (down, side))  # (N, C, down, side, across, side)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        order = torch.rand(count, down * across, generator=generator, device=self.images.device).argsort(1)
        patches = patches.gather(1, order[:, :, None, None, None].expand_as(patches)).unflatten(1, (down, across))
        shuffled = self.images.clone()
        shuffled[:, :, : down * side, : across * side] = patches.permute(0, 3, 1, 4, 2, 5).reshape(inside.shape)
        return shuffled

    def to(self, device: torch.device | str) -> "ShuffledPatches":
        return ShuffledPatches(self.images.to(device))


@dataclass(frozen=True)
class JoinedHalves:
    """Images joined from halves of two others: upper and lower, or left and right.

    That both are of one class happens as often as it does by chance; a few such outliers do no harm.
    """

    images: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.images.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        device, (count, _, height, width) = self.images.device, self.images.shape
        others = self.images[torch.randperm(count, generator=generator, device=device)]
        across = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
        upper = torch.arange(height, device=device).unsqueeze(1) < height // 2
        left = torch.arange(width, device=device) < width // 2
        return torch.where(torch.where(across, upper, left), self.images, others)

    def to(self, device: torch.device | str) -> "JoinedHalves":
        return JoinedHalves(self.images.to(device))


@dataclass(frozen=True)
class ShuffledWords:
    """Texts as long as the inliers, with all their words dealt out anew; token numbers, 0 being padding."""

    tokens: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.tokens.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        is_word = self.tokens != 0
        words = self.tokens[is_word]
        shuffled = self.tokens.clone()
        shuffled[is_word] = words[torch.randperm(len(words), generator=generator, device=words.device)]
        return shuffled

    def to(self, device: torch.device | str) -> "ShuffledWords":
        return ShuffledWords(self.tokens.to(device))


Make = Callable[[Tensor], OutlierSource]

# by kind of data
SYNTHETIC: Mapping[str, Mapping[str, Make]] = MappingProxyType(
    {
        "tables": {"columns": IndependentColumns, "box": WidenedBox},
        "images": {
            "smooth": SmoothNoise,
            "uniform": UniformNoise,
            "patches": ShuffledPatches,
            "halves": JoinedHalves,
        },
        "texts": {"words": ShuffledWords},
    }
)
# where no outliers are given; halves help with digits, and not with clothes
BY_DEFAULT: Mapping[str, str] = MappingProxyType(
    {"tables": "columns+box", "images": "smooth+patches", "texts": "words"}
)
