"""Workers of the blocking client, on the real server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from natsproto import Message, sync
from natsproto.errors import AlreadyAcked, ConfigError, ConsumerGone
from natsproto.jetstream import JsMessage
from natsproto.middleware import Call, with_middleware
from natsproto.retry import DeadLetter, Retry, RetryPolicy
from natsproto.service import Request
from natsproto.sync import _portal
from natsproto.sync._portal import Portal
from natsproto.testing import Server
from tests.kit.acknowledged import wait_all_acknowledged


@pytest.fixture
def client(nats_server: Server) -> Iterator[sync.Client]:
    with sync.connect(nats_server.url) as client:
        yield client


def make_consumer(client: sync.Client, count: int, **fields: Any) -> sync.PullConsumer:
    js = client.jetstream()
    stream = js.create_stream("S", subjects=["s", "done"])
    for number in range(count):
        js.publish("s", b"%d" % number)
    return stream.create_consumer("c", filter_subject="s", **fields)


def test_run_ends_with_its_event(client: sync.Client) -> None:
    consumer, stop = make_consumer(client, 3), threading.Event()

    def handle(message: sync.JsMessage) -> None:
        if message.seq == 2:
            stop.set()

    work = consumer.consume(handle)
    work.run(until=stop)
    assert work.closed
    assert work.handled >= 2


def test_wait_ends_with_its_event(client: sync.Client) -> None:
    stop = threading.Event()
    stop.set()
    with make_consumer(client, 0).consume(print) as work:
        work.wait(stop)
        assert not work.closed


def test_run_raises_what_ends_the_consumer(client: sync.Client, caplog: pytest.LogCaptureFixture) -> None:
    consumer = make_consumer(client, 1)
    with pytest.raises(ConsumerGone):
        consumer.consume(lambda _: client.jetstream().stream("S").delete_consumer("c")).run(threading.Event())
    assert "has ended" not in caplog.text  # it is raised


def test_slow_signal_handler_does_not_hide_the_event(client: sync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of the signal that sets the event runs when the wait for it is due to look again."""
    monkeypatch.setattr(_portal, "STOP_INTERVAL_S", 0.02)
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        time.sleep(0.05)
        threading.Thread(target=stop.set).start()

    before = signal.signal(signal.SIGUSR1, on_signal)
    sending = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        sending.start()
        make_consumer(client, 0).consume(print).run(until=stop)
    finally:
        sending.join()
        signal.signal(signal.SIGUSR1, before)


def test_run_refuses_an_event_of_asyncio(client: sync.Client) -> None:
    wrong: Any = asyncio.Event()
    work = make_consumer(client, 0).consume(print)
    with pytest.raises(TypeError, match=r"until must be a threading\.Event"):
        work.run(until=wrong)
    assert work.closed


def test_handlers_run_in_threads(client: sync.Client) -> None:
    consumer = make_consumer(client, 40)
    js, names = client.jetstream(), set[str]()
    together = threading.Barrier(8)

    def handle(message: sync.JsMessage) -> None:
        names.add(threading.current_thread().name)
        together.wait(30)  # it breaks where fewer than eight run at a time
        js.publish("done", message.data)  # it may use the client

    with consumer.consume(handle, threads=8, stop_after=40) as work:
        work.wait()
    assert (work.handled, work.failed, work.in_progress, work.closed) == (40, 0, 0, True)
    client.flush()
    wait_all_acknowledged(consumer)
    assert js.stream("S").info().state.messages == 80
    assert names == {f"natsproto handle {number}" for number in range(1, 9)}


@pytest.mark.parametrize("ends", ["thread", "loop"])
def test_message_that_a_thread_has_left_comes_again(client: sync.Client, ends: str) -> None:
    """A thread that ends or leaves its loop is done with its message; unacknowledged, it is delivered again."""
    consumer = make_consumer(client, 1, ack_wait=0.5)
    with consumer.messages() as messages:
        if ends == "thread":
            taking = threading.Thread(target=messages.next, args=(20,))
            taking.start()
            taking.join()
        else:
            for _ in messages:
                break
        got: list[sync.JsMessage] = []
        other = threading.Thread(target=lambda: got.append(messages.next(20)))
        other.start()
        other.join()
    assert [message.metadata.num_delivered for message in got] == [2]


