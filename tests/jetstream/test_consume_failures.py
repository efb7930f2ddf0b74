"""What may fail around the handlers of ``consume``: keys, acknowledgements, delays and callbacks of the program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from natsproto import Client, errors
from natsproto.jetstream._consumer.message import JsMessage
from tests.jetstream.reading import events, ignore, known, make

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.handle import PullConsumer
    from natsproto.jetstream._context import JetStream


@pytest.fixture
async def consumer(jetstream: JetStream) -> PullConsumer:
    stream = await make(jetstream, 3)
    return await stream.create_consumer(durable_name="d", ack_wait=60)


async def test_key_function_that_fails_ends_consume(consumer: PullConsumer) -> None:
    def key(message: JsMessage) -> str:
        if message.data == b"2":
            raise ValueError("no key")
        return "a"

    with pytest.raises(ValueError, match="no key"):
        await consumer.consume(ignore, concurrency=2, key=key).run()
    await known(consumer, lambda info: info.delivered.consumer_seq >= 2)


async def test_success_may_wait_for_its_ack(consumer: PullConsumer) -> None:
    await consumer.consume(ignore, on_success="ack_sync", stop_after=3).run()
    assert (await consumer.info()).ack_floor.stream_seq == 3  # at once: each ack was confirmed


async def test_handler_is_kept_alive(consumer: PullConsumer) -> None:
    seen: list[bytes] = []

    async def slow(message: JsMessage) -> None:
        await asyncio.sleep(0.01)
        seen.append(message.data)

    for keep_alive in (True, 0.02):
        await consumer.consume(slow, keep_alive=keep_alive, stop_after=1).run()
    await consumer.consume(lambda message: seen.append(message.data), keep_alive=True, stop_after=1).run()
    assert seen == [b"1", b"2", b"3"]
    await known(consumer, lambda info: not info.num_ack_pending)


async def test_nak_delay_that_fails_is_reported(consumer: PullConsumer, nats_client: Client) -> None:
    def delay(message: JsMessage) -> float:
        raise LookupError("no delay")

    async def fail(message: JsMessage) -> None:
        raise ValueError("no")

    async with events(nats_client) as seen:
        await consumer.consume(fail, nak_delay=delay, stop_after=3).run()
    where = [event.handler for event in seen if hasattr(event, "handler")]
    assert where == ["handler of consumer 'd' of stream 'S'", "nak_delay of consumer 'd' of stream 'S'"] * 3
    await known(consumer, lambda info: info.num_ack_pending == 3)  # they come again, but not soon


async def test_error_cb_of_every_kind(consumer: PullConsumer, caplog: pytest.LogCaptureFixture) -> None:
    on_error: list[str] = []

    async def fail(message: JsMessage) -> None:
        raise ValueError(message.data.decode())

    async def later(message: JsMessage, error: BaseException) -> None:
        await asyncio.sleep(0)
        on_error.append(str(error))

    def raises(message: JsMessage, error: BaseException) -> None:
        raise LookupError("in error_cb")

    await consumer.consume(fail, on_error="term", error_cb=later, stop_after=1).run()
    await consumer.consume(fail, on_error="term", error_cb=raises, stop_after=1).run()
    await consumer.consume(fail, on_error="term", error_cb=later, stop_after=1).run()
    assert on_error == ["1", "3"]
    assert [line for line in caplog.messages if "error_cb" in line] == [
        "error_cb of consumer 'd' of stream 'S' failed: LookupError('in error_cb')"
    ]


async def test_cancelled_error_of_a_handler_is_a_failure(consumer: PullConsumer) -> None:
    """The task was not cancelled: something that the handler waited for was."""
    failed: list[type[BaseException]] = []

    async def handler(message: JsMessage) -> None:
        raise asyncio.CancelledError

    def on_error(message: JsMessage, error: BaseException) -> None:
        failed.append(type(error))

    await consumer.consume(handler, on_error="term", error_cb=on_error, stop_after=3).run()
    assert failed == [asyncio.CancelledError] * 3


async def test_ack_on_a_closed_client_is_logged(
    consumer: PullConsumer, nats_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: JsMessage) -> None:
        await nats_client.close()

    await consumer.consume(handler, stop_after=1).run()
    [line] = [line for line in caplog.messages if line.startswith("ack of a message")]
    reason = "publish: the connection is closed: connect again"
    assert line == f"ack of a message of consumer 'd' of stream 'S' failed: {reason}"


async def test_consume_must_be_begun(consumer: PullConsumer) -> None:
    context = consumer.consume(ignore)
    for end in (context.wait, context.drain):
        with pytest.raises(errors.LocalProtocolError, match="with async with first"):
            await end()
    assert not context.closed
    async with context:
        assert not context.closed
    assert context.closed
