"""Commands for data sets: list, get, add."""

from pathlib import Path
from typing import Annotated

import typer

from demur.cli.outputs import Overwrite, check_folder
from demur.cli.shared import Data, make_console, open_store

app = typer.Typer(help="Data sets: list those that are there, and get or add others.", no_args_is_help=True)


@app.command("list")
def list_data(data: Data = None) -> None:
    """What there is, where, how large, and under which licence."""
    from rich.table import Table

    store = open_store(data)
    listed = Table("name", "splits", "MiB", "where", "licence", box=None, pad_edge=False)
    for holding in store.describe():
        splits = ", ".join(f"{split} {count:,}" for split, count in holding.splits.items()) or "-"
        listed.add_row(holding.name, splits, f"{holding.bytes / 2**20:.1f}", holding.where, holding.licence)
    make_console().print(f"data sets in {store.root}:", listed)


@app.command("get")
def get_data(names: Annotated[list[str], typer.Argument(help="Names of data sets.")], data: Data = None) -> None:
    """Fetch data sets from the Hugging Face hub; what was begun is continued."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    from demur.data.catalogue import CATALOGUE
    from demur.data.hub import get
    from demur.names import choose

    store = open_store(data)
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


@app.command("add")
def add_data(
    name: Annotated[str, typer.Argument(help="What to call it; a known name makes it part of the tasks that use it.")],
    path: Annotated[
        Path,
        typer.Argument(help="Class folders, npz, csv, txt, OpenOOD's lists, or the original MNIST, CIFAR, SVHN files."),
    ],
    split: Annotated[str | None, typer.Option(help="train, validation or test, where the files do not say.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
) -> None:
    """Take in files that you already have."""
    from demur.data.adding import add

    store = open_store(data)
    check_folder(store.root, overwrite=False)
    for written in add(store, name, path, split, overwrite=overwrite):
        print(written)
