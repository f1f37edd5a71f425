"""Every kind of file that can be added comes back from the store pixel by pixel, label by label."""

import gzip
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from demur.data import adding, formats
from demur.data.adding import add
from demur.data.decode import decode, image_shape
from demur.data.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder for the user's files."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def random_images(count: int, shape: tuple[int, ...] = (28, 28), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def check(store: Store, name: str, split: str, pixels: np.ndarray, labels: list[int] | None) -> None:
    images, numbers = store.images(name, split)
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), pixels.reshape(*pixels.shape[:3], -1))
    assert (None if numbers is None else numbers.tolist()) == labels


# Folders


def save(folder: Path, pixels: np.ndarray, names: list[str], kind: str = "png") -> None:
    for index, (image, name) in enumerate(zip(pixels, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{index:03d}.{kind}")


def test_class_folders_of_ones_own(store: Store, here: Path) -> None:
    pixels = random_images(6, (9, 7, 3))
    save(here / "train", pixels[:4], ["cat", "cat", "dog", "newt"])
    save(here / "val", pixels[4:], ["newt", "dog"], "bmp")
    (here / "train/cat/Thumbs.db").write_bytes(b"no image")
    written = add(store, "pets", here)
    assert [path.name.split("-")[0] for path in written] == ["train", "validation"]
    check(store, "pets", "train", pixels[:4], [0, 0, 1, 2])
    check(store, "pets", "validation", pixels[[5, 4]], [1, 2])  # by folder, and numbered as in train
    assert store.classes("pets", "validation") == ("cat", "dog", "newt")
    save(here / "more", pixels[:1], ["cow"])
    with pytest.raises(ValueError, match="has a class 'cow'; the classes of pets are cat, dog, newt"):
        add(store, "pets", here / "more", "test")


def test_class_folders_of_a_known_set_are_numbered_as_it_is(store: Store, here: Path) -> None:
    pixels = random_images(2, (32, 32, 3))
    save(here, pixels, ["frog", "truck"])
    add(store, "cifar10", here, "test")
    check(store, "cifar10", "test", pixels, [6, 9])
    save(here, pixels, ["frog", "zebra"])
    with pytest.raises(ValueError, match="has a class 'zebra'; the classes of cifar10 are airplane"):
        add(store, "cifar10", here, "test")


def test_numbered_class_folders(store: Store, here: Path) -> None:
    pixels = random_images(3)
    save(here, pixels, ["2", "2", "9"])
    add(store, "fashion_mnist", here, "test")
    check(store, "fashion_mnist", "test", pixels, [2, 2, 9])


def test_folders_that_cannot_be_added(store: Store, here: Path) -> None:
    with pytest.raises(ValueError, match="holds no folders of images"):
        add(store, "mine", here)
    save(here, random_images(1), ["a"])
    save(here, random_images(1, (28, 28, 3)), ["b"])
    with pytest.raises(ValueError, match=r"b/000\.png is 28x28 colour, 000\.png 28x28 grey; bring all to one size"):
        add(store, "mine", here)
    (here / "b/000.png").write_bytes((here / "a/000.png").read_bytes()[:80])
    with pytest.raises(ValueError, match=r"b/000\.png cannot be read as an image"):
        add(store, "mine", here)
    (here / "b/000.png").unlink()
    with pytest.raises(ValueError, match=r"has images of shape \(1, 28, 28\), svhn of \(3, 32, 32\)"):
        add(store, "svhn", here)
    with pytest.raises(ValueError, match=r"holds images, sst is a set of text"):
        add(store, "sst", here)
    assert not store.root.exists() or not list(store.root.rglob("*.part*"))


# npz, csv, txt


def test_npz(store: Store, here: Path) -> None:
    pixels = random_images(5, (8, 8, 3))
    np.savez(here / "plain.npz", images=pixels, labels=np.arange(5)[:, None])
    add(store, "plain", here / "plain.npz")
    check(store, "plain", "train", pixels, [0, 1, 2, 3, 4])
    np.savez(here / "first.npz", x_train=pixels[:3].transpose(0, 3, 1, 2), y_train=[3, 2, 1], x_test=pixels[3:])
    add(store, "both", here / "first.npz")
    check(store, "both", "train", pixels[:3], [3, 2, 1])
    check(store, "both", "test", pixels[3:], None)
    with pytest.raises(ValueError, match="nothing for split 'validation'"):
        add(store, "both", here / "first.npz", "validation")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "has arrays a; name the images x or images"),
        ({"x": np.zeros((2, 8, 8))}, r"are float64 \(2, 8, 8\); give uint8"),
        ({"x": random_images(2, (8, 8, 2))}, r"are uint8 \(2, 8, 8, 2\); give uint8"),
        ({"x": random_images(2), "y": np.zeros(3, int)}, "has 2 inputs and 3 labels"),
        ({"x": random_images(2), "y": np.zeros(2)}, "has labels of type float64"),
        ({"x": random_images(2), "y": np.array([0, -1])}, "has label -1"),
        ({"x": np.array([{}], dtype=object)}, "cannot be read as npz"),
    ],
)
def test_npz_that_cannot_be_added(store: Store, here: Path, arrays: dict, message: str) -> None:
    np.savez(here / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=message) as raised:
        add(store, "mine", here / "mine.npz")
    assert "\n" not in str(raised.value)
    assert not store.has("mine", "train")


