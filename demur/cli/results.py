"""Commands for what a study has left: report, pack, unpack."""

import os
from pathlib import Path
from typing import Annotated

import typer

from demur.cli.outputs import Overwrite, check_folder
from demur.cli.progress import progress
from demur.cli.shared import OwnMetrics, OwnScores, make_console

app = typer.Typer()


@app.command(rich_help_panel="Research")
def report(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, or with the results.csv and cells.csv of a report; by default runs."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")] = None,
    score: OwnScores = None,
    metric: OwnMetrics = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare all measured values with the printed ones: tables, figures, RESULTS.md, and one page with everything.

    Several folders become one report; where two have the same cell, the later named wins.
    """
    writes = ("results.csv", "cells.csv", "RESULTS.md", "claims.md", "index.html", "tables", "figures")
    check_folder(out, overwrite, writes=writes, marks={"results.csv": b"task,outliers,method,seed,convention,"})

    from demur.paper.measuring import values_of
    from demur.report.page import write_report
    from demur.study.table import Own, gather

    console = make_console()
    with progress(console, "report") as describe:
        cells = gather(
            sources or [Path("runs")],
            values_of,
            jobs or os.cpu_count() or 1,
            lambda number, total: describe(f"measured {number} of {total} cells"),
            own=Own(tuple(metric or ()), tuple(score or ())),
        )
        describe(f"tables and figures of {len(cells)} cells")
        out.mkdir(parents=True, exist_ok=True)
        write_report(cells, out)
    print(f"wrote {out / 'index.html'} and {out / 'RESULTS.md'} from {len(cells)} cell{'s' * (len(cells) != 1)}")


@app.command(rich_help_panel="Research")
def pack(
    out: Annotated[Path, typer.Argument(help="Folder for the packed files.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
    overwrite: Overwrite = False,
) -> None:
    """Put the predictions of a study into a few files of at most 15 MiB, to move it to another machine."""
    check_folder(out, overwrite, writes=[path.name for path in out.glob("pack-*.safetensors")])

    from demur.study.results import pack as pack_predictions

    for path in pack_predictions(runs, out):
        print(path)


@app.command(rich_help_panel="Research")
def unpack(
    files: Annotated[list[Path], typer.Argument(help="All files of a pack.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put packed predictions back into a folder of results; what is there stays."""
    check_folder(runs, overwrite=False)

    from demur.study.results import unpack as unpack_predictions

    for folder in unpack_predictions(files, runs):
        print(folder)
