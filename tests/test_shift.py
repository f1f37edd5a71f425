"""Corruptions, rotations and translations against their definitions and against other people's implementations."""

import colorsys
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.ndimage
import torch
from PIL import Image
from torch import Tensor

from demur.tasks import filters, shift
from demur.tasks.shift import CORRUPTIONS, ROTATIONS, SEVERITIES, TRANSLATIONS, corrupt, rotate, translate

# the affine part of elastic_transform shrinks as its displacement grows: so in CIFAR-10-C itself
NOT_FARTHER = {"elastic_transform"}


@pytest.fixture(scope="module")
def images() -> Tensor:
    """300 images with soft shapes, flat areas, grey, black and white: more than one block."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 3, 6, 6, generator=generator)
    x = 0.3 * x + 0.7 * x.mean(1, keepdim=True)  # as little colour as photographs have
    x = torch.nn.functional.interpolate(x, 32, mode="bicubic").clamp(0, 1)
    x[0], x[1], x[2] = 0, 1, x[2].mean(0)
    return x.mul(255).round().byte()


def floats(x: Tensor, name: str, severity: int) -> Tensor:
    """A corruption's own floats, before they are rounded."""
    return CORRUPTIONS[name](x / 255, severity, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_keeps_the_contract(name: str, images: Tensor) -> None:
    images = images[: shift.BLOCK]
    by_severity = [corrupt(images, name, severity) for severity in SEVERITIES]
    for y in by_severity:
        assert y.dtype == torch.uint8
        assert y.shape == images.shape
        assert (y != images).any()
    for severity in (1, 5):
        y = floats(images, name, severity)
        assert y.isfinite().all()
        assert y.min() >= -1e-5
        assert y.max() <= 1 + 1e-5
    distance = [(y.float() - images.float()).abs().mean().item() for y in by_severity]
    if name not in NOT_FARTHER:
        assert distance[4] > distance[0]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_image_depends_on_the_seed_and_not_on_what_follows_it(name: str, images: Tensor) -> None:
    whole = corrupt(images, name, 4, seed=3)
    assert torch.equal(whole, corrupt(images, name, 4, seed=3))
    assert torch.equal(whole[:270], corrupt(images[:270], name, 4, seed=3))
    assert torch.equal(whole[:7], corrupt(images[:7], name, 4, seed=3))
    chance = not torch.equal(whole, corrupt(images, name, 4, seed=4))
    sober = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur"}
    assert chance == (name not in sober | {"saturate"})


def test_names_and_arguments_are_checked(images: Tensor) -> None:
    assert len(CORRUPTIONS) == 19
    with pytest.raises(ValueError, match="did you mean 'fog'"):
        corrupt(images, "fogg", 1)
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity {severity} .* 1 .* 5"):
            corrupt(images, "fog", severity)
    with pytest.raises(ValueError, match="uint8"):
        corrupt(images / 255, "fog", 1)
    with pytest.raises(ValueError, match="28"):
        corrupt(images[..., :28, :28], "fog", 1)
    assert corrupt(images[:0], "fog", 1).shape == (0, 3, 32, 32)


def constant(value: float) -> Tensor:
    return torch.full((100, 3, 32, 32), value)


def test_noise_has_the_published_size() -> None:
    generator = torch.Generator().manual_seed(0)
    for severity, deviation in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1):
        x = CORRUPTIONS["gaussian_noise"](constant(0.5), severity, generator)
        assert x.mean().item() == pytest.approx(0.5, abs=1e-3)
        assert x.std().item() == pytest.approx(deviation, rel=0.01)
    for severity, deviation in enumerate((0.06, 0.1, 0.12, 0.16, 0.2), 1):
        x = CORRUPTIONS["speckle_noise"](constant(0.4), severity, generator)
        assert x.std().item() == pytest.approx(0.4 * deviation, rel=0.01)


