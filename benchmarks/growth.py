"""How natsproto grows: the cost of an item among many of its kind, a full inbox, and a reconnect of many.

    python -m benchmarks.growth

Nothing here is compared with another client: what counts is that the figures of a column do not grow. The messages come
from a plain socket in a thread of its own; the processor time is that of the event loop's thread.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

import natsproto
from benchmarks.growth_rows import ROWS, Row
from benchmarks.traffic import Traffic
from natsproto.testing import Server, run_server

__all__ = ["main"]

_CHUNK = 256 * 1024


def _encoded(subjects: list[str], seed: int) -> bytes:
    """What publishes a message with a drawn payload to each of these subjects."""
    messages = zip(subjects, Traffic().messages(seed, len(subjects)), strict=True)
    return b"".join(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(m.payload), m.payload) for subject, m in messages)


def _send(url: str, data: bytes) -> None:
    """Publishes over a plain socket; returns when the server has read everything."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port)) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        for start in range(0, len(data), _CHUNK):
            sock.sendall(data[start : start + _CHUNK])
        sock.sendall(b"PING\r\n")
        while b"PONG" not in sock.recv(1 << 16):
            pass


@asynccontextmanager
async def _longest_stall(interval: float = 0.001) -> AsyncIterator[list[float]]:
    """The longest time in seconds for which the event loop did nothing else, in the list, after the block."""
    found = [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(interval)
            found[0] = max(found[0], time.perf_counter() - before - interval)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield found
    finally:
        await asyncio.sleep(interval)
        watcher.cancel()


async def cost_per_message(url: str, subscriptions: int, count: int, seed: int) -> float:
    """Processor time in µs for a message, where so many subscriptions have a ``def`` callback and a subject each."""
    got, done = 0, asyncio.Event()

    def handle(_: natsproto.Message) -> None:
        nonlocal got
        got += 1
        if got == count:
            done.set()

    draw = random.Random(seed)
    data = _encoded([f"growth.{draw.randrange(subscriptions)}" for _ in range(count)], seed)
    async with natsproto.connect(url, pending_msgs_limit=count) as nc:
        for number in range(subscriptions):
            await nc.subscribe(f"growth.{number}", cb=handle)
        await nc.flush()
        began = time.thread_time()
        sending = asyncio.create_task(asyncio.to_thread(_send, url, data))
        await done.wait()
        took = time.thread_time() - began
        await sending
    return took / count * 1e6


async def full_inbox(url: str, waiting: int, seed: int) -> tuple[float, float]:
    """The longest pause of the garbage collector, and the longest stall, in ms, while so many messages come to wait."""
    data, pauses, began = _encoded(["inbox"] * waiting, seed), [0.0], 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses.append(time.perf_counter() - began)

    async with natsproto.connect(url, pending_msgs_limit=0, pending_bytes_limit=0) as nc:
        sub = await nc.subscribe("inbox")
        await nc.flush()
        gc.callbacks.append(watch)
        try:
            async with _longest_stall() as stall:
                await asyncio.to_thread(_send, url, data)
                await nc.flush()
                assert sub.pending_msgs == waiting
                gc.collect()
        finally:
            gc.callbacks.remove(watch)
    return max(pauses) * 1000, stall[0] * 1000


async def many_subscriptions(server: Server, subscriptions: int) -> tuple[float, float]:
    """KB of memory for a subscription, and the longest stall in ms while all are sent again after an outage."""
    back = asyncio.Event()

    def on_event(event: natsproto.Event) -> None:
        if isinstance(event, natsproto.Reconnected):
            back.set()

    async with natsproto.connect(server.url, on_event=on_event, reconnect_wait=0.05) as nc:
        before = _resident_kb()
        for number in range(subscriptions):
            await nc.subscribe(f"many.{number}", cb=lambda _: None)
            if number % 1000 == 0:
                await nc.flush()
        await nc.flush()
        memory = (_resident_kb() - before) / subscriptions
        async with _longest_stall() as stall:
            await server.restart()
            await back.wait()
            await nc.flush()
    return memory, stall[0] * 1000


async def cost_of_item(row: Row, count: int) -> float:
    """Processor time in µs for an item of so many, on a server of its own: the least of three runs."""
    costs: list[float] = []
    for _ in range(3):
        async with run_server(jetstream=True) as server, natsproto.connect(server.url, pending_msgs_limit=0) as nc:
            work = await row(nc, count)
            began = time.thread_time()
            await work()
            costs.append((time.thread_time() - began) / count * 1e6)
    return min(costs)


def _resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def _measure(server: Server, scale: int, seed: int) -> None:
    print(f"seed {seed}\n\n| subscriptions | CPU µs for a message |\n|---|---|")
    for subscriptions in (1, 10, 100, 1000, 10_000):
        count = 50_000 // scale
        costs = [await cost_per_message(server.url, subscriptions, count, seed + i) for i in range(3)]
        print(f"| {subscriptions:,} | {sorted(costs)[1]:.2f} |")
    counts = [count // scale for count in (1_000, 10_000, 100_000)]
    print(f"\n| CPU µs for an item of | {' | '.join(f'{count:,}' for count in counts)} |\n|---|---|---|---|")
    for name, row in ROWS.items():
        print(f"| {name} | {' | '.join([f'{await cost_of_item(row, count):.1f}' for count in counts])} |")
    pause, stall = await full_inbox(server.url, 65_536 // scale, seed)
    print(f"\n{65_536 // scale:,} messages waiting: collector pauses up to {pause:.1f} ms, stalls up to {stall:.1f} ms")
    memory, stall = await many_subscriptions(server, 100_000 // scale)
    print(f"{100_000 // scale:,} subscriptions: {memory:.1f} KB each, sent again with stalls up to {stall:.1f} ms")


def main(arguments: list[str]) -> None:
    """Measures; ``--quick`` with a fiftieth of everything, which shows that it runs."""
    with run_server() as server:
        uvloop.run(_measure(server, 50 if "--quick" in arguments else 1, random.randrange(1 << 30)))


if __name__ == "__main__":
    main(sys.argv[1:])
