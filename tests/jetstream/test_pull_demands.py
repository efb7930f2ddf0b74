"""What is asked of the server, with the numbers users have: any timeout, heartbeat and limit."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from natsproto.errors import ConfigError, PullRefused, RequestTimeout
from natsproto.jetstream._consumer.message import JsMessage
from tests.jetstream.reading import api_calls, known, make, numbers, store

if TYPE_CHECKING:
    from natsproto import Client
    from natsproto.jetstream._consumer.handle import PullConsumer
    from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
    from natsproto.jetstream._context import JetStream

LONG = 30.0


def seeded() -> random.Random:
    """A generator with another seed in every run, which a failure shows."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def _timeout(rng: random.Random) -> float:
    return rng.choice([rng.uniform(1, 4), rng.uniform(0.5, 40), 10 / 3, rng.randint(1, 10) / rng.randint(1, 9) + 1])


async def _wait(consumer: PullConsumer, rng: random.Random) -> object:
    """One of the ways to wait for messages, with arguments that are allowed."""
    timeout = _timeout(rng)
    heartbeat = None if rng.random() < 0.5 else timeout * rng.uniform(0, 0.5)
    way = rng.randrange(4)
    if way == 0:
        return await consumer.next(timeout)
    if way == 1:
        return await consumer.fetch(rng.randint(1, 20), timeout=timeout, heartbeat=heartbeat)
    if way == 2:
        return await consumer.fetch(max_bytes=rng.randint(100, 10_000), timeout=timeout, heartbeat=heartbeat)
    async with consumer.messages(prefetch=10, expires=timeout, heartbeat=heartbeat) as messages:
        return [message async for message in messages]


async def test_heartbeat_rounding_on_server(jetstream: JetStream, nats_client: Client) -> None:
    rng = seeded()
    stream = await make(jetstream)
    limits = [{}, {"max_batch": 5}, {"max_expires": 5 / 3}, {"max_batch": 3, "max_expires": 10 / 7, "max_bytes": 1000}]
    for number, limit in enumerate(limits):
        consumer = await stream.create_consumer(durable_name=f"d{number}", max_waiting=1000, **limit)  # type: ignore[arg-type]
        waiting = [asyncio.ensure_future(_wait(consumer, rng)) for _ in range(100)]
        done, _ = await asyncio.wait(waiting, timeout=1.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, TimeoutError), error
        await nats_client.flush()


@pytest.mark.parametrize("limit", [{}, {"max_batch": 5}])
async def test_fetch_remaining_time(jetstream: JetStream, limit: dict[str, int]) -> None:
    """The pieces of a fetch get what is left of its time, which is no round number."""
    rng = seeded()
    stream = await make(jetstream, 500)
    consumer = await stream.create_consumer(durable_name="d", max_waiting=1000, **limit)  # type: ignore[arg-type]
    got: list[JsMessage] = []
    while len(got) < 500:
        got += await consumer.fetch(min(rng.randint(1, 12), 500 - len(got)), timeout=rng.uniform(1, 4))
    assert [int(message.data) for message in got] == list(range(1, 501))


# ---------------------------------------------------------------- pieces and refusals


async def test_fetch_max_bytes_in_pieces(jetstream: JetStream) -> None:
    """A limit of the consumer on the bytes of a request bounds a piece and not the fetch."""
    rng = seeded()
    stream = await make(jetstream)
    await store(stream, range(1, 41), size=rng.randint(200, 500))
    consumer = await stream.create_consumer(durable_name="d", max_bytes=1200)
    got = await consumer.fetch(max_bytes=5000, timeout=LONG)
    whole = sum(message._counted_size for message in got)
    assert 5000 - got[-1]._counted_size - 2 < whole <= 5000, "one more, with two digits more in its reply, is too many"
    assert numbers(got) == list(range(1, len(got) + 1))


@pytest.mark.parametrize("kind", ["pull", "limited", "ordered"])
@pytest.mark.parametrize("how", ["fetch", "no wait", "available", "iterate"])
async def test_fetch_message_over_max_bytes(jetstream: JetStream, kind: str, how: str) -> None:
    """What fits comes; the fetch that would begin with the large message says that it is too large, each time."""
    stream = await make(jetstream)
    await store(stream, [1, 2], size=100)
    await store(stream, [3], size=9000)
    consumer: PullConsumer | OrderedConsumer = stream.ordered_consumer()
    if kind != "ordered":
        consumer = await stream.create_consumer(durable_name="d", max_bytes=1200 if kind == "limited" else 0)

    async def fetch() -> list[JsMessage]:
        if how == "available":
            return await consumer.fetch_available(max_bytes=5000, timeout=LONG)
        if how == "iterate":
            return [message async for message in consumer.fetch(max_bytes=5000, timeout=LONG)]
        return await consumer.fetch(max_bytes=5000, timeout=0 if how == "no wait" else LONG)

    assert numbers(await fetch()) == [1, 2]
    for _ in range(2):
        with pytest.raises(PullRefused, match=f"it needs more than {1200 if kind == 'limited' else 5000} bytes"):
            await fetch()


