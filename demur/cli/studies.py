"""Commands for the paper and for research: run, toy, demo, study, report, pack, unpack, audit, bench."""

import json
import os
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import demur
from demur.cli.outputs import Overwrite, check_distinct, check_file, check_folder, write_whole
from demur.cli.progress import progress
from demur.cli.shared import Data, DeviceName, Seed, device_named, make_console, networks_in, open_store

if TYPE_CHECKING:
    from demur.study.grid import Setting
    from demur.tasks import Task

app = typer.Typer()

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="digits, blobs, fashion_mnist, cifar10, sst, ...")]
FIGURES = (".png", ".svg", ".pdf")
RUN = rb'\{\s*"demur": "[^"]*",\s*"task": '  # the beginning of what --json writes
BENCH = rb'\{\s*"demur": "[^"]*",\s*"rows": '
OwnScores = Annotated[
    list[str] | None, typer.Option(help="Beside demur's: mypackage.mymodule:name, high for outliers; may be repeated.")
]
OwnMetrics = Annotated[
    list[str] | None,
    typer.Option(help="Beside demur's: mypackage.mymodule:name, of predictions and labels; may be repeated."),
]
OutliersName = Annotated[str | None, typer.Option("--outliers", help="To train with; a+b mixes in equal parts.")]


@app.command()
def run(
    task: TaskName,
    method: Annotated[str, typer.Argument(help="inference+likelihood: map, map+oe, de, la+nc, vb+sl, ...")],
    network: Annotated[
        str | None, typer.Option(help="mypackage.mymodule:name, from a head size to a network; else the task's own.")
    ] = None,
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many of each set.")
    ] = None,
    outliers: OutliersName = None,
    exclude_overlap: Annotated[bool, typer.Option(help="Leave out outliers of the task's own classes.")] = False,
    score: OwnScores = None,
    metric: OwnMetrics = None,
    data: Data = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the posterior there (safetensors).")] = None,
    load: Annotated[Path | None, typer.Option(help="Take this posterior instead of fitting one.")] = None,
    overwrite: Overwrite = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Fit one method to one task and print its figures."""
    check_distinct(json_file, save)
    check_file(json_file, overwrite, mark=RUN, reads=[load] if load else [])
    check_file(save, overwrite, reads=[load] if load else [])

    from demur.measures import measures_with
    from demur.methods import parse_method
    from demur.report.tables import sheet
    from demur.study.run import run as run_method

    measures = measures_with(metric or (), score or ())
    chosen, given = parse_method(method), _setting(task, method, network)
    networks = 0 if load else networks_in(chosen.inference)
    console = make_console()
    began, started = time.time(), time.perf_counter()
    with progress(console, f"{task} {method}", networks):
        loaded = load_named(task, data, outliers, limit, exclude_overlap).to(device_named(device))
        row = run_method(
            loaded,
            chosen,
            given,
            seed=seed,
            epochs=epochs,
            save_to=save,
            load_from=load,
            measures=measures,
        )
    duration = time.perf_counter() - started
    title = f"{task} {method}, seed {seed}, {row.epochs} epochs, {duration:.0f} s: per cent"
    console.print(sheet(row, title, score or ()))
    if json_file is not None:
        record = {"demur": demur.__version__} | row.as_json() | {"time": began, "duration": duration}
        write_whole(json_file, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _setting(task: str, method: str, network: str | None) -> "Setting":
    """The paper's, where it knows the task; else a network of one's own."""
    from dataclasses import replace

    from demur.names import choose_or_import, import_named
    from demur.paper.grid import SETTINGS, setting
    from demur.study.grid import Setting
    from demur.tasks import TASKS

    choose_or_import(TASKS, task, "task")
    if network is None and task not in SETTINGS:
        raise ValueError(f"task {task!r} has no network of its own; name one: --network mypackage.mymodule:name")
    if network is None:
        return setting(task, method)
    own = import_named(network, "network")
    return replace(setting(task, method), network=own) if task in SETTINGS else Setting(own)


@app.command()
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")], overwrite: Overwrite = False) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    check_file(out, overwrite, suffixes=FIGURES)

    from demur.paper.toy import toy_planes
    from demur.report.figures import draw_planes

    with progress(make_console(), "toy figure"):
        planes = toy_planes()
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_planes(planes).savefig(out, dpi=150)
    print(f"wrote {out}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure, and for every number.")] = Path("demo"),
    overwrite: Overwrite = False,
) -> None:
    """The paper in miniature: its thirteen methods on real digits, and the toy figure. Under four minutes."""
    own = {"digits.json": rb'\[\s*\{\s*"task": "digits"'}
    check_folder(out, overwrite, writes=("digits.json", "toy.png"), marks=own)

    import torch

    from demur.methods import parse_method
    from demur.paper.grid import PAPER_ROWS, setting
    from demur.paper.toy import toy_planes
    from demur.report.figures import draw_planes
    from demur.report.tables import BY_MAX_PROB, lines_of, table
    from demur.study.run import run as run_method
    from demur.tasks import load

    torch.set_num_threads(1)  # more would mostly wait for each other over networks this small
    console = make_console()
    out.mkdir(parents=True, exist_ok=True)
    digits, rows = load("digits"), []
    with progress(console, "digits") as describe:
        for number, method in enumerate(PAPER_ROWS, start=1):
            describe(f"digits {method} ({number} of {len(PAPER_ROWS)})")
            rows.append(run_method(digits, parse_method(method), setting("digits", method)))
            write_whole(out / "digits.json", json.dumps([row.as_json() for row in rows], indent=2) + "\n")
        describe("toy figure")
        draw_planes(toy_planes()).savefig(out / "toy.png", dpi=150)
    console.print(table(rows, "digits, seed 0: accuracy and ECE inside, FPR95 on sets of outliers; per cent"))
    plain, (best, fpr95) = rows[0], min(lines_of(rows), key=lambda line: line[0].mean_over_ood(line[1]))
    by_score = "" if fpr95 == BY_MAX_PROB else " by none_share"
    print(
        f"""
