"""Every call on a bucket may be cancelled at any await; no request, inbox, listener or task is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from natsproto import Client
from natsproto.errors import KeyExists, KeyNotFound
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.kv import KeyValue
from tests.kit.contents import all_keys
from tests.kit.interruption import interruptions
from tests.kit.tasks import end_of_tasks

Call = Callable[[KeyValue], Awaitable[object]]


async def _get(kv: KeyValue) -> object:
    return await kv.get("k.1")


async def _history(kv: KeyValue) -> object:
    return await kv.history("k.1")


async def _get_many(kv: KeyValue) -> object:
    return await kv.get_many(["k.*"])


async def _create(kv: KeyValue) -> object:
    try:
        return await kv.create("k.1", b"x")
    except KeyExists:
        return None


async def _write_together(kv: KeyValue) -> object:
    async with kv.atomic() as batch:
        for number in range(3):
            await batch.put(f"k.{number}", b"y")
    return batch.revisions


async def _watch(kv: KeyValue) -> object:
    async with kv.watch() as watcher:
        await watcher.ready()
        return [await watcher.next(5) for _ in range(3)]


async def _cache(kv: KeyValue) -> object:
    async with kv.cache() as cache:
        await cache.wait_for(await kv.put("k.1", b"z"))
        return dict(cache)


async def _purge_deletes(kv: KeyValue) -> object:
    await kv.delete("k.gone")
    return await kv.purge_deletes(older_than=0)


async def _lock(kv: KeyValue) -> object:
    lock = kv.lock("lock", ttl=60)
    assert await lock.try_acquire(), "a cancelled run has left the lock"
    try:
        return await lock.put("k.1", b"locked")
    finally:
        await lock.release()


async def _locked_block(kv: KeyValue) -> object:
    async with kv.lock("lock", ttl=60) as lock:
        return lock.token


@pytest.mark.parametrize(
    "call",
    [
        _get,
        _history,
        _get_many,
        _create,
        _write_together,
        all_keys,
        _watch,
        _cache,
        _purge_deletes,
        _lock,
        _locked_block,
    ],
    ids=lambda call: call.__name__.strip("_"),
)
async def test_cancelled_call_leaves_nothing(jetstream: JetStream, nats_client: Client, call: Call) -> None:
    kv = await jetstream.create_key_value(
        bucket="b", history=2, allow_atomic=True, limit_marker_ttl=1, storage="memory"
    )
    for number in range(5):
        await kv.put(f"k.{number}", b"x")
    with pytest.raises(KeyNotFound):
        await kv.get("warm")
    engine = nats_client._engine
    inboxes, listeners = len(engine.registry.table), len(engine.event_bus._listeners)
    tasks = asyncio.all_tasks()
    async for run in interruptions(lambda: call(kv)):
        run.check()
        await end_of_tasks(tasks)  # unread pulls and locks end on the server in the background
        assert len(engine.registry.request_mux()) == 0, "a request was left"
        assert len(engine.registry.table) == inboxes, "an inbox was left"
        assert len(engine.event_bus._listeners) == listeners, "a listener was left"
        assert (await kv.get("k.3")).key == "k.3"


async def test_a_cancelled_reader_loses_no_entry(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=64, storage="memory")
    seen: list[int] = []
    async with kv.watch("k", include_history=True) as watcher:

        async def read() -> object:
            seen.append((await watcher.next(5)).revision)
            return None

        last = 0
        async for run in interruptions(read):
            run.check()
            last = await kv.put("k", b"x")
        async with asyncio.timeout(20):
            while seen[-1:] != [last]:
                seen.append((await watcher.next()).revision)
    assert seen == [*range(1, last + 1)]
