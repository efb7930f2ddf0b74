"""A few minutes of everything at once, with the connection cut, stalled and the server restarted under it.

Not a test of the suite: ``make soak`` (``ARGS=--minutes=10``). Reports the slopes of memory, tasks and descriptors,
and ends with 1 when one of them is over its bound or something was lost that must not be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, Event
from natsproto.errors import ConnectionLost, NatsError
from natsproto.testing import Direction, End, FaultProxy, Server, run_server
from tests.faults.helpers import descriptors, resident
from tests.kit.waiting import until

RSS_PER_MINUTE = 0.5
"""MiB the process may grow in a minute."""

COUNT_PER_MINUTE = 1.0
"""Tasks and descriptors that may be more, or fewer, after a minute."""


WORKERS = 16
EVERY = 2.0
"""Seconds of work between two measurements."""


@dataclass(slots=True)
class Tally:
    """What happened, and what must not have."""

    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)
    """Minutes, MiB, tasks, descriptors."""

    def slope(self, column: int) -> float:
        """Change of a column in a minute, by least squares over the second half: the first warms up."""
        points = [(sample[0], float(sample[column])) for sample in self.samples[len(self.samples) // 2 :]]
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


Work = Callable[[Client, Tally, random.Random], Awaitable[None]]


async def _request(nc: Client, tally: Tally, chance: random.Random) -> None:
    payload = chance.randbytes(chance.randrange(200))
    if (await nc.request("soak.echo", payload, timeout=2)).data != payload:
        tally.wrong.append("a reply of somebody else")


async def _publish(nc: Client, tally: Tally, chance: random.Random) -> None:
    for _ in range(50):
        await nc.publish("soak.noise", bytes(chance.randrange(2000)))


async def _headers(nc: Client, tally: Tally, chance: random.Random) -> None:
    sent = {"Number": str(chance.random()), "Names": ["a", "b"]}
    answer = await nc.request("soak.echo", b"", headers=sent, timeout=2)
    if answer.headers["Number"] != sent["Number"]:
        tally.wrong.append("headers changed on the way")


async def _subscribe(nc: Client, tally: Tally, chance: random.Random) -> None:
    subject = f"soak.{chance.randrange(10**9)}"
    async with nc.subscribe(subject) as mine:
        await nc.publish(subject, b"hello")
        await mine.next(2)


async def _callback(nc: Client, tally: Tally, chance: random.Random) -> None:
    subject = f"soak.{chance.randrange(10**9)}"
    async with nc.subscribe(subject, cb=lambda message: None, max_messages=3) as mine:
        for _ in range(3):
            await nc.publish(subject)
        await mine.drain(2)


async def _flush(nc: Client, tally: Tally, chance: random.Random) -> None:
    await nc.flush(2)


async def _cancel(nc: Client, tally: Tally, chance: random.Random) -> None:
    verb = chance.choice([_request, _publish, _subscribe, _callback, _flush])
    task = asyncio.ensure_future(verb(nc, tally, chance))
    await asyncio.sleep(chance.random() * 0.002)
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    if not task.done():
        tally.wrong.append(f"{verb.__name__} swallowed its cancellation")
    elif not task.cancelled():
        task.exception()


async def _connect(nc: Client, tally: Tally, chance: random.Random) -> None:
    async with natsproto.connect(f"nats://{nc.servers[0]}", connect_timeout=2, drain_timeout=2) as other:
        await other.flush(2)


WORK: list[Work] = [_request, _request, _publish, _headers, _subscribe, _callback, _flush, _cancel, _connect]


class Calm:
    """Where workers wait while it is measured: what is left when nobody works is what leaks."""

    def __init__(self, workers: int) -> None:
        self._workers, self._waiting = workers, 0
        self._all_here, self._go_on = asyncio.Event(), asyncio.Event()
        self._go_on.set()

    async def stand_by(self) -> None:
        """Where a worker passes between two pieces of work."""
        if not self._go_on.is_set():
            self._waiting += 1
            if self._waiting == self._workers:
                self._all_here.set()
            await self._go_on.wait()

    async def __aenter__(self) -> None:
        self._waiting = 0
        self._all_here.clear()
        self._go_on.clear()
        await self._all_here.wait()

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()


async def _worker(nc: Client, tally: Tally, chance: random.Random, calm: Calm) -> None:
    while True:
        await calm.stand_by()
        work = chance.choice(WORK)
        try:
            await work(nc, tally, chance)
        except NatsError as exc:
            tally.refused[type(exc).__name__] += 1
        else:
            tally.done[work.__name__.strip("_")] += 1
        await asyncio.sleep(0)


async def _trouble(server: Server, proxy: FaultProxy, chance: random.Random, calm: Calm) -> None:
    while True:
        await calm.stand_by()
        await asyncio.sleep(3 * chance.random())
        kind = chance.choice(["cut", "cut", "later", "stall", "restart", "refuse"])
        if kind == "cut":
            proxy.cut(chance.choice(list(End)))
        elif kind == "later" and proxy.links:
            direction = chance.choice(list(Direction))
            at = proxy.link.passed[direction] + chance.randrange(100_000)
            proxy.cut_at(direction, at, chance.choice(list(End)))
        elif kind == "stall":
            proxy.stall()
            await asyncio.sleep(1.5)
            proxy.heal()
        elif kind == "restart":
            await server.restart()
        elif kind == "refuse":
            proxy.refuse()
            proxy.cut(End.RST)
            await asyncio.sleep(0.5)
            await proxy.allow()


async def _measure(nc: Client, proxy: FaultProxy, tally: Tally, minute: float) -> None:
    proxy.heal()
    await until(lambda: nc.is_connected and len(proxy.links) == 1, timeout=10)
    with contextlib.suppress(ConnectionLost):  # the last cut may be on its way
        await nc.flush(10)
    await until(lambda: nc.is_connected and len(proxy.links) == 1, timeout=10)
    proxy.history[:-1] = []  # the tool's own memory is not what is measured
    gc.collect()
    tally.samples.append((minute, resident() / 2**20, len(asyncio.all_tasks()), descriptors()))


async def soak(minutes: float, seed: int) -> Tally:
    """Runs the mix for so many minutes and returns what happened."""
    tally, chance, calm = Tally(), random.Random(seed), Calm(WORKERS + 1)

    def on_event(event: Event) -> None:
        if isinstance(event, Disconnected):
            tally.done["outage"] += 1

    async with (
        run_server() as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(server.url) as echo,
    ):
        echo.subscribe("soak.echo", cb=lambda message: message.respond(message.data, headers=message.headers))
        nc = await natsproto.connect(
            proxy.url, on_event=on_event, ping_interval=0.5, connect_timeout=2, reconnect_wait_max=0.2
        )
        await nc.flush()
        tasks = [asyncio.create_task(_worker(nc, tally, random.Random(seed + n), calm)) for n in range(WORKERS)]
        tasks.append(asyncio.create_task(_trouble(server, proxy, chance, calm)))
        began = time.monotonic()
        while (spent := time.monotonic() - began) < minutes * 60:
            await asyncio.sleep(EVERY)
            async with calm:
                await _measure(nc, proxy, tally, spent / 60)
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                tally.wrong.append(f"a worker ended with {end!r}")
        if nc._engine.registry.subscriptions:
            tally.wrong.append(f"subscriptions left: {nc._engine.registry.subscriptions}")
        proxy.heal()
        await proxy.allow()
        await nc.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        tally.wrong.append(f"tasks left: {left}")
    return tally


def main() -> int:
    """Runs it and reports; 1 when something is over its bound."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=4.0, help="how long (default 4)")
    arguments.add_argument("--seed", type=int, default=1, help="what the chances are drawn from (default 1)")
    given = arguments.parse_args()
    for name in ("natsproto", "asyncio"):  # outages are what this is about; asyncio tells of writes to dead sockets
        logging.getLogger(name).setLevel(logging.CRITICAL)
    tally = asyncio.run(soak(given.minutes, given.seed))
    seconds = given.minutes * 60
    print(f"{sum(tally.done.values()) / seconds:,.0f} operations a second: {dict(tally.done.most_common())}")
    print(f"refused in words: {dict(tally.refused.most_common())}")
    slopes = [
        ("memory", 1, "MiB", RSS_PER_MINUTE),
        ("tasks", 2, "", COUNT_PER_MINUTE),
        ("descriptors", 3, "", COUNT_PER_MINUTE),
    ]
    over = False
    for name, column, unit, bound in slopes:
        slope = tally.slope(column)
        over = over or (slope > bound if column == 1 else abs(slope) > bound)
        print(f"{name}: {slope:+.3f} {unit} a minute (bound {bound}); at the end {tally.samples[-1][column]:.0f}")
    for fault in tally.wrong:
        print(f"WRONG: {fault}")
    return 1 if over or tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
