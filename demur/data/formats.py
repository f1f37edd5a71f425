"""Files that a user already has, read as images or texts. What they are is found by looking at them.

| given | taken for |
|---|---|
| a folder of class folders of images, or of train/ and test/ with such folders in them | labels by folder name |
| .npz with x or images, and y or labels, or such names with _train, _test | uint8 (N, H, W) or (N, H, W, 3) |
| .csv or .tsv with columns text and, if known, label | texts |
| .csv with columns label and one a pixel (with or without a header) | grey square images, row by row |
| .txt | one text a line |
| .txt of lines `path label`, as OpenOOD has them | images beside or above it, or in images_classic/ there |
| MNIST's IDX files, packed or not: the folder, or the file of images with that of labels beside it | as published |
| CIFAR-10's or CIFAR-100's folder of Python files (no code in them is run) | as published |
| SVHN's train_32x32.mat, test_32x32.mat, or the folder | as published, the digit 0 as label 0 |
| CIFAR-10-C's folder with labels.npy | one split a corruption, severities 1 to 5 in turn |
"""

import gzip
import io
import math
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from PIL import Image, ImageOps

from demur.data.decode import DAMAGE, FORMATS, MODES, convert_mode, is_deep
from demur.data.pickled import ARRAY, read_pickled_dict
from demur.errors import first_line
from demur.files import check_quotes

SPLITS = {"train": "train", "test": "test", "t10k": "test", "val": "validation", "dev": "validation", "extra": "extra"}
IMAGES = {".png", ".webp", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}
COLOURS = dict.fromkeys((*MODES[3], "RGBA", "PA"), "colour") | dict.fromkeys((*MODES[1], "LA"), "grey")
BILINEAR = Image.Resampling.BILINEAR


@dataclass(frozen=True)
class Part:
    """One split as it was found: images or texts, and their labels, numbers or names, if it has any."""

    split: str | None  # None where the file does not say
    images: Sequence[bytes] | np.ndarray | None = None  # encoded, or pixels (N, H, W) or (N, H, W, channels)
    texts: Sequence[str] | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.images if self.images is not None else self.texts or ())


Reader = Callable[[Path], Iterator[Part]]


def find_reader(path: Path) -> Reader:
    """The reader for what lies at `path`."""
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a folder or a file")
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    for pattern, reader in (FOLDERS if path.is_dir() else FILES).items():
        if any(re.search(pattern, name, re.IGNORECASE) for name in names):
            return reader
    if path.is_dir():
        return read_class_folders
    raise ValueError(f"{path} is of no known kind; give a folder of class folders, npz, csv, txt, IDX, mat or npy")


def to_png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(out, "PNG")
    return out.getvalue()


