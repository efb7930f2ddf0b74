"""Closing a client that still has to undo something on the server, such as a lock that it releases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import natsproto
from natsproto import Message
from natsproto._core.cleanups import IN_CLEANUP
from natsproto._core.engine import engine
from natsproto._core.engine.engine import CLOSE_TIMEOUT_S, State
from natsproto._core.events import Disconnected, HandlerFailed
from natsproto._core.replies.pending_replies import Resending
from natsproto.errors import ConnectionClosed, ConnectionLost, KeyNotFound, OutboxFull
from natsproto.jetstream import ApiTrace, JsMessage
from natsproto.testing import Server
from tests.core.helpers import scripted_network, turns
from tests.kit.clock import virtual_clock
from tests.kit.waiting import until
from tests.server.helpers import client

LONG = 30.0


async def test_close_ends_delivery_before_cleanups(nats_server: Server) -> None:
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        await other.subscribe("undo", cb=lambda message: message.respond(b"done"))
        await other.flush()
        nc = await natsproto.connect(nats_server.url)
        received: list[bytes] = []
        await nc.subscribe("news", cb=lambda message: received.append(message.data))
        reader = await nc.subscribe("news")
        await nc.flush()
        may_undo, replies = asyncio.Event(), []

        async def undo() -> None:
            await may_undo.wait()
            replies.append((await nc.request("undo", timeout=LONG)).data)

        nc._cleanups.start(undo())
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionClosed):
            await nc.subscribe("more")
        await other.publish("news", b"late")
        await other.flush()
        may_undo.set()  # its reply comes after the message
        await closing
        assert (nc.state, replies, received) == (State.CLOSED, [b"done"], [])
        assert [message async for message in reader] == []


async def test_close_refuses_publishes_before_cleanups(nats_server: Server) -> None:
    async with client(nats_server.url, no_echo=True) as other, asyncio.timeout(LONG):
        received: list[bytes] = []
        await other.subscribe("news", cb=lambda message: received.append(message.data))
        await other.subscribe("undo", cb=lambda message: message.respond(b"done"))
        await other.flush()
        nc = await natsproto.connect(nats_server.url)
        js = nc.jetstream()
        await js.create_stream(name="S", subjects=["s"], storage="memory")
        may_undo, replies = asyncio.Event(), []

        async def undo() -> None:
            await may_undo.wait()
            nc.publish_nowait("news", b"cleanup")
            replies.append((await asyncio.ensure_future(nc.request("undo", timeout=LONG))).data)

        async with js.publisher() as publisher:
            nc._cleanups.start(undo())
            await nc.publish("news", b"before")
            closing = asyncio.create_task(nc.close())
            await asyncio.sleep(0)
            for call, name in (
                (nc.publish("news", b"late"), "publish"),
                (nc.request("undo"), "request"),
                (js.publish("s", b"late"), "publish to 's'"),
                (publisher.publish("s", b"late"), "publish"),
                (js.publish("s", b"late", msg_id="1"), "publish to 's'"),
            ):
                with pytest.raises(ConnectionClosed) as closed:
                    await call
                assert closed.value.operation == name
            with pytest.raises(ConnectionClosed):
                nc.publish_nowait("news", b"late")
            may_undo.set()
            await closing
        await until(lambda: received == [b"before", b"cleanup"])
        assert replies == [b"done"]


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_handlers_of_consume_before_cleanups(nats_server: Server, concurrency: int) -> None:
    """They are cancelled before their acknowledgements are refused: all messages can be redelivered at once."""
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        stream = await other.jetstream().create_stream(name="S", subjects=["s"], storage="memory")
        for _ in range(10):
            await other.jetstream().publish("s")
        await stream.create_consumer(durable_name="d", ack_wait=10 * LONG)
        nc = await natsproto.connect(nats_server.url)
        failures: list[HandlerFailed] = []
        nc.add_listener(lambda event: failures.append(event) if isinstance(event, HandlerFailed) else None)
        consumer = await (await nc.jetstream().stream("S")).consumer("d")
        handled, may_undo = asyncio.Queue[JsMessage](), asyncio.Event()

        async def handle(message: JsMessage) -> None:
            handled.put_nowait(message)
            await may_undo.wait()

        nc._cleanups.start(may_undo.wait())
        await consumer.consume(handle, concurrency=concurrency).__aenter__()
        for _ in range(concurrency):
            await handled.get()
        closing = asyncio.create_task(nc.close())
        await turns(10)
        may_undo.set()
        await closing
        assert (handled.qsize(), failures) == (0, [])
        again = await (await stream.consumer("d")).fetch(10, timeout=LONG)
        assert sorted(message.metadata.stream_seq for message in again) == list(range(1, 11))


async def test_callbacks_end_before_cleanups(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        keys = await other.jetstream().create_key_value(bucket="B", storage="memory")
        for number in range(10):
            await keys.put(f"k{number}", b"")
        nc = await natsproto.connect(nats_server.url)
        called, may_undo, cancelled = asyncio.Queue[str](), asyncio.Event(), list[str]()

        async def call(name: str) -> None:
            called.put_nowait(name)
            try:
                await may_undo.wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                await asyncio.sleep(0)  # cancelled once
                raise

        await (await nc.jetstream().key_value("B")).watch(cb=lambda entry: call("watch")).__aenter__()
        await nc.subscribe("news", cb=lambda message: call("subscription"))
        await nc.flush()
        for _ in range(10):
            await other.publish("news")
        assert {await called.get(), await called.get()} == {"watch", "subscription"}
        nc._cleanups.start(may_undo.wait())
        closing = asyncio.create_task(nc.close())
        await turns(10)
        may_undo.set()
        await closing
        assert (called.qsize(), sorted(cancelled)) == (0, ["subscription", "watch"])
        assert not caplog.records


async def test_object_store_writes_while_closing(nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", LONG)  # for slow machines
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        objects = await other.jetstream().create_object_store(bucket="o", storage="memory")
        locks = await other.jetstream().create_key_value(bucket="locks", limit_marker_ttl=1)
        for name in ("x", "y"):
            await objects.put(name, b"1")
        nc = await natsproto.connect(nats_server.url)
        store = await nc.jetstream().object_store("o")
        lock = (await nc.jetstream().key_value("locks")).lock("a", ttl=2 * LONG)
        await lock.acquire()
        reading, may_end, may_undo = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def nothing() -> AsyncIterator[bytes]:
            reading.set()
            await may_end.wait()
            for _ in range(0):
                yield b""

        async def undo() -> None:
            await may_undo.wait()
            await store.delete("x")

        nc._cleanups.start(undo())
        begun = asyncio.create_task(store.put("begun", nothing()))
        await reading.wait()
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        for call, operation in (
            (store.delete("x"), "delete of object 'x'"),
            (store.update_meta("y", rename="z"), "update of object 'y'"),
            (store.update_meta("y", description="z"), "update of object 'y'"),
            (store.put("q", b""), "put of object 'q'"),
            (store.put("q", b"1"), "put of object 'q'"),
        ):
            with pytest.raises(ConnectionClosed) as closed:
                await call
            assert closed.value.operation == operation
        assert [info.name async for info in objects.list()] == ["x", "y"]
        await lock.release()
        may_end.set()
        await begun
        may_undo.set()
        await closing
        assert [info.name async for info in objects.list()] == ["y", "begun"]
        assert await locks.lock("a").try_acquire()


async def test_trace_callbacks_are_not_cleanups(nats_server: Server) -> None:
    """The tasks that they start may not publish while the client closes, but the cleanup may."""
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        await other.jetstream().create_stream(name="S", subjects=["s"], storage="memory")
        nc = await natsproto.connect(nats_server.url)
        may_publish, may_undo = asyncio.Event(), asyncio.Event()
        in_cleanup: list[bool] = []
        tasks: list[asyncio.Task[None]] = []

        async def publish() -> None:
            await may_publish.wait()
            await nc.publish("news")

        def trace(call: ApiTrace) -> None:
            in_cleanup.append(IN_CLEANUP.get())
            tasks.append(asyncio.create_task(publish()))

        async def undo() -> None:
            stream = await nc.jetstream(trace=trace).stream("S")
            await may_undo.wait()
            await stream.info()

        cleanup = nc._cleanups.start(undo())
        await until(lambda: tasks)
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        may_publish.set()
        with pytest.raises(ConnectionClosed):
            await tasks[0]
        may_undo.set()
        await closing
        await cleanup
        with pytest.raises(ConnectionClosed):
            await tasks[1]
        assert in_cleanup == [False, False]


async def test_operation_of_a_call_on_a_closed_client(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s"], allow_direct=True)
    bucket = await js.create_key_value(bucket="B")
    store = await js.create_object_store(bucket="O")
    await nc.close()
    for call, operation in (
        (js.publish("s"), "publish to 's'"),
        (stream.info(), "info of stream 'S'"),
        (stream.get_last_message("s"), "last message of 's' in stream 'S'"),
        (bucket.get("k"), "get of key 'k'"),
        (bucket.put("k", b""), "publish to '$KV.B.k'"),
        (store.put("o", b"1"), "put of object 'o'"),
        (store.delete("o"), "delete of object 'o'"),
    ):
        with pytest.raises(ConnectionClosed) as closed:
            await call
        assert (closed.value.operation, closed.value.reason) == (operation, None)


@virtual_clock
async def test_resending_request_while_closing() -> None:
    async with scripted_network() as net:
        nc, other = await net.connect(), await net.connect()
        await other.subscribe("a")
        nc._cleanups.start(asyncio.Event().wait())
        request = nc._request_resending("a", b"", timeout=LONG, headers=None, resending=Resending(CLOSE_TIMEOUT_S / 4))
        pending = asyncio.ensure_future(request)
        await nc.close()
        with pytest.raises(ConnectionClosed):
            await pending


@virtual_clock
@pytest.mark.parametrize("is_first", [True, False])
async def test_resending_cleanup_while_closing(is_first: bool) -> None:
    async with scripted_network() as net:
        nc, other = await net.connect(), await net.connect()
        received: list[bytes] = []

        async def answer(message: Message) -> None:
            received.append(message.data)
            if received.count(b"undo") == 2:
                await message.respond(b"done")

        await other.subscribe("a", cb=answer)
        await other.flush()

        async def ask(payload: bytes) -> Message:
            return await nc._request_resending(
                "a", payload, timeout=LONG, headers=None, resending=Resending(CLOSE_TIMEOUT_S / 4)
            )

        for payload in (b"undo", b"user") if is_first else (b"user", b"undo"):
            if payload == b"undo":
                cleanup = nc._cleanups.start(ask(payload))
            else:
                request = asyncio.create_task(ask(payload))
            await turns(2)
        await nc.close()
        assert (await cleanup).data == b"done"
        with pytest.raises(ConnectionClosed):
            await request
        assert sorted(received) == [b"undo", b"undo", b"user"]


@virtual_clock
async def test_close_cancels_endless_cleanup() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        cleanup = nc._cleanups.start(asyncio.Event().wait())
        loop = asyncio.get_running_loop()
        began = loop.time()
        await nc.close()
        assert loop.time() - began == pytest.approx(CLOSE_TIMEOUT_S)
        assert cleanup.cancelled()


@virtual_clock
async def test_close_in_an_outage_cancels_cleanups() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        cleanup = nc._cleanups.start(asyncio.Event().wait())
        net.down()
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await nc.close()
        assert loop.time() == began
        assert cleanup.cancelled()


@virtual_clock
async def test_cleanup_over_a_reconnect_while_closing() -> None:
    async with scripted_network() as net:
        nc = await net.connect(outbox_limit=100)
        lost = asyncio.Event()
        nc.add_listener(lambda event: lost.set() if isinstance(event, Disconnected) else None)

        async def undo() -> None:
            await lost.wait()
            await nc.publish("undo")
            with pytest.raises(OutboxFull) as full:
                await nc.publish("undo", bytes(nc.max_payload))
            assert full.value.limit == 100
            net.up()
            await nc.flush()

        cleanup = nc._cleanups.start(undo())
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        net.down()
        await closing
        await cleanup


async def test_lock_release_over_a_reconnect_while_closing(
    nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", LONG)  # for slow machines
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        locks = await other.jetstream().create_key_value(bucket="locks", limit_marker_ttl=1)
        nc = await natsproto.connect(nats_server.url)
        lock = (await nc.jetstream().key_value("locks")).lock("a", ttl=2 * LONG)
        await lock.acquire()
        lost = asyncio.Event()
        nc.add_listener(lambda event: lost.set() if isinstance(event, Disconnected) else None)

        async def release() -> None:
            await lost.wait()
            await lock.release()

        nc._cleanups.start(release())
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        session = nc._engine.session
        assert session is not None
        session.end(ConnectionLost("cut"))
        await closing
        with pytest.raises(KeyNotFound):
            await locks.get("a")
