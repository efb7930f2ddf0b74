"""A handler that would do nothing fails: a result that nobody awaits. Generator functions are in tests/misuse."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

import natsproto
from natsproto import Client, Event, Message, sync
from natsproto._core.events import HandlerFailed
from natsproto.jetstream import JetStream
from natsproto.middleware import Call, with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.service import Request
from natsproto.testing import Server
from tests.faults.helpers import EventRecorder
from tests.jetstream.reading import make
from tests.kit.waiting import until
from tests.misuse.programs import Generating, async_generator, generator

Bad = Callable[..., Any]


async def coroutine(message: object = None, *more: object) -> None:
    await asyncio.sleep(0)


async def forgets_to_await(message: object, *more: object) -> object:
    return coroutine(message)


async def forgets_to_iterate(message: object, *more: object) -> object:
    return generator(message)


async def forgets_to_call(message: object, *more: object) -> object:
    return coroutine


FAILS: dict[str, Bad] = {
    "generator": lambda *given: generator(*given),
    "async_generator": lambda *given: async_generator(*given),
    "function": lambda *given: coroutine,
    "method": lambda *given: Generating().method,
    "builtin_function_or_method": lambda *given: print,
    "coroutine, awaited": forgets_to_await,
    "generator, awaited": forgets_to_iterate,
    "function, awaited": forgets_to_call,
    "coroutine, in an awaitable": lambda *given: forgets_to_await(*given),
}


def kind_of(name: str) -> str:
    return f"the handler returned an unused {name.partition(',')[0]}: "


@pytest.mark.parametrize("name", FAILS)
async def test_unfinished_result_is_an_error_of_the_callback(nats_server: Server, name: str) -> None:
    recorder = EventRecorder()
    async with natsproto.connect(nats_server.url, on_event=recorder) as nc:
        await nc.subscribe("a", cb=FAILS[name])
        for _ in range(2):
            await nc.publish("a")
        await recorder.wait(HandlerFailed, 2)
        for failure in recorder.of(HandlerFailed):
            assert str(failure.error).startswith(kind_of(name))


@pytest.mark.parametrize("keep_alive", [False, True])
@pytest.mark.parametrize("name", FAILS)
async def test_unfinished_result_naks_the_message(jetstream: JetStream, name: str, keep_alive: bool) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer("c", max_deliver=2)
    errors: list[BaseException] = []
    done = asyncio.Event()

    def note(message: object, error: BaseException) -> None:
        errors.append(error)
        if len(errors) == 2:
            done.set()

    async with (
        asyncio.timeout(10),
        consumer.consume(FAILS[name], nak_delay=0, error_cb=note, keep_alive=keep_alive) as work,
    ):
        await done.wait()
    assert (work.handled, work.failed) == (2, 2)
    assert all(str(error).startswith(kind_of(name)) for error in errors)
    assert (await consumer.info()).ack_floor.stream_seq == 0


@pytest.mark.parametrize("name", FAILS)
async def test_unfinished_result_is_a_failure_elsewhere(nats_server: Server, name: str) -> None:
    bad, recorder = FAILS[name], EventRecorder()
    async with natsproto.connect(nats_server.url, on_event=recorder) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(bucket="b")
        async with kv.watch(cb=bad) as watch:
            await kv.put("a", b"1")
            await recorder.wait(HandlerFailed, 1)
            await watch.stop()
        service = await nc.add_service(name="s", version="1.0.0")
        service.add_endpoint("e", bad)
        reply = await nc.request("e")
        assert reply.headers["Nats-Service-Error-Code"] == "500"
        assert kind_of(name) in reply.headers["Nats-Service-Error"]
        message = await (await (await make(js, 1)).create_consumer("c")).next()
        handlers: list[Callable[..., Any]] = [
            with_middleware(bad),
            nc.typed(bytes, codec=BytesCodec()).handler(bad),
            js.typed(bytes, codec=BytesCodec()).handler(bad),
        ]
        for handler in handlers:
            with pytest.raises(TypeError, match=kind_of(name)):
                await handler(message)
        retry = Retry(js, RetryPolicy(dead_letter_subject="dead.letters"))
        assert not await retry.handle(message, bad)


class BytesCodec:
    def encode(self, value: object) -> bytes:
        return bytes(value)  # type: ignore[call-overload,no-any-return]

    def decode(self, payload: bytes, kind: object) -> Any:
        return payload


@types.coroutine
def old_coroutine(message: object) -> Generator[None]:
    yield


class AsyncObject:
    async def __call__(self, message: object) -> int:
        return 1


def task(message: object) -> asyncio.Task[None]:
    return asyncio.create_task(coroutine())


@pytest.mark.parametrize(
    "handler",
    [
        Mock(),
        MagicMock(),
        AsyncMock(),
        old_coroutine,
        AsyncObject(),
        task,
        coroutine,
        lambda message: 5,
        partial(coroutine),
    ],
    ids=lambda handler: type(handler).__name__,
)
async def test_other_results_are_fine(jetstream: JetStream, handler: Callable[[Message], None]) -> None:
    consumer = await (await make(jetstream, 3)).create_consumer("c")
    async with asyncio.timeout(10):
        work = consumer.consume(handler, stop_after=3)
        async with work:
            await work.wait()
    assert (work.handled, work.failed) == (3, 0)


async def test_middleware_with_yield_is_refused() -> None:
    async def middleware(message: Message, call: Call) -> AsyncGenerator[None]:
        yield

    with pytest.raises(TypeError, match="middleware is a generator function"):
        with_middleware(print, middleware)  # type: ignore[arg-type]


def test_blocking_endpoint_has_the_same_rules(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as client:
        service = client.add_service(name="s", version="1.0.0")
        with pytest.raises(TypeError, match="async def needs the async client"):
            service.add_endpoint("e", async_generator)
        service.add_endpoint("f", lambda request: generator(request))
        reply = client.request("f")
        assert "the handler returned an unused generator" in reply.headers["Nats-Service-Error"]


async def responds(request: Request) -> None:
    await request.respond(b"42")


def returns_bytes(request: Request) -> Any:
    return b"42"


async def returns_later(request: Request) -> Any:
    return {"answer": 42}


async def passes(request: Request, call: Call) -> None:
    await call()


async def returns_text(request: Request, call: Call) -> Any:
    await call()
    return "text"


@pytest.mark.parametrize(
    ("handler", "executor", "kind"),
    [
        (returns_bytes, None, "bytes"),
        (returns_bytes, True, "bytes"),
        (returns_later, None, "dict"),
        (responds, None, ""),
        (with_middleware(returns_bytes, passes), None, "bytes"),
        (with_middleware(returns_later, passes, passes), None, "dict"),
        (with_middleware(responds, passes), None, ""),
        (with_middleware(responds, passes, returns_text), None, "str"),
    ],
)
async def test_returned_data_is_told_once(
    nats_client: Client, caplog: pytest.LogCaptureFixture, handler: Any, executor: Any, kind: str
) -> None:
    """The caller waits for a response, and the service must say why it gets none."""
    events: list[Event] = []
    nats_client.add_listener(events.append)
    async with nats_client.add_service("calc", "1.0.0") as service:
        endpoint = service.add_endpoint("add", handler, executor=executor)
        for _ in range(3):
            await nats_client.publish("add", b"40 2", reply="nobody")
        await until(lambda: endpoint.stats().num_requests == 3 and not endpoint.in_progress)
    told = [line for line in caplog.messages if "await request.respond(data)" in line]
    assert [line.partition(",")[0] for line in told] == [f"endpoint 'add' returned {kind}"] * bool(kind)
    assert [str(event.error).partition(",")[0] for event in events if isinstance(event, HandlerFailed)] == [
        f"the handler returned {kind}"
    ] * bool(kind)
