"""What a server makes of damaged requests, of a damaged model under load, and of clients that never finish.

    python -m experiments.faults models/wine.demur inputs.jsonl --requests 10000

Requests are mutated at random, seeded: bytes of the head, the JSON, the form, the image. Each must end in an answer
(status 200, a decision of this model), in one sentence with a status from 400 to 505, or in a closed connection; never
in 500, a traceback or silence. Everything goes to 127.0.0.1.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.load import Run, at_rate, bodies_of, resident, serving

PATIENCE = 20.0  # seconds in which a request must end
SLOW = 8  # clients that send one byte a second
UNFINISHED = 2.0  # seconds after which the client gives up on its side
AT_A_TIME = 32


def request_of(body: bytes, kind: str) -> bytes:
    head = f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def form_of(image: bytes) -> tuple[bytes, str]:
    head = b'--line\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\nContent-Type: image/png\r\n\r\n'
    return head + image + b"\r\n--line--\r\n", "multipart/form-data; boundary=line"


def mutated(request: bytes, rng: random.Random) -> bytes:
    """Mostly in its body, whose length is then stated rightly; else anywhere."""
    head, _, body = request.partition(b"\r\n\r\n")
    if rng.random() < 0.3:
        return changed(request, rng)
    body = changed(body, rng)
    return head[: head.rindex(b" ")] + f" {len(body)}\r\n\r\n".encode() + body


def changed(request: bytes, rng: random.Random) -> bytes:
    """One to four changes: a byte flipped, a piece removed, doubled, moved, or replaced by something unpleasant."""
    nasty = [
        b"\0",
        b"\r\n",
        b"\xff\xfe",
        b"9" * 400,
        b"[" * 2000,
        b'"',
        b"NaN",
        b"-1",
        b"chunked",
        b"null",
        b"1e999",
        b"{}",
    ]
    data = bytearray(request)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 64))
        how = rng.randrange(5)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del data[at : at + length]
        elif how == 2:
            data[at:at] = data[at : at + length]
        elif how == 3:
            data[at : at + length] = rng.choice(nasty)
        else:
            data = data[:at] if rng.random() < 0.3 else data + data[at : at + length]
        data = data or bytearray(b"\n")
    return bytes(data)


async def end_of(port: int, request: bytes) -> tuple[str, str]:
    """How a request ended: a status, `closed` or `SILENCE`; and what was said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = asyncio.create_task(reader.read())
        if not (await asyncio.wait([answer], timeout=UNFINISHED))[0]:
            writer.write_eof()  # the server waits for the rest of a request that has none
        async with asyncio.timeout(PATIENCE):
            raw = await answer
    except TimeoutError:
        return "SILENCE", ""
    except OSError:
        return "closed", ""
    finally:
        writer.close()
    if not raw:
        return "closed", ""
    head, _, body = raw.partition(b"\r\n\r\n")
    return head.split(b" ")[1].decode("latin-1"), body.decode("utf-8", "replace")


def judged(status: str, said: str, labels: set[str]) -> str:
    """The status, or in capitals what is wrong with the answer."""
    if "Traceback" in said:
        return "TRACEBACK"
    if status == "500":
        return "FAILED"
    if status == "200":
        try:
            answers = json.loads(said.split("HTTP/1.1")[0])["answers"]
        except (ValueError, KeyError):
            return "200 of another address"
        right = all(answer["decision"] in labels for answer in answers)
        return "200" if right and answers else "WRONG"
    return status


async def mutations(model: Path, requests: Sequence[bytes], count: int, seed: int) -> None:
    rng, ends = random.Random(seed), Counter[str]()
    async with serving(model) as (port, process):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        classes = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])[0]["classes"]
        writer.close()
        labels, gate, began = {*classes, "unsure", "unknown"}, asyncio.Semaphore(AT_A_TIME), resident(process.pid)

        async def one(request: bytes) -> None:
            async with gate:
                ends[judged(*await end_of(port, request), labels)] += 1

        for start in range(0, count, 500):
            part = [mutated(rng.choice(requests), rng) for _ in range(min(500, count - start))]
            await asyncio.gather(*map(one, part))
        alive = process.poll() is None and (await end_of(port, requests[0]))[0] == "200"
        said = {"mutated": count, "seed": seed, "ends": dict(ends), "alive": alive}
        print(json.dumps(said | {"MiB": [round(began), round(resident(process.pid))]}), flush=True)


