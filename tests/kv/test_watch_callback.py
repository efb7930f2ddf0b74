"""Watching with a callback: of keys and of objects, by the rules of ``subscribe(cb=...)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from natsproto import Client, HandlerFailed
from natsproto.errors import BucketNotFound, LocalProtocolError
from natsproto.jetstream import JetStream
from natsproto.jetstream.kv import KeyValueEntry
from natsproto.jetstream.objectstore import ObjectInfo
from tests.kit.waiting import eventually


class Seen(list[str]):
    """What came, and an Event for a certain number."""

    def __init__(self) -> None:
        self.grown = asyncio.Event()

    def add(self, text: str) -> None:
        self.append(text)
        self.grown.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.grown.clear()
            await asyncio.wait_for(self.grown.wait(), 60)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
async def test_watch_callback_gets_every_entry_in_order(jetstream: JetStream, is_async: bool) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    for number in range(3):
        await kv.put(f"a.{number}", b"x")
    await kv.put("other", b"x")
    seen = Seen()

    def changed(entry: KeyValueEntry[bytes]) -> None:
        seen.add(f"{entry.key} {entry.operation.name}")

    async def changed_later(entry: KeyValueEntry[bytes]) -> None:
        await asyncio.sleep(0)
        changed(entry)

    async with kv.watch("a.*", cb=changed_later if is_async else changed) as watching:
        await watching.ready()
        assert seen == ["a.0 PUT", "a.1 PUT", "a.2 PUT"]
        await kv.delete("a.1")
        await seen.until(lambda: len(seen) == 4)
    assert seen[3] == "a.1 DELETE"


async def test_watch_callback_of_nothing_is_ready_at_once(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    async with kv.watch(cb=print) as watching:
        await watching.ready()


async def test_watch_callback_that_raises_is_reported(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    events, seen = list[object](), Seen()
    nats_client.add_listener(events.append)

    def changed(entry: KeyValueEntry[bytes]) -> None:
        seen.add(entry.key)
        if entry.key == "bad":
            raise ValueError("no")

    async with kv.watch(cb=changed) as watching:
        await watching.ready()
        await kv.put("bad", b"")
        await kv.put("good", b"")
        await seen.until(lambda: len(seen) == 2)
    [reported] = [event for event in events if isinstance(event, HandlerFailed)]
    assert (str(reported.error), reported.handler) == ("no", "callback of watch of bucket 'b'")


async def test_watch_callback_of_a_deleted_bucket_ends(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    caplog.set_level("ERROR", "natsproto")
    async with AsyncExitStack() as stack:
        watching = await stack.enter_async_context(kv.watch(cb=print))
        await watching.ready()
        stop = asyncio.Event()
        stop.set()
        await watching.wait(stop)
        await jetstream.delete_key_value("b")
        await eventually(lambda: caplog.records)
        for end in (watching.wait, stack.aclose):
            with pytest.raises(BucketNotFound):
                await end()
    ended = "watch(cb=...) has ended: bucket 'b' not found: create it, or pass its domain: then watch it again"
    assert [record.getMessage() for record in caplog.records] == [ended]


async def test_watch_end_that_ready_raised_is_not_logged(
    jetstream: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    kv = await jetstream.key_value("gone", bind=True)
    async with AsyncExitStack() as stack:
        watching = await stack.enter_async_context(kv.watch(cb=print))
        for end in (watching.ready, watching.wait, stack.aclose):
            with pytest.raises(BucketNotFound):
                await end()
            await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_close_cancels_the_callback_not_who_waits(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"x")
    called = asyncio.Event()

    async def hang(entry: KeyValueEntry[bytes]) -> None:
        called.set()
        await asyncio.Event().wait()

    async def run() -> None:
        await kv.watch(cb=hang).run()

    task = asyncio.create_task(run())
    await called.wait()
    await nats_client.close()
    await asyncio.wait_for(task, 10)


async def test_watch_callback_may_stop_its_watch(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    for number in range(5):
        await kv.put(str(number), b"")
    seen = Seen()

    async def first(entry: KeyValueEntry[bytes]) -> None:
        seen.add(entry.key)
        await watching.stop()

    watching = kv.watch(cb=first)
    await watching.run()
    assert seen == ["0"]


async def test_leaving_waits_for_the_callback_at_work(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    began, go_on, seen = asyncio.Event(), asyncio.Event(), Seen()

    async def slow(entry: KeyValueEntry[bytes]) -> None:
        began.set()
        await go_on.wait()
        seen.add(entry.key)

    async with kv.watch(cb=slow):
        await kv.put("a", b"")
        await began.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert seen == ["a"]

    async def fail() -> None:
        async with kv.watch(cb=slow):
            go_on.clear()
            began.clear()
            await began.wait()
            raise LookupError  # an error cancels the callback

    with pytest.raises(LookupError):
        await fail()
    assert seen == ["a"]


async def test_watch_callback_of_objects(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="b")
    await store.put("first", b"1")
    seen = Seen()

    def changed(info: ObjectInfo) -> None:
        seen.add(f"{info.name}{' deleted' if info.deleted else ''}")

    async with store.watch(cb=changed) as watching:
        await watching.ready()
        assert seen == ["first"]
        await store.put("second", b"2")
        await store.delete("first")
        await seen.until(lambda: len(seen) == 3)
    assert seen == ["first", "second", "first deleted"]


async def test_watch_callback_is_to_be_entered(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    with pytest.raises(TypeError, match="cb must be callable"):
        kv.watch(cb=5)  # type: ignore[call-overload]
    with pytest.warns(RuntimeWarning, match="never run or entered"):
        kv.watch(cb=print)
    with pytest.raises(LocalProtocolError):
        await kv.watch(cb=print).ready()
