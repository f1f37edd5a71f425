"""Contests: ours and its rivals take turns in one run, and medians are compared.

A row is data; its `prepare` makes the contestants, ours first. To add one, write a function and a Row.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Conditions:
    """Where and how large. `small` tries every row in seconds; its values mean nothing."""

    device: str = "cpu"
    small: bool = False
    laplace_python: str | None = None  # of an environment that has laplace-torch


class Skipped(Exception):
    """A row that cannot be measured here, and what would have to be done."""


@dataclass(frozen=True)
class Reading:
    """One turn of a contestant: seconds per unit of work, bytes of memory beyond what it began with, what came out, and
    the shares of the machine's limits that were reached."""

    seconds: float
    peak: float | None = None
    result: Tensor | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


Contestant = Callable[[], Reading]


@dataclass(frozen=True)
class Target:
    """Ours takes at most `value` seconds; with a rival, the rival takes at least `value` times as long, or as much."""

    value: float
    rival: str | None = None
    of: Literal["time", "memory"] = "time"


@dataclass(frozen=True)
class Row:
    name: str
    work: str
    prepare: Callable[[Conditions, ExitStack], Mapping[str, Contestant]]
    targets: tuple[Target, ...]
    unit: str = ""  # what the seconds are for: "a step"
    device: Literal["cpu", "cuda"] = "cpu"
    rounds: int = 3


@dataclass(frozen=True)
class Verdict:
    """What a target came to: a ratio, or seconds."""

    target: Target
    value: float

    @property
    def met(self) -> bool:
        return self.value <= self.target.value if self.target.rival is None else self.value >= self.target.value


@dataclass(frozen=True)
class Outcome:
    """Medians by contestant; `agreement` is the largest difference to ours, relative to the largest value."""

    row: Row
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None

    @property
    def ours(self) -> str:
        return next(iter(self.seconds))

    def verdicts(self) -> list[Verdict]:
        found = []
        for target in self.row.targets:
            measured = self.seconds if target.of == "time" else self.peak
            if target.rival is None:
                found.append(Verdict(target, measured[self.ours]))
            elif target.rival in measured:
                found.append(Verdict(target, measured[target.rival] / measured[self.ours]))
        return found

    def as_json(self) -> dict[str, Any]:
        about = {"name": self.row.name, "work": self.row.work, "device": self.row.device}
        if self.skipped:
            return about | {"skipped": self.skipped}
        return about | {
            "unit": f"seconds {self.row.unit}".strip(),
            "seconds": dict(self.seconds),
            "peak_bytes": dict(self.peak),
            "agreement": dict(self.agreement),
            "shares": dict(self.shares),
            "targets": [asdict(verdict.target) | {"measured": verdict.value} for verdict in self.verdicts()],
        }


def run_rows(rows: Iterable[Row], conditions: Conditions) -> Iterator[Outcome]:
    """Each row's outcome as soon as it is known."""
    for row in rows:
        if row.device == "cuda" and conditions.device == "cpu":
            yield Outcome(row, skipped="needs a GPU")
            continue
        try:
            yield run_row(row, conditions)
        except Skipped as reason:
            yield Outcome(row, skipped=str(reason))


def run_row(row: Row, conditions: Conditions) -> Outcome:
    """The contestants take turns; a turn before the first round warms each of them up."""
    with ExitStack() as stack:
        contestants = row.prepare(conditions, stack)
        readings: dict[str, list[Reading]] = {name: [] for name in contestants}
        for turn in range(1 + (1 if conditions.small else row.rounds)):
            for name, contestant in contestants.items():
                reading = contestant()
                if turn > 0:
                    readings[name].append(reading)
    last = {name: found[-1] for name, found in readings.items()}
    ours = next(iter(last.values())).result
    return Outcome(
        row,
        seconds={name: median(reading.seconds for reading in found) for name, found in readings.items()},
        peak={name: reading.peak for name, reading in last.items() if reading.peak is not None},
        agreement={
            name: float((reading.result - ours).abs().max() / reading.result.abs().max())
            for name, reading in list(last.items())[1:]
            if reading.result is not None and ours is not None
        },
        shares=next(iter(last.values())).shares,
    )


def timed(work: Callable[[], Tensor | None], device: str = "cpu", units: int = 1) -> Reading:
    """One call, with what a GPU still had to do before and after; the seconds are per unit."""
    synchronise(device)
    started = time.perf_counter()
    result = work()
    synchronise(device)
    return Reading((time.perf_counter() - started) / units, result=None if result is None else result.cpu())


def peak_memory() -> int:
    """The most bytes that this process has held, on Linux; getrusage would begin with its parent's."""
    line = next(line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
