"""The kernels of `demur.fused`. A matrix has `rows` and `channels`; a program holds a tile of ROWS x COLUMNS of it."""

# Triton compiles the source of these functions: it wants names of the module, and knows no annotations but its own
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """32 bits to others that look random."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(places, seeds, dropout: tl.constexpr):
    """Which values are not dropped; the same on the way back."""
    first, second = tl.load(seeds).to(tl.uint32), tl.load(seeds + 1).to(tl.uint32)
    bits = mixed(mixed(places.to(tl.uint32) ^ first) + second)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= dropout


@triton.jit
def sums(x, centre, out, rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of values and their squares; around what the mean has been, lest large numbers cancel."""
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < channels
    around = tl.load(centre + column, used, other=0.0)
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & used
        value = tl.load(x + row.to(tl.int64) * channels + column, inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - around, 0.0)
        first += value
        second += value * value
    place = out + tl.program_id(0) * 2 * channels + tl.arange(0, COLUMNS)
    tl.store(place, tl.sum(first, 0), tl.arange(0, COLUMNS) < channels)
    tl.store(place + channels, tl.sum(second, 0), tl.arange(0, COLUMNS) < channels)


@triton.jit
def totals(sums, channels, column, PROGRAMS: tl.constexpr):
    first = tl.zeros((64, 16), tl.float32)
    second = tl.zeros((64, 16), tl.float32)
    for start in range(0, PROGRAMS, 64):
        program = start + tl.arange(0, 64)[:, None]
        inside = (program < PROGRAMS) & (column[None, :] < channels)
        place = sums + program * 2 * channels + column[None, :]
        first += tl.load(place, inside, other=0.0)
        second += tl.load(place + channels, inside, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def statistics(sums, weight, bias, mean, variance, out, rows, channels, eps, pace, PROGRAMS: tl.constexpr):
    """Mean, 1 / standard deviation, scale and shift; the running ones follow."""
    column = tl.program_id(0) * 16 + tl.arange(0, 16)
    used = column < channels
    first, second = totals(sums, channels, column, PROGRAMS)
    before = tl.load(mean + column, used, other=0.0)
    off = first / rows
    found = before + off
    spread = tl.maximum(second / rows - off * off, 0.0)
    tl.store(mean + column, before + pace * off, used)
    old = tl.load(variance + column, used, other=0.0)
    tl.store(variance + column, old + pace * (spread * (rows / (rows - 1.0)) - old), used)
    inverse = 1.0 / tl.sqrt(spread + eps)
    scale = tl.load(weight + column, used, other=0.0) * inverse
    tl.store(out + column, found, used)
    tl.store(out + channels + column, inverse, used)
    tl.store(out + 2 * channels + column, scale, used)
    tl.store(out + 3 * channels + column, tl.load(bias + column, used, other=0.0) - found * scale, used)


@triton.jit
def total(sums, out, channels, PROGRAMS: tl.constexpr):
    column = tl.program_id(0) * 16 + tl.arange(0, 16)
    first, second = totals(sums, channels, column, PROGRAMS)
    tl.store(out + column, first, column < channels)
    tl.store(out + channels + column, second, column < channels)


@triton.jit
def apply(x, scale, shift, seeds, dropout: tl.constexpr, y, rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < channels
    inside = (row < rows) & used
    places = row.to(tl.int64) * channels + column
    value = tl.load(x + places, inside, other=0.0).to(tl.float32)
    value = value * tl.load(scale + column, used, other=0.0) + tl.load(shift + column, used, other=0.0)
    value = tl.where(value < 0.0, 0.0, value)  # NaN stays NaN
    if dropout > 0.0:
        value = tl.where(kept(places, seeds, dropout), value / (1.0 - dropout), 0.0)
    tl.store(y + places, value, inside)


@triton.jit
def passed(x, dy, places, inside, column, used, found, seeds, dropout: tl.constexpr, channels):
    """What of the gradient comes through dropout and ReLU; and x normalised."""
    value = tl.load(x + places, inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + places, inside, other=0.0).to(tl.float32)
    scale = tl.load(found + 2 * channels + column, used, other=0.0)
    open_ = value * scale + tl.load(found + 3 * channels + column, used, other=0.0) > 0.0
    if dropout > 0.0:
        open_ = open_ & kept(places, seeds, dropout)
        gradient = gradient / (1.0 - dropout)
    normal = value - tl.load(found + column, used, other=0.0)
    normal = normal * tl.load(found + channels + column, used, other=0.0)
    return tl.where(open_ & inside, gradient, 0.0), normal


@triton.jit
def gradient_sums(
    x, dy, found, seeds, dropout: tl.constexpr, out, rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < channels
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & used
        places = row.to(tl.int64) * channels + column
        gradient, normal = passed(x, dy, places, inside, column, used, found, seeds, dropout, channels)
        first += gradient
        second += gradient * normal
    place = out + tl.program_id(0) * 2 * channels + tl.arange(0, COLUMNS)
    tl.store(place, tl.sum(first, 0), tl.arange(0, COLUMNS) < channels)
    tl.store(place + channels, tl.sum(second, 0), tl.arange(0, COLUMNS) < channels)


@triton.jit
def gradient(
    x, dy, through, has_through: tl.constexpr, found, gradients, seeds, dropout: tl.constexpr, dx, rows, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < channels
    inside = (row < rows) & used
    places = row.to(tl.int64) * channels + column
    own, normal = passed(x, dy, places, inside, column, used, found, seeds, dropout, channels)
    own -= tl.load(gradients + column, used, other=0.0) / rows
    own -= normal * tl.load(gradients + channels + column, used, other=0.0) / rows
    own *= tl.load(found + 2 * channels + column, used, other=0.0)
    if has_through:
        own += tl.load(through + places, inside, other=0.0).to(tl.float32)
    tl.store(dx + places, own, inside)
