"""Handlers that hold the event loop are reported, on the real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import natsproto
from natsproto import Client, Event, LoopBlocked
from natsproto._core.engine import loop_watch
from natsproto.jetstream import JetStream, JsMessage
from natsproto.testing import FaultProxy, run_server
from tests.kit.waiting import until

BLOCKED_S = 1.1

Handler = Callable[[Any], Awaitable[None] | None]


def blocked(events: list[Event]) -> list[LoopBlocked]:
    """The events that name a handler: a busy machine can hold the loop as well."""
    return [event for event in events if isinstance(event, LoopBlocked) and event.handler]


def plain(message: object) -> None:
    time.sleep(BLOCKED_S)  # the handler's own


async def at_once(message: object) -> None:
    plain(message)


async def after_await(message: object) -> None:
    await asyncio.sleep(0.01)
    plain(message)


async def patient(message: JsMessage) -> None:
    await asyncio.sleep(BLOCKED_S)  # the handler's own


@pytest.mark.slow
@pytest.mark.parametrize(("handler", "executor"), [(patient, None), (plain, True)])
async def test_handlers_that_hold_nothing(
    jetstream: JetStream, handler: Callable[[JsMessage], Any], executor: Any
) -> None:
    events: list[Event] = []
    jetstream.connection.add_listener(events.append)
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    await consumer.consume(handler, executor=executor, stop_after=1).run()
    assert blocked(events) == []


async def brief(message: JsMessage) -> None:
    await asyncio.sleep(0.06)  # the handler's own


def later(message: JsMessage) -> Awaitable[None]:
    time.sleep(0.06)  # the handler's own
    return brief(message)


def brief_block(message: object) -> None:
    time.sleep(0.06)  # the handler's own


@pytest.mark.parametrize(
    ("handler", "options", "warnings"),
    [
        (brief_block, {"concurrency": 8}, 1),
        (brief_block, {"concurrency": 8, "keep_alive": True}, 1),
        (brief_block, {}, 0),
        (brief_block, {"concurrency": 8, "executor": True}, 0),
        (later, {"concurrency": 8}, 0),
        (brief, {"concurrency": 8}, 0),
    ],
)
async def test_concurrency_without_effect_is_told_once(
    jetstream: JetStream, caplog: pytest.LogCaptureFixture, handler: Handler, options: dict[str, Any], warnings: int
) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    for _ in range(4):
        await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    await consumer.consume(handler, stop_after=4, **options).run()
    assert (
        sum("so that concurrency=8 has no effect: pass executor=True" in line for line in caplog.messages) == warnings
    )


async def test_concurrency_of_batches_without_effect(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    for _ in range(4):
        await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    await consumer.consume_batches(brief_block, max_messages=2, concurrency=2, stop_when_empty=True).run()
    assert sum("so that concurrency=2 has no effect" in line for line in caplog.messages) == 1


def instant(message: object) -> None:
    pass


async def test_slow_confirmations_are_no_slow_handlers(caplog: pytest.LogCaptureFixture) -> None:
    """The other calls run while an acknowledgement waits for the server."""
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        js = nc.jetstream()
        stream = await js.create_stream("S", subjects=["s"])
        for _ in range(4):
            await js.publish("s")
        consumer = await stream.create_consumer("c")
        proxy.delay(0.1)
        await consumer.consume(instant, concurrency=2, on_success="ack_sync", stop_after=4).run()
    assert not any("has no effect" in line for line in caplog.messages)


@asynccontextmanager
async def subscription(nc: Client, handler: Handler) -> AsyncGenerator[str]:
    async with nc.subscribe("s", cb=handler):
        await nc.publish("s")
        yield "callback of 's'"


@asynccontextmanager
async def consumer(nc: Client, handler: Handler) -> AsyncGenerator[str]:
    stream = await nc.jetstream().create_stream("S", subjects=["s"])
    await nc.jetstream().publish("s")
    async with (await stream.create_consumer("c")).consume(handler):
        yield "handler of consumer 'c' of stream 'S'"


@asynccontextmanager
async def batch_consumer(nc: Client, handler: Handler) -> AsyncGenerator[str]:
    stream = await nc.jetstream().create_stream("S", subjects=["s"])
    await nc.jetstream().publish("s")
    async with (await stream.create_consumer("c")).consume_batches(handler, max_wait=0.01):
        yield "handler of consumer 'c' of stream 'S'"


@asynccontextmanager
async def watch(nc: Client, handler: Handler) -> AsyncGenerator[str]:
    bucket = await nc.jetstream().create_key_value("b")
    await bucket.put("k", b"")
    async with bucket.watch(cb=handler):
        yield "callback of watch of bucket 'b'"


@asynccontextmanager
async def endpoint(nc: Client, handler: Handler) -> AsyncGenerator[str]:
    async with await nc.add_service("svc", "1.0.0") as service:
        service.add_endpoint("e", handler)
        await nc.publish("e")
        yield "endpoint 'e'"


PLACES: list[Callable[..., Any]] = [subscription, consumer, batch_consumer, watch, endpoint]


@pytest.mark.slow
@pytest.mark.parametrize("handler", [plain, at_once, after_await])
@pytest.mark.parametrize("place", PLACES)
async def test_handler_that_holds_the_loop_is_named_once(
    nats_client: Client, place: Callable[..., Any], handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    events = list[Event]()
    nats_client.add_listener(events.append)
    async with place(nats_client, handler) as where:
        await until(lambda: blocked(events))
        await asyncio.sleep(0)
        assert [event.handler for event in blocked(events)] == [where]
        assert blocked(events)[0].seconds > BLOCKED_S - 0.01
        assert f"{where} held the event loop for" in caplog.text


async def test_blocks_of_drawn_lengths_are_named(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """In every kind of handler, before or after an await, at a tenth of the usual times: the long ones, with handler
    and line, and not the short ones.
    """
    for name, value in {"BEAT_S": 0.01, "LATE_S": 0.01, "LOOP_BLOCKED_S": 0.06}.items():
        monkeypatch.setattr(loop_watch, name, value)
    rng, events = random.Random(seed), list[Event]()
    async with natsproto.connect(nats_client.connected_url, on_event=events.append) as nc:
        for _ in range(3):
            await asyncio.sleep(0.05)  # the watching thread may sleep for the usual time still
        for place in rng.sample(PLACES, len(PLACES)):
            held, waits = list[float](), rng.random() < 0.5
            seconds = rng.choice([0.01, 0.03, 0.09])

            def drawn(held: list[float] = held, seconds: float = seconds) -> None:
                began = time.monotonic()
                time.sleep(seconds)  # the handler's own
                held.append(time.monotonic() - began)

            async def handle(message: object, drawn: Callable[[], None] = drawn, waits: bool = waits) -> None:
                if waits:
                    await asyncio.sleep(0.001)
                drawn()

            del events[:]
            async with place(nc, handle) as where:
                await until(held.copy)
                await asyncio.sleep(0.04)  # four beats
            found = [event.location.rpartition(" in ")[2] for event in blocked(events) if event.handler == where]
            names = [name.rpartition(".")[2] for name in found]
            if held[0] > 0.08:
                assert names[:1] == ["drawn"], (where, held, waits, events)
            elif held[0] < 0.05:
                assert names == [], (where, held, waits)
