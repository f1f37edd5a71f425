"""Batch norm and ReLU of a network that predicts, in one pass over a GPU's memory where Triton works."""

import logging
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F

logger = logging.getLogger(__name__)

TILE = 4096  # values that a program of the GPU holds at a time
WARPS = 4


def norm_relu(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """ReLU of the normalised x: by the kernel where it fits, else by torch, as in training and on a CPU."""
    if not fits(x, norm):
        return F.relu_(norm(x))  # in place: less memory, and less of it moved
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    with torch.cuda.device(x.device):  # Triton would take the current one
        return rectified(x, scale, norm.bias - norm.running_mean * scale)


def fits(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernel does what the norm does; it has no gradient."""
    return (
        x.is_cuda
        and not norm.training
        and norm.affine
        and norm.track_running_stats
        and norm.weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
        and usable(x.device)
    )


@lru_cache
def usable(device: torch.device) -> bool:
    """Whether the kernel can be run: that takes Triton, a compiler of C, and a folder to keep what was compiled."""
    if find_spec("triton") is None:
        return False
    try:
        few = torch.ones(1, 2, 1, 1, device=device)
        with torch.cuda.device(device):
            rectified(few, few.flatten(), few.flatten())
    except Exception as reason:  # Triton raises whatever its tools do
        logger.info("Triton does not work here (%s); batch norm and ReLU take two passes", reason)
        return False
    return True


def rectified(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """ReLU of scale x + shift, by channel; channels lie last in memory, so x is a matrix of N H W rows."""
    from demur.kernels import scale_shift_relu

    y, channels = torch.empty_like(x), x.shape[1]
    rows, columns = x.numel() // channels, 1 << (channels - 1).bit_length()
    at_a_time = max(1, TILE // columns)
    scale_shift_relu[(-(-rows // at_a_time),)](x, scale, shift, y, rows, channels, at_a_time, columns, num_warps=WARPS)
    return y
