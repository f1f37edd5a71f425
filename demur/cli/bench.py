"""The command bench, for whoever has demur's source."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import demur
from demur.cli.outputs import FIGURES, Overwrite, check_distinct, check_file, write_whole
from demur.cli.shared import DeviceName, parse_device

app = typer.Typer()

BENCH = rb'\{\s*"demur": "[^"]*",\s*"rows": '  # the beginning of what --json writes


@app.command(rich_help_panel="Research")
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Rows; all where none is named.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all values there.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how cost grows (the row `growth`) there.")] = None,
    laplace_python: Annotated[str | None, typer.Option(help="Python of an environment with laplace-torch.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Try every row in seconds; the values mean nothing.")] = False,
    overwrite: Overwrite = False,
    device: DeviceName = "auto",
) -> None:
    """Measure training, curvature, prediction and metrics against other libraries: medians and ratios."""
    check_distinct(json_file, figure)
    check_file(json_file, overwrite, mark=BENCH)
    check_file(figure, overwrite, suffixes=FIGURES)

    _find_benchmarks()
    from benchmarks import cpu, gpu
    from benchmarks.frame import Conditions, run_rows
    from benchmarks.growth import draw_growth, measure_growth
    from benchmarks.render import lines
    from demur.names import choose
    from demur.study.cells import circumstances

    rows = {row.name: row for row in (*cpu.ROWS, *gpu.ROWS)}
    for name in names or ():
        choose({**rows, "growth": None}, name, "row")
    selected = [row for name, row in rows.items() if not names or name in names]
    outcomes = []
    for outcome in run_rows(selected, Conditions(parse_device(device), small, laplace_python)):
        outcomes.append(outcome)
        print(*lines(outcome, judge=not small), sep="\n", flush=True)
    grown = []
    if not names or "growth" in names:
        print("growth: time and memory as sizes double four times; slope 1 is linear, 0 constant")
        for line in measure_growth(small):
            grown.append(line)
            print("  {}: slope of time {:.2f}, of memory {:.2f}".format(line.name, *line.slopes), flush=True)
    if figure is not None and grown:
        draw_growth(grown, figure)
    if json_file is not None:
        measured = {"rows": [o.as_json() for o in outcomes], "growth": [asdict(line) for line in grown]}
        record = {"demur": demur.__version__} | measured
        write_whole(json_file, json.dumps(record | circumstances(parse_device(device)), indent=2) + "\n")


def _find_benchmarks() -> None:
    """They lie beside the package in its source, and are no part of what is installed from an index."""
    source = Path(demur.__file__).parents[1]
    if not (source / "benchmarks" / "frame.py").is_file():
        raise ValueError(
            "the benchmarks come with demur's source, not with the installed package; get the source, and there: "
            "pip install -e . && demur bench"
        )
    sys.path.insert(0, str(source))
