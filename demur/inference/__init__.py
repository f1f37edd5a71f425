"""Inference methods: each a file, each a frozen dataclass with fit()."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from demur.inference.base import Inference as Inference
from demur.inference.ensemble import Ensemble as Ensemble
from demur.inference.laplace import Laplace as Laplace
from demur.inference.map import MAP as MAP
from demur.inference.variational import VariationalBayes as VariationalBayes

INFERENCES: Mapping[str, Callable[[], Inference]] = MappingProxyType(
    {"map": MAP, "de": Ensemble, "la": Laplace, "vb": VariationalBayes}
)
