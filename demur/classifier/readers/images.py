"""Images, in a folder or one alone."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from demur.classifier.readers.base import BATCH, Batch, Inputs, Size
from demur.data.decode import Shape, convert_mode, is_deep
from demur.data.formats import IMAGES, find_files, reading, split_named

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")  # those of IMAGES; Pillow's other parsers stay shut
GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
LARGEST = 64  # pixels of the longer side, where nobody states a size
PIXELS = 2**24  # at most in a batch of images
TRAINED_AT_ONCE = 256  # inliers and outliers, as floats, with at least
CHANNELS = 32  # in the first layer of a network


def open_images(path: Path, labelled: bool, size: Size | None, channels: int | None, tolerant: bool) -> Inputs:
    root = path if path.is_dir() else path.parent
    files = find_files(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no images; give a folder of {', '.join(sorted(IMAGES))} files")
    if labelled:
        check_class_folders(path, [file.relative_to(root) for file in files])
    if size is None or channels is None:
        usual = usual_shape(files)
        size, channels = size or usual[1:], channels or usual[0]
    shape = (channels, *size)
    if labelled:
        check_memory(len(files), shape)
    names = [printable(file.relative_to(root).as_posix()) for file in files]
    labels = [printable(file.relative_to(root).parts[0]) for file in files] if labelled else None
    return Inputs("images", image_batches(names, files, shape, tolerant, labels), shape=shape)


def image_batches(
    names: Sequence[str],
    files: Sequence[Path | Callable[[], BinaryIO]],
    shape: Shape,
    tolerant: bool,
    labels: Sequence[str] | None = None,
) -> Iterator[Batch]:
    """Images, each a path or a function that opens it, some at a time."""
    count = max(1, min(BATCH, PIXELS // math.prod(shape)))
    for start in range(0, len(files), count):
        part = slice(start, start + count)
        decoded = decode(files[part], shape, names[part])
        wrong = {place: str(error) for place, error in enumerate(decoded) if isinstance(error, ValueError)}
        if wrong and not tolerant:
            raise next(error for error in decoded if isinstance(error, ValueError))
        pixels = [image for image in decoded if isinstance(image, np.ndarray)]
        x = np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8)
        yield Batch(list(names[part]), x, None if labels is None else list(labels[part]), wrong)


def decode(
    files: Sequence[Path | Callable[[], BinaryIO]], shape: Shape, names: Sequence[str | None]
) -> list[np.ndarray | ValueError]:
    """Each image, or why it cannot be read; in threads, since Pillow lets others run while it decodes."""

    def one(file: Path | Callable[[], BinaryIO], name: str | None) -> np.ndarray | ValueError:
        try:
            return read_image(file, shape, name)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        return list(threads.map(one, files, names))


def read_images(files: Sequence[Path], shape: Shape) -> np.ndarray:
    """Some images (N, channels, height, width), all of which must be readable."""
    batches = image_batches([str(file) for file in files], files, shape, tolerant=False)
    return np.concatenate([np.empty((0, *shape), np.uint8), *(np.asarray(batch.x) for batch in batches)])


def printable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 are written as \\xe9."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_class_folders(path: Path, places: Sequence[Path]) -> None:
    """Labels are the names of the folders, so every image must be in one, and train/ and test/ are not classes."""
    remedy = "put each class's images in a folder of the class's name"
    if not path.is_dir():
        raise ValueError(f"{path} is one image, without a label; {remedy}, and give the folder that holds them")
    stray = next((place for place in places if len(place.parts) == 1), None)
    if stray is not None:
        raise ValueError(f"{path} has an image outside the class folders, {stray}; {remedy}")
    classes = sorted({place.parts[0] for place in places})
    if all(split_named(name) for name in classes):
        raise ValueError(f"{path} holds {' and '.join(classes)}, which are no classes; give one of these folders")
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in classes:
            warnings.warn(f"{folder} holds no images, so it is no class", stacklevel=2)


def check_memory(count: int, shape: Shape) -> None:
    """Refuse images that would not fit into this machine, before the first is read."""
    batch = 4 * CHANNELS * min(2 * count, TRAINED_AT_ONCE) * shape[1] * shape[2]
    needed = 2 * count * math.prod(shape) + batch  # twice while they are put together
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**40
    if needed > there:
        raise ValueError(
            f"{count:,} images of {shape[1]}x{shape[2]} take {needed / 2**30:,.0f} GiB to train with, and this "
            f"machine has {there / 2**30:,.0f}; give a smaller size, such as --size {LARGEST}"
        )


def usual_shape(files: Sequence[Path]) -> Shape:
    """RGB if any image has colours; the most frequent size, made smaller where it is larger than LARGEST."""
    sizes: Counter[tuple[int, int]] = Counter()
    channels = 1
    for file in files:
        with open_image(file) as image:
            turned = image.getexif().get(0x0112, 1) >= 5  # lying on its side, by EXIF's orientation
            sizes[image.size[::-1] if not turned else image.size] += 1
            channels = max(channels, 3 if image.mode in COLOUR else 1)
    (height, width), _ = sizes.most_common(1)[0]
    shrink = min(1.0, LARGEST / max(height, width))
    return channels, max(1, round(shrink * height)), max(1, round(shrink * width))


def read_image(file: Path | Callable[[], BinaryIO], shape: Shape, name: str | None = None) -> np.ndarray:
    """Pixels (channels, height, width), the right way up, on white where the image is transparent."""
    if isinstance(file, Path):
        with open_image(file) as image:
            return pixels_of(image, shape)
    with file() as stream, open_image(stream, name) as image:
        return pixels_of(image, shape)


def pixels_of(image: Image.Image, shape: Shape) -> np.ndarray:
    channels, height, width = shape
    upright = convert_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
    pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR))
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def open_image(file: Path | BinaryIO, name: str | None = None) -> Iterator[Image.Image]:
    """An image of a colour space that can be read; its damage, whenever it is found, is told in one sentence."""
    called = Path(name or str(file))
    with reading(called, "an image"), _begun(file) as image:
        if image.mode not in GREY + COLOUR or is_deep(image):
            depth = "16-bit " * is_deep(image)
            raise ValueError(f"its pixels are {depth}{image.mode}, not 8-bit grey or RGB; convert it")
        yield image


def _begun(file: Path | BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:  # whose own words name an object of Python's
        raise ValueError(f"it begins as no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} does") from None
