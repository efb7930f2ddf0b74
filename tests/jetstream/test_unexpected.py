"""A bug in what goes on in the background: nobody waits for ever, and whoever reads hears of it, with its traceback."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from natsproto.errors import JetStreamError
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer import watch as watching
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._consumer.ordered.ordered_cursor import OrderedCursor
from natsproto.jetstream._consumer.ordered.ordered_reader import OrderedReader
from natsproto.jetstream._consumer.ordered.ordered_state import OrderedState
from natsproto.jetstream._consumer.pull.pull_state import PullState
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream.kv._cache import KeyValueCache
from natsproto.testing._server import Server
from tests.jetstream.reading import crash, make, numbers, store

LONG = 20.0
BOTH = pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])


class Bug(Exception):
    """Nobody foresees this one."""


def stumble(*args: object, **fields: object) -> None:
    raise Bug("made by the test")


def is_told(error: BaseException) -> None:
    assert type(error) is JetStreamError
    assert "Bug('made by the test')" in str(error)
    assert isinstance(error.__cause__, Bug)
    assert error.__cause__.__traceback__ is not None


@BOTH
async def test_bug_in_creating_the_first_consumer(
    jetstream: JetStream, push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream, 3)
    monkeypatch.setattr(OrderedCursor, "next_consumer", stumble)
    ordered = stream.ordered_consumer(push=push)
    async with asyncio.timeout(LONG), ordered.messages() as messages:
        for waiting in (messages.next(), ordered.wait_created()):
            with pytest.raises(JetStreamError) as caught:
                await waiting
            is_told(caught.value)
    if not push:
        with pytest.raises(JetStreamError) as caught:
            await ordered.fetch(1, timeout=LONG)
        is_told(caught.value)


@BOTH
async def test_bug_in_creating_the_next_consumer(
    jetstream: JetStream, push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_cursor.PUSH_HEARTBEAT_S", 0.1)
    stream = await make(jetstream, 3)
    ordered = stream.ordered_consumer(push=push)
    async with asyncio.timeout(LONG), ordered.messages() as messages:
        seen = numbers([await messages.next()])
        monkeypatch.setattr(OrderedState, "create", stumble)
        await stream.delete_consumer(ordered.name)
        seen += numbers([await messages.next(), await messages.next()])
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)
    assert seen == [1, 2, 3]


async def test_bug_in_asking_about_a_silent_consumer(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream, 1)  # in memory
    consumer = await stream.create_consumer(durable_name="C")
    async with asyncio.timeout(LONG), consumer.messages() as messages:
        await messages.next()
        monkeypatch.setattr(Api, "call", stumble)
        await crash(nats_server, stream)
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)


async def test_bug_in_asking_about_a_silent_push_consumer(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_push_consumer(durable_name="P", idle_heartbeat=0.1)
    async with asyncio.timeout(LONG), consumer.messages() as messages:
        monkeypatch.setattr(Api, "call", stumble)
        await stream._api.connection.request("$JS.API.CONSUMER.DELETE.S.P")
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)


async def test_bug_in_handling_silence_ends_the_reader(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="C")
    monkeypatch.setattr(PullState, "on_deadline", stumble)
    async with asyncio.timeout(LONG), consumer.messages(expires=LONG, heartbeat=0.5) as messages:
        fetching = asyncio.create_task(consumer.fetch(1, timeout=LONG, heartbeat=0.5))
        ordered = stream.ordered_consumer()
        async with ordered.messages(expires=LONG, heartbeat=0.5) as in_order:
            await ordered.wait_created()
            await jetstream.account_info()
            nats_server.freeze()
            for waiting in (messages.next(), fetching, in_order.next()):
                with pytest.raises(JetStreamError) as caught:
                    await waiting
                is_told(caught.value)
            nats_server.thaw()


async def test_bug_in_handling_push_silence_ends_the_reader(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_cursor.PUSH_HEARTBEAT_S", 0.1)
    stream = await make(jetstream)
    ordered = stream.ordered_consumer(push=True)
    async with asyncio.timeout(LONG), ordered.messages() as messages:
        await ordered.wait_created()
        monkeypatch.setattr(OrderedCursor, "next_consumer", stumble)
        nats_server.freeze()
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)
        nats_server.thaw()


@BOTH
@pytest.mark.parametrize("where", ["on_messages", "on_heartbeat"])
async def test_bug_in_taking_messages_ends_the_reader(
    jetstream: JetStream, push: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_cursor.PUSH_HEARTBEAT_S", 0.1)
    stream = await make(jetstream)
    ordered = stream.ordered_consumer(push=push)
    async with asyncio.timeout(LONG), ordered.messages(expires=2, heartbeat=0.5) as messages:
        await ordered.wait_created()
        monkeypatch.setattr(OrderedCursor, where, stumble)
        if where == "on_messages":
            await store(stream, [1])
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)
    assert stream._api.connection.stats.reconnects == 0


async def test_bug_in_an_answered_pull_ends_it(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="C")
    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "put", stumble)
        async with asyncio.timeout(LONG):
            with pytest.raises(JetStreamError) as caught:
                await consumer.fetch(1, timeout=LONG)
            is_told(caught.value)
    assert stream._api.connection.stats.reconnects == 0
    await store(stream, [2])
    assert numbers(await consumer.fetch(1, timeout=LONG)) == [2]


@BOTH
async def test_bug_after_a_reconnect_ends_the_reader(
    jetstream: JetStream, push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream)
    ordered = stream.ordered_consumer(push=push)
    async with asyncio.timeout(LONG), ordered.messages() as messages:
        await ordered.wait_created()
        monkeypatch.setattr(PullState, "on_reconnect", stumble)
        monkeypatch.setattr(OrderedReader, "_start_run", stumble)
        await stream._api.connection.reconnect()
        with pytest.raises(JetStreamError) as caught:
            await messages.next()
        is_told(caught.value)


async def test_bug_in_an_empty_check_ends_a_watch(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    store = await jetstream.create_object_store(bucket="o")
    monkeypatch.setattr(watching, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(OrderedConsumer, "cached_info", SimpleNamespace(num_pending=1))
    monkeypatch.setattr(OrderedConsumer, "info", stumble)
    for watch in (kv.watch(), store.watch()):
        async with asyncio.timeout(LONG), watch as watcher:
            with pytest.raises(JetStreamError) as caught:
                await watcher.ready()
            is_told(caught.value)
            with pytest.raises(JetStreamError):
                await watcher.next()


async def test_bug_in_following_a_bucket_empties_its_cache(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    async with asyncio.timeout(LONG), kv.cache() as cache:
        monkeypatch.setattr(KeyValueCache, "_receive", stumble)
        revision = await kv.put("a", b"2")
        with pytest.raises(JetStreamError) as caught:
            await cache.wait_for(revision)
        is_told(caught.value)
        with pytest.raises(JetStreamError):
            cache["a"]


async def test_bug_in_removing_chunks_is_logged(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await jetstream.create_object_store(bucket="o")
    await store.put("a", b"1")
    monkeypatch.setattr(Stream, "purge", stumble)
    with caplog.at_level(logging.ERROR, "natsproto"):
        await store.put("a", b"2")
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [Bug]
