"""Outliers to choose a method by: several kinds, none of which is tested or trained with.

Soft and sharp, photographs and drawn ones, near to the inliers and far from them. They are made from held-out inliers,
from one photograph that comes with scikit-learn, and from nothing; no OOD test set has a part in them.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from demur.networks import as_input
from demur.outliers.noise import blur_matrix
from demur.streams import generator_for
from demur.study.fits import DataSource, Inputs
from demur.tasks import EMBEDDED, Split, Store
from demur.tasks import load as load_task
from demur.tasks.images import fit_images, resize_bilinear

COUNT = 2_000  # of each set
INLIERS = "suite/inliers"  # held out of training
BANDS = 8  # of an interlaced image
LETTERS = "ABDEFGHJKLMNPQRTUVWXYabdefghkmnpqrtuwy"  # without those most like digits
Make = Callable[[Split, torch.Generator], Tensor]  # of held-out inliers, N x C x H x W of uint8


def letters(inliers: Split, generator: torch.Generator) -> Tensor:
    """White on black, in one font, of many sizes."""
    shape = inliers.x.shape[1:]
    return fit_images(printed_letters(COUNT, shape[-1]), shape)


def blurred_letters(inliers: Split, generator: torch.Generator) -> Tensor:
    """The same after a Gaussian blur of 1 to 2 pixels."""
    sharp = letters(inliers, generator)
    sigma = 1 + torch.rand(len(sharp), generator=generator)
    down, across = (blur_matrix(size, sigma)[:, None] for size in sharp.shape[2:])
    return (down @ as_input(sharp) @ across.mT).mul_(255).round_().to(torch.uint8)


def reduced_photograph(inliers: Split, generator: torch.Generator) -> Tensor:
    """Windows of a photograph of a temple, three to eight times as large and made small."""
    return _windows(inliers.x.shape[1:], 3.0, 8.0, generator)


def enlarged_photograph(inliers: Split, generator: torch.Generator) -> Tensor:
    """Windows of the same photograph, a third to two thirds as large and enlarged."""
    return _windows(inliers.x.shape[1:], 1 / 3, 2 / 3, generator)


def interlaced(inliers: Split, generator: torch.Generator) -> Tensor:
    """Two inliers of different classes in eight horizontal bands by turns."""
    one, other = _of_two_classes(inliers, generator)
    height = one.shape[2]
    second = (torch.arange(height) * BANDS // height % 2).bool()[:, None]
    return torch.where(second, other, one)


def overlaid(inliers: Split, generator: torch.Generator) -> Tensor:
    """The mean of two inliers of different classes."""
    one, other = _of_two_classes(inliers, generator)
    return ((one.short() + other) // 2).to(torch.uint8)


def shapes(inliers: Split, generator: torch.Generator) -> Tensor:
    """One to four filled ellipses, rectangles and triangles on a plain ground, in colours at random."""
    channels, height, width = inliers.x.shape[1:]
    rng = np.random.default_rng(0)
    images = np.stack([_draw_shapes(height, width, rng) for _ in range(COUNT)])
    return fit_images(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.Size((channels, height, width)))


def gradients(inliers: Split, generator: torch.Generator) -> Tensor:
    """Three by three colours at random, with all shades between them."""
    channels, height, width = inliers.x.shape[1:]
    colours = torch.randint(256, (COUNT, channels, 3, 3), generator=generator, dtype=torch.uint8)
    return resize_bilinear(colours, height, width)


# how they are made -------------------------------------------------------------------------------------------------


def printed_letters(count: int, size: int) -> Tensor:
    """(count, 1, size, size) of uint8: white on black, in one font, of many sizes, more or less bold and upright."""
    rng, images = np.random.default_rng(0), []
    for number in range(count):
        image = Image.new("L", (2 * size, 2 * size))
        font = ImageFont.load_default(size=size * rng.uniform(1.1, 1.7))
        letter, bold = LETTERS[number % len(LETTERS)], int(rng.integers(2))
        ImageDraw.Draw(image).text((size, size), letter, 255, font, anchor="mm", stroke_width=bold)
        turned = image.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR)
        images.append(np.asarray(turned.resize((size, size), Image.Resampling.LANCZOS)))
    return torch.from_numpy(np.stack(images)).unsqueeze(1)


def _windows(shape: torch.Size, least: float, most: float, generator: torch.Generator) -> Tensor:
    """Square windows, their side so many times an image's."""
    from sklearn.datasets import load_sample_image  # takes a second

    photograph = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    scale = least + (most - least) * torch.rand(COUNT, generator=generator)
    places = torch.rand(COUNT, 2, generator=generator)
    windows = []
    for side, (down, across) in zip((scale * shape[2]).round().int().tolist(), places.tolist(), strict=True):
        top, left = (
            int(place * (size - side)) for place, size in zip((down, across), photograph.shape[1:], strict=True)
        )
        windows.append(fit_images(photograph[None, :, top : top + side, left : left + side], shape))
    return torch.cat(windows)


