"""Retries and dead letters: nothing is lost, nothing is buried twice, and the dead can be brought back."""

from __future__ import annotations

import asyncio
import logging
import operator
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from natsproto import Client, Event, HandlerFailed, Message, otel
from natsproto.errors import ConfigError, InvalidPayload, InvalidSubject, LocalProtocolError, NoStream
from natsproto.jetstream import JetStream, JsMessage, PullConsumer, Stream
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, MessageDeadLettered, MessageRetried, Retry, RetryPolicy, replay
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.testing import Server


def quick(**given: Any) -> RetryPolicy:
    """A policy that does not wait."""
    return RetryPolicy(**{"dead_letter_subject": "dead.s", "first_delay": 0, **given})


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    await jetstream.create_stream(name="DEAD", subjects=["dead.>"])
    return await jetstream.create_stream(name="S", subjects=["s.>"])


@pytest.fixture
async def consumer(stream: Stream) -> PullConsumer:
    return await stream.create_consumer(durable_name="worker", ack_wait=60)


async def dead(js: JetStream) -> list[DeadLetter]:
    letters = await js.stream("DEAD")
    return [DeadLetter.of(message) async for message in letters.get_batch(start_seq=1)]


async def left(consumer: PullConsumer) -> int:
    """Messages that have no final answer."""
    info = await consumer.info()
    return info.num_pending + info.num_ack_pending


def events_of(nc: Client) -> list[Event]:
    events: list[Event] = []
    nc.add_listener(events.append)
    return events


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG], ids=logging.getLevelName)
async def test_retries_are_one_warning_each(
    jetstream: JetStream, consumer: PullConsumer, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "natsproto")

    def fail(message: JsMessage) -> None:
        raise ValueError("no way")

    await jetstream.publish("s.1", b"payload")
    await consumer.consume(with_middleware(fail, Retry(jetstream, quick(max_attempts=3))), stop_after=3).run()
    records = [record for record in caplog.records if "no way" in record.getMessage()]
    reported = [(record.levelname, bool(record.exc_info)) for record in records]
    assert reported == [("WARNING", level == logging.DEBUG)] * 2 + [("ERROR", True)], "one line each"
    assert [record.getMessage() for record in records] == [
        "handler of consumer 'worker' of stream 'S' failed for message 1, attempt 1 of 3, again in 0 s: "
        "ValueError('no way')",
        "handler of consumer 'worker' of stream 'S' failed for message 1, attempt 2 of 3, again in 0 s: "
        "ValueError('no way')",
        "message 1 of stream 'S' is a dead letter after 3 attempts of consumer 'worker': ValueError('no way')",
    ]
    assert frames(records[-1]) == ["fail"], "the handler's frames only"


def frames(record: logging.LogRecord) -> list[str]:
    assert record.exc_info
    return [frame.name for frame in traceback.extract_tb(record.exc_info[2])]


@pytest.mark.parametrize("on_error", ["nak", "term", "nothing"])
@pytest.mark.parametrize("executor", ["none", "threads", "pool"])
async def test_log_has_the_failed_message_and_what_follows(
    jetstream: JetStream, caplog: pytest.LogCaptureFixture, on_error: Any, executor: str
) -> None:
    """Without a retry policy too."""

    def cause(message: JsMessage) -> None:
        raise ValueError("no way")

    def fail(message: JsMessage) -> None:
        cause(message)

    stream = await jetstream.create_stream("S", subjects=["s.>"])
    worker = await stream.create_consumer("worker")
    await jetstream.publish("s.1")
    with ThreadPoolExecutor(1) as pool:
        where: Any = {"none": None, "threads": True, "pool": pool}[executor]
        await worker.consume(fail, stop_after=1, on_error=on_error, nak_delay=1.5, executor=where).run()
    then = {"nak": "again in 1.5 s", "term": "never again", "nothing": "again after ack_wait"}[on_error]
    [record] = [record for record in caplog.records if "no way" in record.getMessage()]
    assert record.getMessage() == (
        f"handler of consumer 'worker' of stream 'S' failed for message 1 ('s.1'), delivery 1, {then}: "
        "ValueError('no way')"
    )
    assert frames(record) == ["fail", "cause"]


