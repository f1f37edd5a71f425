"""What can be promised of single answers, from the scores of n inliers that nothing was fitted or tuned with.

The promises need one thing: that a fresh inlier and those n are exchangeable, as draws from one source are. Nothing is
asked of the network. They hold on average over the n and the fresh ones together, not for one set of n.

p-value: (1 + how many of the n score as high or higher, but for rounding) / (n + 1). For a fresh inlier, P(p <= t) <= t
at every t. It is accepted exactly where p > 1 - coverage. Of outliers nothing can be promised: how small their p-values
are depends on the model and on them.

Screening: Benjamini and Hochberg's procedure on the p-values of a batch. Of what is called an outlier, at most the
fraction `fdr` is inliers, in expectation: p-values that share their n inliers depend on each other positively, which
the procedure allows (Bates, Candes, Lei, Romano and Sesia, Annals of Statistics 2023).

Prediction sets: all labels whose probability is at least a quantile that was calibrated on the probabilities of the n
inliers' own labels. A fresh inlier's label is in its set with probability `level`; with `by_class` inliers of every
class have that promise, by quantiles of their own. A set may be empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from demur.classifier.decision import MOST, Decision, by_answer, class_probs, draw_some, highest_alike, score_of
from demur.metrics import Array, Prediction

LEVEL = 0.9  # of the prediction sets that a report tells of


@dataclass(frozen=True)
class Calibration:
    """Sorted scores of held-out inliers.

    `scores` are the outlier scores that are abstained by: all together, or by the class answered where limits are.
    `errors` are 1 - the probability of the inlier's own label, by that label.
    """

    scores: tuple[tuple[float, ...], ...]
    errors: tuple[tuple[float, ...], ...]

    def p_values(self, prediction: Prediction, decision: Decision) -> Array:
        """Of "this is an inlier"; small for outliers."""
        scores = score_of(prediction, decision.score)
        group = class_probs(prediction).argmax(1) if len(self.scores) > 1 else np.zeros(len(scores), int)
        values = np.empty(len(scores))
        for place, known in enumerate(self.scores):
            limits = highest_alike(np.asarray(known), decision.score)
            values[group == place] = conformal_p(limits, scores[group == place])
        return values

    def label_sets(self, prediction: Prediction, level: float, by_class: bool = False) -> NDArray[np.bool_]:
        """(N, K): whether a label is in the set."""
        if not 0 < level < 1:
            raise ValueError(f"level {level!r} is not a number between 0 and 1; it is a probability, as 0.9")
        errors = 1 - class_probs(prediction)
        known = [highest_alike(np.asarray(each), "max_prob") for each in self.errors]
        if not by_class:
            known = [np.sort(np.concatenate(known))] * len(known)
        return np.stack([conformal_p(known[code], errors[:, code]) for code in range(len(known))], 1) > 1 - level + 1e-9


def conformal_p(calibration: Array, values: Array) -> Array:
    """Of sorted values and fresh ones; NaN counts as highest."""
    as_high = len(calibration) - np.searchsorted(calibration, values, "left")
    return (1 + np.where(np.isnan(values), 0, as_high)) / (len(calibration) + 1)


def calibration_of(prediction: Prediction, y: Tensor, decision: Decision) -> Calibration:
    """From the predictions of held-out inliers, the same that the decision's limits were calibrated with, in random
    order."""
    probs, labels = class_probs(prediction)[:MOST], y.numpy(force=True)[:MOST]
    errors = 1 - probs[np.arange(len(labels)), labels]
    by_label = tuple(tuple(np.sort(errors[labels == code]).tolist()) for code in range(probs.shape[1]))
    return Calibration(calibration_scores(prediction, decision), by_label)


def calibration_scores(prediction: Prediction, decision: Decision) -> tuple[tuple[float, ...], ...]:
    """Sorted, in as many groups as the decision has limits."""
    scores, answered = score_of(prediction, decision.score), class_probs(prediction).argmax(1)
    groups = [scores]
    if len(decision.accept) > 1:
        groups = by_answer(scores, answered, len(decision.accept), decision.coverage)
    return tuple(tuple(np.sort(draw_some(group)).tolist()) for group in groups)


def calibration_from_json(saved: Mapping[str, Any], decision: Decision, num_classes: int) -> Calibration | None:
    """As saved; None in files that are older than p-values."""
    if saved.get("calibration") is None:
        return None
    groups = {name: tuple(map(tuple, saved["calibration"][name])) for name in ("scores", "errors")}
    calibration = Calibration(**groups)
    if len(calibration.scores) != len(decision.accept) or len(calibration.errors) != num_classes:
        raise ValueError(f"its calibration scores are not those of {num_classes} classes; save it anew")
    if any(list(group) != sorted(group) for group in (*calibration.scores, *calibration.errors)):
        raise ValueError("its calibration scores are not sorted; save it anew")
    return calibration


def measure_sets(calibration: Calibration, classes: NDArray[Any], prediction: Prediction, y: Tensor) -> dict[str, Any]:
    """How often sets hold the label of inliers that did not calibrate them, and how many labels they have."""
    sets, labels = calibration.label_sets(prediction, LEVEL), y.numpy(force=True)
    holds = sets[np.arange(len(labels)), labels]
    sizes = sets.sum(1)
    rows = {str(name): labels == code for code, name in enumerate(classes) if code in labels}
    return {
        "level": LEVEL,
        "coverage": float(holds.mean()),
        "coverage_by_class": {name: float(holds[is_class].mean()) for name, is_class in rows.items()},
        "labels": float(sizes.mean()),
        "labels_by_class": {name: float(sizes[is_class].mean()) for name, is_class in rows.items()},
    }


def benjamini_hochberg(p_values: Array, fdr: float) -> NDArray[np.bool_]:
    """Which are rejected: all up to the largest p-value that is at most its rank times fdr / m."""
    if not 0 < fdr < 1:
        raise ValueError(f"fdr {fdr!r} is not a number between 0 and 1; it is a fraction of what is called an outlier")
    order = np.sort(p_values)
    passing = np.flatnonzero(order <= fdr * np.arange(1, len(order) + 1) / max(len(order), 1) + 1e-12)
    return p_values <= (order[passing[-1]] if len(passing) else -1.0)