def split_named(name: str) -> str | None:
    """The split that a file's or folder's name speaks of."""
    named = (split for word, split in SPLITS.items() if re.search(rf"(?<![a-z]){word}", name, re.IGNORECASE))
    return next(named, None)


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn what the parsers of damaged files raise into one sentence."""
    try:
        yield
    except (
        *(EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, NotImplementedError),
        *(zlib.error, zipfile.BadZipFile, tokenize.TokenError),  # numpy tokenizes headers
        *DAMAGE,
    ) as error:
        reason = first_line(error)
        raise ValueError(f"{path} cannot be read as {kind} ({reason}); is it whole, and what its name says?") from error


def read_class_folders(path: Path) -> Iterator[Part]:
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if folders and all(split_named(folder.name) for folder in folders):
        for folder in folders:
            yield read_classes(folder, split_named(folder.name))
    else:
        yield read_classes(path, None)


def read_classes(path: Path, split: str | None) -> Part:
    """Images sorted by folder and name, the files as they are, or PNG where the store does not read their kind."""
    files = [file for file in find_files(path) if file.parent != path]
    if not files:
        raise ValueError(f"{path} holds no folders of images; put each class's images in a folder of the class's name")
    images, first = [], ""
    for file in files:
        with _open_image(file) as image:
            image.load()
            colour = COLOURS.get(image.mode, image.mode)
            plain = convert_mode(image, "L" if colour == "grey" else "RGB")
            as_is = image.format in FORMATS and not image.has_transparency_data
            images.append(file.read_bytes() if as_is else to_png(np.asarray(plain)))
        shape = f"{image.width}x{image.height} {colour}"
        first = first or shape
        if shape != first or colour == image.mode:
            raise ValueError(f"{file} is {shape}, {files[0].name} {first}; bring all to one size, and to grey or RGB")
    return Part(split, images, labels=np.array([file.relative_to(path).parts[0] for file in files]))


@contextmanager
def _open_image(file: Path) -> Iterator[Image.Image]:
    with reading(file, "an image"), Image.open(file) as image:
        if is_deep(image):
            raise ValueError("it has 16 bits a channel, not 8; convert it")
        yield image


def find_files(path: Path, suffixes: Iterable[str] = IMAGES) -> list[Path]:
    """All images, or files with such suffixes, below a folder, in order; links are followed, not hidden ones."""
    images: list[Path] = []
    above = {path: {path.resolve()}}  # by folder, those that it lies in
    for name, folders, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        folder = Path(name)
        folders[:] = [each for each in folders if not each.startswith(".")]
        for each in folders:
            real = (folder / each).resolve()
            if real in above[folder]:
                raise ValueError(f"{folder / each} is a link to a folder that it lies in; remove it")
            above[folder / each] = above[folder] | {real}
        for file in (folder / each for each in files if not each.startswith(".")):
            if not file.exists() and file.suffix.lower() not in suffixes:
                raise ValueError(f"{file} is a link to nothing; mend or remove it")
            if file.suffix.lower() in suffixes and (file.is_file() or not file.exists()):
                images.append(file)
    return sorted(images)


def _refuse_folder(error: OSError) -> None:
    raise ValueError(f"{error.filename} cannot be read ({error.strerror}); allow it, or take the folder out") from error


def read_npz(path: Path) -> Iterator[Part]:
    names = re.compile(r"(?:(train|test|val)_)?(?:(x|images?|data)|(y|labels?))(?:_(train|test|val))?", re.IGNORECASE)
    with reading(path, "npz"), np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    matches = {key: match for key in arrays if (match := names.fullmatch(key))}
    inputs = {match[1] or match[4]: arrays[key] for key, match in matches.items() if match[2]}
    labels = {match[1] or match[4]: arrays[key] for key, match in matches.items() if match[3]}
    if not inputs:
        raise ValueError(f"{path} has arrays {', '.join(arrays)}; name the images x or images, the labels y or labels")
    for word, images in inputs.items():
        if images.ndim == 4 and images.shape[1] in MODES and images.shape[3] not in MODES:
            images = images.transpose(0, 2, 3, 1)
        yield Part(split_named(word or path.name), images, labels=labels.get(word))


def read_csv(path: Path) -> Iterator[Part]:
    parse = pa.csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    convert = pa.csv.ConvertOptions(column_types={"text": pa.string()})
    with reading(path, "csv"):
        table = pa.csv.read_csv(path, parse_options=parse, convert_options=convert)
        if all(name.isdecimal() for name in table.column_names):  # no header: the first line is data
            table = pa.csv.read_csv(path, pa.csv.ReadOptions(autogenerate_column_names=True), parse)
            table = table.rename_columns(["label", *table.column_names[1:]])
    if any(pa.types.is_string(c.type) and pc.any(pc.match_substring(c, "\n")).as_py() for c in table.columns):
        check_quotes(path.open("rb"), parse.delimiter, path)
    labels = np.array(table["label"].to_pylist()) if "label" in table.column_names else None
    if "text" in table.column_names:
        yield Part(split_named(path.name), texts=table["text"].to_pylist(), labels=labels)
        return
    pixels = table.drop_columns("label") if labels is not None else table
    side = math.isqrt(pixels.num_columns)
    if side**2 != pixels.num_columns or not all(pa.types.is_integer(kind) for kind in pixels.schema.types):
        first_columns = ", ".join(table.column_names[:4])
        raise ValueError(
            f"{path} has columns {first_columns}, ...; give text and label, or label and grey pixels of a square"
        )
    with reading(path, "csv of pixels from 0 to 255"):
        columns = [pc.cast(column, pa.uint8()).to_numpy() for column in pixels.columns]
    yield Part(split_named(path.name), np.stack(columns, 1).reshape(-1, side, side), labels=labels)


LISTED = re.compile(rf"(\S.*(?:{'|'.join(map(re.escape, sorted(IMAGES)))}))\s+(-?\d+)", re.IGNORECASE)
SHRUNK, LARGEST = 32, 64  # pixels of listed images that are shrunk, and of the largest that are not


def read_list(path: Path, lines: Sequence[str]) -> Part:
    """Images by path and label. Large ones, and those of different sizes, become what OpenOOD makes of them for CIFAR:
    the shorter side has 32 pixels, and the middle is taken. Labels that are all -1 are none."""
    pairs = [LISTED.fullmatch(line) for line in lines]
    wrong = next((number for number, pair in enumerate(pairs, start=1) if pair is None), None)
    if wrong is not None:
        raise ValueError(f"{path}, line {wrong}, is {lines[wrong - 1]!r:.60}; lines of a list are a path and a label")
    names, labels = [pair[1] for pair in pairs if pair], np.array([int(pair[2]) for pair in pairs if pair])
    above = path.absolute().parents
    roots = [root / folder for root in above for folder in ("", "images_classic", "images_largescale")]
    root = next((root for root in roots if (root / names[0]).is_file()), None)
    if root is None:
        raise ValueError(
            f"{path} lists {names[0]}, which lies neither beside it, above it, nor in images_classic there"
        )
    sizes, modes = set[tuple[int, int]](), set[str]()
    for name in names:
        with _open_image(root / name) as image:
            sizes.add(image.size)
            modes.add("L" if COLOURS.get(image.mode) == "grey" else "RGB")
    shrinks, mode = len(sizes) > 1 or max(next(iter(sizes))) > LARGEST, "L" if modes == {"L"} else "RGB"
    images = []
    for name in names:
        with _open_image(root / name) as image:
            plain = convert_mode(image, mode)
            images.append(to_png(np.asarray(ImageOps.fit(plain, (SHRUNK,) * 2, BILINEAR) if shrinks else plain)))
    return Part(split_named(path.name), images, labels=None if (labels == -1).all() else labels)


def read_txt(path: Path) -> Iterator[Part]:
    with reading(path, "text in UTF-8"):
        content = path.read_text(encoding="utf-8")
        if "\0" in content:
            raise ValueError("it has zero bytes")
        lines = [line.strip() for line in content.split("\n")]
    given = [line for line in lines if line]
    is_list = bool(given) and LISTED.fullmatch(given[0]) is not None
    yield read_list(path, given) if is_list else Part(split_named(path.name), texts=given)


def read_idx(path: Path) -> Iterator[Part]:
    for file in sorted(path.glob("*images*idx3-ubyte*")) if path.is_dir() else [path]:
        other = file.name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
        labels = next(
            (beside for beside in (file.with_name(other), file.with_name(other + ".gz")) if beside.exists()), None
        )
        if labels is None or "images" not in file.name:
            raise ValueError(f"{file} needs a file of images and, beside it, {other} with the labels; give the images")
        images = read_idx_array(file)
        if file.name.startswith("emnist"):
            images = images.transpose(0, 2, 1)  # published lying on their side
        yield Part(split_named(file.name), images, labels=read_idx_array(labels))


def read_idx_array(path: Path) -> np.ndarray:
    with reading(path, "IDX"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise ValueError("it does not begin as IDX files of bytes do")
        start = 4 + 4 * content[3]
        return np.frombuffer(content, np.uint8, offset=start).reshape(np.frombuffer(content[4:start], ">u4"))


def read_svhn(path: Path) -> Iterator[Part]:
    for file in sorted(path.glob("*_32x32.mat")) if path.is_dir() else [path]:
        with reading(file, "SVHN's mat"):
            content = load_mat(file, ["X", "y"])
            images, labels = content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1) % 10
        yield Part(split_named(file.name), images, labels=labels)


def load_mat(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    import scipy.io  # here, since no other format needs it

    try:
        return scipy.io.loadmat(file, variable_names=list(names))
    except scipy.io.matlab.MatReadError as error:
        raise ValueError(str(error)) from error


def read_corruptions(path: Path) -> Iterator[Part]:
    folder = path if path.is_dir() else path.parent
    labels = folder / "labels.npy"
    with reading(labels, "npy"):
        numbers = np.load(labels, allow_pickle=False)
    for file in sorted(folder.glob("*.npy")) if path.is_dir() else [path]:
        if file != labels:
            with reading(file, "npy"):
                images = np.load(file, mmap_mode="r", allow_pickle=False)
            yield Part(file.stem, images, labels=numbers)


def read_cifar10(path: Path) -> Iterator[Part]:
    batches = {"train": [f"data_batch_{batch}" for batch in range(1, 6)], "test": ["test_batch"]}
    for split, files in batches.items():
        read = [read_cifar_file(path / file, "labels") for file in files]
        yield Part(split, np.concatenate([pixels for pixels, _ in read]), labels=np.concatenate([y for _, y in read]))


def read_cifar100(path: Path) -> Iterator[Part]:
    for split in ("train", "test"):
        pixels, labels = read_cifar_file(path / split, "fine_labels")
        yield Part(split, pixels, labels=labels)


def read_cifar_file(path: Path, key: str) -> tuple[np.ndarray, np.ndarray]:
    with reading(path, "CIFAR's Python file"):
        content = read_pickled_dict(path)
        _, shape, kind, column_major, data = content["data"].state
        if content["data"].name != ARRAY or kind.arguments[0] != "u1" or column_major:
            raise ValueError("its data are no array of bytes")
        pixels = np.frombuffer(data.encode("latin-1"), np.uint8).reshape(shape)
        return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(content[key])


# The first pattern that a name matches, or for a folder the name of any file in it, decides.
FOLDERS: dict[str, Reader] = {
    r"idx3-ubyte(\.gz)?$": read_idx,
    r"^data_batch_\d$|^test_batch$": read_cifar10,
    r"^meta$": read_cifar100,
    r"_32x32\.mat$": read_svhn,
    r"^labels\.npy$": read_corruptions,
}
FILES: dict[str, Reader] = {
    r"idx\d-ubyte(\.gz)?$": read_idx,
    r"\.npz$": read_npz,
    r"\.[ct]sv$": read_csv,
    r"\.txt$": read_txt,
    r"\.mat$": read_svhn,
    r"\.npy$": read_corruptions,
}
