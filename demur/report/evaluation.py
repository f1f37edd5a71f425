"""The evaluation of one model, for the terminal and as a page with figures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Group

from demur.classifier.decision import score_of
from demur.classifier.evaluation import INLIERS, Evaluation, as_csv, shortfall
from demur.metrics import METRICS, Array, confidence
from demur.report.figures import (
    INSIDE,
    OUTSIDE,
    Drawing,
    acceptance,
    bars_by_confidence,
    frame_of_roc,
    one_column_wide,
    panels,
)
from demur.report.page import saved
from demur.report.sheet import Sheet, rendered, terminal
from demur.scores import SCORES
from demur.study.measuring import per_cent


def write_evaluation(evaluation: Evaluation, out: Path) -> None:
    """figures.csv with every number, figures/ and index.html."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "figures.csv").write_text(as_csv(evaluation), "utf-8")
    by_class = [
        (name, f"{of['count']:,}", per_cent(of["accuracy"]), per_cent(of["accepted"]))
        for name, of in evaluation.by_class.items()
    ]
    limit = evaluation.decision
    page = rendered(
        "evaluation.html",
        evaluation=evaluation,
        above=" to ".join(f"{value:.4g}" for value in sorted({min(limit.accept), max(limit.accept)})),
        coverage=per_cent(limit.coverage),
        warning=shortfall(evaluation),
        tables=[
            *tables(evaluation),
            Sheet(("class", "inputs", "accuracy", "accepted"), by_class, title="Classes, per cent"),
        ],
        figures=saved(draw(evaluation), out / "figures"),
    )
    (out / "index.html").write_text(page, "utf-8")


def tables(evaluation: Evaluation) -> list[Sheet]:
    metrics = {METRICS[name]: value for name, value in evaluation.metrics.items()}
    head = [f"{metric.title} (%)" if metric.percent else metric.title for metric in metrics]
    shown = [per_cent(value) if metric.percent else f"{value:.3f}" for metric, value in metrics.items()]
    of_accepted = evaluation.accuracy_of_accepted
    made = [
        Sheet(
            ("inputs", *head, "accuracy of accepted (%)"),
            [(f"{len(evaluation.y):,}", *shown, "-" if np.isnan(of_accepted) else per_cent(of_accepted))],
            title="Inliers",
        ),
        Sheet(
            ("set", "inputs", "accepted", "unsure", "unknown"),
            [
                (name, f"{len(prediction):,}", *map(per_cent, evaluation.decisions[name].values()))
                for name, prediction in {INLIERS: evaluation.inside, **evaluation.ood}.items()
            ],
            title="Decisions, per cent",
        ),
    ]
    if evaluation.ood:
        lines = [
            (name, score, *map(per_cent, values.values()))
            for name, by_score in evaluation.against.items()
            for score, values in by_score.items()
        ]
        head = ["set", "score", "FPR95", "AUROC", "AUPR"]
        made.append(Sheet(head, lines, names=2, title="Outliers by score, per cent"))
    return made


def sheet(evaluation: Evaluation) -> Group:
    return Group(*map(terminal, tables(evaluation)))


def draw(evaluation: Evaluation) -> Iterator[Drawing]:
    caption = "Accuracy of the inliers by confidence; the darker a bar, the more inputs it has"
    yield Drawing("reliability", caption, draw_reliability(evaluation))
    if evaluation.ood:
        score = evaluation.decision.score
        caption = (
            f"Outliers by their rank among the inliers, under the score of the decision, {score}; inliers would "
            "lie flat, at the blue line, and the model abstains right of the black one"
        )
        yield Drawing("scores", caption, draw_scores(evaluation))
        yield Drawing("roc", "Inliers accepted against outliers accepted, as the threshold moves", draw_roc(evaluation))


def draw_reliability(evaluation: Evaluation) -> Figure:
    with one_column_wide(height=2.4) as figure:
        axis = figure.subplots()
        bars_by_confidence(axis, confidence(evaluation.given_a_class), evaluation.right)
        axis.set(xlabel="confidence", ylabel="accuracy")
        axis.set_title(f"ECE {per_cent(evaluation.metrics['ece'])} %", pad=2)
    return figure


def draw_scores(evaluation: Evaluation) -> Figure:
    """Where outliers rank among the inliers by the score of the decision, a panel a set; inliers would lie flat."""
    score = evaluation.decision.score
    inside = np.sort(score_of(evaluation.inside, score))

    def rank(values: Array | float) -> Array:
        return 100 * np.searchsorted(inside, values, "left") / len(inside)

    edges = np.linspace(0, 100, 21)
    with one_column_wide(height=0.5 + 1.2 * -(-len(evaluation.ood) // 2)) as figure:
        axes = panels(figure, len(evaluation.ood), columns=min(2, len(evaluation.ood)))
        for axis, (name, prediction) in zip(axes, evaluation.ood.items(), strict=True):
            fraction = np.histogram(rank(score_of(prediction, score)), edges)[0] / len(prediction)
            axis.stairs(100 * fraction, edges, color=OUTSIDE, fill=True, alpha=0.6)
            axis.axhline(100 / (len(edges) - 1), color=INSIDE, linewidth=0.8)
            for limit in set(evaluation.decision.accept):
                axis.axvline(float(rank(limit)), color="black", linewidth=0.6)
            axis.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
            axis.set_title(name, pad=2)
        figure.supxlabel(f"inliers of lower {score} score (%)")
        figure.supylabel("outliers (%)")
    return figure


def draw_roc(evaluation: Evaluation) -> Figure:
    """Inliers accepted against outliers accepted, a panel a set of outliers, a line a score."""
    with one_column_wide(height=0.6 + 1.45 * -(-len(evaluation.ood) // 2)) as figure:
        axes = panels(figure, len(evaluation.ood), columns=min(2, len(evaluation.ood)))
        for axis, (name, prediction) in zip(axes, evaluation.ood.items(), strict=True):
            for score, inside, outside in evaluation.scored(prediction):
                axis.plot(*acceptance(-inside, -outside), color=SCORES[score].colour, label=score)
            frame_of_roc(axis, name)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=1)
        figure.supxlabel("outliers accepted (%)")
        figure.supylabel("inliers accepted (%)")
    return figure
