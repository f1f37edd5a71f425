"""Answering some and abstaining on the others: the risk of wrong answers as more and more inputs are answered.

Inputs are answered in the order of a score, the lowest first. At coverage k / n the first k are, and the risk is the
fraction of these that are answered wrongly. The area under that curve (AURC) is the mean risk over k = 1 ... n: low
where answers are right, and where the wrong ones come last. Outliers can be counted in: any answer to them is wrong.
"""

import numpy as np
from numpy.typing import NDArray

from demur.metrics import Array


def risk_coverage(scores: Array, wrong: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Coverage and risk, of n inputs n each; inputs of equal score come in any order, and what is given is the mean."""
    order = np.argsort(scores, kind="stable")
    errors = wrong[order].astype(np.float64)
    _, start, count = np.unique(scores[order], return_index=True, return_counts=True)
    errors = np.repeat(np.add.reduceat(errors, start) / count, count)
    answered = np.arange(1, len(scores) + 1)
    return answered / len(scores), np.cumsum(errors) / answered


def aurc(scores: Array, wrong: NDArray[np.bool_]) -> float:
    return float(risk_coverage(scores, wrong)[1].mean())


def risk_coverage_with_outliers(scores: Array, wrong: NDArray[np.bool_], outside: Array) -> tuple[Array, Array]:
    """Coverage and risk, of n inputs n each, in any order those of equal score; outliers are wrong whatever the answer.

    As many of them as of inliers are counted, however many there are: each counts as n_in / n_out inputs, so that sets
    of outliers of any size can be compared.
    """
    every = np.concatenate([scores, outside])
    weight = np.concatenate([np.ones(len(scores)), np.full(len(outside), len(scores) / len(outside))])
    errors = np.concatenate([wrong.astype(np.float64), np.ones(len(outside))]) * weight
    order = np.argsort(every, kind="stable")
    _, start, count = np.unique(every[order], return_index=True, return_counts=True)
    answered, failed = (
        np.cumsum(np.repeat(np.add.reduceat(values[order], start) / count, count)) for values in (weight, errors)
    )
    return answered / answered[-1], failed / answered


def aurc_with_outliers(scores: Array, wrong: NDArray[np.bool_], outside: Array) -> float:
    coverage, risk = risk_coverage_with_outliers(scores, wrong, outside)
    return float(np.dot(risk, np.diff(coverage, prepend=0)))
