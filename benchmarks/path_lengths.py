"""How far a message goes: calls of our own functions and changes of module for the common operations.

Counted with sys.setprofile, so the figures are the same on every machine. Run it for the table:

    python -m benchmarks.path_lengths

``CEILING`` holds the figures that a change must not exceed; tests/test_path_lengths.py checks them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import natsproto
from natsproto.jetstream import JetStream
from natsproto.testing import run_server

PACKAGE = str(Path(natsproto.__file__).parent)
REPEATS = 10
"""Runs of which the least is taken: a ping or a timer may come between, and a busy machine cuts reads in two."""


WARM_UP_MESSAGES = 130
"""A quarter of the default prefetch: until then, each message makes a reader pull more."""


class Length(NamedTuple):
    """What an operation costs."""

    calls: int
    modules: int
    changes: int
    """Calls of a function that stands in another module than the function called before it."""


CEILING = {
    "fetch(1) and ack": Length(65, 18, 31),
    "a message of messages() and ack": Length(39, 15, 23),  # 4 and 3 less where the handler is fast
    "an update of a watch": Length(31, 18, 22),
    "opening a watch": Length(232, 48, 133),
    "key/value put": Length(41, 20, 29),
    "key/value get": Length(33, 15, 22),
    "key/value update": Length(50, 23, 33),
    "object of 10 bytes: put": Length(180, 32, 100),  # 9 and 7 more where its two replies come in two reads
    "object of 10 bytes: get": Length(120, 22, 64),
    "10 messages of a fast batch": Length(40, 3, 30),
    "10 of a fast batch, with ids": Length(70, 4, 50),
}
"""What a change must not exceed. Lower a figure when a change makes a path shorter. Opening a watch varies by two
between processes, as the initial values and the end of the request may come in one read or in two, and a put of an
object by six, as its two replies may. One call of a fetch is its `__del__`, which looks whether anybody awaited it, and
one answers keywords that it does not have: two more and a change with Python 3.11, for a coroutine function."""


class Counter:
    """Counts calls of functions of the package while it is on."""

    def __init__(self) -> None:
        self._last = ""
        self._modules: set[str] = set()
        self._calls = self._changes = 0

    def __enter__(self) -> Counter:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_code.co_filename
        if event != "call" or not module.startswith(PACKAGE):
            return
        self._calls += 1
        self._modules.add(module)
        if module != self._last:
            self._changes += 1
            self._last = module

    @property
    def length(self) -> Length:
        """What was counted."""
        return Length(self._calls, len(self._modules), self._changes)


class Publisher:
    """Stores messages over a socket of its own, so that nothing of the package runs for it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Publisher:
        """Says CONNECT; what the server says is not read."""
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'CONNECT {"verbose":false}\r\n')
        return cls(writer)

    def publish(self, subject: str) -> None:
        """Stores one byte."""
        self._writer.write(b"PUB %b 1\r\nx\r\n" % subject.encode())

    def close(self) -> None:
        """Closes the socket."""
        self._writer.close()


async def _least(operation: Callable[[], Awaitable[object]], publish: Callable[[], None]) -> Length:
    lengths = []
    for _ in range(REPEATS + 1):
        publish()
        with Counter() as counter:
            await operation()
        lengths.append(counter.length)
    return min(lengths[1:])  # the first one fills caches


async def _fetch(js: JetStream, publisher: Publisher) -> Length:
    consumer = await (await js.stream("S")).create_consumer("fetch")

    async def operation() -> None:
        (message,) = await consumer.fetch(1, timeout=30)
        await message.ack()

    return await _least(operation, lambda: publisher.publish("s.a"))


async def _messages(js: JetStream, publisher: Publisher) -> Length:
    consumer = await (await js.stream("S")).create_consumer("messages", deliver_policy="new")
    async with consumer.messages() as messages:
        iterator = aiter(messages)

        async def operation() -> None:
            await (await anext(iterator)).ack()

        for _ in range(WARM_UP_MESSAGES):
            publisher.publish("s.a")
            await operation()
        return await _least(operation, lambda: publisher.publish("s.a"))


