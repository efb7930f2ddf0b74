"""When a message whose handler has failed comes again."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from natsproto import Client
from natsproto._core.events import HandlerFailed
from natsproto.errors import ConfigError
from natsproto.jetstream._consumer.handler_options import MAX_NAK_DELAY_S, HandlerOptions, NakDelay
from natsproto.jetstream._consumer.message import JsMessage
from tests.jetstream.reading import events, make
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream

LONG = 50.0


def _delivered(times: int) -> JsMessage:
    return JsMessage("s.a", b"$JS.ACK.S.d.%d.1.%d.1795300000000000000.0" % (times, times), b"1", None)


def test_nak_delay_default_grows() -> None:
    delays = [HandlerOptions().nak_delay_for(_delivered(times)) for times in range(1, 11)]
    assert delays == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert HandlerOptions().nak_delay_for(_delivered(100_000)) == 30.0


def test_nak_delay_default_follows_backoff() -> None:
    backoff = sorted(random.uniform(0.01, 100.0) for _ in range(3))
    options = HandlerOptions(backoff=backoff)
    assert [options.nak_delay_for(_delivered(times)) for times in range(1, 6)] == [*backoff, backoff[-1], backoff[-1]]


@pytest.mark.parametrize(
    ("given", "delay"),
    [(0, 0.0), (1.5, 1.5), (lambda message: message.metadata.num_delivered * 2, 6.0), (lambda message: None, 1.0)],
)
def test_nak_delay_given(given: NakDelay, delay: float) -> None:
    assert HandlerOptions(nak_delay=given).nak_delay_for(_delivered(3)) == delay
    assert HandlerOptions(nak_delay=timedelta(seconds=2)).nak_delay_for(_delivered(1)) == 2.0
    for wrong in (-1, 1e-10):
        with pytest.raises(ConfigError):
            HandlerOptions(nak_delay=wrong)
    with pytest.raises(ConfigError):
        HandlerOptions(nak_delay=lambda message: 1e-10).nak_delay_for(_delivered(1))


async def _deliveries(stream: Stream, count: int, **consumer: object) -> list[float]:
    """The seconds between one delivery of a message that always fails and the next."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    fields = {name: value for name, value in consumer.items() if name != "nak_delay"}
    delays = {"nak_delay": consumer["nak_delay"]} if "nak_delay" in consumer else {}

    def handle(message: JsMessage) -> None:
        times.append(loop.time())
        raise ValueError("always")

    made = await stream.create_consumer(durable_name="d", **fields)  # type: ignore[arg-type]
    async with made.consume(handle, **delays):  # type: ignore[arg-type]
        await eventually(lambda: len(times) >= count, LONG)
    return [later - earlier for earlier, later in itertools.pairwise(times[:count])]


async def test_poison_message_slows_down(jetstream: JetStream) -> None:
    first, second = await _deliveries(await make(jetstream, 1), 3)
    assert first >= 0.24
    assert second >= 0.49


async def test_poison_message_follows_backoff(jetstream: JetStream) -> None:
    first, second = await _deliveries(await make(jetstream, 1), 3, backoff=[0.4, 0.7], max_deliver=3)
    assert first >= 0.39
    assert second >= 0.69


async def test_nak_delay_callable(jetstream: JetStream) -> None:
    delays = await _deliveries(await make(jetstream, 1), 5, nak_delay=lambda message: 0.01)
    assert len(delays) == 4


async def test_nak_delay_callable_that_fails(
    jetstream: JetStream, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and the message comes again after the longest default."""
    monkeypatch.setattr("natsproto.jetstream._consumer.handler_options.MAX_NAK_DELAY_S", 0.01)

    def fail(message: JsMessage) -> float:
        raise ZeroDivisionError

    async with events(nats_client) as seen:
        await _deliveries(await make(jetstream, 1), 2, nak_delay=fail)
    assert any("nak_delay" in event.handler for event in seen if isinstance(event, HandlerFailed))
    assert MAX_NAK_DELAY_S == 30.0
