"""What several commands need: options, the terminal, data, a device."""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from demur.classifier.readers import Inputs
    from demur.tasks import Store

Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of data sets; else DEMUR_DATA, else the user's cache.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Of the posterior, the first N only: quicker and smaller, nearly the same.")
]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Of initialisation, batches and samples.")]

OwnScores = Annotated[
    list[str] | None,
    typer.Option(help="Beside the usual: energy, knn, vim, ..., or mypackage.mymodule:name; may be repeated."),
]
OwnMetrics = Annotated[
    list[str] | None,
    typer.Option(help="Beside demur's: mypackage.mymodule:name, of predictions and labels; may be repeated."),
]


def make_console() -> "Console":
    """As wide as the terminal; piped, wide enough for any table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


def open_store(data: Path | None) -> "Store":
    """--data, then DEMUR_DATA, then the user's cache; decoded images go beside the data, if it may be written to."""
    from demur.tasks import Store

    named = data or os.environ.get("DEMUR_DATA")
    if named is None:
        return Store(cache_folder() / "data")
    root = Path(named)
    if not root.is_dir():
        raise ValueError(f"the data folder {root} does not exist; create it, or name another with --data")
    writable = os.access(root, os.W_OK) and root.stat().st_mode & 0o200
    return Store(root, None if writable else cache_folder() / "decoded")


def cache_folder() -> Path:
    """The user's own."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "demur"
    except RuntimeError:  # neither HOME nor an entry for this user
        raise ValueError("there is no home folder to keep data in; name a folder with --data or DEMUR_DATA") from None


def features_folder() -> Path | None:
    """Where features of backbones are kept; None, and a note, where that cannot be written to."""
    try:
        folder = cache_folder() / "features"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
        reason = f"{folder} cannot be written to"
    except (OSError, ValueError) as error:
        reason = str(error)
    warnings.warn(f"features are not kept for the next fit: {reason}; set XDG_CACHE_HOME to a folder", stacklevel=2)
    return None


def parse_device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        float(torch.zeros((), device=name))  # a device that holds no values, as `meta`, is of no use
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return name


def check_size(given: "Inputs", size: str | None) -> None:
    if size is not None and given.kind != "images":
        raise ValueError(f"size {size!r} is that of images, and DATA holds {given.kind}; leave it out")


def parse_size(named: str | None) -> tuple[int, int] | None:
    if named is None:
        return None
    height, _, width = named.lower().partition("x")
    if not (height.isdecimal() and (width or height).isdecimal()) or min(int(height), int(width or height)) < 4:
        raise ValueError(f"size {named!r} is not that of an image; give 32, or 32x48 for height and width")
    return int(height), int(width or height)
