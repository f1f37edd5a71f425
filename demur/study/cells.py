"""One cell: its networks fitted once, its predictions made once, whoever else wants them at the same time."""

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

import demur
from demur.checkpoint import checkpointed, seconds_in
from demur.files import locked, replacing
from demur.inference import INFERENCES
from demur.metrics import Array
from demur.names import choose
from demur.posterior import Mixture, Posterior
from demur.posterior_file import load, read_about, save
from demur.predictive import fit_scores, predict, predict_scored
from demur.provenance import describe_code, digest
from demur.scores import score_named
from demur.study.fits import DataSource, Fit, Further, describe_fit, folder_name
from demur.study.grid import Cell, Study
from demur.study.records import DamagedCell, Record, read_record, write_record
from demur.study.results import POSTERIOR, TEST, is_done, ood_name, write_further, write_result, write_scores
from demur.tasks import Store, Task

CHECKPOINT = "checkpoint.safetensors"
FITTED_WITH = ("train", "validation", "outliers")
SECONDS = "seconds"  # what it took to fit, parts and earlier tries included
NOTHING_FURTHER: Mapping[str, Further] = MappingProxyType({})
# of several with one type the first: what a part is called names its folder
NAMES = {type(build()): name for name, build in reversed(list(INFERENCES.items()))}


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
    jobs: int | None = None  # processes at once

    def folder(self, fit: Fit) -> Path:
        return self.runs / folder_name(fit)


@lru_cache(maxsize=2)
def load_data(data: DataSource, store: Store, device: str) -> Task:
    return data.load(store).to(device)


@lru_cache(maxsize=2)
def digests_of(data: DataSource, store: Store, device: str) -> Mapping[str, str]:
    """Of every set of the task, by name."""
    task = load_data(data, store, device)
    fitted_with = {name: getattr(task.training, name) for name in FITTED_WITH}
    tested_with = tested_sets(task) | {TEST: task.testing.test}  # with its labels
    return {name: digest(value) for name, value in {**fitted_with, **tested_with}.items()}


def tested_sets(task: Task) -> dict[str, Tensor]:
    """The inputs of the test data and of every OOD set, under the names that cells have for them."""
    return {TEST: task.testing.test.x, **{ood_name(name): x for name, x in task.testing.ood.items()}}


def parts_of(fit: Fit) -> list[Fit]:
    """The fits that this one is made from."""
    return [
        replace(
            fit,
            method=replace(fit.method, inference_name=NAMES.get(type(part), type(part).__name__), inference=part),
            data=fit.data.for_parts(),
            inference=part,
            recipe=recipe,
        )
        for part, recipe in fit.inference.parts(fit.recipe)
    ]


def networks_of(study: Study, store: Store) -> set[str]:
    """The folders of all networks that must be trained, each counted once however many cells share it."""

    def leaves(fit: Fit) -> Iterator[Fit]:
        parts = parts_of(fit)
        if not parts:
            yield fit
        for part in parts:
            yield from leaves(part)

    return {folder_name(leaf) for cell in study.cells for leaf in leaves(study.resolve(cell, store))}


def read_or_fit(fit: Fit, place: Place) -> Posterior:
    """The posterior: read, or fitted from its parts, continuing where an earlier process was stopped."""
    folder = place.folder(fit)
    task = load_data(fit.data, place.store, place.device)
    likelihood = fit.likelihood(task.num_classes)
    with locked(folder):
        if (folder / POSTERIOR).exists():
            build = partial(fit.network, likelihood.num_outputs)
            return read_posterior(folder, build, place.device, data_of(fit, place))
        parts = [read_or_fit(part, place) for part in parts_of(fit)]
        started = time.perf_counter() - seconds_in(folder / CHECKPOINT)
        with checkpointed(folder / CHECKPOINT) as checkpoint:
            posterior = fit.inference.fit(fit.network, likelihood, task.training, fit.recipe, parts)
        seconds = time.perf_counter() - started
        before = [read_seconds(place.folder(part)) for part in parts_of(fit)]
        with replacing(folder / SECONDS) as unfinished:
            unfinished.write_text(f"{seconds + sum(before)}\n", "utf-8")
        if place.keep_posteriors or not parts:
            about = {"data": json.dumps(data_of(fit, place)), "resumed": json.dumps(checkpoint.resumed)}
            save(posterior, folder / POSTERIOR, about)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return posterior


def data_of(fit: Fit, place: Place) -> dict[str, str]:
    """Digests of the data that the fit may look at."""
    unseen = () if fit.likelihood(2).outside is not None else ("outliers",)
    digests = digests_of(fit.data, place.store, place.device)
    return {name: digests[name] for name in FITTED_WITH if name not in unseen}


def read_posterior(folder: Path, build: Callable[[], nn.Module], device: str, data: Mapping[str, str]) -> Posterior:
    """The one in the folder, unless it was fitted with other data than there is now."""
    path = folder / POSTERIOR
    try:
        recorded = json.loads(read_about(path).get("data", "null"))
        posterior = load(path, build, device)
    except ValueError as error:
        raise ValueError(f"{error}; delete {path}, and the study fits it anew") from None
    if recorded is not None and recorded != data:
        other = ", ".join(name for name in {**recorded, **data} if recorded.get(name) != data.get(name))
        raise ValueError(
            f"{folder} was fitted with other data ({other}) than there is now; delete it, or name new runs"
        )
    return posterior