async def _update(js: JetStream, publisher: Publisher) -> Length:
    kv = await js.key_value("B")
    async with kv.watch(updates_only=True) as watch:
        await watch.ready()
        iterator = aiter(watch)

        async def operation() -> None:
            await anext(iterator)

        return await _least(operation, lambda: publisher.publish("$KV.B.k"))


async def _opening(js: JetStream, publisher: Publisher) -> Length:
    kv = await js.key_value("B")
    lengths = []
    for _ in range(REPEATS + 1):
        with Counter() as counter:
            watch = await kv.watch().__aenter__()
            await watch.ready()
        lengths.append(counter.length)
        await watch.stop()
        await asyncio.gather(*js.connection._engine.cleanups.running)  # its deletion belongs to stopping
    return min(lengths[1:])


async def _kv_put(js: JetStream, _: Publisher) -> Length:
    kv = await js.key_value("B")
    return await _least(lambda: kv.put("put", b"x"), lambda: None)


async def _kv_get(js: JetStream, _: Publisher) -> Length:
    kv = await js.key_value("B")
    await kv.put("get", b"x")
    return await _least(lambda: kv.get("get"), lambda: None)


async def _kv_update(js: JetStream, _: Publisher) -> Length:
    kv = await js.key_value("B")
    revision = await kv.put("update", b"x")

    async def operation() -> None:
        nonlocal revision
        revision = await kv.update("update", b"x", revision)

    return await _least(operation, lambda: None)


async def _object_put(js: JetStream, _: Publisher) -> Length:
    store = await js.object_store("O")
    numbers = iter(range(2 * REPEATS))
    return await _least(lambda: store.put(f"o{next(numbers)}", b"0123456789"), lambda: None)


async def _object_get(js: JetStream, _: Publisher) -> Length:
    store = await js.object_store("O")
    await store.put("o", b"0123456789")
    return await _least(lambda: store.get_bytes("o"), lambda: None)


async def _fast_batch(js: JetStream, publisher: Publisher, *, ids: bool = False) -> Length:
    async with js.fast_publisher(auto_msg_id=ids) as fast:
        await fast.publish("f.a")  # opens the batch

        async def operation() -> None:
            for _ in range(10):
                await fast.publish("f.a", b"x")

        return await _least(operation, lambda: None)


OPERATIONS: dict[str, Callable[[JetStream, Publisher], Awaitable[Length]]] = {
    "fetch(1) and ack": _fetch,
    "a message of messages() and ack": _messages,
    "an update of a watch": _update,
    "opening a watch": _opening,
    "key/value put": _kv_put,
    "key/value get": _kv_get,
    "key/value update": _kv_update,
    "object of 10 bytes: put": _object_put,
    "object of 10 bytes: get": _object_get,
    "10 messages of a fast batch": _fast_batch,
    "10 of a fast batch, with ids": partial(_fast_batch, ids=True),
}


async def measure() -> dict[str, Length]:
    """The length of each operation against a server."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("S", subjects=["s.>"], storage="memory")
        await js.create_key_value("B", storage="memory")
        await js.create_object_store("O", storage="memory")
        await js.create_stream("F", subjects=["f.>"], storage="memory", allow_batched=True)
        publisher = await Publisher.connect(server.port)
        try:
            return {name: await operation(js, publisher) for name, operation in OPERATIONS.items()}
        finally:
            publisher.close()


def table(lengths: dict[str, Length]) -> str:
    """The figures, one line for each operation."""
    lines = [f"{'operation':34} {'calls':>6} {'modules':>8} {'changes':>8}"]
    lines += [f"{name:34} {one.calls:6} {one.modules:8} {one.changes:8}" for name, one in lengths.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(asyncio.run(measure())))
