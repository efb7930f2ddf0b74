"""Handlers in threads, on the real server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

import natsproto
from natsproto import Client, Message
from natsproto.errors import ConfigError, DrainTimeout
from natsproto.jetstream import JetStream, JsMessage
from natsproto.middleware import Call, in_threads, with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.service import Request
from natsproto.testing import Server
from tests.kit.acknowledged import until_all_acknowledged
from tests.kit.waiting import until

TRACE: ContextVar[str] = ContextVar("trace")


async def longest_silence(stop: asyncio.Event) -> float:
    """The longest time for which the event loop did not come round."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest


@pytest.mark.parametrize("own", [False, True], ids=["True", "ThreadPoolExecutor"])
async def test_blocking_handlers_run_beside_each_other(jetstream: JetStream, own: bool) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    for _ in range(16):
        await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    handled: list[tuple[int, str]] = []
    together = threading.Barrier(8)

    def handle(message: JsMessage) -> None:
        together.wait(30)  # it breaks where fewer than eight run at a time
        time.sleep(0.09)
        handled.append((message.seq, threading.current_thread().name))

    silence_over = asyncio.Event()
    silence = asyncio.create_task(longest_silence(silence_over))
    with ThreadPoolExecutor(8) as pool:
        executor = pool if own else True
        await consumer.consume(handle, concurrency=8, executor=executor, stop_after=16).run()
    silence_over.set()
    assert await silence < 0.8  # 1.4 s if they held the loop
    assert sorted(seq for seq, _ in handled) == list(range(1, 17))
    names = {name for _, name in handled}
    assert 1 < len(names) <= 8
    assert own or names == {f"natsproto handle {number}" for number in range(1, 9)}
    await jetstream.connection.flush()
    await until_all_acknowledged(consumer)


async def test_keep_alive_goes_on_while_a_thread_works(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s")
    consumer = await stream.create_consumer("c", ack_wait=0.5)
    calls = []

    def handle(message: JsMessage) -> None:
        calls.append(message.metadata.num_delivered)
        time.sleep(1.2)  # the handler's own time

    await consumer.consume(handle, executor=True, keep_alive=True, stop_after=1).run()
    assert calls == [1]
    await jetstream.connection.flush()
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)


async def test_errors_of_threads_are_errors_of_handlers(jetstream: JetStream) -> None:
    await jetstream.create_stream("DEAD", subjects=["dead"])
    stream = await jetstream.create_stream("S", subjects=["s"])
    errors: list[Exception | type[BaseException]] = [ValueError("no"), StopIteration, SystemExit]
    for number in range(len(errors)):
        await jetstream.publish("s", b"%d" % number)
    consumer = await stream.create_consumer("c")
    failed: list[str] = []

    def handle(message: JsMessage) -> None:
        raise errors[int(message.data)]

    policy = RetryPolicy(dead_letter_subject="dead", max_attempts=1)
    handler = with_middleware(in_threads(handle), Retry(jetstream, policy))
    work = consumer.consume(handler, stop_after=3, error_cb=lambda _, error: failed.append(type(error).__name__))
    await work.run()
    assert failed == ["ValueError", "RuntimeError", "RuntimeError"]
    assert (await (await jetstream.stream("DEAD")).info()).state.messages == 3


async def test_callbacks_in_a_thread_keep_their_order(nats_client: Client) -> None:
    TRACE.set("mine")
    got: list[tuple[bytes, str, bool]] = []
    loop_thread = threading.current_thread()

    def handle(message: Message) -> None:
        got.append((message.data, TRACE.get(), threading.current_thread() is loop_thread))

    subscription = nats_client.subscribe("s", cb=handle, executor=True)
    for number in range(100):
        await nats_client.publish("s", b"%d" % number)
    await subscription.drain()
    assert got == [(b"%d" % number, "mine", False) for number in range(100)]