async def test_own_errors_need_no_traceback(
    jetstream: JetStream, consumer: PullConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    await jetstream.publish("s.1")
    broken = operator.methodcaller("ack", 1)  # a handler in C, so that no frame is the application's
    await consumer.consume(operator.methodcaller("json"), stop_after=1).run()
    await jetstream.publish("s.1")
    await consumer.consume(broken, stop_after=1).run()
    ours, bug = [record for record in caplog.records if "failed for message" in record.getMessage()]
    assert not ours.exc_info, "its text says it all"
    assert bug.exc_info, "it may be ours"


async def test_nak_of_a_failing_handler_is_an_error(
    jetstream: JetStream, consumer: PullConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(message: JsMessage) -> None:
        await message.nak(60)
        raise ValueError("a bug")

    for _ in range(3):
        await jetstream.publish("s.1")
    retry = Retry(jetstream, quick())
    await consumer.consume(fail, stop_after=1).run()
    await consumer.consume(with_middleware(fail, retry), stop_after=1).run()
    await retry.handle(await consumer.next(), fail)
    reported = [
        (record.levelname, bool(record.exc_info)) for record in caplog.records if "a bug" in record.getMessage()
    ]
    assert reported == [("ERROR", True)] * 3


async def test_retry_ends_in_a_dead_letter(
    jetstream: JetStream, consumer: PullConsumer, nats_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "natsproto")  # a report of the test cannot hold a surrogate
    events, attempts = events_of(nats_client), list[int]()

    async def fail(message: JsMessage) -> None:
        attempts.append(message.metadata.num_delivered)
        raise ValueError("no\r\nway: \udcff")

    headers = [("Tag", "a"), ("Tag", "b"), ("Nats-TTL", "1h")]
    stream = await jetstream.stream("S")
    await stream.update(allow_msg_ttl=True)
    await jetstream.publish("s.1", b"payload", headers=headers, msg_id="mine")
    retry = Retry(jetstream, quick(max_attempts=3))
    consumption = consumer.consume(with_middleware(fail, retry), stop_after=3)
    await consumption.run()
    assert (attempts, consumption.failed) == ([1, 2, 3], 3)
    [letter] = await dead(jetstream)
    assert (letter.subject, letter.data, list(letter.headers.pairs())) == ("s.1", b"payload", headers[:2])
    assert (letter.stream, letter.seq, letter.consumer, letter.attempts) == ("S", 1, "worker", 3)
    assert (letter.error_type, letter.error) == ("builtins.ValueError", "no way: ?")
    retried = [event for event in events if isinstance(event, MessageRetried)]
    assert [(event.attempt, event.seq, event.delay) for event in retried] == [(1, 1, 0), (2, 1, 0)]
    [buried] = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert (buried.stream, buried.consumer, buried.attempts, buried.dead_letter_subject) == ("S", "worker", 3, "dead.s")
    assert isinstance(buried.error, ValueError)
    await nats_client.flush()
    assert await left(consumer) == 0


async def test_retry_succeeds_in_the_end(jetstream: JetStream, consumer: PullConsumer) -> None:
    async def fail_twice(message: JsMessage) -> None:
        if message.metadata.num_delivered < 3:
            raise ConnectionError("not yet")

    await jetstream.publish("s.1")
    handler = with_middleware(fail_twice, Retry(jetstream, quick(max_attempts=3)))
    await consumer.consume(handler, stop_after=3, on_success="ack_sync").run()
    assert (await dead(jetstream), await left(consumer)) == ([], 0)


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(InvalidPayload("decode", "Order", "no"), 1), (KeyError("x"), 1), (TimeoutError(), 4), (ConnectionError(), 1)],
)
async def test_retry_tries_what_may_be_mended(
    jetstream: JetStream, consumer: PullConsumer, error: Exception, attempts: int
) -> None:
    def fail(message: JsMessage) -> None:
        raise error

    await jetstream.publish("s.1")
    policy = quick(max_attempts=4, retry_on=(OSError, InvalidPayload), give_up_on=(InvalidPayload, ConnectionError))
    await consumer.consume(with_middleware(fail, Retry(jetstream, policy)), stop_after=attempts).run()
    [letter] = await dead(jetstream)
    assert letter.attempts == attempts


