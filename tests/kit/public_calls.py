"""The public calls of every object, and what they may be called with.

Owns one object of each kind and a right value for each argument that has no default.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

from natsproto import Client

__all__ = ["CONFIGURE", "SAMPLES", "things", "use"]

NEVER = datetime(2100, 1, 1, tzinfo=UTC)
SAMPLES: dict[str, object] = {
    "subject": "s.a", "stream": "S", "name": "S", "consumer": "c", "bucket": "B", "key": "k", "value": b"v",
    "revision": 1, "path": "nowhere",
    "seq": 1, "server": "n", "peer": "p", "account": "A", "quorum": 1, "group": "g", "priority_group": "g",
    "replaced": "s.b", "version": "1.0.0", "keys": ["k"], "subjects": ["s.a"], "source": b"x", "until": NEVER,
    "target": "o", "store": "B", "handler": print, "function": print, "callback": print, "fn": print,
}  # fmt: skip
CONFIGURE: dict[str, dict[str, object]] = {
    "stream": {"name": "S"}, "consumer": {"durable_name": "c"}, "key_value": {"bucket": "B"},
    "object_store": {"bucket": "B"},
}  # fmt: skip


async def things(nc: Client) -> list[object]:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    await js.publish("s.a", b"1")
    bucket = await js.create_key_value(bucket="B", limit_marker_ttl=60, allow_atomic=True)
    consumer = await stream.create_consumer(durable_name="c")
    read = [await nc.subscribe("silent"), stream.ordered_consumer(), await consumer.next(timeout=30)]
    stores = [bucket, bucket.lock("l"), await js.create_object_store(bucket="B")]
    return [nc, js, stream, consumer, *read, *stores, await nc.add_service("calc", "1.0.0")]


async def use(thing: Any) -> None:
    """Reads it, enters it, awaits it or decorates with it: whichever it is for."""
    if hasattr(thing, "__aenter__"):
        async with thing:
            pass
    elif hasattr(thing, "__aiter__"):
        async for _ in thing:
            break
    elif isinstance(thing, Awaitable):
        await thing
    elif inspect.isfunction(thing):
        thing(print)
