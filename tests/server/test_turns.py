"""Readers and handlers that do not let the event loop run, on the real server: others get their turn nevertheless."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

import natsproto
from natsproto import Client, Message, Subscription
from natsproto.service import Request
from natsproto.testing import Server
from tests.kit.waiting import until

COST_S = 0.003
MESSAGES = 60
SHARE = 10
"""Turns of another task while MESSAGES messages are handled: one for each 5 ms, and half of them at the least."""


def burn_cpu() -> None:
    end = time.thread_time() + COST_S
    while time.thread_time() < end:
        pass


async def by_loop(nc: Client, done: Callable[[Message], None]) -> Awaitable[object]:
    subscription = await nc.subscribe("a")

    async def read() -> None:
        async for message in subscription:
            done(message)

    return asyncio.create_task(read())


async def by_next(nc: Client, done: Callable[[Message], None]) -> Awaitable[object]:
    subscription = await nc.subscribe("a")

    async def read() -> None:
        for _ in range(MESSAGES):
            done(await subscription.next())

    return asyncio.create_task(read())


async def by_batches(nc: Client, done: Callable[[Message], None]) -> Awaitable[object]:
    subscription = await nc.subscribe("a")

    async def read() -> None:
        async for batch in subscription.batches(2):
            for message in batch:
                done(message)

    return asyncio.create_task(read())


async def by_def(nc: Client, done: Callable[[Message], None]) -> Subscription:
    return await nc.subscribe("a", cb=done)


async def by_async(nc: Client, done: Callable[[Message], None]) -> Subscription:
    async def handle(message: Message) -> None:
        done(message)

    return await nc.subscribe("a", cb=handle)


async def by_endpoint(nc: Client, done: Callable[[Message], None]) -> object:
    async def handle(request: Request) -> None:
        done(request)

    return (await nc.add_service("s", "1.0.0")).add_endpoint("e", handle, subject="a")


KINDS = [by_loop, by_next, by_batches, by_def, by_async, by_endpoint]


@pytest.mark.parametrize("kind", KINDS)
async def test_readers_of_all_kinds_let_others_run(
    nats_server: Server, kind: Callable[[Client, Callable[[Message], None]], Awaitable[object]]
) -> None:
    handled: list[int] = []
    turns = 0

    def done(message: Message) -> None:
        burn_cpu()
        handled.append(int(message.data))

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async with natsproto.connect(nats_server.url) as nc, natsproto.connect(nats_server.url) as sender:
        reader = await kind(nc, done)
        await nc.flush()
        for number in range(MESSAGES):
            sender.publish_nowait("a", b"%d" % number)
        await sender.flush()
        beat = asyncio.create_task(other())
        await until(lambda: len(handled) == MESSAGES)
        beat.cancel()
        assert turns >= SHARE
        assert handled == list(range(MESSAGES))
        if isinstance(reader, asyncio.Task):
            reader.cancel()


async def test_readers_of_several_clients_share_the_time(nats_server: Server, seed: int) -> None:
    """Each gets at least half of its share, and other tasks get turns."""
    rng = random.Random(seed)
    counts: Counter[int] = Counter()
    turns = 0
    async with (
        natsproto.connect(nats_server.url) as first,
        natsproto.connect(nats_server.url) as second,
        natsproto.connect(nats_server.url) as sender,
    ):

        def handler(number: int) -> Callable[[Message], None]:
            def done(message: Message) -> None:
                burn_cpu()
                counts[number] += 1

            return done

        readers = [
            await rng.choice([by_loop, by_async, by_def])(rng.choice([first, second]), handler(number))
            for number in range(rng.randint(2, 6))
        ]
        await first.flush()
        await second.flush()
        for _ in range(MESSAGES):
            sender.publish_nowait("a")
        await sender.flush()
        while sum(counts.values()) < len(readers) * MESSAGES / 2:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= SHARE
        assert min(counts[number] for number in range(len(readers))) >= MESSAGES / 4, counts
        for reader in readers:
            if isinstance(reader, asyncio.Task):
                reader.cancel()
        await first.close()
        await second.close()
