"""Kronecker-factored Laplace: per layer, the Fisher is the product of one matrix of inputs and one of gradients.

The gradient of a layer's weights for one example is g a', with a its input and g the gradient of its output; that of a
convolution is a sum over places, with a the patch. Taking a and g to be independent, and places, too,

    Fisher of the weights = (mean over rows of a a') (x) (sum over rows of g g'),

a row being an example at a place. Of a bias it is the sum over examples of g g', g summed over places. In the
eigenvectors of both matrices it is diagonal, and so is the posterior's precision with the prior's added: a `Gaussian`
with bases. Parameters of other layers (norms, embeddings, what has no rule) have the diagonal Fisher.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demur.inference.around import (
    check_over,
    check_prior,
    head_parameters,
    map_network,
    passes,
    random_signs,
    with_prior,
)
from demur.inference.base import Inference
from demur.inference.fisher import Root, join, plan_curvature, send_back, wanted_of
from demur.inference.map import MAP
from demur.inference.prior import DECADES, PriorSearch
from demur.inference.rules import RULES
from demur.likelihoods import Likelihood
from demur.networks import Network, PatchConv2d
from demur.posterior import Gaussian, Posterior
from demur.streams import generator_for
from demur.training_data import Recipe, TrainingData


@dataclass
class Factors:
    """Sums over rows, by parameter: of a a', of g g', how many there were; and diagonals of all other parameters."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)

    def add(self, other: "Factors", scale: float) -> None:
        for sums, added in (
            (self.inputs, other.inputs),
            (self.gradients, other.gradients),
            (self.diagonal, other.diagonal),
        ):
            for name, value in added.items():
                sums[name] = sums.get(name, 0) + scale * value
        for name, count in other.rows.items():
            self.rows[name] = self.rows.get(name, 0) + scale * count


def has_factors(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, nn.Conv2d, PatchConv2d) and getattr(module, "groups", 1) == 1


def rows_of(module: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (rows, in) and gradients (rows, out) of an affine layer, or of a convolution by its patches."""
    if isinstance(module, nn.Conv2d):
        patches = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)  # type: ignore[arg-type]
        return patches.mT.flatten(0, 1), g.flatten(2).mT.flatten(0, 1)
    return x.flatten(0, -2), g.flatten(0, -2)


def kronecker_factors(
    network: nn.Module,
    root: Root,
    x: Tensor,
    *,
    signs: Tensor | None = None,
    budget: int | None = None,
    only: Collection[str] | None = None,
) -> Factors:
    """Of sum over x of J' S S' J; the arguments are those of `diagonal_fisher`."""
    plan = plan_curvature(network, x, budget, only)
    parameters, total = dict(network.named_parameters()), Factors()
    rest = {name: torch.zeros_like(parameters[name]).detach() for name in plan.rest}

    def add(layer: str, module: nn.Module, given: Tensor, gradient: Tensor) -> None:
        if not has_factors(module):
            diagonal = RULES[type(module)](module, given, gradient)
            total.add(Factors(diagonal={join(layer, each): value for each, value in diagonal.items()}), 1)
            return
        wide = torch.promote_types(gradient.dtype, torch.float32)
        a, g = (rows.to(wide) for rows in rows_of(module, given, gradient))
        weight, bias = join(layer, "weight"), join(layer, "bias")
        factors = Factors({weight: a.mT @ a}, {weight: len(a)}, {weight: g.mT @ g})
        if bias in parameters:
            places = (
                tuple(range(2, gradient.dim()))
                if isinstance(module, nn.Conv2d)
                else tuple(range(1, gradient.dim() - 1))
            )
            of_bias = (gradient.sum(places) if places else gradient).to(wide)
            factors.gradients[bias] = of_bias.mT @ of_bias
        total.add(factors, 1)

    send_back(network, plan, root, x, signs, add, rest)
    total.add(Factors(diagonal=rest), 1)
    for table in (total.inputs, total.rows, total.gradients, total.diagonal):
        for name in table.keys() - {*wanted_of(network, only)}:
            del table[name]
    return total


@dataclass(frozen=True)
class Curvature:
    """Eigenvectors of each factor and, in these, the Fisher's diagonal; by parameter."""

    bases: dict[str, tuple[Tensor, ...]]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, factors: Factors, network: nn.Module) -> "Curvature":
        bases: dict[str, tuple[Tensor, ...]] = {}
        values = dict(factors.diagonal)
        for name, gradients in factors.gradients.items():
            of_gradients, left = torch.linalg.eigh(gradients.double())
            left = left.float().contiguous()  # as they are when they are read back, to the last bit of a product
            fisher, bases[name] = of_gradients, (left,)
            if name in factors.inputs:
                of_inputs, right = torch.linalg.eigh(factors.inputs[name].double() / factors.rows[name])
                fisher, bases[name] = of_gradients[:, None] * of_inputs.clamp_min(0), (left, right.float().contiguous())
            # rounding makes eigenvalues negative that are zero
            values[name] = fisher.clamp_min(0).float().reshape(network.get_parameter(name).shape)
        return cls(bases, values)


@dataclass(frozen=True)
class KroneckerLaplace:
    """`Laplace` with Kronecker factors instead of a diagonal; the prior precision is tuned in the same way."""

    over: Literal["all", "head"] = "all"
    estimator: Literal["sampled", "exact"] = "sampled"
    prior_precision: float | None = None
    grid: Sequence[float] = field(default=DECADES, repr=False)
    slack: float = 0.01
    tuning_samples: int = 20
    num_samples: int = 20
    budget: int | None = None  # bytes of memory for the Fisher; None: 256 MiB, on a GPU a sixteenth of what it has

    def __post_init__(self) -> None:
        check_over(self.over)
        if self.estimator not in ("sampled", "exact"):
            raise ValueError(f"estimator {self.estimator!r} is not known; choose 'sampled' or 'exact'")
        check_prior(self)

    def parts(self, recipe: Recipe) -> list[tuple[Inference, Recipe]]:
        return [(MAP(), recipe)]

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Gaussian:
        point = map_network(self, network, likelihood, data, recipe, parts)
        curvature = self.curvature(point.network, likelihood, data, recipe.seed)

        def at(precision: float, num_samples: int) -> Gaussian:
            variance = {name: 1 / (value + precision) for name, value in curvature.values.items()}
            return Gaussian(
                point.network, variance, num_samples, recipe.seed, self.over == "head", bases=curvature.bases
            )

        search = PriorSearch(self.grid, self.slack)
        return with_prior(self, search, point, at, likelihood, data)

    def curvature(self, model: nn.Module, likelihood: Likelihood, data: TrainingData, seed: int = 0) -> Curvature:
        """Over inliers and, w * N / M times, outliers: sums and counts of both are added before they are factors."""
        only = head_parameters(model, data) if self.over == "head" else None
        generator = generator_for("fisher", seed, device=data.device)
        total = Factors()
        for x, root, scale in passes(likelihood, data, generator):
            signs = random_signs(x, likelihood.num_outputs, generator) if self.estimator == "sampled" else None
            total.add(kronecker_factors(model, root, x, signs=signs, budget=self.budget, only=only), scale)
        return Curvature.of(total, model)