async def test_message_that_killed_its_workers_is_buried(
    jetstream: JetStream, consumer: PullConsumer, nats_client: Client
) -> None:
    events = events_of(nats_client)
    await jetstream.publish("s.1", b"poison")
    for _ in range(5):  # workers died, or failed without a policy
        await (await consumer.next()).nak()

    async def handle(message: JsMessage) -> None:
        raise AssertionError("it was called")

    consumption = consumer.consume(with_middleware(handle, Retry(jetstream, quick(max_attempts=2))), stop_after=1)
    await consumption.run()
    [letter] = await dead(jetstream)
    assert (letter.data, letter.attempts, letter.error_type, consumption.failed) == (b"poison", 5, "", 0)
    assert "its last worker ended" in letter.error
    assert [event.attempts for event in events if isinstance(event, MessageDeadLettered)] == [5]


@pytest.mark.parametrize(("limits", "most"), [({"max_deliver": 2}, 2), ({"ack_policy": "none"}, 1)])
async def test_last_delivery_is_the_last_attempt(
    jetstream: JetStream, stream: Stream, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], most: int
) -> None:
    """The server makes no further one, whatever the policy promises."""

    async def fail(message: JsMessage) -> None:
        await message.in_progress()
        raise ValueError("no")

    limited = await stream.create_consumer("limited", **limits)
    for _ in range(2):
        await jetstream.publish("s.1")
    handler = with_middleware(fail, Retry(jetstream, quick(max_attempts=4)))
    await limited.consume(handler, stop_after=2 * most).run()
    assert [letter.attempts for letter in await dead(jetstream)] == [most] * 2
    assert f"attempt {most} of" not in caplog.text
    assert caplog.text.count(f"'limited' of stream 'S' limits deliveries to {most}, below max_attempts=4") == 1


@pytest.mark.parametrize(("deliveries", "said"), [(1, "after 1 attempt of"), (2, "after 2 attempts of")])
async def test_deliveries_of_a_failed_message_are_counted(
    jetstream: JetStream, consumer: PullConsumer, caplog: pytest.LogCaptureFixture, deliveries: int, said: str
) -> None:
    """In batches, more deliveries than ``max_attempts`` may have called the handler."""
    await jetstream.publish("s.1", b"bad")
    for _ in range(deliveries - 1):
        await (await consumer.next()).nak()
    await Retry(jetstream, quick(max_attempts=1)).failed(await consumer.next(), ValueError("no"))
    [letter] = await dead(jetstream)
    assert letter.attempts == deliveries
    assert said in caplog.records[-1].getMessage()