@pytest.mark.parametrize("name", ["max_bytes", "prefetch_bytes", "max_messages", "prefetch"])
async def test_no_limit_is_zero(jetstream: JetStream, name: str) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    for one in (consumer, stream.ordered_consumer()):
        with pytest.raises(ConfigError, match=f"{name} 0: must be at least 1"):
            one.messages(**{name: 0}) if name.startswith("prefetch") else one.fetch(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{name} 0: must be at least 1"):
        consumer.consume(print, **{name: 0}) if name.startswith("prefetch") else consumer.fetch_available(**{name: 0})  # type: ignore[arg-type]


async def test_fetch_max_waiting(jetstream: JetStream) -> None:
    """A full queue of pulls passes: a fetch asks again within its time."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", max_waiting=1)
    first = asyncio.ensure_future(consumer.fetch(1, timeout=LONG))
    await known(consumer, lambda info: info.num_waiting)
    second = asyncio.ensure_future(consumer.next(LONG))
    third = asyncio.ensure_future(consumer.fetch(1, timeout=LONG))
    assert await consumer.fetch(1, timeout=0.3) == []
    for number in range(1, 4):
        await known(consumer, lambda info: info.num_waiting)
        await store(stream, [number])
    assert {*numbers(await first), *numbers([await second]), *numbers(await third)} == {1, 2, 3}


async def test_too_many_waiting_pulls_do_not_make_it_spin(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", max_waiting=1)
    waiting = asyncio.ensure_future((await stream.consumer("d")).fetch(1, timeout=LONG))
    await known(consumer, lambda info: info.num_waiting)
    async with api_calls(nats_client) as calls, consumer.messages() as messages:
        with pytest.raises(RequestTimeout):
            await messages.next(timeout=1.0)
        pulls = [call for call in calls if ".MSG.NEXT." in call]
        assert len(pulls) <= 12
        await store(stream, [1])
        assert numbers(await waiting) == [1]
        await store(stream, [2])
        assert (await messages.next(timeout=LONG)).data == b"2"


async def test_one_pull_for_any_max_messages(jetstream: JetStream, nats_client: Client) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"], storage="memory")
    consumer = await stream.create_consumer(durable_name="c")
    for most in (10**9, 2**63 - 1):
        async with asyncio.timeout(30), consumer.messages(prefetch=most) as messages:
            sent = nats_client.stats.out_msgs
            await jetstream.publish("s", b"1")
            await (await messages.next()).ack()
            assert nats_client.stats.out_msgs == sent + 2


# ---------------------------------------------------------------- as soon as there is one


@pytest.mark.parametrize("limit", [{}, {"max_batch": 3}, {"max_expires": 0.2}])
async def test_fetch_available(jetstream: JetStream, limit: dict[str, float]) -> None:
    stream = await make(jetstream, 7)
    consumer = await stream.create_consumer(durable_name="d", **limit)  # type: ignore[arg-type]
    assert numbers(await consumer.fetch_available(100, timeout=LONG)) == [1, 2, 3, 4, 5, 6, 7]
    waiting = asyncio.ensure_future(consumer.fetch_available(100, timeout=LONG))
    await known(consumer, lambda info: info.num_waiting)
    await store(stream, [8])
    assert numbers(await waiting) == [8]
    assert await consumer.fetch_available(100, timeout=0.3) == []
    await store(stream, [9, 10])
    assert numbers(await consumer.fetch_available(1, timeout=LONG)) == [9]


async def test_fetch_available_ordered(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    ordered = stream.ordered_consumer()
    assert numbers(await ordered.fetch_available(100, timeout=LONG)) == [1, 2, 3]
    waiting = asyncio.ensure_future(ordered.fetch_available(100, timeout=LONG))
    await asyncio.sleep(0)
    await store(stream, [4])
    assert numbers(await waiting) == [4]
    await ordered.stop()


# ---------------------------------------------------------------- what is remembered


async def test_pull_replies_fill_no_cache(jetstream: JetStream, nats_client: Client) -> None:
    """Each pull has a reply subject that never comes again."""
    stream = await make(jetstream, 30)
    consumer = await stream.create_consumer(durable_name="d")
    await consumer.fetch(1)
    before = dict(nats_client._control_lines.pub_prefixes)
    for _ in range(20):
        await consumer.fetch(1)
    assert await asyncio.gather(*(consumer.fetch(3, timeout=0.1) for _ in range(5)))
    assert nats_client._control_lines.pub_prefixes == before
