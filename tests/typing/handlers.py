"""What a handler may return: None or something to await. What would not be awaited is an error.

An ignore that nothing needs is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial

from natsproto import Client, Message
from natsproto.jetstream import JsMessage, PullConsumer
from natsproto.jetstream.kv import KeyValue, KeyValueEntry
from natsproto.middleware import with_middleware
from natsproto.service import Request, Service


async def coroutine(message: Message) -> int:
    return 1


def plain(message: Message) -> None: ...


def task(message: Message) -> asyncio.Task[int]:
    return asyncio.create_task(coroutine(message))


def maybe(message: Message) -> Awaitable[None] | None:
    return None


class Callback:
    async def __call__(self, message: Message) -> None: ...

    def method(self, message: Message) -> None: ...


def generator(message: Message) -> Generator[int]:
    yield 1


async def async_generator(message: Message) -> AsyncGenerator[int]:
    yield 1


def returns_function(message: Message) -> Callable[[Message], Coroutine[None, None, int]]:
    return coroutine


def returns_bytes(message: Message) -> bytes:
    return b""


def right(nc: Client, consumer: PullConsumer, service: Service, kv: KeyValue) -> None:
    async def on_entry(entry: KeyValueEntry) -> None: ...

    async def on_stored(message: JsMessage) -> None: ...

    async def on_batch(messages: list[JsMessage]) -> None: ...

    def on_request(request: Request) -> None: ...

    received: list[Message] = []
    nc.subscribe("a", cb=coroutine)
    nc.subscribe("a", cb=plain)
    nc.subscribe("a", cb=task)
    nc.subscribe("a", cb=maybe)
    nc.subscribe("a", cb=Callback())
    nc.subscribe("a", cb=Callback().method)
    nc.subscribe("a", cb=print)
    nc.subscribe("a", cb=received.append)
    nc.subscribe("a", cb=asyncio.Queue[Message]().put_nowait)
    nc.subscribe("a", cb=lambda message: message.respond(b""))
    nc.subscribe("a", cb=lambda message: print(message.data))
    nc.subscribe("a", cb=partial(coroutine))
    consumer.consume(coroutine)
    consumer.consume(on_stored)
    consumer.consume(with_middleware(on_stored))
    consumer.consume_batches(on_batch, max_wait=0.1)
    service.add_endpoint("e", on_request)
    kv.watch(cb=on_entry)
    kv.watch(cb=print)
    service.add_endpoint("f", nc.typed(int).handler(lambda value: value + 1))


def wrong(nc: Client, consumer: PullConsumer, service: Service, kv: KeyValue) -> None:
    nc.subscribe("a", cb=generator)  # type: ignore[arg-type]
    nc.subscribe("a", cb=async_generator)  # type: ignore[arg-type]
    nc.subscribe("a", cb=returns_function)  # type: ignore[arg-type]
    nc.subscribe("a", cb=returns_bytes)  # type: ignore[arg-type]
    nc.subscribe("a", cb=lambda message: coroutine)  # type: ignore[arg-type,return-value]
    nc.subscribe("a", cb=lambda message: message.data)  # type: ignore[arg-type,return-value]
    consumer.consume(generator)  # type: ignore[arg-type]
    consumer.consume_batches(coroutine)  # type: ignore[arg-type]
    consumer.consume(async_generator)  # type: ignore[arg-type]
    consumer.consume(returns_function)  # type: ignore[arg-type]
    consumer.consume(returns_bytes)  # type: ignore[arg-type]
    service.add_endpoint("e", generator)  # type: ignore[arg-type]
    service.add_endpoint("e", returns_function)  # type: ignore[arg-type]
    with_middleware(generator)  # type: ignore[arg-type]
    kv.watch(cb=lambda entry: coroutine)  # type: ignore[arg-type,return-value]
