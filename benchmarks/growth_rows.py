"""The work whose cost for an item must not depend on the number of items: ten of a kind, or 100,000.

Each row prepares ``count`` items and returns what is measured. ``benchmarks.growth`` shows the processor time of an
item, and ``tests/test_growth.py`` counts the calls that an item takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import natsproto
from natsproto.jetstream import JsMessage, Stream

Work = Callable[[], Awaitable[object]]
"""What is measured."""
Row = Callable[[natsproto.Client, int], Awaitable[Work]]
"""Prepares so many items."""


async def subscriptions(nc: natsproto.Client, count: int) -> Work:
    """Subscribe to each of the subjects, get a message for each, and unsubscribe."""

    async def work() -> None:
        got, done = 0, asyncio.Event()

        def handle(_: natsproto.Message) -> None:
            nonlocal got
            got += 1
            if got == count:
                done.set()

        subs = [await nc.subscribe(f"grow.{number}", cb=handle) for number in range(count)]
        for number in range(count):
            await nc.publish(f"grow.{number}")
        await nc.flush()
        await done.wait()
        for sub in subs:
            await sub.unsubscribe()

    return work


async def requests(nc: natsproto.Client, count: int) -> Work:
    """So many requests at a time."""

    async def answer(message: natsproto.Message) -> None:
        await message.respond(b"")

    await nc.subscribe("grow.ask", cb=answer, pending_msgs_limit=0)

    async def work() -> None:
        await asyncio.gather(*(nc.request("grow.ask", timeout=120) for _ in range(count)))

    return work


async def waiting(nc: natsproto.Client, count: int) -> Work:
    """Iterate messages of a subscription that all wait."""
    sub = await nc.subscribe("grow.wait", pending_msgs_limit=0)
    for _ in range(count):
        await nc.publish("grow.wait")
    await nc.flush()

    async def work() -> None:
        for _ in range(count):
            await sub.next()

    return work


async def _stream(nc: natsproto.Client, count: int) -> Stream:
    js = nc.jetstream(timeout=60)
    stream = await js.create_stream("GROW", subjects=["grow"], storage="memory", allow_direct=True)
    await stream.purge()
    async with js.publisher(max_pending=4096) as publisher:
        for _ in range(count):
            await publisher.publish("grow")
    return stream


async def _consume(stream: Stream, name: str, count: int, prefetch: int) -> None:
    consumer = await stream.create_consumer(name, ack_wait=600, max_ack_pending=-1)
    handled, done = 0, asyncio.Event()

    def handle(_: JsMessage) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    async with consumer.consume(handle, prefetch=prefetch):
        await done.wait()
    await stream.delete_consumer(name)


async def prefetched(nc: natsproto.Client, count: int) -> Work:
    """Consume messages with a prefetch of all of them."""
    stream = await _stream(nc, count)
    return lambda: _consume(stream, "prefetch", count, count)


async def redeliveries(nc: natsproto.Client, count: int) -> Work:
    """Fetch messages, return them all to the server, and consume them again."""
    stream = await _stream(nc, count)

    async def work() -> None:
        consumer = await stream.create_consumer("again", ack_wait=600, max_ack_pending=-1)
        for message in await consumer.fetch(count, timeout=60):
            message.nak_nowait()
        await nc.flush()
        await _consume(stream, "again", count, 500)

    return work


async def published(nc: natsproto.Client, count: int) -> Work:
    """Publish messages with ids while so many may be unacknowledged."""
    stream = await _stream(nc, 0)
    js = nc.jetstream(timeout=60)
    await stream.purge()

    async def work() -> None:
        async with js.publisher(max_pending=count, auto_msg_id=True) as publisher:
            for _ in range(count):
                await publisher.publish("grow")

    return work


async def _keys(nc: natsproto.Client, count: int) -> natsproto.KeyValue[bytes]:
    js = nc.jetstream(timeout=60)
    if "GROW" in [bucket async for bucket in js.key_value_names()]:
        await js.delete_key_value("GROW")
    bucket = await js.create_key_value("GROW", storage="memory")
    async with js.publisher(max_pending=4096) as publisher:
        for number in range(count):
            await publisher.publish(f"$KV.GROW.k{number}", b"x")
    return bucket


async def watched(nc: natsproto.Client, count: int) -> Work:
    """Watch a bucket until all its keys have come."""
    bucket = await _keys(nc, count)

    async def work() -> None:
        async with bucket.watch() as watch:
            left = count
            async for _ in watch:
                left -= 1
                if not left:
                    break

    return work


async def got(nc: natsproto.Client, count: int) -> Work:
    """Get all keys of a bucket by their names."""
    bucket = await _keys(nc, count)
    return lambda: bucket.get_many([f"k{number}" for number in range(count)])


ROWS: dict[str, Row] = {
    "subscriptions": subscriptions,
    "requests at a time": requests,
    "messages that wait in a subscription": waiting,
    "messages of a prefetch": prefetched,
    "redeliveries": redeliveries,
    "unacknowledged messages, with ids": published,
    "keys of a watch": watched,
    "keys of `get_many`": got,
}
