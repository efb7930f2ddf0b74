"""Handlers that hold the event loop are reported, on the real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from natsproto import Client, Event, LoopBlocked, Message
from natsproto.jetstream import JetStream, JsMessage
from natsproto.service import Request

BLOCKED_S = 1.1


def blocked(events: list[Event]) -> list[LoopBlocked]:
    return [event for event in events if isinstance(event, LoopBlocked)]


async def asynchronous(message: JsMessage) -> None:
    plain(message)


async def patient(message: JsMessage) -> None:
    await asyncio.sleep(BLOCKED_S)  # the handler's own


def plain(message: Message) -> None:
    time.sleep(BLOCKED_S)  # the handler's own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "executor", "expected"),
    [(plain, None, 1), (asynchronous, None, 1), (patient, None, 0), (plain, True, 0)],
)
async def test_handler_of_consume(
    jetstream: JetStream, handler: Callable[[JsMessage], Any], executor: Any, expected: int
) -> None:
    events: list[Event] = []
    jetstream.connection.add_listener(events.append)
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    await consumer.consume(handler, executor=executor, stop_after=1).run()
    assert len(blocked(events)) == expected
    for event in blocked(events):
        assert event.handler == "handler of consumer 'c' of stream 'S'"
        assert BLOCKED_S <= event.seconds < 2 * BLOCKED_S


@pytest.mark.slow
async def test_callbacks_and_endpoints(nats_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    nc, events = nats_client, list[Event]()
    nc.add_listener(events.append)
    service = await nc.add_service("svc", "1.0.0")

    @service.endpoint("e")
    def answer(request: Request) -> Any:
        plain(request)
        return request.respond(b"")

    subscription = nc.subscribe("s", cb=plain)
    await nc.publish("s")
    await nc.request("e")
    await subscription.drain()
    assert sorted(event.handler for event in blocked(events)) == ["callback of 's'", "endpoint 'e'"]
    assert "callback of 's' held the event loop for 1.1 s: make it a def handler and pass executor=True" in caplog.text
    await service.stop()
