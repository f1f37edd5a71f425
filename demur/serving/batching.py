"""Requests that come together are answered together: a bounded queue, and one thread that works.

Whoever finds the machine idle is answered at once. Only while requests compete does a batch wait for a few
milliseconds, in which others join it. What the queue has no room for is refused, so nothing waits for long.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Answer = TypeVar("Answer")
FRESH = 0.1  # weight of the last batch in the mean of them


@dataclass(frozen=True)
class Batching:
    """`wait` seconds for others while there is competition, `most` inputs in a batch, `room` inputs in the queue.

    The queue is full, too, when the last in it would wait for more than `longest` seconds.
    """

    wait: float = 0.002
    most: int = 64
    room: int = 512
    longest: float = 2.0


class Busy(Exception):
    """The queue is full; it should have emptied after so many seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the server is busy; try again in {retry_after} s")
        self.retry_after = retry_after


class Batcher(Generic[Answer]):
    """Passes inputs of many requests, one tensor (N, ...) each, to `answer`, which gives N answers, in one thread."""

    def __init__(self, answer: Callable[[Tensor], Sequence[Answer]], settings: Batching) -> None:
        self._answer, self._settings = answer, settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demur-batches")
        self._queue: deque[tuple[Tensor, asyncio.Future[Sequence[Answer]]]] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._seconds = 0.0  # that an input takes, a mean of the last batches
        self._closed = False
        self.waiting = 0  # inputs

    async def answered(self, x: Tensor) -> Sequence[Answer]:
        """The answers to these inputs; `Busy` where there is no room."""
        ahead = self.waiting * self._seconds
        if self._queue and (self.waiting + len(x) > self._settings.room or ahead > self._settings.longest):
            raise Busy(max(1, math.ceil(ahead)))
        if self._closed:
            raise Busy(1)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[Answer]] = loop.create_future()
        self._queue.append((x, done))
        self.waiting += len(x)
        if self._draining is None:
            self._draining = loop.create_task(self._drain())
        return await done

    async def close(self) -> None:
        """Wait until everything that was accepted has been answered; nothing is accepted afterwards."""
        self._closed = True
        if self._draining is not None:
            await asyncio.wait([self._draining])
        self._thread.shutdown()

    async def _drain(self) -> None:
        competing = False
        try:
            while self._queue:
                if competing and self.waiting < self._settings.most:
                    await asyncio.sleep(self._settings.wait)
                batch = self._take()
                competing = len(batch) > 1
                await self._work(batch)
        finally:  # else nobody would ever be answered again
            self._draining = None

    def _take(self) -> list[tuple[Tensor, asyncio.Future[Sequence[Answer]]]]:
        """The first requests in the queue, at least one and at most as many as fit into a batch."""
        batch: list[tuple[Tensor, asyncio.Future[Sequence[Answer]]]] = []
        count = 0
        while self._queue and (not batch or count + len(self._queue[0][0]) <= self._settings.most):
            x, done = self._queue.popleft()
            self.waiting -= len(x)
            if not done.cancelled():  # whoever asked has gone
                batch.append((x, done))
                count += len(x)
        return batch

    async def _work(self, batch: Sequence[tuple[Tensor, asyncio.Future[Sequence[Answer]]]]) -> None:
        if not batch:
            return
        began = time.perf_counter()
        try:
            every = torch.cat([x for x, _ in batch])
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, every)
        except Exception as failed:
            if len(batch) > 1:  # each alone, so that nobody gets the error of another's input
                for one in batch:
                    await self._work([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(failed)
            return
        taken = (time.perf_counter() - began) / len(every)
        self._seconds += FRESH * (taken - self._seconds)  # the first batch is slow, and one hiccup is no congestion
        start = 0
        for x, done in batch:
            if not done.done():  # whoever asked may have gone
                done.set_result(answers[start : start + len(x)])
            start += len(x)
