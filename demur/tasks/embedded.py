"""Tasks that need no download: real digits with photographs as outliers, and four clouds of points in the plane."""

import string

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from demur.outliers.noise import far_away, smooth, uniform
from demur.streams import generator_for
from demur.tasks.base import Task, TestData
from demur.training_data import Fixed, Split, TrainingData


def digits() -> Task:
    """Scikit-learn's 1,797 handwritten 8x8 digits: 1,000 to train, 297 to validate, 500 to test.

    Outliers to train with are patches of a photograph of a temple; OOD test sets are patches of another, of a flower,
    letters, and noise.
    """
    from sklearn.datasets import load_digits  # takes a second, and only this task needs it

    bunch = load_digits()
    generator = generator_for("digits")
    order = torch.randperm(len(bunch.target), generator=generator)
    x = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))[order].unsqueeze(1)
    y = torch.from_numpy(bunch.target)[order].long()
    train, validation, test = (Split(x[i:j], y[i:j]) for i, j in ((0, 1000), (1000, 1297), (1297, 1797)))
    noise = uniform(1000, (1, 8, 8), generator)
    return Task(
        "digits",
        tuple(string.digits),
        TrainingData(train, validation, Fixed(_patches("china.jpg", 4000, generator))),
        TestData(
            test,
            {
                "flower": _patches("flower.jpg", 1000, generator),
                "letters": _letters(1040, generator),
                "uniform": noise,
                "smooth": smooth(test.x, generator),
                "far_away": far_away(noise),
            },
        ),
        trained_with="patches of a photograph",
    )


def _patches(photograph: str, count: int, generator: torch.Generator) -> Tensor:
    """Grey 8x8 patches, a quarter each from the photograph at full, half, quarter and eighth size."""
    from sklearn.datasets import load_sample_image

    image = Image.fromarray(load_sample_image(photograph)).convert("L")
    patches = []
    for reduction in (1, 2, 4, 8):
        pixels = torch.from_numpy(np.array(image.reduce(reduction)))
        windows = pixels.unfold(0, 8, 1).unfold(1, 8, 1).flatten(0, 1)
        patches.append(windows[torch.randint(len(windows), (count // 4,), generator=generator)])
    return torch.cat(patches).unsqueeze(1)


def _letters(count: int, generator: torch.Generator) -> Tensor:
    """A to Z in Pillow's own typeface, of varied size, slant and place, reduced to 8x8 as the digits were."""
    letters = []
    for index in range(count):
        letter = string.ascii_uppercase[index % 26]
        size, angle, right, down = torch.rand(4, generator=generator).tolist()
        page = Image.new("L", (64, 64))
        font = ImageFont.load_default(size=48 + 14 * size)
        at = (32 + 6 * (right - 0.5), 32 + 6 * (down - 0.5))
        ImageDraw.Draw(page).text(at, letter, fill=255, font=font, anchor="mm")
        letters.append(np.array(page.rotate(20 * (angle - 0.5), Image.Resampling.BILINEAR).reduce(8)))
    return torch.from_numpy(np.stack(letters)).unsqueeze(1)


def blobs() -> Task:
    """Four classes in the plane, around (+-2, +-2), with outliers from Unif[-6, 6]^2 among and around them."""
    generator = generator_for("blobs")
    centres = torch.tensor([(-2.0, -2.0), (-2.0, 2.0), (2.0, -2.0), (2.0, 2.0)])

    def draw(count: int) -> Split:
        y = torch.arange(count) % 4
        return Split(centres[y] + 0.6 * torch.randn(count, 2, generator=generator), y)

    def box(count: int, half: float) -> Tensor:
        return half * (2 * torch.rand(count, 2, generator=generator) - 1)

    around = box(4000, 6.0)
    outskirts = around[((around[:, None] - centres).norm(dim=2) > 2.0).all(1)][:1000]
    train, validation, test = draw(800), draw(200), draw(1000)
    return Task(
        "blobs",
        ("lower left", "upper left", "lower right", "upper right"),
        TrainingData(train, validation, Fixed(box(1000, 6.0))),
        TestData(test, {"outskirts": outskirts, "far_away": box(1000, 6.0) * 1000}),
        trained_with="Unif[-6, 6]^2",
    )
