"""Dataset shift: images that keep their class while they get harder to recognise.

The 19 corruptions x 5 severities are those of CIFAR-10-C (Hendrycks and Dietterich, 2019), rewritten as batched tensor
code with the published constants, which are meant for 32 x 32 images. They are no copy of the published files: the
random numbers differ, and so do, in the way their docstrings say, `frost` and `spatter`.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from demur.names import choose
from demur.outliers.spectrum import cosines
from demur.tasks.filters import (
    blurring,
    box_mean,
    box_resizing,
    convolve,
    coordinates,
    distance_to,
    grey,
    normal,
    plasma,
    resample,
    separable,
    smear,
    uniform,
    zooming,
)

SEVERITIES = (1, 2, 3, 4, 5)
ROTATIONS = tuple(range(15, 181, 15))
TRANSLATIONS = tuple(range(2, 15, 2))
BLOCK = 250


def corrupt(x: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Images (N, 3, 32, 32) of uint8, corrupted on their own device.

    Images are made in blocks of a fixed size, each with a generator of its own, so that the n-th image of a set
    comes out the same however many follow it. A CPU and a GPU draw different random numbers.
    """
    corruption = choose(CORRUPTIONS, name, "corruption")
    if severity not in SEVERITIES:
        raise ValueError(f"severity {severity} does not exist; choose one of 1 (mild) to 5 (severe)")
    if x.dtype != torch.uint8 or x.shape[1:] != (3, 32, 32):
        raise ValueError(f"x is {x.dtype} of shape {tuple(x.shape)}; corruptions need uint8 images (N, 3, 32, 32)")
    blocks = [x[:0]]
    for number, block in enumerate(x.split(BLOCK)):
        state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
        generator = Generator(x.device).manual_seed(int(state))
        full = torch.cat((block, block.new_zeros(BLOCK - len(block), 3, 32, 32)))
        blocks.append(corruption(full / 255, severity, generator)[: len(block)].mul(255).round().byte())
    return torch.cat(blocks)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Square uint8 images turned counter-clockwise, bilinearly; what comes in from outside is black."""
    if x.dtype != torch.uint8:
        raise ValueError(f"x is {x.dtype}; rotate needs uint8 images, so turn them before they are scaled")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cos, -sin, 0], [sin, cos, 0]], device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, align_corners=False).round().byte()


def translate(x: Tensor, pixels: int) -> Tensor:
    """Images moved to the right (to the left where `pixels` is negative); what comes in from outside is black."""
    return F.pad(x, (pixels, -pixels))


# --- noise ---


def gaussian_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return (x + deviation * normal(generator, x.shape)).clamp(0, 1)


def shot_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return (torch.poisson(x * photons, generator) / photons).clamp(0, 1)


def impulse_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw = uniform(generator, 0, 1, x.shape)
    return x.masked_fill(draw < share, 0).masked_fill(draw < share / 2, 1)


def speckle_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    deviation = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    return (x + x * deviation * normal(generator, x.shape)).clamp(0, 1)


# --- blur ---


def gaussian_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    return separable(x, blurring(x, (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]))


def defocus_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """A disk, its edge smoothed by a Gaussian of three taps."""
    radius, sigma = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    away = torch.arange(-2, 3, device=x.device)
    disk = (away[:, None] ** 2 + away**2 <= radius**2).float()
    edge = torch.exp(-(away[1:4] ** 2) / (2 * sigma**2))
    kernel = F.conv2d(disk[None, None], torch.outer(edge, edge)[None, None], padding=1)[0, 0]
    return convolve(x, kernel / kernel.sum())


def glass_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Pixels take the place of near ones between two Gaussian blurs.

    The published loop runs from the last pixel to the first and means to swap each with one of the 2 x 2 ending in it,
    but its array assignment only copies. What it copies from has not been visited, so one gather is the whole loop.
    """
    sigma, passes = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    matrix = blurring(x, sigma)
    x = separable(x, matrix)
    row, column = coordinates(x)
    moves = (row > 1) & (column > 1)
    for _ in range(passes):
        up, left = torch.randint(0, 2, (2, len(x), *x.shape[2:]), generator=generator, device=x.device) * moves
        source = (row - up) * x.shape[-1] + column - left
        x = x.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, 3, -1)).view_as(x)
    return separable(x, matrix)


def motion_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    return smear(x, radius, sigma, uniform(generator, -45, 45, (len(x),)))


