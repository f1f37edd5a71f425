"""Running many cells, without repeating or corrupting each other's work, whoever does it."""

import fcntl
import platform
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch

import demur
from demur.checkpoint import checkpointed, seconds_in
from demur.inference import INFERENCES
from demur.method import method_name
from demur.posterior import Posterior
from demur.posterior_file import load, save
from demur.predictive import predict
from demur.study.conventions import Data, Fit, resolve
from demur.study.further import FURTHER
from demur.study.grid import Cell, split_further
from demur.study.results import (
    POSTERIOR,
    Result,
    describe,
    folder_name,
    is_done,
    read_record,
    read_result,
    write_further,
    write_record,
    write_result,
)
from demur.tasks import Store, Task
from demur.tasks import load as load_task
from demur.training import of_start_up

CHECKPOINT, LOG = "checkpoint.safetensors", "log.txt"
SECONDS = "seconds"  # what it took to fit, parts and earlier tries included
NAMES = {type(build()): name for name, build in INFERENCES.items()}


@dataclass(frozen=True)
class Place:
    """Where a study runs: results, data sets, device.

    `threads` is a process's, and not what the machine has: the last bits of a sum depend on it.
    """

    runs: Path
    store: Store
    device: str = "cpu"
    keep_posteriors: bool = True
    threads: int = 1

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
    task = load_task(
        data.name,
        store=store,
        outliers=data.outliers,
        limit=data.limit,
        validation=data.validation,
        inside=data.inside,
        outside=data.outside,
    ).to(device)
    return task if data.augment else replace(task, augment=None)


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
        started = time.perf_counter() - seconds_in(folder / CHECKPOINT)
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
    if not is_done(folder, cell.further):
        add_further(cell, fit, place)
    with locked(folder):
        record = read_record(folder)
        if not is_among(cell, record):
            write_record(folder, {**record, "cells": [*record["cells"], asdict(cell)]})
    return folder


def is_answered(cell: Cell, folder: Path) -> bool:
    return is_done(folder, cell.further) and is_among(cell, read_record(folder))


def is_among(cell: Cell, record: Mapping[str, Any]) -> bool:
    """Whether the folder of this record has been asked for the cell; what further inputs it has is told elsewhere."""
    return asdict(cell) | {"further": None} in [asked | {"further": None} for asked in record["cells"]]


def add_further(cell: Cell, fit: Fit, place: Place) -> None:
    """Predict those of the cell's further inputs that are not there, with the posterior of a folder that is whole."""
    folder, posterior = place.runs / folder_name(fit), fitted(fit, place)
    likelihood = fit.likelihood(load_data(fit.data, place.store, place.device).num_classes)
    for kind in split_further(cell.further):
        with locked(folder):
            if not is_done(folder, kind):
                y, inputs = FURTHER[kind](fit.data, place.store)
                sets = {name: predict(posterior, likelihood, x.to(place.device)) for name, x in inputs.items()}
                write_further(folder, kind, y, sets)


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
class Step:
    """A folder to be made: a posterior from those of the folders that it `needs`, and predictions if cells ask."""

    name: str
    fit: Fit
    cells: tuple[Cell, ...]
    needs: tuple[str, ...]

    def __str__(self) -> str:
        asked = "+".join(sorted({cell.convention for cell in self.cells})) or "for others"
        outliers = f" with {self.fit.data.outliers}" if {cell.outliers for cell in self.cells} - {None} else ""
        return f"{self.fit.data.name} {self.fit.method}{outliers}, seed {self.fit.recipe.seed}, {asked}"


def plan(cells: Sequence[Cell], place: Place) -> dict[str, Step]:
    """What is not there yet, by folder; each comes after those it needs, and however many cells share it, once."""
    steps: dict[str, Step] = {}

    def add(fit: Fit, *cells: Cell) -> str:
        name = folder_name(fit)
        if name in steps:
            steps[name] = replace(steps[name], cells=(*steps[name].cells, *cells))
        elif (place.runs / name / POSTERIOR).exists():
            if cells:
                steps[name] = Step(name, fit, cells, ())
        else:
            needs = tuple(add(part) for part in parts_of(fit))
            steps[name] = Step(name, fit, cells, needs)
        return name

    for cell in cells:
        fit = resolve(cell, place.store)
        if not is_answered(cell, place.runs / folder_name(fit)):
            add(fit, cell)
    return steps


