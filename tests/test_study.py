"""A study: cells that share networks, that are made once, and that survive being killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from demur import checkpoint
from demur.files import LOCK
from demur.likelihoods import none_class
from demur.metrics import brier
from demur.networks import mlp
from demur.paper import grid
from demur.paper.conventions import none_class_averaged_together, resolve
from demur.paper.further import plane
from demur.paper.grid import BY_DEFAULT, CONVENTIONS, PAPER_ROWS, STUDIES, select
from demur.paper.studies import study_named
from demur.posterior import Mixture
from demur.provenance import describe_code, digest
from demur.study import cells as making
from demur.study import engine
from demur.study import processes as processing
from demur.study.cells import Place, load_data, networks_of
from demur.study.cells import run_cell as run_fit
from demur.study.engine import LOG, plan, results_of, run_cells
from demur.study.fits import Data, folder_name
from demur.study.grid import Cell, Settings, Study
from demur.study.processes import Crew, most_jobs, processes
from demur.study.results import PREDICTIONS, pack, read_results, unpack, write_further
from demur.study.run import row_of
from demur.tasks import IMAGES, Store
from demur.training import EpochReport, observed
from tests.test_cli import demur_command, in_fork

NOWHERE = Store(Path("nowhere"))
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision")  # one epoch promises nothing


by_signals = pytest.mark.skipif(os.name == "nt", reason="kills processes by signals")
PAPER = study_named("all")


def of(cells: Iterable[Cell]) -> Study:
    """A study of these, with what the paper has for them."""
    return PAPER.of(cells)


def folder_of(cell: Cell, place: Place) -> Path:
    return place.folder(resolve(cell, place.store))


def run_cell(cell: Cell, place: Place) -> Path:
    return run_fit(cell, resolve(cell, place.store), place, PAPER.further)


def nothing(number: int, total: int, step: str) -> None:
    """Nobody watches."""


def deadly(outputs: int) -> torch.nn.Module:
    """A network that takes its process with it, as one does that is too large."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def lethal(settings: Settings) -> Settings:
    """Its `la+ml` is."""
    return {**settings, ("la", "ml"): replace(settings[BY_DEFAULT], network=deadly)}


def bytes_of_predictions(runs: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in runs.glob(f"*/{PREDICTIONS}")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "runs", NOWHERE)


def quick(*methods: str) -> list[Cell]:
    return [Cell("digits", method, epochs=1, limit=200) for method in methods]


def test_the_papers_rows_share_networks():
    """Five members, four likelihoods beside plain, five of VB."""
    assert len(networks_of(of(select("digits")), NOWHERE)) == 5 + 4 + 5
    assert [cell.method for cell in select("digits")] == list(PAPER_ROWS)


def test_conventions_share_what_they_can():
    for method in ("map", "map+nc", "map+ml", "de", "vb+nc"):
        ours, theirs = (
            folder_name(resolve(Cell("mnist", method, convention=c, outliers="smooth"), NOWHERE))
            for c in ("corrected", "published")
        )
        assert (ours == theirs) == (method != "vb+nc"), method
    both = [Cell("mnist", "la", convention=c, outliers="smooth") for c in ("corrected", "published")]
    assert len(networks_of(of(both), NOWHERE)) == 1


def test_clothes_alone_are_not_augmented_in_the_published_convention(data_root: Path, tmp_path: Path):
    for task, convention in product(IMAGES, CONVENTIONS):
        data = resolve(Cell(task, "map+nc", convention=convention, outliers="smooth"), NOWHERE).data
        assert data.augment == ((task, convention) != ("fashion_mnist", "published"))
    store = Store(data_root, cache=tmp_path)
    for augment in (True, False):
        loaded = load_data(Data("fashion_mnist", "smooth", 20, augment=augment), store, "cpu")
        assert (loaded.training.augment is not None) == augment


def test_a_folder_is_named_by_all_that_determines_it():
    cell = Cell("digits", "la+nc")
    names = {folder_name(resolve(c, NOWHERE)) for c in (cell, replace(cell, seed=1), replace(cell, epochs=3))}
    assert len(names) == 3
    assert folder_name(resolve(Cell("digits", "la+nc"), NOWHERE)) in names


