"""The command that finds outliers to train with, looks at them, and writes those that are worth showing."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demur.cli.outputs import check_distinct, check_file, check_folder, unfinished, write_whole
from demur.cli.shared import Data, Seed, check_size, make_console, open_store, parse_size

if TYPE_CHECKING:
    from demur.classifier.proposing import Selection

app = typer.Typer()


@app.command(rich_help_panel="Your data")
def outliers(
    inputs: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled, as for fit: what the outliers are not.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A new folder of images, or a new .txt, .jsonl or .csv file; without, a table."
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", help="A path like DATA, a data set, or patches, smooth, words, ...; may be repeated."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A class of the sources to leave out as well; may be repeated.")
    ] = None,
    number: Annotated[
        int | None, typer.Option(min=1, help="Of each source; else as many as inliers, or 1,000.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The label's column; else label, class, target or y.")] = None,
    size: Annotated[str | None, typer.Option(help="Of images, as for fit; for a backbone 224.")] = None,
    seed: Seed = 0,
    data: Data = None,
) -> None:
    """Propose outliers to train with, audit them, and write those that are worth showing, with a contact sheet.

    Without --from, the data sets of the store and synthetic ones are compared. What is also in DATA, or of one of its
    classes, is left out.
    """
    shape, page = parse_size(size), None
    if out is not None:
        page = out.absolute().with_name(
            f"{out.name.removesuffix(out.suffix) if out.suffix in FILES else out.name}.html"
        )
        _check_new(out, inputs, [Path(source) for source in sources or ()])
        check_distinct(out, page)
        check_file(page, overwrite=None)

    from demur.classifier.proposing import FEWEST, Problem, candidates, check_without, propose, select
    from demur.classifier.readers import open_inputs
    from demur.report.outliers import contact_sheet, sheet
    from demur.report.sheet import terminal

    given = open_inputs(inputs, labelled=True, label=label, size=shape, mixed=None)
    check_size(given, size)
    inliers = given.gather()
    problem = Problem(given, inliers.x, tuple(sorted(set(inliers.y or ()))))
    if out is not None:
        _check_suffix(out, given.kind)
    same_size = f" --size {size}" if size else ""
    count = number or max(FEWEST, len(inliers.names))
    console = make_console()

    def selected(named: Sequence[str]) -> "list[Selection]":
        return [select(problem, name, lambda: open_store(data), count, seed, without or ()) for name in named]

    chosen = selected(sources or candidates(problem, open_store(data)))
    check_without(without or (), chosen)
    table = sheet(chosen)
    console.print(terminal(table))
    for note in table.notes:
        console.print(note, style="dim", highlight=False)
    if not sources:
        wanted = propose(chosen)
        chosen = [each for each in chosen if each.shown.source in wanted]
        print(f"proposed: {' and '.join(wanted)}")
    if out is None or page is None:
        named = "".join(f" --from {shlex.quote(each.shown.source)}" for each in chosen) + same_size
        target = {"images": "FOLDER", "texts": "FILE.txt", "tables": "FILE.csv"}[given.kind]
        print(f"to write them: demur outliers {shlex.quote(str(inputs))}{named} -o {target}")
        return
    empty = [each.shown.source for each in chosen if not len(each.shown)]
    if empty:
        raise ValueError(f"nothing of {empty[0]} is left to show; name another source")
    for each in chosen:
        for line in each.audit.lines():
            print(f"{each.shown.name}: {line}")
    _write(out, chosen)
    write_whole(page, contact_sheet(problem, out.name, chosen))
    print(f"wrote {out}, {sum(len(each.shown) for each in chosen):,} outliers, and {page.name}; look at it")
    print(f"use them with: demur fit {shlex.quote(str(inputs))} --outliers {shlex.quote(str(out))}{same_size} -o MODEL")


FILES = (".txt", ".jsonl", ".csv")
SUFFIXES = {"texts": (".txt", ".jsonl"), "tables": (".csv",)}


def _check_new(out: Path, inputs: Path, sources: Sequence[Path]) -> None:
    """Nothing is replaced, and outliers in a folder that is read would be taken for a class of it."""
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} is there already; name a new place")
    for path in (inputs, *sources):
        if path.is_dir() and path.resolve() in (out.resolve(), *out.resolve().parents):
            raise ValueError(f"{out} lies in {path}, which is read; name another place")
    if out.suffix in FILES:
        check_file(out, overwrite=None)
    else:
        check_folder(out, overwrite=False)
        if not out.absolute().parent.is_dir():
            raise ValueError(f"the folder of {out} does not exist; create it first")


def _check_suffix(out: Path, kind: str) -> None:
    suffixes = SUFFIXES.get(kind, ())
    if suffixes and out.suffix not in suffixes:
        raise ValueError(f"outliers that are {kind} are written to a file; give it a name in {' or '.join(suffixes)}")
    if not suffixes and out.suffix in FILES:
        raise ValueError(f"outliers that are images are written to a folder; {out} names a file")


def _write(out: Path, chosen: "Sequence[Selection]") -> None:
    from demur.classifier.proposing import write_inputs

    part = unfinished(out.absolute())
    try:
        write_inputs(part, out.suffix if out.suffix in FILES else "", [each.shown for each in chosen])
        if out.is_dir():  # empty, as was seen
            out.rmdir()
        os.replace(part, out)
    except BaseException:  # an interrupt, too: nothing half-written stays
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        raise
