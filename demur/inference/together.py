"""Several small networks trained in one program: vmap over stacked weights.

Each member keeps its own seed, batches and gradient norm, so it becomes what it would have become alone, up to
rounding. On a GPU, which one small network does not fill, this is faster; on a CPU it is slower.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from demur.inference.base import build
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Point
from demur.tasks.base import Recipe, Task
from demur.training import (
    OPTIMIZERS,
    batch_generator,
    check_logits,
    cosine,
    list_batches,
    network_inputs,
    seeded,
    set_rate,
    tell,
)


def pays(network: Network, likelihood: Likelihood, task: Task) -> bool:
    """Whether members can be trained together, and faster: on a GPU, if nothing in them is random, running or tied."""
    device = task.train.x.device
    if device.type != "cuda":
        return False
    with seeded(0, device):
        model = build(network, likelihood, task)
    random = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RNNBase)
    tied = len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))
    return not tied and not any(isinstance(module, random) for module in model.modules())


def train_together(network: Network, likelihood: Likelihood, task: Task, recipes: Sequence[Recipe]) -> list[Point]:
    """MAP networks of several recipes that differ in their seeds alone."""
    recipe = recipes[0]
    models = []
    for its in recipes:
        with seeded(its.seed, task.train.x.device):
            models.append(build(network, likelihood, task))
    weights, buffers = stack_module_state(models)
    skeleton = deepcopy(models[0]).to("meta")
    logits_of_all = vmap(lambda w, b, x: functional_call(skeleton, (w, b), (x,)))
    optimizer = OPTIMIZERS[recipe.optimizer](
        [{"params": list(weights.values()), "weight_decay": recipe.weight_decay}], recipe.lr
    )
    generators = [batch_generator(task, its) for its in recipes]
    for epoch in range(recipe.epochs):
        epochs = [list_batches(task, recipe, likelihood.outside is not None, g) for g in generators]
        total = torch.zeros((), device=task.train.x.device)
        for step, batches in enumerate(zip(*epochs, strict=True)):
            set_rate(optimizer, recipe, cosine, epoch, step / len(epochs[0]))
            x = torch.stack([network_inputs(task, batch, g) for batch, g in zip(batches, generators, strict=True)])
            inside = torch.stack([batch.inside for batch in batches])
            logits = logits_of_all(weights, buffers, x)
            check_logits(logits, len(batches[0]), likelihood)
            logits_in, logits_out = logits[..., : inside.shape[1], :], logits[..., inside.shape[1] :, :]
            # log_prob averages over members; their sum gives each the gradient of its own
            loss = -likelihood.log_prob(logits_in, task.train.y[inside], logits_out)
            optimizer.zero_grad(set_to_none=True)
            (len(recipes) * loss).backward()
            if recipe.clip_norm is not None:
                clip_each(list(weights.values()), recipe.clip_norm)
            optimizer.step()
            total += loss.detach()
        tell(epoch + 1, recipe, float(total) / len(epochs[0]))
    with torch.no_grad():
        for member, model in enumerate(models):
            for name, p in model.named_parameters():
                p.copy_(weights[name][member])
    return [Point(model.eval()) for model in models]


def clip_each(stacked: Sequence[Tensor], most: float) -> None:
    """Bring every member's gradient to a norm of at most `most`."""
    gradients = [p.grad for p in stacked if p.grad is not None]
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (most / (norm + 1e-6)).clamp_max(1)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
