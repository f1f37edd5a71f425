"""The store gives back what its files hold, exactly, and says so where it cannot."""

import csv
import errno
import hashlib
import io
import json
import os
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from demur.data import decode, store
from demur.data.catalogue import CATALOGUE
from demur.data.store import MissingData, Store, image_column


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = Path(os.environ.get("DEMUR_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (root / "MANIFEST.csv").exists():
        pytest.skip(f"no data sets in {root}; set DEMUR_DATA")
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoded")


def encode(pixels: np.ndarray, format: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format, **options)
    return out.getvalue()


def random_images(count: int, shape: tuple[int, ...] = (28, 28), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write(path: Path, pixels: np.ndarray, labels: list[int] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": image_column([encode(image) for image in pixels])}
    pq.write_table(pa.table(columns if labels is None else {**columns, "label": labels}), path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve images of mnist's kind in two files."""
    pixels = random_images(12)
    write(tmp_path / "mnist/test-00000-of-00002.parquet", pixels[:8], list(range(8)))
    write(tmp_path / "mnist/test-00001-of-00002.parquet", pixels[8:], [9, 8, 7, 6])
    return tmp_path


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".part")]


# The real data


def test_every_set_decodes_to_the_hash_in_the_manifest(data_root: Path, cache: Path) -> None:
    wrong = []
    for row in csv.DictReader((data_root / "MANIFEST.csv").read_text().splitlines()):
        if row["shape"] == "text":
            texts, _ = Store(data_root, cache).texts(row["name"], row["split"])
            count, content = len(texts), "\n".join(texts).encode()
        else:
            images, _ = Store(data_root, cache).images(row["name"], row["split"])
            count, content = len(images), images.permute(0, 2, 3, 1).contiguous().numpy().tobytes()
        if (count, hashlib.sha256(content).hexdigest()) != (int(row["count"]), row["sha256_of_decoded"]):
            wrong.append((row["name"], row["split"]))
    assert wrong == []


def test_the_second_load_is_ten_times_faster_and_equal(data_root: Path, tmp_path: Path) -> None:
    seconds, loads = [], []
    for _ in range(2):
        start = time.perf_counter()
        loads.append(Store(data_root, tmp_path).images("fashion_mnist", "test"))
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < seconds[0] / 10
    for first, second in zip(*loads, strict=True):
        assert first is not None
        assert torch.equal(first, second)


def test_trecs_classes_are_the_catalogues(data_root: Path) -> None:
    table = pq.read_table(data_root / "trec/train-00000-of-00001.parquet")
    pairs = set(zip(table["label"].to_pylist(), table["fine"].to_pylist(), strict=True))
    assert pairs == set(enumerate(CATALOGUE["trec"].classes))


# Reading


def test_shards_are_joined_in_their_order(root: Path) -> None:
    images, labels = Store(root).images("mnist", "test")
    assert images.dtype == torch.uint8
    assert labels is not None
    np.testing.assert_array_equal(images[:, 0].numpy(), random_images(12))
    assert labels.tolist() == [*range(8), 9, 8, 7, 6]


@pytest.mark.parametrize("options", [{"format": "PNG"}, {"format": "WEBP", "lossless": True}])
def test_processes_and_one_process_decode_alike(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = random_images(101, (32, 32, 3))
    encoded: list[bytes | None] = [encode(image, **options) for image in pixels]
    monkeypatch.setattr(decode, "WORTH_A_PROCESS", 25)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert decode.decode(encoded, (3, 32, 32)) == pixels.tobytes()
    for damage, message in ((encoded[77][:60], "is damaged"), (None, "is empty")):  # type: ignore[index]
        encoded[77] = damage
        with pytest.raises(ValueError, match=f"^image 77 {message}"):
            decode.decode(encoded, (3, 32, 32))


def test_a_grey_image_in_a_colour_set_is_read_as_colour_and_not_the_other_way_round() -> None:
    grey, colour = random_images(1)[0], random_images(1, (28, 28, 3))[0]
    assert decode.decode([encode(grey)], (3, 28, 28)) == np.stack([grey] * 3, -1).tobytes()
    with pytest.raises(ValueError, match="image 0 is 28x28 RGB, not 28x28 L"):
        decode.decode([encode(colour)], (1, 28, 28))


def test_sets_without_labels_and_of_the_users_own(tmp_path: Path) -> None:
    write(tmp_path / "mine/train-00000-of-00001.parquet", random_images(3, (9, 7, 3)))
    images, labels = Store(tmp_path).images("mine", "train")
    assert images.shape == (3, 3, 9, 7)
    assert labels is None
    assert Store(tmp_path).classes("mine", "train") == ()
    assert Store(tmp_path).classes("cifar10", "train")[3] == "cat"


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "sst").mkdir()
    texts = ["Fine.", "two\nlines", "“schön”"]
    pq.write_table(pa.table({"text": texts, "label": [1, 0, 1]}), tmp_path / "sst/train-00000-of-00001.parquet")
    read, labels = Store(tmp_path).texts("sst", "train")
    assert read == texts
    assert labels is not None
    assert labels.tolist() == [1, 0, 1]


def test_describe_counts_what_is_there_and_names_what_is_not(root: Path) -> None:
    write(root / "mine/train-00000-of-00001.parquet", random_images(3))
    Store(root).images("mine", "train")  # its cache folder is no data set
    rows = {row.name: row for row in Store(root).describe()}
    assert set(rows) == {*CATALOGUE, "mine"}
    assert (rows["mnist"].splits, rows["mnist"].count) == ({"test": 12}, 12)
    assert rows["mnist"].bytes == sum(path.stat().st_size for path in (root / "mnist").iterdir())
    assert (rows["brown"].count, rows["brown"].where) == (0, "to be added")
    assert rows["svhn"].where == "hub: ufldl-stanford/svhn"


# The decoded copy


def loads_from_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        calls: list[object] = []
        patch.setattr(store, "decode_shards", lambda *given: calls.append(given) or original(*given))
        Store(root).images("mnist", "test")
    return not calls


original = store.decode_shards


def test_the_copy_lasts_as_long_as_the_content(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "mnist/test-00001-of-00002.parquet"
    assert not loads_from_cache(root, monkeypatch)
    assert loads_from_cache(root, monkeypatch)
    os.utime(file, ns=(1, 1))  # touched, not changed
    assert loads_from_cache(root, monkeypatch)
    moved = root.with_name(root.name + "-moved")
    shutil.copytree(root, moved)  # other inodes
    assert loads_from_cache(moved, monkeypatch)
    write(file, random_images(4, seed=1), [0, 1, 2, 3])
    assert not loads_from_cache(root, monkeypatch)
    np.testing.assert_array_equal(Store(root).images("mnist", "test")[0][8:, 0].numpy(), random_images(4, seed=1))


def test_another_file_of_equal_size_and_time_is_told_apart(root: Path) -> None:
    file = root / "mnist/test-00001-of-00002.parquet"
    Store(root).images("mnist", "test")
    status = file.stat()
    other = write(root / "other.parquet", random_images(12)[8:], [6, 7, 8, 9])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert other.stat().st_size == status.st_size
    other.replace(file)
    _, labels = Store(root).images("mnist", "test")
    assert labels is not None
    assert labels[8:].tolist() == [6, 7, 8, 9]


def test_what_a_caller_writes_stays_with_him(root: Path) -> None:
    for _ in range(3):
        images, _labels = Store(root).images("mnist", "test")
        np.testing.assert_array_equal(images[0, 0].numpy(), random_images(12)[0])
        images.zero_()


def test_a_damaged_copy_is_made_anew(root: Path) -> None:
    first, _ = Store(root).images("mnist", "test")
    kept = root / ".decoded/mnist-test.safetensors"
    kept.write_bytes(kept.read_bytes()[:100])
    second, _ = Store(root).images("mnist", "test")
    assert torch.equal(first, second)
    assert kept.stat().st_size > 12 * 28 * 28


def test_a_cache_folder_that_cannot_be_made_costs_a_warning_only(root: Path) -> None:
    (root / "file").write_text("in the way")
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"could not be kept in .*file .*; they will be decoded again"):
            images, _ = Store(root, root / "file").images("mnist", "test")
        np.testing.assert_array_equal(images[:, 0].numpy(), random_images(12))


def test_a_full_disk_costs_a_warning_only_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_half(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "save_file", save_half)
    with pytest.warns(UserWarning, match="No space left on device"):
        images, _ = Store(root).images("mnist", "test")
    np.testing.assert_array_equal(images[:, 0].numpy(), random_images(12))
    assert list((root / ".decoded").iterdir()) == []


# What is wrong is said


def test_a_missing_set_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as raised:
        Store(tmp_path).images("kmnist", "test")
    assert str(raised.value) == (
        f"data set 'kmnist' (split test) is not in {tmp_path}; "
        "get it with: demur data get kmnist, or demur data add kmnist PATH"
    )
    with pytest.raises(MissingData, match=r"get it with: demur data add brown PATH$"):
        Store(tmp_path).texts("brown", "train")
    assert not Store(tmp_path).has("kmnist", "test")


def test_a_missing_shard_is_named(root: Path) -> None:
    (root / "mnist/test-00000-of-00002.parquet").unlink()
    with pytest.raises(ValueError, match=r"test-00000-of-00002\.parquet is missing, one of 2 files") as raised:
        Store(root).images("mnist", "test")
    assert not isinstance(raised.value, MissingData)
    write(root / "mnist/test-00000-of-00001.parquet", random_images(1), [0])
    with pytest.raises(ValueError, match="-of-00001 and -of-00002 of test; delete"):
        Store(root).images("mnist", "test")


def test_a_name_cannot_leave_the_folder(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data set '\.\./mnist' is not one word"):
        Store(root / "mnist").images("../mnist", "test")


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file(root: Path, share: float) -> None:
    file = root / "mnist/test-00000-of-00002.parquet"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(ValueError, match=r"test-00000-of-00002\.parquet cannot be read as parquet \(.*\); delete it"):
        Store(root).images("mnist", "test")


def test_damaged_pages(root: Path) -> None:
    file = root / "mnist/test-00000-of-00002.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"test-00000-of-00002\.parquet"):
        Store(root).images("mnist", "test")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"img": ["a"], "label": [0]}, "has no column 'image' but img, label"),
        ({"image": ["a"], "label": [0]}, "has a column image of type string"),
        ({"image": image_column([encode(random_images(1)[0])]), "label": ["0"]}, "has labels of type string"),
        ({"image": image_column([encode(random_images(1)[0])]), "label": pa.nulls(1, pa.int64())}, "1 of them null"),
        ({"image": image_column([encode(random_images(1)[0])]), "label": [10]}, "label 10 in row 0; .* are 0 to 9"),
        ({"image": image_column([encode(random_images(1)[0])]), "label": [-1]}, "label -1 in row 0"),
        ({"image": image_column([encode(random_images(1, (32, 32))[0])])}, "image 0 is 32x32 L, not 28x28 L"),
        ({"image": image_column([b"no image"])}, "image 0 is damaged"),
        ({"image": pa.nulls(1, store.IMAGE)}, "image 0 is empty"),
        ({"image": image_column([])}, "holds no rows"),
    ],
)
def test_wrong_content_is_one_sentence_with_the_file(tmp_path: Path, columns: dict, message: str) -> None:
    path = tmp_path / "mnist/test-00000-of-00001.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match=message) as raised:
        Store(tmp_path).images("mnist", "test")
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / ".decoded").exists()