def test_labels_beyond_a_known_sets_classes(store: Store, here: Path) -> None:
    np.savez(here / "mine.npz", x=random_images(1), y=[10])
    with pytest.raises(ValueError, match="has label 10; labels of mnist are 0 to 9"):
        add(store, "mnist", here / "mine.npz")
    np.savez(here / "mine.npz", x=random_images(2), y=["a", "z"])
    add(store, "emnist_letters", here / "mine.npz")
    check(store, "emnist_letters", "train", random_images(2), [1, 26])


def test_csv_of_texts(store: Store, here: Path) -> None:
    (here / "test.csv").write_text('label,text\nspam,"Win, ""now"""\nham,"two\nlines"\nspam,12\n')
    add(store, "mail", here / "test.csv")
    texts, labels = store.texts("mail", "test")
    assert texts == ['Win, "now"', "two\nlines", "12"]
    assert labels is not None
    assert labels.tolist() == [1, 0, 1]
    assert store.classes("mail", "test") == ("ham", "spam")
    (here / "bare.tsv").write_text("text\nHello, you\n")
    add(store, "bare", here / "bare.tsv")
    assert store.texts("bare", "train") == (["Hello, you"], None)


@pytest.mark.parametrize("header", [True, False])
def test_csv_of_pixels(store: Store, here: Path, header: bool) -> None:
    pixels = random_images(4)
    rows = ["label," + ",".join(f"pixel{n}" for n in range(784))] if header else []
    rows += [f"{n}," + ",".join(map(str, image.ravel())) for n, image in enumerate(pixels)]
    (here / "mnist_train.csv").write_text("\n".join(rows))
    add(store, "mnist", here / "mnist_train.csv")
    check(store, "mnist", "train", pixels, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "has columns a, b, ...; give text and label"),
        ("label,p0\n1,256\n", "cannot be read as csv of pixels from 0 to 255"),
        ("text,label\n", "has 0 inputs"),
        ("text,label\na\n", "cannot be read as csv"),
        ("", "cannot be read as csv"),
    ],
)
def test_csv_that_cannot_be_added(store: Store, here: Path, content: str, message: str) -> None:
    (here / "mine.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        add(store, "mine", here / "mine.csv")


@pytest.mark.parametrize(
    "rows", [["red,x", 'blue,"x', "green,y"], ["red,x", 'blue,"x', 'green,"y'], ['"red', "blue,x"]]
)
def test_a_quote_that_is_not_closed_hides_no_texts(tmp_path, rows):
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    with pytest.raises(ValueError, match=r"quote that is not closed|cannot be read as csv"):
        list(formats.read_csv(tmp_path / "texts.csv"))


def test_lines_of_text(store: Store, here: Path) -> None:
    (here / "brown.txt").write_text("One sentence .\n\n  Another one\x85here .\n", encoding="utf-8")
    add(store, "brown", here / "brown.txt")
    assert store.texts("brown", "train") == (["One sentence .", "Another one\x85here ."], None)


# The original files


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_idx(store: Store, here: Path, packed: bool) -> None:
    pixels, labels = random_images(7), np.arange(7, dtype=np.uint8)
    for word, rows in (("train", slice(0, 4)), ("t10k", slice(4, 7))):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            content = idx(array[rows])
            (here / f"{word}-{kind}-ubyte{'.gz' if packed else ''}").write_bytes(
                gzip.compress(content) if packed else content
            )
    add(store, "mnist", here)
    check(store, "mnist", "train", pixels[:4], [0, 1, 2, 3])
    check(store, "mnist", "test", pixels[4:], [4, 5, 6])


def test_emnists_images_are_set_upright(store: Store, here: Path) -> None:
    pixels = random_images(2)
    (here / "emnist-letters-test-images-idx3-ubyte").write_bytes(idx(pixels.transpose(0, 2, 1).copy()))
    (here / "emnist-letters-test-labels-idx1-ubyte").write_bytes(idx(np.array([1, 26], np.uint8)))
    add(store, "emnist_letters", here / "emnist-letters-test-images-idx3-ubyte")
    check(store, "emnist_letters", "test", pixels, [1, 26])


def test_idx_that_cannot_be_added(store: Store, here: Path) -> None:
    file = here / "train-images-idx3-ubyte"
    file.write_bytes(idx(random_images(2)))
    with pytest.raises(ValueError, match="needs a file of images and, beside it, train-labels-idx1-ubyte"):
        add(store, "mnist", here)
    (here / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, np.uint8)))
    file.write_bytes(idx(random_images(2))[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte cannot be read as IDX"):
        add(store, "mnist", here)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte cannot be read as IDX"):
        add(store, "mnist", here)


def old_pickle(pixels: np.ndarray, key: str, labels: list[int]) -> bytes:
    """The bytes that Python 2 wrote for CIFAR: a dict of strings, a list of numbers and an array."""

    def text(value: str) -> bytes:
        return b"U" + struct.pack("B", len(value)) + value.encode()

    def number(value: int) -> bytes:
        return b"K" + struct.pack("B", value) if value < 256 else b"M" + struct.pack("<H", value)

    data = pixels.transpose(0, 3, 1, 2).tobytes()
    return b"".join(
        [
            *(b"\x80\x02}q\x01(", text("batch_label"), b"q\x02", text("training batch 1 of 5"), b"q\x03"),
            *(text(key), b"q\x04]q\x05(", *map(number, labels), b"e", text("data"), b"q\x06"),
            *(b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85", text("b"), b"\x87Rq\x09"),
            *(
                b"(K\x01",
                number(len(pixels)),
                number(3072),
                b"\x86cnumpy\ndtype\nq\x0a",
                text("u1"),
                b"K\x00K\x01\x87Rq\x0b",
            ),
            *(b"(K\x03", text("|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbI00\n"),
            *(
                b"T",
                struct.pack("<i", len(data)),
                data,
                b"tb",
                text("filenames"),
                b"q\x0c]q\x0d(",
                text("a.png"),
                b"eu.",
            ),
        ]
    )


def test_the_pickles_written_here_are_what_python_reads(here: Path) -> None:
    pixels = random_images(3, (32, 32, 3))
    content = pickle.loads(old_pickle(pixels, "labels", [5, 0, 9]), encoding="latin-1")
    np.testing.assert_array_equal(content["data"].reshape(3, 3, 32, 32).transpose(0, 2, 3, 1), pixels)
    assert content["labels"] == [5, 0, 9]


def test_cifar10(store: Store, here: Path) -> None:
    pixels = random_images(12, (32, 32, 3))
    for batch in range(5):
        rows = slice(2 * batch, 2 * batch + 2)
        (here / f"data_batch_{batch + 1}").write_bytes(old_pickle(pixels[rows], "labels", [batch, 9]))
    (here / "test_batch").write_bytes(old_pickle(pixels[10:], "labels", [3, 4]))
    (here / "batches.meta").write_bytes(b"not read")
    add(store, "cifar10", here)
    check(store, "cifar10", "train", pixels[:10], [0, 9, 1, 9, 2, 9, 3, 9, 4, 9])
    check(store, "cifar10", "test", pixels[10:], [3, 4])
    (here / "data_batch_3").unlink()
    with pytest.raises(ValueError, match="data_batch_3 cannot be read"):
        add(store, "cifar10", here)


def test_cifar100(store: Store, here: Path) -> None:
    pixels = random_images(300, (32, 32, 3))
    (here / "train").write_bytes(old_pickle(pixels, "fine_labels", [99] * 300))
    (here / "test").write_bytes(old_pickle(pixels[:2], "fine_labels", [0, 50]))
    (here / "meta").write_bytes(b"not read")
    add(store, "cifar100", here)
    check(store, "cifar100", "train", pixels, [99] * 300)
    check(store, "cifar100", "test", pixels[:2], [0, 50])


class Attack:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("/tmp/demur-was-here"),))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": Attack()}, 2),
        pickle.dumps({"data": Attack()}, 4),
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02ctorch\nload\nq\x00.",
        b"\x80\x02}q\x01(U\x04data",
        b"\x80\x02e.",
        b"\x80\x02h\x07.",
        b"",
    ],
)
def test_a_pickle_with_anything_else_in_it_is_refused_unread(
    store: Store, here: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "touch", lambda *given: pytest.fail("code in the file was run"))
    (here / "data_batch_1").write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_1 cannot be read as CIFAR's Python file \(.*\)") as raised:
        add(store, "cifar10", here)
    assert "\n" not in str(raised.value)


