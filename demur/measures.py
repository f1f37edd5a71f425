"""What is computed of predictions: metrics of inliers, and every score's metrics of inliers against outliers.

OOD metrics take the inliers as positive, as the paper does; the suffix `_out` says that outliers are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from demur.metrics import METRICS, Metric, Prediction, Separation, metric_named, mmc
from demur.scores import MEASURED, USUAL_SCORE, Score, score_named


@dataclass(frozen=True)
class Measures:
    """What is computed, by name."""

    metrics: Mapping[str, Metric]
    scores: Mapping[str, Score]


STANDARD = Measures(METRICS, MEASURED)
OF_A_SCORE = ("fpr95", "auroc", "aupr", "aupr_published")  # metrics whose value depends on the score
OUT = "_out"  # behind the name of a metric that takes outliers as positive


def value_name(metric: str, score: str) -> str:
    """What a metric's value is stored under: its own name, behind that of a score that is not the usual one."""
    depends = metric.removesuffix(OUT) in OF_A_SCORE
    return f"{score}_{metric}" if depends and score != USUAL_SCORE else metric


def score_named_in(name: str, metric: str) -> str | None:
    """The score of a stored value of this metric; None of another metric's. The reverse of `value_name`."""
    if name == metric:
        return USUAL_SCORE
    return name.removesuffix(f"_{metric}") if name.endswith(f"_{metric}") else None


def measures_with(metrics: Iterable[str] = (), scores: Iterable[str] = ()) -> Measures:
    """What every result has, and more by name: others of `SCORES`, or of one's own, as `mypackage.mymodule:name`."""
    return Measures(
        {**METRICS, **{name: metric_named(name) for name in metrics}},
        {**MEASURED, **{name: score_named(name) for name in scores}},
    )


def ood_metrics(inside: Prediction, outside: Prediction, scores: Mapping[str, Score] = MEASURED) -> dict[str, float]:
    """Every score's values for one OOD set: `fpr95`, `auroc`, `aupr` and `mmc` of the max-probability score, the other
    scores' under their names (`none_fpr95`), outliers as positive under the suffix `_out`."""
    values = {"mmc": mmc(outside)}
    for name, score in scores.items():
        values_in, values_out = score(inside), score(outside)
        if values_in is None or values_out is None:
            continue
        inliers_positive = Separation(-values_in, -values_out)
        outliers_positive = inliers_positive.other_way
        for metric in ("fpr95", "auroc", "aupr"):
            values[value_name(metric, name)] = getattr(inliers_positive, metric)
            values[value_name(metric + OUT, name)] = getattr(outliers_positive, metric)
        values[value_name("aupr_published", name)] = inliers_positive.aupr_published
    return values
