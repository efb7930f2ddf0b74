"""Calls that wait, and the ways in which a wait can end. For the tests that combine all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import natsproto
from natsproto import Client
from natsproto.errors import (
    DrainTimeout,
    JetStreamError,
    KeyValueError,
    LocalProtocolError,
    ObjectStoreError,
    PublishFailed,
    PublishUncertain,
    RequestTimeout,
    SubscriptionClosed,
    Unavailable,
)
from natsproto.jetstream import JetStream, Stream
from natsproto.jetstream.kv import KeyValue
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.testing import Server, run_server

LONG = 60.0
LIMIT_S = 10.0
"""Seconds for a call to end, on a busy machine. Every timeout that could end it later is LONG."""

Step = Callable[[], Awaitable[object]]


@dataclass
class Waiting:
    """A call that waits. It raises when its wait ends, unless it ``returns``: an iteration, or a wait for an end."""

    call: Step
    returns: bool = False
    close: Step | None = None
    drain: Step | None = None
    delete: Step | None = None


Opener = Callable[["Ground"], Awaitable[Waiting]]


class Ground:
    """A server with a stream, a bucket and a store, and a client that ends when it loses the server."""

    def __init__(self, server: Server, nc: Client, other: Client, stack: AsyncExitStack, timeout: float = LONG) -> None:
        self.server, self.nc, self.other, self.stack, self.timeout = server, nc, other, stack, timeout
        self.js: JetStream = nc.jetstream(timeout=timeout)
        self.stream: Stream
        self.kv: KeyValue
        self.objects: ObjectStore

    async def prepare(self) -> None:
        js = self.other.jetstream()
        await js.create_stream("S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
        self.stream = await self.js.stream("S")
        await js.create_key_value("B", limit_marker_ttl=60)
        await js.create_object_store("O")
        self.kv = await self.js.key_value("B")
        self.objects = await self.js.object_store("O")
        await self.other.subscribe("silent", cb=lambda _: None)
        await self.other.flush()

    async def enter(self, scope: Any) -> Any:
        return await self.stack.enter_async_context(scope)

    def delete_stream(self, name: str = "S") -> Step:
        return lambda: self.other.jetstream().delete_stream(name)

    def delete_consumer(self) -> Step:
        async def delete() -> None:
            await (await self.other.jetstream().stream("S")).delete_consumer("c")

        return delete


async def all_of(items: AsyncIterable[object]) -> list[object]:
    return [item async for item in items]


OF_CLIENT = (SubscriptionClosed, Unavailable, LocalProtocolError, PublishUncertain, PublishFailed)
ENDINGS: dict[str, tuple[type[Exception], ...]] = {
    "close": (SubscriptionClosed, LocalProtocolError),
    "drain": (SubscriptionClosed,),
    "delete": (JetStreamError, KeyValueError, ObjectStoreError, LocalProtocolError),
    "client closed": OF_CLIENT,
    "client drained": OF_CLIENT,
    "server gone": OF_CLIENT,
    "timeout": (RequestTimeout, PublishUncertain, PublishFailed),
}


async def end_call(opener: Opener, way: str, pause: float, *, timeout: float = LONG, frozen: bool = False) -> str:
    """Start a call on a server of its own, frozen or not, end it in this way, and return what is wrong with its end."""
    async with run_server(jetstream=True) as server, AsyncExitStack() as stack:
        other = await natsproto.connect(server.url, allow_reconnect=False)
        nc = await natsproto.connect(server.url, allow_reconnect=False, drain_timeout=0.5)
        ground = Ground(server, nc, other, stack, timeout)
        await ground.prepare()
        if frozen:
            stack.enter_context(suppress(DrainTimeout))  # leaving the block of what was cut off reports it again
        waiting = await opener(ground)
        if frozen:
            server.freeze()
        task: asyncio.Task[object] = asyncio.ensure_future(waiting.call())
        await asyncio.sleep(pause)
        reason = f"did not wait: {task}" if task.done() else ""
        if not reason and (end := _step(way, ground, waiting, task)) is not None:
            ending = asyncio.ensure_future(end())
            await asyncio.wait((task,), timeout=LIMIT_S)
            reason = _complaint(way, waiting, task)
            if not frozen:
                await asyncio.wait((ending,), timeout=LIMIT_S)
            ending.cancel()
        task.cancel()
        if frozen:
            server.kill()
        await asyncio.wait((task,), timeout=LIMIT_S)
        await nc.close()
        await other.close()
    return reason


def _step(way: str, ground: Ground, waiting: Waiting, task: asyncio.Task[object]) -> Step | None:
    """Return what ends the call in this way; None if it has no such way."""

    async def kill() -> None:
        ground.server.kill()

    async def cancel() -> None:
        task.cancel()

    steps: dict[str, Step | None] = {
        "close": waiting.close,
        "drain": waiting.drain,
        "delete": waiting.delete,
        "client closed": ground.nc.close,
        "client drained": lambda: ground.nc.drain(0.3),
        "server gone": kill,
        "cancelled": cancel,
        "timeout": lambda: asyncio.sleep(0),
    }
    return steps[way]


def _complaint(way: str, waiting: Waiting, task: asyncio.Task[object]) -> str:
    """Return what is wrong with the end of a call."""
    if not task.done():
        return "still waits"
    if way == "cancelled":
        return "" if task.cancelled() else f"is not cancelled: {task}"
    if task.cancelled():
        return "was cancelled by nobody"
    error = task.exception()
    if error is None:
        return "" if waiting.returns else f"returned {task.result()!r}"
    if not isinstance(error, ENDINGS[way]) or len(str(error)) < 20:
        return f"raised {error!r}"
    return ""