What to look at
- mean FPR95, the share of outliers taken for digits when 95 % of the digits are kept:
  {100 * plain.mean_fpr95:.1f} for {plain.method}, {100 * best.mean_over_ood(fpr95):.1f} for {best.method}{by_score}, \
at accuracies of {100 * plain.metrics["accuracy"]:.1f} and {100 * best.metrics["accuracy"]:.1f}.
- far away, which is noise 5000 times as bright as any digit: seeing outliers does not
  cure a point estimate (map+oe); averaging over weights helps some, a none class more,
  though not in every network (README, Which to use). The mean above leaves it out.
- {out / "toy.png"}: outlier exposure alone is sure of itself far from the data; there the
  Laplace methods are not.
- {out / "digits.json"}: every figure, under every score."""
    )


class _WithStudies(TyperCommand):
    """Names every study where help is asked for, and not before: to know them takes torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from demur.paper.grid import STUDIES

        name = next(param for param in self.params if param.name == "name")
        own = "or one's own: a Python file, or mypackage.mymodule:name"
        name.help = f"{', '.join(STUDIES)}; {own}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


@app.command(cls=_WithStudies)
def study(
    name: Annotated[str, typer.Argument()],
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    convention: Annotated[str | None, typer.Option(help="corrected or published only.")] = None,
    outliers: Annotated[
        list[str] | None, typer.Option(help="Only cells trained with these, or with the usual; may be repeated.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many training seeds, from 0; else as many as the study has.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of results; what is there is not made again.")] = Path("runs"),
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; else one here, or a new one.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Local processes at a time; by default one a GPU, else one a core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of a process; the last bits of results depend on it.")] = 1,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done.")] = False,
    keep_posteriors: Annotated[bool, typer.Option(help="Keep the weights of every cell.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there, as Markdown.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Run a whole table of the paper, or a grid of one's own; stopped, it goes on where it was."""
    from dataclasses import replace

    from demur.data.catalogue import CATALOGUE
    from demur.paper.studies import study_named
    from demur.report import tables
    from demur.study.cells import Place, is_answered, networks_of
    from demur.study.cluster import cluster
    from demur.study.engine import one_by_one, results_of, run_cells, seconds_left
    from demur.study.grid import select
    from demur.study.opening import is_own, open_study
    from demur.study.processes import most_jobs, processes
    from demur.study.records import DamagedCell
    from demur.study.run import row_of

    if engine not in ("local", "ray"):
        raise ValueError(f"unknown engine {engine!r}; known: local, ray")
    if engine == "local" and address is not None:
        raise ValueError(f"address {address!r} is for the engine ray; add --engine ray")
    if engine == "ray" and jobs is not None:
        raise ValueError(f"jobs {jobs} is for the engine local; a Ray cluster takes what it has room for")
    check_file(markdown, overwrite, mark=rb"## \w+, \w+: per cent; .* threads?\n")
    check_folder(runs, overwrite)
    whole = open_study(name) if is_own(name) else study_named(name)
    cells = select(
        whole.cells,
        name,
        tasks=task,
        methods=method,
        convention=convention,
        outliers=outliers,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
    )
    asked = whole.of(cells)
    place = Place(runs, open_store(data), device if engine == "ray" else device_named(device), keep_posteriors, threads)
    jobs = jobs or most_jobs(place)
    place = replace(place, jobs=jobs if engine == "local" else None)
    workers = one_by_one if jobs == 1 else partial(processes, jobs=jobs)
    if engine == "ray":
        workers = partial(cluster, address=address)
    fits = {cell: asked.resolve(cell, place.store) for cell in cells}
    done = {cell for cell in cells if is_answered(cell, place.folder(fits[cell]))}
    networks = len(networks_of(asked, place.store))
    print(f"{len(cells)} cells, {len(done)} done, {networks} networks in all; {seconds_left(asked, place, jobs)}")
    set_names = [fits[cell].data.set_names for cell in cells if cell not in done]
    lacking = {
        each for names in set_names for each in names if each in CATALOGUE and not place.store.has(each, "train")
    }
    if dry_run:
        for cell in cells:
            state = "done" if cell in done else "to do"
            shown = f" with {cell.outliers}" if cell.outliers else ""
            print(f"  {cell.task} {cell.method}{shown} {cell.convention} seed {cell.seed}: {state}")
        if ordered := [each for each in dict.fromkeys(chain.from_iterable(set_names)) if each in lacking]:
            print(f"not here yet, to train with: {', '.join(ordered)}; demur data get {' '.join(ordered)}")
        return
    if set_names and all(names[:1] and names[0] in lacking for names in set_names):
        place.store.shards(set_names[0][0], "train")  # says how to get it, before anything is begun
    console = make_console()
    with progress(console, name) as describe:

        def after(number: int, total: int, step: str) -> None:
            describe(f"{name}: {number} of {total}; {step}")
            if not console.is_terminal:
                print(f"step {number} of {total}: {step}", file=sys.stderr, flush=True)

        failures = run_cells(asked, place, after, workers)
    damaged = list[DamagedCell]()
    results = results_of(asked, place, damaged.append)
    rows = [row_of(result) for result in results]
    for group in tables.grouped(rows):
        console.print(tables.table(group, f"{group[0].task}, {group[0].convention}: per cent"))
    if markdown is not None:
        write_whole(markdown, tables.markdown(rows, [r.record for r in results]))
    if results:
        print(f"the cells are in {runs}; tables beside the paper's, figures and a page: demur report {runs}")
    for failure in failures:
        print(f"demur: {failure.cell.task} {failure.cell.method} failed: {failure.reason}", file=sys.stderr)
    failed = {place.folder(fits[failure.cell]) for failure in failures}
    for said in dict.fromkeys(str(error) for error in damaged if error.path.parent not in failed):
        print(f"demur: {said}", file=sys.stderr)
    if failures or damaged:
        raise typer.Exit(1)


@app.command()
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
    """Set every measured figure beside the published one: tables, figures, RESULTS.md, and one page that shows all.

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
    print(f"wrote {out / 'index.html'} and {out / 'RESULTS.md'} from {len(cells)} cells")


@app.command()
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


@app.command()
def unpack(
    files: Annotated[list[Path], typer.Argument(help="All files of a pack.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put packed predictions back into a folder of results; what is there stays."""
    check_folder(runs, overwrite=False)

    from demur.study.results import unpack as unpack_predictions

    for folder in unpack_predictions(files, runs):
        print(folder)


@app.command()
def audit(
    task: TaskName,
    outliers: OutliersName = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how sharp the sets of images are there.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
) -> None:
    """Look for what makes a task easier than it seems: duplicates, shared classes, sharpness, typography."""
    check_file(figure, overwrite, suffixes=FIGURES)

    from demur.audit import audit as audit_task
    from demur.report.sharpness import draw_sharpness

    loaded = load_named(task, data, outliers)
    if figure is not None:
        draw_sharpness(loaded, figure)
    for line in audit_task(loaded, open_store(data)).lines():
        print(line)


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Rows; all where none is named.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how cost grows (the row `growth`) there.")] = None,
    laplace_python: Annotated[str | None, typer.Option(help="Python of an environment with laplace-torch.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Try every row in seconds; the figures mean nothing.")] = False,
    overwrite: Overwrite = False,
    device: DeviceName = "auto",
) -> None:
    """Measure training, curvature, prediction and metrics beside what else there is, in turns; medians and ratios."""
    check_distinct(json_file, figure)
    check_file(json_file, overwrite, mark=BENCH)
    check_file(figure, overwrite, suffixes=FIGURES)

    _find_benchmarks()
    from dataclasses import asdict

    from benchmarks import cpu, gpu
    from benchmarks.frame import Conditions, run_rows
    from benchmarks.growth import draw_growth, measure_growth
    from benchmarks.render import lines
    from demur.names import choose
    from demur.study.cells import circumstances

    rows = {row.name: row for row in (*cpu.ROWS, *gpu.ROWS)}
    for name in names or ():
        choose({**rows, "growth": None}, name, "row")
    chosen = [row for name, row in rows.items() if not names or name in names]
    outcomes = []
    for outcome in run_rows(chosen, Conditions(device_named(device), small, laplace_python)):
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
        write_whole(json_file, json.dumps(record | circumstances(device_named(device)), indent=2) + "\n")


def _find_benchmarks() -> None:
    """They lie beside the package in its source, and are no part of what is installed from an index."""
    import demur

    source = Path(demur.__file__).parents[1]
    if not (source / "benchmarks" / "frame.py").is_file():
        raise ValueError(
            "the benchmarks come with demur's source, not with the installed package; get the source, and there: "
            "pip install -e . && demur bench"
        )
    sys.path.insert(0, str(source))


def load_named(
    task: str,
    data: Path | None = None,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
) -> "Task":
    from demur.names import choose_or_import
    from demur.study.fits import OwnData
    from demur.tasks import TASKS, load

    make = choose_or_import(TASKS, task, "task")
    if task not in TASKS:
        if outliers is not None or exclude_overlap:
            raise ValueError(f"task {task!r} brings its own outliers; leave --outliers and --exclude-overlap out")
        return OwnData(task, make, limit).load(open_store(data))
    return load(task, store=open_store(data), outliers=outliers, limit=limit, exclude_overlap=exclude_overlap)
