"""Acknowledgements of messages that arrive together leave together, unless a handler takes long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

import natsproto
from natsproto import Client
from natsproto._core.socket.transport import SocketWire
from natsproto.jetstream import JsMessage, PullConsumer
from natsproto.jetstream._consumer import consume, messages
from natsproto.jetstream._consumer.delivery import buffer
from natsproto.testing import Server
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.waiting import until

BURSTS = 40


@pytest.fixture
async def worker(nats_server: Server) -> AsyncIterator[tuple[Client, PullConsumer, list[bytes]]]:
    """A client that writes nothing but acknowledgements and pulls, its consumer, and what it writes."""
    written: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        async with natsproto.connect(nats_server.url) as nc:
            stream = await nc.jetstream().create_stream("S", subjects=["s"])
            consumer = await stream.create_consumer("c")
            mine, write = nc._outbox._wire, SocketWire.write

            def record(wire: SocketWire, data: bytes) -> None:
                if wire is mine:
                    written.append(data)
                write(wire, data)

            patch.setattr(SocketWire, "write", record)
            yield nc, consumer, written


async def publish_bursts(url: str, rng: random.Random, handled: list[JsMessage]) -> None:
    async with natsproto.connect(url) as nc:
        for _ in range(BURSTS):
            expected = len(handled) + (count := rng.randint(1, 3))
            nc._outbox.cork()  # the server gets all of them at once
            for _ in range(count):
                nc.publish_nowait("s", b"x")
            await until(lambda expected=expected: len(handled) == expected)  # type: ignore[misc]


@pytest.mark.parametrize("how", ["consume", "messages"])
async def test_acknowledgements_of_a_burst_are_one_write(
    worker: tuple[Client, PullConsumer, list[bytes]], monkeypatch: pytest.MonkeyPatch, how: str, seed: int
) -> None:
    nc, consumer, written = worker
    for module in (buffer, consume, messages):
        monkeypatch.setattr(module, "FAST_CALL_S", 0.1)  # the pauses of a busy machine are no handle times
    handled: list[JsMessage] = []

    async def handle(message: JsMessage) -> None:
        handled.append(message)

    async def read() -> None:
        async with consumer.messages() as reading:
            async for message in reading:
                handled.append(message)
                await message.ack()

    running = asyncio.create_task(read() if how == "messages" else consumer.consume(handle).run())
    await publish_bursts(nc.connected_url, random.Random(seed), handled)
    await until_all_acknowledged(consumer)
    running.cancel()
    await asyncio.wait((running,))
    acks = [data.count(b"+ACK") for data in written if b"+ACK" in data]
    assert sum(acks) == len(handled)
    assert len(acks) <= BURSTS * 1.4, "a burst may be read in two parts; without gathering it is 1.7"


async def test_long_handlers_hold_no_acknowledgement(
    worker: tuple[Client, PullConsumer, list[bytes]],
) -> None:
    client, consumer, written = worker
    sent: list[int] = []

    def handle(message: JsMessage) -> None:
        sent.append(sum(data.count(b"+ACK") for data in written))
        time.sleep(0.006)  # of a blocking handler's own

    async with natsproto.connect(client.connected_url) as nc, consumer.consume(handle) as working:
        await until(lambda: bool(written))
        for _ in range(20):
            nc.publish_nowait("s", b"x")
        await until(lambda: working.handled == 20)
    assert all(number - before <= 1 for number, before in enumerate(sent))
