"""The diagonal of the Fisher matrix, exactly per example, in bounded memory.

For every input x with logits f and information F = S S' about them, the diagonal is diag(J' F J), J = df/dweights. A
vector v = S z, z of random signs, gives an unbiased estimate (J' v)**2 from one backward pass; the columns of S give
the exact value from C of them. Either way per-example gradients are squared and summed:

- layer by layer, from inputs and output gradients, where a rule knows how (RULES);
- by vmap for the parameters of everything else;
- one example at a time where vmap cannot go (nn.GRU).
"""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F

from demur.networks import PatchConv2d, as_input, mixed_precision

logger = logging.getLogger(__name__)
Root = Callable[[Tensor], Tensor]  # logits (B, C) to S (B, C, R)
CACHED = 2**20  # numbers that stay in a CPU's cache, where a convolution's patches are twice as fast to work on


# rules: (layer, its input, gradient of its output) to each parameter's squared per-example gradients, summed -------


def _linear(layer: nn.Linear, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    if x.dim() == 2:  # the gradient is an outer product, so its square is one too
        g, x = g.to(_wide(g.dtype)), x.to(_wide(x.dtype))
        return {"weight": (g**2).mT @ x**2, "bias": (g**2).sum(0)}
    g, x = g.flatten(1, -2), x.flatten(1, -2)
    return {"weight": _squares(g.mT @ x), "bias": _squares(g.sum(1))}


def _conv2d(layer: nn.Conv2d, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    patches = layer.groups * layer.weight[0].numel() * g[0, 0].numel()
    at_once = len(x) if x.is_cuda else max(1, CACHED // patches)
    weight = x.new_zeros((), dtype=_wide(g.dtype))
    for some, their_g in zip(x.split(at_once), g.split(at_once), strict=True):
        weight = weight + _squares(_conv2d_gradients(layer, some, their_g))
    height, width = layer.kernel_size
    weight = weight.reshape(len(layer.weight), height, width, -1).permute(0, 3, 1, 2)
    return {"weight": weight, "bias": _squares(g.sum((2, 3)))}


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
        return {"weight": _squares(normal * g), "bias": _squares(g)}
    return {"weight": _squares((normal * g).sum(between)), "bias": _squares(g.sum(between))}


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
        return {"weight": _squares(normal * g), "bias": _squares(g)}
    places = tuple(range(2, g.dim()))
    return {"weight": _squares((normal * g).sum(places)), "bias": _squares(g.sum(places))}


def _squares(per_example: Tensor) -> Tensor:
    if not per_example.is_cuda:
        return per_example.square().sum(0)
    # what came in bfloat16 is summed in float32
    return torch.linalg.vector_norm(per_example, dim=0, dtype=_wide(per_example.dtype)).square()


def _wide(dtype: torch.dtype) -> torch.dtype:
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


def _has_rule(module: nn.Module) -> bool:
    # exact types: a subclass, or a layer with a parametrisation, may compute something else
    if type(module) not in RULES:
        return False
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return module.running_mean is not None
    return not (isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq))


# the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How the Fisher will be computed: which parameters how, and how many examples at a time."""

    layers: tuple[str, ...]  # modules with a rule
    rest: tuple[str, ...]  # parameters without
    vectorised: bool  # whether vmap can go through the network, for the rest
    bytes_per_example: int
    chunk: int

    def __str__(self) -> str:
        way = "by vmap" if self.vectorised else "one example at a time"
        rest = f", {len(self.rest)} parameters {way}" if self.rest else ""
        return (
            f"{len(self.layers)} layers by rule{rest}; "
            f"{self.chunk} examples at a time, {self.bytes_per_example / 2**20:.1f} MiB each"
        )


def make_plan(network: nn.Module, x: Tensor, budget: int, only: Collection[str] | None = None) -> Plan:
    """Look at two tiny batches to see what each layer is given, then fit the chunk to `budget` bytes."""
    wanted = set(_wanted(network, only))
    modules = {name: module for name, module in network.named_modules() if _has_rule(module)}
    owners = Counter(id(p) for module in network.modules() for p in module.parameters(recurse=False))
    saved: dict[int, int] = {}
    fits = Counter[str]()
    # one example may be repeated: with sizes that no inner dimension is likely to have, both must appear in front
    sizes = (2, 3)
    for size in sizes:
        saved[size], calls, workspace = _watch(network, modules, as_input(x[:1].expand(size, *x.shape[1:])))
        fits.update(name for name, leading in calls.items() if leading == [size])
    layers = tuple(
        name
        for name, module in modules.items()
        if fits[name] == len(sizes)
        and any(_join(name, p) in wanted for p, _ in module.named_parameters(recurse=False))
        and all(owners[id(p)] == 1 for p in module.parameters(recurse=False))
    )
    covered = {_join(name, p) for name in layers for p, _ in modules[name].named_parameters(recurse=False)}
    parameters = dict(network.named_parameters())
    rest = tuple(name for name in parameters if name in wanted - covered)
    vectorised = not rest or _vmap_works(network, rest, as_input(x[:2]))
    # what autograd keeps, three of the largest gradients on their way, and the largest layer's own gradients
    largest = max((workspace[name] for name in layers), default=0)
    gradients = 4 * sum(parameters[name].numel() for name in rest) if vectorised else 0
    counted = (saved[3] - saved[2]) + max(largest, 2 * gradients) + saved[2] // 2
    per_example = counted * 3 // 2  # layouts are converted and buffers kept in places that cannot be seen from here
    return Plan(layers, rest, vectorised, per_example, max(1, budget // max(1, per_example)))


def _wanted(network: nn.Module, only: Collection[str] | None) -> list[str]:
    """What is asked for, or every parameter that was trained."""
    return [name for name, p in network.named_parameters() if (p.requires_grad if only is None else name in only)]


def _join(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _watch(
    network: nn.Module, modules: Mapping[str, nn.Module], x: Tensor
) -> tuple[int, dict[str, list[int]], dict[str, int]]:
    """Bytes that autograd saves, the leading dimensions each layer was called with, bytes a rule needs an example."""
    storages: dict[int, int] = {}
    calls: dict[str, list[int]] = {name: [] for name in modules}
    workspace: dict[str, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[name].append(len(inputs[0]))
        weights = sum(p.numel() for p in module.parameters(recurse=False))
        outer = inputs[0].dim() == 2 or isinstance(module, nn.Embedding)
        patches = (
            module.weight[0].numel() * output[0, 0].numel() * module.groups if isinstance(module, nn.Conv2d) else 0
        )
        workspace[name] = 4 * ((0 if outer else 2 * weights) + patches + 3 * output[0].numel())

    with hooked(modules, note), saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x.clone().requires_grad_().clone() if x.is_floating_point() else x)
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    return sum(n for pointer, n in storages.items() if pointer not in weights), calls, workspace


@contextmanager
def hooked(modules: Mapping[str, nn.Module], hook: Callable[..., Tensor | None]) -> Iterator[None]:
    """Call hook(name, module, inputs, output) after each of the modules' forward passes."""
    handles = []
    for name, module in modules.items():

        def call(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> Tensor | None:
            return hook(name, module, inputs, output)

        handles.append(module.register_forward_hook(call))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# the sum -----------------------------------------------------------------------------------------------------------


def diagonal_fisher(
    network: nn.Module,
    root: Root,
    x: Tensor,
    *,
    signs: Tensor | None = None,
    budget: int | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """diag(sum over x of J' S S' J), by parameter name.

    `signs`, (N, R) of +-1, gives the estimate from one backward pass; None the exact value from R. `only` names the
    parameters that are wanted. Memory beyond the network's stays under `budget` bytes, if one example fits into it;
    by default that is 256 MiB, or on a GPU a sixteenth of what it has.
    """
    if network.training:
        raise ValueError("the network is in training mode; call .eval(), so that examples do not mix in batch norm")
    if budget is None:
        budget = torch.cuda.get_device_properties(x.device).total_memory // 16 if x.is_cuda else 2**28
    plan = make_plan(network, x, budget, only)
    logger.info("Fisher of %d examples: %s", len(x), plan)
    parameters = dict(network.named_parameters())
    total = {name: torch.zeros_like(parameters[name]).detach() for name in _wanted(network, only)}
    for start in range(0, len(x), plan.chunk):
        rows = slice(start, start + plan.chunk)
        inputs = as_input(x[rows])
        vectors = _by_rules(network, plan.layers, root, inputs, None if signs is None else signs[rows], total)
        if plan.rest:
            for v in vectors:
                _by_gradients(network, plan, inputs, v, total)
    return total


def batch_mean_fisher(
    network: nn.Module,
    root: Root,
    x: Tensor,
    signs: Tensor,
    *,
    batch_size: int = 128,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """What the paper's code takes for the diagonal: squares of the gradients' mean over a batch, summed over batches.

    It is smaller than the Fisher by the square of the batch size, in expectation.
    """
    named = {name: network.get_parameter(name) for name in _wanted(network, only)}
    total = {name: torch.zeros_like(p).detach() for name, p in named.items()}
    with _differentiable(network):
        for rows in torch.arange(len(x), device=x.device).split(batch_size):
            logits = network(as_input(x[rows]))
            s = root(logits.detach())
            v = (s @ signs[rows].to(s).unsqueeze(-1)).squeeze(-1) / len(rows)
            for name, gradient in zip(
                named, torch.autograd.grad(logits, list(named.values()), v, materialize_grads=True), strict=True
            ):
                total[name] += gradient**2
    return total


def _by_rules(
    network: nn.Module, layers: Collection[str], root: Root, x: Tensor, signs: Tensor | None, total: dict[str, Tensor]
) -> list[Tensor]:
    """Add what the layers' rules give; return the vectors that were sent backwards, each (B, C)."""
    leaves: list[Tensor] = []

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given = inputs[0].detach()
        if output.is_floating_point() and given.is_floating_point():
            given = given.to(output.dtype)  # one precision for a rule's products
        if not output.requires_grad:
            leaves.append(output.detach().requires_grad_())
            output = leaves[-1].clone()  # no leaf, so that what follows may work in place

        def add(gradient: Tensor) -> None:
            with torch.no_grad():
                for parameter, value in RULES[type(module)](module, given, gradient).items():
                    if _join(name, parameter) in total:
                        total[_join(name, parameter)] += value

        output.register_hook(add)
        return output

    frozen = {name: p.detach() for name, p in network.named_parameters()}
    with hooked({name: network.get_submodule(name) for name in layers}, record), _differentiable(network):
        with mixed_precision(network, x.device):
            logits = functional_call(network, frozen, (x.clone(),))  # which may begin in place
        s = root(logits.detach())
        vectors = list(s.unbind(-1)) if signs is None else [(s @ signs.to(s).unsqueeze(-1)).squeeze(-1)]
        for remaining, v in zip(reversed(range(len(vectors))), vectors, strict=True):
            if leaves:
                torch.autograd.grad(logits, leaves, v, retain_graph=remaining > 0, allow_unused=True)
    return vectors


def _by_gradients(network: nn.Module, plan: Plan, x: Tensor, v: Tensor, total: dict[str, Tensor]) -> None:
    if plan.vectorised:
        gradients = _vectorised_gradients(network, plan.rest, x, v)
        for name in plan.rest:
            total[name] += _squares(gradients[name].detach())
        return
    named = dict(network.named_parameters())
    with _differentiable(network):
        for example, vector in zip(x, v, strict=True):
            value = network(example.unsqueeze(0).clone()).squeeze(0)
            wanted = [named[name] for name in plan.rest]
            for name, gradient in zip(
                plan.rest, torch.autograd.grad(value, wanted, vector, materialize_grads=True), strict=True
            ):
                total[name] += gradient**2


def _vectorised_gradients(network: nn.Module, names: Collection[str], x: Tensor, v: Tensor) -> dict[str, Tensor]:
    """J' v of every example, (B, ...) by parameter name."""
    frozen = {name: p.detach() for name, p in network.named_parameters()}
    wanted = {name: frozen[name] for name in names}

    def gradient(example: Tensor, vector: Tensor) -> dict[str, Tensor]:
        def logits(chosen: dict[str, Tensor]) -> Tensor:
            return functional_call(network, frozen | chosen, (example.unsqueeze(0).clone(),)).squeeze(0)

        return vjp(logits, wanted)[1](vector)[0]

    with warnings.catch_warnings():  # some operations, attention on a CPU among them, are looped over inside vmap
        warnings.filterwarnings("ignore", "There is a performance drop")
        return vmap(gradient)(x, v)


def _vmap_works(network: nn.Module, names: Collection[str], x: Tensor) -> bool:
    with torch.no_grad():
        v = torch.zeros_like(network(x.clone()))
    try:
        _vectorised_gradients(network, names, x, v)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as reason:
        logger.info("vmap cannot go through %s (%s); its parameters take one example at a time", type(network), reason)
        return False
    return True


def _differentiable(network: nn.Module) -> AbstractContextManager[None]:
    # cuDNN's recurrent layers have no backward pass in eval mode; torch's own have
    recurrent = any(isinstance(module, nn.RNNBase) for module in network.modules())
    return torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
