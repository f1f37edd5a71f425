"""What the paper's tables still want of a GPU, item by item, in the order of what they tell.

    python -m experiments.paper_runs --data DATA --dry-run       cells, networks, missing data, about how many minutes
    python -m experiments.paper_runs --data DATA --runs runs     run them; stopped, it goes on where it was
    python -m experiments.paper_runs --data DATA --runs runs 1 4 these items only
    python -m experiments.paper_runs --data DATA --minutes 25    start nothing that would not end within them

What results/ already has of a cell, by the folder that it would have, is not made again. A network is trained once for
all items and both conventions that want it, and scored at once, since networks are not kept.

Cells are made one after another in this process, so that their seconds compare; with `--jobs 2` two at a time. Every
four minutes a process beside packs what is new (RUNS/../packs) and adds it to the stored results (RUNS/../report).

The stored cells test with 10,000 of SVHN's digits, and the published ones count all 26,032: DATA has the former as
`svhn`, the latter as `svhn_whole`.
"""

import argparse
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from demur.data.catalogue import CATALOGUE
from demur.measures import value_name
from demur.paper.choice import RIVALS, SETS
from demur.paper.conventions import resolve
from demur.paper.counts import with_counts
from demur.paper.further import FURTHER
from demur.paper.grid import CHOICE_SCORES, PAPER_ROWS, SOPHISTICATED, STUDIES, select
from demur.paper.suite import set_name
from demur.study.cells import Place, networks_of, parts_of
from demur.study.engine import Step, one_by_one, plan, run_steps
from demur.study.fits import Fit, folder_name
from demur.study.grid import Cell, Study
from demur.study.processes import processes
from demur.study.records import split_further
from demur.tasks import Store
from experiments.smoothing import grid as smoothing

STORED = Path(__file__).parent.parent / "results"
MATCHED = "tiny_imagenet32_spectrum_matched"
WITH_NOISE = ("map+oe", "la+nc", "la+sl", "la+ml", "la+oe")
LARGER = "tiny_imagenet32_more"  # the 59,984 that are not in tiny_imagenet32
SUITE = "suite"  # a kind of further inputs
CHOSEN = tuple(product(("map+nc", "la+nc"), (None, "tiny_imagenet32+patches", f"tiny_imagenet32+{MATCHED}")))

# one H200, one network at a time (docs/performance-gpu.md): milliseconds a step of 128 inliers and as many outliers
STEP = {"lenet": 0.48, "wide_resnet": 3.4}
SLOWED = 0.9  # two networks at once take so much of the time that one after another would
INPUTS = {"mnist": 58_000, "fashion_mnist": 58_000, "svhn": 71_257, "cifar10": 48_000, "cifar100": 48_000}
SLOWER = {"Flipout": 2.0, "VariationalBayes": 1.1}
PREDICTION = 0.3  # minutes a cell, its Fisher and its OOD sets
REPORT = 1.0  # minutes, of all cells on 16 cores
BESIDE = 240  # seconds from one report to the next


def corrected(study: str, tasks: Sequence[str], methods: Sequence[str] | None = None, seeds: int = 1) -> list[Cell]:
    return select(study, tasks=tasks, methods=methods, convention="corrected", seeds=seeds)


def published(study: str, tasks: Sequence[str], methods: Sequence[str] | None = None) -> list[Cell]:
    return select(study, tasks=tasks, methods=methods, convention="published")


def candidates(tasks: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell(task, method, seed, outliers=outliers, further=("suite", "validation"))
        for seed, task, (method, outliers) in product(range(seeds), tasks, CHOSEN)
    ]


@dataclass(frozen=True)
class Item:
    title: str
    cells: tuple[Cell, ...]


