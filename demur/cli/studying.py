"""What `demur study` does, step by step."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur.cli.outputs import write_whole
from demur.cli.progress import progress
from demur.cli.shared import make_console, open_store, parse_device

if TYPE_CHECKING:
    from demur.study.cells import Place
    from demur.study.engine import Engine, Failure
    from demur.study.fits import Fit
    from demur.study.grid import Cell, Study

ENGINES = ("local", "ray")


def check_engine(engine: str, address: str | None, jobs: int | None) -> None:
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == "local" and address is not None:
        raise ValueError(f"address {address!r} is for the engine ray; add --engine ray")
    if engine == "ray" and jobs is not None:
        raise ValueError(f"jobs {jobs} is for the engine local; a Ray cluster takes what it has room for")


def select_study(name: str, scores: Sequence[str], **options: Any) -> "Study":
    """Those cells of a study that the options name, with the values of these scores, too."""
    from demur.paper.studies import study_named
    from demur.scores import score_named
    from demur.study.grid import select
    from demur.study.opening import is_own, open_study

    whole = open_study(name) if is_own(name) else study_named(name)
    cells = select(whole.cells, name, **options)
    every = tuple(dict.fromkeys((*whole.scores, *scores)))
    for score in every:
        score_named(score)
    return replace(whole.of(cells), scores=every)


def choose_engine(place: "Place", engine: str, address: str | None, jobs: int | None) -> "tuple[Place, Engine]":
    """Ray, several processes here, or this one; and the place with how many there will be."""
    from demur.study.cluster import cluster
    from demur.study.engine import one_by_one
    from demur.study.processes import most_jobs, processes

    if engine == "ray":
        return place, partial(cluster, address=address)
    jobs = jobs or most_jobs(place)
    return replace(place, jobs=jobs), one_by_one if jobs == 1 else partial(processes, jobs=jobs)


def place_of(runs: Path, data: Path | None, device: str, engine: str, keep_posteriors: bool, threads: int) -> "Place":
    from demur.study.cells import Place

    here = device if engine == "ray" else parse_device(device)
    return Place(runs, open_store(data), here, keep_posteriors, threads)


@dataclass(frozen=True)
class Pending:
    """A study's cells, those of them that are done, and what the others are to be trained with."""

    study: "Study"
    place: "Place"
    fits: "Mapping[Cell, Fit]"
    done: "frozenset[Cell]"

    @classmethod
    def of(cls, study: "Study", place: "Place") -> "Pending":
        from demur.study.cells import is_answered

        fits = {cell: study.resolve(cell, place.store) for cell in study.cells}
        done = frozenset(cell for cell, fit in fits.items() if is_answered(cell, place.folder(fit), study.scores))
        return cls(study, place, fits, done)

    @property
    def set_names(self) -> list[tuple[str, ...]]:
        """For each cell that is to do, the data sets that it is trained with."""
        return [self.fits[cell].data.set_names for cell in self.study.cells if cell not in self.done]

    @property
    def missing(self) -> list[str]:
        """Data sets of the catalogue that the store does not have."""
        from demur.data.catalogue import CATALOGUE

        wanted = dict.fromkeys(chain.from_iterable(self.set_names))
        return [name for name in wanted if name in CATALOGUE and not self.place.store.has(name, "train")]

    def count(self) -> str:
        from demur.study.cells import networks_of
        from demur.study.engine import seconds_left
        from demur.study.processes import most_jobs

        jobs = self.place.jobs or most_jobs(self.place)
        cells, networks = len(self.study.cells), len(networks_of(self.study, self.place.store))
        counted = f"{cells} cell{'s' * (cells != 1)}, {len(self.done)} done"
        in_all = f"{networks} network{'s' * (networks != 1)} in all"
        return f"{counted}, {in_all}; {seconds_left(self.study, self.place, jobs)}"

    def print_cells(self) -> None:
        for cell in self.study.cells:
            state = "done" if cell in self.done else "to do"
            outliers = f" with {cell.outliers}" if cell.outliers else ""
            print(f"  {cell.task} {cell.method}{outliers} {cell.convention} seed {cell.seed}: {state}")
        if missing := self.missing:
            print(f"not here yet, to train with: {', '.join(missing)}; demur data get {' '.join(missing)}")

    def check_data(self) -> None:
        """Refuse to begin where no cell has its inliers; the error says how to get them."""
        set_names, missing = self.set_names, self.missing
        if set_names and all(names[:1] and names[0] in missing for names in set_names):
            self.place.store.shards(set_names[0][0], "train")


def run_study(name: str, pending: Pending, engine: "Engine") -> "list[Failure]":
    from demur.study.engine import run_cells

    console = make_console()
    with progress(console, name) as describe:

        def after(number: int, total: int, step: str) -> None:
            describe(f"{name}: {number} of {total}; {step}")
            if not console.is_terminal:
                print(f"step {number} of {total}: {step}", file=sys.stderr, flush=True)

        return run_cells(pending.study, pending.place, after, engine)


def show_results(pending: Pending, failures: "Sequence[Failure]", markdown: Path | None) -> bool:
    """Print tables of what is done, then what failed or is damaged; whether all is well."""
    from demur.report import tables
    from demur.report.openood import near_and_far
    from demur.report.sheet import terminal
    from demur.study.engine import results_of
    from demur.study.records import DamagedCell
    from demur.study.run import row_of

    study, place, console = pending.study, pending.place, make_console()
    damaged = list[DamagedCell]()
    results = results_of(study, place, damaged.append)
    rows = [row_of(result) for result in results]
    for group in tables.group_rows(rows):
        console.print(tables.table(group, f"{group[0].task}, {group[0].convention}: per cent", study.scores))
    for sheet in near_and_far(results):
        console.print(terminal(sheet), *sheet.notes, sep="\n")
    if markdown is not None:
        write_whole(markdown, tables.markdown(rows, [result.record for result in results]))
    if results:
        runs = place.runs
        print(f"the cells are in {runs}; tables beside the paper's, figures and a page: demur report {runs}")
    for failure in failures:
        print(f"demur: {failure.cell.task} {failure.cell.method} failed: {failure.reason}", file=sys.stderr)
    failed = {place.folder(pending.fits[failure.cell]) for failure in failures}
    for reason in dict.fromkeys(str(error) for error in damaged if error.path.parent not in failed):
        print(f"demur: {reason}", file=sys.stderr)
    return not (failures or damaged)