def _of_two_classes(inliers: Split, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """COUNT inliers, drawn again where there are fewer, and as many of other classes."""
    rows = torch.randint(len(inliers), (2, COUNT), generator=generator)
    while (same := inliers.y[rows[0]] == inliers.y[rows[1]]).any():
        rows[:, same] = torch.randint(len(inliers), (2, int(same.sum())), generator=generator)
    return inliers.x[rows[0]], inliers.x[rows[1]]


def _draw_shapes(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    def colour() -> tuple[int, ...]:
        return tuple(int(value) for value in rng.integers(256, size=3))

    image = Image.new("RGB", (width, height), colour())
    draw = ImageDraw.Draw(image)
    for kind in rng.integers(3, size=rng.integers(1, 5)):
        points = [(int(x), int(y)) for x, y in rng.integers((width, height), size=(3, 2))]
        (left, right), (top, bottom) = (sorted(values) for values in zip(*points[:2], strict=True))
        box = left, top, right, bottom
        if kind == 0:
            draw.ellipse(box, fill=colour())
        elif kind == 1:
            draw.rectangle(box, fill=colour())
        else:
            draw.polygon(points, fill=colour())
    return np.asarray(image)


# the suite, listed before any run: sets by kind
KINDS: Mapping[str, Mapping[str, Make]] = MappingProxyType(
    {
        "characters, sharp": {"letters": letters},
        "characters, soft": {"blurred_letters": blurred_letters},
        "photographs, sharp": {"reduced_photograph": reduced_photograph},
        "photographs, soft": {"enlarged_photograph": enlarged_photograph},
        "near, sharp": {"interlaced": interlaced},
        "near, soft": {"overlaid": overlaid},
        "drawn, sharp": {"shapes": shapes},
        "drawn, soft": {"gradients": gradients},
    }
)
SUITE: Mapping[str, tuple[str, ...]] = MappingProxyType({kind: tuple(sets) for kind, sets in KINDS.items()})


def set_name(name: str) -> str:
    """What a set of the suite is called among a cell's values."""
    return f"suite/{name}"


def suite(data: DataSource, store: Store) -> Inputs:
    """Held-out inliers and every set of the suite, always the same."""
    return _make_suite(data.name, data.limit, store)


@lru_cache(maxsize=1)  # it takes seconds, and every cell of a task asks for the same
def _make_suite(name: str, limit: int | None, store: Store) -> Inputs:
    outliers = None if name in EMBEDDED else "uniform"
    inliers = load_task(name, store=store, outliers=outliers, limit=limit).training.held_out
    if inliers.x.dim() != 4 or inliers.x.dtype != torch.uint8:
        raise ValueError(f"the validation suite is of images, and task {name!r} has none; leave the task out")
    if len(inliers.y.unique()) < 2:
        raise ValueError(
            f"the validation suite needs held-out inputs of two classes, not {len(inliers)}; raise --limit"
        )
    sets = {
        set_name(each): make(inliers, generator_for(set_name(each)))
        for makers in KINDS.values()
        for each, make in makers.items()
    }
    return inliers.y, {INLIERS: inliers.x, **sets}
