"""A method is an inference and a likelihood, written `inference+likelihood`; `la` alone is `la+plain`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demur.inference import INFERENCES, Inference
from demur.likelihoods import LIKELIHOODS, Likelihood, NamedLikelihood
from demur.names import choose, choose_or_import, is_import_path

PLAIN = "plain"


@dataclass(frozen=True)
class Method:
    """An inference with its hyperparameters, a likelihood, and what both are called."""

    inference_name: str
    likelihood_name: str
    inference: Inference
    likelihood: Callable[[int], Likelihood]  # of the number of classes

    @property
    def name(self) -> str:
        return method_name(self.inference_name, self.likelihood_name)

    @property
    def uses_outliers(self) -> bool:
        return self.likelihood(2).outside is not None


def method_name(inference: str, likelihood: str) -> str:
    return inference if likelihood == PLAIN else f"{inference}+{likelihood}"


_PAIRS = {
    method_name(inference, likelihood): (inference, likelihood)
    for inference in INFERENCES
    for likelihood in LIKELIHOODS
}
METHODS = tuple(_PAIRS)


def split_method(name: str) -> tuple[str, str]:
    """The names of the inference and of the likelihood, whether or not there are such."""
    inference, _, likelihood = name.partition("+")
    return inference, likelihood or PLAIN


def method_rank(name: str) -> tuple[int, str]:
    """To sort by: demur's own methods in their order, then others by name."""
    return (METHODS.index(name) if name in _PAIRS else len(METHODS)), name


def parse_method(name: str) -> Method:
    """`la+nc` to its inference and likelihood, with default hyperparameters; an unknown one names the nearest.

    Either part may be one's own, as `mypackage.mymodule:name`: a class of inference methods, or a function from a
    number of classes to a `Likelihood`.
    """
    pair = split_method(name) if is_import_path(name) else choose(_PAIRS, name, "method")
    build: Any = choose_or_import(INFERENCES, pair[0], "inference")
    named: Any = choose_or_import(LIKELIHOODS, pair[1], "likelihood")
    likelihood = named.of if isinstance(named, NamedLikelihood) else named
    try:
        inference = build() if callable(build) else build
    except TypeError as error:
        raise ValueError(f"inference {pair[0]!r} cannot be made without arguments ({error}); give defaults") from error
    if not all(callable(getattr(inference, part, None)) for part in ("fit", "parts")):
        raise ValueError(f"inference {pair[0]!r} makes {inference!r:.60}, which has not both fit() and parts()")
    try:
        of_two = likelihood(2)
    except TypeError as error:
        of_two = error
    if not isinstance(of_two, Likelihood):
        raise ValueError(
            f"likelihood {pair[1]!r} is not a function from a number of classes to a Likelihood (of 2: {of_two!r:.80})"
        )
    return Method(*pair, inference, likelihood)