def test_the_published_none_class_of_flipout_counts_both_kinds_half():
    logits, y = torch.randn(6, 4), torch.arange(6) % 3
    whole = none_class(3).log_prob(logits, y, logits)
    torch.testing.assert_close(none_class_averaged_together(3).log_prob(logits, y, logits), 0.5 * whole)


def test_cells_are_made_once_and_read_back(place: Place):
    cells = quick("map", "la+nc")
    folder_of(cells[0], place).mkdir(parents=True)
    (folder_of(cells[0], place) / LOG).write_text("of an earlier try")
    assert run_cells(of(cells), place, nothing) == []
    assert not list(place.runs.glob(f"*/{LOG}"))
    stamps = {path: path.stat().st_mtime_ns for path in place.runs.rglob("*.safetensors")}
    assert run_cells(of(cells), place, nothing) == []
    assert stamps == {path: path.stat().st_mtime_ns for path in place.runs.rglob("*.safetensors")}
    results = results_of(of(cells), place)
    assert [result.cell for result in results] == cells
    assert [row_of(result).method for result in results] == ["map", "la+nc"]
    assert brier(results[1].test, results[1].y) == row_of(results[1]).metrics["brier"]
    assert {result.cell for result in read_results(place.runs)} == set(cells)


def test_a_study_leaves_the_number_of_threads_as_it_was(place: Place):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert not run_cells(of(quick("map")), place, nothing)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_plan_has_every_folder_once_and_after_those_it_needs():
    cells = [replace(cell, convention=c) for cell in select("digits") for c in ("corrected", "published")]
    steps = list(plan(of(cells), Place(Path("nowhere"), NOWHERE)).values())
    assert sum(len(step.cells) for step in steps) == len(cells)
    seen: set[str] = set()
    for step in steps:
        assert set(step.needs) <= seen
        assert step.name not in seen
        seen.add(step.name)
    assert networks_of(of(cells), NOWHERE) == {step.name for step in steps if not step.needs}


def test_what_fails_stops_only_what_needs_it(place: Place):
    """The network of `map` fails once; `la`, which is made from it, is not even tried."""
    cells = [Cell("mnist", "la"), Cell("mnist", "map"), *quick("map")]
    said: list[str] = []
    failures = run_cells(of(cells), place, lambda number, total, step: said.append(f"{number} of {total}: {step}"))
    assert {failure.cell for failure in failures} == set(cells[:2])
    for failure in failures:
        assert "demur data get mnist" in failure.reason
        log = folder_of(failure.cell, place) / LOG
        assert str(log) in failure.reason
        assert "Traceback" in log.read_text()
    assert len(results_of(of(cells), place)) == 1
    assert said == [
        "1 of 3: mnist map, seed 0, corrected: failed",
        "2 of 3: mnist la, seed 0, corrected: failed",
        "3 of 3: digits map, seed 0, corrected",
    ]


class Pretended:
    """Workers that do nothing: the step that was started last ends first, and those of `failing` fail."""

    def __init__(self, capacity: int, failing: Iterable[str]) -> None:
        self.capacity, self.failing = capacity, set(failing)
        self.busy: list[engine.Step] = []
        self.started: list[engine.Step] = []
        self.done: set[str] = set()

    def start(self, step: engine.Step) -> None:
        assert set(step.needs) <= self.done
        self.busy.append(step)
        self.started.append(step)
        assert len(self.busy) <= self.capacity

    def next(self) -> tuple[engine.Step, engine.Outcome]:
        step = self.busy.pop()
        self.done.add(step.name)
        return step, engine.Outcome("no luck" if step.name in self.failing else None)


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_no_step_begins_before_what_it_needs_and_none_at_all_where_that_failed(capacity: int, place: Place):
    study = of(select("digits"))
    steps = plan(study, place)
    failing = [name for name, step in steps.items() if not step.needs][::2]
    hence = {name for name, step in steps.items() if set(step.needs) & set(failing)}
    assert 0 < len(hence) < len(steps) - len(failing)
    workers, counted = Pretended(capacity, failing), []
    failures = run_cells(
        study, place, lambda number, total, _: counted.append((number, total)), lambda _: nullcontext(workers)
    )
    assert {step.name for step in workers.started} == set(steps) - hence
    assert len(workers.started) == len(steps) - len(hence)
    assert {failure.cell for failure in failures} == {c for name in {*failing, *hence} for c in steps[name].cells}
    assert len(failures) == len({failure.cell for failure in failures})
    assert all("no luck" in failure.reason for failure in failures)
    assert len(counted) == len(steps)
    assert counted[-1] == (len(steps), len(steps))