def items() -> list[Item]:
    """In the order of what they tell."""
    one_network = [method for method in PAPER_ROWS if method != "de"]
    exposed = [f"{inference}+oe" for inference in ("map", "la")]
    whole = f"tiny_imagenet32+{LARGER}"
    every_outlier = [Cell("cifar10", method, 0, "published", whole) for method in ("map+oe", "la+nc")]
    chosen: list[tuple[str, Iterable[Cell]]] = [
        (
            "cifar10 with shift; two more seeds without",
            (
                *corrected("shift", ["cifar10"]),
                *(cell for cell in corrected("table1", ["cifar10"], one_network, 3) if cell.seed > 0),
            ),
        ),
        ("cifar100", corrected("table1", ["cifar100"])),
        ("svhn", corrected("table1", ["svhn"])),
        ("other methods", (*corrected("aux", ["cifar10"], SOPHISTICATED), *corrected("aux", ["cifar100"]))),
        ("noise", corrected("noise", ["cifar10", "mnist", "cifar100", "svhn"], WITH_NOISE)),
        (
            "the published convention, soft labels' smoothing, all outliers",
            (
                *published("table1", ["cifar10"], [m for m in PAPER_ROWS if m.startswith("vb") or m.endswith("sl")]),
                *published("table1", ["cifar100", "svhn"]),
                *published("table1", ["mnist", "fashion_mnist", "cifar10"], exposed),
                *smoothing.cells,
                *every_outlier,
                *corrected("noise", ["cifar10", "mnist"], [m for m in PAPER_ROWS if m.startswith("vb+")]),
            ),
        ),
        (
            "candidates",
            (*candidates(["mnist", "fashion_mnist", "cifar10"], 3), *candidates(["cifar100", "svhn"], 1)),
        ),
    ]
    return [Item(title, tuple(dict.fromkeys(map(with_suite, map(with_counts, cells))))) for title, cells in chosen]


def with_suite(cell: Cell) -> Cell:
    """What candidates have to beat is measured on their validation suite, too."""
    rival = cell.method in RIVALS and cell.convention == "corrected" and cell.outliers is None
    return replace(cell, further=tuple(sorted({*cell.further, SUITE}))) if rival else cell


def minutes(fit: Fit) -> float:
    """Of one network, from its number of steps; nothing where a posterior is made from networks that are there."""
    if parts_of(fit):
        return 0.0
    network = getattr(fit.network, "func", fit.network).__name__
    steps = fit.recipe.epochs * INPUTS[fit.data.name] / fit.recipe.batch_size
    alone = 1.0 if fit.method.uses_outliers else 0.6  # half the inputs, and a little that does not shrink
    return steps * STEP[network] * alone * SLOWER.get(type(fit.inference).__name__, 1.0) / 60_000


def twins(cells: Sequence[Cell], store: Store) -> list[Cell]:
    """The published cells of the first table whose networks these cells have trained anyway."""
    trained = networks_of(Study("these", tuple(cells), resolve), store)
    tasks = {cell.task for cell in cells}
    asked = [cell for cell in STUDIES["table1"] if cell.convention == "published" and cell.task in tasks]
    return [with_counts(cell) for cell in asked if networks_of(Study("one", (cell,), resolve), store) <= trained]


def stored_folders() -> dict[str, set[str]]:
    """By folder, what else than its sets was predicted: of cells that record the commit they were made by."""
    cells = pd.read_csv(STORED / "cells.csv", usecols=["folder", "further", "commit"]).dropna(subset="commit")
    further = cells["further"].fillna("").map(split_further)
    return {str(folder): set(kinds) for folder, kinds in zip(cells["folder"], further, strict=True)}


def stored_scores() -> set[Cell]:
    """The cells of full length whose scores are stored, of the suite too; without what else they were asked."""
    values = pd.read_csv(STORED / "results.csv", low_memory=False)
    whole = values["epochs"].isna() & values["limit"].isna()
    energy = values[whole & (values["set"] == set_name(SETS[0])) & (values["metric"] == value_name("fpr95", "energy"))]
    columns = energy[["task", "method", "seed", "convention", "outliers"]].astype(object).itertuples(index=False)
    return {Cell(*known, outliers if isinstance(outliers, str) else None) for *known, outliers in columns}


def not_stored(cells: Iterable[Cell], store: Store) -> tuple[Cell, ...]:
    folders, scores = stored_folders(), stored_scores()

    def is_stored(cell: Cell) -> bool:
        further = folders.get(folder_name(resolve(cell, store)))
        scored = SUITE not in cell.further or replace(cell, further=()) in scores
        return further is not None and set(cell.further) <= further and scored

    return tuple(cell for cell in cells if not is_stored(cell))


def steps_of(cells: Sequence[Cell], place: Place) -> dict[str, Step]:
    """What is left to do of the cells; those that have the suite are scored as soon as they are made."""
    of_suite = [cell for cell in cells if SUITE in cell.further]
    others = [cell for cell in cells if SUITE not in cell.further]
    scored = Study("scored", tuple(of_suite), resolve, FURTHER, CHOICE_SCORES)
    return merged(plan(scored, place), plan(Study("others", tuple(others), resolve, FURTHER), place))