def test_svhn(store: Store, here: Path) -> None:
    pixels = random_images(4, (32, 32, 3))
    labels = np.array([[1], [10], [9], [10]], np.uint8)
    scipy.io.savemat(here / "train_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": labels})
    scipy.io.savemat(here / "test_32x32.mat", {"X": pixels[:2].transpose(1, 2, 3, 0), "y": labels[:2]})
    add(store, "svhn", here)
    check(store, "svhn", "train", pixels, [1, 0, 9, 0])
    check(store, "svhn", "test", pixels[:2], [1, 0])
    file = here / "test_32x32.mat"
    for damaged in (file.read_bytes()[:500], b"", b"no mat file at all" * 20):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"test_32x32\.mat cannot be read as SVHN's mat"):
            add(store, "svhn", file)


def test_cifar10_c(store: Store, here: Path) -> None:
    labels = np.arange(10)
    for seed, name in enumerate(["fog", "gaussian_noise"]):
        np.save(here / f"{name}.npy", random_images(10, (32, 32, 3), seed))
    np.save(here / "labels.npy", labels)
    add(store, "cifar10_c", here)
    check(store, "cifar10_c", "gaussian_noise", random_images(10, (32, 32, 3), 1), labels.tolist())
    other = Store(store.root / "other")
    add(other, "cifar10_c", here / "fog.npy")
    check(other, "cifar10_c", "fog", random_images(10, (32, 32, 3), 0), labels.tolist())
    np.save(here / "fog.npy", np.array([Attack], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"fog\.npy cannot be read as npy"):
        add(store, "cifar10_c", here, "fog")
    (here / "labels.npy").unlink()
    with pytest.raises(ValueError, match=r"labels\.npy cannot be read"):
        add(store, "cifar10_c", here / "fog.npy")


# All kinds


def test_large_sets_are_written_in_shards(store: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "SHARD_ROWS", 3)
    np.savez(here / "mine.npz", x=random_images(7), y=np.arange(7))
    assert len(add(store, "mine", here / "mine.npz")) == 3
    check(store, "mine", "train", random_images(7), list(range(7)))


def test_what_is_no_data(store: Store, here: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.npz does not exist"):
        add(store, "mine", here / "nothing.npz")
    (here / "mine.docx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"mine\.docx is of no known kind; give a folder of class folders"):
        add(store, "mine", here / "mine.docx")
    np.savez(here / "mine.npz", x=random_images(1))
    with pytest.raises(ValueError, match=r"data set '\.\./mine' is not one word"):
        add(store, "../mine", here / "mine.npz")


def test_zero_bytes_are_no_text(store: Store, here: Path) -> None:
    (here / "x.txt").write_bytes(b"red\nblue\0green\n")
    with pytest.raises(ValueError, match=r"x\.txt cannot be read as text in UTF-8 \(it has zero bytes\)"):
        add(store, "mine", here / "x.txt")


def test_a_split_that_is_there_is_replaced_only_on_request(store: Store, here: Path) -> None:
    (here / "x.txt").write_text("red\n")
    (here / "y.txt").write_text("blue\n")
    add(store, "mine", here / "x.txt")
    with pytest.raises(ValueError, match="mine has train data already"):
        add(store, "mine", here / "y.txt")
    assert store.texts("mine", "train")[0] == ["red"]
    add(store, "mine", here / "y.txt", overwrite=True)
    assert store.texts("mine", "train")[0] == ["blue"]


def test_links_to_class_folders_are_followed_and_transparency_shows_white(store: Store, here: Path) -> None:
    elsewhere = here.parent / "elsewhere"
    for folder in (elsewhere / "b", here / "a"):
        folder.mkdir(parents=True)
        Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(folder / "0.png")
    (here / "b").symlink_to(elsewhere / "b")
    add(store, "mine", here)
    pixels, labels = store.images("mine", "train")
    assert labels.tolist() == [0, 1]
    assert pixels.shape == (2, 3, 4, 4)
    assert (pixels == 255).all()


def test_an_array_whose_header_does_not_end_is_refused(tmp_path):
    """numpy reads a header by Python's own tokens, whose errors are no ValueErrors."""
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 8, 8), dtype=np.uint8))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        content = archive.read("x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content.replace(b"}", b" ", 1))
    with pytest.raises(ValueError, match=r"x\.npz cannot be read as npz"):
        list(formats.read_npz(tmp_path / "x.npz"))


def test_images_that_would_take_all_memory_are_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "classes" / "a").mkdir(parents=True)
    image = tmp_path / "classes" / "a" / "huge.png"
    Image.new("L", (8, 8)).save(image)
    huge = bytearray(image.read_bytes())
    huge[16:24] = struct.pack(">II", 10**5, 10**5)
    huge[29:33] = struct.pack(">I", zlib.crc32(huge[12:29]))
    image.write_bytes(huge)
    (tmp_path / "list.txt").write_text("classes/a/huge.png 0\n")
    for path in ("classes", "list.txt"):
        with pytest.raises(ValueError, match=r"huge\.png cannot be read as an image .*exceeds limit"):
            add(store, "mine", tmp_path / path)
    with pytest.raises(ValueError, match=r"image 0 is damaged .*exceeds limit"):
        image_shape(bytes(huge))
    with pytest.raises(ValueError, match=r"image 0 is damaged .*exceeds limit"):
        decode([bytes(huge)], (1, 8, 8))
