"""The command line: parse, call, print. Everything heavy is imported where it is used, so that --help is quick."""

import logging
import os
import sys
import warnings
from typing import Annotated, cast

import typer

import demur
from demur.cli import data, models, studies

app = typer.Typer(
    help="Classifiers that know when they do not know: Bayesian neural networks that have been shown outliers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(studies.app)
app.add_typer(models.app)
app.add_typer(data.app, name="data")


USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__base__)  # of whichever click typer brings along


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence, with exit code 2."""
    try:
        sys.exit(app(prog_name="demur", standalone_mode=False))
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else "demur"
        if said := error.format_message().rstrip("."):  # without a command, help has been printed
            print(f"demur: {said}; see {command} --help", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("demur: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, FloatingPointError, OSError, MemoryError, RuntimeError) as error:
        import torch

        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            raise
        said = str(error) or "there is not enough memory"
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename} cannot be read or written ({error.strerror}); name another place"
        print(f"demur: {' '.join(said.split())}", file=sys.stderr)
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