def merged(steps: dict[str, Step], more: dict[str, Step]) -> dict[str, Step]:
    """Each folder once, for all the cells that want it."""
    both = dict(steps)
    for name, step in more.items():
        if name in both:
            asked = tuple(dict.fromkeys((*both[name].cells, *step.cells)))
            step = replace(both[name], cells=asked, scores=both[name].scores or step.scores)
        both[name] = step
    return both


def expected(step: Step, jobs: int) -> float:
    """Minutes, beside the others."""
    return minutes(step.fit) * (1 if jobs == 1 else jobs * SLOWED) + PREDICTION * bool(step.cells)


def describe(steps: dict[str, Step], place: Place) -> tuple[str, float]:
    """What is left of an item, and how long that takes one after another."""
    trained = [step for step in steps.values() if not parts_of(step.fit)]
    total = sum(expected(step, 1) for step in steps.values())
    needed = {name for step in steps.values() for name in step.fit.data.set_names if name in (*CATALOGUE, LARGER)}
    missing = sorted(name for name in needed if not place.store.has(name, "train"))
    lacks = f"; not here: {', '.join(missing)}" if missing else ""
    left = sum(len(step.cells) for step in steps.values())
    return f"{left} cells left, {len(trained)} networks, about {total:.0f} min{lacks}", total


class Beside:
    """Packs and the report, while others train; on the CPU, and in this machine's spare time."""

    def __init__(self, runs: Path) -> None:
        demur = ["nice", sys.executable, "-m", "demur"]
        packed = [*demur, "pack", str(runs.parent / "packs"), "--runs", str(runs), "--overwrite"]
        reported = [*demur, "report", str(STORED), str(runs), "--out", str(runs.parent / "report"), "--overwrite"]
        self.commands = f"{shlex.join(packed)}; {shlex.join(reported)}"
        self.log = runs.parent / "beside.log"
        self.running: subprocess.Popen[bytes] | None = None
        self.began = time.monotonic()

    def now_and_then(self, ended: int, total: int, step: str) -> None:
        print(f"  {ended} of {total}: {step}", flush=True)
        over = self.running is None or self.running.poll() is not None
        if over and time.monotonic() - self.began > BESIDE:
            self.start()

    def start(self) -> None:
        self.began = time.monotonic()
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(["sh", "-c", self.commands], stdout=log, stderr=log)

    def end(self) -> None:
        """Once more, of everything."""
        if self.running is not None:
            self.running.wait()
        self.start()
        assert self.running is not None
        self.running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", type=int, help="from 1; all of them where none is named")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="there are no more than so many")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * (given.minutes - REPORT)
    place = Place(given.runs, Store(given.data), given.device, jobs=given.jobs)
    known = items()
    if wrong := [number for number in given.items if not 1 <= number <= len(known)]:
        parser.error(f"there is no item {wrong[0]}; they are 1 to {len(known)}")
    whole, steps = 0.0, dict[str, Step]()
    for number in given.items or range(1, len(known) + 1):
        item = known[number - 1]
        left = not_stored(item.cells, place.store)
        new = steps_of([*left, *not_stored(twins(left, place.store), place.store)], place)
        said, total = describe({name: step for name, step in new.items() if name not in steps}, place)
        print(f"{number}. {item.title}: {said}", flush=True)
        whole += total
        steps = merged(steps, new)
    print(f"about {whole:.0f} min in all, one network after another", flush=True)
    if not given.dry_run:
        given.runs.mkdir(parents=True, exist_ok=True)
        make(steps, place, deadline)


def make(steps: dict[str, Step], place: Place, deadline: float) -> None:
    """The steps that end before the deadline, as `time.monotonic` tells it; reports meanwhile and at the end."""
    jobs, beside = place.jobs or 1, Beside(place.runs)
    late: dict[str, Step] = {}

    def in_time(step: Step) -> bool:
        if time.monotonic() + 60 * expected(step, jobs) < deadline:
            return True
        late[step.name] = step
        return False

    engine = one_by_one if jobs == 1 else partial(processes, jobs=jobs)
    for failure in run_steps(steps, place, beside.now_and_then, engine, in_time):
        print(f"  failed: {failure.cell.task} {failure.cell.method}: {failure.reason}", file=sys.stderr)
    for step in late.values():
        print(f"  left for want of time: {step}")
    beside.end()


if __name__ == "__main__":
    main()
