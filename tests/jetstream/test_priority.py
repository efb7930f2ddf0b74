"""Priority groups (ADR-42): who is served when several pull from one consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.errors import PullRefused, RequestTimeout
from tests.jetstream.reading import events, known, make, notices, numbers, store
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0


@asynccontextmanager
async def refusals(client: natsproto.Client) -> AsyncIterator[set[str]]:
    """What the server says to clients whose pin is wrong."""
    said: set[str] = set()

    def note(message: natsproto.Message) -> None:
        if message.headers._status == 423:
            said.add(message.headers._description)

    async with client.subscribe("_INBOX.>", cb=note):
        await client.flush()
        yield said


async def test_overflow_serves_only_when_enough_is_pending(jetstream: JetStream) -> None:
    stream = await make(jetstream, 5)
    consumer = await stream.create_consumer(durable_name="d", priority_policy="overflow", priority_groups=["g"])
    assert await consumer.fetch(5, timeout=0.2, priority_group="g", min_pending=10) == []
    waiting = asyncio.ensure_future(consumer.fetch(2, timeout=LONG, priority_group="g", min_pending=10))
    await known(consumer, lambda info: info.num_waiting)
    await store(stream, range(6, 12))
    assert numbers(await waiting) == [1, 2]
    assert numbers(await consumer.fetch(2, timeout=LONG, priority_group="g")) == [3, 4]
    with pytest.raises(PullRefused, match="Priority Group missing"):
        await consumer.fetch(1, timeout=LONG)
    with pytest.raises(PullRefused, match="Invalid Priority Group"):
        await consumer.fetch(1, timeout=LONG, priority_group="other")


async def test_overflow_serves_above_min_ack_pending(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(
        durable_name="d", priority_policy="overflow", priority_groups=["g"], ack_wait=60
    )
    async with consumer.messages(priority_group="g", min_ack_pending=3) as overflow:
        with pytest.raises(RequestTimeout):
            await overflow.next(timeout=0.2)
        assert len(await consumer.fetch(3, timeout=LONG, priority_group="g")) == 3
        assert numbers([await overflow.next(timeout=LONG)]) == [4]


async def test_prioritized_serves_the_lowest_number_first(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", priority_policy="prioritized", priority_groups=["g"])
    last = asyncio.ensure_future(consumer.fetch(1, timeout=LONG, priority_group="g", priority=9))
    await known(consumer, lambda info: info.num_waiting == 1)
    other = await stream.consumer("d")
    first = asyncio.ensure_future(other.fetch(1, timeout=LONG, priority_group="g", priority=1))
    await known(consumer, lambda info: info.num_waiting == 2)
    await store(stream, [1])
    assert numbers(await first) == [1]
    assert not last.done()
    await store(stream, [2])
    assert numbers(await last) == [2]


@pytest.mark.slow
async def test_pinned_client_gets_everything_until_it_goes(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(
        durable_name="d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=10.0, ack_wait=60
    )
    async with natsproto.connect(nats_server.url) as nc, natsproto.connect(nats_server.url) as standby:
        seen: list[list[int]] = [[], []]

        async def read(client: natsproto.Client, index: int) -> None:
            mine = await (await client.jetstream().stream("S")).consumer("d")
            async with mine.messages(priority_group="g", prefetch=10, expires=1.0) as messages:
                async for message in messages:
                    seen[index].append(int(message.data))
                    await message.ack()

        first = asyncio.ensure_future(read(nc, 0))
        await store(stream, range(1, 6))
        await eventually(lambda: len(seen[0]) == 5)
        second = asyncio.ensure_future(read(standby, 1))
        await known(consumer, lambda info: info.num_waiting >= 2)
        for number in range(6, 56):
            await store(stream, [number])
        await eventually(lambda: len(seen[0]) == 55)
        assert seen[1] == [], "the pinned client gets everything"
        info = await consumer.info()
        pin = info.priority_groups[0].pinned_client_id
        assert pin

        await consumer.unpin("g")  # somebody else may have it now; both go on
        await store(stream, range(56, 66))
        await eventually(lambda: len(seen[0]) + len(seen[1]) == 65)
        assert (await consumer.info()).priority_groups[0].pinned_client_id not in ("", pin)

        pinned = 1 if seen[1] else 0
        gone, rest = (second, first) if pinned else (first, second)
        gone.cancel()
        await asyncio.wait([gone])
        await store(stream, range(66, 76))
        await eventually(lambda: len(seen[1 - pinned]) >= 10 and sum(map(len, seen)) >= 75, LONG)
        rest.cancel()
        await asyncio.wait([rest])
    assert set(seen[0]) | set(seen[1]) == set(range(1, 76))


async def test_pin_is_kept_between_fetches(jetstream: JetStream, nats_client: natsproto.Client) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(
        durable_name="d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=60.0
    )
    assert numbers(await consumer.fetch(2, priority_group="g")) == [1, 2]
    assert consumer._inbox is not None
    pins = consumer._inbox.pins
    pin = pins["g"]
    assert pin
    other = await stream.consumer("d")
    assert await other.fetch(2, timeout=0.2, priority_group="g") == [], "somebody else is pinned"
    assert numbers(await consumer.fetch(2, priority_group="g")) == [3, 4]
    assert pins["g"] == pin
    await consumer.unpin("g")
    assert numbers(await other.fetch(2, timeout=LONG, priority_group="g")) == [5, 6]
    async with refusals(nats_client) as said:
        waiting = asyncio.ensure_future(consumer.fetch(1, timeout=LONG, priority_group="g"))  # its pin is wrong now
        await known(consumer, lambda info: info.num_waiting)
        assert "g" not in pins
        await consumer.unpin("g")
        assert numbers(await waiting) == [7]
    assert said == {"Nats-Pin-Id mismatch"}


async def test_losing_the_pin_while_waiting_is_no_error(jetstream: JetStream, nats_client: natsproto.Client) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(
        durable_name="d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=60.0
    )
    async with (
        events(nats_client) as seen,
        refusals(nats_client) as said,
        consumer.messages(priority_group="g") as messages,
    ):
        assert numbers([await messages.next() for _ in range(3)]) == [1, 2, 3]
        for number in range(4, 10):
            await consumer.unpin("g")
            await store(stream, [number])
            assert numbers([await messages.next(timeout=LONG)]) == [number]
    assert notices(seen) == []
    assert "Nats-Wrong-Pin-Id" in said
