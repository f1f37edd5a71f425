"""The evaluation of one model, for the terminal and as a page with figures, and of several beside each other."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Group

from demur.classifier.conformal import LEVEL
from demur.classifier.decision import UNKNOWN, UNSURE, score_of
from demur.classifier.evaluation import INLIERS, Evaluation, as_csv, shortfall
from demur.classifier.selective import risk_coverage
from demur.files import filling
from demur.metrics import Array
from demur.report.figures import (
    INSIDE,
    OUTSIDE,
    Drawing,
    acceptance,
    bars_by_confidence,
    frame_of_roc,
    one_column_wide,
    panels,
    save_drawings,
)
from demur.report.gallery import Card, cards
from demur.report.sheet import Sheet, Strong, Text, render, terminal
from demur.study.measuring import per_cent

MOST_CLASSES = 15  # of which every confusion is shown; of more, the most frequent mistakes
MISTAKES = 15
CLASSES = 60  # that have a line of their own
DECIDED = ("accepted", UNSURE, UNKNOWN)


def write_evaluation(evaluation: Evaluation, out: Path) -> None:
    """evaluation.csv with every number, figures/ and index.html."""
    limit = evaluation.decision
    with filling(out) as folder:
        (folder / "figures").mkdir()
        (folder / "evaluation.csv").write_text(as_csv(evaluation), "utf-8")
        page = render(
            "evaluation.html",
            evaluation=evaluation,
            score=explain(evaluation, limit.score),
            above=" to ".join(f"{value:.4g}" for value in sorted({min(limit.accept), max(limit.accept)})),
            coverage=per_cent(limit.coverage),
            warning=shortfall(evaluation),
            tables=[*tables(evaluation), *further_tables(evaluation)],
            figures=save_drawings(draw(evaluation), folder / "figures"),
            galleries=galleries(evaluation),
        )
        (folder / "index.html").write_text(page, "utf-8")


def explain(evaluation: Evaluation, score: str) -> str:
    return evaluation.scores[score].meaning or evaluation.scores[score].title


def titled_sheet(title: str, head: Sequence[Text], rows: Sequence[Sequence[Text]], note: str, names: int = 1) -> Sheet:
    """With a note that says what its words mean."""
    return Sheet(head, rows, names, title=title, notes=(note,))


def per_cent_or_dash(value: float) -> str:
    return "-" if np.isnan(value) else per_cent(value)


def tables(evaluation: Evaluation) -> list[Sheet]:
    """What everybody looks at first."""
    metrics = [(evaluation.measured[name], value) for name, value in evaluation.metrics.items()]
    head = [f"{metric.title} (%)" if metric.percent else metric.title for metric, _ in metrics]
    shown = [per_cent(value) if metric.percent else f"{value:.3f}" for metric, value in metrics]
    accepted = (evaluation.accuracy_of_accepted, evaluation.ece_of_accepted, evaluation.risk["aurc"])
    sheets = [
        titled_sheet(
            "Inliers",
            ("set", "inputs", *head, "accuracy of accepted (%)", "ECE of accepted (%)", "AURC (%)"),
            [(INLIERS, f"{len(evaluation.y):,}", *shown, *map(per_cent_or_dash, accepted))],
            "Accuracy counts the most probable class of every inlier, abstained on or not. ECE, Brier score and "
            "NLL tell how far probabilities are from what happens: 0 is best. AURC is the mean error rate as more"
            " and more inliers are answered, those of lowest score first: low where mistakes come last.",
        ),
        titled_sheet(
            "Decisions, per cent",
            ("set", "inputs", *DECIDED),
            [
                (name, f"{len(prediction):,}", *map(per_cent, evaluation.decisions[name].values()))
                for name, prediction in {INLIERS: evaluation.inside, **evaluation.ood}.items()
            ],
            "Accepted inputs get a label. The others are abstained on: unsure which class, or unknown, of no class. Of "
            "inliers most should be accepted, of outliers none.",
        ),
    ]
    if evaluation.ood:
        measured = dict.fromkeys(score for by_score in evaluation.against.values() for score in by_score)
        sheets.append(
            titled_sheet(
                "Outliers by score, per cent",
                ("set", "score", "FPR95", "AUROC", "AUPR"),
                [
                    (name, score, *map(per_cent, values.values()))
                    for name, by_score in evaluation.against.items()
                    for score, values in by_score.items()
                ],
                "How well a score tells outliers from inliers, whatever the threshold; the first one is abstained by."
                " FPR95 is the fraction of outliers that is accepted where 95 % of the inliers are: 0 is best. AUROC "
                "is the probability that an outlier scores higher than an inlier: 100 is best, 50 is chance. AUPR is "
                "average precision, inliers being what is looked for. The scores: "
                + "; ".join(f"{name}, {explain(evaluation, name)}" for name in measured)
                + ".",
                names=2,
            )
        )
    return sheets


def further_tables(evaluation: Evaluation) -> list[Sheet]:
    """What only a page has room for."""
    sheets = [confusion(evaluation) if len(evaluation.classes) <= MOST_CLASSES else mistakes(evaluation)]
    worst = sorted(evaluation.by_class.items(), key=lambda item: item[1]["accuracy"])
    left_out = len(worst) - CLASSES
    note = (
        "Of each class's inliers: how many get the right label when all are answered, how many are accepted, unsure and"
        " unknown, and how many of the accepted are right. Precision: of what is accepted as this class, how much is."
    )
    sheets.append(
        titled_sheet(
            "Classes, per cent",
            ("class", "inputs", "accuracy", *DECIDED, "accuracy of accepted", "precision of accepted"),
            [(name, f"{of['count']:,}", *map(per_cent_or_dash, [*of.values()][1:])) for name, of in worst[:CLASSES]],
            note + (f" The worst come first; {left_out} better ones are left out." if left_out > 0 else ""),
        )
    )
    if sets := evaluation.sets:
        known = evaluation.decision.count
        chance = np.sqrt(LEVEL * (1 - LEVEL) / known)
        held, labels = sets["coverage_by_class"], sets["labels_by_class"]
        sheets.append(
            titled_sheet(
                "Prediction sets",
                ("inliers", "inputs", "label is in the set (%)", "labels in a set"),
                [
                    ("all", f"{len(evaluation.y):,}", per_cent(sets["coverage"]), f"{sets['labels']:.2f}"),
                    *(
                        (name, f"{of['count']:,}", per_cent(held[name]), f"{labels[name]:.2f}")
                        for name, of in worst[:CLASSES]
                    ),
                ],
                f"Sets of labels at level {LEVEL:g}: for inliers like those that calibrated the model, the label is in"
                f" the set at least {100 * LEVEL:g} % of the time. That is promised for all of them together, not for "
                f"every class. With {known:,} that calibrated, one model may well be {200 * chance:.1f} points off.",
            )
        )
    return sheets


def confusion(evaluation: Evaluation) -> Sheet:
    names = [*next(iter(evaluation.confusion.values()))]
    rows = [
        (of, f"{sum(each.values()):,}", *(_count(count, of == f"class {name}") for name, count in each.items()))
        for of, each in evaluation.confusion.items()
    ]
    return titled_sheet(
        "Answers",
        ("inputs of", "inputs", *names),
        rows,
        "How many inputs of a class, or of a set of outliers, are answered how. Right answers lie on the "
        "diagonal; in a row of outliers only unsure and unknown are right.",
    )


def _count(count: int, right: bool) -> Text:
    shown = f"{count:,}" if count else "·"
    return Strong(shown) if right and count else shown


def mistakes(evaluation: Evaluation) -> Sheet:
    """The most frequent wrong answers."""
    every = [
        (of, answer, count)
        for of, each in evaluation.confusion.items()
        for answer, count in each.items()
        if count and of != f"class {answer}" and answer in evaluation.classes
    ]
    every.sort(key=lambda one: -one[2])
    rows = [(of, answer, f"{count:,}") for of, answer, count in every[:MISTAKES]]
    return titled_sheet(
        "Answers", ("inputs of", "answered", "inputs"), rows, "The most frequent wrong answers; evaluation.csv has all."
    )


def sheet(evaluation: Evaluation) -> Group:
    return Group(*map(terminal, tables(evaluation)))


def galleries(evaluation: Evaluation) -> dict[str, tuple[str, list[Card]]]:
    """By title, a note and single inputs."""
    by_title = {
        f"Accepted outliers: {name}": ("Those that look most like inliers, by their score.", cards(examples))
        for name, examples in evaluation.accepted.items()
        if examples
    }
    if evaluation.abstained:
        note = "Those that look most like outliers, by their score. Is something wrong with them?"
        by_title["Inliers abstained on"] = (note, cards(evaluation.abstained))
    return by_title


# figures ------------------------------------------------------------------------------------------------------------


def draw(evaluation: Evaluation) -> Iterator[Drawing]:
    caption = (
        "Reliability, before and after abstaining: accuracy of the inliers by confidence. On the dotted line "
        "probabilities are what happens; the darker a bar, the more inputs it has"
    )
    yield Drawing("reliability", caption, draw_reliability(evaluation))
    caption = (
        "Risk and coverage: the fraction of wrong answers as more and more inliers are answered, by the score that is "
        "abstained by and by confidence; the black line is the model's threshold"
    )
    yield Drawing("risk", caption, draw_risk({evaluation.model: evaluation}))
    if evaluation.ood:
        score = evaluation.decision.score
        caption = (
            f"Outliers by their rank among the inliers, under the score that is abstained by, {score}; inliers would "
            "lie flat, at the blue line, and abstained on is what lies right of the black one"
        )
        yield Drawing("scores", caption, draw_scores(evaluation))
        yield Drawing("roc", "Inliers accepted against outliers accepted, as the threshold moves", draw_roc(evaluation))


def draw_reliability(evaluation: Evaluation) -> Figure:
    accepts = evaluation.accepts
    with one_column_wide(height=1.9) as figure:
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        subsets = {"all inliers": np.ones_like(accepts), "accepted": accepts}
        for axis, (name, chosen), value in zip(
            axes, subsets.items(), (evaluation.metrics["ece"], evaluation.ece_of_accepted), strict=True
        ):
            if chosen.any():
                bars_by_confidence(axis, evaluation.sure[chosen], evaluation.right[chosen])
            axis.set_title(f"{name}: ECE {per_cent_or_dash(value)} %", pad=2)
            axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        figure.supxlabel("confidence")
        figure.supylabel("accuracy")
    return figure


LEAST = 1  # per cent of risk that a figure has room for
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def draw_risk(evaluations: Mapping[str, Evaluation]) -> Figure:
    """A line a model; of one model alone, that of its confidence too, and where its threshold is."""
    with one_column_wide(height=2.1 + 0.12 * len(evaluations)) as figure:
        axis = figure.subplots()
        for place, (name, one) in enumerate(evaluations.items()):
            score = score_of(one.inside, one.decision.score)
            label = name if len(evaluations) > 1 else one.decision.score
            _risk(axis, score, ~one.right, COLOURS[place % len(COLOURS)], label)
        if len(evaluations) == 1:
            _risk(axis, -one.sure, ~one.right, "#999999", "confidence")
            axis.axvline(100 * one.accepts.mean(), color="black", linewidth=0.6)
        axis.set(xlim=(0, 100), xlabel="coverage (% of inliers answered)", ylabel="risk (% of answers wrong)")
        axis.set_ylim(0, max(axis.get_ylim()[1], LEAST))
        longest = max(len(name) for name in axis.get_legend_handles_labels()[1])
        figure.legend(loc="outside upper center", ncols=max(1, 48 // (longest + 6)), handlelength=1, columnspacing=1)
    return figure


def _risk(axis: Axes, score: Array, wrong: np.ndarray, colour: str, label: str) -> None:
    coverage, risk = risk_coverage(score, wrong)
    few = np.unique(np.linspace(0, len(risk) - 1, 400).astype(int))
    axis.plot(100 * coverage[few], 100 * risk[few], color=colour, label=label, clip_on=False)  # it may be 0 throughout


def draw_scores(evaluation: Evaluation) -> Figure:
    """Where outliers rank among the inliers by the score that is abstained by, a panel a set; inliers would be flat."""
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
                axis.plot(*acceptance(-inside, -outside), color=evaluation.scores[score].colour, label=score)
            frame_of_roc(axis, name)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=1)
        figure.supxlabel("outliers accepted (%)")
        figure.supylabel("inliers accepted (%)")
    return figure
