"""A method is an inference and a likelihood, written `inference+likelihood`; `la` alone is `la+plain`."""

from collections.abc import Callable
from dataclasses import dataclass

from demur.inference import INFERENCES, Inference
from demur.likelihoods import LIKELIHOODS, Likelihood
from demur.names import choose


@dataclass(frozen=True)
class Method:
    name: str
    inference_name: str
    inference: Inference
    likelihood: Callable[[int], Likelihood]  # of the number of classes


def method_name(inference: str, likelihood: str) -> str:
    return inference if likelihood == "plain" else f"{inference}+{likelihood}"


_PAIRS = {
    method_name(inference, likelihood): (inference, likelihood)
    for inference in INFERENCES
    for likelihood in LIKELIHOODS
}
METHODS = tuple(_PAIRS)


def parse_method(name: str) -> Method:
    """`la+nc` to its inference and likelihood, with default hyperparameters; an unknown one names the nearest."""
    inference, likelihood = choose(_PAIRS, name, "method")
    return Method(name, inference, INFERENCES[inference](), LIKELIHOODS[likelihood])
