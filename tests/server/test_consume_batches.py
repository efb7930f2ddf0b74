"""Handlers of batches, on the real server."""

from __future__ import annotations

import asyncio
import time

import pytest

from natsproto import Client
from natsproto.errors import ConfigError
from natsproto.jetstream import BatchFailed, JetStream, JsMessage
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.contents import filled_consumer


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_batches_are_acknowledged(jetstream: JetStream, concurrency: int) -> None:
    consumer = await filled_consumer(jetstream, 1030)
    sizes: list[int] = []
    seqs: list[int] = []

    async def handle(batch: list[JsMessage]) -> None:
        await asyncio.sleep(0.01)
        sizes.append(len(batch))
        seqs.extend(message.seq for message in batch)

    work = consumer.consume_batches(
        handler=handle, max_messages=100, max_wait=0.2, concurrency=concurrency, stop_after=1030
    )
    await work.run()
    assert sorted(seqs) == list(range(1, 1031))
    assert max(sizes) <= 100
    assert len(sizes) <= 13  # 10 full ones, and the rest
    assert (work.handled, work.failed, work.in_progress) == (1030, 0, 0)
    await jetstream.connection.flush()
    await until_all_acknowledged(consumer)


@pytest.mark.parametrize("way", ["consume_batches", "batches", "window"])
async def test_batch_may_be_emptied_by_its_reader(jetstream: JetStream, way: str) -> None:
    """Its messages count as handled all the same, and more are pulled."""
    consumer = await filled_consumer(jetstream, 1500)
    seqs: list[int] = []

    def handle(batch: list[JsMessage]) -> None:
        while batch:
            message = batch.pop()
            message.ack_nowait()
            seqs.append(message.seq)

    if way == "consume_batches":
        await consumer.consume_batches(handle, max_messages=100, stop_after=1500).run()
    else:
        async with consumer.messages(stop_after=1500) as messages:
            async for batch in messages.batches(100, max_wait=0.1 if way == "window" else None):
                handle(batch)
    assert sorted(seqs) == list(range(1, 1501))


async def test_large_batches_need_few_pulls(nats_client: Client, jetstream: JetStream) -> None:
    """A batch of as many messages as are prefetched is one pull, not one for each message."""
    consumer = await filled_consumer(jetstream, 4000)
    async with nats_client.subscribe("$JS.API.CONSUMER.MSG.NEXT.S.c") as pulls:
        await consumer.consume_batches(lambda batch: None, max_messages=500, max_wait=0.2, stop_after=4000).run()
        await nats_client.flush()
        assert pulls.pending_msgs <= 20


async def test_oldest_message_waits_for_max_wait(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 0)
    called: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def handle(batch: list[JsMessage]) -> None:
        await called.put((len(batch), time.monotonic()))

    async with consumer.consume_batches(handle, max_messages=3, max_wait=0.3):
        began = time.monotonic()
        await jetstream.publish("s")
        size, at = await called.get()
        assert size == 1
        assert at - began >= 0.25
        for _ in range(3):
            await jetstream.publish("s")
        size, _ = await called.get()
        assert size == 3


async def test_failed_indexes_are_redelivered(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 6)
    calls: list[list[tuple[int, int]]] = []

    async def handle(batch: list[JsMessage]) -> None:
        calls.append([(message.seq, message.metadata.num_delivered) for message in batch])
        if len(calls) == 1:
            raise BatchFailed([1, 4])
        if len(calls) == 2:
            raise ValueError("all of them")

    work = consumer.consume_batches(handle, max_messages=6, max_wait=0.1, nak_delay=0.05, stop_after=10)
    await work.run()
    seen = [pair for call in calls[1:] for pair in call]
    assert calls[0] == [(seq, 1) for seq in range(1, 7)]
    assert sorted(seen) == [(2, 2), (2, 3), (5, 2), (5, 3)]
    await jetstream.connection.flush()
    await until_all_acknowledged(consumer)


async def test_no_doubles_with_slow_batches(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 60, ack_wait=1)
    seqs: list[int] = []

    def handle(batch: list[JsMessage]) -> None:
        time.sleep(0.5)  # the handler's own time
        seqs.extend(message.seq for message in batch)

    await consumer.consume_batches(handle, max_messages=20, max_wait=0.05, executor=True, stop_after=60).run()
    assert sorted(seqs) == list(range(1, 61))


async def test_rest_of_a_slow_batch_stays_ours(jetstream: JetStream) -> None:
    """A loop that acknowledges one by one and becomes slow: another reader does not get the rest of its batch."""
    ack_wait = 0.5
    consumer = await filled_consumer(jetstream, 40, ack_wait=ack_wait)
    other = await (await jetstream.stream("S")).consumer("c")
    seqs: list[int] = []
    sizes: list[int] = []

    async def read() -> None:
        async with consumer.messages() as messages:
            async for batch in messages.batches():
                sizes.append(len(batch))
                for message in batch:
                    seqs.append(message.seq)
                    await asyncio.sleep(0.3 * ack_wait if len(batch) >= 5 else 0)
                    await message.ack()

    async def read_other() -> None:
        async with other.messages() as messages:
            async for message in messages:
                seqs.append(message.seq)
                await message.ack()

    async with asyncio.timeout(30):
        tasks = [asyncio.create_task(read())]
        while max(sizes, default=0) < 5:  # noqa: ASYNC110  # more are prefetched after the first ones
            await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(read_other()))
        await until_all_acknowledged(consumer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(seqs) == list(range(1, 41))


async def test_stop_returns_what_waits(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 10)
    called = asyncio.Event()

    async def handle(batch: list[JsMessage]) -> None:
        called.set()

    async with consumer.consume_batches(handle, max_messages=4, max_wait=2) as work:
        await called.wait()
    assert work.handled % 4 == 0
    rest = 10 - work.handled
    assert len(await consumer.fetch(rest, timeout=10)) == rest, "they need not wait for ack_wait"


async def test_bad_arguments_of_batches(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 0, ack_wait=5)

    async def handle(batch: list[JsMessage]) -> None: ...

    for arguments, name in (
        ({"max_wait": -1}, "max_wait"),
        ({"max_wait": 0.5}, "max_wait"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": True}, "max_messages"),
        ({"concurrency": 0}, "concurrency"),
        ({"executor": True}, "executor"),
    ):
        with pytest.raises(ConfigError, match=name):
            consumer.consume_batches(handle, **{"max_wait": 0.1, **arguments})  # type: ignore[arg-type]
