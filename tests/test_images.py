"""The paper's image tasks: which sets go with which, what is done to images, and that none is in two splits."""

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import Tensor

from demur.data.catalogue import CATALOGUE
from demur.data.formats import to_png
from demur.data.store import MissingData, Store, image_column
from demur.networks import as_input
from demur.outliers.noise import Mixed, smooth
from demur.outliers.spectrum import Matched, mean_power
from demur.paper.grid import SETTINGS, setting
from demur.streams import generator_for
from demur.tasks import IMAGES, TASKS, load
from demur.tasks.augment import Jitter
from demur.tasks.images import (
    CroppedOrResized,
    draw_ood,
    fashion_mnist,
    fit_images,
    image_task,
    mnist,
    natural_outliers,
    shows_class_of,
    to_train_with,
)
from demur.training_data import Fixed

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "tables.csv"
GREY, COLOUR = torch.Size((1, 28, 28)), torch.Size((3, 32, 32))
ANIMALS = ("tabby, tabby cat", "goldfish", "tailed frog, bell toad", "desk")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(256, (count, *shape), generator=generator(seed), dtype=torch.uint8)


def write(store: Store, name: str, split: str, count: int, labels: int) -> None:
    known = CATALOGUE[name]
    pixels = random_images(count, known.shape or (), seed=sum(map(ord, name + split))).permute(0, 2, 3, 1).numpy()
    y = [known.first_label + i % labels for i in range(count)]
    columns = {"image": image_column(map(to_png, pixels)), "label": y}
    store.write(name, split, [pa.table(columns)], "a test")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A few random images of every set; the outliers have four classes, two of which are also CIFAR-10's."""
    store = Store(tmp_path_factory.mktemp("whole"))
    for name in IMAGES:
        write(store, name, "train", 70, 10)
        write(store, name, "test", 40, 10)
    write(store, "kmnist", "test", 30, 10)
    write(store, "emnist_letters", "test", 30, 1)
    write(store, "lsun_classroom", "test", 12, 1)
    write(store, "tiny_imagenet32", "train", 50, 4)
    names = {"wnids_sorted": ["a", "b", "c", "d"], "words": dict(zip("abcd", ANIMALS, strict=True))}
    (store.root / "tiny_imagenet32/classes.json").write_text(json.dumps(names))
    return store


@pytest.fixture
def store(whole: Store, tmp_path: Path) -> Store:
    """A copy, to take things from."""
    shutil.copytree(whole.root, tmp_path / "copy")
    return Store(tmp_path / "copy")


def rows(x: Tensor) -> list[bytes]:
    return [row.tobytes() for row in x.numpy()]


# which sets


@pytest.mark.parametrize("name", IMAGES)
def test_ood_sets_are_the_papers_and_far_away(whole: Store, name: str) -> None:
    if not PAPER.exists():
        pytest.skip(f"the paper's tables are not at {PAPER}")
    lines = csv.DictReader(PAPER.read_text().splitlines())
    pairs = {(line["in_data"], line["ood_data"]) for line in lines if line["table"] == "mmc"}
    task = image_task(name, whole)
    assert set(task.testing.ood) == {ood for inside, ood in pairs if inside == name and ood != name} | {"far_away"}
    assert task.missing == ()
    assert all((x.dtype == torch.uint8) == (ood != "far_away") for ood, x in task.testing.ood.items())
    assert task.classes == CATALOGUE[name].classes


def test_smooth_noise_to_test_with_is_made_from_the_test_images(whole: Store) -> None:
    task = mnist(whole)
    draws = generator_for("test noise")
    torch.randint(256, (40, *GREY), generator=draws, dtype=torch.uint8)  # the uniform noise comes first
    assert torch.equal(task.testing.ood["smooth"], smooth(draw_ood(task.testing.test.x), draws))
    assert torch.equal(task.testing.ood["far_away"], 5000 * (task.testing.ood["uniform"] / 255))


def test_what_is_missing_is_named_and_what_stands_in_is_called_by_its_name(store: Store) -> None:
    shutil.rmtree(store.root / "cifar100")
    (store.root / "lsun_classroom").rename(store.root / "places_classroom")
    task = load("cifar10", store=store)
    assert task.missing == ("cifar100",)
    assert set(task.testing.ood) == {"svhn", "places_classroom", "fashion_mnist_rgb", "uniform", "smooth", "far_away"}
    assert task.notes == {
        "places_classroom": "stands in for lsun_classroom",
        "tiny_imagenet32": "stands in for imagenet32",
    }
    shutil.rmtree(store.root / "places_classroom")
    assert load("cifar10", store=store).missing == ("lsun_classroom", "cifar100")