async def test_endpoint_in_threads_responds(nats_client: Client) -> None:
    service = await nats_client.add_service("svc", "1.0.0")
    together = threading.Barrier(4)

    @service.endpoint("slow", executor=True, concurrency=4)
    def slow(request: Request) -> Any:
        together.wait(30)  # it breaks where fewer than four run at a time
        return request.respond(request.data.upper())

    replies = await asyncio.gather(*(nats_client.request("slow", b"x%d" % number, timeout=60) for number in range(8)))
    assert [reply.data for reply in replies] == [b"X%d" % number for number in range(8)]
    await service.stop()


async def _around(message: Message, call: Call) -> None:
    await call()


LAYERS: dict[str, tuple[Callable[[Callable[..., Any]], Callable[..., Any]], bool]] = {
    "executor": (lambda handle: handle, True),
    "in_threads": (in_threads, False),
    "in_threads inside of middleware": (lambda handle: with_middleware(in_threads(handle), _around), False),
    "in_threads around middleware": (lambda handle: in_threads(with_middleware(handle, _around)), False),
    "executor and middleware": (lambda handle: with_middleware(handle, _around, _around), True),
    "two layers": (lambda handle: with_middleware(with_middleware(handle, _around), _around), True),
}


@pytest.mark.parametrize("layers", LAYERS)
async def test_layers_keep_the_concurrency(nats_client: Client, jetstream: JetStream, layers: str) -> None:
    """As many threads as ``concurrency``, in endpoints and consumers."""
    nc, (around, executor) = nats_client, LAYERS[layers]
    together = threading.Barrier(4)
    service = await nc.add_service("svc", "1.0.0")

    def respond(request: Request) -> Any:
        together.wait(30)  # it breaks where fewer than four run at a time
        return request.respond(b"")

    service.add_endpoint("slow", around(respond), executor=executor, concurrency=4)
    await asyncio.gather(*(nc.request("slow", timeout=60) for _ in range(8)))
    await service.stop()
    stream = await jetstream.create_stream("S", subjects=["s"])
    for _ in range(8):
        await jetstream.publish("s")
    consumer = await stream.create_consumer("c")

    def handle(message: JsMessage) -> None:
        together.wait(30)

    await consumer.consume(around(handle), executor=executor, concurrency=4, stop_after=8).run()
    assert not together.broken


@dataclass
class IdOrder:
    id: int


@pytest.mark.parametrize("way", ["executor", "inside", "around", "middleware"])
async def test_typed_handlers_run_in_threads(nats_client: Client, jetstream: JetStream, way: str) -> None:
    """Those of streams get the value and its message, those of core messages the value."""
    orders, requests = jetstream.typed(IdOrder), nats_client.typed(IdOrder, int)
    stream = await jetstream.create_stream("S", subjects=["s"])
    for number in range(8):
        await orders.publish("s", IdOrder(number))
    consumer = await stream.create_consumer("c")
    together, got, loop_thread = threading.Barrier(4), list[int](), threading.current_thread()

    def handle(order: IdOrder, message: JsMessage) -> None:
        together.wait(30)
        assert threading.current_thread() is not loop_thread
        got.append(order.id)

    def respond(order: IdOrder) -> int:
        together.wait(30)
        return order.id + 1

    ways: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
        "executor": lambda typed, function: typed.handler(function),
        "inside": lambda typed, function: typed.handler(in_threads(function)),
        "around": lambda typed, function: in_threads(typed.handler(function)),
        "middleware": lambda typed, function: with_middleware(typed.handler(function), _around),
    }
    executor = way in {"executor", "middleware"}
    handler = ways[way](orders, handle)
    await consumer.consume(handler, concurrency=4, executor=executor, stop_after=8).run()
    assert sorted(got) == list(range(8))
    service = await nats_client.add_service("svc", "1.0.0")
    service.add_endpoint("next", ways[way](requests, respond), concurrency=4, executor=executor)
    replies = await asyncio.gather(*(requests.request("next", IdOrder(number), timeout=60) for number in range(4)))
    assert [reply.value for reply in replies] == [1, 2, 3, 4]
    await service.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_work_in_a_forked_process() -> None:
    """Those of the parent are not there; calls that wait for one of those neither."""

    def add_one(number: int) -> int:
        return number + 1

    handler = in_threads(add_one, threads=2)

    async def use() -> object:
        async with asyncio.timeout(20):
            return await handler(1)

    assert asyncio.run(use()) == 2
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, str(asyncio.run(use())).encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"2"
    os.close(reading)


