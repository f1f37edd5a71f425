"""One model on your own data: what it gets right, where it abstains, how well its scores tell outliers from inliers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from demur.classifier.conformal import Calibration, measure_sets
from demur.classifier.decision import UNKNOWN, UNSURE, Decision, class_probs, score_of
from demur.classifier.estimator import Classifier
from demur.classifier.readers import Batch, Inputs, X, join_names
from demur.classifier.selective import aurc, aurc_with_outliers
from demur.metrics import METRICS, Array, Metric, Prediction, Separation, confidence, metric_named, right
from demur.scores import MEASURED, Score, score_named

EXAMPLES = 12  # single inputs that are shown, of each set
SHOWN = ("accuracy", "ece", "brier", "nll")
AGAINST = ("fpr95", "auroc", "aupr")
INLIERS, CLASS = "inliers", "class "  # as rows of the report are called, that of a class with its name behind
COLUMNS = ("set", "score", "metric", "value")
SET_VALUES = ("coverage", "labels")  # of prediction sets


@dataclass(frozen=True)
class Example:
    """One input, an image (C, H, W), a text or the cells of a row by name, and what the model says of it."""

    name: str
    x: Any
    decision: str
    label: str
    probability: float
    score: float
    truth: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a model for labelled inputs and for sets of outliers, and how it decides.

    `abstained` are the inliers of highest score, of those abstained on; `accepted` for each set of outliers those of
    lowest score, of those that get a label.
    """

    model: str
    classes: tuple[str, ...]
    decision: Decision
    inside: Prediction
    y: Tensor
    ood: Mapping[str, Prediction]
    calibration: Calibration | None = None
    abstained: Sequence[Example] = ()
    accepted: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    scores: Mapping[str, Score] = field(default_factory=lambda: MEASURED)
    measured: Mapping[str, Metric] = field(default_factory=lambda: {name: METRICS[name] for name in SHOWN})

    def __post_init__(self) -> None:
        if INLIERS in self.ood:
            raise ValueError(f"a set of outliers is named {INLIERS!r}, as the inliers are; give it another name")
        if alike := {f"{CLASS}{name}" for name in self.classes} & {*self.ood}:
            raise ValueError(f"a set of outliers is named {alike.pop()!r}, as a class is; give it another name")

    @cached_property
    def given_a_class(self) -> Prediction:
        """The probabilities that the model reports: of each class, given that it is one of them."""
        return replace(self.inside, probs=torch.from_numpy(class_probs(self.inside)), none=None)

    @cached_property
    def metrics(self) -> dict[str, float]:
        return {name: metric(self.given_a_class, self.y) for name, metric in self.measured.items()}

    @cached_property
    def decisions(self) -> dict[str, dict[str, float]]:
        """For the inliers and every set of outliers, the fractions that get a label, `unsure` and `unknown`."""
        fractions = {}
        for name, prediction in {INLIERS: self.inside, **self.ood}.items():
            accepted, unknown = self.decision.accepts(prediction).mean(), self.decision.calls_unknown(prediction).mean()
            fractions[name] = {
                "accepted": float(accepted),
                "unsure": float(1 - accepted - unknown),
                "unknown": float(unknown),
            }
        return fractions

    @cached_property
    def accuracy_of_accepted(self) -> float:
        """nan where nothing is accepted."""
        return mean_or_nan(self.right[self.accepts])

    @cached_property
    def accepts(self) -> NDArray[np.bool_]:
        """Of the inliers."""
        return self.decision.accepts(self.inside)

    @cached_property
    def ece_of_accepted(self) -> float:
        """nan where nothing is accepted."""
        chosen = torch.from_numpy(self.accepts)
        if not chosen.any():
            return float("nan")
        given = self.given_a_class
        accepted = replace(given, probs=given.probs[chosen], expected_entropy=given.expected_entropy[chosen])
        return METRICS["ece"](accepted, self.y[chosen])

    @cached_property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Of the inliers of a class: how many, accuracy, how many get a label, `unsure` and `unknown`, accuracy of the
        accepted; and of those accepted as that class, the fraction that is (precision). nan where there are none."""
        y, answer = self.y.numpy(force=True), self.given_a_class.probs.argmax(1).numpy(force=True)
        unknown = self.decision.calls_unknown(self.inside)
        rows = {name: (y == code, (answer == code) & self.accepts) for code, name in enumerate(self.classes)}
        return {
            name: {
                "count": int(is_class.sum()),
                "accuracy": mean_or_nan(self.right[is_class]),
                "accepted": mean_or_nan(self.accepts[is_class]),
                "unsure": mean_or_nan(~(self.accepts | unknown)[is_class]),
                "unknown": mean_or_nan(unknown[is_class]),
                "accuracy_of_accepted": mean_or_nan(self.right[is_class & self.accepts]),
                "precision_of_accepted": mean_or_nan(self.right[is_answered]),
            }
            for name, (is_class, is_answered) in rows.items()
            if is_class.any()
        }

    @cached_property
    def confusion(self) -> dict[str, dict[str, int]]:
        """How many inliers of every class, and how many of every set of outliers, are answered how."""
        answers = np.array([*self.classes, UNSURE, UNKNOWN])

        def answered(prediction: Prediction) -> NDArray[np.object_]:
            return self.decision.answers(prediction, answers[:-2])

        inside, y = answered(self.inside), self.y.numpy(force=True)
        given = {f"{CLASS}{name}": inside[y == code] for code, name in enumerate(self.classes)}
        given |= {name: answered(prediction) for name, prediction in self.ood.items()}
        return {of: {name: int((each == name).sum()) for name in answers} for of, each in given.items() if len(each)}

    @cached_property
    def risk(self) -> dict[str, float]:
        """AURC of the inliers by the score that is abstained by, and by confidence."""
        score = score_of(self.inside, self.decision.score)
        return {"aurc": aurc(score, ~self.right), "aurc_by_confidence": aurc(-self.sure, ~self.right)}

    @cached_property
    def risk_with_outliers(self) -> dict[str, float]:
        """By set of outliers, AURC of the inliers and these together, any answer to an outlier being wrong."""
        score = score_of(self.inside, self.decision.score)
        return {
            name: aurc_with_outliers(score, ~self.right, score_of(outside, self.decision.score))
            for name, outside in self.ood.items()
        }

    @cached_property
    def mean_risk(self) -> float:
        """By which models are ranked: the mean AURC with outliers over the sets of these, or the AURC without any."""
        return float(np.mean([*self.risk_with_outliers.values()])) if self.ood else self.risk["aurc"]

    @cached_property
    def sets(self) -> dict[str, Any] | None:
        """How often prediction sets hold the label, overall and by class, and how many labels they have; None where the
        model has no calibration scores."""
        if self.calibration is None:
            return None
        return measure_sets(self.calibration, np.array(self.classes), self.inside, self.y)

    @property
    def sure(self) -> Array:
        return confidence(self.given_a_class)

    @cached_property
    def against(self) -> dict[str, dict[str, dict[str, float]]]:
        """By set of outliers and score: FPR95, AUROC and AUPR, inliers being the positive ones."""
        return {
            name: {
                score: {metric: getattr(Separation(-inside, -outside), metric) for metric in AGAINST}
                for score, inside, outside in self.scored(prediction)
            }
            for name, prediction in self.ood.items()
        }

    def scored(self, outside: Prediction) -> Iterator[tuple[str, Array, Array]]:
        """Every score that the model has, on inliers and on these; first the one that the model abstains by."""
        for name in sorted(self.scores, key=lambda name: name != self.decision.score):
            values, others = self.scores[name](self.inside), self.scores[name](outside)
            if values is not None and others is not None:
                yield name, values, others

    @property
    def right(self) -> NDArray[np.bool_]:
        return right(self.inside, self.y)


def evaluate(
    model: str,
    classifier: Classifier,
    inside: Inputs,
    ood: Mapping[str, Inputs],
    count: Callable[[int], None],
    scores: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Predict everything, a batch at a time; `count` is told how many inputs are done. `scores` and `metrics` are more
    to measure, by name."""
    more = classifier.scores_named(scores)
    shown = {name: metric_named(name) for name in (*SHOWN, *metrics)}

    def predicted(inputs: Inputs, lowest: bool) -> tuple[Prediction, list[str], list[Example]]:
        parts, labels, examples = list[Prediction](), list[str](), list[Example]()
        for batch in inputs.batches:
            parts.append(classifier.prediction(batch.x, more))
            labels += batch.y or []
            extreme = examples_of(classifier, parts[-1], batch, lowest)
            examples = sorted([*examples, *extreme], key=lambda one: one.score if lowest else -one.score)[:EXAMPLES]
            count(len(batch.names))
        return concatenate(parts), labels, examples

    classes = tuple(map(str, classifier.classes_))
    prediction, labels, abstained = predicted(inside, lowest=False)
    number = {name: code for code, name in enumerate(classes)}
    stranger = next((label for label in labels if label not in number), None)
    if stranger is not None:
        raise ValueError(
            f"label {stranger!r} is none of the model's classes ({join_names(classes)}); "
            "give inputs of other classes apart, with --ood"
        )
    y = torch.tensor([number[label] for label in labels])
    others = {name: predicted(inputs, lowest=True) for name, inputs in ood.items()}
    return Evaluation(
        model,
        classes,
        classifier.decision_,
        prediction,
        y,
        {name: each[0] for name, each in others.items()},
        classifier.calibration_,
        abstained,
        {name: each[2] for name, each in others.items()},
        {**MEASURED, **{score.name: score for score in (score_named(classifier.decision_.score), *more)}},
        shown,
    )


