"""Several models on the same data, ranked by how their wrong answers would be avoided by abstaining.

The order is by `mean_risk`: the area under the risk-coverage curve, outliers counted in as wrong whatever the answer,
its mean over the sets of outliers. How sure the order is says the difference to the first model, resampled: inputs are
drawn with replacement, the same for all models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from demur.classifier.decision import score_of
from demur.classifier.evaluation import COLUMNS, Evaluation, values_of
from demur.classifier.selective import aurc, aurc_with_outliers
from demur.metrics import Array

RESAMPLES = 200
LEVEL = 0.95


@dataclass(frozen=True)
class Place:
    """A model, its mean risk, and an interval for how much more that is than the first model's; the first has none."""

    evaluation: Evaluation
    risk: float
    more: tuple[float, float] | None


def rank_models(evaluations: Sequence[Evaluation], seed: int = 0) -> list[Place]:
    """Best first."""
    counts = {(len(one.y), *map(len, one.ood.values())) for one in evaluations}
    if len(counts) > 1:
        raise ValueError("the models were not evaluated on the same inputs; give all of them the same data")
    first, *others = sorted(evaluations, key=lambda one: one.mean_risk)
    rng = np.random.default_rng(seed)
    resampled = np.array([_resample([first, *others], rng) for _ in range(RESAMPLES if others else 0)])
    places = [Place(first, first.mean_risk, None)]
    for number, one in enumerate(others, 1):
        low, high = np.quantile(resampled[:, number] - resampled[:, 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        places.append(Place(one, one.mean_risk, (float(low), float(high))))
    return places


def _resample(evaluations: Sequence[Evaluation], rng: np.random.Generator) -> list[float]:
    rows = rng.integers(len(evaluations[0].y), size=len(evaluations[0].y))
    outside = {name: rng.integers(len(of), size=len(of)) for name, of in evaluations[0].ood.items()}
    return [_risk(one, rows, outside) for one in evaluations]


def _risk(one: Evaluation, rows: np.ndarray, outside: Mapping[str, np.ndarray]) -> float:
    inside, wrong = score_of(one.inside, one.decision.score)[rows], ~one.right[rows]
    scores: list[Array] = [score_of(of, one.decision.score)[outside[name]] for name, of in one.ood.items()]
    return float(np.mean([aurc_with_outliers(inside, wrong, of) for of in scores])) if scores else aurc(inside, wrong)


def as_csv(places: Sequence[Place]) -> str:
    """Every value of every model, a line each."""
    rows = [(place.evaluation.model, *row) for place in places for row in values_of(place.evaluation)]
    written: str = pd.DataFrame(rows, columns=("model", *COLUMNS)).to_csv(index=False, lineterminator="\n")
    return written
