"""A cell's metrics, from its predictions: each with its 95 % bootstrap interval over test points where it has one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from demur.bootstrap import AGAINST, counts, interval, resample_separation
from demur.measures import STANDARD, Measures, ood_metrics, value_name
from demur.metrics import METRICS, Array, Counts, Prediction, Separation
from demur.outliers.values import sets_of
from demur.scores import SCORES, Score
from demur.study.results import TEST, Result

DIGITS = 6  # after the point, of a fraction


class Value(NamedTuple):
    """As a fraction, with the ends of its interval."""

    value: float
    low: float | None = None
    high: float | None = None


Place = tuple[str, str]  # a set and a metric
Values = Mapping[Place, Value]
Resampled = tuple[float, Array]  # a value, and what it is in every resample


def measure(result: Result, means: Mapping[str, Sequence[str]], measures: Measures = STANDARD) -> dict[Place, Value]:
    """On test data, on every OOD set, and over the sets of every mean; not rounded."""
    measures = measures_of(result, measures)
    return dict(_inside(result, measures)) | dict(_outside(result, means, measures))


def measures_of(result: Result, measures: Measures = STANDARD) -> Measures:
    """These, and every score that the cell has values of."""
    stored = result.record.scores
    for name, score in measures.scores.items():
        if (score.needs or score.fit) and name not in stored:
            raise ValueError(
                f"{result.cell.task} {result.cell.method} has no values of score {name!r}; "
                f"make them with: demur study ... --score {name}"
            )
    return replace(measures, scores={**measures.scores, **{name: kept_score(name) for name in stored}})


def kept_score(name: str) -> Score:
    """One whose values are stored: nothing is imported to read them."""
    return SCORES.get(name) or Score(name, name, lambda prediction, fitted: None)


def trained_sets(result: Result) -> tuple[str, ...]:
    """The OOD sets that were trained with."""
    return tuple(name for name in sets_of(result.record.trained_with) if name in result.ood)


def round_value(exact: Value) -> Value:
    low, high = (None if end is None else round(end, DIGITS) for end in (exact.low, exact.high))
    return Value(round(exact.value, DIGITS), low, high)


def per_cent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def with_sign(difference: float) -> str:
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")  # no minus before zero


def with_interval(resampled: Resampled) -> Value:
    return Value(resampled[0], *interval(resampled[1]))


def mean_of(parts: Sequence[Resampled]) -> Resampled:
    return float(np.mean([value for value, _ in parts])), np.mean([again for _, again in parts], axis=0)


def resample_metric(metric: str, prediction: Prediction, y: Tensor, resamples: Counts) -> Resampled:
    """One of `METRICS` that has an interval."""
    again = METRICS[metric].again
    assert again is not None
    return METRICS[metric](prediction, y), again(prediction, y, resamples)


def _inside(result: Result, measures: Measures) -> Iterator[tuple[Place, Value]]:
    test, y = result.test, result.y
    resamples = counts(TEST, len(test))
    for name, metric in measures.metrics.items():
        value = metric(test, y)
        yield (
            (TEST, name),
            Value(value) if metric.again is None else with_interval((value, metric.again(test, y, resamples))),
        )
    yield (TEST, "majority"), Value(float(y.bincount().max() / len(y)))


def _outside(result: Result, means: Mapping[str, Sequence[str]], measures: Measures) -> Iterator[tuple[Place, Value]]:
    with_resamples: dict[Place, Resampled] = {}
    for name, outside in result.ood.items():
        resamples = counts(TEST, len(result.test)), counts(name, len(outside))
        for metric, value in ood_metrics(result.test, outside, measures.scores).items():
            yield (name, metric), Value(value)
        with_resamples[name, "mmc"] = resample_metric("mmc", outside, result.y, resamples[1])
        for score, of in measures.scores.items():
            inlying, outlying = (of(result.test), of(outside)) if of.bounded else (None, None)
            if inlying is not None and outlying is not None:
                separation = Separation(-inlying, -outlying)
                for metric in AGAINST:
                    again = resample_separation(metric, -inlying, -outlying, *resamples)
                    with_resamples[name, value_name(metric, score)] = getattr(separation, metric), again
    for place, both in with_resamples.items():
        yield place, with_interval(both)
    for mean, names in means.items():
        for metric in dict.fromkeys(metric for _, metric in with_resamples) if names else ():
            yield (mean, metric), with_interval(mean_of([with_resamples[name, metric] for name in names]))