async def replaced_under_load(model: Path, bodies: Sequence[bytes], rate: float) -> None:
    """Good, damaged and good files in turn, while requests come: none may fail."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.demur"
        shutil.copy(model, path)
        whole = model.read_bytes()
        async with serving(path) as (port, process):

            async def replace() -> None:
                for data in (whole[: len(whole) // 2], b"", whole, whole[:-1] + b"x", whole):
                    await asyncio.sleep(2)
                    (Path(folder) / "new").write_bytes(data)
                    (Path(folder) / "new").replace(path)

            run, _ = await asyncio.gather(at_rate(port, process.pid, bodies, rate, 12, 32), replace())
            print(json.dumps({"replaced under load": run.summary()}), flush=True)


async def replaced_often(model: Path, bodies: Sequence[bytes], rate: float, times: int) -> None:
    """The model's file written anew so many times under load; memory in ten places on the way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.demur"
        shutil.copy(model, path)
        async with serving(path) as (port, process):

            async def since() -> float:
                _, said = await end_of(port, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return float(json.loads(said)[0]["since"])

            async def replace() -> list[int]:
                memory = [round(resident(process.pid))]
                for number in range(1, times + 1):
                    before = await since()
                    shutil.copy(model, Path(folder) / "new")
                    (Path(folder) / "new").replace(path)
                    process.send_signal(signal.SIGHUP)
                    while await since() == before:
                        await asyncio.sleep(0.05)
                    if number % max(1, times // 10) == 0:
                        memory.append(round(resident(process.pid)))
                done.set()
                return memory

            async def ask_on() -> Run:
                whole = Run(rate)
                while not done.is_set():
                    part = await at_rate(port, process.pid, bodies, rate, 5, 32)
                    whole.sent, whole.lost = whole.sent + part.sent, whole.lost + part.lost
                    whole.wrong_ids, whole.statuses = whole.wrong_ids + part.wrong_ids, whole.statuses + part.statuses
                    whole.seconds += part.seconds
                return whole

            done = asyncio.Event()
            memory, run = await asyncio.gather(replace(), ask_on())
            print(json.dumps({"replaced": times, "MiB": memory, "beside": run.summary()}), flush=True)


async def slow_clients(model: Path, bodies: Sequence[bytes], rate: float) -> None:
    """Some send one byte a second, in the head or in the body; the others must not notice."""
    async with serving(model) as (port, process):

        async def slow(in_body: bool) -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            began, request = time.monotonic(), request_of(bodies[0], "application/json")
            start = request.index(b"\r\n\r\n") + 4 if in_body else 0
            writer.write(request[:start])
            closed = asyncio.create_task(reader.read())
            for byte in request[start:]:
                if (await asyncio.wait([closed], timeout=1))[0]:
                    break
                writer.write(bytes([byte]))
            await closed
            writer.close()
            return time.monotonic() - began

        clients = [slow(in_body=number % 2 == 0) for number in range(SLOW)]
        run, *seconds = await asyncio.gather(at_rate(port, process.pid, bodies, rate, 15, 32), *clients)
        longest = round(max(seconds), 1)
        print(json.dumps({"beside slow clients": run.summary(), "slow ones ended after": longest}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path, help="a jsonl file, one input a line")
    parser.add_argument("--requests", type=int, default=1000, help="mutated; at most 20,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=20.0, help="of the requests beside")
    parser.add_argument("--image", type=Path, help="of a model for images: a file to send in forms, too")
    parser.add_argument("--replace", type=int, help="only write the model's file anew, so often, and look at memory")
    given = parser.parse_args()
    bodies = bodies_of(given.inputs)[:50]
    if given.replace:
        asyncio.run(replaced_often(given.model, bodies, given.rate, given.replace))
        return
    requests = [request_of(body, "application/json") for body in bodies]
    if given.image:
        requests += [request_of(*form_of(given.image.read_bytes()))] * len(bodies)
        requests += [request_of(given.image.read_bytes(), "image/png")] * len(bodies)
    asyncio.run(mutations(given.model, requests, min(given.requests, 20_000), given.seed))
    asyncio.run(replaced_under_load(given.model, bodies, given.rate))
    asyncio.run(slow_clients(given.model, bodies, given.rate))


if __name__ == "__main__":
    main()
