"""Several models on the same data, for the terminal and as a page."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group

from demur.classifier.comparison import Place, as_csv
from demur.classifier.decision import UNKNOWN, UNSURE
from demur.classifier.evaluation import INLIERS, Evaluation
from demur.files import filling
from demur.report.evaluation import CLASSES, DECIDED, draw_risk, explain, per_cent_or_dash, titled_sheet
from demur.report.figures import Drawing, save_drawings
from demur.report.sheet import Sheet, render, terminal
from demur.study.measuring import per_cent


def write_comparison(places: Sequence[Place], data: str, out: Path) -> None:
    """comparison.csv with every number, figures/ and index.html."""
    caption = "Risk and coverage: the fraction of wrong answers as more and more inliers are answered, a line a model"
    by_model = {place.evaluation.model: place.evaluation for place in places}
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
            figures=save_drawings([Drawing("risk", caption, draw_risk(by_model))], folder / "figures"),
        )
        (folder / "index.html").write_text(page, "utf-8")


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
