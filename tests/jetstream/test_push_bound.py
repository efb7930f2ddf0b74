"""A push consumer has one reader, or a group of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.errors import AlreadyBound
from tests.jetstream.reading import make, numbers, store

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0


async def test_push_durable_bound_twice_refused(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream)
    first = await stream.create_push_consumer(durable_name="d")
    async with natsproto.connect(nats_server.url) as other:
        elsewhere = await other.jetstream().stream("S")
        for _ in range(5):
            async with first.messages() as messages:
                for second in (await stream.push_consumer("d"), await elsewhere.push_consumer("d")):
                    with pytest.raises(AlreadyBound, match="deliver_group") as caught:
                        await second.messages().__aenter__()
                    assert (caught.value.consumer, caught.value.stream) == ("d", "S")
                with pytest.raises(AlreadyBound):
                    await (await stream.push_consumer("d")).consume(print).run()
                await store(stream, [1])
                assert numbers([await messages.next(LONG)]) == [1]
                await store(stream, [2])
                assert numbers([await messages.next(LONG)]) == [2]


async def test_push_reader_after_reader(jetstream: JetStream) -> None:
    """Who has left is not taken for a reader, though the server needs a moment to notice."""
    stream = await make(jetstream)
    consumer = await stream.create_push_consumer(durable_name="d")
    for number in range(10):
        async with consumer.messages() as messages:
            await store(stream, [number])
            message = await messages.next(LONG)
            assert numbers([message]) == [number]
            await message.ack_sync()


async def test_push_group_members_bind(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_push_consumer(durable_name="d", deliver_group="g")
    async with consumer.messages(), (await stream.push_consumer("d")).messages():
        async with asyncio.timeout(LONG):
            while not (await consumer.info()).push_bound:  # noqa: ASYNC110  # the server looks when it has time
                await asyncio.sleep(0.01)


async def test_push_bind_without_asking(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    made = await stream.create_push_consumer(durable_name="d")
    bound = await stream.push_consumer("d", deliver_subject=made.deliver_subject)
    async with bound.messages() as messages:
        assert numbers([await messages.next(LONG)]) == [1]


async def test_push_consumer_lost_noticed(jetstream: JetStream) -> None:
    """Within four seconds, by default."""
    stream = await make(jetstream)
    consumer = await stream.create_push_consumer(durable_name="d")
    assert consumer.cached_info.config.idle_heartbeat * 3 < 4
    async with consumer.messages() as messages:
        await consumer.delete()
        async with asyncio.timeout(LONG):
            with pytest.raises(natsproto.errors.ConsumerGone):
                await messages.next()
    silent = await stream.create_push_consumer(durable_name="e", idle_heartbeat=0)
    assert silent.cached_info.config.idle_heartbeat == 0