def test_at_most_10000_inputs_always_the_same() -> None:
    x = torch.arange(12_000)
    assert len(set(draw_ood(x).tolist())) == 10_000
    assert torch.equal(draw_ood(x), draw_ood(x))
    assert sorted(draw_ood(x[:50]).tolist()) == list(range(50))


# splits


@pytest.mark.parametrize(
    ("validation", "sizes"),
    [("train", {"train": 63, "validation": 7, "test": 40}), ("test", {"train": 63, "validation": 4, "test": 36})],
)
def test_every_image_is_in_one_split_with_its_label(whole: Store, validation: str, sizes: dict[str, int]) -> None:
    for name in IMAGES:
        task = image_task(name, whole, validation=validation)  # type: ignore[arg-type]
        splits = {"train": task.training.train, "validation": task.training.validation, "test": task.testing.test}
        assert {split: len(data) for split, data in splits.items()} == sizes
        found = [pair for data in splits.values() for pair in zip(rows(data.x), data.y.tolist(), strict=True)]
        stored = [whole.images(name, split) for split in ("train", "test")]
        assert len({image for image, _ in found}) == sum(sizes.values())
        assert set(found) <= {pair for x, y in stored for pair in zip(rows(x), y.tolist(), strict=True)}  # type: ignore[union-attr]
        assert torch.equal(task.training.train.x, image_task(name, whole).training.train.x)  # networks can be shared
        held_out = whole.images(name, validation)[0]
        assert set(rows(task.training.validation.x)) < set(rows(held_out))


def test_test_images_keep_the_order_of_the_file_and_training_images_do_not(whole: Store) -> None:
    task = mnist(whole)
    assert torch.equal(task.testing.test.x, whole.images("mnist", "test")[0])
    assert task.training.train.y[:20].tolist() != [i % 10 for i in range(20)]
    assert torch.equal(task.training.train.x, mnist(whole).training.train.x)


def test_limit_keeps_the_first_training_images(whole: Store) -> None:
    task, limited = mnist(whole), mnist(whole, limit=20, outliers="smooth")
    assert torch.equal(limited.training.train.x, task.training.train.x[:20])
    assert torch.equal(limited.training.validation.x, task.training.validation.x)
    assert limited.training.outliers.shape == (20, 1, 28, 28)
    with pytest.raises(ValueError, match="limit 0 leaves nothing to train on"):
        mnist(whole, limit=0)
    with pytest.raises(ValueError, match="unknown split to validate with 'tset'; did you mean 'test'"):
        mnist(whole, validation="tset")  # type: ignore[arg-type]


# outliers to train with


def test_outliers_by_name(whole: Store) -> None:
    task = mnist(whole)
    assert isinstance(task.training.outliers, CroppedOrResized)
    assert task.training.outliers.shape == (50, 1, 28, 28)
    colour = image_task("svhn", whole).training.outliers
    assert isinstance(colour, Fixed)
    assert torch.equal(colour.x, whole.images("tiny_imagenet32", "train")[0])
    mixed = mnist(whole, outliers="tiny_imagenet32+smooth+uniform").training.outliers
    assert isinstance(mixed, Mixed)
    assert mixed.shape == (150, 1, 28, 28)
    assert mixed.epoch(generator()).shape == mixed.shape
    shuffled = mnist(whole, outliers="patches").training.outliers.epoch(generator())
    assert torch.equal(shuffled.flatten(1).sort(1).values, task.training.train.x.flatten(1).sort(1).values)
    assert not torch.equal(shuffled, task.training.train.x)
    matched = image_task("cifar10", whole, outliers="patches+tiny_imagenet32_spectrum_matched")
    assert isinstance(matched.training.outliers, Mixed)
    assert isinstance(matched.training.outliers.sources[1], Matched)
    assert torch.equal(matched.training.outliers.sources[1].power, mean_power(matched.training.train.x))
    assert matched.notes["tiny_imagenet32"] == "stands in for imagenet32"
    with pytest.raises(ValueError, match="unknown outliers 'tiny_imagnet'; did you mean 'tiny_imagenet32'"):
        mnist(whole, outliers="tiny_imagnet")
    with pytest.raises(MissingData, match=r"'imagenet32' .* demur data get imagenet32"):
        mnist(whole, outliers="imagenet32")


