"""What several commands need: options, the terminal, data, a device, and checks before anything is computed."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from demur.tasks import Store
    from demur.training import EpochReport

Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of data sets; else DEMUR_DATA, else the user's cache.")
]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Of initialisation, batches and draws.")]


def make_console() -> "Console":
    """As wide as the terminal; piped, wide enough for any table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


@contextmanager
def progress(console: "Console", what: str) -> Iterator[Callable[[str], None]]:
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


def check_writable(path: Path | None) -> None:
    """Before anything is computed that would be lost."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"the folder of {path} does not exist; create it first")
    if (path.exists() and not path.is_file()) or not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written to; name another file")


def open_store(data: Path | None) -> "Store":
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


def device_named(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return name
