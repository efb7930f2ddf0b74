"""A reader that leaves, wherever it is interrupted, keeps nothing from others: a second worker gets every message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client
from natsproto.jetstream._consumer.message import JsMessage
from tests.jetstream.reading import crash, known, make, numbers, open_subscriptions, store
from tests.kit.interruption import Interruption, interruptions
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.handle import PullConsumer
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0


async def _cancelled(waiting: Awaitable[object], consumer: PullConsumer) -> None:
    """Cancels it when its pull has reached the server."""
    task = asyncio.ensure_future(waiting)
    await known(consumer, lambda info: info.num_waiting)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_cancelled_fetch_ends_its_pull(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    await _cancelled(consumer.fetch(10, timeout=LONG), consumer)
    await known(consumer, lambda info: info.num_waiting == 0)
    await store(stream, range(1, 6))
    other = await stream.consumer("d")
    got = await other.fetch(5, timeout=LONG)
    assert numbers(got) == [1, 2, 3, 4, 5]
    assert {message.metadata.num_delivered for message in got} == {1}


@pytest.mark.parametrize("way", ["fetch", "next", "iterate", "messages"])
async def test_cancelled_readers_fill_no_queue(jetstream: JetStream, nats_client: Client, way: str) -> None:
    """As many as ``max_waiting`` allows, and more, one lot after the other. Each lot waits until the server has noticed
    that the one before it left: it looks once a second, and drops pulls that find its queue full without a word.
    """
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", max_waiting=20)

    async def read() -> None:
        if way == "fetch":
            await consumer.fetch(10, timeout=LONG)
        elif way == "next":
            await consumer.next(LONG)
        elif way == "iterate":
            async for _ in consumer.fetch(10, timeout=LONG):
                pass
        else:
            async with consumer.messages(prefetch=5) as messages:
                async for _ in messages:
                    pass

    for _ in range(5):
        tasks = [asyncio.ensure_future(read()) for _ in range(15)]
        await known(consumer, lambda info: info.num_waiting == 15)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await known(consumer, lambda info: info.num_waiting == 0)
    await eventually(lambda: open_subscriptions(nats_client) == 0)


async def test_messages_of_cancelled_fetch_go_back(jetstream: JetStream) -> None:
    """What had come already is the server's again, and no other pull has to wait for it."""
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    waiting = asyncio.ensure_future(consumer.fetch(5, timeout=LONG))
    await known(consumer, lambda info: info.num_ack_pending == 3)
    waiting.cancel()
    await asyncio.wait([waiting])
    got = await (await stream.consumer("d")).fetch(3, timeout=LONG)
    assert sorted(numbers(got)) == [1, 2, 3]  # redelivered messages have no order


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fetch", "iterate"])
async def test_long_wait_before_the_cancel_delays_nothing(jetstream: JetStream, way: str) -> None:
    """A message is ours from its arrival: a fetch that had waited longer than ack_wait gives it to the next one too."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=2)

    async def read() -> None:
        if way == "fetch":
            await consumer.fetch(10, timeout=LONG)
        else:
            async for _ in consumer.fetch(10, timeout=LONG):
                await asyncio.Event().wait()

    waiting = asyncio.ensure_future(read())
    other = await stream.create_consumer(durable_name="other", filter_subject="s.other")
    assert await other.fetch(1, timeout=2.2) == []
    await store(stream, range(1, 6))
    await known(consumer, lambda info: info.num_ack_pending == 5)
    waiting.cancel()
    await asyncio.wait([waiting])
    expected = [1, 2, 3, 4, 5] if way == "fetch" else [2, 3, 4, 5]
    assert sorted(numbers(await consumer.fetch(len(expected), timeout=0.6))) == expected


async def test_age_of_a_message_outlives_its_readers(jetstream: JetStream) -> None:
    """A message that goes from one cancelled fetch to the next does not get younger by that."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    began, ages = monotonic(), []
    await store(stream, [1])
    for _ in range(3):
        waiting = asyncio.ensure_future(consumer.fetch(10, timeout=LONG))
        await known(consumer, lambda info: info.num_ack_pending == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert consumer._inbox is not None
        ages.append([one._note.since for one in consumer._inbox.leftover])
    assert ages[0] == ages[1] == ages[2], "extended only after half a second"
    assert began < ages[0][0]


@pytest.mark.parametrize("limits", [{"ack_policy": "none"}, {"max_deliver": 1, "ack_wait": 60}])
async def test_messages_that_would_be_lost_are_kept(jetstream: JetStream, limits: dict[str, object]) -> None:
    """Without acknowledgements, and at the last delivery, the server has nothing to deliver again."""
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d", **limits)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(consumer.fetch(5, timeout=LONG))
    await known(consumer, lambda info: info.delivered.consumer_seq == 3)
    waiting.cancel()
    await asyncio.wait([waiting])
    await known(consumer, lambda info: info.num_waiting == 0)
    await store(stream, [4])
    assert numbers(await consumer.fetch(4, timeout=LONG)) == [1, 2, 3, 4]


# ---------------------------------------------------------------- at each await


Read = Callable[["PullConsumer", list[JsMessage]], Awaitable[None]]


async def _fetch(consumer: PullConsumer, got: list[JsMessage]) -> None:
    got += await consumer.fetch(3, timeout=LONG)


async def _next(consumer: PullConsumer, got: list[JsMessage]) -> None:
    for _ in range(3):
        got.append(await consumer.next(LONG))  # noqa: PERF401  # what has come counts, whatever comes then


async def _iterate(consumer: PullConsumer, got: list[JsMessage]) -> None:
    async for message in consumer.fetch(3, timeout=LONG):
        got.append(message)  # noqa: PERF401


async def _messages(consumer: PullConsumer, got: list[JsMessage]) -> None:
    async with consumer.messages(prefetch=4) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == 3:
                break


async def _batches(consumer: PullConsumer, got: list[JsMessage]) -> None:
    async with consumer.messages(prefetch=4) as messages:
        async for batch in messages.batches(2):
            got += batch
            if len(got) >= 3:
                break


async def _consume(consumer: PullConsumer, got: list[JsMessage]) -> None:
    await consumer.consume(got.append, stop_after=3, prefetch=4, on_success="nothing").run()


@pytest.mark.parametrize("read", [_fetch, _next, _iterate, _messages, _batches, _consume])
async def test_second_worker_gets_all(jetstream: JetStream, nats_server: Server, read: Read) -> None:
    """The first is cancelled at each of its awaits; what it was not handed the second one gets."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=120)
    stored = 0
    async with natsproto.connect(nats_server.url) as nc:
        second = await (await nc.jetstream().stream("S")).consumer("d")
        got: list[JsMessage] = []

        async def once() -> None:
            nonlocal stored
            got.clear()
            storing = asyncio.ensure_future(store(stream, range(stored + 1, stored + 4)))
            stored += 3
            try:
                await read(consumer, got)
            finally:
                await asyncio.shield(storing)

        async for run in interruptions(once, limit=LONG):
            _check(run)
            await _rest(second, set(range(stored - 2, stored + 1)), got)
    assert stored > 9


def _check(run: Interruption) -> None:
    # The shielded wait of the test itself may outlive a cancellation that came behind the read.
    if run.error is not None and not isinstance(run.error, asyncio.CancelledError):
        raise run.error


async def _rest(second: PullConsumer, wanted: set[int], got: list[JsMessage]) -> None:
    """The second worker gets what the first one was not handed, each of them once."""
    missing = wanted - set(numbers(got))
    found: list[int] = []
    async with asyncio.timeout(LONG):
        while missing - set(found):
            for message in await second.fetch(len(missing) - len(found), timeout=LONG):
                found.append(int(message.data))
                await message.ack_sync()
    for message in got:
        if not message.is_acked:
            await message.ack_sync()
    assert sorted(found) == sorted(missing)


@pytest.mark.parametrize("read", [_fetch, _next, _messages])
async def test_second_worker_gets_all_after_kill(jetstream: JetStream, nats_server: Server, read: Read) -> None:
    """The first is cancelled while the server is killed and comes back: nothing waits longer than ack_wait."""
    stream = await make(jetstream, storage="file")
    consumer = await stream.create_consumer(durable_name="d", ack_wait=3)
    stored = 0
    for turn in range(4):
        got: list[JsMessage] = []
        reading = asyncio.ensure_future(read(consumer, got))
        if turn % 2:
            await known(consumer, lambda info: info.num_waiting)
            await store(stream, [stored + 1])
            stored += 1
        crashing = asyncio.ensure_future(crash(nats_server, stream))
        if turn < 2:
            await asyncio.sleep(0)  # the server is killed, and nobody has noticed
            reading.cancel()
        await crashing
        reading.cancel()
        await asyncio.wait([reading])
        await store(stream, range(stored + 1, stored + 4))
        stored += 3
        second = await stream.consumer("d")
        found: set[int] = set()
        async with asyncio.timeout(LONG):
            while len(found) < stored:
                for message in await second.fetch(50, timeout=0.5):
                    found.add(int(message.data))
                    await message.ack_sync()
                found |= set(numbers(message for message in got if message.is_acked))
                for message in got:
                    if not message.is_acked:
                        found.add(int(message.data))
                        await message.ack_sync()
        assert found == set(range(1, stored + 1))
        await stream.purge()
        stored = 0


# ---------------------------------------------------------------- one handle, many readers


async def test_fetch_priority_of_one_handle(jetstream: JetStream) -> None:
    """A fetch gets what its own pull was served, whoever else reads the same handle."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", priority_policy="prioritized", priority_groups=["g"])
    low = asyncio.ensure_future(consumer.fetch(20, timeout=LONG, priority_group="g", priority=9))
    await known(consumer, lambda info: info.num_waiting == 1)
    high = asyncio.ensure_future(consumer.fetch(15, timeout=LONG, priority_group="g", priority=0))
    await known(consumer, lambda info: info.num_waiting == 2)
    await store(stream, range(1, 21))
    assert numbers(await high) == list(range(1, 16))
    await store(stream, range(21, 36))
    assert numbers(await low) == list(range(16, 36))


async def test_fetch_min_pending_of_one_handle(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", priority_policy="overflow", priority_groups=["g"])
    overflow = asyncio.ensure_future(consumer.fetch(5, timeout=LONG, priority_group="g", min_pending=1000))
    await known(consumer, lambda info: info.num_waiting == 1)
    plain = asyncio.ensure_future(consumer.fetch(5, timeout=LONG, priority_group="g"))
    await known(consumer, lambda info: info.num_waiting == 2)
    await store(stream, range(1, 6))
    assert numbers(await plain) == [1, 2, 3, 4, 5]
    await store(stream, range(6, 1010))
    assert numbers(await overflow) == [6, 7, 8, 9, 10]
