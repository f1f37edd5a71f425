"""Several models on the same data, for the terminal and as a page."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group

from demur.classifier.comparison import Place, as_csv
from demur.report.evaluation import draw_risk, per_cent_or_dash, titled_sheet
from demur.report.figures import Drawing
from demur.report.page import save_drawings
from demur.report.sheet import Sheet, render, terminal
from demur.study.measuring import per_cent


def write_comparison(places: Sequence[Place], data: str, out: Path) -> None:
    """comparison.csv with every number, figures/ and index.html."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "comparison.csv").write_text(as_csv(places), "utf-8")
    caption = "Risk and coverage: the fraction of wrong answers as more and more inliers are answered, a line a model"
    by_model = {place.evaluation.model: place.evaluation for place in places}
    page = render(
        "comparison.html",
        places=places,
        data=data,
        inputs=len(places[0].evaluation.y),
        ood=[*places[0].evaluation.ood],
        tables=tables(places),
        figures=save_drawings([Drawing("risk", caption, draw_risk(by_model))], out / "figures"),
    )
    (out / "index.html").write_text(page, "utf-8")


def tables(places: Sequence[Place]) -> list[Sheet]:
    with_outliers = bool(places[0].evaluation.ood)
    rows = []
    for number, place in enumerate(places, 1):
        one = place.evaluation
        more = "-" if place.more is None else f"{100 * place.more[0]:+.1f} to {100 * place.more[1]:+.1f}"
        accepted = (
            one.decisions["inliers"]["accepted"],
            one.accuracy_of_accepted,
            one.metrics["ece"],
            one.risk["aurc"],
        )
        shown = [per_cent_or_dash(value) for value in (one.metrics["accuracy"], *accepted)]
        rows.append((one.model, str(number), per_cent(place.risk), more, *shown))
    risk = "AURC with outliers" if with_outliers else "AURC"
    counted = "Outliers are counted in, as many as inliers, and every answer to one is wrong. " if with_outliers else ""
    sheets = [
        titled_sheet(
            "Models, best first, per cent",
            ("model", "rank", risk, "more than the first", "accuracy", "accepted", "accuracy of accepted", "ECE")
            + (("AURC of inliers",) if with_outliers else ("AURC",)),
            rows,
            f"Ranked by {risk}: the mean rate of wrong answers as more and more inputs are answered, those of "
            f"lowest outlier score first. {counted}More than the first: a 95 % interval, from resampled inputs; "
            "where it holds 0, chance may have made the order.",
        )
    ]
    if with_outliers:
        sheets.append(
            titled_sheet(
                "Outliers, per cent",
                ("set", "model", "abstained on", "FPR95", "AUROC"),
                [
                    (name, one.model, per_cent(1 - one.decisions[name]["accepted"]), *map(per_cent, scored))
                    for name in places[0].evaluation.ood
                    for one in (place.evaluation for place in places)
                    for scored in [[one.against[name][one.decision.score][metric] for metric in ("fpr95", "auroc")]]
                ],
                "By the score that each model abstains by. FPR95: the fraction of outliers accepted where 95 % of the"
                " inliers are, 0 is best. AUROC: the probability that an outlier scores higher than an inlier, 100 is"
                " best.",
            )
        )
    return sheets


def sheet(places: Sequence[Place]) -> Group:
    return Group(*map(terminal, tables(places)))
