"""Several processes on this machine, each with a GPU of its own where there are several."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from demur.study.cells import Place
from demur.study.engine import Outcome, Step, Workers, attempt


def most_jobs(place: Place) -> int:
    """One a GPU, else as many as the machine has cores for."""
    if place.device.startswith("cuda"):
        return torch.cuda.device_count() if place.device == "cuda" else 1
    return max(1, (os.cpu_count() or 1) // place.threads)


@contextmanager
def processes(place: Place, jobs: int) -> Iterator[Workers]:
    """An engine of so many processes, started when they are needed and ended with the block."""
    crew = Crew(place, jobs)
    try:
        yield crew
    finally:
        crew.end()


@dataclass(frozen=True)
class Worker:
    process: SpawnProcess
    connection: Connection
    place: Place


class Crew:
    """One that dies takes its step with it, nothing else, and is replaced."""

    def __init__(self, place: Place, jobs: int) -> None:
        several = place.device == "cuda" and torch.cuda.device_count() > 1
        devices = [f"cuda:{job % torch.cuda.device_count()}" if several else place.device for job in range(jobs)]
        self.capacity = jobs
        self.vacant = [replace(place, device=device) for device in reversed(devices)]
        self.idle: list[Worker] = []
        self.busy: dict[Connection, tuple[Worker, Step]] = {}

    def start(self, step: Step) -> None:
        worker = self._idle_worker() or engage(self.vacant.pop())
        worker.connection.send(step)
        self.busy[worker.connection] = (worker, step)

    def _idle_worker(self) -> Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.is_alive():
                return worker
            self.vacant.append(worker.place)
        return None

    def next(self) -> tuple[Step, Outcome]:
        ready = wait(list(self.busy))
        connection = next(connection for connection in self.busy if connection in ready)
        worker, step = self.busy.pop(connection)
        try:
            outcome = connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            self.vacant.append(worker.place)
            died = f"its process ended with exit code {worker.process.exitcode}"
            return step, Outcome(f"{died}; -9 is often for want of memory, so try fewer jobs", f"{died}\n")
        self.idle.append(worker)
        return step, outcome

    def end(self) -> None:
        for worker, _ in self.busy.values():
            worker.process.terminate()
        for worker in [*self.idle, *(worker for worker, _ in self.busy.values())]:
            worker.connection.close()  # which whoever is idle takes for the end
            worker.process.join()


def engage(place: Place) -> Worker:
    # a fork would inherit threads and a GPU that cannot be used twice
    context = get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=serve, args=(child_end, place), daemon=True)
    process.start()
    child_end.close()  # so that its end is the end of the connection
    return Worker(process, parent_end, place)


def serve(connection: Connection, place: Place) -> None:
    """Attempt what is asked for, as long as anybody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted ends us
    threading.Thread(target=end_with_parent, daemon=True).start()
    with suppress(EOFError):
        while True:
            connection.send(attempt(connection.recv(), place))


def end_with_parent() -> None:
    """Not to train on, holding locks, for a study that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
