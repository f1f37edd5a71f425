"""Inputs of a task that are also among its training outliers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from demur.networks import as_input
from demur.outliers.spectrum import cosines, original_images
from demur.tasks.base import Task
from demur.tasks.text import UNKNOWN

MAX_FLIPS = 14  # of the 63 bits of an image's hash
MAX_DISTANCE = 0.28  # all 18 pairs of cifar10, cifar100 and tiny_imagenet32 below it were seen to be one photograph
MIN_WORDS = 5  # shorter sentences are the same by chance


@dataclass(frozen=True)
class Duplicates:
    """Inputs of a set, by index, that are also training outliers: up to noise, and of these the identical ones."""

    set: str
    count: int
    near: tuple[int, ...]
    exact: tuple[int, ...]

    def line(self) -> str:
        share = f"{len(self.near):,} of {self.count:,} inputs of {self.set} ({len(self.exact):,} exactly)"
        points = f"{100 * len(self.near) / self.count:.2f} points"
        if not self.near:
            return f"none of the {self.count:,} inputs of {self.set} is a training outlier"
        if self.set == "train":
            return f"{share} are also training outliers: taught to be of a class and of none"
        if self.set == "test":
            return f"{share} are also training outliers: accuracy can be too low by at most {points}"
        return f"{share} are also training outliers: FPR95 on it can be too low by at most {points}"


def inputs(task: Task) -> dict[str, Tensor]:
    """All sets of a task by name; training outliers of one epoch."""
    shown = task.training.shown.epoch(torch.Generator(task.training.device).manual_seed(0))
    return {"train": task.training.train.x, "test": task.testing.test.x, "outliers": shown, **task.testing.ood}


def image_duplicates(task: Task) -> tuple[Duplicates, ...]:
    plain = replace(task.training, outliers=original_images(task.training.shown))
    sets = inputs(replace(task, training=plain))
    shown = sets.pop("outliers")
    rows = []
    for name, x in sets.items():
        pairs = near_duplicates(x, shown)
        first, second = (as_input(images[index]) for images, index in zip((x, shown), pairs.T, strict=True))
        exact = pairs[(first == second).flatten(1).all(1)]
        rows.append(Duplicates(name, len(x), *(tuple(of[:, 0].unique().tolist()) for of in (pairs, exact))))
    return tuple(rows)


def near_duplicates(x: Tensor, outliers: Tensor) -> Tensor:
    """Pairs (P, 2) of an index into `x` and one into `outliers` that show one image.

    It may be resampled, moved by a pixel or a little noisy in one; cropped, mirrored or recoloured it is missed.
    Hashes propose pairs, pixels decide.
    """
    codes, outlier_codes = image_hash(x), image_hash(outliers)
    least_agreement = codes.shape[1] - 2 * MAX_FLIPS
    proposed = []
    for row, block in enumerate(codes.split(4096)):
        for column, outlier_block in enumerate(outlier_codes.split(8192)):
            agreement = block @ outlier_block.T
            # few rows have any, so the best of each row first: half the time
            rows = (agreement.amax(1) >= least_agreement).nonzero()[:, 0]
            near = (agreement[rows] >= least_agreement).nonzero()
            proposed.append(torch.stack([rows[near[:, 0]] + row * 4096, near[:, 1] + column * 8192], 1))
    candidates = torch.cat(proposed)
    close = [pixel_distance(x[pairs[:, 0]], outliers[pairs[:, 1]]) <= MAX_DISTANCE for pairs in candidates.split(4096)]
    return candidates[torch.cat(close)]


def image_hash(x: Tensor) -> Tensor:
    """The signs, 1 or -1, of the grey image's 63 lowest frequencies; (N, C, H, W) to (N, 63)."""
    codes = []
    for part in x.split(4096):
        grey = as_input(part).mean(1)
        rows, columns = (cosines(size)[:8].to(x.device) for size in grey.shape[1:])
        waves = (rows @ grey @ columns.T).flatten(1)[:, 1:]
        # below zero, so that rounding decides nothing in flat or symmetric images
        codes.append(torch.where(waves > -1e-4, 1.0, -1.0))
    return torch.cat(codes)


def pixel_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean absolute difference over contrast, blurred by 3x3 and at the best shift by a pixel; (N, C, H, W) to (N,)."""
    a, b = (F.avg_pool2d(as_input(x), 3, stride=1) for x in (a, b))
    contrasts = [(x - x.mean((1, 2, 3), keepdim=True)).abs().mean((1, 2, 3)) for x in (a, b)]
    centre = a[..., 1:-1, 1:-1]
    height, width = centre.shape[2:]
    shifted = [b[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    differences = torch.stack([(centre - other).abs().mean((1, 2, 3)) for other in shifted])
    return differences.amin(0) / torch.maximum(*contrasts).clamp_min(1 / 255)


def text_duplicates(task: Task) -> tuple[Duplicates, ...]:
    """Sentences of at least MIN_WORDS known words that are the same, unknown words too."""
    sets = inputs(task)
    shown = set(map(bytes, sets.pop("outliers").cpu().numpy()))
    rows = []
    for name, x in sets.items():
        long = ((x > UNKNOWN).sum(1) >= MIN_WORDS).tolist()
        repeated = tuple(i for i, row in enumerate(x.cpu().numpy()) if long[i] and bytes(row) in shown)
        rows.append(Duplicates(name, len(x), repeated, repeated))
    return tuple(rows)