def zoom_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The mean of the image and its enlargements, in steps of one per cent."""
    factors = [1 + step / 100 for step in range((7, 12, 16, 21, 26)[severity - 1])]
    matrices = [torch.eye(32, device=x.device), *(zooming(x, factor) for factor in factors)]
    mean = torch.stack([torch.kron(matrix, matrix) for matrix in matrices]).mean(0)
    return (x.flatten(2) @ mean.T).view_as(x)


# --- weather ---


def snow(x: Tensor, severity: int, generator: Generator) -> Tensor:
    mean, deviation, zoom, threshold, radius, sigma, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    flakes = mean + deviation * normal(generator, (len(x), 1, *x.shape[2:]))
    flakes = F.threshold(separable(flakes, zooming(x, zoom)), threshold, 0).clamp(max=1)
    flakes = smear(flakes, radius, sigma, uniform(generator, -135, -45, (len(x),)))
    whitened = torch.maximum(x, grey(x) * 1.5 + 0.5)
    return (kept * x + (1 - kept) * whitened + flakes + flakes.rot90(2, (2, 3))).clamp(0, 1)


def frost(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The image behind ice, mixed in the published proportions.

    The published ice is cut from photographs. Here it is synthetic: six-pointed crystals, denser in some places than in
    others, on clouded bluish ground.
    """
    image, layer = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    return (image * x + layer * ice(x, generator)).clamp(0, 1)


def ice(x: Tensor, generator: Generator) -> Tensor:
    cover = plasma(generator, len(x), x.shape[-1], decay=1.6)
    seeds = uniform(generator, 0, 1, cover.shape) * (uniform(generator, 0, 1, cover.shape) < 0.06 * cover)
    seeds = F.pad(seeds[..., 1:-1, 1:-1], (1, 1, 1, 1))  # none at the edge, which smearing repeats
    angle = uniform(generator, 0, 60, (len(x),))
    needles = torch.stack([smear(seeds, 8, 5, angle + turn) for turn in range(0, 360, 60)]).amax(0)
    texture = (0.15 + 0.3 * cover + 6 * needles).clamp(max=1)
    tint = torch.tensor([0.8, 0.9, 1.0], device=x.device)
    return separable(texture, blurring(x, 0.5)) * tint[:, None, None]


def fog(x: Tensor, severity: int, generator: Generator) -> Tensor:
    density, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    brightest = x.amax((1, 2, 3), keepdim=True)
    foggy = x + density * plasma(generator, len(x), x.shape[-1], decay)
    return (foggy * brightest / (brightest + density)).clamp(0, 1)


