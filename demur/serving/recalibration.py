"""A new threshold for an old model, from inliers as they are now; the network stays as it is."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from demur.classifier import Classifier
from demur.classifier.conformal import calibration_scores
from demur.classifier.decision import Decision, calibrate_decision
from demur.classifier.evaluation import concatenate
from demur.classifier.held_out import TRAINED, hash_rows, was_trained_with
from demur.classifier.readers import Inputs
from demur.serving.monitor import rate_interval

LEVEL = 0.05
MISTAKEN = 0.01  # fraction of inliers that may be taken for trained ones by chance


@dataclass(frozen=True)
class Recalibration:
    """Both thresholds, and what the old one does with the fresh inliers."""

    old: Decision
    new: Decision
    inliers: int
    accepted: float  # fraction of the fresh inliers that the old threshold accepts

    @property
    def interval(self) -> tuple[float, float]:
        return rate_interval(round(self.accepted * self.inliers), self.inliers, LEVEL)

    def lines(self) -> list[tuple[str, str]]:
        low, high = self.interval
        return [
            ("inliers", f"{self.inliers:,}, fresh"),
            ("old", f"{_limits(self.old)}, set to accept {self.old.coverage:.1%}"),
            ("", f"accepts {self.accepted:.1%} of the fresh inliers (95 % interval {low:.1%} to {high:.1%})"),
            ("new", f"{_limits(self.new)}, accepts a fresh inlier with probability {self.new.guaranteed:.1%} at least"),
        ]


def _limits(decision: Decision) -> str:
    low, high = min(decision.accept), max(decision.accept)
    return f"threshold {low:.4g}" if low == high else f"thresholds {low:.4g} to {high:.4g}, by class"


def count_trained(x: Tensor, model: Classifier) -> int:
    """How many inputs the model was trained with, as far as its file says."""
    known = model.held_out_hashes_
    return 0 if known is None or TRAINED not in known else int(was_trained_with(hash_rows(x), known).sum())


def usual_repeats(model: Classifier) -> float:
    """The fraction of held-out inputs that are like one which was trained with, as rows of few categories are."""
    known = model.held_out_hashes_
    held_out = [] if known is None else [each for part in ("tuning", "calibration") for each in known[part]]
    return float(was_trained_with(held_out, known).float().mean()) if known and TRAINED in known and held_out else 0.0


def recalibrate(
    model: Classifier, fresh: Inputs, coverage: float | None, count: Callable[[int], None]
) -> tuple[Classifier, Recalibration]:
    """The model with a threshold that is calibrated on `fresh` alone, and both thresholds side by side."""
    coverage = model.decision_.coverage if coverage is None else coverage
    if not 0 < coverage < 1:
        raise ValueError(f"coverage {coverage} is not between 0 and 1; it is the fraction of inliers to accept")
    predictions, trained = [], 0
    for batch in fresh.batches:
        x = model.inputs(batch.x)
        trained += count_trained(x, model)
        predictions.append(model.predict_tensor(x))
        count(len(batch.names))
    total = sum(map(len, predictions))
    if trained > (MISTAKEN + 2 * usual_repeats(model)) * total:
        warnings.warn(
            f"{trained:,} of {total:,} inliers are such as the model was trained with, which it knows too well: of "
            "fresh ones the new threshold accepts fewer than it promises; give others",
            stacklevel=2,
        )
    prediction = concatenate(predictions)
    by_class = len(model.decision_.accept) > 1
    decision = calibrate_decision(prediction, model.decision_.score, coverage, by_class)
    recalibration = Recalibration(
        model.decision_, decision, len(prediction), float(model.decision_.accepts(prediction).mean())
    )
    new = copy.copy(model)
    new.decision_ = decision
    if model.calibration_ is not None:  # prediction sets go on with the labelled inliers that they had
        new.calibration_ = replace(model.calibration_, scores=calibration_scores(prediction, decision))
    new.report_ = model.report_ | {
        "recalibrated": {
            "inliers": recalibration.inliers,
            "accepted_before": recalibration.accepted,
            "coverage_before": recalibration.old.coverage,
        },
        "guaranteed": decision.guaranteed,
    }
    return new, recalibration
