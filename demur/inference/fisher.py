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

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, vjp, vmap

from demur.inference.rules import RULES, has_rule, squares
from demur.networks import as_input, mixed_precision

logger = logging.getLogger(__name__)
Root = Callable[[Tensor], Tensor]  # logits (B, C) to S (B, C, R)


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
    wanted = set(wanted_of(network, only))
    modules = {name: module for name, module in network.named_modules() if has_rule(module)}
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
        and any(join(name, p) in wanted for p, _ in module.named_parameters(recurse=False))
        and all(owners[id(p)] == 1 for p in module.parameters(recurse=False))
    )
    covered = {join(name, p) for name in layers for p, _ in modules[name].named_parameters(recurse=False)}
    parameters = dict(network.named_parameters())
    rest = tuple(name for name in parameters if name in wanted - covered)
    vectorised = not rest or _vmap_works(network, rest, as_input(x[:2]))
    # what autograd keeps, three of the largest gradients on their way, and the largest layer's own gradients
    largest = max((workspace[name] for name in layers), default=0)
    gradients = 4 * sum(parameters[name].numel() for name in rest) if vectorised else 0
    counted = (saved[3] - saved[2]) + max(largest, 2 * gradients) + saved[2] // 2
    per_example = counted * 3 // 2  # layouts are converted and buffers kept in places that cannot be seen from here
    return Plan(layers, rest, vectorised, per_example, max(1, budget // max(1, per_example)))


def wanted_of(network: nn.Module, only: Collection[str] | None) -> list[str]:
    """What is asked for, or every parameter that was trained."""
    return [name for name, p in network.named_parameters() if (p.requires_grad if only is None else name in only)]


def plan_curvature(network: nn.Module, x: Tensor, budget: int | None, only: Collection[str] | None) -> Plan:
    """The plan for a network that is ready, within `budget` or what is usual."""
    if network.training:
        raise ValueError("the network is in training mode; call .eval(), so that examples do not mix in batch norm")
    if budget is None:
        budget = torch.cuda.get_device_properties(x.device).total_memory // 16 if x.is_cuda else 2**28
    plan = make_plan(network, x, budget, only)
    logger.info("Fisher of %d examples: %s", len(x), plan)
    return plan


def join(module: str, parameter: str) -> str:
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

    with hook_modules(modules, note), saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x.clone().requires_grad_().clone() if x.is_floating_point() else x)
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    return sum(n for pointer, n in storages.items() if pointer not in weights), calls, workspace


@contextmanager
def hook_modules(modules: Mapping[str, nn.Module], hook: Callable[..., Tensor | None]) -> Iterator[None]:
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
    plan = plan_curvature(network, x, budget, only)
    parameters = dict(network.named_parameters())
    total = {name: torch.zeros_like(parameters[name]).detach() for name in wanted_of(network, only)}

    def add(layer: str, module: nn.Module, given: Tensor, gradient: Tensor) -> None:
        for parameter, value in RULES[type(module)](module, given, gradient).items():
            if join(layer, parameter) in total:
                total[join(layer, parameter)] += value

    send_back(network, plan, root, x, signs, add, total)
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
    named = {name: network.get_parameter(name) for name in wanted_of(network, only)}
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


def send_back(
    network: nn.Module,
    plan: Plan,
    root: Root,
    x: Tensor,
    signs: Tensor | None,
    add: Callable[[str, nn.Module, Tensor, Tensor], None],
    rest: dict[str, Tensor],
) -> None:
    """Call `add` for the plan's layers, for every chunk of inputs; squares for other parameters are added to `rest`."""
    for start in range(0, len(x), plan.chunk):
        rows = slice(start, start + plan.chunk)
        inputs = as_input(x[rows])
        vectors = _send_chunk(network, plan.layers, root, inputs, None if signs is None else signs[rows], add)
        for v in vectors if plan.rest else ():
            _add_gradients(network, plan, inputs, v, rest)


def _send_chunk(
    network: nn.Module,
    layers: Collection[str],
    root: Root,
    x: Tensor,
    signs: Tensor | None,
    add: Callable[[str, nn.Module, Tensor, Tensor], None],
) -> list[Tensor]:
    """Call add(name, layer, its input, gradient of its output) for every vector; return the vectors, each (B, C)."""
    leaves: list[Tensor] = []

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given = inputs[0].detach()
        if output.is_floating_point() and given.is_floating_point():
            given = given.to(output.dtype)  # one precision for a rule's products
        if not output.requires_grad:
            leaves.append(output.detach().requires_grad_())
            output = leaves[-1].clone()  # no leaf, so that what follows may work in place

        def arrive(gradient: Tensor) -> None:
            with torch.no_grad():
                add(name, module, given, gradient)

        output.register_hook(arrive)
        return output

    frozen = {name: p.detach() for name, p in network.named_parameters()}
    with hook_modules({name: network.get_submodule(name) for name in layers}, record), _differentiable(network):
        with mixed_precision(network, x.device):
            logits = functional_call(network, frozen, (x.clone(),))  # which may begin in place
        s = root(logits.detach())
        vectors = list(s.unbind(-1)) if signs is None else [(s @ signs.to(s).unsqueeze(-1)).squeeze(-1)]
        for remaining, v in zip(reversed(range(len(vectors))), vectors, strict=True):
            if leaves:
                torch.autograd.grad(logits, leaves, v, retain_graph=remaining > 0, allow_unused=True)
    return vectors


def _add_gradients(network: nn.Module, plan: Plan, x: Tensor, v: Tensor, total: dict[str, Tensor]) -> None:
    if plan.vectorised:
        gradients = _vectorised_gradients(network, plan.rest, x, v)
        for name in plan.rest:
            total[name] += squares(gradients[name].detach())
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
