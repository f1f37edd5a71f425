"""Batch norm, ReLU and dropout in the fewest passes over memory, on a GPU where Triton works; torch's own elsewhere.

Values lie channels last: (N, C, H, W) is a matrix of N H W rows and C columns, and a norm is what a column needs.
"""

import logging
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

logger = logging.getLogger(__name__)

TILE = 4096  # values that a program of the GPU holds at a time
PROGRAMS = 528  # that share the rows of a sum: four a multiprocessor of an H100
WARPS = 4


def norm_relu(x: Tensor, norm: nn.BatchNorm2d, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """Dropout of relu(norm(x)); and x, for whoever needs it as well: its two gradients are added on the way back."""
    if not fits(x, norm):
        h = F.relu_(norm(x))
        return (F.dropout(h, dropout) if dropout and norm.training else h), x
    mean, variance, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    with torch.cuda.device(x.device):  # Triton would take the current one
        if not norm.training:
            scale = norm.weight * torch.rsqrt(variance + norm.eps)
            return rectified(x, scale, norm.bias - mean * scale, None, 0.0), x
        count.add_(1)
        given = norm.weight, norm.bias, mean, variance, norm.eps, norm.momentum, dropout
        found: tuple[Tensor, Tensor] = NormRelu.apply(x, *given)  # type: ignore[no-untyped-call]
        return found


def fits(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernels do what the norm does: an ordinary one, on a GPU; in eval mode they have no gradient."""
    ordinary = norm.affine and norm.track_running_stats and norm.momentum is not None
    return (
        x.is_cuda
        and ordinary
        and norm.weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and (norm.training or not torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
        and usable()
    )


@lru_cache
def usable() -> bool:
    """Whether a kernel can be run: that takes Triton, a compiler of C, and a folder to keep what was compiled."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    try:
        few = torch.ones(1, 2, 1, 1, device="cuda")
        rectified(few, few.flatten(), few.flatten(), None, 0.0)
    except Exception as reason:  # Triton raises whatever its tools do
        logger.info("Triton does not work here (%s); batch norms take more passes", reason)
        return False
    return True


class NormRelu(torch.autograd.Function):
    """In training: statistics are the batch's own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        pace: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        sums, found = partial_sums(x), x.new_empty(4, channels, dtype=torch.float32)
        kernels().sums[(PROGRAMS,)](x, mean, sums, rows, channels, *tile(channels), num_warps=WARPS)
        kernels().statistics[grid(channels)](
            sums, weight, bias, mean, variance, found, rows, channels, eps, pace, PROGRAMS, num_warps=WARPS
        )
        # on the device, so that a recorded step draws anew
        seeds = torch.randint(2**31 - 1, (2,), dtype=torch.int32, device=x.device) if dropout else None
        y = rectified(x, found[2], found[3], seeds, dropout)
        ctx.save_for_backward(x, found, seeds)
        ctx.dropout = dropout
        ctx.set_materialize_grads(False)
        return y, x

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:
        x, found, seeds = ctx.saved_tensors
        if dy is None:
            return through, *[None] * 7
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        dy = dy.contiguous(memory_format=torch.channels_last)
        if through is not None:
            through = through.contiguous(memory_format=torch.channels_last)
        sums, gradients = partial_sums(x), x.new_empty(2, channels, dtype=torch.float32)
        dropped = seeds if seeds is not None else x, ctx.dropout
        kernels().gradient_sums[(PROGRAMS,)](
            x, dy, found, *dropped, sums, rows, channels, *tile(channels), num_warps=WARPS
        )
        kernels().total[grid(channels)](sums, gradients, channels, PROGRAMS, num_warps=WARPS)
        dx = torch.empty_like(x)
        kernels().gradient[(-(-rows // tile(channels)[0]),)](
            x, dy, dx if through is None else through, through is not None, found, gradients, *dropped, dx,
            rows, channels, *tile(channels), num_warps=WARPS,
        )  # fmt: skip
        return dx, gradients[1], gradients[0], *[None] * 5


def rectified(x: Tensor, scale: Tensor, shift: Tensor, seeds: Tensor | None, dropout: float) -> Tensor:
    y, channels = torch.empty_like(x), x.shape[1]
    rows = x.numel() // channels
    kernels().apply[(-(-rows // tile(channels)[0]),)](
        x, scale, shift, x if seeds is None else seeds, dropout, y, rows, channels, *tile(channels), num_warps=WARPS
    )
    return y


def tile(channels: int) -> tuple[int, int]:
    """Rows and columns, powers of two."""
    columns = 1 << (channels - 1).bit_length()
    return max(1, TILE // columns), columns


def grid(channels: int) -> tuple[int]:
    return (-(-channels // 16),)


def partial_sums(x: Tensor) -> Tensor:
    """Two of each program."""
    return x.new_empty(PROGRAMS, 2, x.shape[1], dtype=torch.float32)


@lru_cache
def kernels() -> ModuleType:
    return import_module("demur.kernels")
