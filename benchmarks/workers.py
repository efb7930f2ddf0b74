"""Workers whose handlers take time: messages handled twice, the time that it took, and the shares of replicas.

    python -m benchmarks.workers                 all cells: handlers of 0 to 0.9 ack_wait, beside nats-py's loops
    python -m benchmarks.workers --drawn 20      drawn cells instead; prints the seed
    python -m benchmarks.workers --only natsproto --seed 7 --drawn 20

No fault is injected: every message that is handled twice is a defect of the client or of the loop. nats-py's loops are
the two that its users write: ``fetch`` and ``gather``, and a semaphore with a task for each message.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import nats
import nats.errors

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.testing import run_server

__all__ = ["CLIENTS", "Cell", "Result", "all_cells", "draw_cells", "main", "run_cell"]

SECONDS = 2.5
"""About how long a cell takes."""
MAX_MESSAGES = 2000
SLACK = 0.2, 0.1
"""The longest handler leaves this much of ack_wait: the larger of these seconds and this part of it."""


class Cell(NamedTuple):
    """One worker: the seconds that a handler takes, and how many of them run.

    ``way`` is how natsproto reads: ``async`` and ``def`` handlers of ``consume``, ``key`` for ordered keys, and the
    loops ``messages`` and ``batches``, which handle one message at a time.
    """

    handler: float
    ack_wait: float
    concurrency: int = 1
    replicas: int = 1
    way: str = "async"

    @property
    def workers(self) -> int:
        return self.concurrency * self.replicas if self.way in ("async", "key") else self.replicas

    def messages(self, seconds: float = SECONDS) -> int:
        """As many as take about so long, but four for each worker."""
        if not self.handler:
            return MAX_MESSAGES
        return max(4 * self.workers, min(MAX_MESSAGES, int(seconds * self.workers / self.handler)))

    def ideal(self, seconds: float = SECONDS) -> float:
        """Seconds if no worker ever waits."""
        return -(-self.messages(seconds) // self.workers) * self.handler


class Result(NamedTuple):
    """What a cell did: calls of the handler, messages handled twice or more, seconds, and calls of each replica."""

    calls: int
    doubled: int
    missed: int
    seconds: float
    shares: list[int]


Handle = Callable[[int], Awaitable[None]]


class _Work:
    """Counts the calls; done when every message was handled."""

    def __init__(self, cell: Cell, messages: int) -> None:
        self.cell, self.messages = cell, messages
        self.calls, self.done = Counter[bytes](), asyncio.Event()
        self.shares = [0] * cell.replicas

    def began(self, replica: int, payload: bytes) -> None:
        self.calls[payload] += 1
        self.shares[replica] += 1

    def ended(self) -> None:
        if len(self.calls) == self.messages:
            self.done.set()

    async def handle(self, replica: int, payload: bytes) -> None:
        self.began(replica, payload)
        if self.cell.handler:
            await asyncio.sleep(self.cell.handler)
        self.ended()

    def handle_blocking(self, replica: int, payload: bytes) -> None:
        self.began(replica, payload)
        if self.cell.handler:
            time.sleep(self.cell.handler)
        self.ended()


async def _natsproto(url: str, cell: Cell, work: _Work, replica: int) -> None:
    async with natsproto.connect(url) as nc:
        consumer = await (await nc.jetstream().stream("W")).consumer("w")

        async def handle(message: JsMessage) -> None:
            await work.handle(replica, message.data)

        def handle_blocking(message: JsMessage) -> None:
            work.handle_blocking(replica, message.data)

        if cell.way == "messages":
            async with consumer.messages() as messages:
                async for message in messages:
                    await handle(message)
                    await message.ack()
        elif cell.way == "batches":
            async with consumer.messages() as messages:
                async for batch in messages.batches():
                    for message in batch:
                        await handle(message)
                        await message.ack()
        elif cell.way == "key":
            await consumer.consume(handle, concurrency=cell.concurrency, key=lambda m: m.data[-1]).run()
        else:
            handler = handle_blocking if cell.way == "def" else handle
            await consumer.consume(handler, concurrency=cell.concurrency).run()


async def _fetch_and_gather(url: str, cell: Cell, work: _Work, replica: int) -> None:
    nc = await nats.connect(url)
    try:
        sub = await nc.jetstream().pull_subscribe_bind("w", stream="W")

        async def one(msg: Any) -> None:
            await work.handle(replica, msg.data)
            await msg.ack()

        while True:
            try:
                messages = await sub.fetch(cell.concurrency)
            except nats.errors.TimeoutError:
                continue
            await asyncio.gather(*map(one, messages))
    finally:
        await nc.close()


async def _semaphore_and_tasks(url: str, cell: Cell, work: _Work, replica: int) -> None:
    nc = await nats.connect(url)
    try:
        sub = await nc.jetstream().pull_subscribe_bind("w", stream="W")
        semaphore, tasks = asyncio.Semaphore(cell.concurrency), set[asyncio.Task[None]]()

        async def one(msg: Any) -> None:
            try:
                await work.handle(replica, msg.data)
                await msg.ack()
            finally:
                semaphore.release()

        while True:
            try:
                messages = await sub.fetch(100)
            except nats.errors.TimeoutError:
                continue
            for msg in messages:
                await semaphore.acquire()
                task = asyncio.create_task(one(msg))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    finally:
        await nc.close()


CLIENTS: dict[str, Callable[[str, Cell, _Work, int], Awaitable[None]]] = {
    "natsproto": _natsproto,
    "nats-py gather": _fetch_and_gather,
    "nats-py tasks": _semaphore_and_tasks,
}


async def run_cell(
    url: str,
    cell: Cell,
    client: str = "natsproto",
    *,
    seconds: float = SECONDS,
    replication: int = 1,
    linger: float | None = None,
) -> Result:
    """Run a cell on a server. It ends when every message was handled and the last redelivery could have come, or after
    ``linger`` seconds more.
    """
    messages = cell.messages(seconds)
    async with AsyncExitStack() as stack:
        nc = await stack.enter_async_context(natsproto.connect(url))
        js = nc.jetstream()
        stream = await js.create_stream(name="W", subjects=["w"], storage="memory", num_replicas=replication)
        stack.push_async_callback(js.delete_stream, "W")
        await stream.create_consumer(durable_name="w", ack_wait=cell.ack_wait)
        async with js.publisher() as publisher:
            for number in range(messages):
                await publisher.publish("w", b"%d" % number)
        work = _Work(cell, messages)
        began = time.monotonic()
        tasks = [asyncio.create_task(_run(CLIENTS[client], url, cell, work, number)) for number in range(cell.replicas)]
        try:
            async with asyncio.timeout(10 * cell.ideal(seconds) + 10 * cell.ack_wait + 30):
                await work.done.wait()
            took = time.monotonic() - began
            if linger is None:
                linger = cell.handler + 1.2 * cell.ack_wait if cell.handler else 0.2
            await asyncio.sleep(linger)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        doubled = sum(1 for calls in work.calls.values() if calls > 1)
        return Result(work.calls.total(), doubled, messages - len(work.calls), took, work.shares)


async def _run(client: Callable[..., Awaitable[None]], *arguments: object) -> None:
    await client(*arguments)


def all_cells() -> list[Cell]:
    """The cells of the table."""
    cells = []
    for ack_wait in (1.0, 3.0):
        for handler in (
            0.0,
            0.001,
            0.005,
            0.01,
            0.05,
            0.3,
            0.5 * ack_wait,
            ack_wait - max(SLACK[0], SLACK[1] * ack_wait),
        ):
            cells += [Cell(handler, ack_wait, workers, replicas) for workers in (1, 8, 64) for replicas in (1, 2)]
    return cells


def draw_cells(seed: int, count: int) -> list[Cell]:
    """So many random cells."""
    rng = random.Random(seed)
    cells = []
    for _ in range(count):
        ack_wait = rng.choice([1.0, 2.0, 3.0, rng.uniform(1.0, 4.0)])
        longest = ack_wait - max(SLACK[0], SLACK[1] * ack_wait)
        handler = rng.choice([0.0, longest, 10.0 ** rng.uniform(-4, 0) * longest, rng.uniform(0.0, longest)])
        way = rng.choice(["async", "async", "def", "key", "messages", "batches"])
        replicas = 1 if way == "def" else rng.choice([1, 2])  # two that block would share a loop here
        cells.append(Cell(handler, ack_wait, rng.choice([1, 2, 8, 33, 64]), replicas, way))
    return cells


def _line(cell: Cell, client: str, result: Result) -> str:
    rate = result.calls / result.seconds
    return (
        f"{client:15} {cell.way:8} {cell.handler * 1000:7.1f} ms  ack_wait {cell.ack_wait:.1f} s"
        f"  c={cell.concurrency:<3} x{cell.replicas}  {cell.messages():5} messages"
        f"  doubled {result.doubled:4}  missed {result.missed}"
        f"  {result.seconds:6.2f} s (ideal {cell.ideal():5.2f})  {rate:8.0f}/s  shares {result.shares}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--drawn", type=int, default=0, help="so many drawn cells instead of the table")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", choices=CLIENTS, action="append")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--handler", type=float, help="only cells with a handler of so many seconds")
    options = parser.parse_args(arguments)
    cells = draw_cells(options.seed, options.drawn) if options.drawn else all_cells()
    if options.handler is not None:
        cells = [cell for cell in cells if cell.handler == options.handler]
    if options.drawn:
        print(f"seed {options.seed}")
    doubled = 0
    with run_server(jetstream=True) as server:
        for cell in cells * options.repeat:
            for client in options.only or CLIENTS:
                if client != "natsproto" and cell.way != "async":
                    continue
                result = asyncio.run(run_cell(server.url, cell, client))
                print(_line(cell, client, result), flush=True)
                doubled += result.doubled if client == "natsproto" else 0
    print(f"natsproto handled {doubled} messages twice")
    return 1 if doubled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
