"""Comparisons of values, and how a claim's table shows them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demur.paper.views import Known, View

YES, PART, NO, UNCLEAR = "yes", "in part", "no", "unclear"


def below(one: Known, other: Known) -> str:
    """Whether one is clearly less: by more than the two intervals explain. A collapsed classifier is never better."""
    if one.collapsed:
        return NO
    apart = math.hypot(one.half, other.half)
    return YES if one.value < other.value - apart else NO if one.value > other.value + apart else UNCLEAR


def not_above(one: Known, other: Known) -> str:
    """Whether one is not more; unclear where it is, but not clearly."""
    found = below(one, other)
    return YES if found == UNCLEAR and one.value <= other.value else found


def joint(outcomes: Collection[str]) -> str:
    """Of many tests: yes if all say so, no if none does; unclear if most are."""
    kinds = set(outcomes)
    if len(kinds) == 1:
        return kinds.pop()
    if sum(outcome == UNCLEAR for outcome in outcomes) > len(outcomes) / 2:
        return UNCLEAR
    return NO if kinds == {NO, UNCLEAR} else PART


def every(outcomes: Collection[str]) -> str:
    """Of one test with several conditions: no if one fails."""
    return NO if NO in outcomes else UNCLEAR if UNCLEAR in outcomes else YES


@dataclass(frozen=True)
class Case:
    """A line of a claim's table: values, and the outcomes of their tests; without any it stands beside."""

    what: str
    shown: str
    outcomes: tuple[str, ...] = ()


def listed(known: Mapping[str, Known], with_half: bool = False) -> str:
    return ", ".join(f"`{method}` {value.text(with_half)}" for method, value in known.items())


def compared(known: Mapping[str, Known], outcomes: Collection[str]) -> str:
    """The values, with their intervals where these leave a test unclear."""
    return listed(known, UNCLEAR in outcomes)


def tally(known: Mapping[str, Known], outcomes: Mapping[str, str]) -> str:
    """How many say yes, and which do not."""

    def those(kind: str) -> dict[str, Known]:
        return {method: known[method] for method, outcome in outcomes.items() if outcome == kind}

    others = [f"{kind}: {listed(those(kind), kind == UNCLEAR)}" for kind in (NO, UNCLEAR) if those(kind)]
    return "; ".join([f"{len(those(YES))} of {len(known)}", *others])


ECES = {"ece": "all inputs", "ece_published": "below 14/15"}


def by_ece(view: View, test: Callable[[str], tuple[str, Sequence[str]]]) -> tuple[str, tuple[str, ...]]:
    """Judged by the view's own calibration error; what the other says is put beside."""
    (shown, outcomes), *others = (test(metric) for metric in view.eces)
    beside = [f"({ECES[metric]}: {text})" for metric, (text, _) in zip(view.eces[1:], others, strict=True)]
    return "<br>".join([shown, *beside]), tuple(outcomes)


def below_each(one: str, others: Collection[str], known: Mapping[str, Known]) -> tuple[str, tuple[str, ...]]:
    """Whether one method's value is clearly less than each of the others'."""
    outcomes = tuple(below(known[one], known[other]) for other in others)
    return compared(known, outcomes), outcomes


def best_of(way: str, known: Mapping[str, Known]) -> tuple[str, tuple[str]]:
    """Whether none of the others is less."""
    others = [value for name, value in known.items() if name != way]
    near = any(below(known[way], other) == UNCLEAR for other in others)
    return listed(known, near), (every([not_above(known[way], other) for other in others]),)


def mean_of(independent: Sequence[Known]) -> Known:
    half = math.hypot(*(one.half for one in independent)) / len(independent)
    return Known(float(np.mean([one.value for one in independent])), half, any(one.collapsed for one in independent))


# durations ----------------------------------------------------------------------------------------------------------

TWICE = 2.2  # twice the inputs, and a tenth for the clock


def added(whole: Mapping[int, float], part: Mapping[int, float]) -> float:
    """Seconds beyond those of the network that a posterior is made from; nan where no seed has both."""
    differences = [whole[seed] - part[seed] for seed in whole.keys() & part.keys()]
    return float(np.mean(differences)) if differences else math.nan


def at_most_twice(one: float, other: float) -> str:
    """Unclear where either is no duration, such as the difference of networks that were not shared after all."""
    return UNCLEAR if not (one > 0 and other > 0) else YES if one <= TWICE * other else NO
