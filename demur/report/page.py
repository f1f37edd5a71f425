"""The report as files: tidy values, tables, drawings, RESULTS.md, and one page that shows all and needs no network."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from demur.files import replacing
from demur.outliers.values import current_name
from demur.paper.analysis import Analysis
from demur.paper.grid import commands
from demur.paper.published import outliers_of
from demur.report.causes import by_cause, line_by_line
from demur.report.choice import choice_section, choice_tables
from demur.report.compare import Kind, kind_of, tables
from demur.report.drawings import from_predictions, from_values
from demur.report.field import field_section, field_table
from demur.report.figures import save_drawings
from demur.report.front import agreement_drawing, claims_section, heat_maps
from demur.report.sections import beside_the_paper, candidates, in_short, missing_candidates, recommendation
from demur.report.seeds import seeds_section, seeds_tables
from demur.report.sheet import FORMATS, Section, Sheet, Text, render
from demur.report.verdicts import claims_document
from demur.study.table import CELLS, RESULTS, Measured, cells_csv, results_csv
from demur.tasks.images import STAND_INS


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
    analysis = Analysis(cells)
    singles = filter(None, (candidates(analysis), field_table(cells), line_by_line(analysis)))
    sheets = [*tables(cells), *choice_tables(cells), *seeds_tables(analysis), *singles]
    for sheet in sheets:
        for suffix, write in FORMATS.items():
            (out / "tables" / f"{sheet.name}.{suffix}").write_text(write(sheet), "utf-8")
    agreement = save_drawings(agreement_drawing(analysis), out / "figures")
    from_tables = save_drawings(from_values(cells), out / "figures")
    if (claims := claims_document(analysis)) is not None:
        (out / "claims.md").write_text(claims, "utf-8")
    shared = {
        "cells": cells,
        "sections": _sections(analysis),
        "titles": _by_title(sheets),
        "has_claims": claims is not None,
    }
    document = render(
        "RESULTS.md",
        **shared,
        overview=_overview(cells),
        commands=commands(run.cell for run in cells),
        missing=missing_candidates(analysis),
        figures=[*agreement, *from_tables],
    )
    (out / "RESULTS.md").write_text(document, "utf-8")
    page = render(
        "index.html",
        **shared,
        heat_maps=heat_maps(analysis),
        tables=sheets,
        formats=list(FORMATS),
        agreement=agreement,
        figures=[*from_tables, *save_drawings(from_predictions(cells), out / "figures")],
    )
    (out / "index.html").write_text(page, "utf-8")


def _sections(analysis: Analysis) -> list[Section]:
    sections = [
        in_short(analysis),
        *beside_the_paper(analysis),
        seeds_section(analysis),
        by_cause(analysis),
        claims_section(analysis),
        choice_section(analysis.cells) or recommendation(analysis),
        field_section(analysis.cells),
    ]
    return [section for section in sections if section]


def _by_title(sheets: Sequence[Sheet]) -> dict[str, list[tuple[str, str]]]:
    """The files of each title, and which networks they are of."""
    titles: dict[str, list[tuple[str, str]]] = {}
    for sheet in sheets:
        titles.setdefault(sheet.title, []).append((sheet.networks or "table", sheet.name))
    return titles


def _overview(cells: Sequence[Measured]) -> Sheet:
    """A line for cells that differ in method and seed only."""
    groups: dict[tuple[str, str, Kind], list[Measured]] = {}
    for run in cells:
        groups.setdefault((run.cell.task, outliers_of(run.cell), kind_of(run.cell)), []).append(run)
    rows: list[list[Text]] = []
    for (task, outliers, kind), group in groups.items():
        names = {current_name(run.record.trained_with) for run in group}
        used = ", ".join(sorted(name for name in names if name))
        seeds = Counter(run.cell.method for run in group).values()
        rows.append(
            [
                task,
                f"{used} for {outliers}" if STAND_INS.get(outliers) == used else used,
                kind.convention,
                "the recipe's" if kind.epochs is None else str(kind.epochs),
                ", ".join(sorted({str(run.record.training_inputs) for run in group})),
                str(len(seeds)),
                " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
                ", ".join(sorted({run.record.device for run in group})),
            ]
        )
    head = ["task", "outliers", "convention", "epochs", "training inputs", "methods", "seeds", "device"]
    return Sheet(head, rows, written=True)
