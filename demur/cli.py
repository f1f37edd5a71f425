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
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"the folder of {path} does not exist; create it first")
    console = _console()
    began, started = time.time(), time.perf_counter()
    with _progress(console, f"{task} {method}"):
        loaded = _load(task, data, outliers, limit, exclude_overlap).to(_device(device))
        row = study.run(loaded, method, seed=seed, epochs=epochs, save_to=save, load_from=load)
    duration = time.perf_counter() - started
    if json_file is not None:
        record = row.as_json() | {"demur": demur.__version__, "time": began, "duration": duration}
        json_file.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    console.print(sheet(row, f"{task} {method}, seed {seed}, {row.epochs} epochs, {duration:.0f} s: per cent"))


@app.command()
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")]) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    from demur.report.figures import draw_toy

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"file name {str(out)!r} does not end in .png, .svg or .pdf; rename it")
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
def matrix(
    task: TaskName = "digits",
    runs: Annotated[Path, typer.Option(help="Folder of results; what is there is not measured again.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Write the table there, as Markdown.")] = None,
    seed: Seed = 0,
    data: Data = None,
) -> None:
    """Measure every inference method under every likelihood: thirty rows."""
    import torch

    from demur.method import METHODS
    from demur.report.tables import markdown, table
    from demur.study.run import run_all

    console, timed = _console(), []
    loaded = _load(task, data)
    with _progress(console, task) as describe:
        for row, seconds in run_all(loaded, METHODS, runs, seed=seed):
            timed.append((row, seconds))
            describe(f"{task} ({len(timed)} of {len(METHODS)} done)")
    if out is not None:
        sizes = f"{len(loaded.train):,} training and {len(loaded.test):,} test inputs"
        title = f"{task}, seed {seed}, {sizes}, CPU, {torch.get_num_threads()} threads: per cent"
        out.write_text(markdown(timed, title), "utf-8")
    console.print(table([row for row, _ in timed], f"{task}, seed {seed}: per cent"))


@app.command()
def audit(task: TaskName, outliers: OutliersName = None, data: Data = None) -> None:
    """Look for what makes a task easier than it seems: duplicates, shared classes, giveaways of typography."""
    from demur.audit import audit as audit_task
    from demur.tasks import default_outliers

    store = _store(data)
    named = outliers or default_outliers(task, store)
    for line in audit_task(_load(task, data, named), store, named).lines():
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
