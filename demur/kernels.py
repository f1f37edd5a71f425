"""The kernel of `demur.fused`. A program holds ROWS x COLUMNS of a matrix that has `rows` and `channels`."""

# Triton compiles the source of a function: it wants names of the module, and knows no annotations but its own
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def scale_shift_relu(x, scale, shift, y, rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < channels
    inside = (row < rows) & used
    places = row.to(tl.int64) * channels + column
    value = tl.load(x + places, inside, other=0.0).to(tl.float32)
    value = value * tl.load(scale + column, used, other=0.0) + tl.load(shift + column, used, other=0.0)
    tl.store(y + places, tl.where(value < 0.0, 0.0, value), inside)  # NaN stays NaN
