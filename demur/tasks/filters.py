"""What corruptions are made of: linear maps of pixels, resampling, clouds, distances; images (N, C, H, W) as floats."""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def normal(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def uniform(generator: Generator, low: float, high: float, shape: tuple[int, ...]) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)


def grey(x: Tensor) -> Tensor:
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def separable(x: Tensor, matrix: Tensor) -> Tensor:
    """The same linear map along rows and columns; as dense products of 32 x 32 these beat convolutions."""
    return matrix @ x @ matrix.T


def blurring(x: Tensor, sigma: float, mirror: bool = False) -> Tensor:
    """The matrix of a Gaussian blur up to four deviations; edges are repeated, or mirrored."""
    size = x.shape[-1]
    reach = int(4 * sigma + 0.5)
    away = torch.arange(-reach, reach + 1, device=x.device)
    weight = torch.softmax(-(away**2) / (2 * sigma**2), 0)
    source = torch.arange(size, device=x.device)[:, None] + away
    source = torch.minimum(source % (2 * size), (-1 - source) % (2 * size)) if mirror else source.clamp(0, size - 1)
    return x.new_zeros(size, size).scatter_add(1, source, weight.expand(size, -1))


def zooming(x: Tensor, factor: float) -> Tensor:
    """The matrix that enlarges the middle, linearly interpolated, to the size of the whole."""
    size = x.shape[-1]
    kept = math.ceil(size / factor)
    zoomed = round(kept * factor)
    pixel = torch.arange(size, device=x.device)
    position = (pixel + (zoomed - size) // 2) * (kept - 1) / (zoomed - 1) + (size - kept) // 2
    return (1 - (position[:, None] - pixel).abs()).clamp(min=0)


def box_resizing(x: Tensor, new: int, old: int) -> Tensor:
    """The matrix that makes `new` pixels of `old`, each the mean of those whose centres it covers, or the nearest."""
    centre = (torch.arange(new, device=x.device)[:, None] + 0.5) * old / new
    away = (torch.arange(old, device=x.device) + 0.5 - centre) / max(old / new, 1)
    covered = ((away > -0.5) & (away <= 0.5)).float()
    return covered / covered.sum(1, keepdim=True)


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Every channel with one odd-sized kernel, mirrored at the edges."""
    flat = F.pad(x, (kernel.shape[0] // 2,) * 4, mode="reflect").flatten(0, 1)
    return F.conv2d(flat[:, None], kernel[None, None]).view_as(x)


def box_mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1)


def coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every pixel, (H, W) each."""
    height, width = x.shape[2:]
    row, column = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    return row[:, None].expand(height, width), column.expand(height, width)


def resample(x: Tensor, where: Tensor) -> Tensor:
    """Pixels at fractional (column, row) positions (N, H, W, 2), bilinearly, mirrored at the edges."""
    size = torch.tensor(x.shape[:1:-1], device=x.device)
    return F.grid_sample(x, (2 * where + 1) / size - 1, padding_mode="reflection", align_corners=False)


def smear(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Motion blur: the falling half of a Gaussian along a line, each image's at an angle of its own."""
    height, width = x.shape[2:]
    reach = 2 * radius
    windows = F.pad(x, (reach,) * 4, mode="replicate").unfold(2, height, 1).unfold(3, width, 1)
    image = torch.arange(len(x), device=x.device)
    weights = torch.softmax(-(torch.arange(reach + 1.0) ** 2) / (2 * sigma**2), 0).tolist()
    smeared = torch.zeros_like(x)
    for step, weight in enumerate(weights):
        down, right = (step * degrees.deg2rad().sin()).round().long(), (step * degrees.deg2rad().cos()).round().long()
        smeared += weight * windows[image, :, reach + down, reach + right]
    return smeared


def plasma(generator: Generator, count: int, size: int, decay: float) -> Tensor:
    """Clouds (N, 1, size, size) in [0, 1] by midpoint displacement, seamless; `size` is a power of two."""
    field = torch.zeros(count, 1, size, size, device=generator.device)
    step, wobble = size, 1.0

    def displaced(total: Tensor) -> Tensor:
        return total / 4 + uniform(generator, -wobble, wobble, total.shape)

    while step > 1:
        half = step // 2
        corner = field[..., ::step, ::step]
        square = corner + corner.roll(-1, 2)
        field[..., half::step, half::step] = centre = displaced(square + square.roll(-1, 3))
        field[..., ::step, half::step] = displaced(centre + centre.roll(1, 2) + corner + corner.roll(-1, 3))
        field[..., half::step, ::step] = displaced(centre + centre.roll(1, 3) + corner + corner.roll(-1, 2))
        step, wobble = half, wobble / decay**2  # squared: published so
    field -= field.amin((2, 3), keepdim=True)
    return field / field.amax((2, 3), keepdim=True)


def distance_to(mask: Tensor) -> Tensor:
    """Euclidean distance (N, 1, H, W) of every pixel to the nearest one of the mask; large where there is none."""
    pixel = torch.arange(mask.shape[-1], device=mask.device)
    squared = torch.where(mask, 0.0, 1e6)
    for _ in range(2):
        squared = (squared[..., None, :] + (pixel[:, None] - pixel) ** 2).amin(-1).transpose(2, 3)
    return squared.sqrt()
