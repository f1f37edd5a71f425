"""All commands together. Everything heavy is imported where it is used, so that --help is quick."""

import io
import logging
import os
import sys
import warnings
from typing import Annotated, cast

import typer

import demur
from demur.cli import bench, data, models, outliers, results, serving, studies
from demur.cli.training import is_spokesman

app = typer.Typer(
    help="Classifiers that know when they do not know: Bayesian neural networks trained with outliers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app)
app.add_typer(outliers.app)
app.add_typer(serving.app)
app.add_typer(studies.app)
app.add_typer(results.app)
app.add_typer(bench.app)
app.add_typer(data.app, name="data", rich_help_panel="Research")


STOPPED = 130
NO_MEMORY = "there is not enough memory; give less data, or smaller inputs"
USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__base__)  # of whichever click typer brings along


def run() -> int:
    """The exit code."""
    _replace_closed_streams()
    _write_utf8()
    try:
        code = app(prog_name="demur", standalone_mode=False)
        sys.stdout.flush()  # where this fails, it is to be noticed here
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else "demur"
        message = error.format_message().rstrip(".")
        if message and is_spokesman():  # without a command, help has been printed
            print(f"demur: {message}; see {command} --help", file=sys.stderr)
        return 2
    except typer.Abort as stopped:
        print("; ".join(["demur: stopped", *map(str, stopped.args)]), file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # whoever read the output has seen enough
        _forget_output()
        return 1
    except (ValueError, FloatingPointError, OSError, MemoryError, RuntimeError) as error:
        message = str(error) or NO_MEMORY
        if isinstance(error, RuntimeError):
            from torch import OutOfMemoryError  # loaded before, by whatever raised this

            if not isinstance(error, OutOfMemoryError) and "DefaultCPUAllocator" not in message:
                raise
            message = NO_MEMORY
        if isinstance(error, OSError):
            if error.filename is None:
                _forget_output()
            what = "the output" if error.filename is None else error.filename
            message = f"{what} cannot be read or written ({error.strerror or error}); name another place"
        print(f"demur: {' '.join(message.split())}", file=sys.stderr)
        return 2
    if code == STOPPED:  # which typer says by its code alone
        print("demur: stopped", file=sys.stderr)
    return int(code or 0)


def _replace_closed_streams() -> None:
    """A stream that was closed before the start is None, and its number would go to the next file that is opened."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (for good)


def _write_utf8() -> None:
    """What is piped is UTF-8, as files are, whatever the system prefers; a terminal shows what it can."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def _forget_output() -> None:
    """What is still to be written would fail again at the end, with a message of Python's own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
