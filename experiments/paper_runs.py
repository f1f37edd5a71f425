"""What the paper's tables still want of a GPU, item by item, each stored and reported before the next has ended.

    python experiments/paper_runs.py --data DATA --dry-run       cells, networks, missing data, about how many minutes
    python experiments/paper_runs.py --data DATA --runs runs     run them; stopped, it goes on where it was
    python experiments/paper_runs.py --data DATA --runs runs 1 4 these items only

What results/ already has of a cell, by the folder that it would have, is not made again.

Cells are made one after another in this process, so that their seconds compare; with `--jobs 2` two at a time. When an
item is done, a process beside packs what is new (RUNS/../packs) and adds it to the stored results (RUNS/../report),
while the next one trains.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from demur.data.catalogue import CATALOGUE
from demur.paper.conventions import resolve
from demur.paper.counts import with_counts
from demur.paper.further import FURTHER
from demur.paper.grid import PAPER_ROWS, SOPHISTICATED, select
from demur.study.cells import Place, parts_of
from demur.study.engine import one_by_one, plan, run_cells
from demur.study.fits import Fit, folder_name
from demur.study.grid import Cell, Study
from demur.study.processes import processes
from demur.tasks import Store
from experiments.smoothing import grid as smoothing

STORED = Path(__file__).parent.parent / "results"
MATCHED = "tiny_imagenet32_spectrum_matched"
WITH_NOISE = ("map+oe", "la+nc", "la+sl", "la+ml", "la+oe")
LARGER = "tiny_imagenet32_more"  # the 59,984 that are not in tiny_imagenet32
CHOSEN = tuple(product(("map+nc", "la+nc"), (None, "tiny_imagenet32+patches", f"tiny_imagenet32+{MATCHED}")))

# one H200, one network at a time (docs/performance-gpu.md): milliseconds a step of 128 inliers and as many outliers
STEP = {"lenet": 0.48, "wide_resnet": 3.4}
INPUTS = {"mnist": 58_000, "fashion_mnist": 58_000, "svhn": 71_257, "cifar10": 48_000, "cifar100": 48_000}
SLOWER = {"Flipout": 2.0, "VariationalBayes": 1.1}
PREDICTION = 0.3  # minutes a cell, its Fisher and its OOD sets


def corrected(study: str, tasks: Sequence[str], methods: Sequence[str] | None = None, seeds: int = 1) -> list[Cell]:
    return select(study, tasks=tasks, methods=methods, convention="corrected", seeds=seeds)


def published(study: str, tasks: Sequence[str], methods: Sequence[str] | None = None) -> list[Cell]:
    return select(study, tasks=tasks, methods=methods, convention="published")


def candidates(tasks: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell(task, method, seed, outliers=outliers, further=("validation",))
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
    return [Item(title, tuple(dict.fromkeys(map(with_counts, cells)))) for title, cells in chosen]


def minutes(fit: Fit) -> float:
    """Of one network, from its number of steps; nothing where a posterior is made from networks that are there."""
    if parts_of(fit):
        return 0.0
    network = getattr(fit.network, "func", fit.network).__name__
    steps = fit.recipe.epochs * INPUTS[fit.data.name] / fit.recipe.batch_size
    alone = 1.0 if fit.method.uses_outliers else 0.6  # half the inputs, and a little that does not shrink
    return steps * STEP[network] * alone * SLOWER.get(type(fit.inference).__name__, 1.0) / 60_000


def stored_folders() -> dict[str, set[str]]:
    """By folder, what else than its sets was predicted: of cells that record the commit they were made by."""
    cells = pd.read_csv(STORED / "cells.csv", usecols=["folder", "further", "commit"]).dropna(subset="commit")
    return {
        str(folder): set(str(further).split("+"))
        for folder, further in zip(cells["folder"], cells["further"].fillna(""), strict=True)
    }


def not_stored(cells: Iterable[Cell], store: Store) -> tuple[Cell, ...]:
    stored = stored_folders()
    folders = [(cell, stored.get(folder_name(resolve(cell, store)))) for cell in cells]
    return tuple(cell for cell, further in folders if further is None or not set(cell.further) <= further)


def describe(item: Item, study: Study, place: Place) -> tuple[str, float]:
    """What is left of it, and how long that takes."""
    steps = plan(study, place)
    trained = [step for step in steps.values() if not parts_of(step.fit)]
    total = sum(minutes(step.fit) for step in trained) + PREDICTION * sum(bool(step.cells) for step in steps.values())
    needed = {name for step in steps.values() for name in step.fit.data.set_names if name in (*CATALOGUE, LARGER)}
    missing = sorted(name for name in needed if not place.store.has(name, "train"))
    lacks = f"; not here: {', '.join(missing)}" if missing else ""
    left = sum(len(step.cells) for step in steps.values())
    return f"{left} of {len(item.cells)} cells left, {len(trained)} networks, about {total:.0f} min{lacks}", total


def beside(runs: Path) -> subprocess.Popen[bytes]:
    """Packs and the report, while others train; on the CPU, and in this machine's spare time."""
    demur = f"nice {sys.executable} -m demur"
    parts = [
        f"{demur} pack {runs.parent / 'packs'} --runs {runs} --overwrite",
        f"{demur} report {STORED} {runs} --out {runs.parent / 'report'} --overwrite",
    ]
    log = (runs.parent / "beside.log").open("ab")
    return subprocess.Popen(["sh", "-c", "; ".join(parts)], stdout=log, stderr=log)


def told(ended: int, total: int, step: str) -> None:
    print(f"  {ended} of {total}: {step}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", type=int, help="from 1; all of them where none is named")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    place = Place(given.runs, Store(given.data), given.device, jobs=given.jobs)
    engine = one_by_one if given.jobs == 1 else partial(processes, jobs=given.jobs)
    known = items()
    if wrong := [number for number in given.items if not 1 <= number <= len(known)]:
        parser.error(f"there is no item {wrong[0]}; they are 1 to {len(known)}")
    whole, following = 0.0, None
    for number in given.items or range(1, len(known) + 1):
        item = known[number - 1]
        study = Study(f"item {number}", not_stored(item.cells, place.store), resolve, FURTHER)
        said, left = describe(item, study, place)
        print(f"{number}. {item.title}: {said}", flush=True)
        whole += left
        if given.dry_run:
            continue
        began = time.perf_counter()
        for failure in run_cells(study, place, told, engine):
            print(f"  failed: {failure.cell.task} {failure.cell.method}: {failure.reason}", file=sys.stderr)
        print(f"  {(time.perf_counter() - began) / 60:.1f} min", flush=True)
        if following is not None:
            following.wait()
        following = beside(given.runs)
    if following is not None:
        following.wait()
    print(f"about {whole:.0f} min in all")


if __name__ == "__main__":
    main()
