"""Encoded pictures to pixels, on every core.

Pillow holds the interpreter's lock for most of a small picture's time, so threads gain nothing: on two free cores one
thread decoded 13,000 to 16,000 WebP pictures of 32x32 a second, two threads 15,000 to 17,000, a pool of two forked
processes 25,000 (PNG of 28x28: 34,000, 22,000, 55,000). The processes here are this file run as a script, because
multiprocessing would either fork a program that may hold threads and a GPU, or import the caller's main module again.
That costs their start (0.1 s each) and the piping, so they pay on free cores and in large files only.
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

# Naming the formats spares Pillow a tour of all its plugins: twice as fast for WebP.
FORMATS = ("PNG", "WEBP", "JPEG")
# What can be read without loss of colour, by the number of channels.
MODES = {1: ("L", "1"), 3: ("RGB", "L", "1", "P")}
# With fewer pictures than this a process is not worth its start.
WORTH_A_PROCESS = 4000

Shape = tuple[int, int, int]  # channels, height, width


def decode(pictures: Sequence[bytes | None], shape: Shape) -> bytes:
    """The pixels of one picture after another, (N, height, width, channels), uint8.

    A picture that is damaged or of another shape raises a ValueError with its number.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = min(cores, len(pictures) // WORTH_A_PROCESS)
    if shares < 2:
        return decode_here(pictures, shape, 0)
    bounds = [len(pictures) * share // shares for share in range(shares + 1)]

    def decode_share(start: int, stop: int) -> bytes:
        return decode_in_process(pictures[start:stop], shape, start)

    with ThreadPoolExecutor(shares) as pool:
        return b"".join(pool.map(decode_share, bounds[:-1], bounds[1:]))


def picture_shape(encoded: bytes | None) -> Shape:
    """The shape that a set beginning with this picture has."""
    try:
        picture = Image.open(io.BytesIO(encoded or b""), formats=FORMATS)
    except OSError as error:
        raise ValueError(f"picture 0 is damaged ({error})") from error
    return 1 if picture.mode in MODES[1] else 3, picture.height, picture.width


def is_deep(picture: Image.Image) -> bool:
    """Whether it has 16 bits a channel, of which Pillow drops half without a word; to be asked before it is loaded."""
    for decoder, _, _, arguments in getattr(picture, "tile", ()):
        first, *_, last = arguments if isinstance(arguments, tuple) else (arguments, arguments)
        if ";16" in str(first) or (decoder.startswith("ppm") and isinstance(last, int) and last > 255):
            return True
    return False


def flattened(picture: Image.Image, mode: str) -> Image.Image:
    """In another mode; what is transparent shows a white ground."""
    if not picture.has_transparency_data:
        return picture if picture.mode == mode else picture.convert(mode)
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert(mode)


def decode_here(pictures: Sequence[bytes | None], shape: Shape, first: int) -> bytes:
    """Pixels, decoded in this process; errors count the pictures from `first`."""
    channels, height, width = shape
    mode = MODES[channels][0]
    pixels = []
    for number, encoded in enumerate(pictures, first):
        if not encoded:
            raise ValueError(f"picture {number} is empty")
        try:
            picture = Image.open(io.BytesIO(encoded), formats=FORMATS)
            if picture.size != (width, height) or picture.mode not in MODES[channels] or is_deep(picture):
                found = f"{picture.width}x{picture.height} {'16-bit ' * is_deep(picture)}{picture.mode}"
                raise ValueError(f"picture {number} is {found}, not {width}x{height} {mode}")
            pixels.append(flattened(picture, mode).tobytes())
        except (OSError, SyntaxError) as error:
            raise ValueError(f"picture {number} is damaged ({error})") from error
    return b"".join(pixels)


def decode_in_process(pictures: Sequence[bytes | None], shape: Shape, first: int) -> bytes:
    """decode_here, in a process of its own."""
    parcel = b"".join(len(picture or b"").to_bytes(4) + (picture or b"") for picture in pictures)
    command = [sys.executable, "-P", __file__, *map(str, shape), str(first)]
    worker = subprocess.run(command, input=parcel, capture_output=True)
    if worker.returncode:
        said = worker.stderr.decode().strip().splitlines() or [f"decoding ended with status {worker.returncode}"]
        raise ValueError(said[-1].removeprefix("ValueError: "))
    return worker.stdout


def unpack(parcel: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(parcel):
        stop = start + 4 + int.from_bytes(parcel[start : start + 4])
        yield parcel[start + 4 : stop]
        start = stop


if __name__ == "__main__":
    channels, height, width, first = map(int, sys.argv[1:])
    pictures = list(unpack(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(decode_here(pictures, (channels, height, width), first))
