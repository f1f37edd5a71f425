"""Mean-field variational Bayes over every affine and convolutional layer, by the Flipout estimator.

Any network is converted in place and back: no second network class. Each batch shares one perturbation of a layer's
weights, and random signs a channel and example decorrelate what the examples see of it, so that no per-example weights
are in memory. Batch norm's scales and shifts, and whatever else a network has, stay points.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from demur.inference.base import Inference, build, check_copies
from demur.inference.variational import MeanField
from demur.likelihoods import Likelihood
from demur.networks import Network, PatchConv2d
from demur.posterior import Gaussian, Posterior
from demur.training import seeded, train
from demur.training_data import Recipe, TrainingData

# exact types: the linear layer inside attention is a subclass, whose weights are used without calling it
CONVERTED = (nn.Linear, nn.Conv1d, nn.Conv2d, PatchConv2d, nn.Conv3d)


class FlipoutLayer(MeanField):
    """layer(x) plus a random part of mean zero: signs * (perturbed layer)(signs * x)."""

    def forward(self, x: Tensor) -> Tensor:
        perturbation = {
            name: (0.5 * value).exp() * torch.randn_like(value) for name, value in self.log_variance.items()
        }
        y = self.mean(x)
        return y + self._signs(y) * functional_call(self.mean, perturbation, (self._signs(x) * x,))

    def _signs(self, x: Tensor) -> Tensor:
        """One an example and channel: (B, C, 1, ...), or (B, 1, ..., C) for an affine layer."""
        channel = x.dim() - 1 if isinstance(self.mean, nn.Linear) else 1
        shape = [size if dim in (0, channel) else 1 for dim, size in enumerate(x.shape)]
        return torch.randint(2, shape, device=x.device, dtype=x.dtype).mul_(2).sub_(1)


def convert(model: nn.Module, log_variance: float) -> dict[str, FlipoutLayer]:
    """Put a FlipoutLayer around every affine and convolutional layer inside the model; by the layer's name."""
    owned = {name for name, _ in model.named_parameters()}
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in owned:
            raise ValueError(f"parameter {name} is tied to another; Flipout needs one Gaussian a weight: untie it")
    converted = {
        name: FlipoutLayer(module, log_variance)
        for name, module in model.named_modules()
        if type(module) in CONVERTED and module is not model
    }
    if not converted:
        raise ValueError(
            f"the network ({type(model).__name__}) has no affine or convolutional layer inside; Flipout needs one, "
            "a bare layer put into nn.Sequential"
        )
    by_layer = {id(layer.mean): layer for layer in converted.values()}
    for parent, attribute, child in _children(model):
        if id(child) in by_layer:
            setattr(parent, attribute, by_layer[id(child)])
    return converted


def restore(model: nn.Module) -> None:
    """Take the FlipoutLayers off again, leaving the means."""
    for parent, attribute, child in _children(model):
        if isinstance(child, FlipoutLayer):
            setattr(parent, attribute, child.mean)


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in list(model.modules()):
        for attribute, child in list(parent.named_children()):
            yield parent, attribute, child


@dataclass(frozen=True)
class Flipout:
    """The objective is E_q[log_prob] - tau * KL / N, the KL summed over all converted layers; no weight decay."""

    tau: float = 0.1
    prior_precision: float = 1.0
    log_variance: float = -6.0  # at the start
    num_samples: int = 10
    mean_kl: bool = False  # average the KL within a layer instead of summing it, as the paper's code does

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return []

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Gaussian:
        recipe = replace(recipe, weight_decay=0.0)
        with seeded(recipe.seed, data.device):
            model = build(network, likelihood, data)
            check_copies(model, data)
            layers = convert(model, self.log_variance)
            weights = {name: sum(p.numel() for p in layer.mean.parameters()) for name, layer in layers.items()}
            sizes = weights if self.mean_kl else dict.fromkeys(layers, 1)

            def penalty() -> Tensor:
                kls = [layer.kl(self.prior_precision) / sizes[name] for name, layer in layers.items()]
                return self.tau * torch.stack(kls).sum() / len(data.train)

            for _ in train(model, likelihood, data, recipe, penalty=penalty):
                pass
        restore(model)
        variance = {k: v for name, layer in layers.items() for k, v in layer.variance(f"{name}.").items()}
        return Gaussian(model, variance, self.num_samples, recipe.seed)
