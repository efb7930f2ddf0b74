"""Messages that are delivered again, on a real server: what a reader does with them, and what it reports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

import natsproto
from natsproto import Client
from natsproto._core.events import Event
from natsproto.jetstream import (
    AckWaitExceeded,
    ConsumerConfig,
    DeliveriesExpired,
    JetStream,
    JsMessage,
    Messages,
    PriorityPolicy,
    PullConsumer,
)
from natsproto.testing import Server
from tests.jetstream.reading import known, make, store
from tests.kit.waiting import eventually

ACK_WAIT_S = 0.4


async def nak_elsewhere(nc: Client, message: JsMessage) -> None:
    """Somebody else asks for the message again, as an expired ack_wait does."""
    await nc.publish(message.reply or "", b"-NAK")
    await nc.flush()


async def test_redelivery_of_a_message_in_hand_is_dropped(jetstream: JetStream, nats_client: Client) -> None:
    events: list[Event] = []
    nats_client.add_listener(events.append)
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    calls: list[bytes] = []

    async def handle(message: JsMessage) -> None:
        calls.append(message.data)
        if message.data == b"1":
            await nak_elsewhere(nats_client, message)
            await eventually(lambda: b"2" in calls)  # it comes after the redelivery

    async with consumer.consume(handle, concurrency=2) as work:
        await eventually(lambda: calls)
        await asyncio.sleep(0.05)
        await store(stream, [2])
        await eventually(lambda: work.handled == 2)
    assert calls == [b"1", b"2"]
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)
    assert not [event for event in events if isinstance(event, AckWaitExceeded)], "the handler was not slow"


async def test_recreated_consumer_starts_empty(jetstream: JetStream) -> None:
    """Its redeliveries are handled, although an earlier consumer of this name has acknowledged the messages."""
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages(prefetch=1) as messages:
        await (await messages.next(timeout=30)).ack()
        second = await messages.next(timeout=30)  # the last one, so no pull is open that would tell of the end
        await second.ack()
        await known(consumer, lambda info: not info.num_ack_pending and not info.num_waiting)
        await stream.delete_consumer("d")
        other = await stream.create_consumer(durable_name="d")
        for message in await other.fetch(2, timeout=30):
            await message.nak()
        again = [await messages.next(timeout=30) for _ in range(2)]
    assert sorted((message.seq, message.metadata.num_delivered) for message in again) == [(1, 2), (2, 2)]


async def test_handler_beyond_ack_wait_is_reported_once(nats_server: Server) -> None:
    events: list[Event] = []
    async with natsproto.connect(nats_server.url, on_event=events.append) as nc:
        stream = await make(nc.jetstream(), 2)
        consumer = await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT_S)

        async def handle(message: JsMessage) -> None:
            await asyncio.sleep(1.5 * ACK_WAIT_S)

        async with consumer.consume(handle) as work:
            await eventually(lambda: work.handled == 2)
    exceeded = [event for event in events if isinstance(event, AckWaitExceeded)]
    assert [(event.consumer, event.ack_wait) for event in exceeded] == [("d", ACK_WAIT_S)]
    assert exceeded[0].seconds > ACK_WAIT_S
    assert "keep_alive" in exceeded[0].line


@pytest.mark.parametrize("way", ["keep_alive", "loop with keep_alive", "loop with in_progress", "acked first"])
async def test_handler_that_keeps_it_is_not_reported(nats_server: Server, way: str) -> None:
    events: list[Event] = []
    async with natsproto.connect(nats_server.url, on_event=events.append) as nc:
        stream = await make(nc.jetstream(), 2)
        consumer = await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT_S)
        handled = 0

        async def handle(message: JsMessage) -> None:
            nonlocal handled
            if way == "acked first":
                await message.ack()
            for _ in range(6):
                await asyncio.sleep(0.25 * ACK_WAIT_S)
                if way == "loop with in_progress":
                    await message.in_progress()
            handled += 1

        if way.startswith("loop"):
            async with consumer.messages(stop_after=2) as messages:
                async for message in messages:
                    if way == "loop with in_progress":
                        await handle(message)
                    else:
                        async with message.keep_alive():
                            await handle(message)
                    await message.ack()
        else:
            await consumer.consume(handle, keep_alive=way == "keep_alive", stop_after=2).run()
    assert handled == 2
    assert not [event for event in events if isinstance(event, AckWaitExceeded)]


async def test_busy_handlers_give_waiting_messages_back(jetstream: JetStream) -> None:
    """Handlers that hang keep what they have; others get what waits behind them, and this worker skips it."""
    stream = await make(jetstream, 6)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT_S)
    calls = Counter[bytes]()
    go_on = asyncio.Event()

    async def handle(message: JsMessage) -> None:
        calls[message.data] += 1
        if int(message.data) > 2:
            await go_on.wait()

    async with consumer.consume(handle, keep_alive=True) as work:
        await eventually(lambda: work.pending == 3)
        (other,) = await (await stream.consumer("d")).fetch(1, timeout=30)
        assert (other.data, other.metadata.num_delivered) == (b"4", 2)
        await other.ack()
        go_on.set()
        await eventually(lambda: work.handled == 5)
        assert (work.given_back, work.stale) == (3, 0)
    assert calls == {b"1": 1, b"2": 1, b"3": 1, b"5": 1, b"6": 1}


async def test_standstill_of_the_program_expires_deliveries(nats_server: Server) -> None:
    """Nothing is handed over that the server delivers again; each message is handled once."""
    events: list[Event] = []
    calls = Counter[bytes]()
    async with natsproto.connect(nats_server.url, on_event=events.append) as nc:
        stream = await make(nc.jetstream(), 30)
        consumer = await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT_S)

        async def handle(message: JsMessage) -> None:
            calls[message.data] += 1
            if message.data == b"5":
                await message.ack()
                await nc.flush()
                time.sleep(1.5 * ACK_WAIT_S)  # the whole program stands still  # noqa: ASYNC251

        async with consumer.consume(handle) as work:
            await eventually(lambda: len(calls) == 30)
            await eventually(lambda: any(isinstance(event, DeliveriesExpired) for event in events))
            assert work.stale > 0
    assert set(calls.values()) == {1}
    (expired,) = [event for event in events if isinstance(event, DeliveriesExpired)]
    assert expired.count == work.stale


async def test_busy_pinned_client_keeps_its_pin(jetstream: JetStream, nats_server: Server) -> None:
    """A handler longer than priority_timeout that is kept alive: no other client gets messages meanwhile."""
    stream = await make(jetstream)
    config = ConsumerConfig(
        durable_name="d",
        ack_wait=10.0,
        priority_groups=["g"],
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_timeout=1.0,
    )
    first = await stream.create_consumer(config)
    got: list[str] = []

    async def busy(message: JsMessage) -> None:
        got.append("first")
        if len(got) == 1:
            ends = time.monotonic() + 2.5
            await eventually(lambda: time.monotonic() > ends)

    async def idle(message: JsMessage) -> None:
        got.append("second")

    async with natsproto.connect(nats_server.url) as nc:
        second = await (await nc.jetstream().stream("S")).consumer("d")
        async with first.consume(busy, priority_group="g"):
            await store(stream, [1])
            await eventually(lambda: got)
            async with second.consume(idle, priority_group="g"):
                await store(stream, range(2, 6))
                await eventually(lambda: len(got) == 5)
    assert got == ["first"] * 5


@pytest.mark.parametrize("way", ["consume", "messages", "batches"])
async def test_pinned_client_that_hangs_loses_its_pin(nats_server: Server, way: str) -> None:
    """A handler or loop that never comes back keeps the pin for ack_wait; then another client gets the messages."""
    config = ConsumerConfig(
        durable_name="d",
        ack_wait=1.0,
        priority_groups=["g"],
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_timeout=1.0,
    )
    events: list[Event] = []
    hangs = asyncio.Event()

    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    async def read(consumer: PullConsumer) -> None:
        if way == "consume":
            await consumer.consume(lambda message: hang(), priority_group="g").run()
        async with consumer.messages(priority_group="g") as messages:
            if way == "messages":
                async for _ in messages:
                    await hang()
            async for _ in messages.batches():
                await hang()

    async with (
        natsproto.connect(nats_server.url, on_event=events.append) as nc,
        natsproto.connect(nats_server.url) as other,
    ):
        stream = await make(nc.jetstream())
        reading = asyncio.create_task(read(await stream.create_consumer(config)))
        await store(stream, [1])
        await hangs.wait()
        await store(stream, [2])
        second = await (await other.jetstream().stream("S")).consumer("d")
        async with second.messages(priority_group="g") as messages:
            got = [await messages.next(timeout=20) for _ in range(2)]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert sorted(message.seq for message in got) == [1, 2]
    assert [event.consumer for event in events if isinstance(event, AckWaitExceeded)] == ["d"]


@pytest.mark.parametrize(("seconds", "concurrency"), [(0.005, 1), (0.005, 8), (0.05, 1), (0.05, 8)])
@pytest.mark.parametrize("way", ["consume", "messages"])
async def test_handlers_share_a_time_slice(jetstream: JetStream, seconds: float, concurrency: int, way: str) -> None:
    """Between two calls that keep the event loop, other tasks run: none waits for more than one call."""
    count = max(8, int(0.2 / seconds))
    stream = await make(jetstream, count)
    consumer = await stream.create_consumer(durable_name="d")
    calls = 0
    turns: list[int] = []

    def handle(message: JsMessage) -> None:
        nonlocal calls
        calls += 1
        time.sleep(seconds)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(calls)

    async def loop(messages: Messages) -> None:
        async for message in messages:
            handle(message)
            await message.ack()

    ticking = asyncio.create_task(tick())
    if way == "consume":
        async with consumer.consume(handle, concurrency=concurrency):
            await eventually(lambda: calls == count)
    else:
        async with consumer.messages() as messages:
            loops = [asyncio.create_task(loop(messages)) for _ in range(concurrency)]
            await eventually(lambda: calls == count)
        await asyncio.gather(*loops)
    ticking.cancel()
    assert set(turns) >= set(range(1, count)), "the ticker ran between all calls"
