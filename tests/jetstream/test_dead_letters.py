"""Dead letters are always possible: of odd messages, and when their stream is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto._core.events import Event, HandlerFailed
from natsproto._dead_letters import AttemptedMessage
from natsproto.errors import LocalProtocolError
from natsproto.jetstream import JetStream, JsMessage
from natsproto.middleware import with_middleware
from natsproto.retry import (
    DEAD_LETTER_ADVISORIES,
    DeadLetter,
    DeadLetterLeft,
    MessageDeadLettered,
    MessageRetried,
    Retry,
    RetryPolicy,
    replay,
)
from natsproto.testing import run_server
from tests.jetstream.reading import events, known, make, store
from tests.kit.waiting import eventually


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


CONFIG = """authorization {{ users: [
  {{user: admin, password: x}}
  {{user: worker, password: x, permissions: {{publish: {{deny: [{0}]}}}}}}
]}}"""


@pytest.mark.parametrize("max_deliver", [2, -1])
@pytest.mark.parametrize("obstacle", ["absent", "denied", "full", "small"])
async def test_letters_wait_for_their_stream(obstacle: str, max_deliver: int) -> None:
    """Whatever the stream of dead letters has: the reason is named, other messages are handled, and none is lost."""
    denied = "dead" if obstacle == "denied" else "none"
    async with (
        run_server(jetstream=True, config=CONFIG.format(denied)) as server,
        natsproto.connect(server.url, user="admin", password="x") as admin,
        natsproto.connect(server.url, user="worker", password="x") as nc,
    ):
        js = admin.jetstream()
        stream = await make(js, retention="workqueue")
        limits: dict[str, dict[str, Any]] = {"full": {"max_msgs": 1, "discard": "new"}, "small": {"max_msg_size": 10}}
        if obstacle != "absent":
            dead = await js.create_stream("DEAD", subjects=["dead"], **limits.get(obstacle, {}))
            await js.publish("dead", b"another")
        await store(stream, range(20))
        handled: list[bytes] = []

        def handle(message: JsMessage) -> None:
            if int(message.data) % 5 == 0:
                raise ValueError("poison")
            handled.append(message.data)

        policy = RetryPolicy(dead_letter_subject="dead", max_attempts=2, delays=[0.01], max_delay=0.05, jitter=0)
        retry = Retry(nc.jetstream(timeout=0.2), policy)
        await stream.create_consumer("c", ack_wait=5.0, max_deliver=max_deliver)
        consumer = await (await nc.jetstream().stream("S")).consumer("c")
        async with events(nc) as seen, consumer.consume(with_middleware(handle, retry), concurrency=2):
            await eventually(lambda: len(handled) == 16)
            await eventually(lambda: {_letter_of(event) for event in seen} == {"", "1", "6", "11", "16"})
            assert (await stream.info()).state.messages == 4
            assert not any(isinstance(event, MessageDeadLettered) for event in seen)
            if obstacle == "absent":
                dead = await js.create_stream("DEAD", subjects=["dead"])
            elif obstacle == "denied":
                await server.reconfigure(CONFIG.format("none"))
            else:
                await js.update_stream("DEAD", max_msgs=-1, max_msg_size=-1)
            async with asyncio.timeout(30):
                while (await stream.info()).state.messages:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.01)
        letters = [DeadLetter.of(message) async for message in dead.get_batch() if message.data != b"another"]
        assert sorted(letter.seq for letter in letters) == [1, 6, 11, 16]
        assert min(letter.attempts for letter in letters) == 2
        assert sorted(map(int, handled)) == [number for number in range(20) if number % 5]


def _letter_of(event: Event) -> str:
    """Which message the event names as one whose dead letter could not be stored."""
    if isinstance(event, HandlerFailed) and event.handler.startswith("dead letter"):
        return event.handler.removeprefix("dead letter of message ").partition(" ")[0]
    return ""


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


async def test_reports_of_servers_are_dead_letters(jetstream: JetStream) -> None:
    """What consumers without a policy give up, in whatever program, and each message once."""
    stream = await make(jetstream)
    dead = await jetstream.create_stream("DEAD", subjects=["dead.>", *DEAD_LETTER_ADVISORIES])
    consumer = await stream.create_consumer("c", max_deliver=2)
    await jetstream.publish("s.nak", b"1", headers={"A": "1", "Nats-Msg-Id": "x"})
    for number in range(2, 5):
        await jetstream.publish("s.term", b"%d" % number)

    async def settle(message: JsMessage) -> None:
        if message.data == b"1":
            await message.nak()
        else:
            await message.term({b"2": "no such customer", b"3": "", b"4": "dead letter"}[message.data])

    async with consumer.consume(settle):
        await known(consumer, lambda info: not info.num_ack_pending and info.delivered.stream_seq == 4)

    def fail(message: JsMessage) -> None:
        raise ValueError("ours")

    ours = await stream.create_consumer("ours", filter_subjects=["s.nak"])
    policy = RetryPolicy(dead_letter_subject="dead.s", max_attempts=1)
    await ours.consume(with_middleware(fail, Retry(jetstream, policy)), stop_after=1).run()
    await known(ours, lambda info: not info.num_ack_pending)
    letters: dict[tuple[str, int], DeadLetter] = {}
    async for message in dead.get_batch():
        try:
            letter = await DeadLetter.load(jetstream, message)
        except LocalProtocolError:
            continue
        assert (letter.consumer, letter.seq) not in letters
        letters[letter.consumer, letter.seq] = letter
        if letter.consumer == "c":
            reported = DeadLetter.of(message)
            assert (reported.subject, reported.data, reported.left_out) == ("", b"", "subject, headers and payload")
            assert letter == reported.replace(
                subject=letter.subject, data=letter.data, headers=letter.headers, left_out=""
            )
    assert letters.keys() == {("c", 1), ("c", 2), ("c", 3), ("ours", 1)}
    first, second, third = (letters["c", seq] for seq in (1, 2, 3))
    assert (first.subject, first.data, list(first.headers.pairs())) == ("s.nak", b"1", [("A", "1")])
    assert (first.stream, first.attempts) == ("S", 2)
    assert first.error == "delivered 2 times and not acknowledged in time"
    assert (second.subject, second.data, second.error) == ("s.term", b"2", "no such customer")
    assert third.error == "terminated without a reason"

    last = (await stream.info()).state.last_seq
    assert await replay(jetstream, "DEAD") == 4
    again = [(message.subject, message.data) async for message in stream.get_batch(start_seq=last + 1)]
    assert sorted(again) == [("s.nak", b"1"), ("s.term", b"2"), ("s.term", b"3")], "s.nak has two letters"
    assert await replay(jetstream, "DEAD") == 0


async def test_several_letters_replay_one_message(jetstream: JetStream) -> None:
    """A worker that dies between its dead letter and ``term`` leaves two, and another consumer makes a third."""
    stream = await make(jetstream)
    dead = await jetstream.create_stream("DEAD", subjects=["dead.>", *DEAD_LETTER_ADVISORIES])
    for _ in range(2):
        await jetstream.publish("s.a", b"pay 100", headers={"A": "1"})
    retry = Retry(jetstream, RetryPolicy(dead_letter_subject="dead.s"))

    async def die(message: JsMessage) -> None:
        await retry._publish(AttemptedMessage(message, message.metadata, 1, ValueError()))
        await message.nak()

    dying = await stream.create_consumer("dying", max_deliver=1)
    other = await stream.create_consumer("other")
    async with dying.consume(die), other.consume(lambda message: message.term("broken")):
        await eventually_reported(jetstream, 6)
    [report, *_] = [message async for message in dead.get_batch(subject=DEAD_LETTER_ADVISORIES[0])]
    assert await replay(jetstream, "DEAD") == 6
    again = [(message.subject, message.data) async for message in stream.get_batch(start_seq=3)]
    assert again == [("s.a", b"pay 100")] * 2, "equal messages are two"

    await jetstream.publish(report.subject, report.data)  # as a new leader may
    assert await replay(jetstream, "DEAD") == 1
    assert (await stream.info()).state.messages == 4


async def test_messages_of_a_stream_made_anew_are_others(jetstream: JetStream) -> None:
    await jetstream.create_stream("DEAD", subjects=["dead.s"])
    retry = Retry(jetstream, RetryPolicy(dead_letter_subject="dead.s", max_attempts=1))

    def fail(message: JsMessage) -> None:
        raise ValueError

    for _ in range(2):
        stream = await make(jetstream)
        await jetstream.publish("s.a", b"1")
        consumer = await stream.create_consumer("c")
        await consumer.consume(with_middleware(fail, retry), stop_after=1).run()
        await known(consumer, lambda info: not info.num_ack_pending)
        await stream.delete()
    stream = await make(jetstream)
    assert await replay(jetstream, "DEAD") == 2
    assert (await stream.info()).state.messages == 2


async def test_report_of_a_message_that_is_gone_is_left(jetstream: JetStream, nats_client: Client) -> None:
    """A work queue keeps no terminated message, and a stream of the same name has other messages."""
    work = await jetstream.create_stream("W", subjects=["w"], retention="workqueue")
    old = await make(jetstream)
    await jetstream.create_stream("DEAD", subjects=[*DEAD_LETTER_ADVISORIES])
    for stream, subject in ((work, "w"), (old, "s.a")):
        await jetstream.publish(subject, b"x")
        [message] = [message async for message in (await stream.create_consumer("c")).fetch(1, timeout=5)]
        await message.term()
    await eventually_reported(jetstream, 2)
    await old.delete()
    new = await make(jetstream, 1)
    async with events(nats_client) as seen:
        assert await replay(jetstream, "DEAD") == 0
        await asyncio.sleep(0)
    assert [event.seq for event in seen if isinstance(event, DeadLetterLeft)] == [1, 2]
    assert (await new.info()).state.messages == 1


async def eventually_reported(js: JetStream, number: int) -> None:
    dead = await js.stream("DEAD")
    async with asyncio.timeout(30):
        while (await dead.info()).state.messages < number:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)
