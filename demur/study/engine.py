"""Running many cells, without repeating or corrupting each other's work, whoever does it."""

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from demur.graphs import of_start_up
from demur.study.cells import CHECKPOINT, Place, is_answered, parts_of, read_or_fit, run_cell
from demur.study.fits import Fit, Further, folder_name
from demur.study.grid import Cell, Study
from demur.study.records import DamagedCell, leave_out, read_record
from demur.study.results import POSTERIOR, Result, is_done, read_result

LOG = "log.txt"


@dataclass(frozen=True)
class Step:
    """A folder to be made: a posterior from those of the folders that it `needs`, and predictions if cells ask.

    It is all that a worker is told: what the study is, it need not know.
    """

    name: str
    fit: Fit
    cells: tuple[Cell, ...]
    needs: tuple[str, ...]
    further: Mapping[str, Further] = field(default_factory=dict)
    scores: tuple[str, ...] = ()

    def __str__(self) -> str:
        conventions = "+".join(sorted({cell.convention for cell in self.cells})) or "for others"
        named = sorted({cell.outliers for cell in self.cells if cell.outliers})
        outliers = f" with {', '.join(named)}" if named else ""
        return f"{self.fit.data.name} {self.fit.method.name}{outliers}, seed {self.fit.recipe.seed}, {conventions}"


def plan(study: Study, place: Place) -> dict[str, Step]:
    """What is not there yet, by folder; each comes after those it needs, and however many cells share it, once."""
    steps: dict[str, Step] = {}
    further = dict(study.further)

    def add(fit: Fit, *cells: Cell) -> str:
        name = folder_name(fit)
        if name in steps:
            steps[name] = replace(steps[name], cells=(*steps[name].cells, *cells))
        elif (place.runs / name / POSTERIOR).exists():
            if cells:
                steps[name] = Step(name, fit, cells, (), further, study.scores)
        else:
            needs = tuple(add(part) for part in parts_of(fit))
            steps[name] = Step(name, fit, cells, needs, further, study.scores)
        return name

    for cell in study.cells:
        fit = study.resolve(cell, place.store)
        if not is_answered(cell, place.folder(fit), study.scores):
            add(fit, cell)
    return steps


@dataclass(frozen=True)
class Outcome:
    """How a step ended: why it failed, if it did, in a sentence and at length, and what was noted meanwhile."""

    failed: str | None = None
    log: str = ""
    notes: tuple[str, ...] = ()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def attempt(step: Step, place: Place) -> Outcome:
    """Make the step's folder whole, whatever may happen."""
    with _threads(place.threads), warnings.catch_warnings(record=True) as caught:
        try:
            for left, cell in enumerate(step.cells, 1 - len(step.cells)):
                run_cell(cell, step.fit, place, step.further, () if left else step.scores)  # of all that was asked
            if not step.cells:
                read_or_fit(step.fit, place)
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


Engine = Callable[[Place], AbstractContextManager[Workers]]


def run_cells(
    study: Study, place: Place, after: Callable[[int, int, str], None], engine: Engine = one_by_one
) -> list[Failure]:
    """Make what is not there yet; what fails stops only what needs it. `after` is told how many ended, and which."""
    return run_steps(plan(study, place), place, after, engine)


def run_steps(
    steps: Mapping[str, Step],
    place: Place,
    after: Callable[[int, int, str], None],
    engine: Engine = one_by_one,
    may_start: Callable[[Step], bool] = lambda step: True,
) -> list[Failure]:
    """Those of one plan or several, by folder, each after those that it needs; what may not start is left undone."""
    waiting = dict(steps)
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
            reason = f"{outcome.failed} ({write_log(folder, outcome.log)})"
            failures.extend(Failure(cell, reason) for cell in step.cells)
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
                    ready = not any(name in waiting or name in running for name in step.needs)
                    if len(running) < workers.capacity and ready and may_start(step):
                        running.add(waiting.pop(step.name).name)
                        workers.start(step)
                if not running:
                    break
                step, outcome = workers.next()
                running.remove(step.name)
                end(step, outcome)
    return failures


def write_log(folder: Path, log: str) -> str:
    """Where it is; a full disk, of which a log may tell, has no room for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text(log, "utf-8")
    except OSError as error:
        return f"no log could be written: {error}"
    return f"log: {folder / LOG}"


def seconds_left(study: Study, place: Place, jobs: int = 1) -> str:
    """What the cells that are not done will take, going by those that are: of the same method and task, or any."""
    known: dict[tuple[str, str], list[float]] = {}
    waiting = []
    for cell in study.cells:
        folder = place.folder(study.resolve(cell, place.store))
        try:
            done = is_done(folder, cell.further)
        except DamagedCell:
            done = False
        if done:
            seconds = sum(read_record(folder).seconds.values())
            known.setdefault((cell.task, cell.method), []).append(seconds)
            known.setdefault((cell.task, ""), []).append(seconds)
        else:
            waiting.append(cell)
    guesses = [known.get((cell.task, cell.method)) or known.get((cell.task, "")) for cell in waiting]
    if not all(guesses):
        return "how long it takes is known once one cell of each task is done" if waiting else "nothing is left to do"
    total = sum(sum(guess) / len(guess) for guess in guesses if guess) / jobs
    return f"about {total / 60:.1f} minutes left" if waiting else "nothing is left to do"


def results_of(study: Study, place: Place, left_out: Callable[[DamagedCell], None] = leave_out) -> list[Result]:
    """What is done of the cells, in their order, but damaged ones; by default they are warned of."""
    results = []
    for cell in study.cells:
        folder = place.folder(study.resolve(cell, place.store))
        try:
            if is_done(folder, cell.further):
                results.append(read_result(folder, cell))
        except DamagedCell as error:
            left_out(error)
    return results
