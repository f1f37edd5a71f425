"""Mean-field variational Bayes over the last layer; the trunk is a point, trained along with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demur.inference.base import Inference, build
from demur.likelihoods import Likelihood
from demur.networks import Network, has_head, own_input
from demur.posterior import Gaussian, Posterior
from demur.training import optimizer_for, seeded, train
from demur.training_data import Recipe, TrainingData


def kl_to_prior(mean: Tensor, log_variance: Tensor, precision: float) -> Tensor:
    """KL divergence from N(mean, variance) to N(0, 1 / precision), summed, in nats."""
    variance = log_variance.exp()
    return 0.5 * (precision * (variance + mean**2) - 1 - log_variance - math.log(precision)).sum()


class MeanField(nn.Module):
    """A layer's parameters as Gaussians: the layer itself holds the means."""

    def __init__(self, layer: nn.Module, log_variance: float) -> None:
        super().__init__()
        self.mean = layer
        self.log_variance = nn.ParameterDict(
            {name: torch.full_like(value, log_variance) for name, value in layer.named_parameters(recurse=False)}
        )

    def kl(self, precision: float) -> Tensor:
        means = dict(self.mean.named_parameters())
        return torch.stack([kl_to_prior(means[n], v, precision) for n, v in self.log_variance.items()]).sum()

    def variance(self, prefix: str) -> dict[str, Tensor]:
        return {prefix + name: value.detach().exp() for name, value in self.log_variance.items()}


class MeanFieldHead(MeanField):
    """A linear head that samples its weights anew each time: (B, D) to (samples, B, C)."""

    def __init__(self, head: nn.Module, log_variance: float, samples: int) -> None:
        super().__init__(head, log_variance)
        self.samples = samples

    def forward(self, features: Tensor) -> Tensor:
        means = dict(self.mean.named_parameters())
        sampled = {
            name: means[name] + (0.5 * value).exp() * torch.randn(self.samples, *value.shape, device=value.device)
            for name, value in self.log_variance.items()
        }
        logits = torch.einsum("bd,scd->sbc", features, sampled["weight"])
        return logits + sampled["bias"].unsqueeze(1) if "bias" in sampled else logits


@dataclass(frozen=True)
class VariationalBayes:
    """The objective is E_q[log_prob] - tau * KL / N; tau = 1 is the evidence lower bound."""

    tau: float = 0.1
    prior_decay: float = 5e-4  # prior precision / N, the unit of a recipe's weight decay
    kl_count: int | None = None  # what the KL is divided by; None: N
    log_variance: float = -6.0  # at the start
    training_samples: int = 5
    num_samples: int = 200

    def __post_init__(self) -> None:
        if self.training_samples < 1 or self.num_samples < 1:
            raise ValueError("training_samples and num_samples must be at least 1; the paper has 5 and 200")

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
        with seeded(recipe.seed, data.device):
            model = with_head(build(network, likelihood, data), data.train.x[:2])
            head = model.head = MeanFieldHead(model.get_submodule("head"), self.log_variance, self.training_samples)
            undecayed = [name for name, _ in model.named_parameters() if name.startswith("head.")]

            def penalty() -> Tensor:
                return self.tau * head.kl(self.prior_decay * len(data.train)) / (self.kl_count or len(data.train))

            optimizer = optimizer_for(model, recipe, undecayed)
            for _ in train(model, likelihood, data, recipe, optimizer=optimizer, penalty=penalty):
                pass
        model.head = head.mean
        return Gaussian(model, head.variance("head."), self.num_samples, recipe.seed, over_head=True)


def with_head(model: nn.Module, x: Tensor) -> nn.Module:
    """The model itself, if its head can be treated apart; x are a few inputs to see that with."""
    apart = has_head(model)
    if apart:
        mode = model.training
        with torch.no_grad():
            whole = model.eval()(own_input(x))
            apart = torch.allclose(whole, model.head(model.features(own_input(x))), rtol=1e-3, atol=1e-5)  # type: ignore[operator]
        model.train(mode)
    if not apart:
        raise ValueError(
            f"the network ({type(model).__name__}) has no .features and .head (nn.Linear) with forward = "
            "head(features(x)); a method over the last layer needs them"
        )
    return model
