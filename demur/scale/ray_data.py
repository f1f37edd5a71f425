"""Fragments through Ray Data: workers read, answer and write, and what comes back is how many inputs there were.

Nodes need demur; the model is sent to them. What is lost with a node is answered again by another, under the same name.
"""

import hashlib
import math
import pickle
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from demur.classifier import Classifier
from demur.scale.answering import Engine, Job, Outcome, attempt
from demur.scale.fragments import Fragment
from demur.scale.parts import parts_in
from demur.study.cluster import cluster_device, connect, quiet

RESTARTS = 4  # of a worker that was killed, before it is given up
BLOCKS = 1024  # at most, into which the fragments are divided


def on_ray(model: Path, device: str = "auto", address: str | None = None) -> Engine:
    """An engine on the Ray cluster at the address, else on one that runs here, else on one made for it."""

    def engine(job: Job, fragments: Sequence[Fragment]) -> Iterator[Outcome]:
        files = model_files(model)
        if hash_files(files) != job.manifest.model:
            raise ValueError(f"{model} was replaced meanwhile; run the command again")
        with connect(address) as ray:
            import ray.data

            resources = ray.cluster_resources()
            own_gpu = cluster_device(device, resources) == "cuda"
            most_workers = resources["GPU"] if own_gpu else resources.get("CPU", 1)
            context = ray.data.DataContext.get_current()
            bars, context.enable_progress_bars = context.enable_progress_bars, False
            rows = [{"fragment": pickle.dumps(fragment)} for fragment in fragments]
            given = ray.data.from_items(rows, override_num_blocks=min(len(rows), BLOCKS))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of `max_restarts`, which nothing replaces yet
                answered = given.map(
                    Answering,
                    fn_constructor_args=([ray.put(files)], job, "cuda" if own_gpu else "cpu"),
                    num_cpus=1,
                    num_gpus=int(own_gpu),
                    compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, math.floor(most_workers))),
                    max_restarts=RESTARTS,
                )
            try:
                with quiet("ray.data"):
                    for row in answered.iter_rows():
                        yield Outcome(**row)
            except ray.exceptions.RayError as error:
                raise ValueError(
                    f"Ray gave it up ({type(error).__name__}) with {len(parts_in(job.to)):,} of "
                    f"{len(job.source.fragments):,} parts written; the same command goes on from there"
                ) from error
            finally:
                context.enable_progress_bars = bars

    return engine


class Answering:
    """A worker: the model, loaded once, and what it does with each fragment."""

    def __init__(self, model: Sequence[Any], job: Job, device: str) -> None:
        import ray
        import torch

        torch.set_num_threads(1)  # there is one worker for each CPU
        self.job = job
        with tempfile.TemporaryDirectory(prefix="demur-") as folder:
            self.classifier = Classifier.load(write_model_files(ray.get(model[0]), Path(folder)), device=device)

    def __call__(self, row: Mapping[str, bytes]) -> dict[str, Any]:
        return asdict(attempt(self.classifier, self.job, pickle.loads(row["fragment"])))


def model_files(model: Path) -> dict[str, bytes]:
    """The bytes of a model file, or of a folder's parts, by name."""
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    return {("" if file == model else file.name): file.read_bytes() for file in files}


def write_model_files(files: Mapping[str, bytes], folder: Path) -> Path:
    if "" in files:
        (folder / "model.demur").write_bytes(files[""])
        return folder / "model.demur"
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def hash_model(model: Path) -> str:
    """Of all its files."""
    return hash_files(model_files(model))


def hash_files(files: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in files.items():
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()
