"""Watching a store: what there is, then what happens, and when the first is complete."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from natsproto import Client
from natsproto.errors import BucketNotFound, LocalProtocolError, RequestTimeout, SubscriptionClosed
from natsproto.jetstream._consumer import watch
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.objectstore import ObjectWatcher
from natsproto.testing._server import Server
from tests.jetstream.reading import open_subscriptions
from tests.kit.interruption import interruptions
from tests.kit.tasks import end_of_tasks
from tests.objectstore.helpers import add_links


def caught_up(watcher: ObjectWatcher) -> bool:
    """Asked anew each time; a type checker takes a property for a constant."""
    return watcher.caught_up


async def test_watch_shows_objects_then_changes(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    for name in "abc":
        await store.put(name, name.encode())
    await store.delete("b")
    async with store.watch() as watcher:
        seen = [await watcher.next(timeout=5) for _ in range(2)]
        assert not caught_up(watcher)
        seen.append(await watcher.next(timeout=5))
        assert caught_up(watcher)
        assert [(info.name, info.deleted) for info in seen] == [("a", False), ("c", False), ("b", True)]
        assert seen[0] == await store.info("a")
        await store.put("d", b"4")
        happened = [await watcher.next(timeout=5)]
        await store.update_meta("d", description="new")  # takes the place of what was not told yet
        await store.delete("a")
        happened += [await watcher.next(timeout=5) for _ in range(2)]
        reported = [(info.name, info.description, info.deleted) for info in happened]
        assert reported == [("d", "", False), ("d", "new", False), ("a", "", True)]
        with pytest.raises(RequestTimeout):
            await watcher.next(timeout=0.02)


async def test_deleted_objects_are_left_out_if_wanted(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    for name in "ab":
        await store.put(name, b"1")
    await store.delete("b")
    async with store.watch(ignore_deletes=True) as watcher:
        await watcher.ready()
        assert not caught_up(watcher)
        assert (await watcher.next(timeout=5)).name == "a"
        assert caught_up(watcher)
        await store.delete("a")
        await store.put("c", b"1")
        assert (await watcher.next(timeout=5)).name == "c"


async def test_only_what_happens_from_now_on_if_wanted(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("a", b"1")
    async with store.watch(updates_only=True) as watcher:
        await watcher.ready()
        assert caught_up(watcher)
        await store.put("b", b"1")
        assert (await watcher.next(timeout=5)).name == "b"


async def test_an_empty_store_is_ready_at_once(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    async with store.watch() as watcher, asyncio.timeout(5):
        await watcher.ready()
        assert caught_up(watcher)
        reading = asyncio.create_task(watcher.next())
        await store.put("a", b"1")
        assert (await reading).name == "a"


async def test_ready_need_not_be_read_for(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await add_links(store, 1200)
    async with store.watch() as watcher:
        async with asyncio.timeout(10):
            await watcher.ready()
        seen = []
        async for info in watcher:
            seen.append(info.name)
            if watcher.caught_up:
                break
        assert sorted(seen) == sorted(f"n{number}" for number in range(1200))


async def test_watch_of_objects_removed_meanwhile(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_INTERVAL_S", 0.1)
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await add_links(store, 2000)
    async with store.watch() as watcher:
        await watcher.next(timeout=5)  # a part of them is on its way now
        await store._index.stream.purge()
        async with asyncio.timeout(10):
            await watcher.ready()


async def test_watch_is_used_in_its_block_and_leaves_nothing(jetstream: JetStream, nats_client: Client) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    before, tasks = open_subscriptions(nats_client), asyncio.all_tasks()
    watcher = store.watch()
    with pytest.raises(LocalProtocolError, match="enter the watch"):
        await watcher.next()
    async with watcher:
        reading = asyncio.create_task(anext(watcher, None))
        await asyncio.sleep(0)
        await watcher.stop()
        assert await reading is None
        with pytest.raises(SubscriptionClosed):
            await watcher.next()
        await watcher.ready()  # an empty store was complete when it was entered
    async with asyncio.timeout(10):
        while [name async for name in store._index.stream.consumer_names()]:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    assert open_subscriptions(nats_client) == before
    await end_of_tasks(tasks)


async def test_cancelling_who_reads_loses_nothing(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    seen: list[str] = []
    async with store.watch() as watcher:
        await watcher.ready()
        count = 0

        async def one() -> object:
            seen.append((await watcher.next(timeout=5)).name)
            return None

        async def another() -> None:
            nonlocal count
            count += 1
            await store.add_bucket_link(f"n{count}", "x")

        await another()
        async for run in interruptions(one):
            run.check()
            await another()
        while len(seen) < count:
            await one()
    assert seen == [f"n{number}" for number in range(1, count + 1)]


async def test_watch_with_several_readers(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    watcher, seen, all_came = store.watch(), list[list[str]](), asyncio.Event()

    def saw(share: list[str], name: str) -> None:
        share.append(name)
        if sum(map(len, seen)) >= 60:
            all_came.set()

    async def each(share: list[str]) -> None:
        async for info in watcher:
            saw(share, info.name)
            await asyncio.sleep(0)  # somebody else's turn

    async def one_by_one(share: list[str]) -> None:
        while True:
            saw(share, (await watcher.next(timeout=20)).name)

    async with asyncio.timeout(20), watcher:
        readers: list[asyncio.Task[None]] = []
        for read in (each, each, one_by_one):
            seen.append([])
            readers.append(asyncio.create_task(read(seen[-1])))
        await watcher.ready()
        names = [f"n{number:02}" for number in range(60)]
        for begin in range(0, 60, 20):
            await asyncio.gather(*(store.add_bucket_link(name, "x") for name in names[begin : begin + 20]))
        await all_came.wait()
        await jetstream.delete_object_store("files")
        ends = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(end) for end in ends] == 3 * [BucketNotFound]
    assert sorted(chain.from_iterable(seen)) == names


async def test_a_watcher_hears_that_its_store_is_gone(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("a", b"1")
    async with store.watch() as watcher:
        await watcher.next(timeout=5)
        await jetstream.delete_object_store("files")
        with pytest.raises(BucketNotFound):
            await watcher.next(timeout=20)


async def test_a_watcher_goes_on_over_a_restart(nats_server: Server, jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    await store.put("a", b"1")
    async with store.watch() as watcher:
        assert (await watcher.next(timeout=5)).name == "a"
        nats_server.kill()
        await nats_server.restart()
        await store.put("b", b"2", timeout=10)
        assert (await watcher.next(timeout=10)).name == "b"
