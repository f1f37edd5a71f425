"""Running many cells: one after another, or several at a time, without repeating or corrupting each other's work."""

import fcntl
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import demur
from demur.checkpoint import checkpointed
from demur.inference import INFERENCES
from demur.method import method_name
from demur.posterior import Posterior, load, save
from demur.predictive import predict
from demur.study.conventions import Data, Fit, resolve
from demur.study.grid import Cell
from demur.study.results import (
    POSTERIOR,
    Result,
    describe,
    folder_name,
    is_done,
    read_record,
    read_result,
    write_record,
    write_result,
)
from demur.tasks import Store, Task
from demur.tasks import load as load_task

CHECKPOINT = "checkpoint.safetensors"
SECONDS = "seconds"  # what it took to fit, parts included
NAMES = {type(build()): name for name, build in INFERENCES.items()}


@dataclass(frozen=True)
class Place:
    """Where a study runs: results, data sets, device."""

    runs: Path
    store: Store
    device: str = "cpu"
    keep_posteriors: bool = True

    def folder(self, cell: Cell) -> Path:
        return self.runs / folder_name(resolve(cell, self.store))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside; a lock dies with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@lru_cache(maxsize=2)
def load_data(data: Data, store: Store, device: str) -> Task:
    return load_task(
        data.name,
        store=store,
        outliers=data.outliers,
        limit=data.limit,
        validation=data.validation,
        inside=data.inside,
        outside=data.outside,
    ).to(device)


def parts_of(fit: Fit) -> list[Fit]:
    """The fits that this one is made from. Only Laplace looks at validation data, so others share theirs."""
    data = replace(fit.data, validation="train")
    likelihood = fit.method.partition("+")[2] or "plain"
    return [
        replace(fit, method=method_name(NAMES[type(part)], likelihood), data=data, inference=part, recipe=recipe)
        for part, recipe in fit.inference.parts(fit.recipe)
    ]


def networks_of(cells: Sequence[Cell], store: Store) -> set[str]:
    """The folders of all networks that must be trained, each counted once however many cells share it."""

    def leaves(fit: Fit) -> Iterator[Fit]:
        parts = parts_of(fit)
        if not parts:
            yield fit
        for part in parts:
            yield from leaves(part)

    return {folder_name(leaf) for cell in cells for leaf in leaves(resolve(cell, store))}


def fitted(fit: Fit, place: Place) -> Posterior:
    """The posterior: read, or fitted from its parts, continuing where an earlier process was stopped."""
    folder = place.runs / folder_name(fit)
    task = load_data(fit.data, place.store, place.device)
    likelihood = fit.likelihood(task.num_classes)
    with locked(folder):
        if (folder / POSTERIOR).exists():
            return load(folder / POSTERIOR, partial(fit.network, likelihood.num_outputs), place.device)
        parts = [fitted(part, place) for part in parts_of(fit)]
        started = time.perf_counter()
        with checkpointed(folder / CHECKPOINT):
            posterior = fit.inference.fit(fit.network, likelihood, task, fit.recipe, parts)
        seconds = time.perf_counter() - started
        before = [float((place.runs / folder_name(part) / SECONDS).read_text("utf-8")) for part in parts_of(fit)]
        (folder / SECONDS).write_text(f"{seconds + sum(before)}\n", "utf-8")
        if place.keep_posteriors or not parts:
            save(posterior, folder / POSTERIOR)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return posterior


def run_cell(cell: Cell, place: Place) -> Path:
    """Make the cell's folder whole, or leave it if it is."""
    fit = resolve(cell, place.store)
    folder = place.runs / folder_name(fit)
    if not is_done(folder):
        posterior = fitted(fit, place)
        task = load_data(fit.data, place.store, place.device)
        likelihood = fit.likelihood(task.num_classes)
        with locked(folder):
            if not is_done(folder):
                started = time.perf_counter()
                inputs = {"test": task.test.x, **{f"ood/{name}": x for name, x in task.ood_test.items()}}
                sets = {name: predict(posterior, likelihood, x) for name, x in inputs.items()}
                record = {
                    "fit": describe(fit),
                    "sets": list(sets),
                    "classes": task.num_classes,
                    "training_inputs": len(task.train),
                    "trained_with": None if likelihood.outside is None else task.trained_with,
                    "missing": list(task.missing),
                    "notes": dict(task.notes),
                    "seconds": {
                        "fit": float((folder / SECONDS).read_text("utf-8")),
                        "predict": time.perf_counter() - started,
                    },
                    **circumstances(place.device),
                }
                write_result(folder, cell, task.test.y, sets, record)
    with locked(folder):
        record = read_record(folder)
        asked = describe(cell)
        asked.pop("is")
        if asked not in record["cells"]:
            write_record(folder, {**record, "cells": [*record["cells"], asked]})
    return folder


def circumstances(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or "CPU"
    commit = subprocess.run(
        ["git", "-C", str(Path(demur.__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "versions": {"demur": demur.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit.stdout.strip() or None,
    }


@dataclass(frozen=True)
class Failure:
    cell: Cell
    reason: str


def run_cells(
    cells: Sequence[Cell], place: Place, after: Callable[[int, int, Cell], None], jobs: int = 1
) -> list[Failure]:
    """Run what is not done yet; a cell that fails does not stop the others. `after` is told how many are done."""
    failures: list[Failure] = []
    if jobs == 1:
        outcomes: Iterator[list[Failure]] = (attempt(cell, place) for cell in cells)
        pool = None
    else:
        threads = max(1, (os.cpu_count() or 1) // jobs)  # more threads than cores would be slower than one process
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,))
        outcomes = pool.map(attempt, cells, [place] * len(cells))
    try:
        for number, (cell, failed) in enumerate(zip(cells, outcomes, strict=True), start=1):
            failures += failed
            after(number, len(cells), cell)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return failures


def attempt(cell: Cell, place: Place) -> list[Failure]:
    try:
        run_cell(cell, place)
    except (ValueError, ArithmeticError, RuntimeError, OSError) as error:
        folder = place.folder(cell)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.txt").write_text(f"{type(error).__name__}: {error}\n", "utf-8")
        return [Failure(cell, f"{error} (log: {folder / 'log.txt'})")]
    return []


def seconds_left(cells: Sequence[Cell], place: Place) -> str:
    """What the cells that are not done will take, going by those that are: of the same method and task, or any."""
    known: dict[tuple[str, str], list[float]] = {}
    waiting = []
    for cell in cells:
        folder = place.folder(cell)
        if is_done(folder):
            seconds = sum(read_record(folder)["seconds"].values())
            known.setdefault((cell.task, cell.method), []).append(seconds)
            known.setdefault((cell.task, ""), []).append(seconds)
        else:
            waiting.append(cell)
    guesses = [known.get((cell.task, cell.method)) or known.get((cell.task, "")) for cell in waiting]
    if not all(guesses):
        return "how long it takes is known once one cell of each task is done" if waiting else "nothing is left to do"
    total = sum(sum(guess) / len(guess) for guess in guesses if guess)
    return f"about {total / 60:.1f} minutes left" if waiting else "nothing is left to do"


def results_of(cells: Sequence[Cell], place: Place) -> list[Result]:
    """What is done of the cells, in their order."""
    folders = [(place.folder(cell), cell) for cell in cells]
    return [read_result(folder, cell) for folder, cell in folders if is_done(folder)]
