"""One contestant of the Fisher rows in its own process, so that memory is its own, and laplace-torch may come from
another environment. A line in asks for a turn, a line out has its values.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.frame import peak_memory
from demur.networks import lenet, wide_resnet

BATCH = 128  # of laplace-torch's loader; that of the paper's training


def serve(network: str, contestant: str, count: int, threads: int, result: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = (lenet(10) if network == "lenet" else wide_resnet(10)).eval()
    x = torch.rand(count, *((1, 28, 28) if network == "lenet" else (3, 32, 32)))
    y = torch.randint(10, (count,))
    if contestant.startswith("demur"):
        turn = ours(model, x, y, contestant)
    else:
        for p in model.parameters():
            p.data = p.data.contiguous()  # laplace-torch fails on channels_last
        turn = peer(as_sequential(model) if network == "lenet" else model, x, y, contestant)
    model(x[:2])
    before = peak_memory()
    for _ in sys.stdin:
        started = time.perf_counter()
        diagonal = turn()
        seconds = time.perf_counter() - started
        peak = max(1, peak_memory() - before)
        np.save(result, diagonal.numpy(force=True))
        sys.stdout.write(json.dumps({"seconds": seconds / count, "peak": peak}) + "\n")
        sys.stdout.flush()


def residual_root(logits: Tensor) -> Tensor:
    """A root that, times residual_signs, is the gradient of the loss: one backward pass, as `sampled` does, for the
    empirical Fisher that others compute."""
    corners = torch.eye(logits.shape[1], device=logits.device).expand(len(logits), -1, -1)
    return torch.cat([logits.softmax(1).unsqueeze(2), -corners], 2)


def residual_signs(y: Tensor, classes: int = 10) -> Tensor:
    return torch.cat([torch.ones_like(y).unsqueeze(1), F.one_hot(y, classes)], 1)


def ours(model: nn.Module, x: Tensor, y: Tensor, contestant: str) -> Callable[[], Tensor]:
    from demur.inference.fisher import diagonal_fisher
    from demur.likelihoods import plain

    def turn() -> Tensor:
        if contestant == "demur exact":
            fisher = diagonal_fisher(model, plain(10).fisher_root, x)
        else:
            fisher = diagonal_fisher(model, residual_root, x, signs=residual_signs(y))
        return torch.cat([value.flatten() for value in fisher.values()])

    return turn


def peer(model: nn.Module, x: Tensor, y: Tensor, backend: str) -> Callable[[], Tensor]:
    import laplace
    from laplace import curvature

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), BATCH)

    def turn() -> Tensor:
        fitted = laplace.Laplace(
            model,
            "classification",
            subset_of_weights="all",
            hessian_structure="diag",
            backend=getattr(curvature, backend),
        )
        fitted.fit(loader)
        return fitted.H.detach()

    return turn


def as_sequential(model: nn.Module) -> nn.Module:
    """What BackPACK can go through: one nn.Sequential of torch's own layers."""
    layers: list[nn.Module] = []
    for layer in [*model.features.children(), model.head]:  # type: ignore[union-attr]
        if isinstance(layer, nn.Conv2d):
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)  # type: ignore[arg-type]
            plain.load_state_dict(layer.state_dict())
            layer = plain
        layers.append(layer)
    return nn.Sequential(*layers).eval()
