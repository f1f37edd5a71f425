"""The command line: parse, call, print. Everything heavy is imported where it is used, so that --help is quick."""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import demur

if TYPE_CHECKING:
    from rich.console import Console

    from demur.tasks import Store, Task
    from demur.training import EpochReport

app = typer.Typer(
    help="Classifiers that know when they do not know: Bayesian neural networks that have been shown outliers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets: what is there, and how to get the rest.", no_args_is_help=True)
app.add_typer(data_app, name="data")

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="digits, blobs, fashion_mnist, cifar10, sst, ...")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of data sets; else DEMUR_DATA, else the user's cache.")
]
OutliersName = Annotated[str | None, typer.Option("--outliers", help="To train with; a+b mixes in equal parts.")]
Seed = Annotated[int, typer.Option(min=0, help="Of initialisation, batches and draws.")]


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence, with exit code 2."""
    try:
        app()
    except (ValueError, FloatingPointError, OSError) as error:
        print(f"demur: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"demur {demur.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say how things are computed.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    warnings.showwarning = lambda message, *_: print(f"demur: note: {message}", file=sys.stderr)


def _console() -> "Console":
    """As wide as the terminal; piped, wide enough for any table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


@contextmanager
def _progress(console: "Console", what: str) -> Iterator[Callable[[str], None]]:
    """A line that moves on a terminal, and nothing where output is piped."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from demur.training import observed

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(what, total=None, said="")

        def after_epoch(report: "EpochReport") -> None:
            said = f"epoch {report.epoch}/{report.epochs}, loss {report.loss:.3f}"
            bar.update(line, total=report.epochs, completed=report.epoch, said=said)

        with observed(after_epoch):
            yield lambda description: bar.update(line, description=description, completed=0, said="")


@app.command()
def run(
    task: TaskName,
    method: Annotated[str, typer.Argument(help="inference+likelihood: map, map+oe, de, la+nc, vb+sl, ...")],
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many of each set.")
    ] = None,
    outliers: OutliersName = None,
    exclude_overlap: Annotated[bool, typer.Option(help="Leave out outliers of the task's own classes.")] = False,
    data: Data = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the posterior there (safetensors).")] = None,
    load: Annotated[Path | None, typer.Option(help="Take this posterior instead of fitting one.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Fit one method to one task and print its figures."""
    from demur.method import parse_method
    from demur.report.tables import sheet
    from demur.study import run as study

    parse_method(method)
    for path in (json_file, save):
        _check_writable(path)
    console = _console()
    began, started = time.time(), time.perf_counter()
    with _progress(console, f"{task} {method}"):
        loaded = _load(task, data, outliers, limit, exclude_overlap).to(_device(device))
        row = study.run(loaded, method, seed=seed, epochs=epochs, save_to=save, load_from=load)
    duration = time.perf_counter() - started
    console.print(sheet(row, f"{task} {method}, seed {seed}, {row.epochs} epochs, {duration:.0f} s: per cent"))
    if json_file is not None:
        record = row.as_json() | {"demur": demur.__version__, "time": began, "duration": duration}
        json_file.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", "utf-8")


@app.command()
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")]) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    from demur.report.figures import draw_toy

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"file name {str(out)!r} does not end in .png, .svg or .pdf; rename it")
    _check_writable(out)
    with _progress(_console(), "toy figure"):
        draw_toy(out)
    print(f"wrote {out}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure, and for every number.")] = Path("demo"),
) -> None:
    """The paper in miniature: its thirteen methods on real digits, and the toy figure. Under four minutes."""
    from demur.report.figures import draw_toy
    from demur.report.tables import table
    from demur.study.grid import PAPER_ROWS
    from demur.study.run import run as run_method
    from demur.tasks import load

    console = _console()
    out.mkdir(parents=True, exist_ok=True)
    digits, rows = load("digits"), []
    with _progress(console, "digits") as describe:
        for number, method in enumerate(PAPER_ROWS, start=1):
            describe(f"digits {method} ({number} of {len(PAPER_ROWS)})")
            rows.append(run_method(digits, method))
            (out / "digits.json").write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n", "utf-8")
        describe("toy figure")
        draw_toy(out / "toy.png")
    console.print(table(rows, "digits, seed 0: accuracy and ECE inside, FPR95 on sets of outliers; per cent"))
    plain, best = rows[0], min(rows, key=lambda row: row.mean_fpr95)
    print(
        f"""
What to look at
- mean FPR95, the share of outliers taken for digits when 95 % of the digits are kept:
  {100 * plain.mean_fpr95:.1f} for {plain.method}, {100 * best.mean_fpr95:.1f} for {best.method}, \
at accuracies of {100 * plain.metrics["accuracy"]:.1f} and {100 * best.metrics["accuracy"]:.1f}.
- far away, which is noise 5000 times as bright as any digit: seeing outliers does not
  cure a point estimate (map+oe); averaging over weights helps, a none class more.
- {out / "toy.png"}: outlier exposure alone is sure of itself far from the data; the
  Laplace methods are not.
- {out / "digits.json"}: every figure, under every score."""
    )


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="digits, matrix, table1, table2, text, noise, aux, figure1.")],
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    convention: Annotated[str | None, typer.Option(help="corrected or published only.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many training seeds, from 0.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of results; what is there is not made again.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done.")] = False,
    keep_posteriors: Annotated[bool, typer.Option(help="Keep the weights of every cell.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there, as Markdown.")] = None,
    data: Data = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Run a whole table of the paper; stopped, it goes on where it was."""
    from demur.report import tables
    from demur.study.engine import Place, networks_of, results_of, run_cells, seconds_left
    from demur.study.grid import Cell, select
    from demur.study.run import row_of

    _check_writable(markdown)
    cells = select(name, tasks=task, methods=method, convention=convention, seeds=seeds, epochs=epochs, limit=limit)
    place = Place(runs, _store(data), _device(device), keep_posteriors)
    done, networks = len(results_of(cells, place)), len(networks_of(cells, place.store))
    print(f"{len(cells)} cells, {done} done, {networks} networks in all; {seconds_left(cells, place)}")
    if dry_run:
        for cell in cells:
            print(" ", cell.task, cell.method, cell.convention, f"seed {cell.seed}")
        return
    console = _console()
    with _progress(console, name) as describe:

        def after(number: int, total: int, cell: Cell) -> None:
            describe(f"{name}: {number} of {total} cells")

        failures = run_cells(cells, place, after, jobs)
    results = results_of(cells, place)
    rows = [row_of(result) for result in results]
    for group in tables.grouped(rows):
        console.print(tables.table(group, f"{group[0].task}, {group[0].convention}: per cent"))
    if markdown is not None:
        markdown.write_text(tables.markdown(rows, [r.record for r in results]), "utf-8")
    for failure in failures:
        print(f"demur: {failure.cell.task} {failure.cell.method} failed: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder of results.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
) -> None:
    """Set every measured figure beside the published one: tables, figures, and one page that shows them all."""
    from demur.report.page import write_report
    from demur.study.results import read_results

    results = read_results(runs)
    if not results:
        raise ValueError(f"there are no results in {runs}; make some with: demur study digits --runs {runs}")
    out.mkdir(parents=True, exist_ok=True)
    write_report(results, out)
    print(f"wrote {out / 'index.html'} from {len(results)} cells")


@app.command()
def pack(
    out: Annotated[Path, typer.Argument(help="Folder for the packed files.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put the predictions of a study into a few files of at most 15 MiB, to move it to another machine."""
    from demur.study.results import pack as pack_predictions

    for path in pack_predictions(runs, out):
        print(path)


