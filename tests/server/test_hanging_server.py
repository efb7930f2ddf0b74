"""Every call to a server that hangs ends within its timeout, and before that with its client or the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from natsproto.jetstream.groups import ElasticGroup
from tests.server.waiting import LONG, Ground, Opener, Step, Waiting, all_of, end_call

REQUESTS: dict[str, Opener] = {}
RETURN = ("release", ".stop", "_watch", "messages", "subscription.drain")
"""The ends of the names of calls that raise nothing. A subscription is drained when its connection has ended."""
ENDLESS = {
    "lock.acquire", "key_watch", "cache", "object_watch", "ordered.wait_created", "messages.stop", "consume.stop",
    "kv.keys", "object_reader",
}  # fmt: skip
"""Calls that wait for the end of an outage, or have a timeout of their own."""


def asks(*names: str) -> Callable[[Callable[[Ground], Awaitable[dict[str, Step]]]], object]:
    """Add the requests of an opener."""

    def add(opener: Callable[[Ground], Awaitable[dict[str, Step]]]) -> object:
        async def open_one(name: str, ground: Ground) -> Waiting:
            return Waiting((await opener(ground))[name], returns=name.endswith(RETURN))

        for name in names:
            REQUESTS[name] = partial(open_one, name)
        return opener

    return add


@asks("flush", "rtt", "request", "subscription.drain", "service.stop")
async def core(ground: Ground) -> dict[str, Step]:
    nc, timeout = ground.nc, ground.timeout
    sub = await nc.subscribe("nothing")
    service = await ground.enter(nc.add_service("s", version="1.0.0"))
    service.add_endpoint("e", lambda request: None)
    await nc.flush()
    return {
        "flush": lambda: nc.flush(timeout),
        "rtt": lambda: nc.rtt(timeout),
        "request": lambda: nc.request("silent", timeout=timeout),
        "subscription.drain": lambda: sub.drain(timeout),
        "service.stop": lambda: service.stop(timeout=timeout),
    }


@asks("publish", "publisher.flush", "publisher block", "publisher.publish", "atomic_batch block",
      "fast_publisher.flush", "fast_publisher.commit", "fast_publisher block")  # fmt: skip
async def publishing(ground: Ground) -> dict[str, Step]:
    js = ground.js

    async def publisher(how: str) -> None:
        async with js.publisher(max_pending=1) as publisher:
            await publisher.publish("s.a", b"x")
            if how == "flush":
                await publisher.flush()
            elif how == "publish":
                await publisher.publish("s.a", b"y")

    async def atomic() -> None:
        async with js.atomic_batch() as batch:
            await batch.publish("s.a", b"x")
            await batch.publish("s.a", b"y")

    async def fast(how: str) -> None:
        async with js.fast_publisher() as publisher:
            await publisher.publish("s.a", b"x")
            if how == "flush":
                await publisher.flush()
            elif how == "commit":
                await publisher.commit("s.a", b"y")

    return {
        "publish": lambda: js.publish("s.a", b"x"),
        "publisher.flush": lambda: publisher("flush"),
        "publisher block": lambda: publisher(""),
        "publisher.publish": lambda: publisher("publish"),
        "atomic_batch block": atomic,
        "fast_publisher.flush": lambda: fast("flush"),
        "fast_publisher.commit": lambda: fast("commit"),
        "fast_publisher block": lambda: fast(""),
    }


@asks("stream.info", "create_consumer", "consumer.info", "ack_sync", "ordered.wait_created", "messages.stop",
      "consume.stop", "push messages", "get_message", "consumer_names", "group.info")  # fmt: skip
async def streams(ground: Ground) -> dict[str, Step]:
    stream = ground.stream
    await ground.js.publish("s.a", b"x")
    consumer = await stream.create_consumer("c")
    pushing = await stream.create_push_consumer("p", deliver_subject="d")
    message = await consumer.next()
    ordered = stream.ordered_consumer()
    messages = await ground.enter(consumer.messages())
    running = await consumer.consume(lambda message: None).__aenter__()
    ground.stack.push_async_callback(running.stop)
    group = await ElasticGroup.create(ground.js, "S", "g", max_members=1)

    async def wait_created() -> None:
        async with ordered.consume(lambda message: None):
            await ordered.wait_created()

    async def push() -> None:
        async with pushing.messages():
            pass

    return {
        "stream.info": stream.info,
        "create_consumer": lambda: stream.create_consumer("another"),
        "consumer.info": consumer.info,
        "ack_sync": lambda: message.ack_sync(ground.timeout),
        "ordered.wait_created": wait_created,
        "messages.stop": messages.stop,
        "consume.stop": running.stop,
        "push messages": push,
        "get_message": lambda: stream.get_message(1),
        "consumer_names": lambda: all_of(stream.consumer_names()),
        "group.info": group.info,
    }


@asks("kv.get", "kv.put", "kv.create", "kv.keys", "kv.history", "kv.get_many", "kv.status", "kv.purge_deletes",
      "key_watch", "cache", "lock.try_acquire", "lock.acquire", "lock.release")  # fmt: skip
async def keys(ground: Ground) -> dict[str, Step]:
    kv = ground.kv
    await kv.put("k", b"v")
    held = kv.lock("held", ttl=30)
    await held.acquire()

    async def enter(scope: Any) -> None:
        async with scope:
            pass

    return {
        "kv.get": lambda: kv.get("k"),
        "kv.put": lambda: kv.put("k", b"w"),
        "kv.create": lambda: kv.create("l", b"w"),
        "kv.keys": lambda: all_of(kv.keys()),
        "kv.history": lambda: kv.history("k"),
        "kv.get_many": lambda: kv.get_many(["k"]),
        "kv.status": kv.status,
        "kv.purge_deletes": kv.purge_deletes,
        "key_watch": lambda: enter(kv.watch()),
        "cache": lambda: enter(kv.cache()),
        "lock.try_acquire": lambda: kv.lock("free", ttl=30).try_acquire(),
        "lock.acquire": lambda: kv.lock("free", ttl=30).acquire(),
        "lock.release": held.release,
    }


@asks("objects.put", "objects.get_bytes", "object_reader", "objects.info", "objects.list", "objects.delete",
      "object_watch")  # fmt: skip
async def objects(ground: Ground) -> dict[str, Step]:
    store = ground.objects
    await store.put("o", b"x" * 2**22)
    reader = await ground.enter(store.get("o"))

    async def enter() -> None:
        async with store.watch():
            pass

    return {
        "objects.put": lambda: store.put("p", b"x"),
        "objects.get_bytes": lambda: store.get_bytes("o"),
        "object_reader": lambda: all_of(reader),
        "objects.info": lambda: store.info("o"),
        "objects.list": lambda: all_of(store.list()),
        "objects.delete": lambda: store.delete("o"),
        "object_watch": enter,
    }


WAYS = ("timeout", "client closed", "client drained", "server gone", "cancelled")
TIMEOUTS = {"timeout": 0.3, "cancelled": 1.0}  # a cancelled put removes within the timeout what it has stored


@pytest.mark.parametrize("name", REQUESTS)
async def test_call_ends_when_the_server_hangs(name: str, seed: int) -> None:
    rng = random.Random(seed)
    ways = [way for way in WAYS if way != "timeout" or name not in ENDLESS]
    reasons = await asyncio.gather(
        *(
            end_call(REQUESTS[name], way, rng.uniform(0.0, 0.05), timeout=TIMEOUTS.get(way, LONG), frozen=True)
            for way in ways
        )
    )
    assert not {way: reason for way, reason in zip(ways, reasons, strict=True) if reason}
