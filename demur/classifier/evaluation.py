"""One model on your own data: what it gets right, where it abstains, how well its scores tell outliers from inliers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from demur.classifier.decision import Decision, class_probs
from demur.classifier.estimator import Classifier
from demur.classifier.readers import Inputs, listed
from demur.metrics import METRICS, Array, Prediction, Separation, right
from demur.predictive import predict
from demur.scores import MEASURED

SHOWN = ("accuracy", "ece", "brier", "nll")
AGAINST = ("fpr95", "auroc", "aupr")
INLIERS = "inliers"
COLUMNS = ("set", "score", "metric", "value")


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a model for labelled inputs and for sets of outliers, and how it decides."""

    model: str
    classes: tuple[str, ...]
    decision: Decision
    inside: Prediction
    y: Tensor
    ood: Mapping[str, Prediction]

    def __post_init__(self) -> None:
        if INLIERS in self.ood:
            raise ValueError(f"a set of outliers is named {INLIERS!r}, as the inliers are; give it another name")

    @cached_property
    def given_a_class(self) -> Prediction:
        """The probabilities that the model reports: of each class, given that it is one of them."""
        return replace(self.inside, probs=torch.from_numpy(class_probs(self.inside)), none=None)

    @cached_property
    def metrics(self) -> dict[str, float]:
        return {name: METRICS[name](self.given_a_class, self.y) for name in SHOWN}

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
        accepted = self.decision.accepts(self.inside)
        return float(self.right[accepted].mean()) if accepted.any() else float("nan")

    @cached_property
    def by_class(self) -> dict[str, dict[str, float]]:
        accepted, y = self.decision.accepts(self.inside), self.y.numpy(force=True)
        rows = {name: y == number for number, name in enumerate(self.classes)}
        return {
            name: {"count": int(mine.sum()), "accuracy": self.right[mine].mean(), "accepted": accepted[mine].mean()}
            for name, mine in rows.items()
            if mine.any()
        }

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
        for name in sorted(MEASURED, key=lambda name: name != self.decision.score):
            values, others = MEASURED[name](self.inside), MEASURED[name](outside)
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
    device: str,
    count: Callable[[int], None],
) -> Evaluation:
    """Predict everything, a batch at a time; `count` is told how many inputs are done."""

    def predicted(inputs: Inputs) -> tuple[Prediction, list[str]]:
        parts, labels = [], []
        for batch in inputs.batches:
            x = classifier.preprocessing_.read(batch.x).to(device)
            parts.append(predict(classifier.posterior_, classifier.likelihood_, x))
            labels += batch.y or []
            count(len(batch.names))
        return joined(parts), labels

    classes = tuple(map(str, classifier.classes_))
    prediction, labels = predicted(inside)
    number = {name: code for code, name in enumerate(classes)}
    stranger = next((label for label in labels if label not in number), None)
    if stranger is not None:
        raise ValueError(
            f"label {stranger!r} is none of the model's classes ({listed(classes)}); "
            "give inputs of other classes apart, with --ood"
        )
    y = torch.tensor([number[label] for label in labels])
    others = {name: predicted(inputs)[0] for name, inputs in ood.items()}
    return Evaluation(model, classes, classifier.decision_, prediction, y, others)


def joined(parts: Sequence[Prediction]) -> Prediction:
    none = [part.none for part in parts if part.none is not None]
    return Prediction(
        torch.cat([part.probs for part in parts]),
        torch.cat(none) if none else None,
        torch.cat([part.expected_entropy for part in parts]),
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
    rows: list[tuple[str, str, str, float]] = [(INLIERS, "", name, value) for name, value in evaluation.metrics.items()]
    rows.append((INLIERS, "", "accuracy_of_accepted", evaluation.accuracy_of_accepted))
    rows += [(of, "", name, value) for of, each in evaluation.decisions.items() for name, value in each.items()]
    rows += [
        (of, score, metric, value)
        for of, by_score in evaluation.against.items()
        for score, values in by_score.items()
        for metric, value in values.items()
    ]
    text = [(*place, repr(float(value))) for *place, value in rows]
    written: str = pd.DataFrame(text, columns=COLUMNS).to_csv(index=False, lineterminator="\n")
    return written
