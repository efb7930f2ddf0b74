"""Errors by idea: what does not exist is a NotFound, what exists an AlreadyExists, wherever it is asked for."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable

import pytest

import natsproto
from natsproto import errors
from natsproto.errors import (
    AlreadyExists,
    BucketNotFound,
    ConsumerDeleted,
    ConsumerGone,
    ConsumerNotFound,
    MessageNotFound,
    NoStream,
    NotFound,
    StreamProtected,
)
from natsproto.jetstream import JetStream
from natsproto.jetstream.groups import StaticGroup
from natsproto.testing import run_server
from tests.jetstream.reading import known, make


async def test_missing_things_are_not_found(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    kv = await jetstream.create_key_value("b")
    store = await jetstream.create_object_store("o")
    missing: dict[type[NotFound], Callable[[], Awaitable[object]]] = {
        errors.StreamNotFound: lambda: jetstream.stream("T"),
        errors.ConsumerNotFound: lambda: stream.consumer("c"),
        errors.MessageNotFound: lambda: stream.get_message(99),
        errors.BucketNotFound: lambda: jetstream.key_value("c"),
        errors.KeyNotFound: lambda: kv.get("a"),
        errors.ObjectNotFound: lambda: store.info("a"),
        errors.GroupNotFound: lambda: StaticGroup.open(jetstream, "S", "g"),
    }
    for kind, call in missing.items():
        with pytest.raises(NotFound) as caught:
            await call()
        assert type(caught.value) is kind


async def test_existing_things_already_exist(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    await stream.create_consumer("c")
    kv = await jetstream.create_key_value("b", allow_atomic=True)
    await kv.put("a", b"1")
    store = await jetstream.create_object_store("o")
    await store.put("a", b"1")
    await store.put("b", b"1")
    existing: dict[type[AlreadyExists], Callable[[], Awaitable[object]]] = {
        errors.StreamExists: lambda: jetstream.create_stream("S", max_msgs=5),
        errors.ConsumerExists: lambda: stream.create_consumer("c", max_deliver=5),
        errors.BucketExists: lambda: jetstream.create_key_value("b", history=5),
        errors.KeyExists: lambda: kv.create("a", b"2"),
        errors.ObjectExists: lambda: store.update_meta("a", rename="b"),
    }
    for kind, call in existing.items():
        with pytest.raises(AlreadyExists) as caught:
            await call()
        assert type(caught.value) is kind


@pytest.mark.parametrize("how", ["messages", "next", "consume", "fetch"])
async def test_deleted_consumer_is_gone_and_not_found(jetstream: JetStream, how: str) -> None:
    stream = await make(jetstream, 0)
    consumer = await stream.create_consumer("c")

    async def read() -> object:
        if how == "messages":
            async with consumer.messages() as messages:
                return await messages.next()
        if how == "consume":
            await consumer.consume(print).run()
        return await (consumer.next() if how == "next" else consumer.fetch(1))

    reading = asyncio.ensure_future(read())
    await known(consumer, lambda info: info.num_waiting > 0)
    await consumer.delete()
    with pytest.raises(ConsumerDeleted, match=r"^consumer 'c' of stream 'S': Consumer Deleted$") as caught:
        await reading
    error = caught.value
    assert isinstance(error, ConsumerGone)
    assert isinstance(error, ConsumerNotFound)
    assert (error.code, error.err_code, error.stream, error.consumer) == (404, 10014, "S", "c")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.reason) == (str(error), error.reason)


async def test_pull_of_a_push_consumer_is_only_gone(jetstream: JetStream) -> None:
    stream = await make(jetstream, 0)
    await stream.create_push_consumer("p", deliver_subject="to.p")
    with pytest.raises(ConsumerGone) as caught:
        await (await stream.consumer("p", bind=True)).next()
    assert not isinstance(caught.value, NotFound)


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("seq", [2, 9999])
async def test_deleting_a_missing_message_is_not_found(jetstream: JetStream, storage: str, seq: int) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"], storage=storage)  # type: ignore[arg-type]
    for _ in range(3):
        await jetstream.publish("s")
    await stream.delete_message(2)
    for erase in (False, True):
        with pytest.raises(MessageNotFound, match=f"sequence {seq} not found") as caught:
            await stream.delete_message(seq, erase=erase)
        assert caught.value.err_code == 10043
    await stream.update(deny_delete=True)
    with pytest.raises(StreamProtected):
        await stream.delete_message(1)


async def test_write_to_a_missing_bucket_says_so(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b", allow_atomic=True, limit_marker_ttl=2)
    await jetstream.delete_key_value("b")

    async def batch(count: int) -> None:
        async with kv.atomic() as writes:
            for number in range(count):
                await writes.put(f"k{number}", b"1")

    async def lock() -> None:
        async with kv.lock("l"):
            pass

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: kv.put("a", b"1"),
        lambda: kv.put("a", b"1", ttl=5),
        lambda: kv.create("a", b"1"),
        lambda: kv.update("a", b"1", 3),
        lambda: kv.delete("a"),
        lambda: kv.purge("a"),
        lambda: batch(1),
        lambda: batch(3),
        lock,
    ]
    for call in calls:
        with pytest.raises(BucketNotFound) as caught:
            await call()
        assert isinstance(caught.value.__cause__, NoStream)


async def test_write_without_permission_to_look_is_as_before() -> None:
    user = '{user: u, password: p, permissions: {publish: {deny: "$JS.API.STREAM.INFO.KV_b"}}}'
    async with (
        run_server(jetstream=True, config=f"authorization: {{users: [{user}]}}") as server,
        natsproto.connect(server.url, user="u", password="p") as client,
    ):
        kv = await client.jetstream().key_value("b", bind=True)
        with pytest.raises(NoStream):
            await kv.put("a", b"1")
