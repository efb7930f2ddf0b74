"""Reading until a consumer has no more messages, on the real server."""

from __future__ import annotations

import asyncio
import random

import pytest

from natsproto.jetstream import JetStream, JsMessage
from natsproto.jetstream._consumer.pull.pull_state import DONE, REFILL
from tests.jetstream.pulling import Pulling
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.contents import filled_consumer


@pytest.mark.parametrize("count", [0, 1, 3, 499, 500, 501, 2500])
async def test_messages_end_when_empty(jetstream: JetStream, count: int) -> None:
    consumer = await filled_consumer(jetstream, count)
    got = []
    began = asyncio.get_running_loop().time()
    async with consumer.messages(stop_when_empty=True) as messages:
        async for message in messages:
            got.append(int(message.data))
            await message.ack()
    assert got == list(range(count))
    assert asyncio.get_running_loop().time() - began < 10, "no pull waits for its expiry"


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_consume_ends_when_empty(jetstream: JetStream, concurrency: int) -> None:
    consumer = await filled_consumer(jetstream, 300)
    handled = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.seq)

    await consumer.consume(handle, concurrency=concurrency, stop_when_empty=True).run()
    assert sorted(handled) == list(range(1, 301))
    await consumer.consume(handle, stop_when_empty=True).run()
    assert len(handled) == 300
    await until_all_acknowledged(consumer)


async def test_stop_when_empty_beside_another_reader(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 200)
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


def test_until_empty_never_has_two_pulls_open() -> None:
    """A server ends all pulls that do not wait together, and does not say what each has left: with two, each 404 asked
    for another one, for ever.
    """
    pulling = Pulling(prefetch=500, stop_when_empty=True)
    request = pulling.next_request(0.0)
    assert request is not None
    assert (request.no_wait, request.batch) == (True, 500)
    pulling.on_messages(447, 0, 0.0)
    pulling.on_consumed(447, 0)
    assert pulling.next_request(0.0) is None
    assert not pulling.wants_refill()
    assert pulling.on_status(1, 404, "No Messages", {}, 0.0) is DONE


def test_until_empty_asks_again_when_a_pull_is_served() -> None:
    pulling = Pulling(prefetch=500, stop_when_empty=True)
    pulling.next_request(0.0)
    pulling.on_consumed(300, 0)
    assert pulling.on_messages(500, 0, 0.0) is REFILL
    request = pulling.next_request(0.0)
    assert request is not None
    assert request.batch == 300


async def test_messages_end_at_any_pace(jetstream: JetStream, seed: int) -> None:
    """Readers of all paces, many at once: the end of the stream falls everywhere within the pulls."""
    rng = random.Random(seed)
    stream = await jetstream.create_stream("S", subjects=["s"])
    count = rng.randint(1500, 3000)
    async with jetstream.publisher() as publisher:
        for number in range(count):
            await publisher.publish("s", b"%d" % number)

    async def read(name: str, pause: float) -> int:
        consumer = await stream.create_consumer(name)
        got = 0
        async with consumer.messages(stop_when_empty=True) as messages:
            async for message in messages:
                got += 1
                message.ack_nowait()
                if rng.random() < pause:
                    await asyncio.sleep(rng.uniform(0, 0.003))
        return got

    async with asyncio.timeout(60):
        got = await asyncio.gather(*(read(f"c{number}", rng.choice([0, 0.02])) for number in range(12)))
    assert got == [count] * 12
