"""Reading until a consumer has no more messages, on the real server."""

from __future__ import annotations

import asyncio

import pytest

from natsproto.jetstream import JetStream, JsMessage, PullConsumer


async def make_consumer(jetstream: JetStream, count: int) -> PullConsumer:
    stream = await jetstream.create_stream("S", subjects=["s"])
    async with jetstream.publisher() as publisher:
        for number in range(count):
            await publisher.publish("s", b"%d" % number)
    return await stream.create_consumer("c")


@pytest.mark.parametrize("count", [0, 1, 3, 499, 500, 501, 2500])
async def test_messages_end_when_empty(jetstream: JetStream, count: int) -> None:
    consumer = await make_consumer(jetstream, count)
    got = []
    began = asyncio.get_running_loop().time()
    async with consumer.messages(stop_when_empty=True) as messages:
        async for message in messages:
            got.append(int(message.data))
            await message.ack()
    assert got == list(range(count))
    assert asyncio.get_running_loop().time() - began < 1


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_consume_ends_when_empty(jetstream: JetStream, concurrency: int) -> None:
    consumer = await make_consumer(jetstream, 300)
    handled = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.seq)

    await consumer.consume(handle, concurrency=concurrency, stop_when_empty=True).run()
    assert sorted(handled) == list(range(1, 301))
    await consumer.consume(handle, stop_when_empty=True).run()
    assert len(handled) == 300
    assert (await consumer.info()).num_ack_pending == 0


async def test_stop_when_empty_beside_another_reader(jetstream: JetStream) -> None:
    consumer = await make_consumer(jetstream, 200)
    handled: list[int] = []
    other = await (await jetstream.stream("S")).consumer("c")

    is_done = asyncio.Event()

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.seq)
        if len(handled) == 200:
            is_done.set()

    async with other.consume(handle):
        await consumer.consume(handle, stop_when_empty=True).run()
        await is_done.wait()
    assert sorted(handled) == list(range(1, 201))


async def test_stop_when_empty_with_max_ack_pending(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    for _ in range(20):
        await jetstream.publish("s")
    consumer = await stream.create_consumer("c", max_ack_pending=3)
    handled = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.seq)

    await consumer.consume(handle, stop_when_empty=True).run()
    assert handled == list(range(1, 21))