def test_shot_noise_is_poisson() -> None:
    generator = torch.Generator().manual_seed(0)
    for severity, photons in enumerate((500, 250, 100, 75, 50), 1):
        for level in (0.1, 0.4):
            x = CORRUPTIONS["shot_noise"](constant(level), severity, generator)
            assert x.mean().item() == pytest.approx(level, rel=0.01)
            assert x.var().item() == pytest.approx(level / photons, rel=0.02)


def test_impulse_noise_is_salt_and_pepper() -> None:
    generator = torch.Generator().manual_seed(0)
    for severity, share in enumerate((0.01, 0.02, 0.03, 0.05, 0.07), 1):
        x = CORRUPTIONS["impulse_noise"](constant(0.5), severity, generator)
        for extreme in (0, 1):
            assert (x == extreme).float().mean().item() == pytest.approx(share / 2, rel=0.05)
        assert set(x.unique().tolist()) == {0, 0.5, 1}


def test_gaussian_blur_is_scipys(images: Tensor) -> None:
    for severity, sigma in enumerate((0.4, 0.6, 0.7, 0.8, 1.0), 1):
        expected = scipy.ndimage.gaussian_filter(images[:5].numpy() / 255, (0, 0, sigma, sigma), mode="nearest")
        np.testing.assert_allclose(floats(images[:5], "gaussian_blur", severity).numpy(), expected, atol=1e-5)


def test_mirrored_blur_is_scipys() -> None:
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = scipy.ndimage.gaussian_filter(x.numpy(), (0, 0, 6.4, 6.4), mode="reflect")
    blurred = filters.separable(x, filters.blurring(x, 6.4, mirror=True))
    torch.testing.assert_close(blurred.numpy(), expected, atol=1e-5, rtol=0)


def test_defocus_blur_of_a_point_is_its_disk() -> None:
    point = torch.zeros(1, 3, 32, 32)
    point[..., 16, 16] = 1
    blurred = CORRUPTIONS["defocus_blur"](point, 5, torch.Generator())[0, 0]
    # radius 1.5 covers 3 x 3 pixels, and a Gaussian of deviation 0.1 leaves them as they are
    expected = torch.zeros(32, 32)
    expected[15:18, 15:18] = 1 / 9
    torch.testing.assert_close(blurred, expected, atol=1e-6, rtol=0)


def test_glass_blur_only_moves_pixels() -> None:
    """At severity 1 the blur is none, so every pixel comes whole from the 2 x 2 that end in it."""
    number = torch.arange(1024.0).view(1, 1, 32, 32).expand(4, 3, 32, 32) / 1023
    source = (CORRUPTIONS["glass_blur"](number, 1, torch.Generator().manual_seed(0)) * 1023).round().long()
    assert torch.equal(source[:, 0], source[:, 1])
    up, left = filters.coordinates(number)[0] - source[:, 0] // 32, filters.coordinates(number)[1] - source[:, 0] % 32
    for back in (up, left):
        assert set(back.unique().tolist()) == {0, 1}
        assert not back[:, :2].any()
        assert not back[:, :, :2].any()
        assert back[:, 2:, 2:].float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_smear_is_a_loop_over_the_line() -> None:
    x = torch.rand(3, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    degrees = torch.tensor([-40.0, 17.0, -120.0])
    weights = np.exp(-0.5 * (np.arange(13) / 2) ** 2)
    expected = np.zeros((3, 2, 32, 32))
    for n, angle in enumerate(np.radians(degrees.numpy())):
        for step, weight in enumerate(weights / weights.sum()):
            row = np.clip(np.arange(32) + round(step * np.sin(angle)), 0, 31)
            column = np.clip(np.arange(32) + round(step * np.cos(angle)), 0, 31)
            expected[n] += weight * x[n].numpy()[:, row][:, :, column]
    torch.testing.assert_close(filters.smear(x, 6, 2, degrees).double().numpy(), expected, atol=1e-6, rtol=0)


def test_zoom_is_scipys() -> None:
    x = torch.rand(32, 32, generator=torch.Generator().manual_seed(0))
    for factor in (1.0, 1.07, 1.25, 1.75, 2.25):
        kept = int(np.ceil(32 / factor))
        top = (32 - kept) // 2
        zoomed = scipy.ndimage.zoom(x[top : top + kept, top : top + kept].numpy(), factor, order=1)
        trim = (len(zoomed) - 32) // 2
        expected = torch.from_numpy(zoomed[trim : trim + 32, trim : trim + 32])
        torch.testing.assert_close(filters.separable(x, filters.zooming(x, factor)), expected, atol=1e-5, rtol=0)


def test_plasma_is_seamless_and_fills_the_range() -> None:
    clouds = filters.plasma(torch.Generator().manual_seed(0), 200, 32, decay=1.75)
    assert torch.equal(clouds.amin((1, 2, 3)), torch.zeros(200))
    assert torch.equal(clouds.amax((1, 2, 3)), torch.ones(200))
    within = (clouds[..., 1:] - clouds[..., :-1]).abs().mean().item()
    seam = (clouds[..., 0] - clouds[..., -1]).abs().mean().item()
    assert seam == pytest.approx(within, rel=0.2)


def test_distance_is_scipys() -> None:
    mask = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(0)) < 0.02
    for found, of in zip(filters.distance_to(mask)[:, 0], mask[:, 0], strict=True):
        expected = torch.from_numpy(scipy.ndimage.distance_transform_edt(~of.numpy())).float()
        torch.testing.assert_close(found, expected)


