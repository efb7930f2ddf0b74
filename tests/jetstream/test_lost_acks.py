"""Acknowledgements that are lost with a connection are sent again; no message is lost with a server."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import natsproto
from natsproto.errors import NatsError, StreamWentBack
from natsproto.jetstream import JsMessage, PullConsumer
from natsproto.testing import Direction, FaultProxy, Server, run_server
from tests.jetstream.reading import known, make
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.waiting import eventually

WAYS = ["consume", "messages", "batches", "consume_batches"]


async def read_in(consumer: PullConsumer, way: str, handle: Callable[[JsMessage], Awaitable[None]]) -> None:
    """Handle and acknowledge messages until cancelled."""

    async def handle_all(batch: list[JsMessage]) -> None:
        for message in batch:
            await handle(message)

    if way == "consume":
        await consumer.consume(handle, concurrency=3).run()
    if way == "consume_batches":
        await consumer.consume_batches(handle_all, max_messages=10, max_wait=0.01).run()
    async with consumer.messages() as messages:
        if way == "messages":
            async for message in messages:
                await handle(message)
                await message.ack()
        async for batch in messages.batches():
            for message in batch:
                await handle(message)
                await message.ack()


@pytest.mark.parametrize("way", WAYS)
async def test_lost_acks_are_sent_again(nats_server: Server, way: str) -> None:
    """After the reconnect, so that no other reader gets the messages after ack_wait."""
    handled = Counter[int]()
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(nats_server.url) as other,
    ):
        stream = await make(other.jetstream(), 30)
        watched = await stream.create_consumer(durable_name="d")
        consumer = await (await nc.jetstream().stream("S")).consumer("d")

        async def handle(message: JsMessage) -> None:
            handled[message.seq] += 1
            if message.seq == 10:
                proxy.stall(Direction.TO_SERVER)
                asyncio.get_running_loop().call_later(0.05, end_connection)

        def end_connection() -> None:  # after the acknowledgement
            proxy.cut()
            proxy.heal()

        reading = asyncio.create_task(read_in(consumer, way, handle))
        try:
            await known(watched, lambda info: len(handled) == 30 and not info.num_ack_pending)
            info = await watched.info()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    assert set(handled.values()) == {1}
    assert info.num_redelivered == 0


@pytest.mark.parametrize("way", WAYS)
async def test_killed_server_loses_nothing(nats_server: Server, way: str, seed: int) -> None:
    """It has lost the last deliveries and acknowledgements: what it delivers anew is handled, perhaps again."""
    count, rng = 600, random.Random(seed)
    handled = Counter[int]()
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc:
        stream = await make(nc.jetstream(), count, storage="file")
        consumer = await stream.create_consumer(durable_name="d", ack_wait=2.0)

        async def handle(message: JsMessage) -> None:
            handled[message.seq] += 1
            await asyncio.sleep(0.001)

        reading = asyncio.create_task(read_in(consumer, way, handle))
        try:
            for end in sorted(rng.sample(range(count), 2)):
                await eventually(lambda end=end: len(handled) > end)  # type: ignore[misc]
                nats_server.kill()
                await eventually(lambda: not nc.is_connected)
                await nats_server.restart()
                await eventually(lambda: nc.is_connected)
            await known(consumer, lambda info: len(handled) == count and not info.num_ack_pending)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    assert set(handled) == set(range(1, count + 1))


async def test_consumer_recreated_in_an_outage_starts_empty(nats_server: Server) -> None:
    """What is acknowledged was another consumer's: everything is handled again."""
    handled = Counter[int]()
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(nats_server.url) as other,
    ):
        stream = await make(other.jetstream(), 10)
        await stream.create_consumer(durable_name="d")
        consumer = await (await nc.jetstream().stream("S")).consumer("d")

        async def handle(message: JsMessage) -> None:
            handled[message.seq] += 1

        async with consumer.consume(handle):
            await eventually(lambda: len(handled) == 10)
            await nc.flush()
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: not nc.is_connected)
            await stream.delete_consumer("d")
            await stream.create_consumer(durable_name="d")
            await proxy.allow()
            await eventually(lambda: handled.total() == 20)
    assert set(handled.values()) == {2}


@pytest.mark.parametrize("way", WAYS)
async def test_new_messages_with_old_sequences_are_handled(tmp_path: Path, way: str) -> None:
    """A stream that lost its end gives the sequences again that this reader has acknowledged."""
    handled: list[bytes] = []
    store, saved = tmp_path / "store", tmp_path / "saved"
    async with (
        run_server(jetstream=True, store_dir=store) as server,
        natsproto.connect(server.url, reconnect_wait=0.05) as nc,
        natsproto.connect(server.url, reconnect_wait=0.05) as other,
    ):
        stream = await nc.jetstream().create_stream("S", subjects=["s"], storage="file")
        consumer = await stream.create_consumer("d")

        async def handle(message: JsMessage) -> None:
            handled.append(message.data)

        async def publish(*payloads: bytes) -> None:
            for payload in payloads:
                while True:
                    try:
                        await other.jetstream().publish("s", payload)
                        break
                    except StreamWentBack:
                        break  # it is stored
                    except NatsError:
                        await asyncio.sleep(0.05)

        reading = asyncio.create_task(read_in(consumer, way, handle))
        await publish(b"1", b"2")
        await eventually(lambda: len(handled) == 2)
        await until_all_acknowledged(consumer)
        server.kill()
        shutil.copytree(store, saved)
        await server.restart()
        await publish(b"old 3", b"old 4")
        await eventually(lambda: handled[-1:] == [b"old 4"])
        server.kill()
        shutil.rmtree(store)
        shutil.copytree(saved, store)
        await server.restart()
        await publish(b"new 3", b"new 4", b"new 5")
        await eventually(lambda: b"new 5" in handled)
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.wait((reading,))
    assert handled[-3:] == [b"new 3", b"new 4", b"new 5"]