def test_the_papers_outliers_are_taken_where_they_are(store: Store) -> None:
    assert natural_outliers(store) == "tiny_imagenet32"
    write(store, "imagenet32", "train", 8, 1)
    assert natural_outliers(store) == "imagenet32"
    task = image_task("cifar10", store)
    assert len(task.training.outliers.epoch(generator())) == 8
    assert task.notes == {}


def test_half_the_outliers_are_windows_of_the_padded_grey_image_and_half_are_resized() -> None:
    images = random_images(2000, (3, 32, 32))
    source = to_train_with(images, GREY)
    made = source.epoch(generator())
    grey = np.stack([np.asarray(Image.fromarray(p).convert("L")) for p in images.permute(0, 2, 3, 1).numpy()])
    padded = np.pad(grey.astype(int), ((0, 0), (2, 2), (2, 2)))
    window = np.zeros(2000, int)
    for down in range(9):
        for right in range(9):
            same = np.abs(made[:, 0].numpy() - padded[:, down : down + 28, right : right + 28]).max((1, 2)) <= 1
            window[same] += 1 + 9 * down + right
    resized = (made == fit_images(images, GREY)).flatten(1).all(1).numpy()
    assert ((window > 0) != resized).all()
    assert 900 < resized.sum() < 1100
    assert set(window) == set(range(82))
    draws = generator()
    assert torch.equal(source.epoch(draws), made)
    assert not torch.equal(source.epoch(draws), made)


def test_classes_that_are_also_the_tasks_can_be_left_out(whole: Store) -> None:
    outliers = image_task("cifar10", whole, exclude_overlap=True).training.outliers.epoch(generator())
    x, y = whole.images("tiny_imagenet32", "train")
    assert y is not None
    assert Counter(rows(outliers)) == Counter(rows(x[(y == 1) | (y == 3)]))  # goldfish and desks
    assert image_task("svhn", whole, exclude_overlap=True).training.outliers.shape[0] == 50


def test_where_somebody_listed_the_overlap_the_list_decides(store: Store) -> None:
    listed = {"clear": {"truck": [{"label": 3, "name": "desk"}]}}
    (store.root / "tiny_imagenet32/cifar10_overlap.json").write_text(json.dumps(listed))
    x, y = store.images("tiny_imagenet32", "train")
    assert y is not None
    plain, matched = (
        image_task("cifar10", store, outliers=outliers, exclude_overlap=True).training.outliers
        for outliers in ("tiny_imagenet32", "tiny_imagenet32_spectrum_matched")
    )
    assert isinstance(matched, Matched)
    for source in (plain, matched.source):
        assert torch.equal(source.epoch(generator()), x[y != 3])


def test_the_listed_classes_of_the_real_outliers_are_left_out(whole: Store, data_root: Path, tmp_path: Path) -> None:
    real, outliers = Store(tmp_path / "store", tmp_path / "decoded"), data_root / "tiny_imagenet32"
    real.root.mkdir()
    (real.root / "cifar10").symlink_to(whole.root / "cifar10")
    (real.root / "tiny_imagenet32").symlink_to(outliers)
    clear = json.loads((outliers / "cifar10_overlap.json").read_text())["clear"]
    listed = {entry["label"] for entries in clear.values() for entry in entries}
    x, y = real.images("tiny_imagenet32", "train")
    assert y is not None
    kept = ~torch.isin(y, torch.tensor(sorted(listed)))
    task = image_task("cifar10", real, exclude_overlap=True)
    assert len(listed) == 23
    assert torch.equal(task.training.outliers.epoch(generator()), x[kept])


def test_classes_without_names_cannot_be_left_out(store: Store) -> None:
    (store.root / "tiny_imagenet32/classes.json").unlink()
    with pytest.raises(ValueError, match=r"exclude_overlap .*'tiny_imagenet32'.* no names in .*; add the set with"):
        mnist(store, exclude_overlap=True)


# images of another kind


def pillow(image: Tensor, mode: str, size: int) -> np.ndarray:
    given = image.permute(1, 2, 0).numpy()
    shown = Image.fromarray(given[..., 0] if given.shape[2] == 1 else given)
    converted = np.asarray(shown.convert(mode).resize((size, size), Image.Resampling.BILINEAR))
    return converted.reshape(size, size, -1).transpose(2, 0, 1).astype(int)


