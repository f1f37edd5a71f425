"""What is measured of the paper's cells beside the usual: means that leave sets out, shift by severity, validation."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from demur.bootstrap import counts
from demur.measures import STANDARD, Measures, ood_metrics
from demur.metrics import METRICS
from demur.paper.counts import as_counted, inputs_of
from demur.paper.further import VALIDATION, shift_set_name
from demur.paper.published import LEFT_OUT, OOD_SETS, SHIFT_SETS, mean_but
from demur.paper.suite import INLIERS
from demur.study.measuring import (
    Place,
    Value,
    Values,
    mean_of,
    measure,
    measures_of,
    resample_metric,
    round_value,
    trained_sets,
    with_interval,
)
from demur.study.results import Result
from demur.study.run import FAR_AWAY
from demur.tasks.images import NOISE, STAND_INS
from demur.tasks.shift import CORRUPTIONS

HELD_OUT = {"validation": VALIDATION, "suite": INLIERS}  # further inputs, and which of their sets are inliers
BOUNDED = tuple(name for name, metric in METRICS.items() if metric.again is not None)


def values_of(result: Result, measures: Measures = STANDARD) -> Values:
    result = as_counted(result)
    means = {mean_but(*names): sets_to_average(result.cell.task, result.ood, names) for names in _left_out(result)}
    exact = measure(result, means, measures) | dict(_under_shift(result)) | dict(inputs_of(result))
    for kind, inliers in HELD_OUT.items():
        exact |= dict(_on_held_out(result, kind, inliers, measures))
    return {place: round_value(value) for place, value in exact.items()}


def _left_out(result: Result) -> list[tuple[str, ...]]:
    """What means leave out: what the paper does, what was trained with, and any noise, so that methods which are shown
    no outliers can stand beside those which are shown noise."""
    noises = [name for name in result.ood if name in NOISE]
    subsets = [subset for count in range(len(noises) + 1) for subset in combinations(noises, count)]
    return list(dict.fromkeys((*subsets, trained_sets(result), LEFT_OUT.get(result.cell.task, ()))))


def sets_to_average(task: str, sets: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """The sets that a mean is over: the paper's, or their stand-ins; the far-away one asks something else."""
    paper = OOD_SETS.get(task)
    known = None if paper is None else {*paper, *(STAND_INS[name] for name in paper if name in STAND_INS)}
    without = {FAR_AWAY, *left_out}
    return [name for name in sets if name not in without and (known is None or name in known)]


def _under_shift(result: Result) -> Iterator[tuple[Place, Value]]:
    if "shift" not in result.further:
        return
    y, sets = result.further["shift"].y, result.further["shift"].sets
    for name, prediction in sets.items():
        for metric in BOUNDED:
            yield (name, metric), Value(METRICS[metric](prediction, y))
    resamples = counts("shift", len(y))
    for severity, mean_name in SHIFT_SETS.items():
        of_severity = [sets[shift_set_name(corruption, severity)] for corruption in CORRUPTIONS]
        for metric in BOUNDED:
            yield (
                (mean_name, metric),
                with_interval(mean_of([resample_metric(metric, one, y, resamples) for one in of_severity])),
            )


def _on_held_out(result: Result, kind: str, inliers: str, measures: Measures) -> Iterator[tuple[Place, Value]]:
    """What a method may be chosen by: accuracy on held-out inliers, and how they are told from each other set."""
    if kind not in result.further:
        return
    measures = measures_of(result, measures)
    y, sets = result.further[kind].y, result.further[kind].sets
    yield (inliers, "accuracy"), Value(METRICS["accuracy"](sets[inliers], y))
    for name, outside in sets.items():
        if name != inliers:
            for metric, value in ood_metrics(sets[inliers], outside, measures.scores).items():
                yield (name, metric), Value(value)
