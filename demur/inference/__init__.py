"""Inference methods: each a file, each a frozen dataclass with fit()."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from demur.inference.base import Inference as Inference
from demur.inference.ensemble import Ensemble as Ensemble
from demur.inference.flipout import Flipout as Flipout
from demur.inference.identity import IdentityLaplace as IdentityLaplace
from demur.inference.kronecker import KroneckerLaplace as KroneckerLaplace
from demur.inference.laplace import Laplace as Laplace
from demur.inference.map import MAP as MAP
from demur.inference.sgmcmc import CyclicalSGHMC as CyclicalSGHMC
from demur.inference.variational import VariationalBayes as VariationalBayes


@dataclass(frozen=True)
class NamedInference:
    """An inference method under its short name in methods, and how it is printed and drawn."""

    title: str
    of: Callable[[], Inference]  # with default hyperparameters
    dashes: tuple[float, ...] = (2, 2)  # of its line, and gaps

    def __call__(self) -> Inference:
        return self.of()


INFERENCES: Mapping[str, NamedInference] = MappingProxyType(
    {
        "map": NamedInference("maximum a posteriori", MAP, (1, 0)),
        "de": NamedInference("deep ensemble", Ensemble, (1, 1)),
        "la": NamedInference("Laplace", Laplace, (4, 1.5)),
        "vb": NamedInference("variational Bayes", VariationalBayes, (4, 1.5, 1, 1.5)),
        "flipout": NamedInference("Flipout", Flipout, (1, 3)),
        "csghmc": NamedInference("cyclical SG-HMC", CyclicalSGHMC, (7, 3)),
        # beside the paper's
        "la_head": NamedInference("last-layer Laplace", partial(Laplace, over="head"), (4, 3)),
        "la_kron": NamedInference("Kronecker-factored Laplace", KroneckerLaplace, (6, 1.5)),
        "icla": NamedInference("identity-curvature Laplace", IdentityLaplace, (3, 3)),
    }
)
