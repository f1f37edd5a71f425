"""One model on your own data: what it gets right, what it refuses, how well its scores tell outliers from inliers."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table
from torch import Tensor

from demur.classifier import Classifier
from demur.classifier.decision import Decision, class_probs, score_of
from demur.classifier.readers import Inputs, listed
from demur.metrics import BINS, METRICS, SCORES, Array, Prediction, Separation, calibration, max_prob_score
from demur.predictive import predict
from demur.report.drawings import Drawing
from demur.report.figures import INSIDE, OUTSIDE, one_column_wide, panels
from demur.report.page import saved
from demur.report.render import rendered

SHOWN = {"accuracy": "accuracy (%)", "ece": "ECE (%)", "brier": "Brier score", "nll": "NLL (nats)"}
AGAINST = {"fpr95": "FPR95", "auroc": "AUROC", "aupr": "AUPR"}
INLIERS = "inliers"
COLOURS = {
    "none_share": OUTSIDE,
    "max_prob": INSIDE,
    "none": "#009e73",
    "entropy": "#e69f00",
    "mutual_information": "#999999",
}


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
        """For the inliers and every set of outliers, the shares that get a label, `unsure` and `unknown`."""
        shares = {}
        for name, prediction in {INLIERS: self.inside, **self.ood}.items():
            kept, unknown = self.decision.accepts(prediction).mean(), self.decision.calls_unknown(prediction).mean()
            shares[name] = {"kept": float(kept), "unsure": float(1 - kept - unknown), "unknown": float(unknown)}
        return shares

    @cached_property
    def accuracy_of_kept(self) -> float:
        """nan where nothing is kept."""
        kept = self.decision.accepts(self.inside)
        return float(self.right[kept].mean()) if kept.any() else float("nan")

    @cached_property
    def by_class(self) -> dict[str, dict[str, float]]:
        kept, y = self.decision.accepts(self.inside), self.y.numpy(force=True)
        rows = {name: y == number for number, name in enumerate(self.classes)}
        return {
            name: {"count": int(mine.sum()), "accuracy": self.right[mine].mean(), "kept": kept[mine].mean()}
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
        """Every score that the model has, on inliers and on these; first the one that is refused by."""
        for name in sorted(SCORES, key=lambda name: name != self.decision.score):
            values, others = SCORES[name](self.inside), SCORES[name](outside)
            if values is not None and others is not None:
                yield name, values, others

    @property
    def right(self) -> np.ndarray:
        return self.inside.probs.argmax(1).numpy(force=True) == self.y.numpy(force=True)


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


def write_evaluation(evaluation: Evaluation, out: Path) -> None:
    """figures.csv with every number, figures/ and index.html."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "figures.csv").write_text(as_csv(evaluation), "utf-8")
    by_class: list[Sequence[str]] = [
        (name, f"{of['count']:,}", per_cent(of["accuracy"]), per_cent(of["kept"]))
        for name, of in evaluation.by_class.items()
    ]
    limit = evaluation.decision
    page = rendered(
        "evaluation.html",
        evaluation=evaluation,
        above=" to ".join(f"{value:.4g}" for value in sorted({min(limit.accept), max(limit.accept)})),
        keep=per_cent(limit.keep),
        warning=shortfall(evaluation),
        tables=tables(evaluation) | {"Classes, per cent": (("class", "inputs", "accuracy", "kept"), by_class)},
        figures=saved(draw(evaluation), out / "figures"),
    )
    (out / "index.html").write_text(page, "utf-8")


def as_csv(evaluation: Evaluation) -> str:
    """One figure a line, as a fraction in full precision."""
    rows: list[tuple[str, str, str, float]] = [(INLIERS, "", name, value) for name, value in evaluation.metrics.items()]
    rows.append((INLIERS, "", "accuracy_of_kept", evaluation.accuracy_of_kept))
    rows += [(of, "", name, share) for of, shares in evaluation.decisions.items() for name, share in shares.items()]
    rows += [
        (of, score, metric, value)
        for of, by_score in evaluation.against.items()
        for score, figures in by_score.items()
        for metric, value in figures.items()
    ]
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(("set", "score", "metric", "value"))
    writer.writerows((*place, repr(float(value))) for *place, value in rows)
    return written.getvalue()


# for the terminal and the page --------------------------------------------------------------------------------------

Lines = tuple[Sequence[str], list[Sequence[str]]]  # a table's head and its rows


def per_cent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}"


def tables(evaluation: Evaluation) -> dict[str, Lines]:
    """By title."""
    figures = [
        per_cent(evaluation.metrics[name]) if "%" in title else f"{evaluation.metrics[name]:.3f}"
        for name, title in SHOWN.items()
    ]
    made: dict[str, Lines] = {
        "Inliers": (
            ("inputs", *SHOWN.values(), "accuracy of what is kept (%)"),
            [(f"{len(evaluation.y):,}", *figures, per_cent(evaluation.accuracy_of_kept))],
        ),
        "Decisions, per cent": (
            ("set", "inputs", "kept", "unsure", "unknown"),
            [
                (name, f"{len(prediction):,}", *map(per_cent, evaluation.decisions[name].values()))
                for name, prediction in {INLIERS: evaluation.inside, **evaluation.ood}.items()
            ],
        ),
    }
    if evaluation.ood:
        made["Outliers by score, per cent"] = (
            ("set", "score", *AGAINST.values()),
            [
                (name, score, *map(per_cent, figures.values()))
                for name, by_score in evaluation.against.items()
                for score, figures in by_score.items()
            ],
        )
    return made


