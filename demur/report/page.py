"""The report as files: tidy values, tables, drawings, RESULTS.md, and one page that shows all and needs no network."""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from demur.files import replacing
from demur.methods import method_rank
from demur.paper.claims import TIMES
from demur.paper.grid import commands
from demur.paper.published import outliers_of
from demur.report import render
from demur.report.compare import Kind, kind_of, tables
from demur.report.drawings import from_predictions, from_values
from demur.report.figures import Drawing, save_figure
from demur.report.sections import agreement, better
from demur.report.verdicts import claims_document
from demur.study.table import CELLS, RESULTS, Measured, cells_csv, results_csv
from demur.tasks.images import STAND_INS

FORMATS = {"txt": render.text, "md": render.markdown, "tex": render.latex}


class Image(NamedTuple):
    """A drawing as a page holds it."""

    name: str
    caption: str
    svg: str  # base64


def write_report(cells: Sequence[Measured], out: Path) -> None:
    """results.csv, cells.csv, RESULTS.md, tables/, figures/, index.html, and claims.md where a claim can be tested.

    Cells measured from predictions and the same cells read from the two tables make the same files, but that some
    figures need predictions; cells.csv alone has times in it.
    """
    if not cells:
        raise ValueError("there are no results to report; run a study first")
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((RESULTS, results_csv(cells)), (CELLS, cells_csv(cells))):
        with replacing(out / name) as unfinished:  # they may be all that is left of the cells
            unfinished.write_text(text, "utf-8")
    made = tables(cells)
    titles = list(dict.fromkeys(table.table.title for table in made))
    for table in made:
        for suffix, write in FORMATS.items():
            (out / "tables" / f"{table.name}.{suffix}").write_text(write(table), "utf-8")
    images = saved(from_values(cells), out / "figures")
    sections = [section for section in (agreement(cells), better(cells)) if section]
    document = render.rendered(
        "RESULTS.md",
        cells=len(cells),
        commands=commands(one.cell for one in cells),
        overview=_overview(cells),
        sections=sections,
        times=TIMES,
        costs=_costs(cells),
        figures={image.name: image.caption for image in images},
        tables=sorted(made, key=lambda table: titles.index(table.table.title)),
    )
    (out / "RESULTS.md").write_text(document, "utf-8")
    if (claims := claims_document(cells)) is not None:
        (out / "claims.md").write_text(claims, "utf-8")
    page = render.rendered(
        "index.html",
        cells=len(cells),
        tasks=list(dict.fromkeys(one.cell.task for one in cells)),
        methods=len({one.cell.method for one in cells}),
        has_claims=claims is not None,
        sections=sections,
        tables=made,
        titles=titles,
        formats=list(FORMATS),
        figures=[*images, *saved(from_predictions(cells), out / "figures")],
    )
    (out / "index.html").write_text(page, "utf-8")


def saved(drawings: Iterable[Drawing], folder: Path) -> list[Image]:
    images = []
    for name, caption, figure in drawings:
        save_figure(figure, folder / name)
        svg = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
        images.append(Image(name, caption, svg))
    return images


def _overview(cells: Sequence[Measured]) -> pd.DataFrame:
    """A line for cells that differ in method and seed only."""
    groups: dict[tuple[str, str, Kind], list[Measured]] = {}
    for one in cells:
        groups.setdefault((one.cell.task, outliers_of(one.cell), kind_of(one.cell)), []).append(one)
    rows = []
    for (task, outliers, kind), group in groups.items():
        used = ", ".join(sorted({one.record.trained_with for one in group if one.record.trained_with}))
        seeds = Counter(one.cell.method for one in group).values()
        rows.append(
            {
                "task": task,
                "outliers": f"{used} for {outliers}" if STAND_INS.get(outliers) == used else used,
                "convention": kind.convention,
                "epochs": "the recipe's" if kind.epochs is None else kind.epochs,
                "training inputs": ", ".join(sorted({str(one.record.training_inputs) for one in group})),
                "methods": len(seeds),
                "seeds": " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
                "device": ", ".join(sorted({one.record.device for one in group})),
            }
        )
    return pd.DataFrame(rows)


def _costs(cells: Sequence[Measured]) -> pd.DataFrame:
    """Seconds: a column for every task and device, a line for every method."""
    took = pd.DataFrame(
        {
            "method": one.cell.method,
            "column": (f"{one.cell.task}, {one.record.device}", kind_of(one.cell).title),
            "seconds": one.record.seconds["fit"],
        }
        for one in cells
    )
    table = took.pivot_table(index="method", columns="column", values="seconds", sort=False)
    return table.loc[sorted(table.index, key=method_rank), list(dict.fromkeys(took["column"]))]
