"""Inference methods: each a file, each a frozen dataclass with fit()."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from demur.inference.base import Inference as Inference
from demur.inference.ensemble import Ensemble as Ensemble
from demur.inference.flipout import Flipout as Flipout
from demur.inference.laplace import Laplace as Laplace
from demur.inference.map import MAP as MAP
from demur.inference.sgmcmc import CyclicalSGHMC as CyclicalSGHMC
from demur.inference.variational import VariationalBayes as VariationalBayes

INFERENCES: Mapping[str, Callable[[], Inference]] = MappingProxyType(
    {
        "map": MAP,
        "de": Ensemble,
        "la": Laplace,
        "vb": VariationalBayes,
        "flipout": Flipout,
        "csghmc": CyclicalSGHMC,
    }
)