@pytest.mark.parametrize(("given", "wanted", "mode"), [(COLOUR, GREY, "L"), (GREY, COLOUR, "RGB")])
def test_colours_and_sizes_are_changed_as_pillow_does(given: torch.Size, wanted: torch.Size, mode: str) -> None:
    x = random_images(100, given)
    for mine, image in zip(fit_images(x, wanted).numpy().astype(int), x, strict=True):
        assert np.abs(mine - pillow(image, mode, wanted[1])).max() <= 1
    assert fit_images(x, given) is x


# variation while training


@pytest.mark.parametrize(
    ("jitter", "mode"),
    [(Jitter(2), "constant"), (Jitter(4, "edge"), "edge"), (Jitter(4, "reflect", flip=True), "reflect")],
)
def test_half_stay_as_they_are_and_the_rest_are_windows_of_the_padded_image(jitter: Jitter, mode: str) -> None:
    x, reach = random_images(6000, (3, 9, 10)), jitter.reach
    made = jitter(x, generator()).numpy()
    assert made.dtype == np.uint8
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode=mode)  # type: ignore[call-overload]
    counts = {}
    for flip in (False, True)[: 1 + jitter.flip]:
        for down in range(2 * reach + 1):
            for right in range(2 * reach + 1):
                window = padded[:, :, down : down + 9, right : right + 10]
                same = made == (window[..., ::-1] if flip else window)
                counts[down - reach, right - reach, flip] = int(same.all((1, 2, 3)).sum())
    assert sum(counts.values()) == len(x)
    each = 0.5 / len(counts)
    assert counts.pop((0, 0, False)) / len(x) == pytest.approx(0.5 + each, abs=0.03)
    assert min(counts.values()) > 0
    assert max(counts.values()) / len(x) < each + 5 * (each / len(x)) ** 0.5


def test_variation_goes_by_its_generator() -> None:
    x, jitter, draws = random_images(50, (3, 32, 32)), Jitter(4, "reflect", flip=True), generator()
    first, second = jitter(x, draws), jitter(x, draws)
    assert torch.equal(first, jitter(x, generator()))
    assert not torch.equal(first, second)


# by name


def test_every_task_has_a_setting_whose_network_takes_its_inputs(whole: Store) -> None:
    assert set(SETTINGS) == set(TASKS)
    for name in IMAGES:
        task = load(name, store=whole, limit=4)
        network = setting(name, "map").network(task.num_classes)
        assert task.training.augment is not None
        assert network(as_input(task.training.augment(task.training.train.x, generator()))).shape == (
            4,
            task.num_classes,
        )


def test_load_says_what_is_wrong(whole: Store) -> None:
    assert len(load("digits").training.train) == 1000
    assert len(load("digits", limit=100).training.train) == 100
    for name, options, message in (
        ("digits", {"limit": -1}, "limit -1 leaves nothing"),
        ("blobs", {"outliers": "smooth"}, "'blobs' brings its own outliers, not 'smooth'; leave"),
        ("sst", {"store": whole, "exclude_overlap": True}, "'sst' .*; leave exclude_overlap"),
        ("mnist", {}, r"'mnist' is made from data sets; give .* store=Store\(folder\)"),
        ("mnits", {}, "unknown task 'mnits'; did you mean 'mnist'"),
    ):
        with pytest.raises(ValueError, match=message):
            load(name, **options)  # type: ignore[arg-type]


# the real data


@pytest.fixture(scope="module")
def real(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(data_root, tmp_path_factory.mktemp("decoded"))


def test_fashion_mnist_with_all_its_sets(real: Store) -> None:
    task = fashion_mnist(real, limit=6000)
    assert (len(task.training.train), len(task.training.validation), len(task.testing.test)) == (6000, 2000, 10_000)
    assert task.missing == ()
    assert {name: len(x) for name, x in task.testing.ood.items()} == dict.fromkeys(
        ("mnist", "emnist_letters", "kmnist", "cifar10_gray", "uniform", "smooth", "far_away"), 10_000
    )
    assert task.training.outliers.shape == (40_000, 1, 28, 28)


def test_23_classes_of_200_outliers_are_also_cifar10s(real: Store) -> None:
    shown = shows_class_of(real, "tiny_imagenet32", "cifar10", CATALOGUE["cifar10"].classes)
    assert len(shown) == 40_000
    assert int(shown.sum()) == 23 * 200
