"""Sharpness is what its definition says, can be matched, and alone tells what differs in nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from scipy.ndimage import gaussian_filter
from torch import Tensor

from demur.audit import Audit, Overlap, inputs
from demur.classifier.fitting import warn_if_sharpness_tells
from demur.outliers.noise import Mixed, uniform
from demur.outliers.sharpness import Sharpness, sharpness
from demur.outliers.spectrum import Matched, mean_power
from demur.report.sharpness import draw_sharpness
from demur.tasks.base import Task, TestData
from demur.training_data import Fixed, Split, TrainingData

CLASSES = ("one", "other")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def grey_blurs(count: int, sigma: float, size: tuple[int, int, int] = (3, 32, 24)) -> Tensor:
    """Blurred noise around middle grey, far from black and white."""
    noise = np.random.default_rng(int(10 * sigma)).normal(size=(count, *size))
    blurred = gaussian_filter(noise, (0, 0, sigma, sigma))
    level = np.linspace(110, 150, count)[:, None, None, None]
    return torch.from_numpy(level + 15 * blurred / blurred.std()).round().to(torch.uint8)


def test_the_power_of_a_frequency_is_scipys() -> None:
    x = uniform(5000, (1, 9, 9), generator())  # more than fit into a chunk
    torch.testing.assert_close(
        mean_power(x), torch.from_numpy((dctn(x.numpy() / 255, axes=(2, 3), norm="ortho") ** 2).mean((0, 1))).float()
    )


@pytest.mark.parametrize(("inside", "outside"), [(2.0, 0.7), (0.7, 2.0)])
def test_matched_outliers_have_the_inliers_power_and_their_own_brightness(inside: float, outside: float) -> None:
    power, sharp = mean_power(grey_blurs(300, inside)), grey_blurs(200, outside)
    source = Matched(Fixed(sharp), power)
    made = source.epoch(generator())
    assert (made.shape, made.dtype) == (source.shape, torch.uint8)
    seen = power > 1 / 255**2  # twelve times what rounding adds
    assert seen.sum() > 50
    seen[0, 0] = False
    torch.testing.assert_close(mean_power(made)[seen], power[seen], rtol=0.2, atol=0)
    assert (mean_power(sharp)[seen] / power[seen]).log().abs().mean() > 0.5
    torch.testing.assert_close(made.float().mean((2, 3)), sharp.float().mean((2, 3)), rtol=0, atol=0.1)
    standardised = (sharp.float() - 130) / 15
    again = Matched(Fixed(standardised), mean_power((grey_blurs(300, inside).float() - 130) / 15)).epoch(generator())
    assert again.aminmax().min >= standardised.min()
    assert again.aminmax().max <= standardised.max()
    torch.testing.assert_close(again * 15 + 130, made.float(), rtol=0, atol=20)
    assert ((again * 15 + 130 - made).abs() < 1.01).float().mean() > 0.99


def test_flat_images_stay_flat() -> None:
    flat = torch.linspace(0, 255, 20).round().to(torch.uint8)[:, None, None, None].expand(-1, 3, 28, 28)
    made = Matched(Fixed(flat), mean_power(grey_blurs(50, 1.0, (3, 28, 28)))).epoch(generator())
    assert (made.int() - flat).abs().max() <= 1


def grey_noise(count: int, seed: int, sigma: float) -> Tensor:
    noise = gaussian_filter(np.random.default_rng(seed).normal(size=(count, 1, 16, 16)), (0, 0, sigma, sigma))
    return torch.from_numpy(128 + 30 * noise / noise.std()).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("matched", [False, True])
def test_outliers_that_differ_in_sharpness_alone_are_told_by_it_until_they_are_matched(
    matched: bool, tmp_path: Path
) -> None:
    soft, softer, sharp, sharper = (
        grey_noise(800, seed, sigma) for seed, sigma in ((0, 0.8), (1, 0.8), (2, 0.4), (3, 0.4))
    )
    outliers = Matched(Fixed(sharp), mean_power(soft)) if matched else Fixed(sharp)
    y = torch.zeros(800, dtype=torch.long)
    ood = {"soft": grey_noise(800, 4, 0.8), "sharp": sharper, "far": 5000 * sharp.float()}
    test = Split(softer, y)
    task = Task(
        "planted", CLASSES, TrainingData(Split(soft, y), test, outliers), TestData(test, ood), trained_with="sharp"
    )
    found = {row.set: row for row in sharpness(inputs(task))}
    assert set(found) == {"outliers", "soft", "sharp"}
    assert found["soft"].auroc == pytest.approx(0.5, abs=0.05)
    named = Overlap("sharp", (), 0, 0, 800, True)
    told = Audit("planted", "smooth+sharp", (), (named,), sharpness=tuple(found.values())).lines()[-1]
    if matched:
        assert found["outliers"].auroc < 0.65
        assert "sharpness alone tells" not in told
    else:
        assert found["outliers"] == Sharpness("outliers", 1.0, 0.0)
        assert found["sharp"] == Sharpness("sharp", 1.0, 0.0)
        assert told.endswith("if some are as sharp as the inliers: --outliers smooth+sharp+sharp_spectrum_matched")
    draw_sharpness(task, tmp_path / "sharpness.png")
    assert (tmp_path / "sharpness.png").stat().st_size > 10_000


def test_the_sharpness_of_a_mix_is_that_of_all_its_parts() -> None:
    soft, others, sharp = grey_noise(6000, 0, 0.8), grey_noise(800, 1, 0.8), grey_noise(6000, 2, 0.4)
    y = torch.zeros(800, dtype=torch.long)
    inside = Split(others[:400], y[:400]), Split(others[400:], y[:400])
    found = []
    for parts in ((soft, sharp), (sharp, soft)):  # more than are looked at
        data = TrainingData(inside[0], inside[1], Mixed(tuple(map(Fixed, parts))))
        task = Task("planted", CLASSES, data, TestData(inside[1], {}))
        found.append(sharpness(inputs(task))[0].auroc)
    assert found == pytest.approx([0.75, 0.75], abs=0.05)


def test_of_large_images_the_middle_tells(recwarn: pytest.WarningsRecorder) -> None:
    generator = torch.Generator().manual_seed(0)
    sharp, others = (torch.randint(256, (60, 3, 100, 130), dtype=torch.uint8, generator=generator) for _ in range(2))
    warn_if_sharpness_tells(sharp, others)
    assert not recwarn
    soft = torch.nn.functional.avg_pool2d(others.float(), 3, stride=1, padding=1).to(torch.uint8)
    soft[:, :, :18], soft[..., :33] = others[:, :, :18], others[..., :33]  # only there
    with pytest.warns(UserWarning, match="sharpness alone tells"):
        warn_if_sharpness_tells(sharp, soft)
