"""Synthetic outliers are what their definitions say: against slow references, image by image."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from demur.outliers.noise import Mixed, far_away, smooth, uniform
from demur.outliers.synthetic import FromInliers, smooth_noise, uniform_noise
from demur.training_data import Fixed


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, channels: int = 1, size: int = 28) -> Tensor:
    """More dark pixels than bright ones."""
    x = torch.rand(count, channels, size, size, generator=generator(99))
    return (255 * x**2).to(torch.uint8)


def one_smooth_image(image: Tensor, order: np.ndarray, sigma: float, gain: float) -> np.ndarray:
    """The definition, for (C, H, W) and given draws."""
    channels = []
    for channel in image.numpy() / 255:
        permuted = channel.reshape(-1)[order].reshape(channel.shape)
        blurred = gaussian_filter(permuted, sigma, mode="reflect", truncate=4.0)
        channels.append(1 / (1 + np.exp(-gain * (blurred - 0.5))))
    return 255 * np.stack(channels)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_smooth_noise_is_the_slow_references(channels: int, size: int) -> None:
    x = images(200, channels, size)
    draws = generator(3)
    order = torch.rand(len(x), 1, size * size, generator=draws).argsort(-1)[:, 0].numpy()
    sigma = 1 + 1.5 * torch.rand(len(x), generator=draws)
    gain = 5 + 25 * torch.rand(len(x), generator=draws)
    made = smooth(x, generator(3)).numpy().astype(float)
    for i in range(len(x)):
        assert np.abs(made[i] - one_smooth_image(x[i], order[i], float(sigma[i]), float(gain[i]))).max() <= 1


def test_smooth_noise_has_the_statistics_of_its_definition() -> None:
    x = images(1000)
    rng = np.random.default_rng(0)
    slow = [one_smooth_image(p, rng.permutation(28 * 28), rng.uniform(1, 2.5), rng.uniform(5, 30)) for p in x]
    for made in (smooth(x, generator()), smooth(x, generator(1))):
        for statistic in (mean, contrast, roughness):
            of_slow, of_made = statistic(np.stack(slow)), statistic(made.numpy().astype(float))
            error = np.hypot(of_slow.std(), of_made.std()) / np.sqrt(len(x))
            assert abs(of_slow.mean() - of_made.mean()) < 4 * error
            np.testing.assert_allclose(
                np.quantile(of_made, (0.1, 0.5, 0.9)), np.quantile(of_slow, (0.1, 0.5, 0.9)), rtol=0.15
            )


def mean(x: np.ndarray) -> np.ndarray:
    return x.mean((1, 2, 3))


def contrast(x: np.ndarray) -> np.ndarray:
    return x.std((1, 2, 3))


def roughness(x: np.ndarray) -> np.ndarray:
    """The mean step between neighbours, in units of the contrast: what sigma decides."""
    return np.abs(np.diff(x, axis=3)).mean((1, 2, 3)) / contrast(x)


def test_all_channels_are_permuted_alike() -> None:
    made = smooth(images(50).expand(-1, 3, -1, -1), generator())
    assert torch.equal(made[:, 0], made[:, 1])
    assert torch.equal(made[:, 0], made[:, 2])


def test_smooth_noise_goes_by_its_generator_and_is_made_anew_each_epoch() -> None:
    source, draws = FromInliers(images(20), smooth_noise), generator()
    first, second = source.epoch(draws), source.epoch(draws)
    assert first.shape == source.shape
    assert first.dtype == torch.uint8
    assert not torch.equal(first, second)
    assert torch.equal(first, smooth(images(20), generator()))


def test_uniform_noise_has_every_grey_value_alike_and_far_away_is_5000_times_that() -> None:
    made = uniform(400, (3, 32, 32), generator())
    counts = torch.bincount(made.flatten().int(), minlength=256).double()
    expected = made.numel() / 256
    assert ((counts - expected).abs() < 5 * expected**0.5).all()
    far = far_away(made)
    assert (far.min(), far.max()) == (0, 5000)
    torch.testing.assert_close(far, made.float() * (5000 / 255))
    source = FromInliers(torch.zeros(400, 3, 32, 32, dtype=torch.uint8), uniform_noise)
    assert torch.equal(source.epoch(generator()), made)


def test_a_mix_has_equal_parts_and_the_parts_are_drawn_anew() -> None:
    first, second = torch.arange(30)[:, None], torch.arange(100, 150)[:, None]
    mixed, draws = Mixed((Fixed(first), Fixed(second))), generator()
    epochs = [mixed.epoch(draws).flatten().tolist() for _ in range(2)]
    assert mixed.shape == (60, 1)
    for epoch in epochs:
        assert sorted(epoch[:30]) == list(range(30))
        assert len(set(epoch[30:])) == 30
        assert set(epoch[30:]) <= set(range(100, 150))
    assert set(epochs[0][30:]) != set(epochs[1][30:])