def test_brightness_and_saturate_are_colorsys(images: Tensor) -> None:
    change = {
        "brightness": [(1, 0, value) for value in (0.05, 0.1, 0.15, 0.2, 0.3)],
        "saturate": [(0.3, 0, 0), (0.1, 0, 0), (1.5, 0, 0), (2, 0.1, 0), (2.5, 0.2, 0)],
    }
    for name, constants in change.items():
        for severity, (factor, offset, more) in enumerate(constants, 1):
            before, after = (
                x[:, :, ::11, ::11].movedim(1, 3).reshape(-1, 3).tolist()
                for x in (images[:40] / 255, floats(images[:40], name, severity))
            )
            for rgb, changed in zip(before, after, strict=True):
                hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
                expected = colorsys.hsv_to_rgb(hue, min(saturation * factor + offset, 1), min(value + more, 1))
                assert changed == pytest.approx(expected, abs=1e-5)


def test_contrast_is_its_formula(images: Tensor) -> None:
    x = images[:20].double().numpy() / 255
    mean = x.mean((2, 3), keepdims=True)
    for severity, factor in enumerate((0.75, 0.5, 0.4, 0.3, 0.15), 1):
        expected = np.clip((x - mean) * factor + mean, 0, 1)
        found = floats(images[:20], "contrast", severity).double().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_elastic_transform_moves_pixels_as_far_as_published() -> None:
    """An image of its own coordinates shows where each pixel came from."""
    ramp = torch.arange(32.0) / 31
    x = torch.stack((ramp.expand(32, 32), ramp[:, None].expand(32, 32), torch.zeros(32, 32))).expand(400, 3, 32, 32)
    for severity, alpha, sigma, shake in ((1, 0, 1, 2.56), (5, 3.2, 0.96, 0.96)):
        y = CORRUPTIONS["elastic_transform"](x, severity, torch.Generator().manual_seed(0))
        corner = (y - x)[:, :2, 26, 26] * 31
        # uniform noise of variance 1/3, blurred in two dimensions by a Gaussian
        gain = (filters.blurring(x, sigma, mirror=True)[16] ** 2).sum()
        expected = (shake**2 / 3 + alpha**2 / 3 * gain**2).sqrt()
        assert corner.std().item() == pytest.approx(expected.item(), rel=0.1)