@app.command()
def unpack(
    files: Annotated[list[Path], typer.Argument(help="All files of a pack.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put packed predictions back into a folder of results; what is there stays."""
    from demur.study.results import unpack as unpack_predictions

    for folder in unpack_predictions(files, runs):
        print(folder)


@app.command()
def audit(task: TaskName, outliers: OutliersName = None, data: Data = None) -> None:
    """Look for what makes a task easier than it seems: duplicates, shared classes, giveaways of typography."""
    from demur.audit import audit as audit_task

    for line in audit_task(_load(task, data, outliers), _store(data)).lines():
        print(line)


@data_app.command("list")
def list_data(data: Data = None) -> None:
    """What there is, where, how large, and under which licence."""
    from rich.table import Table

    store = _store(data)
    drawn = Table("name", "splits", "MiB", "where", "licence", box=None, pad_edge=False)
    for holding in store.describe():
        splits = ", ".join(f"{split} {count:,}" for split, count in holding.splits.items()) or "-"
        drawn.add_row(holding.name, splits, f"{holding.bytes / 2**20:.1f}", holding.where, holding.licence)
    _console().print(f"data sets in {store.root}:", drawn)


@data_app.command("get")
def get_data(names: Annotated[list[str], typer.Argument(help="Names of data sets.")], data: Data = None) -> None:
    """Fetch data sets from the Hugging Face hub; what was begun is continued."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    from demur.names import choose
    from demur.tasks.catalogue import CATALOGUE
    from demur.tasks.hub import get

    store = _store(data)
    for name in names:
        choose(CATALOGUE, name, "data set")
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn()) as bar:
        lines: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in lines:
                lines[file] = bar.add_task(file, total=total)
            bar.update(lines[file], completed=done)

        for name in names:
            for path in get(store, name, progress=show):
                bar.print(path)


@data_app.command("add")
def add_data(
    name: Annotated[str, typer.Argument(help="What to call it; a known name makes it part of the tasks that use it.")],
    path: Annotated[
        Path, typer.Argument(help="Class folders, npz, csv, txt, or the original MNIST, CIFAR, SVHN files.")
    ],
    split: Annotated[str | None, typer.Option(help="train, validation or test, where the files do not say.")] = None,
    data: Data = None,
) -> None:
    """Take in files that you already have."""
    from demur.tasks.formats import add

    for written in add(_store(data), name, path, split):
        print(written)


def _check_writable(path: Path | None) -> None:
    """Before anything is computed that would be lost."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"the folder of {path} does not exist; create it first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written to; name another file")


def _load(
    task: str,
    data: Path | None = None,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
) -> "Task":
    from demur.tasks import load

    return load(task, store=_store(data), outliers=outliers, limit=limit, exclude_overlap=exclude_overlap)


def _store(data: Path | None) -> "Store":
    """--data, then DEMUR_DATA, then the user's cache; decoded pictures go beside the data, if it may be written to."""
    from demur.tasks import Store

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "demur"
    named = data or os.environ.get("DEMUR_DATA")
    if named is None:
        return Store(home / "data")
    root = Path(named)
    if not root.is_dir():
        raise ValueError(f"the data folder {root} does not exist; create it, or name another with --data")
    writable = os.access(root, os.W_OK) and root.stat().st_mode & 0o200
    return Store(root, None if writable else home / "decoded")


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return name
