"""What is said of one input: the decision, which is classifier/decision.py's, what it rests on, and why."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from demur.classifier import Classifier
from demur.classifier.decision import UNKNOWN, UNSURE, class_probs, score_of
from demur.metrics import Prediction


@dataclass(frozen=True)
class Answer:
    """`label` is the most probable class, whatever the decision, and `probabilities` are those of all classes, given
    that it is one of them. `disagreement` is how far the posterior's samples differ: 0 where all say the same, 1 where
    each is sure of another class. `accepted_if` says what would have made it accepted."""

    decision: str | int | float
    label: str | int | float
    probability: float
    probabilities: dict[str, float]
    outlier_score: float | None
    threshold: float
    unknown_from: float | None
    disagreement: float
    why: str
    accepted_if: str | None

    @property
    def abstained(self) -> bool:
        return self.accepted_if is not None

    @property
    def sort(self) -> str:
        """`label`, `unsure` or `unknown`: what is counted."""
        return str(self.decision) if self.abstained else "label"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answers(model: Classifier, prediction: Prediction) -> list[Answer]:
    decision, probs = model.decision_, class_probs(prediction)
    decisions = decision.answers(prediction, model.classes_)
    accepted, scores = decision.accepts(prediction), score_of(prediction, decision.score)
    accept, unknown = decision.thresholds(prediction)
    mutual = score_of(prediction, "mutual_information") / np.log(probs.shape[1])
    names = [str(name) for name in model.classes_]
    return [
        Answer(
            decision=plain(decisions[row]),
            label=plain(model.classes_[probs[row].argmax()]),
            probability=float(probs[row].max()),
            probabilities=dict(zip(names, probs[row].tolist(), strict=True)),
            outlier_score=finite_or_none(scores[row]),
            threshold=float(accept[row]),
            unknown_from=finite_or_none(unknown[row]),
            disagreement=min(1.0, max(0.0, finite_or_none(mutual[row]) or 0.0)),
            why=explain(model, decisions[row], scores[row], accept[row], unknown[row], probs[row]),
            accepted_if=None if accepted[row] else accepted_if(model, scores[row], int(probs[row].argmax())),
        )
        for row in range(len(probs))
    ]


def plain(value: Any) -> str | int | float:
    """A label as JSON has it."""
    label: str | int | float = value.item() if isinstance(value, np.generic) else value
    return label


def finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def explain(model: Classifier, decision: object, score: float, accept: float, unknown: float, probs: np.ndarray) -> str:
    measured = f"its outlier score {score:.3g}"
    if decision == UNKNOWN:
        return f"{measured} is above {unknown:.3g}, from where on an input belongs to none of the classes"
    if decision != UNSURE:
        return (
            f"{measured} is at most {accept:.3g}, the threshold that accepts {model.decision_.coverage:.0%} of inliers"
        )
    first, second = np.argsort(-probs)[:2]
    return (
        f"{measured} is above the threshold {accept:.3g}; the most probable classes are {model.classes_[first]} "
        f"({probs[first]:.0%}) and {model.classes_[second]} ({probs[second]:.0%})"
    )


def accepted_if(model: Classifier, score: float, answered: int) -> str:
    """The least change of the threshold that would have accepted it, and the coverage that goes with it."""
    if not np.isfinite(score):
        return "nothing would: its outlier score is not a number"
    known = calibration_scores(model, answered)
    if known is None:
        return f"with a threshold of {score:.3g} or more"
    below = int(np.searchsorted(known, score, "left"))
    if below == len(known):
        return f"with a threshold of {score:.3g} or more, higher than the score of any of {len(known)} inliers"
    return f"with a threshold of {score:.3g} or more, which means a coverage of at least {(below + 1) / len(known):.1%}"


def calibration_scores(model: Classifier, answered: int = 0) -> np.ndarray | None:
    """Sorted scores of the inliers that the threshold was set with, of that class where each has its own; None in model
    files that do not have them."""
    calibration = getattr(model, "calibration_", None)
    if calibration is None:
        return None
    groups = calibration.scores
    return np.asarray(groups[answered if len(groups) > 1 else 0])
