"""The audit finds what was planted, and nothing where nothing was."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from demur.audit import Duplicates, audit, image_duplicates, inputs
from demur.audit.duplicates import near_duplicates
from demur.audit.typography import features, leaks
from demur.data.store import Store
from demur.outliers.noise import Mixed, smooth, uniform
from demur.outliers.overlap import overlapping_classes, read_class_names, read_known_overlap
from demur.outliers.spectrum import Matched, mean_power
from demur.tasks.base import Task, TestData
from demur.tasks.text import sst
from demur.training_data import Fixed, Split, TrainingData
from tests.conftest import changed

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture(scope="session")
def images(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    store = Store(data_root, cache=tmp_path_factory.mktemp("decoded"))
    return {name: store.images(name, "test")[0] for name in ("cifar10", "cifar100")}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def one_pixel_replaced(x: Tensor) -> Tensor:
    row, column = torch.randint(32, (2, len(x)), generator=generator())
    x = x.clone()
    x[torch.arange(len(x)), :, row, column] = uniform(len(x), (3,), generator())
    return x


def one_level_noise(x: Tensor) -> Tensor:
    return (x.int() + torch.randint(-1, 2, x.shape, generator=generator())).clamp(0, 255).to(torch.uint8)


def test_all_planted_duplicates_are_found_and_no_others(images: dict[str, Tensor]) -> None:
    inside, outside = images["cifar10"], images["cifar100"]
    planted = torch.randperm(len(inside), generator=generator())[:150]
    noisy, grainy, copied = planted[:100], planted[100:130], planted[130:]
    shown = torch.cat([outside, one_pixel_replaced(inside[noisy]), one_level_noise(inside[grainy]), inside[copied]])
    y = torch.zeros(len(inside), dtype=torch.long)
    train, test = Split(inside[:3000], y[:3000]), Split(inside[3000:], y[3000:])
    task = Task(
        "planted",
        CIFAR10,
        TrainingData(train, Split(train.x[:1], y[:1]), Fixed(shown)),
        TestData(test, {"cifar100": outside[:500]}),
    )
    found = {row.set: row for row in image_duplicates(task)}
    near = {*found["train"].near, *(index + 3000 for index in found["test"].near)}
    exact = {*found["train"].exact, *(index + 3000 for index in found["test"].exact)}
    in_both = {9345}  # of CIFAR-10's test images, one is also CIFAR-100's
    assert near == {*planted.tolist(), *in_both}
    assert exact == {*copied.tolist(), *in_both}
    assert found["cifar100"].exact == tuple(range(500))


def test_matched_copies_are_found_in_what_they_were(images: dict[str, Tensor]) -> None:
    inside, outside = images["cifar10"][:500], images["cifar100"][:500]
    shown = torch.cat([outside, inside[:50]])
    y = torch.zeros(len(inside), dtype=torch.long)
    split = Split(inside, y)
    soft = Matched(Fixed(shown), mean_power(smooth(inside, generator())))
    for outliers, least in ((soft, 50), (Mixed((Fixed(outside), soft)), 40)):  # a mix takes 500 of its 550
        found = image_duplicates(Task("planted", CIFAR10, TrainingData(split, split, outliers), TestData(split, {})))[
            0
        ].exact
        assert set(found) <= set(range(50))
        assert len(found) >= least


def test_a_shift_by_a_pixel_is_mostly_found(images: dict[str, Tensor]) -> None:
    x = images["cifar10"][:1000]
    pairs = near_duplicates(x, x.roll(1, dims=3))
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert len(pairs) > 950


def test_pairs_are_the_right_ones_across_blocks() -> None:
    x = smooth(uniform(5000, (3, 12, 12), generator()), generator())
    outliers = uniform(9000, (3, 12, 12), generator())
    place = torch.randperm(9000, generator=generator())[:5000]
    outliers[place] = x
    assert sorted(near_duplicates(x, outliers).tolist()) == [[i, int(place[i])] for i in range(5000)]


def test_noise_has_no_duplicates_and_flat_images_have_only_equals() -> None:
    first, second = (uniform(2000, (3, 32, 32), torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert len(near_duplicates(first, second)) == 0
    assert len(near_duplicates(smooth(first, generator()), smooth(second, generator()))) == 0
    flat = torch.tensor([0, 100, 200], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 28, 28)
    assert near_duplicates(flat, flat).tolist() == [[0, 0], [1, 1], [2, 2]]


def test_duplicates_say_what_they_do_to_the_figures() -> None:
    row = Duplicates("cifar100", 10_000, tuple(range(37)), ())
    assert row.line().startswith("37 of 10,000 inputs of cifar100")
    assert row.line().endswith("FPR95 on it can be too low by at most 0.37 points")


def test_overlap_by_words() -> None:
    outliers = ["goldfish, Carassius", "bullfrog", "tabby, tabby cat", "birdhouse", "fire truck", "poodle", "7"]
    assert overlapping_classes(outliers, CIFAR10) == [1, 2, 4]
    assert overlapping_classes(outliers, tuple("0123456789")) == [6]
    assert overlapping_classes(["lawn mower, mower", "crate"], ["lawn_mower", "rat"]) == [0]
    assert overlapping_classes(outliers, CIFAR10, {"dog": ["poodle"]}) == [5]


def test_overlap_of_cifar10_as_listed(data_root: Path) -> None:
    folder = data_root / "tiny_imagenet32"
    names = read_class_names(folder)
    found = overlapping_classes(names, CIFAR10, read_known_overlap(folder, "cifar10"))
    assert len(found) == 23
    assert {"bullfrog, Rana catesbeiana", "Chihuahua", "moving van"} <= {names[index] for index in found}


def test_a_planted_casing_leak_has_auroc_one() -> None:
    inside = ["The film is good", "Bad films , all"]
    known = {"the", "film"}
    values = {
        "test": features(map(str.split, inside), known),
        "snli": features((text.lower().split() for text in inside), known),
    }
    rows = {row.feature: row for row in leaks("raw", values)}
    assert rows["upper case"].auroc == 1
    assert rows["upper case"].flagged
    assert rows["upper case"].outside == 0
    assert rows["length"].auroc == rows["punctuation"].auroc == 0.5
    assert rows["unknown words"].inside == pytest.approx((3 / 4 + 1) / 2)


def test_auroc_of_a_feature_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, (30, 5)), rng.integers(2, 12, (40, 5))
    for column, row in enumerate(leaks("raw", {"train": inside, "outliers": outside})):
        difference = outside[:, None, column] - inside[None, :, column]
        assert row.auroc == pytest.approx((difference > 0).mean() + 0.5 * (difference == 0).mean())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    def add(name: str, split: str, texts: list[str], labels: list[int] | None = None) -> None:
        columns = {"text": texts} if labels is None else {"text": texts, "label": labels}
        store.write(name, split, [pa.table(columns)], "a test")

    store = Store(tmp_path)
    reviews = ["A Good Film , A Very Good One .", "A Bad Film , A Very Bad One ."] * 4
    add("sst", "train", reviews, [1, 0] * 4)
    add("sst", "validation", reviews[:2], [1, 0])
    add("sst", "test", reviews[:2], [1, 0])
    add("wikitext2", "train", ["a good one , a very bad film"] * 9)
    add("snli", "test", ["a very good one is a bad film", "a good film a very good one"])
    return store


def test_levelling_closes_what_two_tokenizers_leave_open(store: Store) -> None:
    def upper_case(inside: str, outside: str) -> dict[tuple[str, str], float]:
        found = audit(sst(store, inside=inside, outside=outside), store, inside=inside)
        return {(row.stage, row.set): row.auroc for row in found.leaks if row.feature == "upper case"}

    normalised = upper_case("normalised", "normalised")
    assert normalised["raw", "snli"] == normalised["raw", "outliers"] == 1
    assert normalised["tokens", "snli"] == normalised["tokens", "outliers"] == 0.5
    assert upper_case("cased", "lowered")["tokens", "snli"] == 1


def test_text_audit_counts_equal_sentences_and_speaks(store: Store) -> None:
    task = sst(store)
    shown = torch.cat([task.training.outliers.epoch(torch.Generator()), task.testing.ood["snli"][1:]])
    task = changed(task, outliers=Fixed(shown))
    found = audit(task, store)
    assert {row.set: row.near for row in found.duplicates}["snli"] == (1,)
    text = "\n".join(found.lines())
    assert "snli: anything that sees the raw text can reach AUROC 100.0 by upper case alone" in text
    assert "1 of 2 inputs of snli (1 exactly)" in text
    assert set(inputs(task)) == {"train", "test", "outliers", "snli"}
    with pytest.raises(ValueError, match="without limit"):
        audit(sst(store, limit=3), store)
