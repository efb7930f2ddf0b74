"""The end of ``consume``: who waits for it gets the error, and nobody misses it in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from natsproto.errors import ConsumerGone
from natsproto.jetstream import JetStream, JsMessage
from tests.jetstream.reading import eventually, make


async def ignore(message: JsMessage) -> None: ...


async def test_end_that_no_wait_sees_is_logged(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "natsproto")
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    stop = asyncio.Event()
    with pytest.raises(ConsumerGone):  # noqa: PT012  # at the end of the block
        async with consumer.consume(ignore, concurrency=4) as work:
            await consumer.delete()
            await eventually(lambda: work.closed)
    texts = [record.getMessage() for record in caplog.records if record.name == "natsproto"]
    assert not [text for text in texts if text.count("consumer 'd'") > 1]
    (ended,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ended.startswith("consume() has ended: consumer 'd' of stream 'S': ")
    assert ended.endswith(": create the consumer, then consume it again")
    caplog.clear()
    consumer = await stream.create_consumer(durable_name="d")
    async with contextlib.AsyncExitStack() as stack:
        work = await stack.enter_async_context(consumer.consume(ignore))
        waiting = asyncio.create_task(work.wait(stop))
        await consumer.delete()
        for end in (waiting, stack.aclose()):
            with pytest.raises(ConsumerGone):
                await end
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "the wait has raised it"


async def test_wait_of_consume_ends_with_an_event(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    stop = asyncio.Event()
    async with consumer.consume(ignore) as work:
        asyncio.get_running_loop().call_soon(stop.set)
        await work.wait(stop)
        assert not work.closed
        await work.wait(stop)