@dataclass(frozen=True)
class Outcome:
    """How a step ended: why it failed, if it did, in a sentence and at length, and what was noted meanwhile."""

    failed: str | None = None
    log: str = ""
    notes: tuple[str, ...] = ()


def attempt(step: Step, place: Place) -> Outcome:
    """Make the step's folder whole, whatever may happen."""
    torch.set_num_threads(place.threads)
    with warnings.catch_warnings(record=True) as caught:
        try:
            for cell in step.cells:
                run_cell(cell, place)
            if not step.cells:
                fitted(step.fit, place)
            failed, log = None, ""
        except Exception as error:
            failed, log = f"{type(error).__name__}: {error}", traceback.format_exc()
    notes = tuple(str(warning.message) for warning in caught if not of_start_up(warning.message))
    return Outcome(failed, log, notes)


class Workers(Protocol):
    """Those who attempt steps, at most `capacity` at a time."""

    @property
    def capacity(self) -> float: ...

    def start(self, step: Step) -> None: ...

    def next(self) -> tuple[Step, Outcome]:
        """Wait until one of the steps that were started has ended."""
        ...


class OneByOne:
    """This process, which shows every epoch to whoever observes training."""

    capacity = 1

    def __init__(self, place: Place) -> None:
        self.place = place

    def start(self, step: Step) -> None:
        self.step = step

    def next(self) -> tuple[Step, Outcome]:
        return self.step, attempt(self.step, self.place)


@contextmanager
def one_by_one(place: Place) -> Iterator[Workers]:
    yield OneByOne(place)


@dataclass(frozen=True)
class Failure:
    cell: Cell
    reason: str


def run_cells(
    cells: Sequence[Cell],
    place: Place,
    after: Callable[[int, int, str], None],
    engine: Callable[[Place], AbstractContextManager[Workers]] = one_by_one,
) -> list[Failure]:
    """Make what is not there yet; what fails stops only what needs it. `after` is told how many ended, and which."""
    waiting = plan(cells, place)
    running: set[str] = set()
    total = len(waiting)
    failures: list[Failure] = []

    def end(step: Step, outcome: Outcome) -> None:
        folder = place.runs / step.name
        for note in outcome.notes:
            warnings.warn(f"{note} ({step})", stacklevel=2)
        if outcome.failed is None:
            for stale in (LOG, CHECKPOINT):
                (folder / stale).unlink(missing_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOG).write_text(outcome.log, "utf-8")
            failures.extend(Failure(cell, f"{outcome.failed} (log: {folder / LOG})") for cell in step.cells)
        after(total - len(waiting) - len(running), total, f"{step}: failed" if outcome.failed else str(step))
        if outcome.failed is not None:
            hence = Outcome(f"{step}, failed: {outcome.failed}", f"{step.name} failed:\n{outcome.log}")
            for other in list(waiting.values()):
                if step.name in other.needs and other.name in waiting:
                    end(waiting.pop(other.name), hence)

    if waiting:
        with engine(place) as workers:
            while waiting or running:
                for step in list(waiting.values()):
                    if len(running) < workers.capacity and not any(n in waiting or n in running for n in step.needs):
                        running.add(waiting.pop(step.name).name)
                        workers.start(step)
                step, outcome = workers.next()
                running.remove(step.name)
                end(step, outcome)
    return failures


def seconds_left(cells: Sequence[Cell], place: Place, jobs: int = 1) -> str:
    """What the cells that are not done will take, going by those that are: of the same method and task, or any."""
    known: dict[tuple[str, str], list[float]] = {}
    waiting = []
    for cell in cells:
        folder = place.folder(cell)
        if is_done(folder, cell.further):
            seconds = sum(read_record(folder)["seconds"].values())
            known.setdefault((cell.task, cell.method), []).append(seconds)
            known.setdefault((cell.task, ""), []).append(seconds)
        else:
            waiting.append(cell)
    guesses = [known.get((cell.task, cell.method)) or known.get((cell.task, "")) for cell in waiting]
    if not all(guesses):
        return "how long it takes is known once one cell of each task is done" if waiting else "nothing is left to do"
    total = sum(sum(guess) / len(guess) for guess in guesses if guess) / jobs
    return f"about {total / 60:.1f} minutes left" if waiting else "nothing is left to do"


def results_of(cells: Sequence[Cell], place: Place) -> list[Result]:
    """What is done of the cells, in their order."""
    folders = [(place.folder(cell), cell) for cell in cells]
    return [read_result(folder, cell) for folder, cell in folders if is_done(folder, cell.further)]
