"""What the tests of consuming have in common: a stream with numbered messages, and who watches the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from natsproto import Client
from natsproto._core.events import Event
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import ConsumerNotice
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.handle import Consumer
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream
    from natsproto.jetstream._values.info import ConsumerInfo
    from natsproto.testing._server import Server


async def make(js: JetStream, count: int = 0, **fields: object) -> Stream:
    """Stream S on ``s.>`` in memory, holding so many messages: b"1", b"2" …"""
    config: dict[str, object] = {"name": "S", "subjects": ["s.>"], "storage": "memory", **fields}
    stream = await js.create_stream(**config)  # type: ignore[arg-type]
    if count:
        await store(stream, range(1, count + 1))
    return stream


async def store(stream: Stream, numbers: Iterable[int], subject: str = "s.a", size: int = 0) -> None:
    """Stores numbers as messages, padded to a size; returns when the stream has them."""
    connection = stream._api.connection
    payloads = [str(number).encode().ljust(size) for number in numbers]
    for index, payload in enumerate(payloads, 1):
        if index % 2000 == 0 or index == len(payloads):  # the server takes in 10,000 unconfirmed messages
            reply = json.loads((await connection.request(subject, payload)).data)
            assert "error" not in reply, reply
        else:
            await connection.publish(subject, payload)


def numbers(messages: Iterable[JsMessage]) -> list[int]:
    """What was stored in them."""
    return [int(message.data) for message in messages]


async def crash(server: Server, stream: Stream) -> None:
    """Kills the server and starts it again; returns when the stream's client has noticed both."""
    connection = stream._api.connection
    server.kill()
    await eventually(lambda: not connection.is_connected)
    await server.restart()
    await eventually(lambda: connection.is_connected, 30.0)


async def known(consumer: Consumer, check: Callable[[ConsumerInfo], object]) -> None:
    """Asks the server until what it says of the consumer is so: pulls and acknowledgements are taken in behind our
    question.
    """
    async with asyncio.timeout(30):
        while not check(await consumer.info()):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)


@asynccontextmanager
async def api_calls(watcher: Client) -> AsyncIterator[list[str]]:
    """The subjects below $JS.API that anybody asks meanwhile; complete once the watcher was flushed."""
    seen: list[str] = []
    async with watcher.subscribe("$JS.API.>", cb=lambda message: seen.append(message.subject)):
        await watcher.flush()
        yield seen


@asynccontextmanager
async def events(client: Client) -> AsyncIterator[list[Event]]:
    """What happens to the client meanwhile."""
    seen: list[Event] = []
    stop = client.add_listener(seen.append)
    try:
        yield seen
    finally:
        stop()


def notices(seen: Iterable[Event]) -> list[ConsumerNotice]:
    """Those about consumers."""
    return [event for event in seen if isinstance(event, ConsumerNotice)]


def open_subscriptions(client: Client) -> int:
    """How many are open."""
    return len(client._engine.registry.subscriptions)


async def store_each(nc: Client, *subjects: str) -> None:
    """A message for each, its place as the payload; all are stored when this returns."""
    for index, subject in enumerate(subjects, 1):
        await nc.request(subject, b"%d" % index)


async def ignore(message: JsMessage) -> None:
    """A handler for tests that look at something else."""
