"""Several readers of one ``messages()``: while one holds a message, the others get the next ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from natsproto import sync
from tests.jetstream.reading import make, store
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.messages import Messages
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

READERS = 3


async def _by_next(messages: Messages) -> AsyncIterator[object]:
    while True:
        yield await messages.next()


WAYS: dict[str, Callable[[Messages], AsyncIterator[object]]] = {
    "each": lambda messages: messages.__aiter__(),
    "next": _by_next,
    "batches": lambda messages: messages.batches(),
    "batches(10)": lambda messages: messages.batches(10),
    "window": lambda messages: messages.batches(10, max_wait=0.01),
}
SYNC_WAYS: dict[str, Callable[[sync.Messages], Iterator[object]]] = {
    "each": iter,
    "next": lambda messages: iter(messages.next, None),
    "batches": lambda messages: messages.batches(),
    "batches(10)": lambda messages: messages.batches(10),
}


@pytest.mark.parametrize("stored", ["before", "after"])
@pytest.mark.parametrize("ways", [[way] * READERS for way in WAYS] + [["each", "next", "batches"]], ids=" ".join)
async def test_all_readers_hold_a_message(jetstream: JetStream, ways: list[str], stored: str) -> None:
    stream = await make(jetstream, 500 if stored == "before" else 0)
    consumer = await stream.create_consumer(durable_name="d")
    holding: list[int] = []

    async def read(number: int, way: str) -> None:
        async for _ in WAYS[way](messages):
            holding.append(number)
            await asyncio.Event().wait()

    async with consumer.messages() as messages:
        tasks = [asyncio.ensure_future(read(number, way)) for number, way in enumerate(ways)]
        if stored == "after":
            await asyncio.sleep(0)
            await store(stream, range(500))
        await eventually(lambda: len(holding) == READERS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert sorted(holding) == list(range(READERS))


async def test_reader_that_comes_later_gets_messages(jetstream: JetStream) -> None:
    stream = await make(jetstream, 500)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages() as messages:
        for way in WAYS.values():
            reader = way(messages)
            async with asyncio.timeout(30):
                assert await anext(reader)


@pytest.mark.parametrize("way", SYNC_WAYS)
async def test_all_threads_hold_a_message(jetstream: JetStream, nats_server: Server, way: str) -> None:
    stream = await make(jetstream, 500)
    await stream.create_consumer(durable_name="d")
    all_hold = threading.Barrier(READERS)

    def work() -> None:
        with sync.connect(nats_server.url) as nc, nc.jetstream().stream("S").consumer("d").messages() as messages:

            def read() -> None:
                for _ in SYNC_WAYS[way](messages):
                    all_hold.wait(30)
                    return

            threads = [threading.Thread(target=read) for _ in range(READERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await asyncio.to_thread(work)
    assert not all_hold.broken
