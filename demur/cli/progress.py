"""How far a command is: a line that moves on a terminal, and now and then a line on stderr where there is none."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from demur.training import EpochReport

FIRST_LINE, NEXT_LINES = 10.0, 30.0  # seconds; whoever waits for less need not be told


class Training:
    """How far it is, of so many networks one after another (None: nobody knows how many), and how long it will take."""

    def __init__(self, networks: int | None) -> None:
        self.networks, self.network, self.done, self.status = networks, 0, 0.0, ""
        self.accuracy: float | None = None
        self.begun: tuple[float, float] | None = None  # the time of the first report, and how much was done then

    def update(self, report: "EpochReport", share: float = 1.0) -> None:
        done = (report.epoch - 1 + share) / report.epochs
        if done < self.done:
            self.network += 1
            self.begun = self.begun if self.networks else None
        self.done = done
        self.status = f"epoch {report.epoch}/{report.epochs}, loss {report.loss:.3f}"
        self.accuracy = self.accuracy if report.accuracy is None else report.accuracy  # within an epoch the last one's
        if self.accuracy is not None:
            self.status += f", validation accuracy {100 * self.accuracy:.1f} %"
        if self.network:
            self.status = f"network {self.network + 1}{f'/{self.networks}' if self.networks else ''}, {self.status}"
        now = time.monotonic()
        self.begun = self.begun or (now, self.part)
        seconds, done = now - self.begun[0], self.part - self.begun[1]
        if seconds > 1 and done > 0 and self.part < 1:
            left = seconds * (1 - self.part) / done
            self.status += f", about {duration(left if report.left is None else min(left, report.left))} left"

    @property
    def part(self) -> float:
        """The share of the networks, or of this one, that is done."""
        return (self.network + self.done) / self.networks if self.networks else self.done


def duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def progress(console: "Console", what: str, networks: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show how training goes; the block says what it is doing. `networks` is how many will be trained."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from demur.training import observed

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    training, doing = Training(networks), [what]

    def line() -> str:
        return f"{doing[0]}: {training.status}" if training.status else doing[0]

    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        repeat_line(line, quiet=console.is_terminal),
    ):
        task = bar.add_task(what, total=None, status="")

        def show(report: "EpochReport", share: float = 1.0) -> None:
            training.update(report, share)
            bar.update(task, total=1.0, completed=training.part, status=training.status)

        def describe(description: str) -> None:
            doing[0] = description
            bar.update(task, description=description)

        with observed(show, show):
            yield describe


@contextmanager
def counting(what: str, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """How many inputs are done."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console, total = Console(stderr=True), [0]
    moves = shown and console.is_terminal
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:,.0f} inputs"), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not moves) as bar,
        repeat_line(lambda: f"{what}: {total[0]:,} inputs", quiet=console.is_terminal),
    ):
        task = bar.add_task(what, total=None)

        def count(done: int) -> None:
            total[0] += done
            bar.advance(task, done)

        yield count


@contextmanager
def repeat_line(line: Callable[[], str], quiet: bool) -> Iterator[None]:
    """Print the line to stderr after FIRST_LINE seconds, then every NEXT_LINES, whatever the block is busy with."""
    finished = threading.Event()

    def speak() -> None:
        wait = FIRST_LINE
        while not finished.wait(wait):
            print(f"demur: {line()}", file=sys.stderr, flush=True)
            wait = NEXT_LINES

    speaker = threading.Thread(target=speak, daemon=True)
    if not quiet:
        speaker.start()
    try:
        yield
    finally:
        finished.set()
        if not quiet:
            speaker.join()
