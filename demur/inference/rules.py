"""From a layer, its input and the gradient of its output to each parameter's squared per-example gradients, summed."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demur.networks import PatchConv2d

CACHED = 2**20  # numbers that stay in a CPU's cache, where a convolution's patches are twice as fast to work on


def _linear(layer: nn.Linear, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    if x.dim() == 2:  # the gradient is an outer product, so its square is one too
        g, x = g.to(wide(g.dtype)), x.to(wide(x.dtype))
        return {"weight": (g**2).mT @ x**2, "bias": (g**2).sum(0)}
    g, x = g.flatten(1, -2), x.flatten(1, -2)
    return {"weight": squares(g.mT @ x), "bias": squares(g.sum(1))}


def _conv2d(layer: nn.Conv2d, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    patches = layer.groups * layer.weight[0].numel() * g[0, 0].numel()
    at_once = len(x) if x.is_cuda else max(1, CACHED // patches)
    weight = x.new_zeros((), dtype=wide(g.dtype))
    for block, their_g in zip(x.split(at_once), g.split(at_once), strict=True):
        weight = weight + squares(_conv2d_gradients(layer, block, their_g))
    height, width = layer.kernel_size
    weight = weight.reshape(len(layer.weight), height, width, -1).permute(0, 3, 1, 2)
    return {"weight": weight, "bias": squares(g.sum((2, 3)))}


def _conv2d_gradients(layer: nn.Conv2d, x: Tensor, g: Tensor) -> Tensor:
    """As of an affine layer on every place's patch; channels last, so that a patch's rows are contiguous."""
    groups, (height, width) = layer.groups, layer.kernel_size
    top, left = layer.padding  # type: ignore[str-unpack]
    x = F.pad(x, (left, left, top, top)).permute(0, 2, 3, 1)  # type: ignore[arg-type]
    batch, down, across, channel = x.stride()
    (row, column), (rows, columns) = layer.stride, g.shape[2:]
    patches = x.as_strided(
        (len(x), rows, columns, height, width, x.shape[3]),
        (batch, row * down, column * across, layer.dilation[0] * down, layer.dilation[1] * across, channel),
    )
    patches = patches.unflatten(5, (groups, -1)).movedim(5, 1).reshape(len(x), groups, rows * columns, -1)
    return g.flatten(2).unflatten(1, (groups, -1)) @ patches


def _batch_norm(layer: nn.BatchNorm2d, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    assert layer.running_mean is not None
    normal = F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)
    return _affine(normal, g)


def _group_norm(layer: nn.GroupNorm, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    return _affine(F.group_norm(x, layer.num_groups, eps=layer.eps), g)


def _layer_norm(layer: nn.LayerNorm, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    between = tuple(range(1, x.dim() - len(layer.normalized_shape)))
    if not between:
        return {"weight": squares(normal * g), "bias": squares(g)}
    return {"weight": squares((normal * g).sum(between)), "bias": squares(g.sum(between))}


def _embedding(layer: nn.Embedding, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    tokens = x.flatten(1)
    example = torch.arange(len(x), device=x.device)[:, None] * layer.num_embeddings
    # a word that occurs twice in an example has one gradient there, the sum
    pairs, index = (tokens + example).flatten().unique(return_inverse=True)
    gradient = g.new_zeros(len(pairs), layer.embedding_dim).index_add_(0, index, g.flatten(0, -2))
    token = pairs % layer.num_embeddings
    if layer.padding_idx is not None:
        gradient[token == layer.padding_idx] = 0
    return {"weight": torch.zeros_like(layer.weight).index_add_(0, token, gradient**2)}


def _affine(normal: Tensor, g: Tensor) -> dict[str, Tensor]:
    """A scale and a shift a channel; channels are the second dimension, places may follow."""
    if g.dim() == 2:
        return {"weight": squares(normal * g), "bias": squares(g)}
    places = tuple(range(2, g.dim()))
    return {"weight": squares((normal * g).sum(places)), "bias": squares(g.sum(places))}


def squares(per_example: Tensor) -> Tensor:
    if not per_example.is_cuda:
        return per_example.square().sum(0)
    # what came in bfloat16 is summed in float32
    return torch.linalg.vector_norm(per_example, dim=0, dtype=wide(per_example.dtype)).square()


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


RULES: Mapping[type[nn.Module], Callable[..., dict[str, Tensor]]] = MappingProxyType(
    {
        nn.Linear: _linear,
        nn.Conv2d: _conv2d,
        PatchConv2d: _conv2d,
        nn.BatchNorm1d: _batch_norm,
        nn.BatchNorm2d: _batch_norm,
        nn.GroupNorm: _group_norm,
        nn.LayerNorm: _layer_norm,
        nn.Embedding: _embedding,
    }
)


def has_rule(module: nn.Module) -> bool:
    # exact types: a subclass, or a layer with a parametrisation, may compute something else
    if type(module) not in RULES:
        return False
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return module.running_mean is not None
    return not (isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq))
