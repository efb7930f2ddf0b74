"""Whatever a callback does, the connection is unharmed, and what it raised is told by an event and the log."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

import natsproto
from natsproto._core.engine import engine
from natsproto._core.events import Event, HandlerFailed
from natsproto._core.inbox.handler import Handler
from natsproto.errors import DrainTimeout
from natsproto.protocol.frames import Message
from natsproto.testing import Server
from tests.faults.helpers import EventRecorder
from tests.kit.failures import UnknownExit
from tests.server.helpers import also_uvloop, client


def raising(error: BaseException) -> Handler:
    def handler(message: Message) -> None:
        if message.data:
            raise error

    return handler


def raising_later(error: BaseException) -> Handler:
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        if message.data:
            raise error

    return handler


def awaiting_something_cancelled(error: BaseException) -> Handler:
    async def handler(message: Message) -> None:
        if message.data:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            await future

    return handler


def cancelling_itself(_: BaseException) -> Handler:
    async def handler(message: Message) -> None:
        if message.data:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    return handler


ERRORS = [ValueError("wrong"), TimeoutError("late"), asyncio.CancelledError(), UnknownExit("odd"), StopAsyncIteration()]


@pytest.mark.parametrize("kind", [raising, raising_later, awaiting_something_cancelled, cancelling_itself])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
@also_uvloop
async def test_callback_error_is_reported(
    nats_server: Server,
    caplog: pytest.LogCaptureFixture,
    kind: Callable[[BaseException], Handler],
    error: BaseException,
) -> None:
    recorder = EventRecorder()
    caplog.set_level(logging.ERROR, "natsproto")
    async with client(nats_server.url, on_event=recorder) as nc:
        handler = kind(error)
        handled = 0

        def counting(message: Message) -> Awaitable[object] | None:
            nonlocal handled
            handled += 1
            return handler(message)

        sub = await nc.subscribe("a", cb=counting)
        other = await nc.subscribe("a")
        for payload in (b"bad", b"", b"bad", b""):
            await nc.publish("a", payload)
        await recorder.wait(HandlerFailed, 2)
        assert [(await other.next(timeout=5)).data for _ in range(4)] == [b"bad", b"", b"bad", b""]
        await sub.drain(timeout=5)
        assert handled == 4
        assert nc.is_connected
        assert nc.stats.reconnects == 0
        failures = recorder.of(HandlerFailed)
        assert [failure.handler for failure in failures] == ["callback of 'a'"] * 2
        if kind in (raising, raising_later):
            assert all(failure.error is error for failure in failures)
        records = [record for record in caplog.records if "callback of 'a' failed" in record.message]
        assert len(records) == 2
        assert all(record.exc_info for record in records), "with the traceback"


@also_uvloop
async def test_a_callback_that_hangs_holds_up_nobody_else(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        release = asyncio.Event()
        handled: list[bytes] = []

        async def hang(message: Message) -> None:
            await release.wait()
            handled.append(message.data)

        hanging = await nc.subscribe("a", cb=hang)
        await nc.subscribe("a", cb=lambda message: message.respond(b"other"))
        for number in range(3):
            await nc.publish("a", b"%d" % number)
        assert (await nc.request("a", b"3", timeout=5)).data == b"other"
        await nc.flush()
        assert handled == []
        with pytest.raises(DrainTimeout, match="4 messages of 'a' not handled"):
            await hanging.drain(timeout=0.4)
        release.set()
        with pytest.raises(DrainTimeout, match="4 messages of 'a' not handled"):
            await hanging.drain(timeout=5)
        await nc.flush()
        assert handled == [], "none that was named"


@also_uvloop
async def test_drain_with_a_hanging_callback_ends_in_time(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    await nc.subscribe("a", cb=lambda _: asyncio.get_running_loop().create_future())
    for _ in range(3):
        await nc.publish("a")
    await nc.flush()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(DrainTimeout, match="3 messages of 'a' not handled"):
        await nc.drain(timeout=0.4)
    assert 0.39 <= loop.time() - began < 10


@also_uvloop
async def test_close_does_not_wait_for_a_hanging_callback(nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 60)
    nc = await natsproto.connect(nats_server.url)
    started = asyncio.Event()

    async def hang(_: Message) -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    await nc.subscribe("a", cb=hang)
    await nc.publish("a")
    await started.wait()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await nc.close()
    assert loop.time() - began < 10


@also_uvloop
async def test_callback_may_use_every_verb_of_its_client(nats_server: Server) -> None:
    recorder = EventRecorder(HandlerFailed)
    async with client(nats_server.url, on_event=recorder) as nc:
        done = asyncio.Event()

        async def handler(message: Message) -> None:
            await nc.publish("b", b"x")
            nc.publish_nowait("b", b"x")
            async with nc.subscribe("c") as own:
                await nc.publish("c", b"x")
                assert (await own.next(timeout=5)).data == b"x"
            assert (await nc.request("svc", timeout=5)).data == b"pong"
            await nc.flush(timeout=5)
            await message.respond(b"done")
            await sub.unsubscribe()
            done.set()

        await nc.subscribe("svc", cb=lambda message: message.respond(b"pong"))
        sub = await nc.subscribe("a", cb=handler)
        assert (await nc.request("a", timeout=5)).data == b"done"
        await done.wait()
        assert recorder.events == []


USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


async def _times_out(log: list[str]) -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        log.append("timed out")


async def _groups_tasks(log: list[str]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_notes(log))
            group.create_task(_fails())
    except* ValueError:
        log.append("grouped")


async def _notes(log: list[str]) -> None:
    log.append("a task")


async def _fails() -> None:
    raise ValueError


async def _has_a_task(log: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert "natsproto handler of a" in task.get_name()
    log.append("in a task")


async def _keeps_its_context(log: list[str]) -> None:
    log.append(USER.get())
    USER.set("of one message")


class AsyncCall:
    """An object with an async ``__call__``."""

    def __init__(self, work: Callable[[list[str]], Awaitable[None]], log: list[str]) -> None:
        self.work, self.log = work, log

    async def __call__(self, message: Message) -> None:
        await self.work(self.log)


@pytest.mark.parametrize("kind", ["async def", "partial", "object", "lambda", "future"])
@pytest.mark.parametrize(
    ("work", "reported"),
    [
        (_times_out, ["timed out"]),
        (_groups_tasks, ["a task", "grouped"]),
        (_has_a_task, ["in a task"]),
        (_keeps_its_context, ["subscriber"]),
    ],
)
@also_uvloop
async def test_async_handler_runs_in_a_task(
    nats_server: Server, kind: str, work: Callable[[list[str]], Awaitable[None]], reported: list[str]
) -> None:
    log: list[str] = []

    async def plain(message: Message) -> None:
        await work(log)

    handlers: dict[str, Handler] = {
        "async def": plain,
        "partial": functools.partial(plain),
        "object": AsyncCall(work, log),
        "lambda": lambda message: work(log),
        "future": lambda message: asyncio.ensure_future(plain(message)),
    }
    handler = handlers[kind]
    recorder = EventRecorder(HandlerFailed)
    async with client(nats_server.url, on_event=recorder) as nc:
        token = USER.set("subscriber")
        sub = await nc.subscribe("a", cb=handler)
        USER.reset(token)
        await nc.publish("a", b"1")
        await sub.drain(timeout=10)
    if kind == "future" and work is _has_a_task:
        assert len(recorder.events) == 1  # a task of its own, with a name of its own
    else:
        assert recorder.events == []
        assert log == reported


@pytest.mark.parametrize("verb", ["close", "drain", "drain the subscription", "unsubscribe"])
@also_uvloop
async def test_a_callback_may_end_what_calls_it(
    nats_server: Server, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 60)
    recorder = EventRecorder(HandlerFailed)
    nc = await natsproto.connect(nats_server.url, on_event=recorder)
    done = asyncio.Event()

    async def handler(_: Message) -> None:
        if verb == "close":
            await nc.close()
        elif verb == "drain":
            await nc.drain()
        elif verb == "drain the subscription":
            await sub.drain()
        else:
            await sub.unsubscribe()
        done.set()

    sub = await nc.subscribe("a", cb=handler)
    await nc.publish("a")
    async with asyncio.timeout(10):
        await done.wait()
    assert recorder.events == []
    assert sub.closed
    await nc.close()


@also_uvloop
async def test_event_callback_sync_or_async_that_raises(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "natsproto")
    for error in (ValueError("wrong"), UnknownExit("odd"), asyncio.CancelledError()):
        reported: list[str] = []

        def sync(event: Event, reported: list[str] = reported, error: BaseException = error) -> None:
            reported.append(type(event).__name__)
            raise error

        async def later(event: Event, reported: list[str] = reported, error: BaseException = error) -> None:
            reported.append(type(event).__name__)
            await asyncio.sleep(0)
            raise error

        for callback in (sync, later):
            reported.clear()
            recorder: list[Event] = []
            nc = await natsproto.connect(nats_server.url, on_event=callback)
            stream = nc.events()
            await nc.reconnect()
            async for event in stream:
                recorder.append(event)
                if type(event).__name__ == "Reconnected":
                    break
            await nc.flush(timeout=5)
            await nc.close()
            await asyncio.sleep(0)
            assert reported == ["Connected", "Disconnected", "Reconnecting", "Reconnected", "Closed"]
    assert "on_event failed" in caplog.text


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("leave", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_callback_that_ends_the_program_ends_it(nats_server: Server, leave: str, kind: str) -> None:
    program = f"""
import asyncio, sys, natsproto

{kind} handler(message):
    {leave}

async def main():
    nc = await natsproto.connect({nats_server.url!r})
    await nc.subscribe("a", cb=handler)
    await nc.publish("a")
    await asyncio.Event().wait()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == (3 if "exit" in leave else -2)
    assert "was destroyed" not in done.stderr