def test_labels_in_some_shards_only(root: Path) -> None:
    write(root / "mnist/test-00001-of-00002.parquet", random_images(4))
    with pytest.raises(ValueError, match=r"test-00001-of-00002\.parquet has no labels"):
        Store(root).images("mnist", "test")


# Writing


def test_a_write_that_fails_leaves_what_was_there(root: Path) -> None:
    before = {path: path.read_bytes() for path in (root / "mnist").iterdir()}

    def tables() -> object:
        yield pa.table({"text": ["a"]})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(root).write("mnist", "test", tables(), "nowhere")
    assert {path: path.read_bytes() for path in (root / "mnist").iterdir()} == before


def test_a_write_replaces_the_split_and_keeps_checksums(root: Path) -> None:
    paths = Store(root).write("mnist", "test", [pa.table({"image": image_column([])})] * 3, "somewhere")
    assert sorted(path.name for path in (root / "mnist").glob("*.parquet")) == [path.name for path in paths]
    checksums = json.loads((root / "mnist/checksums.json").read_text())
    assert checksums == {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "source": "somewhere"} for path in paths
    }
    assert hidden(root) == []


def test_the_catalogue_agrees_with_itself() -> None:
    for name, data in CATALOGUE.items():
        assert (data.shape is not None) == (data.kind == "images"), name
        assert len(set(data.classes)) == len(data.classes), name
        if data.hub:
            assert (data.hub.image is not None) == (data.kind == "images"), name
            assert set(data.hub.files) <= set(data.splits), name
    assert [len(CATALOGUE[name].classes) for name in ("cifar100", "trec", "sst")] == [100, 50, 2]
    assert CATALOGUE["emnist_letters"].labels == range(1, 27)
    assert list(CATALOGUE["cifar100"].classes) == sorted(CATALOGUE["cifar100"].classes)


def test_reading_warns_of_nothing(root: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        Store(root).images("mnist", "test")
    assert caught == []