def read_seconds(folder: Path) -> float:
    try:
        return float((folder / SECONDS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedCell(folder / SECONDS, error) from None


def run_cell(
    cell: Cell,
    fit: Fit,
    place: Place,
    further: Mapping[str, Further] = NOTHING_FURTHER,
    scores: Sequence[str] = (),
) -> Path:
    """Make the cell's folder whole, or leave it if it is."""
    folder = place.folder(fit)
    if not is_done(folder):
        posterior = read_or_fit(fit, place)
        with locked(folder):
            if not is_done(folder):
                predict_sets(cell, fit, posterior, place)
    if not is_done(folder, cell.further):
        add_further(cell, fit, place, further)
    if read_record(folder).lacks_scores(scores):
        add_scores(fit, place, further, scores)
    with locked(folder):
        record = read_record(folder)
        if not record.asked(cell):
            write_record(folder, replace(record, cells=(*record.cells, cell)))
    return folder


def predict_sets(cell: Cell, fit: Fit, posterior: Posterior, place: Place) -> None:
    """The cell's predictions and its record: all that can be known of how they were made."""
    folder = place.folder(fit)
    task = load_data(fit.data, place.store, place.device)
    likelihood = fit.likelihood(task.num_classes)
    started = time.perf_counter()
    sets = {name: predict(posterior, likelihood, x) for name, x in tested_sets(task).items()}
    seconds = {"fit": read_seconds(folder), "predict": time.perf_counter() - started}
    digests = digests_of(fit.data, place.store, place.device)
    # a posterior of an older version does not say what it was fitted with
    known = not (folder / POSTERIOR).exists() or "data" in read_about(folder / POSTERIOR)
    tuning = tuning_of(posterior)
    record = Record(
        cells=(cell,),
        sets=tuple(sets),
        fit=describe_fit(fit),
        seconds=seconds,
        missing=tuple(task.missing),
        notes=dict(task.notes),
        trained_with=None if likelihood.outside is None else task.trained_with,
        training_inputs=len(task.training.train),
        classes=task.num_classes,
        tuning=tuning,
        jobs=place.jobs,
        prior_precision=chosen_in(tuning),
        data={name: digests[name] for name in sets} | (data_of(fit, place) if known else {}),
        **circumstances(place.device),
    )
    write_result(folder, task.testing.test.y, sets, record)


def tuning_of(posterior: Posterior) -> Any:
    """How the prior precision was chosen; of a mixture, a list for its parts; None where nothing was."""
    if isinstance(posterior, Mixture):
        parts = [tuning_of(part) for part in posterior.parts]
        return parts if any(parts) else None
    tuning = getattr(posterior, "tuning", None)
    return None if tuning is None else asdict(tuning)


def chosen_in(tuning: Any) -> Any:
    return [chosen_in(part) for part in tuning] if isinstance(tuning, list) else tuning and tuning["chosen"]


def is_answered(cell: Cell, folder: Path, scores: Sequence[str] = ()) -> bool:
    """A damaged folder answers nothing: whoever tries to make it says why."""
    try:
        if not is_done(folder, cell.further):
            return False
        record = read_record(folder)
        return record.asked(cell) and not record.lacks_scores(scores)
    except DamagedCell:
        return False


def add_further(cell: Cell, fit: Fit, place: Place, further: Mapping[str, Further]) -> None:
    """Predict those of the cell's further inputs that are not there, with the posterior of a folder that is whole."""
    folder, posterior = place.folder(fit), read_or_fit(fit, place)
    likelihood = fit.likelihood(load_data(fit.data, place.store, place.device).num_classes)
    for kind in cell.further:
        with locked(folder):
            if not is_done(folder, [kind]):
                y, inputs = choose(further, kind, "further inputs")(fit.data, place.store)
                sets = {name: predict(posterior, likelihood, x.to(place.device)) for name, x in inputs.items()}
                write_further(folder, kind, y, sets, {kind: digest((y, inputs))})


def add_scores(fit: Fit, place: Place, further: Mapping[str, Further], names: Sequence[str]) -> None:
    """Values of these scores for every set that the folder has predictions of; what they learn is let go."""
    folder, posterior = place.folder(fit), read_or_fit(fit, place)
    task = load_data(fit.data, place.store, place.device)
    likelihood = fit.likelihood(task.num_classes)
    with locked(folder):
        record = read_record(folder)
        scores = [score_named(name) for name in record.lacks_scores(names)]
        inputs = tested_sets(task)
        for kind in record.further:
            inputs |= choose(further, kind, "further inputs")(fit.data, place.store)[1]
        names = (*record.sets, *chain.from_iterable(record.further.values()))
        if unknown := sorted({*names} - inputs.keys()):
            raise ValueError(
                f"{folder} was predicted with {', '.join(unknown)}, which {place.store.root} has not; "
                "name the data that it was made with, or leave the scores out"
            )
        learnt = fit_scores(scores, posterior, likelihood, task.training.train)
        values: dict[str, dict[str, Array]] = {score.name: {} for score in scores}
        for name in names:
            prediction = predict_scored(posterior, likelihood, inputs[name].to(place.device), scores, learnt)
            for score in scores:
                scored = score(prediction, learnt.get(score.name))
                if scored is None:
                    raise ValueError(f"score {score.name!r} has no value for {fit.method.name}: it needs a none class")
                values[score.name][name] = scored
        write_scores(folder, values)


def circumstances(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or "CPU"
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "versions": {"demur": demur.__version__, "torch": torch.__version__, "python": platform.python_version()},
        **describe_code(),
    }
