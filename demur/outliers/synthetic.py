"""Outliers for whoever has none: made anew each epoch from the inliers themselves, each kind of data in its own way.

They keep what is cheap to recognise (the values of a column, the texture of an image, the words of a text) and break
what the classes are made of (columns that go together, the places of parts, the order and company of words).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from demur.networks import as_input
from demur.outliers.noise import smooth, uniform

WIDENED = 0.5  # on each side, of a column's range
NARROWEST = 1e-6  # deviations between two knots; where many rows have one value, its rank is a step
PATCHES = 4  # along an image's shorter side


How = Callable[..., Tensor]  # of inliers and a generator; those for tables may also be told the groups of columns


@dataclass(frozen=True)
class FromInliers:
    """As many outliers as there are inliers, made from these by `how`."""

    inliers: Tensor
    how: How

    @property
    def shape(self) -> torch.Size:
        return self.inliers.shape

    def epoch(self, generator: torch.Generator) -> Tensor:
        return self.how(self.inliers, generator)

    def to(self, device: torch.device | str) -> "FromInliers":
        return FromInliers(self.inliers.to(device), self.how)


@dataclass(frozen=True)
class Group:
    """What a column of a table became in an encoded row: a number and an entry that is 1 where it is missing, or a
    category, one-hot; `unseen` are the entries of a cell as no inlier has one: a new category, a gap where none was.
    Where there are `knots`, a number has a third entry, its rank among these."""

    width: int
    one_hot: bool = False
    unseen: tuple[float, ...] | None = None
    knots: tuple[float, ...] = ()


Groups = Sequence[Group]  # of all columns, in order; none where every entry is a column of numbers


@dataclass(frozen=True)
class InGroups:
    """`how`, told which entries are one column; a value, so that a checkpoint knows it again."""

    how: How
    groups: Groups

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return self.how(rows, generator, self.groups)


def rank(values: Tensor, knots: Sequence[float]) -> Tensor:
    """How far up the knots a value lies, linear between two: of mean 0 and deviation 1 if these are its quantiles."""
    edges = values.new_tensor(knots)
    steps = (values.unsqueeze(1) - edges[:-1]) / (edges[1:] - edges[:-1]).clamp_min(NARROWEST)
    return (steps.clamp(0, 1).mean(1) - 0.5) * 12**0.5


def starts(groups: Groups) -> list[int]:
    return [0, *itertools.accumulate(group.width for group in groups)][:-1]


def independent_columns(rows: Tensor, generator: torch.Generator, groups: Groups = ()) -> Tensor:
    """Rows whose columns were drawn independently: each column has its own values, in another order."""
    columns = len(groups) or rows.shape[1]
    order = torch.rand(len(rows), columns, generator=generator, device=rows.device).argsort(0)
    if groups:
        order = order.repeat_interleave(torch.tensor([group.width for group in groups], device=rows.device), 1)
    return rows.gather(0, order)


def widened_box(rows: Tensor, generator: torch.Generator, groups: Groups = ()) -> Tensor:
    """Uniform in the box around the rows, widened on every side by half its length.

    Of categories every one is as probable, those never seen included; numbers are missing as often as they are.
    """
    low, high = rows.amin(0), rows.amax(0)
    fraction = torch.rand(rows.shape, generator=generator, device=rows.device)
    result = low + ((1 + 2 * WIDENED) * fraction - WIDENED) * (high - low)
    for start, group in zip(starts(groups), groups, strict=True):
        columns = slice(start, start + group.width)
        if group.one_hot:
            result[:, columns] = (fraction[:, columns] == fraction[:, columns].amax(1, keepdim=True)).to(result.dtype)
        else:
            other = rows[torch.randint(len(result), (len(result),), generator=generator, device=result.device), columns]
            number = torch.where(other[:, 1] == 1, other[:, 0], result[:, start])
            entries = [number, other[:, 1], *([rank(number, group.knots)] if group.knots else [])]
            result[:, columns] = torch.stack(entries, 1)
    return result


def unseen_cell(rows: Tensor, generator: torch.Generator, groups: Groups = ()) -> Tensor:
    """Rows as they are, but that one cell of each is as in no inlier: a new category, or missing where none was."""
    candidates = [(start, group.unseen) for start, group in zip(starts(groups), groups, strict=True) if group.unseen]
    if not candidates:
        raise ValueError("synthetic outliers 'unseen' need a table of categories or with gaps; leave them out")
    result = rows.clone()
    chosen = torch.randint(len(candidates), (len(result),), generator=generator, device=result.device)
    for number, (start, unseen) in enumerate(candidates):
        result[chosen == number, start : start + len(unseen)] = result.new_tensor(unseen)
    return result


def smooth_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Smooth noise with the images' own grey values, over their own range if they are floats."""
    if images.dtype == torch.uint8:
        return smooth(images, generator)
    low, high = images.aminmax()
    noise = smooth((images - low) / (high - low).clamp_min(1e-12), generator)
    return low + (high - low) * as_input(noise)


def uniform_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every value independently uniform, over the images' own range if they are floats."""
    if images.dtype == torch.uint8:
        return uniform(images.shape[0], tuple(images.shape[1:]), generator)
    low, high = images.aminmax()
    return low + (high - low) * torch.rand(images.shape, generator=generator, device=images.device)


def shuffled_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images cut into square patches, four along the shorter side, and put together in another order.

    What is left over at the right and at the bottom stays where it was.
    """
    count, _, height, width = images.shape
    side = max(1, min(height, width) // PATCHES)
    down, across = height // side, width // side
    inside = images[:, :, : down * side, : across * side]
    patches = inside.unflatten(3, (across, side)).unflatten(2, (down, side))  # (N, C, down, side, across, side)
    patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(count, down * across, generator=generator, device=images.device).argsort(1)
    patches = patches.gather(1, order[:, :, None, None, None].expand_as(patches)).unflatten(1, (down, across))
    shuffled = images.clone()
    shuffled[:, :, : down * side, : across * side] = patches.permute(0, 3, 1, 4, 2, 5).reshape(inside.shape)
    return shuffled


def joined_halves(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images joined from halves of two others: upper and lower, or left and right.

    That both are of one class happens as often as it does by chance; a few such outliers do no harm.
    """
    device, (count, _, height, width) = images.device, images.shape
    partners = images[torch.randperm(count, generator=generator, device=device)]
    across = torch.rand(count, 1, 1, 1, generator=generator, device=device) < 0.5
    upper = torch.arange(height, device=device).unsqueeze(1) < height // 2
    left = torch.arange(width, device=device) < width // 2
    return torch.where(torch.where(across, upper, left), images, partners)


def shuffled_words(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Texts as long as the inliers, with all their words dealt out anew; token numbers, 0 being padding."""
    is_word = tokens != 0
    words = tokens[is_word]
    shuffled = tokens.clone()
    shuffled[is_word] = words[torch.randperm(len(words), generator=generator, device=words.device)]
    return shuffled


# by kind of data
SYNTHETIC: Mapping[str, Mapping[str, How]] = MappingProxyType(
    {
        "tables": {"columns": independent_columns, "box": widened_box, "unseen": unseen_cell},
        "images": {
            "smooth": smooth_noise,
            "uniform": uniform_noise,
            "patches": shuffled_patches,
            "halves": joined_halves,
        },
        "texts": {"words": shuffled_words},
    }
)
# where no outliers are given; halves help with digits, and not with clothes
BY_DEFAULT: Mapping[str, str] = MappingProxyType(
    {"tables": "columns+box", "images": "smooth+patches", "texts": "words"}
)
