"""Synthetic outliers keep what is cheap to recognise and break what the classes are made of."""

import pytest
import torch

from demur.classifier.fitting import outliers_in
from demur.outliers.synthetic import (
    BY_DEFAULT,
    independent_columns,
    joined_halves,
    shuffled_patches,
    shuffled_words,
    smooth_noise,
    widened_box,
)
from demur.outliers.values import (
    Given,
    Mix,
    Natural,
    SpectrumMatched,
    Synthetic,
    build,
    given,
    leaves,
    mix,
    natural,
    parse,
    sets_of,
    spectrum_matched,
    synthetic,
)
from demur.training_data import Fixed

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(200, 1, generator=GENERATOR) * torch.tensor([1.0, 2.0, -1.0])  # columns that go together
IMAGES = torch.randint(256, (6, 3, 10, 13), generator=GENERATOR, dtype=torch.uint8)
TOKENS = torch.tensor([[0, 0, 5], [0, 6, 7], [8, 9, 10]])


def test_columns_keep_their_values_and_lose_their_company():
    made = independent_columns(ROWS, GENERATOR)
    assert torch.equal(made.sort(0).values, ROWS.sort(0).values)
    assert torch.corrcoef(made.T).fill_diagonal_(0).abs().max() < 0.3


def test_the_box_is_twice_as_wide_as_the_rows():
    made = torch.cat([widened_box(ROWS, GENERATOR) for _ in range(50)])
    low, high = ROWS.amin(0), ROWS.amax(0)
    torch.testing.assert_close(made.mean(0), (low + high) / 2, atol=0.1, rtol=0)
    torch.testing.assert_close(made.amin(0), low - (high - low) / 2, atol=0.02, rtol=0.02)
    torch.testing.assert_close(made.amax(0), high + (high - low) / 2, atol=0.02, rtol=0.02)


def test_patches_are_moved_whole():
    made = shuffled_patches(IMAGES, GENERATOR)
    assert not torch.equal(made, IMAGES)

    def patches(x):  # 10x13 has five by six patches of 2x2, and a column left over
        return x[:, :, :, :12].unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(6, 30, 12)

    for before, after in zip(patches(IMAGES), patches(made), strict=True):
        assert sorted(before.tolist()) == sorted(after.tolist())
    assert torch.equal(made[:, :, :, 12:], IMAGES[:, :, :, 12:])


def test_halves_are_of_two_images_and_stay_where_they_were():
    images = torch.arange(200, dtype=torch.uint8).reshape(200, 1, 1, 1).expand(200, 3, 10, 13)
    made = joined_halves(images, GENERATOR)
    assert made.dtype == torch.uint8
    first, last = made[:, 0, 0, 0], made[:, 0, -1, -1]
    assert torch.equal(first, images[:, 0, 0, 0])
    assert sorted(last.tolist()) == list(range(200))  # every image gives each of its halves once
    upright = made[:, 0, 0, -1] == last  # left and right: the upper right corner is the other's
    assert 70 < upright.sum() < 130
    for one, is_upright in zip(made, upright, strict=True):
        own = one[:, :, :6] if is_upright else one[:, :5]
        other = one[:, :, 6:] if is_upright else one[:, 5:]
        assert own.unique().tolist() == [one[0, 0, 0].item()]
        assert other.unique().tolist() == [one[0, -1, -1].item()]


def test_smooth_noise_has_the_images_type_and_range():
    assert smooth_noise(IMAGES, GENERATOR).dtype == torch.uint8
    floats = 3 * torch.rand(4, 1, 16, 16, generator=GENERATOR) - 2
    made = smooth_noise(floats, GENERATOR)
    assert made.dtype == torch.float32
    assert floats.min() <= made.min() < -1
    assert 0 < made.max() <= floats.max()


def test_words_are_dealt_out_anew_and_padding_stays():
    made = shuffled_words(TOKENS, GENERATOR)
    assert torch.equal(made == 0, TOKENS == 0)
    assert sorted(made.flatten().tolist()) == sorted(TOKENS.flatten().tolist())
    assert not torch.equal(made, TOKENS)


def mirrored(rows, generator):
    return -rows


def test_a_function_of_ones_own_is_a_source():
    source = build(synthetic(f"{__name__}:mirrored"), "tables", ROWS)
    assert source.shape == ROWS.shape
    assert torch.equal(source.to("cpu").epoch(GENERATOR), -ROWS)


@pytest.mark.parametrize(("kind", "inliers"), [("tables", ROWS), ("images", IMAGES), ("texts", TOKENS)])
def test_every_kind_is_made_anew_each_epoch(kind, inliers):
    source = build(parse(BY_DEFAULT[kind]), kind, inliers)
    first, second = (source.epoch(GENERATOR) for _ in range(2))
    assert first.shape == source.shape
    assert (first.shape[1:], first.dtype) == (inliers.shape[1:], inliers.dtype)
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="unknown synthetic outliers"):
        build(parse("smoke"), kind, inliers)


# values -------------------------------------------------------------------------------------------------------------

VALUES = {
    "given": given(),
    "patches": synthetic("patches"),
    "tiny_imagenet32+patches": mix(natural("tiny_imagenet32"), synthetic("patches")),
    "a_spectrum_matched+smooth+halves": mix(spectrum_matched(natural("a")), synthetic("smooth", "halves")),
    "spectrum_matched": spectrum_matched(given()),
    "mine.sources:fog": Synthetic("mine.sources:fog"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_name_and_its_value_are_one(name):
    assert parse(name) == VALUES[name]
    assert str(VALUES[name]) == name


@pytest.mark.parametrize("name", ["given", "given+spectrum_matched+box", "columns+box"])
@pytest.mark.parametrize("count", [0, 48])
def test_a_report_tells_what_was_shown(name, count):
    stated = f"{count} {name}" if count else name
    assert outliers_in({"outliers": stated}) == (count, list(leaves(parse(name))))
    assert outliers_in({"outliers": "none"}) == outliers_in({}) == (0, [])


def test_names_people_may_also_write():
    assert parse("spectrum_matched") == SpectrumMatched(Given())
    assert parse("a_spectrum_matched") == SpectrumMatched(Natural("a"))


def test_mixes_are_flat():
    assert mix(mix(natural("a"), natural("b")), natural("c")) == Mix((Natural("a"), Natural("b"), Natural("c")))
    assert mix(natural("a")) == Natural("a")
    with pytest.raises(ValueError, match="no outliers"):
        mix()


def test_the_sets_of_a_name():
    assert sets_of("a+b_spectrum_matched+a+patches") == ("a", "b", "patches")
    assert sets_of(None) == ()


def test_values_become_sources():
    shown = torch.randint(256, (6, 3, 10, 13), dtype=torch.uint8)
    value = mix(given(), natural("night"), synthetic("patches"))
    source = build(value, "images", IMAGES, given=shown, store={"night": Fixed(shown[:4])}.__getitem__)
    assert source.shape == (12, 3, 10, 13)  # as many of each as the fewest
    assert torch.equal(source.sources[0].x, shown)
    matched = build(spectrum_matched(given()), "images", IMAGES, given=shown)
    assert isinstance(matched, Fixed)
    with pytest.raises(ValueError, match="made from real ones, and there are none"):
        build(given(), "images", IMAGES)
    with pytest.raises(ValueError, match="unknown synthetic outliers for tables 'patches'"):
        build(synthetic("patches"), "tables", ROWS)
