"""Entering a reader waits until the server confirms that it exists: what is written behind it is seen."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import BucketNotFound, ConnectionClosed, StreamNotFound, SubscriptionClosed
from tests.jetstream.reading import make, numbers, open_subscriptions
from tests.kit.interruption import interruptions
from tests.kit.tasks import end_of_tasks
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0
ROUNDS = 10
BOTH = pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])


@asynccontextmanager
async def _writer(nats_server: Server) -> AsyncIterator[JetStream]:
    """Another connection: what it writes does not wait behind what the reader has sent."""
    async with natsproto.connect(nats_server.url) as nc:
        js = nc.jetstream()
        await js.account_info()  # its inbox is open
        yield js


@BOTH
async def test_entering_ordered_waits(jetstream: JetStream, nats_server: Server, push: bool) -> None:
    stream = await make(jetstream)
    async with _writer(nats_server) as writer:
        for number in range(ROUNDS):
            ordered = stream.ordered_consumer(deliver_policy="new", push=push)
            async with ordered.messages() as messages:
                assert ordered.cached_info.name == ordered.name
                await writer.publish("s.a", str(number).encode())
                assert numbers([await messages.next(LONG)]) == [number]


@BOTH
async def test_entering_ordered_consume_waits(jetstream: JetStream, nats_server: Server, push: bool) -> None:
    stream = await make(jetstream)
    seen: list[bytes] = []
    async with _writer(nats_server) as writer:
        for number in range(ROUNDS):
            ordered = stream.ordered_consumer(deliver_policy="new", push=push)
            async with ordered.consume(lambda message: seen.append(message.data), stop_after=1) as consumption:
                await writer.publish("s.a", str(number).encode())
                async with asyncio.timeout(LONG):
                    await consumption.wait()
    assert seen == [str(number).encode() for number in range(ROUNDS)]


async def test_entering_watch_waits(jetstream: JetStream, nats_server: Server) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    async with _writer(nats_server) as js:
        writers = [await js.key_value("b"), kv]
        for number in range(ROUNDS):
            value = str(number).encode()
            async with kv.watch(updates_only=True) as watcher:
                await writers[number % 2].put("a", value)
                assert (await watcher.next(LONG)).value == value


async def test_entering_empty_watch_is_ready(jetstream: JetStream) -> None:
    """That there is nothing at the beginning is known when the watch is: no task is needed to find out."""
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    async with kv.watch() as watcher:
        assert watcher.caught_up
        assert "natsproto watch" not in {task.get_name() for task in asyncio.all_tasks()}
    await kv.put("a", b"1")
    async with kv.watch(updates_only=True) as watcher:
        assert watcher.caught_up


async def test_entering_cache_waits(jetstream: JetStream, nats_server: Server) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    async with _writer(nats_server) as js:
        writer = await js.key_value("b")
        for number in range(ROUNDS):
            async with kv.cache() as cache:
                await cache.wait_for(await writer.put("a", b"%d" % number), timeout=LONG)
                assert cache["a"] == b"%d" % number


async def test_entering_object_watch_waits(jetstream: JetStream, nats_server: Server) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    async with _writer(nats_server) as js:
        writer = await js.object_store("files")
        for number in range(ROUNDS):
            async with store.watch(updates_only=True) as watcher:
                await writer.put(f"n{number}", b"1")
                assert (await watcher.next(LONG)).name == f"n{number}"


def test_entering_sync_reader_waits(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as client, sync.connect(nats_server.url) as other:
        js, writer = client.jetstream(), other.jetstream()
        stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
        kv = js.create_key_value(bucket="b", storage="memory")
        keys = writer.key_value("b")
        for number in range(ROUNDS):
            value = str(number).encode()
            with stream.ordered_consumer(deliver_policy="new").messages() as messages:
                writer.publish("s.a", value)
                assert messages.next(LONG).data == value
            with kv.watch(updates_only=True) as watcher:
                keys.put("a", value)
                assert watcher.next(LONG).value == value


# ---------------------------------------------------------------- what comes between


async def test_entering_waits_for_the_server(nats_server: Server) -> None:
    """During an outage: until the server is there again."""
    async with natsproto.connect(nats_server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js, storage="file")
        nats_server.kill()
        await eventually(lambda: not nc.is_connected)
        messages = stream.ordered_consumer(deliver_policy="new").messages()
        entering = asyncio.ensure_future(messages.__aenter__())
        done, _ = await asyncio.wait({entering}, timeout=0.05)
        assert not done
        await nats_server.restart()
        async with asyncio.timeout(LONG), await entering:
            await js.publish("s.a", b"1")
            assert numbers([await messages.next(LONG)]) == [1]


async def test_entering_ends_with_the_client(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url, reconnect_wait=0.01)
    kv = await nc.jetstream().create_key_value(bucket="b")
    stream = await nc.jetstream().stream("KV_b")
    nats_server.kill()
    await eventually(lambda: not nc.is_connected)
    messages, watcher, cache = stream.ordered_consumer().messages(), kv.watch(), kv.cache()
    entering = [asyncio.ensure_future(reader.__aenter__()) for reader in (messages, watcher)]
    caching = asyncio.ensure_future(cache.__aenter__())
    await asyncio.sleep(0)
    await nc.close()
    async with asyncio.timeout(LONG):
        await asyncio.gather(*entering)
        with pytest.raises((ConnectionClosed, SubscriptionClosed)):
            await caching
    assert messages.closed
    assert [entry async for entry in watcher] == []


async def test_entering_tells_readers_what_failed(jetstream: JetStream) -> None:
    """Entering raises nothing that reading raises: reading is where it is expected."""
    stream = await jetstream.stream("nope", bind=True)
    async with stream.ordered_consumer().messages() as messages:
        with pytest.raises(StreamNotFound):
            await messages.next(LONG)
    kv = await jetstream.create_key_value(bucket="b")
    await jetstream.delete_key_value("b")
    async with kv.watch() as watcher:
        with pytest.raises(BucketNotFound):
            await watcher.next(LONG)


async def test_cancelled_entering_leaves_nothing(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 3)
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    tasks = asyncio.all_tasks()

    async def enter() -> None:
        for push in (False, True):
            async with AsyncExitStack() as entered:
                await entered.enter_async_context(stream.ordered_consumer(push=push).messages())
                await entered.enter_async_context(stream.ordered_consumer(push=push).consume(lambda message: None))
                await entered.enter_async_context(kv.watch())
                await entered.enter_async_context(store.watch())

    async for run in interruptions(enter):
        run.check()
        await end_of_tasks(tasks)
    assert open_subscriptions(nats_client) == 0
    for name in ("S", "KV_b", "OBJ_files"):
        held = await jetstream.stream(name)
        async with asyncio.timeout(LONG):
            while (await held.info()).state.consumer_count:  # noqa: ASYNC110  # nobody tells of deletions
                await asyncio.sleep(0.01)
