"""Order by key across processes: ``python -m benchmarks.groups [--seconds 20]``.

Members of a group share 12 partitions of messages whose keys follow Zipf's law. Beside them, one consumer with ``key=``
handles as many at a time in one process. Then a member is killed: how long its keys wait, and those of others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import natsproto
from natsproto import Client
from natsproto.jetstream import JetStream, JsMessage, groups
from natsproto.jetstream.groups import ElasticGroup
from natsproto.testing import run_server

PARTITIONS, MEMBERS, CONCURRENCY, KEYS = 12, 8, 8, 1000
HANDLER_S = 0.005
MOVE_KEYS, MOVE_RATE, MOVE_HANDLER_S = 40, 100, 0.05
FILTERS = {"o.*": [1]}


@dataclass
class Seen:
    """Who began with which message at what time."""

    by: Counter[str] = field(default_factory=Counter)
    began: dict[tuple[str, int], tuple[float, str]] = field(default_factory=dict)

    def add(self, message: natsproto.Message) -> None:
        who, key, number, at = json.loads(message.data)
        self.by[who] += 1
        self.began.setdefault((key, number), (at, who))


async def work(url: str, who: str, kind: str, ttl: str, handler_s: str) -> None:
    """A process that handles messages until it is stopped."""
    async with natsproto.connect(url) as nc:
        stream = await nc.jetstream(timeout=30).stream("O")

        async def handle(message: JsMessage) -> None:
            began = json.dumps([who, message.subject[2:], int(message.data), monotonic()])
            await nc.publish("began", began.encode())
            await asyncio.sleep(float(handler_s))

        stop = natsproto.stop_event()
        if kind == "group":
            await groups.join(
                stream, "g", handle, partitions=PARTITIONS, filters=FILTERS, ttl=float(ttl), concurrency=CONCURRENCY
            ).run(stop)
        else:
            consumer = await stream.create_consumer("c", max_ack_pending=10_000)
            count = CONCURRENCY * MEMBERS
            await consumer.consume(handle, concurrency=count, key=lambda message: message.subject).run(stop)


@asynccontextmanager
async def processes(
    url: str, kind: str, count: int, ttl: float, handler_s: float
) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """So many processes that work."""
    started = {
        f"m{number}": await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.groups", "work", url, f"m{number}", kind, str(ttl), str(handler_s))
        )
        for number in range(count)
    }
    try:
        yield started
    finally:
        for process in started.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


async def until_shared(js: JetStream, count: int) -> None:
    group = await ElasticGroup.create(js, "O", "g", max_members=PARTITIONS, filters=FILTERS)
    while len((await group.info()).names) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@asynccontextmanager
async def ground() -> AsyncIterator[tuple[str, Client, JetStream, Seen]]:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("O", subjects=["o.*"], storage="memory")
        seen = Seen()
        async with nc.subscribe("began", cb=seen.add):
            yield server.url, nc, js, seen


async def rate(kind: str, count: int, seed: int) -> tuple[float, list[float]]:
    """Return the messages handled in a second, and the share of each process."""
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, KEYS + 1)]
    async with ground() as (url, _, js, seen):
        processing = processes(url, kind, MEMBERS if kind == "group" else 1, 5.0, HANDLER_S)
        async with processing:
            if kind == "group":
                await until_shared(js, MEMBERS)
            async with js.publisher() as publisher:
                for number, key in enumerate(rng.choices(range(KEYS), weights, k=count)):
                    await publisher.publish(f"o.{key}", b"%d" % number)
            while len(seen.began) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            times = [at for at, _ in seen.began.values()]
            return count / (max(times) - min(times)), sorted(n / count for n in seen.by.values())


async def move(ttl: float, seed: int) -> tuple[float, float, float]:
    """Kill one of three. Return the seconds until the first and the last of its keys went on, and the longest wait of a
    message of the others.
    """
    rng = random.Random(seed)
    published: dict[tuple[str, int], float] = {}
    async with ground() as (url, _, js, seen), processes(url, "group", 3, ttl, MOVE_HANDLER_S) as started:
        await until_shared(js, 3)

        async def publish() -> None:
            for number in range(1_000_000):
                key = str(rng.randrange(MOVE_KEYS))
                published[key, number] = monotonic()
                await js.publish(f"o.{key}", b"%d" % number)
                await asyncio.sleep(1 / MOVE_RATE)

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(2 + rng.uniform(0, ttl))
        victim = rng.choice(list(started))
        started[victim].kill()
        killed_at = monotonic()
        await asyncio.sleep(ttl + 3)
        publishing.cancel()
        owner = {
            key: who for (key, _), (at, who) in sorted(seen.began.items(), key=lambda one: one[1]) if at < killed_at
        }
        first: dict[str, float] = {}
        for (key, _), (at, who) in sorted(seen.began.items(), key=lambda one: one[1]):
            if at > killed_at and who != victim and owner.get(key) == victim:
                first.setdefault(key, at - killed_at)
        others = [
            at - published[one]
            for one, (at, _) in seen.began.items()
            if owner.get(one[0]) != victim and killed_at < published[one] < killed_at + ttl + 2
        ]
        return min(first.values()), max(first.values()), max(others)


async def main(count: int, repetitions: int) -> None:
    print(f"{PARTITIONS} partitions, {MEMBERS} members, {KEYS} keys by Zipf, handler {HANDLER_S * 1000:g} ms")
    for kind in ("group", "key="):
        results = [await rate(kind, count, seed) for seed in range(repetitions)]
        shares = ", ".join(f"{share:.0%}" for share in results[0][1])
        print(f"{kind}: {statistics.median(one for one, _ in results):,.0f} handled/s; shares {shares}", flush=True)
    print("| ttl | first key of the dead member after | last one | longest wait of other keys |")
    print("|---|---|---|---|")
    for ttl in (1.0, 2.0, 5.0):
        moves = [await move(ttl, seed) for seed in range(repetitions)]
        first, last, others = (statistics.median(figures) for figures in zip(*moves, strict=True))
        print(f"| {ttl:g} s | {first:.2f} s | {last:.2f} s | {others:.2f} s |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(*sys.argv[2:]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--count", type=int, default=10_000)
        parser.add_argument("--repetitions", type=int, default=3)
        args = parser.parse_args()
        asyncio.run(main(args.count, args.repetitions))
