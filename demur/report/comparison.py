"""Several models on the same data, for the terminal and as a page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Group

from demur.classifier.comparison import Place, as_csv
from demur.classifier.decision import UNKNOWN, UNSURE, score_of
from demur.classifier.evaluation import INLIERS, Evaluation
from demur.classifier.selective import risk_coverage_with_outliers
from demur.files import filling
from demur.report.evaluation import CLASSES, COLOURS, DECIDED, draw_risk, explain, per_cent_or_dash, titled_sheet
from demur.report.figures import Drawing, one_column_wide, panels, save_drawings
from demur.report.sheet import Sheet, render, terminal
from demur.study.measuring import per_cent


def write_comparison(places: Sequence[Place], data: str, out: Path) -> None:
    """comparison.csv with every number, figures/ and index.html."""
    with filling(out) as folder:
        (folder / "figures").mkdir()
        (folder / "comparison.csv").write_text(as_csv(places), "utf-8")
        page = render(
            "comparison.html",
            places=places,
            data=data,
            inputs=len(places[0].evaluation.y),
            ood=[*places[0].evaluation.ood],
            tables=[*tables(places), class_sheet(places)],
            figures=save_drawings(draw(places), folder / "figures"),
        )
        (folder / "index.html").write_text(page, "utf-8")


def draw(places: Sequence[Place]) -> Iterator[Drawing]:
    by_model = {place.evaluation.model: place.evaluation for place in places}
    if places[0].evaluation.ood:
        caption = (
            "Risk and coverage with outliers: the fraction of wrong answers as more and more inputs are answered, as "
            "many outliers as inliers; the area under a line, its mean over the sets, is what models are ranked by"
        )
        yield Drawing("risk_with_outliers", caption, draw_risk_with_outliers(by_model))
    caption = "Risk and coverage: the fraction of wrong answers as more and more inliers are answered, a line a model"
    yield Drawing("risk", caption, draw_risk(by_model))


def draw_risk_with_outliers(evaluations: Mapping[str, Evaluation]) -> Figure:
    """A panel a set of outliers, a line a model."""
    sets = [*next(iter(evaluations.values())).ood]
    columns = min(2, len(sets))
    with one_column_wide(height=0.6 + 1.3 * -(-len(sets) // columns) + 0.12 * len(evaluations)) as figure:
        axes = panels(figure, len(sets), columns)
        for axis, of in zip(axes, sets, strict=True):
            for place, (name, one) in enumerate(evaluations.items()):
                inside, outside = (score_of(each, one.decision.score) for each in (one.inside, one.ood[of]))
                coverage, risk = risk_coverage_with_outliers(inside, ~one.right, outside)
                axis.plot(100 * coverage, 100 * risk, color=COLOURS[place % len(COLOURS)], label=name, clip_on=False)
            axis.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
            axis.set_title(of, pad=2)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, handlelength=1)
        figure.supxlabel("coverage (% of inputs answered)")
        figure.supylabel("risk (% of answers wrong)")
    return figure


def tables(places: Sequence[Place]) -> list[Sheet]:
    with_outliers = bool(places[0].evaluation.ood)
    rows = []
    for number, place in enumerate(places, 1):
        one = place.evaluation
        more = "-" if place.more is None else f"{100 * place.more[0]:+.1f} to {100 * place.more[1]:+.1f}"
        values = (
            one.metrics["accuracy"],
            *one.decisions[INLIERS].values(),
            one.accuracy_of_accepted,
            one.metrics["ece"],
            *([one.risk["aurc"]] if with_outliers else []),
        )
        shown = [per_cent_or_dash(value) for value in values]
        rows.append((one.model, str(number), per_cent(place.risk), more, *shown))
    risk = "AURC with outliers" if with_outliers else "AURC"
    counted = "Outliers are counted in, as many as inliers, and every answer to one is wrong. " if with_outliers else ""
    sheets = [
        titled_sheet(
            "Models, best first, per cent",
            ("model", "rank", risk, "more than the first", "accuracy", *DECIDED, "accuracy of accepted", "ECE")
            + (("AURC of inliers",) if with_outliers else ()),
            rows,
            f"Ranked by {risk}: the mean rate of wrong answers as more and more inputs are answered, those of "
            f"lowest outlier score first. {counted}More than the first: a 95 % interval, from resampled inputs; "
            "where it holds 0, chance may have made the order.",
        )
    ]
    if with_outliers:
        used = {place.evaluation.decision.score: place.evaluation for place in places}
        scores = "; ".join(f"{name}, {explain(one, name)}" for name, one in used.items())
        sheets.append(
            titled_sheet(
                "Outliers, per cent",
                ("set", "model", "inputs", "abstained on", UNSURE, UNKNOWN, "FPR95", "AUROC"),
                [
                    (name, one.model, f"{len(one.ood[name]):,}", *_abstained(one, name), *map(per_cent, scored))
                    for name in places[0].evaluation.ood
                    for one in (place.evaluation for place in places)
                    for scored in [[one.against[name][one.decision.score][metric] for metric in ("fpr95", "auroc")]]
                ],
                f"By the score that each model abstains by: {scores}. FPR95: the fraction of outliers accepted where "
                "95 % of the inliers are, 0 is best. AUROC: the probability that an outlier scores higher than an "
                "inlier, 100 is best.",
                names=2,
            )
        )
    return sheets


def _abstained(one: Evaluation, name: str) -> list[str]:
    """Per cent of a set: in all, unsure, unknown."""
    decided = one.decisions[name]
    return [per_cent(value) for value in (1 - decided["accepted"], decided[UNSURE], decided[UNKNOWN])]


def class_sheet(places: Sequence[Place]) -> Sheet:
    """Every class by every model; for this only a page has room."""
    first = places[0].evaluation.by_class
    worst = sorted(first, key=lambda name: first[name]["accuracy"])
    shown = worst[: max(1, CLASSES // len(places))]
    left_out = len(worst) - len(shown)
    return titled_sheet(
        "Classes, per cent",
        ("class", "model", "inputs", "accuracy", "accepted", "accuracy of accepted"),
        [
            (name, place.evaluation.model, f"{of['count']:,}", *map(per_cent_or_dash, values))
            for name in shown
            for place in places
            for of in [place.evaluation.by_class[name]]
            for values in [[of[value] for value in ("accuracy", "accepted", "accuracy_of_accepted")]]
        ],
        "Of each class's inliers: how many get the right label when all are answered, how many are accepted, and how "
        "many of these are right. Those that the first model gets wrong most come first"
        + (f"; {left_out} better ones are left out." if left_out > 0 else "."),
        names=2,
    )


def sheet(places: Sequence[Place]) -> Group:
    return Group(*map(terminal, tables(places)))