def shortfall(evaluation: Evaluation) -> str | None:
    """A sentence, if fewer inliers are kept than chance explains."""
    limit, kept, n = evaluation.decision, evaluation.decisions[INLIERS]["kept"], len(evaluation.y)
    chance = math.sqrt(limit.keep * (1 - limit.keep) * (1 / n + 1 / limit.count))
    if kept >= limit.keep - 3 * chance:
        return None
    return (
        f"{per_cent(kept)} % of the inliers are kept where {per_cent(limit.keep)} % were to be: "
        "they are not like those that the model was fitted to"
    )


def sheet(evaluation: Evaluation) -> Group:
    parts = []
    for title, (head, rows) in tables(evaluation).items():
        drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in head:
            drawn.add_column(column, justify="left" if column in ("set", "score") else "right")
        for row in rows:
            drawn.add_row(*row)
        parts.append(drawn)
    return Group(*parts)


def draw(evaluation: Evaluation) -> Iterator[Drawing]:
    caption = "Accuracy of the inliers by confidence; the darker a bar, the more inputs it has"
    yield Drawing("reliability", caption, draw_reliability(evaluation))
    if evaluation.ood:
        score = evaluation.decision.score
        caption = (
            f"Outliers by their rank among the inliers, under the score that is refused by, {score}; inliers would "
            "lie flat, at the blue line, and refused is what lies right of the black one"
        )
        yield Drawing("scores", caption, draw_scores(evaluation))
        yield Drawing("roc", "Inliers kept against outliers kept, as the threshold moves", draw_roc(evaluation))


def draw_reliability(evaluation: Evaluation) -> Figure:
    """Accuracy by confidence; a bar is as dark as its bin is full."""
    count, _, accuracy = calibration(-max_prob_score(evaluation.given_a_class), evaluation.right)
    with one_column_wide(height=2.4) as figure:
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=":")
        for place in np.flatnonzero(count):
            alpha = 0.15 + 0.85 * (count[place] / count.max()) ** 0.5
            axis.bar((place + 0.5) / BINS, accuracy[place], width=0.9 / BINS, color=INSIDE, alpha=alpha)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", ylabel="accuracy")
        axis.set_title(f"ECE {per_cent(evaluation.metrics['ece'])} %", pad=2)
    return figure


def draw_scores(evaluation: Evaluation) -> Figure:
    """Where outliers rank among the inliers by the score that is refused by, a panel a set; inliers would lie flat."""
    score = evaluation.decision.score
    inside = np.sort(score_of(evaluation.inside, score))

    def rank(values: Array | float) -> Array:
        return 100 * np.searchsorted(inside, values, "left") / len(inside)

    edges = np.linspace(0, 100, 21)
    with one_column_wide(height=0.5 + 1.2 * -(-len(evaluation.ood) // 2)) as figure:
        axes = panels(figure, len(evaluation.ood), columns=min(2, len(evaluation.ood)))
        for axis, (name, prediction) in zip(axes, evaluation.ood.items(), strict=True):
            share = np.histogram(rank(score_of(prediction, score)), edges)[0] / len(prediction)
            axis.stairs(100 * share, edges, color=OUTSIDE, fill=True, alpha=0.6)
            axis.axhline(100 / (len(edges) - 1), color=INSIDE, linewidth=0.8)
            for limit in set(evaluation.decision.accept):
                axis.axvline(float(rank(limit)), color="black", linewidth=0.6)
            axis.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
            axis.set_title(name, pad=2)
        figure.supxlabel(f"inliers of lower {score} score (%)")
        figure.supylabel("outliers (%)")
    return figure


def draw_roc(evaluation: Evaluation) -> Figure:
    """Inliers kept against outliers kept, a panel a set of outliers, a line a score."""
    with one_column_wide(height=0.6 + 1.45 * -(-len(evaluation.ood) // 2)) as figure:
        axes = panels(figure, len(evaluation.ood), columns=min(2, len(evaluation.ood)))
        for axis, (name, prediction) in zip(axes, evaluation.ood.items(), strict=True):
            for score, inside, outside in evaluation.scored(prediction):
                thresholds = np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, 401))
                below = (np.searchsorted(np.sort(side), thresholds, "right") / len(side) for side in (outside, inside))
                axis.plot(*(100 * np.append(0.0, kept) for kept in below), color=COLOURS[score], label=score)
            axis.axhline(95, color="black", linewidth=0.4)
            axis.set(xlim=(0, 100), ylim=(0, 101), xticks=(0, 50, 100), yticks=(0, 50, 95))
            axis.set_title(name, pad=2)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=1)
        figure.supxlabel("outliers kept (%)")
        figure.supylabel("inliers kept (%)")
    return figure
