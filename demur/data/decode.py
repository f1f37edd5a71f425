"""Encoded images to pixels, on every core.

Pillow holds the interpreter's lock for most of a small image's time, so threads gain nothing: on two free cores one
thread decoded 13,000 to 16,000 WebP images of 32x32 a second, two threads 15,000 to 17,000, a pool of two forked
processes 25,000 (PNG of 28x28: 34,000, 22,000, 55,000). The processes here are this file run as a script, because
multiprocessing would either fork a program that may hold threads and a GPU, or import the caller's main module again.
That costs their start (0.1 s each) and the piping, so they pay on free cores and in large files only.
"""

import io
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

# Naming the formats spares Pillow a tour of all its plugins: twice as fast for WebP.
FORMATS = ("PNG", "WEBP", "JPEG")
# What can be read without loss of colour, by the number of channels.
MODES = {1: ("L", "1"), 3: ("RGB", "L", "1", "P")}
# What Pillow raises of damaged images, and of such as would take all memory.
DAMAGE = (OSError, SyntaxError, struct.error, Image.DecompressionBombError)
# With fewer images than this a process is not worth its start.
WORTH_A_PROCESS = 4000

Shape = tuple[int, int, int]  # channels, height, width


def decode(images: Sequence[bytes | None], shape: Shape) -> bytes:
    """The pixels of one image after another, (N, height, width, channels), uint8.

    An image that is damaged or of another shape raises a ValueError with its number.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = min(cores, len(images) // WORTH_A_PROCESS)
    if shares < 2:
        return decode_here(images, shape, 0)
    bounds = [len(images) * share // shares for share in range(shares + 1)]

    def decode_share(start: int, stop: int) -> bytes:
        return decode_in_process(images[start:stop], shape, start)

    with ThreadPoolExecutor(shares) as pool:
        return b"".join(pool.map(decode_share, bounds[:-1], bounds[1:]))


def image_shape(encoded: bytes | None) -> Shape:
    """The shape that a set beginning with this image has."""
    try:
        image = Image.open(io.BytesIO(encoded or b""), formats=FORMATS)
    except DAMAGE as error:
        raise ValueError(f"image 0 is damaged ({error})") from error
    return 1 if image.mode in MODES[1] else 3, image.height, image.width


def is_deep(image: Image.Image) -> bool:
    """Whether it has 16 bits a channel, of which Pillow drops half without a word; to be asked before it is loaded."""
    for decoder, _, _, arguments in getattr(image, "tile", ()):
        first, *_, last = arguments if isinstance(arguments, tuple) else (arguments, arguments)
        if ";16" in str(first) or (decoder.startswith("ppm") and isinstance(last, int) and last > 255):
            return True
    return False


def convert_mode(image: Image.Image, mode: str) -> Image.Image:
    """In another mode; what is transparent shows a white ground."""
    if not image.has_transparency_data:
        return image if image.mode == mode else image.convert(mode)
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert(mode)


def decode_here(images: Sequence[bytes | None], shape: Shape, first: int) -> bytes:
    """Pixels, decoded in this process; errors count the images from `first`."""
    channels, height, width = shape
    mode = MODES[channels][0]
    pixels = []
    for number, encoded in enumerate(images, first):
        if not encoded:
            raise ValueError(f"image {number} is empty")
        try:
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
            if image.size != (width, height) or image.mode not in MODES[channels] or is_deep(image):
                actual = f"{image.width}x{image.height} {'16-bit ' * is_deep(image)}{image.mode}"
                raise ValueError(f"image {number} is {actual}, not {width}x{height} {mode}")
            pixels.append(convert_mode(image, mode).tobytes())
        except DAMAGE as error:
            raise ValueError(f"image {number} is damaged ({error})") from error
    return b"".join(pixels)


def decode_in_process(images: Sequence[bytes | None], shape: Shape, first: int) -> bytes:
    """decode_here, in a process of its own."""
    parcel = b"".join(len(image or b"").to_bytes(4) + (image or b"") for image in images)
    command = [sys.executable, "-P", __file__, *map(str, shape), str(first)]
    worker = subprocess.run(command, input=parcel, capture_output=True)
    if worker.returncode:
        errors = worker.stderr.decode().strip().splitlines() or [f"decoding ended with status {worker.returncode}"]
        raise ValueError(errors[-1].removeprefix("ValueError: "))
    return worker.stdout


def unpack(parcel: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(parcel):
        stop = start + 4 + int.from_bytes(parcel[start : start + 4])
        yield parcel[start + 4 : stop]
        start = stop


if __name__ == "__main__":
    channels, height, width, first = map(int, sys.argv[1:])
    images = list(unpack(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(decode_here(images, (channels, height, width), first))