def test_a_log_that_cannot_be_written_is_said_so(tmp_path: Path):
    (tmp_path / "file").touch()
    assert engine.write_log(tmp_path / "file" / "cell", "why").startswith("no log could be written: ")


def test_the_time_left_goes_by_cells_that_are_done(place: Place):
    """By those of the method, else by all of the task; with damaged ones still to be made; divided among the jobs."""
    first, second = quick("map", "vb")
    unknown = "how long it takes is known once one cell of each task is done"
    assert engine.seconds_left(of([first, second]), place) == unknown
    record = run_cell(first, place) / "cell.json"
    assert engine.seconds_left(of([first]), place) == "nothing is left to do"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": {"fit": 500.0, "predict": 100.0}}))
    assert engine.seconds_left(of([first, second]), place) == "about 10.0 minutes left"
    assert engine.seconds_left(of([first, second, *quick("la")]), place, jobs=4) == "about 5.0 minutes left"
    record.write_text("[]")
    assert engine.seconds_left(of([first]), place) == unknown


def test_there_are_as_many_jobs_as_gpus_or_as_cores_for_their_threads(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    cpu = replace(place, device="cpu")
    assert [most_jobs(replace(cpu, threads=threads)) for threads in (1, 3, 4, 8, 9)] == [8, 2, 2, 1, 1]
    assert [most_jobs(replace(place, device=device)) for device in ("cuda", "cuda:1")] == [3, 1]
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert most_jobs(cpu) == 1


@by_signals
def test_several_processes_make_the_same_bytes_and_one_that_dies_stops_no_other(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    alone = Place(tmp_path / "alone", NOWHERE)
    cells = quick("map", "la+nc", "vb", "la+ml")
    assert run_cells(of(cells), alone, nothing) == []
    monkeypatch.setattr(grid, "SETTINGS", {"digits": lethal(grid.DIGITS)})
    (failure,) = run_cells(of(cells), place, nothing, partial(processes, jobs=2))
    assert failure.cell == cells[3]
    assert "exit code -9; -9 is often for want of memory, so try fewer jobs" in failure.reason
    log = folder_of(cells[3], place) / LOG
    assert str(log) in failure.reason
    part, said = log.read_text().split(" failed:\n")
    assert said == (place.runs / part / LOG).read_text() == "its process ended with exit code -9\n"
    monkeypatch.undo()
    assert run_cells(of(cells), place, nothing, partial(processes, jobs=2)) == []
    assert bytes_of_predictions(place.runs) == bytes_of_predictions(alone.runs)


@by_signals
def test_a_process_works_on_until_it_dies_or_all_is_done(place: Place):
    fits = [resolve(cell, place.store) for cell in quick("map", "vb")]
    steps = [engine.Step(folder_name(fit), fit, (), ()) for fit in fits]
    with processes(place, jobs=1) as crew:

        def worker_of(step: engine.Step) -> SpawnProcess:
            crew.start(step)
            ((worker, _),) = crew.busy.values()
            done, outcome = crew.next()
            assert (done, outcome.failed) == (step, None)
            return worker.process

        first = worker_of(steps[0])
        assert worker_of(steps[1]) is first
        first.kill()
        first.join()
        last = worker_of(steps[0])
        assert last.is_alive()
    assert not last.is_alive()


def test_a_worker_attempts_what_it_is_asked_until_nobody_asks_and_dies_with_its_parent(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """As in a process of its own; its parent is pretended."""
    fit = resolve(quick("map")[0], place.store)
    step, outcomes, ends = engine.Step(folder_name(fit), fit, (), ()), list[engine.Outcome](), list[int]()
    dies, interrupts = threading.Event(), list[object]()
    monkeypatch.setattr(processing, "parent_process", lambda: SimpleNamespace(join=dies.wait))
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(signal, "signal", lambda *given: interrupts.append(given))
    here, there = Pipe()

    def ask() -> None:
        with here:
            for _ in range(2):
                here.send(step)
                outcomes.append(here.recv())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    before = {*threading.enumerate()}
    processing.serve(there, place)
    assert [outcome.failed for outcome in outcomes] == [None, None]
    assert (place.runs / step.name / making.POSTERIOR).exists()
    assert interrupts == [(signal.SIGINT, signal.SIG_IGN)]
    (watch,) = {*threading.enumerate()} - before
    assert watch.daemon  # it does not keep a process that is done
    assert ends == []
    dies.set()
    watch.join(60)
    assert len(ends) == 1


def hesitant(outputs: int) -> torch.nn.Module:
    warnings.warn("careful", stacklevel=2)
    return mlp(outputs, inputs=64, hidden=(8,))


def test_what_a_step_warns_of_is_said_with_its_name(place: Place, monkeypatch: pytest.MonkeyPatch):
    setting = replace(grid.DIGITS[BY_DEFAULT], network=hesitant)
    monkeypatch.setattr(grid, "SETTINGS", {"digits": {BY_DEFAULT: setting}})
    with pytest.warns(UserWarning, match=r"careful \(digits map, seed 0, corrected\)"):
        assert run_cells(of(quick("map")), place, nothing) == []


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    def devices(device: str) -> list[str]:
        return [place.device for place in reversed(Crew(Place(Path(), NOWHERE, device), jobs=3).vacant)]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices("cuda") == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices("cuda:1") == ["cuda:1"] * 3
    assert devices("cpu") == ["cpu"] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices("cuda") == ["cuda"] * 3


FOREVER = """
import sys
from pathlib import Path
from demur.paper.studies import study_named
from demur.study.engine import Place, plan
from demur.study.grid import Cell
from demur.study.processes import processes
from demur.tasks import Store
place = Place(Path(sys.argv[1]), Store(Path("nowhere")))
(step,) = plan(study_named("all").of([Cell("digits", "map", epochs=10**6)]), place).values()
with processes(place, jobs=1) as crew:
    crew.start(step)
    print(*[worker.process.pid for worker, _ in crew.busy.values()], flush=True)
    crew.next()
"""


@by_signals
def test_processes_end_with_a_study_that_is_killed(tmp_path: Path):
    study = subprocess.Popen([sys.executable, "-c", FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert study.stdout is not None
    worker = int(study.stdout.readline())
    while not list(tmp_path.glob("*/.lock")):
        time.sleep(0.1)
    study.kill()
    study.wait()
    study.stdout.close()
    until = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_packed_and_unpacked_predictions_are_the_same(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from demur.study import results

    monkeypatch.setattr(results, "SHARD", 2**18 + 2_000)  # so that a cell goes into several files
    cells = quick("map", "vb+nc")
    run_cells(of(cells), place, nothing)
    files = pack(place.runs, tmp_path / "packs")
    assert len(files) > 1
    assert all(len(load_file(file)) and file.stat().st_size <= results.SHARD for file in files)
    assert len(unpack(files, tmp_path / "elsewhere")) == 2
    for cell in cells:
        name = folder_of(cell, place).name
        first, second = (folder / name / PREDICTIONS for folder in (place.runs, tmp_path / "elsewhere"))
        ours, theirs = (read_results(path.parent.parent) for path in (first, second))
        assert all(torch.equal(a.test.probs, b.test.probs) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(ValueError, match="lack"):
        unpack(files[:1], tmp_path / "partly")


def study_that_dies(runs: Path, dies_after: int) -> None:
    """Print the first epoch that is run, and be killed after so many."""
    told: list[int] = []

    def tell(report: EpochReport) -> None:
        told.append(report.epoch)
        if len(told) == 1:
            print(report.epoch, flush=True)
        if len(told) == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.SECONDS_BETWEEN = 0.0
    cells = of([Cell("digits", method, epochs=20, limit=400) for method in ("map", "la+nc", "csghmc+nc")])
    with observed(tell):
        sys.exit(len(run_cells(cells, Place(runs, NOWHERE), nothing)))


@by_signals
def test_killed_three_times_it_goes_on_where_it_was_and_ends_with_the_same_bytes(tmp_path: Path):
    """Once in each network of 20 epochs: in the 10th of `map`, the 9th of `map+nc` and the 12th of `csghmc+nc`."""

    def first_epoch(runs: Path, dies_after: int = 0) -> int:
        done = in_fork(partial(study_that_dies, runs, dies_after))
        assert done.returncode == (-signal.SIGKILL if dies_after else 0), done.stderr
        return int(done.stdout)

    deaths = (10, 11 + 9, 12 + 12, 0)  # after so many epochs of any network
    assert [first_epoch(tmp_path / "killed", each) for each in deaths] == [1, 10, 9, 12]
    assert first_epoch(tmp_path / "whole") == 1
    ours, theirs = (bytes_of_predictions(tmp_path / name) for name in ("killed", "whole"))
    assert len(ours) == 3
    assert ours == theirs


def is_locked(folder: Path) -> bool:
    """Whether another could not enter now."""
    fcntl = pytest.importorskip("fcntl")
    with open(folder / LOCK, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_whoever_fits_predicts_or_writes_has_the_folder_for_itself(place: Place, monkeypatch: pytest.MonkeyPatch):
    cell, asked = Cell("blobs", "map", epochs=1, limit=200, further=("plane",)), []
    folder = folder_of(cell, place)

    def watched(name: str) -> None:
        real = getattr(making, name)

        def call(*arguments: object) -> object:
            asked.append(name)
            assert is_locked(folder)
            return real(*arguments)

        monkeypatch.setattr(making, name, call)

    steps = ("seconds_in", "save", "predict", "write_result", "write_further", "write_record")
    for name in steps:
        watched(name)
    run_cell(cell, place)
    run_cell(replace(cell, convention="published"), place)  # the same network: it is added to the record
    assert set(asked) == set(steps)
    assert not is_locked(folder)


def test_two_who_want_the_same_cell_fit_it_once(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The second comes while the first is fitting, and waits."""
    cell, fits, second_is_here = quick("map")[0], [], threading.Event()
    real = making.locked

    def locked(folder: Path) -> AbstractContextManager[None]:
        if threading.current_thread() is second:
            second_is_here.set()
        return real(folder)

    def seconds_in(path: Path) -> float:
        fits.append(threading.current_thread())
        if len(fits) == 1:
            second.start()
            assert second_is_here.wait(60)
        return 0.0

    second = threading.Thread(target=run_cell, args=(cell, place))
    monkeypatch.setattr(making, "locked", locked)
    monkeypatch.setattr(making, "seconds_in", seconds_in)
    run_cell(cell, place)
    second.join()
    assert fits == [threading.current_thread()]
    assert len(results_of(of([cell]), place)) == 1


def test_posteriors_are_kept_unless_they_can_be_made_from_their_networks(place: Place):
    plain, laplace = quick("map", "la")
    for keep in (False, True):
        at = replace(place, runs=place.runs / str(keep), keep_posteriors=keep)
        assert run_cells(of([plain, laplace]), at, nothing) == []
        assert [(folder_of(cell, at) / making.POSTERIOR).exists() for cell in (plain, laplace)] == [True, keep]
    assert Place(place.runs, NOWHERE).keep_posteriors


def test_a_checkpoint_goes_once_its_posterior_is_safe(place: Place, monkeypatch: pytest.MonkeyPatch):
    cell, real, there = quick("map")[0], making.save, list[bool]()
    file = folder_of(cell, place) / making.CHECKPOINT

    def save(*given: object) -> None:
        there.append(file.exists())
        real(*given)

    monkeypatch.setattr(making, "save", save)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    run_cell(cell, place)
    assert there == [True]
    assert not file.exists()


def test_seconds_before_a_stop_are_in_the_record(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(making, "seconds_in", lambda path: 1_000.0)
    record = json.loads((run_cell(quick("map")[0], place) / "cell.json").read_text())
    assert 1_000 < record["seconds"]["fit"] < 1_100


def test_a_cell_is_answered_whatever_further_inputs_others_asked_for(place: Place):
    cell = Cell("blobs", "la+nc", epochs=1)
    folder = run_cell(replace(cell, further=("plane",)), place)
    assert engine.is_answered(cell, folder)
    run_cell(cell, place)
    assert len(json.loads((folder / "cell.json").read_text())["cells"]) == 1
    assert engine.is_answered(replace(cell, convention="published"), folder) is False
    assert engine.is_answered(replace(cell, further=("shift",)), folder) is False
    (folder / "cell.json").write_text("[]")
    assert engine.is_answered(cell, folder) is False


def test_the_record_says_how_it_was_made(place: Place):
    folder = run_cell(quick("la+nc")[0], replace(place, jobs=3))
    record = json.loads((folder / "cell.json").read_text())
    assert (record["classes"], record["jobs"]) == (10, 3)
    assert record["fit"]["inference"]["is"] == "Laplace"
    assert record["fit"]["likelihood"]["weight"] == 1.0  # a default that nobody wrote down
    assert record["fit"]["recipe"]["epochs"] == 1
    assert record["threads"] == torch.get_num_threads()
    assert {"torch", "python", "demur"} == set(record["versions"])
    assert {"commit": record["commit"], "source": record["source"]} == describe_code()
    assert len(record["source"]) == 64
    assert record["tuning"]["chosen"] == record["prior_precision"]
    assert record["trained_with"] == load_data(Data("digits", limit=200), NOWHERE, "cpu").trained_with
    assert json.loads((run_cell(quick("map")[0], place) / "cell.json").read_text())["trained_with"] is None


def test_the_record_holds_the_hashes_of_its_data(place: Place, monkeypatch: pytest.MonkeyPatch):
    plain, exposed = (json.loads((run_cell(cell, place) / "cell.json").read_text()) for cell in quick("map", "la+nc"))
    task = load_data(Data("digits", limit=200), NOWHERE, "cpu")
    sets = {
        "train": task.training.train,
        "validation": task.training.validation,
        "outliers": task.training.outliers,
        "test": task.testing.test,
    }
    sets |= {f"ood/{name}": x for name, x in task.testing.ood.items()}
    assert exposed["data"] == {name: digest(value) for name, value in sets.items()}
    assert plain["data"] == {name: value for name, value in exposed["data"].items() if name != "outliers"}
    toy = json.loads((run_cell(Cell("blobs", "map", epochs=1, further=("plane",)), place) / "cell.json").read_text())
    assert toy["data"]["plane"] == digest(plane(Data("blobs"), NOWHERE))
    # what an older network was fitted with is not known
    folder = run_cell(quick("vb")[0], place)
    posterior = making.read_about
    monkeypatch.setattr(making, "read_about", lambda path: {k: v for k, v in posterior(path).items() if k != "data"})
    (folder / "cell.json").unlink()
    run_cell(quick("vb")[0], place)
    data = json.loads((folder / "cell.json").read_text())["data"]
    assert set(data) == {"test", *(name for name in sets if name.startswith("ood/"))}


@dataclass(frozen=True)
class Tuning:
    """As Laplace records it."""

    chosen: float
    rows: tuple[tuple[float, float, float], ...] = ((1.0, 0.3, 0.9), (10.0, 0.2, 0.95))
    at_map: tuple[float, float] = (0.25, 0.94)


@dataclass(frozen=True)
class Tuned:
    tuning: Tuning | None


def test_how_a_prior_was_tuned_is_told_of_every_part():
    one = {"chosen": 10.0, "rows": ((1.0, 0.3, 0.9), (10.0, 0.2, 0.95)), "at_map": (0.25, 0.94)}
    assert making.tuning_of(Tuned(Tuning(10.0))) == one
    assert making.chosen_in(one) == 10.0
    mixture = Mixture.__new__(Mixture)
    object.__setattr__(mixture, "parts", (Tuned(Tuning(10.0)), Tuned(None)))
    assert making.tuning_of(mixture) == [one, None]
    assert making.chosen_in([one, None]) == [10.0, None]
    object.__setattr__(mixture, "parts", (Tuned(None), Tuned(None)))
    assert making.tuning_of(mixture) is None
    assert making.chosen_in(None) is None


def test_the_command_says_what_it_does_and_its_exit_code_what_failed(tmp_path: Path):
    quickly = ("--epochs", "1", "--limit", "200", "--jobs", "1", "--runs", "runs")
    first = demur_command("study", "digits", "--method", "map", *quickly, cwd=tmp_path)
    assert first.returncode == 0
    # a slow machine is also told how far it is
    steps = [line for line in first.stderr.splitlines() if not line.startswith("demur: digits")]
    assert steps == ["step 1 of 1: digits map, seed 0, corrected"]
    again = demur_command("study", "digits", "--method", "map", *quickly, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert "1 done" in again.stdout
    assert again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]
    failed = demur_command(
        "study", "table1", "--task", "mnist", "--method", "map", "--data", ".", *quickly, cwd=tmp_path
    )
    assert failed.returncode == 2
    assert "demur data get mnist" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    asked = ("study", "recommended", "--task", "mnist", "--method", "map+nc", "--dry-run", "--data", str(tmp_path))
    planned = demur_command(*asked)
    last = planned.stdout.splitlines()[-1]
    assert last.startswith("not here yet, to train with: mnist, imagenet32, tiny_imagenet32; demur data get mnist im")


def test_predictions_that_are_damaged_are_named_and_the_command_fails(tmp_path: Path):
    asked = ("study", "digits", "--method", "map", "--method", "vb", "--epochs", "1", "--limit", "200", "--jobs", "1")
    assert demur_command(*asked, cwd=tmp_path).returncode == 0
    damaged = next(tmp_path.glob(f"runs/digits-map-*/{PREDICTIONS}"))
    os.truncate(damaged, 1000)
    again = demur_command(*asked, cwd=tmp_path)
    assert again.returncode == 1
    (said,) = again.stderr.splitlines()
    assert said.startswith(f"demur: {damaged.relative_to(tmp_path)} is damaged (")
    assert said.endswith(f"delete {damaged.parent.relative_to(tmp_path)}, and the study makes it anew")
    assert "vb" in again.stdout
    shutil.rmtree(damaged.parent)
    assert demur_command(*asked, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "spark"], "unknown engine 'spark'; known: local, ray"),
        (["--address", "here"], "add --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "a Ray cluster takes what it has room for"),
        (["--engine", "ray", "--address", "here", "--runs", "runs"], "no Ray cluster answers at address 'here'"),
    ],
)
def test_engines_that_cannot_be_are_refused(arguments: list[str], says: str, tmp_path: Path):
    done = demur_command("study", "digits", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"study": "tabel1"}, "unknown study 'tabel1'; did you mean 'table1'"),
        ({"study": "digits", "tasks": ["mnits"]}, "unknown task of study 'digits' 'mnits'"),
        ({"study": "digits", "tasks": ["sst"]}, "unknown task of study 'digits' 'sst'; known: digits"),
        ({"study": "digits", "methods": ["la+x"]}, "unknown method of study"),
        ({"study": "digits", "convention": "mine"}, "unknown convention of study"),
    ],
)
def test_nonsense_is_refused(arguments: dict, says: str):
    with pytest.raises(ValueError, match=says):
        select(**arguments)


def test_every_cell_of_every_study_can_be_resolved():
    for cells in STUDIES.values():
        for cell in cells:
            resolve(replace(cell, outliers=cell.outliers or "smooth"), NOWHERE)


def test_a_step_without_cells_makes_the_posterior_that_others_need(place: Place):
    (cell,) = quick("map")
    fit = resolve(cell, place.store)
    step = engine.Step(folder_name(fit), fit, (), ())
    assert step.further == {}
    assert engine.attempt(step, place).failed is None
    assert (place.folder(fit) / making.POSTERIOR).exists()
    assert not (place.folder(fit) / PREDICTIONS).exists()


def test_the_time_left_goes_by_cells_of_the_method_before_those_of_the_task(place: Place):
    done, of_another, waiting = quick("map", "vb", "la")
    for cell, seconds in ((done, 60.0), (of_another, 600.0)):
        record = run_cell(cell, place) / "cell.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": {"fit": seconds}}))
    other_seed = replace(done, seed=done.seed + 7)
    assert engine.seconds_left(of([done, of_another, other_seed]), place) == "about 1.0 minutes left"
    assert engine.seconds_left(of([done, of_another, waiting]), place) == "about 5.5 minutes left"


def test_values_of_scores_are_kept_where_a_study_asks(place: Place):
    """Beside what is there already, for every set, further ones included."""
    cell = Cell("blobs", "map", epochs=1, limit=200, further=("plane",))
    folder = run_cell(cell, place)
    before = (folder / PREDICTIONS).read_bytes()
    study = replace(of([cell]), scores=("energy", "knn"))
    assert run_cells(study, place, nothing) == []
    assert engine.is_answered(cell, folder, study.scores)
    assert (folder / PREDICTIONS).read_bytes() == before
    (result,) = results_of(study, place)
    fit = resolve(cell, place.store)
    network, task = making.read_or_fit(fit, place).network, load_data(fit.data, place.store, "cpu")
    inputs = [task.testing.test.x, *task.testing.ood.values()]
    for made, x in zip([result.test, *result.ood.values()], inputs, strict=True):
        energy = -network(x).double().logsumexp(1).numpy(force=True)
        np.testing.assert_allclose(made.scores["energy"], energy, rtol=1e-5, atol=1e-5)
        assert made.scores["knn"].shape == energy.shape
    assert {name for made in result.further["plane"].sets.values() for name in made.scores} == {"energy", "knn"}
    (failure,) = run_cells(replace(study, scores=("none",)), place, nothing)
    assert "score 'none' has no value for map: it needs a none class" in failure.reason


def test_scores_of_inputs_that_are_not_there_are_refused(place: Place):
    """Predicted with a store that had more than this one has."""
    (cell,) = quick("map")
    folder = run_cell(cell, place)
    write_further(folder, "counts", torch.empty(0).long(), {"counts/svhn/3": read_results(place.runs)[0].test})
    elsewhere = {"counts": lambda data, store: (torch.empty(0).long(), {"counts/svhn/2": torch.zeros(2, 64)})}
    study = replace(of([cell]), scores=("energy",), further=elsewhere)
    (failure,) = run_cells(study, place, nothing)
    assert (
        f"{folder} was predicted with counts/svhn/3, which {place.store.root} has not; name the data" in failure.reason
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors["test"].neg_(), "holds other values than were written"),
        (lambda tensors: tensors.pop("test"), "has no values of test"),
        (lambda tensors: tensors.update(test=tensors["test"][1:].clone()), "has no values of test"),
        (lambda tensors: tensors.update(test=tensors["test"].float()), "has no values of test"),
    ],
)
def test_scores_that_are_damaged_are_told(change: Callable, says: str, place: Place):
    (cell,) = quick("map")
    study = replace(of([cell]), scores=("energy",))
    assert run_cells(study, place, nothing) == []
    path, record = folder_of(cell, place) / "score-energy.safetensors", folder_of(cell, place) / "cell.json"
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    if "other" not in says:
        told = json.loads(record.read_text())
        told["digests"][path.name] = digest(tensors)
        record.write_text(json.dumps(told))
    with pytest.warns(UserWarning, match=f"left out: .*energy.safetensors is damaged .it {says}"):
        assert results_of(study, place) == []