def spatter(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Drops of water (severities 1 to 3) or mud (4 and 5).

    The light on the water follows the distance to the edge of the drop; the published edges are Canny's, these are the
    drops' outermost pixels.
    """
    mean, deviation, sigma, threshold, strength = (
        (0.62, 0.1, 0.7, 0.7, 0.5),
        (0.65, 0.1, 0.8, 0.7, 0.5),
        (0.65, 0.3, 1.0, 0.69, 0.5),
        (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[severity - 1]
    liquid = mean + deviation * normal(generator, (len(x), 1, *x.shape[2:]))
    liquid = F.threshold(separable(liquid, blurring(x, sigma)), threshold, 0).clamp(max=1)
    if severity <= 3:
        light = liquid * relief(liquid > 0)
        light = strength * light / light.amax((2, 3), keepdim=True).clamp(min=1e-6)
        turquoise = torch.tensor([175, 238, 238], device=x.device) / 255
        return (x + light * turquoise[:, None, None]).clamp(0, 1)
    mud = F.threshold(separable((liquid > 0).float(), blurring(x, strength)), 0.8, 0)
    brown = torch.tensor([63, 42, 20], device=x.device) / 255
    return x * (1 - mud) + brown[:, None, None] * mud


def relief(wet: Tensor) -> Tensor:
    """How drops (N, 1, H, W) shine in light from one side: the slope of the equalised distance to their outlines."""
    outline = wet & (F.max_pool2d((~wet).float(), 3, 1, 1) > 0)
    distance = box_mean(distance_to(outline).clamp(max=20)).floor()
    at_most = (distance[..., None] <= torch.arange(21, device=wet.device)).float().mean((1, 2, 3))
    lowest = at_most.gather(1, distance.amin((2, 3)).long())
    rank = at_most.gather(1, distance.flatten(1).long())
    equalised = ((rank - lowest) / (1 - lowest).clamp(min=1e-6)).view_as(distance)
    slope = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]], device=wet.device)
    return box_mean(convolve(equalised, slope).clamp(0, 1))


# --- light and colour ---


def brightness(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """More value, at the same hue and saturation."""
    value = x.amax(1, keepdim=True)
    brighter = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]).clamp(max=1)
    return torch.where(value > 0, x / value.clamp(min=1e-6), 1) * brighter


def saturate(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Less saturation (severities 1 and 2) or more (3 to 5), at the same hue and value."""
    factor, offset = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    value, spread = x.amax(1, keepdim=True), x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    red = torch.tensor([0.0, 1, 1], device=x.device)[:, None, None]  # the hue of grey, by convention
    below = torch.where(spread > 0, (value - x) / spread.clamp(min=1e-6), red)
    saturation = (factor * spread / value.clamp(min=1e-6) + offset).clamp(0, 1)
    return value * (1 - saturation * below)


def contrast(x: Tensor, severity: int, generator: Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return ((x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + mean).clamp(0, 1)


# --- geometry and storage ---


def elastic_transform(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """A random affine map, then a smooth random displacement; the affine part shrinks with the severity."""
    alpha, sigma, shake = (
        (0, 1, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    )[severity - 1]
    row, column = coordinates(x)
    before = torch.tensor([[26.0, 26], [26, 6], [6, 6]], device=x.device)
    after = before + uniform(generator, -shake, shake, (len(x), 3, 2))
    # the map from where the three corners land to where they came from
    back = torch.linalg.solve(F.pad(after, (0, 1), value=1), before.expand_as(after))
    pixel = torch.stack((column, row, torch.ones_like(row)), -1).float()
    x = resample(x, torch.einsum("hwi,nij->nhwj", pixel, back))
    noise = uniform(generator, -1, 1, (len(x), 2, *x.shape[2:]))
    displacement = alpha * separable(noise, blurring(x, sigma, mirror=True))
    return resample(x, pixel[..., :2] + displacement.movedim(1, -1))


def pixelate(x: Tensor, severity: int, generator: Generator) -> Tensor:
    fewer = (30, 28, 27, 24, 20)[severity - 1]
    return separable(x, box_resizing(x, 32, fewer) @ box_resizing(x, fewer, 32))


def jpeg_compression(x: Tensor, severity: int, generator: Generator) -> Tensor:
    return jpeg(x, quality=(80, 65, 58, 50, 40)[severity - 1])


def jpeg(x: Tensor, quality: int) -> Tensor:
    """What a JPEG file of this quality keeps: 8 x 8 cosine transforms, rounded; colour at half the resolution.

    Height and width must be multiples of 16.
    """
    to_luma = torch.tensor(
        [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], device=x.device
    )
    offset = torch.tensor([128.0, 0, 0], device=x.device)[:, None, None]
    luma_chroma = (torch.einsum("ij,njhw->nihw", to_luma, x * 255) - offset).round()
    # libjpeg rounds the means of four down and up in turn, where they lie half-way
    turns = torch.tensor([0.25, 0.5], device=x.device).repeat(x.shape[-1] // 4)
    luma, chroma = luma_chroma[:, :1], (F.avg_pool2d(luma_chroma[:, 1:], 2) + turns).floor()
    luma, chroma = quantise(luma, LUMA_STEPS, quality), quantise(chroma, CHROMA_STEPS, quality)
    chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear", align_corners=False).round()
    decoded = torch.einsum("ij,njhw->nihw", to_luma.inverse(), torch.cat((luma, chroma), 1) + offset)
    return (decoded / 255).clamp(0, 1)


def quantise(x: Tensor, steps: Tensor, quality: int) -> Tensor:
    """Channels in -128..127, each 8 x 8 block rounded in the cosine basis to multiples of the table's steps."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    step = ((steps * scale + 50) // 100).clamp(1, 255).to(x.device)
    cosine = cosines(8).to(x.device)
    blocks = x.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    # libjpeg's coefficients have three fractional bits, and halves are rounded away from zero
    levels = (8 * cosine @ blocks @ cosine.T).round() / (8 * step)
    levels = levels.sign() * (levels.abs() + 0.5).floor()
    blocks = cosine.T @ (levels * step) @ cosine
    return blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3).round().clamp(-128, 127)


# annex K of the JPEG standard
LUMA_STEPS = torch.tensor(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CHROMA_STEPS = torch.full((8, 8), 99)
CHROMA_STEPS[:4, :4] = torch.tensor([[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]])


Corruption = Callable[[Tensor, int, Generator], Tensor]

CORRUPTIONS: Mapping[str, Corruption] = {
    corruption.__name__: corruption
    for corruption in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        frost,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
        speckle_noise,
        gaussian_blur,
        spatter,
        saturate,
    )
}
