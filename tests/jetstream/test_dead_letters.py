"""Dead letters are always possible: of odd messages, and when their stream is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from natsproto import Client
from natsproto.jetstream import JetStream, JsMessage
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, MessageRetried, Retry, RetryPolicy, replay
from tests.jetstream.reading import events, eventually, known, make, store


async def test_poison_stops_no_worker(jetstream: JetStream) -> None:
    """While the stream of dead letters is away, messages in their last delivery are kept, and others are handled."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer("d", ack_wait=5.0, max_deliver=2)
    calls = Counter[bytes]()

    async def handle(message: JsMessage) -> None:
        calls[message.data] += 1
        if int(message.data) < 5:
            raise ValueError("poison")

    policy = RetryPolicy(dead_letter_subject="dead", max_attempts=2, delays=[0.05], jitter=0)
    async with consumer.consume(with_middleware(handle, Retry(jetstream, policy)), concurrency=2):
        await store(stream, range(5))
        await eventually(lambda: calls.total() == 10)
        await store(stream, range(5, 15))
        await eventually(lambda: len(calls) == 15)
        dead = await jetstream.create_stream("DEAD", subjects=["dead"])
        await known(consumer, lambda info: not info.num_ack_pending)
    letters = [DeadLetter.of(message) async for message in dead.get_batch(start_seq=1)]
    assert sorted(letter.data for letter in letters) == [b"0", b"1", b"2", b"3", b"4"]
    assert {letter.attempts for letter in letters} == {2}


async def test_letter_without_what_its_stream_refuses(jetstream: JetStream) -> None:
    """A payload that the stream of dead letters does not take is left out, and the letter is not replayed."""
    stream = await make(jetstream)
    dead = await jetstream.create_stream("DEAD", subjects=["dead"], max_msg_size=800)
    consumer = await stream.create_consumer("d")
    await jetstream.publish("s.large", bytes(2000), headers={"A": "1"})
    await jetstream.publish("s.small", b"1", headers={"A": "1"})

    def fail(message: JsMessage) -> None:
        raise ValueError

    policy = RetryPolicy(dead_letter_subject="dead", max_attempts=1)
    async with consumer.consume(with_middleware(fail, Retry(jetstream, policy))):
        await known(consumer, lambda info: info.delivered.consumer_seq == 2 and not info.num_ack_pending)
    letters = {letter.seq: letter async for letter in _letters(jetstream)}
    assert (letters[1].data, letters[1].left_out) == (b"", "headers and payload of 2000 bytes")
    assert (letters[2].data, letters[2].left_out, letters[2].headers.get("A")) == (b"1", "", "1")
    assert await replay(jetstream, "DEAD") == 1
    assert (await dead.info()).state.messages == 1, "the one without its payload stays"


async def _letters(js: JetStream) -> AsyncIterator[DeadLetter]:
    async for message in (await js.stream("DEAD")).get_batch(start_seq=1):
        yield DeadLetter.of(message)


@pytest.mark.parametrize("error", [ConnectionError, ValueError])
async def test_free_errors_use_no_attempt_up(jetstream: JetStream, nats_client: Client, error: type[Exception]) -> None:
    """The database is away: the handler is called again for the same delivery, until it is back."""
    stream = await make(jetstream, 1)
    await jetstream.create_stream("DEAD", subjects=["dead"])
    consumer = await stream.create_consumer("d", max_deliver=2)
    attempts: list[int] = []

    async def handle(message: JsMessage) -> None:
        attempts.append(message.metadata.num_delivered)
        if len(attempts) < 5:
            raise ConnectionError("away")
        if error is ValueError:
            raise ValueError("and now it is the message")

    policy = RetryPolicy(dead_letter_subject="dead", max_attempts=2, delays=[0.01], free=ConnectionError)
    async with events(nats_client) as seen, consumer.consume(with_middleware(handle, Retry(jetstream, policy))):
        await known(consumer, lambda info: len(attempts) >= 5 and not info.num_ack_pending)
        await asyncio.sleep(0)
    assert attempts == [1] * 5 + [2] * (error is ValueError)
    assert len([event for event in seen if isinstance(event, MessageRetried)]) == 4 + (error is ValueError)
