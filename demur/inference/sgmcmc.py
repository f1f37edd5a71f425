"""Cyclical stochastic-gradient Hamiltonian Monte Carlo: the learning rate falls to zero several times, and what the
chain passes through at the end of each cycle is kept.

In the units of a recipe, log_prob being nats per inlier, one step is

    v = (1 - friction) * v - lr * gradient + sqrt(2 * friction * lr * temperature / N) * noise
    weights = weights + v

whose stationary density, for small lr, is the posterior to the power 1 / temperature.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from demur.checkpoint import put_state, state_of
from demur.inference.base import Inference, build, check_copies
from demur.likelihoods import Likelihood
from demur.networks import Network
from demur.posterior import Mixture, Point, Posterior
from demur.training import cosine, seeded, train
from demur.training_data import Recipe, TrainingData


class SGHMC(torch.optim.Optimizer):
    """A group's `temperature` may be changed between steps; 0 leaves gradient descent with momentum 1 - friction."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        *,
        friction: float,
        count: int,
        temperature: float,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "temperature": temperature})
        self.friction, self.count, self.clip_norm = friction, count, clip_norm

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # a clipped gradient has another stationary density, so samples are drawn without
            if self.clip_norm is not None and group["temperature"] == 0:
                nn.utils.clip_grad_norm_(group["params"], self.clip_norm)
            noise_scale = (2 * self.friction * group["lr"] * group["temperature"] / self.count) ** 0.5
            for p in group["params"]:
                if p.grad is None:
                    continue
                velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                gradient = p.grad + group["weight_decay"] * p
                velocity.mul_(1 - self.friction).sub_(group["lr"] * gradient)
                if group["temperature"] > 0:
                    velocity.add_(noise_scale * torch.randn_like(p))
                p.add_(velocity)


@dataclass(frozen=True)
class CyclicalSGHMC:
    """A chain `length` times as long as the recipe, in `cycles` equal cycles.

    Noise is added in the last `samples_per_cycle` epochs of each, and the network at the end of each of those is kept,
    with its own batch-norm statistics. `temperature` 1 samples the posterior itself.
    """

    lr: float = 0.1
    friction: float = 0.9
    temperature: float | Literal["1/N"] = 1.0
    cycles: int = 4
    samples_per_cycle: int = 3
    length: float = 2.0

    def __post_init__(self) -> None:
        for name in ("lr", "friction", "cycles", "samples_per_cycle", "length"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} {getattr(self, name)} of CSGHMC is not positive; the defaults are the paper's"
                )
        if self.friction > 1:
            raise ValueError(f"friction {self.friction} of CSGHMC exceeds 1: the momentum would be negative; try 0.9")
        if self.temperature != "1/N" and not self.temperature >= 0:
            raise ValueError(f"temperature {self.temperature} of CSGHMC is negative; 1 samples the posterior itself")

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return []

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Mixture:
        # a short recipe is made longer, so that at least half of a cycle comes before its samples
        per_cycle = max(2 * self.samples_per_cycle, round(self.length * recipe.epochs / self.cycles))
        clip_norm = recipe.clip_norm
        recipe = replace(recipe, epochs=per_cycle * self.cycles, lr=self.lr, clip_norm=None)
        kept: dict[str, Tensor] = {}

        temperature = 1 / len(data.train) if self.temperature == "1/N" else self.temperature

        def sampling(epoch: int) -> bool:
            return epoch % per_cycle >= per_cycle - self.samples_per_cycle

        with seeded(recipe.seed, data.device):
            model = build(network, likelihood, data)
            check_copies(model, data)
            chain = SGHMC(
                model.parameters(),
                recipe.lr,
                friction=self.friction,
                count=len(data.train),
                temperature=temperature * sampling(0),
                weight_decay=recipe.weight_decay,
                clip_norm=clip_norm,
            )

            def rate(done: float) -> float:
                return cosine(round(done * self.cycles, 9) % 1)  # a cycle's end must not round to just before it

            for epoch in train(model, likelihood, data, recipe, optimizer=chain, rate=rate, kept=kept):
                if sampling(epoch - 1):
                    kept |= {f"{epoch}/{name}": value.clone() for name, value in state_of(model).items()}
                chain.param_groups[0]["temperature"] = temperature * sampling(epoch)
        epochs = [epoch for epoch in range(1, recipe.epochs + 1) if sampling(epoch - 1)]
        return Mixture(tuple(_sample(model, f"{epoch}/", kept) for epoch in epochs))


def _sample(model: nn.Module, prefix: str, kept: Mapping[str, Tensor]) -> Point:
    sample = deepcopy(model)
    put_state(sample, {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)})
    return Point(sample.eval())
