"""RESULTS.md: how the cells were made, what they say of the paper in short, and every table beside its own."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from demur.methods import method_rank
from demur.paper.claims import TIMES
from demur.paper.grid import commands
from demur.paper.published import outliers_of
from demur.report import render
from demur.report.compare import Kind, ReportTable, kind_of
from demur.report.sections import markdown_table
from demur.study.table import CELLS, RESULTS, Measured
from demur.tasks.images import STAND_INS


def document(
    cells: Sequence[Measured], made: Sequence[ReportTable], drawn: Mapping[str, str], sections: Sequence[str]
) -> str:
    """Markdown, from figures alone: the same from predictions and from the stored tables."""
    figures = [f"![{caption}](figures/{name}.png)\n\n{caption}.\n" for name, caption in drawn.items()]
    by_title: dict[str, list[ReportTable]] = {}
    for table in made:
        by_title.setdefault(table.table.title, []).append(table)
    parts = [
        "# Results",
        f"{len(cells)} cells, measured beside the published figures of Kristiadi, Hein and Hennig, *Being a Bit "
        "Frequentist Improves Bayesian Neural Networks* (AISTATS 2022). "
        f"[{RESULTS}]({RESULTS}) has every figure, [{CELLS}]({CELLS}) all that determines each cell, its device and "
        "times; this file is made from these two by `demur report . --out .` in their folder.",
        "## How the cells were made",
        "```\n" + "\n".join(commands(one.cell for one in cells)) + "\n```",
        _overview(cells),
        *sections,
        "## Seconds to fit",
        f"Mean over cells; the networks that a posterior is made from are counted, though several share them. {TIMES}",
        _costs(cells),
        *(["## Figures", *figures] if figures else []),
        "## Tables",
    ]
    parts += [render.markdown(table) for tables in by_title.values() for table in tables]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _overview(cells: Sequence[Measured]) -> str:
    """A line for cells that differ in method and seed only."""
    groups: dict[tuple[str, str, Kind], list[Measured]] = {}
    for one in cells:
        groups.setdefault((one.cell.task, outliers_of(one.cell), kind_of(one.cell)), []).append(one)
    rows = []
    for (task, outliers, kind), group in groups.items():
        used = ", ".join(sorted({one.record.trained_with for one in group if one.record.trained_with}))
        seeds = Counter(one.cell.method for one in group).values()
        rows.append(
            [
                task,
                f"{used} for {outliers}" if STAND_INS.get(outliers) == used else used,
                kind.convention,
                "the recipe's" if kind.epochs is None else str(kind.epochs),
                ", ".join(sorted({str(one.record.training_inputs) for one in group})),
                str(len(seeds)),
                " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
                ", ".join(sorted({one.record.device for one in group})),
            ]
        )
    head = ["task", "outliers", "convention", "epochs", "training inputs", "methods", "seeds", "device"]
    return markdown_table(head, rows)


def _costs(cells: Sequence[Measured]) -> str:
    """A column for every task and device, a line for every method."""
    seconds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in cells:
        column = f"{one.cell.task}, {one.record.device}", kind_of(one.cell).title
        took = one.record.seconds["fit"]
        seconds.setdefault(column, {}).setdefault(one.cell.method, []).append(took)
    methods = sorted({method for column in seconds.values() for method in column}, key=method_rank)
    rows = [
        [f"`{method}`", *(f"{np.mean(took[method]):.1f}" if method in took else "" for took in seconds.values())]
        for method in methods
    ]
    return markdown_table(["method", *("<br>".join(column) for column in seconds)], rows)
