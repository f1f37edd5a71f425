"""How much a server bears: the highest rate that holds p99 under a limit, that rate for a while, and three times it.

    python experiments/load.py models/wine.demur inputs.jsonl --seconds 60

Each line of the inputs is one input, as JSON. Requests go to 127.0.0.1 alone, at a fixed rate whatever the answers
(so waiting is not hidden), each with an id that must come back exactly once. Memory is the server's, every second.
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

CONNECTIONS = 64
LIMIT = 0.25  # seconds, of p99
STEP = 5.0  # seconds at each rate that is tried
RECOVERY = 5.0  # seconds that are looked at after an overload
PATIENCE = 60.0  # seconds in which a request must be answered; later it counts as lost, and the run goes on


@dataclass
class Run:
    """What came of requests at one rate."""

    rate: float
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong_ids: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)  # of those answered with 200
    memory: list[float] = field(default_factory=list)  # MiB

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
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {request}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers.get("x-request-id", "")


async def at_rate(port: int, pid: int, bodies: Sequence[bytes], rate: float, seconds: float, width: int) -> Run:
    """Send at a fixed rate for so long; the clock of a request starts when it should have been sent."""
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
        if status == 200:
            run.seconds.append(time.perf_counter() - due)

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
    await asyncio.gather(*tasks)
    run.memory.append(resident(pid))
    return run


def resident(pid: int) -> float:
    """MiB of a process that are in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


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
        process.wait(30)


async def highest_rate(port: int, pid: int, bodies: Sequence[bytes], first: float) -> float:
    """Half as much again while p99 holds and nothing is refused, twice in a row; then the last rate that did."""
    held, rate = first / 2, first
    while True:
        run = await at_rate(port, pid, bodies, rate, STEP, CONNECTIONS)
        print(json.dumps({"tried": run.summary()}), flush=True)
        if set(run.statuses) != {200} or np.quantile(run.seconds, 0.99) > LIMIT:
            return held
        held, rate = rate, 1.5 * rate


async def measure(model: Path, bodies: Sequence[bytes], seconds: float, first: float) -> None:
    for options in (("--batch", "1"), ()):
        name = "one by one" if options else "batched"
        async with serving(model, *options) as (port, process):
            await at_rate(port, process.pid, bodies, 20, 1, 4)  # warm
            rate = await highest_rate(port, process.pid, bodies, first)
            held = await at_rate(port, process.pid, bodies, rate, seconds, CONNECTIONS)
            print(json.dumps({name: held.summary()}), flush=True)
            if options:
                continue
            over = await at_rate(port, process.pid, bodies, 3 * rate, min(20.0, seconds), 1024)
            print(json.dumps({"three times": over.summary()}), flush=True)
            after = await at_rate(port, process.pid, bodies, rate, RECOVERY, CONNECTIONS)
            print(json.dumps({"right after": after.summary()}), flush=True)


def bodies_of(file: Path) -> list[bytes]:
    return [json.dumps({"inputs": [json.loads(line)]}).encode() for line in file.read_text().splitlines() if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path, help="a jsonl file, one input a line")
    parser.add_argument("--seconds", type=float, default=60.0, help="to hold the highest rate for; at most 600")
    parser.add_argument("--first", type=float, default=40.0, help="requests a second to begin with")
    given = parser.parse_args()
    asyncio.run(measure(given.model, bodies_of(given.inputs), min(given.seconds, 600.0), given.first))


if __name__ == "__main__":
    main()
