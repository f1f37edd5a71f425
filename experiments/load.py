"""How much a server bears: the highest rate that holds p99 under a limit, that rate for a while, then an overload.

    python -m experiments.load table models --seconds 600
    python -m experiments.load image models --data DATA --seconds 600

The model is that of experiments/served_models.py, fitted where it is not in the folder yet. Requests go to 127.0.0.1
alone, at a fixed rate whatever the answers (so waiting is not hidden), each with an id that must come back exactly
once. Memory is the server's, every second.

The search grows the rate until p99 does not hold in two windows of 4 s, then goes down until it holds in two in a row.
Where the long run misses p99 after all, it is stopped, and the next one is slower. The overload is three times the
rate; where all of that is answered it was none, and a higher one follows, until requests are refused.
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.served_models import KINDS, prepared

CONNECTIONS = 64
LIMIT = 0.25  # seconds, of p99
STEP = 4.0  # seconds at each rate that is tried
UP, DOWN = 1.3, 0.85  # from one rate to the next
GROWTHS, FALLS, OVERLOADS = 20, 10, 5  # at most
SURE = 30.0  # seconds of a long run after which a p99 that does not hold ends it
OVERLOAD = 20.0  # seconds of it
RECOVERY = 5.0  # seconds that are looked at after an overload
PATIENCE = 60.0  # seconds in which a request must be answered; later it counts as lost, and the run goes on
HEADINGS = (
    "model",
    "CPU and median of one request",
    "highest rate, one by one and batched",
    "held, a second",
    "requests",
    "p50, p99",
    "memory: begin, after a minute, most, end",
    "lost, wrong ids",
    "overload",
    "recovery",
)


@dataclass
class Run:
    """What came of requests at one rate."""

    rate: float
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong_ids: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)  # of those answered with 200
    each: list[tuple[float, bool]] = field(default_factory=list)  # when it was due, and whether answered in time
    sent_last: float = 0.0  # seconds after the first
    ended: float = 0.0
    memory: list[float] = field(default_factory=list)  # MiB

    @property
    def holds(self) -> bool:
        """Whether nothing was refused or lost, and p99 was under the limit."""
        return set(self.statuses) == {200} and float(np.quantile(self.seconds, 0.99)) <= LIMIT

    def summary(self) -> dict[str, object]:
        quantiles = np.quantile(self.seconds, [0.5, 0.99]) if self.seconds else [float("nan")] * 2
        return {
            "rate": round(self.rate, 1),
            "sent": self.sent,
            "statuses": dict(self.statuses),
            "lost": self.lost,
            "wrong_ids": self.wrong_ids,
            "p50_ms": round(1e3 * float(quantiles[0]), 1),
            "p99_ms": round(1e3 * float(quantiles[1]), 1),
            "MiB": [round(self.memory[0]), round(max(self.memory)), round(self.memory[-1])] if self.memory else [],
        }


class Connection:
    """One keep-alive connection; opened again where the server has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes, request: str) -> tuple[int, str]:
        """Status and the id that came back; status 0 where the connection broke."""
        for attempt in range(2):
            fresh = self.streams is None
            try:
                async with asyncio.timeout(PATIENCE):
                    return await self._ask(path, body, request)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.close()
                if isinstance(error, TimeoutError):
                    break
                if fresh or attempt:
                    break
        return 0, ""

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None

    async def _ask(self, path: str, body: bytes, request: str) -> tuple[int, str]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        asked = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {request}\r\n"
        writer.write(f"{asked}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers.get("x-request-id", "")


async def at_rate(
    port: int, pid: int, bodies: Sequence[bytes], rate: float, seconds: float, width: int, ends: bool = False
) -> Run:
    """Send at a fixed rate for so long; the clock of a request starts when it should have been sent.

    With `ends` it is over as soon as p99 does not hold.
    """
    run, free = Run(rate), asyncio.Queue[Connection]()
    for _ in range(width):
        free.put_nowait(Connection(port))
    start = time.perf_counter()

    async def one(number: int, due: float) -> None:
        connection, request = await free.get(), f"r{rate:g}-{number}"
        try:
            status, said = await connection.ask("/v1/predict", bodies[number % len(bodies)], request)
        finally:
            free.put_nowait(connection)
        run.statuses[status] += 1
        run.lost += status == 0
        run.wrong_ids += status != 0 and said != request
        taken = time.perf_counter() - due
        run.each.append((due - start, status == 200 and taken <= LIMIT))
        if status == 200:
            run.seconds.append(taken)

    tasks: set[asyncio.Task[None]] = set()
    looked = start
    for number in itertools.count():
        due = start + number / rate
        if due - start > seconds:
            break
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        task = asyncio.create_task(one(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        run.sent += 1
        if time.perf_counter() - looked > 1:
            looked = time.perf_counter()
            run.memory.append(resident(pid))
            if ends and len(run.memory) % SURE == 0:
                print(f"... {json.dumps(run.summary())}", flush=True)
                if not run.holds:
                    break
    run.sent_last = time.perf_counter() - start
    await asyncio.gather(*tasks)
    run.ended = time.perf_counter() - start
    run.memory.append(resident(pid))
    return run


def resident(pid: int) -> float:
    """MiB of a process that are in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def processor(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serving(model: Path, *options: str) -> AsyncIterator[tuple[int, subprocess.Popen[str]]]:
    """`demur serve` in a process of its own, on a free port; stopped at the end."""
    command = [sys.executable, "-m", "demur", "serve", f"model={model}", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        if "http://" not in line:
            raise SystemExit(f"the server did not start: {line}")
        yield int(line.rsplit(":", 1)[1]), process
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


@dataclass(frozen=True)
class Load:
    """A server that is asked at some rates, each of which is told."""

    name: str
    port: int
    pid: int
    bodies: Sequence[bytes]

    async def ask(self, rate: float, seconds: float, width: int = CONNECTIONS, **more: Any) -> Run:
        run = await at_rate(self.port, self.pid, self.bodies, rate, seconds, width, **more)
        print(f"{self.name}: {json.dumps(run.summary())}", flush=True)
        return run

    async def one_by_one(self, count: int = 200) -> tuple[float, float]:
        """Of one request while nobody else asks: ms of CPU time of the server, and the median of its ms."""
        connection, before, seconds = Connection(self.port), processor(self.pid), []
        for number in range(count):
            began = time.perf_counter()
            status, _ = await connection.ask("/v1/predict", self.bodies[number % len(self.bodies)], f"a{number}")
            assert status == 200, status
            seconds.append(time.perf_counter() - began)
        connection.close()
        return 1e3 * (processor(self.pid) - before) / count, 1e3 * float(np.median(seconds))

    async def highest_rate(self, first: float) -> float:
        """The highest of the rates tried that held twice in a row."""
        rate = first
        for _ in range(GROWTHS):
            if not ((await self.ask(rate, STEP)).holds or (await self.ask(rate, STEP)).holds):
                break
            rate *= UP
        for _ in range(FALLS):
            rate *= DOWN
            if (await self.ask(rate, STEP)).holds and (await self.ask(rate, STEP)).holds:
                return rate
        raise SystemExit(f"no rate holds p99 under {1e3 * LIMIT:g} ms; the last one tried is {rate:.1f} a second")

    async def held(self, rate: float, seconds: float) -> Run:
        """For so long at that rate, or at a lower one where p99 misses."""
        for _ in range(FALLS):
            run = await self.ask(rate, seconds, ends=True)
            if run.holds:
                return run
            rate *= DOWN
        raise SystemExit(f"no rate holds p99 under {1e3 * LIMIT:g} ms for {seconds:g} s")

    async def overloaded(self, rate: float) -> tuple[Run, float]:
        """Some of it refused; and the seconds from the last request to the last answer."""
        for _ in range(OVERLOADS):
            run = await self.ask(rate, OVERLOAD, 1024)
            if run.statuses[503]:
                return run, run.ended - run.sent_last
            rate *= 2
        raise SystemExit(f"{rate / 2:.0f} requests a second were no overload; nothing was refused")


async def measure(
    kind: str, model: Path, bodies: Sequence[bytes], seconds: float, first: float | None, options: Sequence[str]
) -> str:
    """A row of a table in Markdown."""
    async with serving(model, "--batch", "1", *options) as (port, process):
        load = Load("one by one", port, process.pid, bodies)
        await at_rate(port, process.pid, bodies, 20, 1, 4)  # warm
        cpu, alone = await load.one_by_one()
        print(f"{kind}: {cpu:.2f} ms of CPU a request, median {alone:.2f} ms", flush=True)
        single = await load.highest_rate(first or max(1.0, 500 / alone))
    async with serving(model, *options) as (port, process):
        load = Load("batched", port, process.pid, bodies)
        await at_rate(port, process.pid, bodies, 20, 1, 4)
        rate = await load.highest_rate(max(single, first or 0))
        held = await load.held(rate, seconds)
        over, emptied = await load.overloaded(3 * held.rate)
        after = await load.ask(held.rate, RECOVERY)
    said, before, then = (run.summary() for run in (held, over, after))
    minute = held.memory[min(60, len(held.memory) - 1)]
    cells = (
        kind,
        f"{cpu:.1f} ms, {alone:.1f} ms",
        f"{single:.0f}, {rate:.0f}",
        f"{held.rate:.0f} for {seconds:g} s",
        f"{sum(held.statuses.values())} of {held.sent} answered",
        f"{said['p50_ms']} ms, {said['p99_ms']} ms",
        f"{held.memory[0]:.0f}, {minute:.0f}, {max(held.memory):.0f}, {held.memory[-1]:.0f} MiB",
        f"{held.lost + over.lost + after.lost}, {held.wrong_ids + over.wrong_ids + after.wrong_ids}",
        f"{over.rate:.0f} for {OVERLOAD:g} s: {over.statuses[200]} answered (p99 {before['p99_ms']} ms), "
        f"{over.statuses[503]} refused, {over.sent - over.statuses[200] - over.statuses[503]} others; "
        f"at most {max(over.memory):.0f} MiB",
        f"last answer after {emptied:.1f} s; then p99 {then['p99_ms']} ms, holds from {recovered(after):.1f} s on",
    )
    return f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}\n| {' | '.join(cells)} |"


def recovered(run: Run) -> float:
    """The seconds after which p99 held for a second, and to the end of the run."""
    starts = np.arange(0, RECOVERY - 1 + 1e-9, 0.1)
    good = [np.mean([ok for due, ok in run.each if start <= due < start + 1] or [True]) >= 0.99 for start in starts]
    late = [start for start, right in zip(starts, good, strict=True) if not right]
    return float(late[-1] + 0.1) if late else 0.0


def bodies_of(file: Path) -> list[bytes]:
    return [json.dumps({"inputs": [json.loads(line)]}).encode() for line in file.read_text().splitlines() if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path, help="where the models are, or are put")
    parser.add_argument("--data", type=Path, help="the folder of data sets, for images and texts")
    parser.add_argument("--seconds", type=float, default=60.0, help="to hold the highest rate for; at most 600")
    parser.add_argument("--first", type=float, help="requests a second to begin with")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="of demur serve, in quotes: '--samples 5'")
    given = parser.parse_args()
    began = time.perf_counter()
    model, inputs = prepared(given.kind, given.folder, given.data)
    seconds, options = min(given.seconds, 600.0), given.serve.split()
    print(asyncio.run(measure(given.kind, model, bodies_of(inputs), seconds, given.first, options)))
    print(f"took {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
