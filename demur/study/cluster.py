"""A Ray cluster. Its nodes need demur, the data sets and what a study of one's own is written in, under the same paths
as here; the results come here.

Where a node sees the folder of results, as on a shared file system, it works there, and a step that is lost with its
node goes on elsewhere from its checkpoint. Where it does not, what a step needs is sent along and what it made is sent
back. Nothing lives on a node alone.
"""

import logging
import math
import pickle
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from demur.files import locked, replacing
from demur.study.cells import Place
from demur.study.engine import Outcome, Step, Workers, attempt
from demur.study.records import RECORD
from demur.tasks import Store

RETRIES = 3  # of a step whose worker or node was lost

Files = Mapping[str, bytes]


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Of the logger of that name errors alone are heard in the block."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def connect(address: str | None = None) -> Iterator[Any]:
    """Ray: the cluster at the address, else one that runs here, else one made for the block."""
    try:
        import ray
    except ImportError:
        raise ValueError("the engine 'ray' needs Ray; install it with: pip install 'demur[ray]'") from None
    if address not in (None, "auto", "local"):
        check_answers(address)
    ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def cluster(place: Place, address: str | None = None) -> Iterator[Workers]:
    """An engine of Ray tasks."""
    with connect(address) as ray:
        mark = place.runs.absolute() / f".seen-{uuid.uuid4().hex}"
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        try:
            yield Tasks(with_resources(place, ray.cluster_resources()), mark)
        finally:
            mark.unlink()


def check_answers(address: str) -> None:
    """Within seconds; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); it is HOST:PORT, or auto") from None


def with_resources(place: Place, resources: Mapping[str, float]) -> Place:
    """The place as a node sees it, if the cluster has what it takes."""
    device = cluster_device(place.device, resources)
    if resources.get("CPU", 0) < place.threads:
        raise ValueError(f"threads {place.threads} are more than the Ray cluster's {resources.get('CPU', 0):g} CPUs")
    cache = place.store.cache
    store = Store(place.store.root.absolute(), None if cache is None else cache.absolute())
    return replace(place, runs=place.runs.absolute(), store=store, device=device)


def cluster_device(device: str, resources: Mapping[str, float], workers: int = 1) -> str:
    """`cpu` or `cuda`, of which each worker gets one; `auto` is `cuda` where the cluster has enough of them."""
    gpus = resources.get("GPU", 0)
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device {device!r} is not for a cluster, which hands out its GPUs; say cpu, cuda or auto")
    if device == "cuda" and gpus < workers:
        needed, had = "a GPU" if workers == 1 else f"{workers} GPUs", f"{gpus:g}" if gpus else "none"
        raise ValueError(f"device 'cuda' needs {needed}, and the Ray cluster has {had}; say cpu or auto")
    return "cuda" if device != "cpu" and gpus >= workers else "cpu"


class Tasks:
    capacity = math.inf  # Ray makes them wait until there is room

    def __init__(self, place: Place, mark: Path) -> None:
        import ray

        gpus = 1 if place.device == "cuda" else 0
        self.place, self.mark = place, mark
        self.work = ray.remote(num_cpus=place.threads, num_gpus=gpus, max_retries=RETRIES)(work)
        self.running: dict[Any, Step] = {}
        self.sent: dict[str, Any] = {}  # what others need, once however many they are

    def start(self, step: Step) -> None:
        import ray

        for name in step.needs:
            if name not in self.sent:
                self.sent[name] = ray.put(read_folder(self.place.runs / name))
        folders = {name: self.sent[name] for name in step.needs}
        folders[step.name] = ray.put(read_folder(self.place.runs / step.name))
        content = pickle.dumps(step), tuple(folder or str(Path.cwd()) for folder in sys.path)
        self.running[self.work.remote(content, self.place, self.mark, folders)] = step

    def next(self) -> tuple[Step, Outcome]:
        import ray

        (ended, *_), _ = ray.wait(list(self.running))
        step = self.running.pop(ended)
        try:
            outcome, files = ray.get(ended)
        except ray.exceptions.RayError as error:
            return step, Outcome(f"Ray gave it up: {type(error).__name__}", f"{error}\n")
        if files:
            write_folder(self.place.runs / step.name, files)
        return step, outcome


def work(
    content: tuple[bytes, tuple[str, ...]], place: Place, mark: Path, folders: Mapping[str, Any]
) -> tuple[Outcome, Files]:
    """On a node: attempt the step, where its results belong if they are within sight; else what is to be sent there."""
    import ray

    step = unpickle(*content)
    if mark.exists():
        return attempt(step, place), {}
    return attempt_apart(step, place, {name: ray.get(files) for name, files in folders.items()})


def unpickle(step: bytes, path: Sequence[str]) -> Step:
    """A step may name what is in a module of the user's, which is unpacked where whoever sent it unpacked it."""
    sys.path.extend(folder for folder in path if folder not in sys.path)
    unpacked: Step = pickle.loads(step)
    return unpacked


def attempt_apart(step: Step, place: Place, folders: Mapping[str, Files]) -> tuple[Outcome, Files]:
    """Attempt the step with nothing but these folders, and return the files of its own."""
    with TemporaryDirectory(prefix="demur-") as runs:
        for name, files in folders.items():
            write_folder(Path(runs) / name, files)
        outcome = attempt(step, replace(place, runs=Path(runs)))
        return outcome, read_folder(Path(runs) / step.name)


def read_folder(folder: Path) -> Files:
    """The files that are whole."""
    whole = [path for path in folder.glob("*") if path.name != ".lock" and path.suffix != ".part"]
    return {path.name: path.read_bytes() for path in whole}


def write_folder(folder: Path, files: Files) -> None:
    """The record last: a folder with a record is whole."""
    with locked(folder):
        for name in sorted(files, key=lambda name: name == RECORD):
            with replacing(folder / name) as unfinished:
                unfinished.write_bytes(files[name])