def test_pixelate_is_pillows(images: Tensor) -> None:
    for severity, size in enumerate((30, 28, 27, 24, 20), 1):
        for before, after in zip(images[:10], corrupt(images[:10], "pixelate", severity), strict=True):
            image = Image.fromarray(before.permute(1, 2, 0).numpy())
            expected = image.resize((size, size), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
            assert np.abs(after.permute(1, 2, 0).int().numpy() - np.asarray(expected, dtype=int)).max() <= 1


def pillow_jpeg(x: Tensor, quality: int) -> Tensor:
    buffer = io.BytesIO()
    Image.fromarray(x.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(buffer))).permute(2, 0, 1)


def test_jpeg_is_pillows(images: Tensor) -> None:
    noisy = corrupt(images[:100], "speckle_noise", 5)
    for severity, quality in enumerate((80, 65, 58, 50, 40), 1):
        for x in (images[:100], noisy):
            expected = torch.stack([pillow_jpeg(image, quality) for image in x]).float()
            y = corrupt(x, "jpeg_compression", severity).float()
            assert (y - expected).abs().mean() < 0.5
            assert (y - expected).abs().mean() < 0.1 * (x - expected).abs().mean()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_and_frost_lie_over_the_image(severity: int, images: Tensor) -> None:
    """On black they show themselves: fog has no colour, ice is bluish, and no two images have the same."""
    black = torch.zeros_like(images[:20])
    black[..., 0, 0] = 255  # fog is as bright as the image's brightest point
    foggy, icy = (corrupt(black, name, severity)[..., 1:, 1:].float() for name in ("fog", "frost"))
    assert torch.equal(foggy[:, 0], foggy[:, 2])
    assert (icy[:, 2] >= icy[:, 0]).all()
    for veil in (foggy, icy):
        assert veil.std((1, 2, 3)).min() > 4
        assert (veil[0] != veil[1]).float().mean() > 0.5


def test_rotation_by_right_angles_is_exact(images: Tensor) -> None:
    digits = images[:50, :1, :28, :28]
    for turns in range(-4, 5):
        assert torch.equal(rotate(digits, 90 * turns), digits.rot90(turns, (2, 3)))


def test_rotation_is_scipys() -> None:
    x = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    x[..., 6:20, 9:23] = torch.arange(196, dtype=torch.uint8).view(14, 14)
    for degrees in ROTATIONS:
        expected = scipy.ndimage.rotate(x[0, 0].double().numpy(), degrees, reshape=False, order=1, prefilter=False)
        assert np.abs(rotate(x, degrees)[0, 0].double().numpy() - expected).max() <= 0.6
    with pytest.raises(ValueError, match="uint8"):
        rotate(x.float(), 15)


def test_translation_is_exact(images: Tensor) -> None:
    digits = images[:50, :1, :28, :28]
    for pixels in TRANSLATIONS:
        moved = translate(digits, pixels)
        assert moved.shape == digits.shape
        assert torch.equal(moved[..., pixels:], digits[..., :-pixels])
        assert not moved[..., :pixels].any()
        assert torch.equal(translate(moved, -pixels)[..., :-pixels], digits[..., :-pixels])


def test_real_images_keep_the_contract(data_root: Path) -> None:
    """Photographs have texture, which soft shapes lack."""
    table = pq.read_table(data_root / "cifar10" / "test-00000-of-00001.parquet").slice(0, 100)
    files = [image["bytes"] for image in table["image"].to_pylist()]
    x = torch.from_numpy(np.stack([np.array(Image.open(io.BytesIO(file))) for file in files])).permute(0, 3, 1, 2)
    for name in CORRUPTIONS:
        mild, severe = ((corrupt(x, name, severity).float() - x).abs().mean().item() for severity in (1, 5))
        assert severe > mild or name in NOT_FARTHER
        assert mild > 0.5
    expected = torch.stack([pillow_jpeg(image, 40) for image in x]).float()
    assert (corrupt(x, "jpeg_compression", 5) - expected).abs().mean() < 0.5
