"""Handlers with a timeout, on the real server: what is cancelled, and what only is not waited for any more."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from natsproto import Client, HandlerFailed, Message, sync
from natsproto.errors import ConfigError, HandlerTimeout, NatsError
from natsproto.jetstream import JetStream, JsMessage, groups
from natsproto.middleware import in_threads, with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.service import Request
from natsproto.testing import Server
from tests.kit.waiting import until

SHORT_S = 0.05


class HandlerErrors:
    """The errors of handlers."""

    def __init__(self, nc: Client) -> None:
        self.errors: list[BaseException] = []
        nc.add_listener(lambda event: self.errors.append(event.error) if isinstance(event, HandlerFailed) else None)


async def test_a_callback_is_cancelled(nats_client: Client) -> None:
    recorder, done = HandlerErrors(nats_client), list[bytes]()

    async def handle(message: Message) -> None:
        if message.data == b"hang":
            await asyncio.Event().wait()
        done.append(message.data)

    await nats_client.subscribe("a", cb=handle, timeout=SHORT_S)
    for body in (b"1", b"hang", b"2"):
        await nats_client.publish("a", body)
    await until(lambda: done == [b"1", b"2"])
    [error] = recorder.errors
    assert isinstance(error, HandlerTimeout)
    assert isinstance(error, TimeoutError)
    assert (error.timeout, error.still_running) == (SHORT_S, False)


async def test_a_timeout_of_the_handler_is_its_own(nats_client: Client) -> None:
    recorder = HandlerErrors(nats_client)

    async def handle(message: Message) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    await nats_client.subscribe("a", cb=handle, timeout=10)
    await nats_client.publish("a")
    await until(lambda: recorder.errors)
    assert type(recorder.errors[0]) is TimeoutError


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1"])
async def test_bad_timeouts_are_refused(nats_client: Client, jetstream: JetStream, timeout: Any) -> None:
    nc = nats_client
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c")

    async def handle(message: object) -> None: ...

    service = await nc.add_service("s", "1.0.0")
    for call in (
        lambda: nc.subscribe("a", cb=handle, timeout=timeout),
        lambda: consumer.consume(handle, timeout=timeout),
        lambda: consumer.consume_batches(handle, timeout=timeout),
        lambda: service.add_endpoint("e", handle, timeout=timeout),
        lambda: groups.join(stream, "g", handle, timeout=timeout),
    ):
        with pytest.raises((ConfigError, TypeError)):
            call()


async def test_a_def_in_the_event_loop_cannot_be_ended(nats_client: Client, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c")
    service = await nats_client.add_service("s", "1.0.0")
    handler = lambda message: None  # noqa: E731
    for call in (
        lambda: nats_client.subscribe("a", cb=handler, timeout=1),
        lambda: consumer.consume(handler, timeout=1),
        lambda: service.add_endpoint("e", handler, timeout=1),
    ):
        with pytest.raises(ConfigError, match="executor=True"):
            call()


async def test_callers_get_the_timeout_of_an_endpoint(nats_client: Client) -> None:
    release = threading.Event()

    async def hang(request: Request) -> None:
        await asyncio.Event().wait()

    async def parts(request: Request) -> Any:
        yield b"1"
        await asyncio.Event().wait()

    def block(request: Request) -> None:
        release.wait(10)

    async with await nats_client.add_service("s", "1.0.0") as service:
        service.add_endpoint("hang", hang, timeout=SHORT_S)
        service.add_endpoint("parts", parts, timeout=SHORT_S)
        service.add_endpoint("block", block, timeout=SHORT_S, executor=True)
        for name in ("hang", "block"):
            with pytest.raises(NatsError, match=r"500.*HandlerTimeout|HandlerTimeout.*500"):
                await nats_client.call(name, timeout=5)
        stream = nats_client.stream("parts")
        with pytest.raises(NatsError, match="HandlerTimeout"):
            await anext(part async for part in stream if part.data != b"1")
        assert stream.received == 1
        release.set()


@pytest.mark.parametrize("batches", [False, True])
async def test_a_handler_that_hangs_becomes_a_dead_letter(jetstream: JetStream, batches: bool) -> None:
    """A timeout counts as a failed attempt, and the others are handled meanwhile."""
    dead = await jetstream.create_stream("DEAD", subjects=["dead"])
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=30)
    done = set[bytes]()
    retry = Retry(jetstream, RetryPolicy(dead_letter_subject="dead", max_attempts=2, first_delay=0.01))

    async def handle(message: JsMessage) -> None:
        if message.data == b"hang":
            await asyncio.Event().wait()
        done.add(message.data)

    async def handle_all(messages: list[JsMessage]) -> None:
        for message in messages:
            try:
                async with asyncio.timeout(SHORT_S):
                    await handle(message)
            except TimeoutError as exc:
                await retry.failed(message, exc)

    await jetstream.publish("s", b"hang")
    for number in range(5):
        await jetstream.publish("s", b"%d" % number)
    context = (
        consumer.consume_batches(handle_all, max_messages=10, max_wait=0.01, timeout=5)
        if batches
        else consumer.consume(with_middleware(handle, retry), concurrency=2, timeout=SHORT_S)
    )
    async with context:
        async with asyncio.timeout(10):
            while not (await dead.info()).state.messages:  # noqa: ASYNC110  # the server tells nobody
                await asyncio.sleep(0.01)
        await until(lambda: len(done) == 5)
    assert (await consumer.info()).num_ack_pending == 0


async def test_no_message_is_handled_twice_at_a_time(jetstream: JetStream, seed: int) -> None:
    """Handlers in threads that take longer than their timeout, and than ``ack_wait``: they go on, nobody else gets
    their messages from here meanwhile, and the next ones do not wait.
    """
    rng = random.Random(seed)
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=0.5)
    lock, now, most, ended = threading.Lock(), Counter[bytes](), Counter[bytes](), Counter[bytes]()
    batches, by_hand, retries = rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.5
    slow = {b"%d" % number for number in rng.sample(range(10), 2)}

    def work(data: bytes) -> None:
        with lock:
            now[data] += 1
            most[data] = max(most[data], now[data])
            is_slow = data in slow and most[data] == 1 and not ended[data]
        if is_slow:
            time.sleep(0.9)  # the handler's own time
        with lock:
            now[data] -= 1
            ended[data] += 1

    def handle(message: JsMessage) -> None:
        work(message.data)

    def handle_all(messages: list[JsMessage]) -> None:
        for message in messages:
            work(message.data)

    async def limited(message: JsMessage, call: Any) -> None:
        async with asyncio.timeout(SHORT_S):
            await call()

    middleware: list[Any] = []
    if retries:
        middleware.append(Retry(jetstream, RetryPolicy(dead_letter_subject="dead", max_attempts=100, first_delay=0.01)))
        await jetstream.create_stream("DEAD", subjects=["dead"])
    if by_hand:
        middleware.append(limited)
    for number in range(10):
        await jetstream.publish("s", b"%d" % number)
    options: dict[str, Any] = {"executor": True, "timeout": None if by_hand else SHORT_S}
    if batches:
        context = consumer.consume_batches(handle_all, max_messages=2, max_wait=0.01, executor=True, timeout=SHORT_S)
    else:
        context = consumer.consume(with_middleware(handle, *middleware), concurrency=2, **options)
    async with context:
        async with asyncio.timeout(20):
            while (await consumer.info()).num_ack_pending or len(ended) < 10:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.02)
    assert set(most.values()) == {1}, (seed, most)


def test_timeouts_of_the_blocking_client(nats_server: Server) -> None:
    release = threading.Event()

    def block(request: sync.Request) -> None:
        release.wait(10)

    def parts(request: sync.Request) -> Any:
        yield b"1"
        release.wait(10)
        yield b"2"

    with sync.connect(nats_server.url) as nc:
        service = nc.add_service("s", "1.0.0")
        service.add_endpoint("block", block, timeout=SHORT_S)
        service.add_endpoint("parts", parts, timeout=SHORT_S)
        nc.flush()
        with pytest.raises(NatsError, match="HandlerTimeout"):
            nc.call("block", timeout=5)
        got = list[bytes]()
        with nc.stream("parts") as stream, pytest.raises(NatsError, match="HandlerTimeout"):
            got += [part.data for part in stream]
        release.set()
        stream_ = nc.jetstream().create_stream("S", subjects=["s"])
        consumer = stream_.create_consumer("c", ack_wait=30)
        first, done = threading.Event(), list[bytes]()

        def handle(message: sync.JsMessage) -> None:
            if message.data == b"hang" and not first.is_set():
                first.set()
                time.sleep(0.9)  # the handler's own time
            done.append(message.data)

        for body in (b"hang", b"1", b"2"):
            nc.jetstream().publish("s", body)
        with consumer.consume(handle, threads=2, timeout=SHORT_S, stop_after=3) as context:
            context.wait()
        assert context.failed == 1
        assert {b"1", b"2"} <= set(done)


@pytest.mark.parametrize("way", ["value", "task", "typed", "batch"])
async def test_a_thread_goes_on_with_a_value(nats_client: Client, jetstream: JetStream, way: str) -> None:
    """A thread that is called with less than the message keeps it, too: nobody handles it beside the thread."""
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=30)
    recorder, release = HandlerErrors(nats_client), threading.Event()
    calls = list[int]()

    def block(value: int, message: object = None) -> None:
        calls.append(value)
        if value == 1:
            release.wait(20)

    call = in_threads(block)

    async def handle(message: JsMessage) -> None:
        if way == "task":
            await asyncio.wait_for(call(int(message.data)), 10)
        else:
            await call(int(message.data))

    async def handle_all(messages: list[JsMessage]) -> None:
        await call(int(messages[0].data))

    if way == "batch":
        context: Any = consumer.consume_batches(handle_all, max_messages=1, concurrency=2, timeout=SHORT_S)
    elif way == "typed":
        context = consumer.consume(jetstream.typed(int).handler(block), concurrency=2, executor=True, timeout=SHORT_S)
    else:
        context = consumer.consume(handle, concurrency=2, timeout=SHORT_S)
    async with context:
        await jetstream.publish("s", b"1")
        await until(lambda: recorder.errors)
        await jetstream.publish("s", b"2")
        await until(lambda: 2 in calls)
        for _ in range(5):
            await nats_client.flush()
        info = await consumer.info()
        release.set()
    error = recorder.errors[0]
    assert isinstance(error, HandlerTimeout)
    assert error.still_running
    assert calls.count(1) == 1
    assert info.num_ack_pending, "nobody has settled it"
