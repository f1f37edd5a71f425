"""What a report's page begins with: measured against printed, FPR95 by method and OOD set, claims as cards."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from demur.measures import value_name
from demur.methods import method_rank
from demur.paper.agreement import LIMIT
from demur.paper.analysis import CORRECTED, Analysis
from demur.paper.published import DEFAULT_OUTLIERS, MEAN, outliers_of
from demur.paper.statistics import Known
from demur.report.figures import Drawing, one_column_wide, panels
from demur.report.sheet import Section
from demur.report.verdicts import COLUMNS, summary
from demur.study.measuring import per_cent
from demur.study.run import FAR_AWAY

# by a metric's name: a title, and a colour and a mark that differ from the others' to all kinds of sight
MARKS = {
    "fpr95": ("FPR95", "#d55e00", "o"),
    "auroc": ("AUROC", "#0072b2", "s"),
    "aupr_published": ("AUPR", "#56b4e9", "^"),
    "mmc": ("confidence", "#e69f00", "D"),
    "accuracy_with_none": ("accuracy", "#000000", "x"),
    "ece_published": ("ECE", "#009e73", "+"),
}


def agreement_drawing(analysis: Analysis) -> Iterator[Drawing]:
    """A point a printed value that was measured in the published convention; nothing where none was."""
    lines = analysis.printed
    lines = lines[lines["published"].notna() & lines["metric"].isin(list(MARKS))]
    if len(lines):
        caption = (
            f"Measured against printed, per cent: each of the {len(lines):,} values that were measured in the "
            f"published convention; between the dotted lines they differ by at most {100 * LIMIT:.0f} points"
        )
        yield Drawing("agreement", caption, draw_agreement(lines))


def draw_agreement(lines: pd.DataFrame) -> Figure:
    """A panel a task."""
    tasks = list(dict.fromkeys(lines["task"]))
    with one_column_wide(height=0.6 + 1.15 * -(-len(tasks) // 3)) as figure:
        for axis, task in zip(panels(figure, len(tasks), columns=3), tasks, strict=True):
            for shift, dash in ((0, "-"), (-100 * LIMIT, ":"), (100 * LIMIT, ":")):
                axis.axline((0, shift), slope=1, color="black", linewidth=0.5, linestyle=dash)
            for metric, (_, colour, mark) in MARKS.items():
                of = 100 * lines.loc[(lines["task"] == task) & (lines["metric"] == metric), ["printed", "published"]]
                axis.plot(of["printed"], of["published"], mark, color=colour, markersize=2, alpha=0.7, mew=0.5)
            axis.set_title(task.replace("_", " "), pad=2)
            axis.set(xlim=(-2, 102), ylim=(-2, 102), xticks=(0, 50, 100), yticks=(0, 50, 100), aspect="equal")
        marks = [Line2D([], [], color=c, marker=m, linestyle="", markersize=4, label=t) for t, c, m in MARKS.values()]
        figure.legend(handles=marks, loc="outside upper center", ncols=3, handletextpad=0.1, columnspacing=1)
        figure.supxlabel("printed")
        figure.supylabel("measured")
    return figure


class Heat(NamedTuple):
    """FPR95 of a task: a row a method and score, for each set a value, its text and its half interval, or None."""

    task: str
    sets: list[str]
    rows: list[tuple[str, str, list[tuple[float, str, str] | None]]]


def heat_maps(analysis: Analysis) -> list[Heat]:
    """Corrected convention, whole length, the task's own outliers."""
    cells, view, maps = analysis.cells, analysis.views[CORRECTED], []
    for task in dict.fromkeys(run.cell.task for run in cells):
        outliers = DEFAULT_OUTLIERS.get(task, "default")
        here = [run for run in cells if run.cell.task == task and outliers_of(run.cell) == outliers]
        names = list(dict.fromkeys(name for run in here for name in run.sets))
        sets = [*(name for name in names if name != FAR_AWAY), MEAN, *([FAR_AWAY] if FAR_AWAY in names else [])]
        rows = [
            (method, score, [_described(view.known(task, method, name, value_name("fpr95", score))) for name in sets])
            for method in sorted({run.cell.method for run in here}, key=method_rank)
            for score in ("max_prob", "none_share")
        ]
        if rows := [row for row in rows if any(row[2])]:
            maps.append(Heat(task, sets, rows))
    return maps


def _described(known: Known | None) -> tuple[float, str, str] | None:
    if known is None or math.isnan(known.value):
        return None
    seeds = len(known.by_seed)
    return known.value, known.text(), f"± {per_cent(known.half)}, {seeds} training seed{'s' * (seeds != 1)}"


class ClaimCard(NamedTuple):
    title: str
    verdicts: list[tuple[str, str, str]]  # whose, in a word, and by how many tests


def claims_section(analysis: Analysis) -> Section | None:
    """None where no claim can be tested."""
    sheet = summary(analysis)
    intro = (
        "Each claim is put to tests: with our networks of either convention, and with the paper's own printed values. "
        "A claim holds if all tests say so, in part if some do; it is undecided if most of them are unclear. "
        "A test compares two methods. It is unclear where the 95 % interval of their difference decides nothing, and "
        "waits where a cell is missing. † where the spread over training seeds is in part assumed, for want of seeds."
    )
    return None if sheet is None else Section("The paper's claims", [intro, sheet], cards=claim_cards(analysis))


def claim_cards(analysis: Analysis) -> list[ClaimCard]:
    return [
        ClaimCard(
            f"{number}. {claim.title}",
            [(whose, one.word, one.tests + one.dagger) for whose, one in zip(COLUMNS, columns, strict=False)],
        )
        for number, (claim, columns) in enumerate(analysis.verdicts, 1)
    ]