def examples_of(classifier: Classifier, prediction: Prediction, batch: Batch, accepted: bool) -> Iterator[Example]:
    """Of what is accepted the inputs of lowest score, or of what is abstained on those of highest."""
    score, probs = score_of(prediction, classifier.decision_.score), class_probs(prediction)
    answers = classifier.decision_.answers(prediction, classifier.classes_)
    able = np.flatnonzero(classifier.decision_.accepts(prediction) == accepted)
    for row in able[np.argsort(score[able] if accepted else -score[able], kind="stable")][:EXAMPLES].tolist():
        label, truth = str(classifier.classes_[probs[row].argmax()]), batch.y[row] if batch.y else None
        chance = float(probs[row].max())
        yield Example(
            batch.names[row], take_row(batch.x, row), str(answers[row]), label, chance, float(score[row]), truth
        )


def take_row(x: X, row: int) -> Any:
    if isinstance(x, pa.Table):
        return {name: x[name][row].as_py() for name in x.column_names}
    if isinstance(x, np.ndarray) and x.ndim == 2:
        return {str(column + 1): value for column, value in enumerate(x[row].tolist())}
    return x[row]


def mean_or_nan(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def concatenate(parts: Sequence[Prediction]) -> Prediction:
    none = [part.none for part in parts if part.none is not None]
    return Prediction(
        torch.cat([part.probs for part in parts]),
        torch.cat(none) if none else None,
        torch.cat([part.expected_entropy for part in parts]),
        scores={name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores},
    )


def shortfall(evaluation: Evaluation) -> str | None:
    """A sentence, if fewer inliers are accepted than chance explains."""
    limit, accepted, n = evaluation.decision, evaluation.decisions[INLIERS]["accepted"], len(evaluation.y)
    chance = math.sqrt(limit.coverage * (1 - limit.coverage) * (1 / n + 1 / limit.count))
    if accepted >= limit.coverage - 3 * chance:
        return None
    return (
        f"{100 * accepted:.1f} % of the inliers are accepted where {100 * limit.coverage:.1f} % were to be: "
        "they are not like those that the model was fitted to"
    )


def as_csv(evaluation: Evaluation) -> str:
    """One value a line, as a fraction in full precision."""
    written: str = pd.DataFrame(values_of(evaluation), columns=COLUMNS).to_csv(index=False, lineterminator="\n")
    return written


def values_of(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """By set, score and metric."""
    rows: list[tuple[str, str, str, float]] = [(INLIERS, "", name, value) for name, value in evaluation.metrics.items()]
    rows.append((INLIERS, "", "accuracy_of_accepted", evaluation.accuracy_of_accepted))
    rows += [(INLIERS, "", "ece_of_accepted", evaluation.ece_of_accepted)]
    rows += [(INLIERS, "", name, value) for name, value in evaluation.risk.items()]
    rows += [(of, "", "aurc_with_outliers", value) for of, value in evaluation.risk_with_outliers.items()]
    if sets := evaluation.sets:
        rows += [(INLIERS, "", f"sets: {value}", sets[value]) for value in SET_VALUES]
        rows += [
            (INLIERS, "", f"sets: {value} {name}", of_class)
            for value in SET_VALUES
            for name, of_class in sets[f"{value}_by_class"].items()
        ]
    rows += [(of, "", name, value) for of, each in evaluation.decisions.items() for name, value in each.items()]
    by_class = {f"{CLASS}{name}": values for name, values in evaluation.by_class.items()}
    answered = {of: {f"answered {a}": n for a, n in each.items()} for of, each in evaluation.confusion.items()}
    rows += [(of, "", name, value) for part in (by_class, answered) for of in part for name, value in part[of].items()]
    rows += [
        (of, score, metric, value)
        for of, by_score in evaluation.against.items()
        for score, values in by_score.items()
        for metric, value in values.items()
    ]
    return [(of, score, metric, repr(float(value))) for of, score, metric, value in rows]