async def test_thread_goes_on_at_the_end_of_drain_timeout(nats_server: Server, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s")
    await stream.create_consumer("c", ack_wait=2)
    worker = await natsproto.connect(nats_server.url, drain_timeout=0.3)
    go_on, begun = threading.Event(), threading.Event()

    def handle(message: JsMessage) -> None:
        begun.set()
        go_on.wait(20)

    work = (await (await worker.jetstream().stream("S")).consumer("c")).consume(handle, executor=True, keep_alive=True)
    async with work:
        await asyncio.to_thread(begun.wait)
        with pytest.raises(DrainTimeout, match="1 messages of consumer 'c' of stream 'S' not handled"):
            await worker.drain()
    consumer = await stream.consumer("c")
    assert (await consumer.info()).num_ack_pending == 1  # neither acknowledged nor returned
    message = await consumer.next(timeout=10)  # delivered again after ack_wait
    assert message.metadata.num_delivered == 2
    go_on.set()


async def test_message_of_waiting_thread_is_returned(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s")
    consumer = await stream.create_consumer("c")
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(go_on.wait)
        work = consumer.consume(lambda _: None, executor=pool)
        running = asyncio.create_task(work.run())
        await until(lambda: work.in_progress == 1, 20)
        running.cancel()
        await asyncio.wait([running])
        assert (await consumer.next(timeout=5)).metadata.num_delivered == 2
        go_on.set()


async def test_daemon_threads_end_with_their_reader(nats_client: Client) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "natsproto ends_with_reader 1"]

    def ends_with_reader(message: Message) -> None: ...

    subscription = nats_client.subscribe("s", cb=ends_with_reader, executor=True)
    await nats_client.publish("s")
    await subscription.drain()
    assert len(names()) == 1
    del subscription
    await until(lambda: not names(), 20)


async def test_bad_executors_are_refused_by_name(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c")
    nc = jetstream.connection

    async def asynchronous(message: Message) -> None: ...

    def plain(message: Message) -> None: ...

    async def around(message: Message, call: Call) -> None: ...

    for attempt in (
        lambda: nc.subscribe("s", cb=asynchronous, executor=True),
        lambda: nc.subscribe("s", cb=plain, executor="threads"),  # type: ignore[arg-type]
        lambda: consumer.consume(asynchronous, executor=True),
        lambda: consumer.consume(plain, executor=8),  # type: ignore[arg-type]
        lambda: in_threads(asynchronous),
    ):
        with pytest.raises(ConfigError, match="executor"):
            attempt()
    for handler in (
        with_middleware(asynchronous, around),
        with_middleware(in_threads(plain), around),
        in_threads(plain),
    ):
        with pytest.raises(ConfigError, match="this one is async def"):
            consumer.consume(handler, executor=True)
    with pytest.raises(ConfigError, match="threads"):
        in_threads(plain, threads=0)
    with pytest.raises(TypeError, match="cb must be callable"):
        nc.subscribe("s", executor=True)


@pytest.mark.parametrize(
    "handler", [lambda: None, lambda a, b: None, lambda *, message: None], ids=["none", "two", "keyword"]
)
async def test_handlers_that_take_no_message(nats_client: Client, handler: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="cb must be callable with one message: <lambda>"):
        nats_client.subscribe("s", cb=handler)