def test_a_thread_for_each_message(client: sync.Client) -> None:
    """Threads that have ended are no workers, and hold no messages."""
    consumer = make_consumer(client, 40)
    with consumer.messages() as messages:
        for _ in range(40):
            thread = threading.Thread(target=lambda: messages.next(20).ack())
            thread.start()
            thread.join()
        deliveries = messages._inner.buffer.deliveries
        assert deliveries is not None
        assert not messages._portal.run(deliveries.held)
        assert deliveries.prefetch.workers <= 2
    client.flush()
    wait_all_acknowledged(consumer)


def test_hung_thread_gives_waiting_messages_back(client: sync.Client) -> None:
    """What waits for a thread that hangs goes to others."""
    consumer = make_consumer(client, 20, ack_wait=1.0)
    other = client.jetstream().stream("S").consumer("c")
    with consumer.messages() as messages:
        for _ in range(4):
            messages.next(20).ack()  # at once, so that some wait
        hung = messages.next(20)
        waiting = [message.seq for message in messages._buffer]
        assert waiting
        while (message := other.next(20)).seq not in waiting:
            if message.seq != hung.seq:
                message.ack()
        assert message.metadata.num_delivered == 2


def test_stop_waits_for_running_handlers(client: sync.Client) -> None:
    consumer = make_consumer(client, 20)
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: sync.JsMessage) -> None:
        begun.set()
        go_on.wait(20)

    work = consumer.consume(handle)
    begun.wait(20)
    threading.Timer(0.05, go_on.set).start()
    work.stop()
    assert work.handled == 1
    assert len(consumer.fetch(19, timeout=10)) == 19


def test_drain_handles_what_has_arrived(client: sync.Client) -> None:
    consumer = make_consumer(client, 20)
    handled: list[int] = []
    work = consumer.consume(lambda message: handled.append(message.seq), threads=2)
    work.drain()
    assert work.closed
    assert len(handled) == work.handled


def test_stop_in_a_handler_does_not_wait(client: sync.Client) -> None:
    consumer = make_consumer(client, 20)
    ready, works = threading.Event(), list[sync.ConsumeContext]()

    def handle(message: sync.JsMessage) -> None:
        ready.wait(20)
        works[0].stop()

    works.append(consumer.consume(handle))
    ready.set()
    works[0].wait()
    assert works[0].handled == 1


def test_wait_raises_the_end_of_the_consumer(client: sync.Client) -> None:
    consumer = make_consumer(client, 0)
    work = consumer.consume(lambda _: None)
    consumer.delete()
    with pytest.raises(ConsumerGone):
        work.wait()


