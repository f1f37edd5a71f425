"""The command line: parse, call, print. Everything heavy is imported where it is used, so that --help is quick."""

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

import demur

if TYPE_CHECKING:
    from rich.console import Console

    from demur.training import Progress

app = typer.Typer(
    help="Classifiers that know when they do not know: Bayesian neural networks that have been shown outliers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence, with exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _refuse(error.format_message())
    except (ValueError, FloatingPointError, OSError) as error:
        _refuse(str(error))
    except (KeyboardInterrupt, click.Abort):
        print("demur: stopped", file=sys.stderr)
        sys.exit(130)


def _refuse(sentence: str) -> None:
    print(f"demur: {' '.join(sentence.split())}", file=sys.stderr)
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
    warnings.showwarning = lambda message, *_: print(f"demur: note: {message}", file=sys.stderr)  # type: ignore[assignment]


@contextmanager
def _progress(console: "Console", what: str) -> Iterator[Callable[[str], None]]:
    """A line that moves on a terminal, and nothing where output is piped."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from demur.training import observed

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(what, total=None, said="")

        def after_epoch(progress: "Progress") -> None:
            said = f"epoch {progress.epoch}/{progress.epochs}, loss {progress.loss:.3f}"
            bar.update(line, total=progress.epochs, completed=progress.epoch, said=said)

        with observed(after_epoch):
            yield lambda description: bar.update(line, description=description, completed=0, said="")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="digits, blobs, ...")],
    method: Annotated[str, typer.Argument(help="inference+likelihood: map, map+oe, de, la+nc, vb+sl, ...")],
    seed: Annotated[int, typer.Option(min=0, help="Of initialisation, batches and draws.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the posterior there (safetensors).")] = None,
    load: Annotated[Path | None, typer.Option(help="Take this posterior instead of fitting one.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Fit one method to one task and print its figures."""
    from rich.console import Console

    from demur.method import parse_method
    from demur.report.tables import table
    from demur.study import run as study
    from demur.tasks import load as load_task

    parse_method(method)
    for path in (json_file, save):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"the folder of {path} does not exist; create it first")
    console = Console()
    began, started = time.time(), time.perf_counter()
    with _progress(console, f"{task} {method}"):
        data = load_task(task).to(_device(device))
        row = study.run(data, method, seed=seed, epochs=epochs, save_to=save, load_from=load)
    duration = time.perf_counter() - started
    if json_file is not None:
        record = row.as_json() | {"demur": demur.__version__, "time": began, "duration": duration}
        json_file.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    console.print(table([row], f"{task}, seed {seed}, {row.epochs} epochs: per cent ({duration:.0f} s)"))


@app.command()
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")]) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    from rich.console import Console

    from demur.report.figures import draw_toy

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"file name {str(out)!r} does not end in .png, .svg or .pdf; rename it")
    with _progress(Console(), "toy figure"):
        draw_toy(out)
    print(f"wrote {out}")


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the toy figure and the figures as JSON.")] = Path("demo")) -> None:
    """The paper in miniature: its thirteen methods on real digits, and the toy figure. Under four minutes."""
    from rich.console import Console

    from demur.report.figures import draw_toy
    from demur.report.tables import table
    from demur.study.grid import PAPER_ROWS
    from demur.study.run import run as run_method
    from demur.tasks import load

    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    data, rows = load("digits"), []
    with _progress(console, "digits") as describe:
        for number, method in enumerate(PAPER_ROWS, start=1):
            describe(f"digits {method} ({number} of {len(PAPER_ROWS)})")
            rows.append(run_method(data, method))
        (out / "digits.json").write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n", "utf-8")
        describe("toy figure")
        draw_toy(out / "toy.png")
    console.print(table(rows, "digits, seed 0: accuracy and ECE inside, FPR95 on sets of outliers; per cent"))
    plain, best = rows[0], min(rows, key=lambda row: row.mean_fpr95)
    console.print(
        f"\nWhat to look at\n"
        f"- mean FPR95, the share of outliers taken for digits when 95 % of the digits are kept: {100 * plain.mean_fpr95:.1f} "
        f"for {plain.method}, {100 * best.mean_fpr95:.1f} for {best.method}, at an accuracy of "
        f"{100 * plain.metrics['accuracy']:.1f} and {100 * best.metrics['accuracy']:.1f}.\n"
        f"- far away, noise 5000 times as bright as any digit: seeing outliers does not help a point estimate there.\n"
        f"- {out / 'toy.png'}: outlier exposure alone (OE) is sure of itself far from the data; the Laplace methods are not.\n"
        f"- {out / 'digits.json'}: every figure, with the other scores.",
        highlight=False,
        soft_wrap=True,
    )


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return name