WORKER = """
import asyncio, os, signal, sys
import natsproto
from natsproto.middleware import with_middleware
from natsproto.retry import Retry, RetryPolicy

async def main():
    async with natsproto.connect(sys.argv[1]) as nc:
        js, dying = nc.jetstream(), nc.jetstream()

        async def publish(*args, **given):
            await js.publish(*args, **given)
            os.kill(os.getpid(), signal.SIGKILL)

        dying.publish = publish

        def fail(message):
            raise ValueError("no")

        consumer = await (await js.stream("S")).consumer("worker")
        retry = Retry(dying, RetryPolicy(dead_letter_subject="dead.s", max_attempts=1))
        await consumer.consume(with_middleware(fail, retry)).run()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_kill_between_dead_letter_and_term(jetstream: JetStream, stream: Stream, nats_server: Server) -> None:
    consumer = await stream.create_consumer(durable_name="worker", ack_wait=1)
    for number in range(3):
        await jetstream.publish(f"s.{number}", b"%d" % number)
    for _ in range(3):
        died = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", WORKER, nats_server.url], capture_output=True, timeout=100
        )
        assert died.returncode == -9, died.stderr.decode()
    calls: list[int] = []

    async def handle(message: JsMessage) -> None:
        calls.append(message.metadata.stream_seq)

    policy = quick(max_attempts=1)
    async with consumer.consume(with_middleware(handle, Retry(jetstream, policy)), on_success="ack_sync"):
        while await left(consumer):  # noqa: ASYNC110  # until the server delivers again what the dead had
            await asyncio.sleep(0.05)
    letters = await dead(jetstream)
    buried = [letter.seq for letter in letters]
    assert len(set(buried)) == len(buried), "each is stored once"
    assert sorted({*buried, *calls}) == [1, 2, 3], "each is buried, or was handled first"
    assert buried


async def test_without_a_stream_of_dead_letters_nothing_ends(
    jetstream: JetStream, consumer: PullConsumer, nats_client: Client
) -> None:
    events = events_of(nats_client)

    def fail(message: JsMessage) -> None:
        raise ValueError("no")

    await jetstream.publish("s.1")
    js = nats_client.jetstream(timeout=0.2)
    policy = quick(max_attempts=1, dead_letter_subject="nowhere", max_delay=0)
    async with consumer.consume(with_middleware(fail, Retry(js, policy))) as consumption:
        await eventually(lambda: consumption.failed)
        await eventually(lambda: [event for event in events if _is_no_stream(event)])
        assert not [event for event in events if isinstance(event, MessageDeadLettered)]
        await jetstream.create_stream(name="LATE", subjects=["nowhere"])
        await eventually(lambda: [event for event in events if isinstance(event, MessageDeadLettered)])
    assert (await (await jetstream.stream("LATE")).info()).state.messages == 1


def _is_no_stream(event: Event) -> bool:
    return isinstance(event, HandlerFailed) and isinstance(event.error, NoStream) and "dead letter" in event.handler


async def test_retry_in_a_loop_of_ones_own(jetstream: JetStream, consumer: PullConsumer, nats_client: Client) -> None:
    for number in range(3):
        await jetstream.publish(f"s.{number}", b"%d" % number)
    retry, results = Retry(jetstream, quick(max_attempts=2)), list[tuple[bytes, bool]]()

    async def handle(message: JsMessage) -> None:
        if message.data == b"1":
            raise ValueError("no")
        if message.data == b"2":
            await message.term("mine")

    async with consumer.messages(stop_after=4) as messages:
        async for message in messages:
            results.append((message.data, await retry.handle(message, handle)))
    assert sorted(results) == [(b"0", True), (b"1", False), (b"1", False), (b"2", True)]
    await nats_client.flush()
    assert ([letter.data for letter in await dead(jetstream)], await left(consumer)) == ([b"1"], 0)


async def test_answer_of_the_handler_stands(jetstream: JetStream, consumer: PullConsumer) -> None:
    await jetstream.publish("s.1")

    async def answer_and_fail(message: JsMessage) -> None:
        await message.ack_sync()
        raise ValueError("later")

    await consumer.consume(
        with_middleware(answer_and_fail, Retry(jetstream, quick(max_attempts=1))), stop_after=1
    ).run()
    assert (await dead(jetstream), await left(consumer)) == ([], 0)


async def test_replay_brings_the_dead_back(jetstream: JetStream, consumer: PullConsumer) -> None:
    for number in range(4):
        await jetstream.publish(f"s.{number}", b"%d" % number, headers={"Tag": str(number)}, msg_id=f"id-{number}")
    await jetstream.publish("dead.other", b"something else")

    def fail(message: JsMessage) -> None:
        raise ValueError("no")

    await consumer.consume(with_middleware(fail, Retry(jetstream, quick(max_attempts=1))), stop_after=4).run()
    assert await replay(jetstream, "DEAD", select=lambda letter: letter.data in b"13") == 2
    messages = await consumer.fetch(2)
    assert [(m.subject, m.data, dict(m.headers.pairs())["Tag"]) for m in messages] == [
        ("s.1", b"1", "1"),
        ("s.3", b"3", "3"),
    ]
    assert not any("Dead-Letter" in name for message in messages for name, _ in message.headers.pairs())
    assert await replay(jetstream, "DEAD", subject="dead.s", to="s.again") == 2
    assert [message.subject for message in await consumer.fetch(2)] == ["s.again", "s.again"]
    assert await replay(jetstream, "DEAD") == 0
    assert (await (await jetstream.stream("DEAD")).info()).state.messages == 1, "what is no letter stays"


async def test_replay_that_is_cut_off_stores_once(
    jetstream: JetStream, consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jetstream.publish("s.1")

    def fail(message: JsMessage) -> None:
        raise ValueError("no")

    await consumer.consume(with_middleware(fail, Retry(jetstream, quick(max_attempts=1))), stop_after=1).run()
    with monkeypatch.context() as patched:
        patched.setattr(Stream, "delete_message", _cancelled)
        with pytest.raises(asyncio.CancelledError):
            await replay(jetstream, "DEAD")
    assert await replay(jetstream, "DEAD") == 1
    assert (await (await jetstream.stream("S")).info()).state.messages == 2


async def _cancelled(*_: object) -> None:
    raise asyncio.CancelledError


async def test_retries_and_dead_letters_are_counted(nats_server: Server) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    async with otel.Telemetry(None, meters).connect(nats_server.url) as nc:
        js = nc.jetstream()
        await js.create_stream(name="DEAD", subjects=["dead.>"])
        stream = await js.create_stream(name="S", subjects=["s.>"])
        consumer = await stream.create_consumer(durable_name="worker")
        await js.publish("s.1")

        def fail(message: JsMessage) -> None:
            raise ValueError("no")

        await consumer.consume(with_middleware(fail, Retry(js, quick(max_attempts=3))), stop_after=3).run()
    data = reader.get_metrics_data()
    assert data is not None
    counted = {
        metric.name: (point.value, point.attributes["messaging.consumer.group.name"], point.attributes["error.type"])  # type: ignore[union-attr, index]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name.startswith("natsproto.consumer.")
        for point in metric.data.data_points
    }
    assert counted == {
        "natsproto.consumer.retried.messages": (2, "worker", "builtins.ValueError"),
        "natsproto.consumer.dead.messages": (1, "worker", "builtins.ValueError"),
    }
    meters.shutdown()


def test_delays_grow_or_are_reported() -> None:
    grown = RetryPolicy(dead_letter_subject="d", first_delay=timedelta(seconds=2), max_delay=9)
    assert [grown.delay_of(attempt) for attempt in (1, 2, 3, 4, 5000)] == [2, 4, 8, 9, 9]
    reported = RetryPolicy(dead_letter_subject="d", delays=[1, timedelta(minutes=1)])
    assert [reported.delay_of(attempt) for attempt in (1, 2, 3)] == [1, 60, 60]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_attempts": 0}, ConfigError), ({"jitter": 2}, ConfigError), ({"delays": [-1]}, ConfigError),
        ({"first_delay": -1}, ConfigError), ({"first_delay": 1e-10}, ConfigError), ({"max_delay": 1e12}, ConfigError),
        ({"delays": [1, timedelta(days=999_999)]}, ConfigError), ({"dead_letter_subject": "dead.*"}, InvalidSubject),
        ({"delay": 1}, TypeError),
    ],
)  # fmt: skip
def test_policy_that_cannot_be_is_refused(given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        quick(**given)


def test_message_without_the_headers_is_no_dead_letter() -> None:
    with pytest.raises(LocalProtocolError, match="not a dead letter"):
        DeadLetter.of(Message("s", None, b"", None, None))


async def test_batches_take_no_middleware(jetstream: JetStream, consumer: PullConsumer) -> None:
    def handle(messages: list[JsMessage]) -> None: ...

    handler: Any = with_middleware(handle, Retry(jetstream, quick()))
    with pytest.raises(TypeError, match=r"for single messages.*await retry\.failed\(message, error\)"):
        consumer.consume_batches(handler)