def test_bad_arguments_of_workers(client: sync.Client) -> None:
    consumer = make_consumer(client, 0)

    async def asynchronous(message: sync.JsMessage) -> None: ...

    for threads in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="threads"):
            consumer.consume(lambda _: None, threads=threads)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plain function"):
        consumer.consume(asynchronous)
    with pytest.raises(TypeError, match="one message"):
        consumer.consume(lambda: None)  # type: ignore[arg-type,misc]
    with pytest.raises(ConfigError, match="on_error"):
        consumer.consume(lambda _: None, on_error="retry")  # type: ignore[arg-type]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that have waited for the event loop."""
    made: list[object] = []
    right = Portal.call

    def call(portal: Portal, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        made.append(method)
        return right(portal, method, *args, **kwargs)

    monkeypatch.setattr(Portal, "call", call)
    return made


@pytest.mark.parametrize(("quick_s", "waited_for"), [(1e9, 1), (0.0, 100)])
def test_only_slow_handlers_wait_to_acknowledge(
    client: sync.Client, trips: list[object], monkeypatch: pytest.MonkeyPatch, quick_s: float, waited_for: int
) -> None:
    monkeypatch.setattr(_portal, "QUICK_S", quick_s)
    consumer = make_consumer(client, 100)
    messages: list[sync.JsMessage] = []
    while len(messages) < 100:
        messages += consumer.fetch(100 - len(messages))
    trips.clear()
    for message in messages:
        message.ack()
        assert message.is_acked
        with pytest.raises(AlreadyAcked):
            message.ack()
    assert len(trips) == waited_for + 100, "a second acknowledgement always waits for the loop, where it raises"
    wait_all_acknowledged(consumer)


def test_acknowledgements_that_may_fail_wait(
    client: sync.Client, trips: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``ack`` may raise is raised in the thread that acknowledges, also without a connection."""
    monkeypatch.setattr(_portal, "QUICK_S", 1e9)
    consumer = make_consumer(client, 2)
    first, second = consumer.fetch(2)
    first.ack()
    portal, inner = second._reach()
    outbox = inner._connection()._outbox
    wire = outbox._wire
    assert wire is not None
    portal.run(outbox.detach)
    trips.clear()
    second.ack()
    assert len(trips) == 1
    portal.run(outbox.attach, wire, paused=False)
    wait_all_acknowledged(consumer)


def test_retry_works_with_threads(client: sync.Client) -> None:
    """A message whose handler fails is retried and set aside; one whose thread hangs is left to it."""
    js = client.jetstream()
    js.create_stream("DEAD", subjects=["dead"])
    consumer = make_consumer(client, 4)
    go_on, attempts = threading.Event(), list[bytes]()
    portal_thread = client._connection()[0]._thread

    def handle(message: sync.JsMessage) -> None:
        attempts.append(message.data)
        assert threading.current_thread() is not portal_thread
        if message.data == b"1":
            raise ValueError("no")
        if message.data == b"2":
            go_on.wait(10)

    policy = RetryPolicy(dead_letter_subject="dead", max_attempts=3, delays=[0.01])
    with consumer.consume(with_middleware(handle, Retry(js, policy)), threads=2, timeout=0.3) as work:
        while js.stream("DEAD").info().state.messages == 0 or work.handled < 6:
            time.sleep(0.01)
        go_on.set()
    letter = DeadLetter.of(js.stream("DEAD").get_message(1))
    assert (letter.data, letter.attempts, letter.error) == (b"1", 3, "no")
    assert sorted(attempts) == [b"0", b"1", b"1", b"1", b"2", b"3"]
    assert work.failed == 4


def test_middleware_is_for_all_handlers_in_threads(client: sync.Client) -> None:
    """Of a consumer, of a group and of an endpoint; it gets the messages of the async client, and its event loop."""
    seen = list[type]()

    async def around(message: Message, call: Call) -> None:
        seen.append(type(message))
        await call()

    def handle(message: sync.JsMessage) -> None:
        assert isinstance(message, sync.JsMessage)

    async def async_handle(message: sync.JsMessage) -> None: ...

    consumer = make_consumer(client, 1)
    consumer.consume(with_middleware(handle, around, around), stop_after=1).wait()
    service = client.add_service("s", "1.0.0")
    service.add_endpoint("e", with_middleware(lambda request: request.respond(request.data), around))
    assert client.request("e", b"1", timeout=5).data == b"1"
    assert seen == [JsMessage, JsMessage, Request]
    with pytest.raises(TypeError, match="async def needs the async client"):
        consumer.consume(with_middleware(async_handle, around))


def test_ordered_consumer_until_it_is_drained(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream("DRAINED", subjects=["drained"], storage="memory")
        for number in range(3):
            js.publish("drained", b"%d" % number)
        with stream.ordered_consumer() as ordered:
            assert [message.data for message in ordered.until_drained()] == [b"0", b"1", b"2"]
            assert list(ordered.until_drained()) == []


@pytest.mark.parametrize("option", ["concurrency", "executor", "error_cb", "concurency", "durable_name"])
def test_options_that_are_not_its_own_are_refused(client: sync.Client, option: str) -> None:
    """Those of the async client would be overwritten in silence, or run on the thread of the loop."""
    stream = client.jetstream().create_stream(name="REFUSED", subjects=["refused"])
    consumer = stream.create_consumer("c")
    wrong: Any = {option: 2}
    with pytest.raises(TypeError, match=f"no argument '{option}'"):
        consumer.consume(print, **wrong)
    with pytest.raises(TypeError, match=f"no argument '{option}'"):
        stream.join_group("g", print, **wrong)
