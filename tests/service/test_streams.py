"""Responses in parts on a real server: order, flow control, ends and errors on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from natsproto._client import Client
from natsproto._core.events import HandlerFailed
from natsproto.errors import (
    ConfigError,
    InvalidSubject,
    LocalProtocolError,
    NoResponders,
    PayloadTooLarge,
    ServiceError,
    StreamBroken,
)
from natsproto.protocol.frames import Message
from natsproto.service import Request, ResponseStream, Service
from natsproto.testing import Server
from tests.kit.waiting import until
from tests.server.helpers import both_loops, client


class Streams:
    """A service with endpoints that answer in parts, and what it knows of them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.sent = 0
        self.finished: asyncio.Queue[str] = asyncio.Queue()
        service.add_endpoint("count", self.count)
        service.add_endpoint("pause", self.pause)
        service.add_endpoint("fail", self.fail)

    async def count(self, request: Request) -> AsyncIterator[bytes]:
        """As many parts as asked for, of a size."""
        count, size = map(int, request.data.split())
        try:
            for number in range(count):
                self.sent = number + 1
                yield b"%0*d" % (size, number)
        finally:
            self.finished.put_nowait("count")

    async def pause(self, request: Request) -> AsyncIterator[bytes]:
        """Two parts, and no end of waiting before, between or after them."""
        try:
            for number in (1, 2):
                if request.data == b"%d" % number:
                    await asyncio.Event().wait()
                yield b"%d" % number
            await asyncio.Event().wait()
        finally:
            self.finished.put_nowait("pause")

    async def fail(self, request: Request) -> AsyncIterator[bytes]:
        yield b"1"
        if request.data == b"refuse":
            raise ServiceError(418, "teapot")
        raise ValueError("broken pot")

    async def nothing_is_left(self, requester: Client) -> None:
        inbox = self.service._credit_inbox
        await until(lambda: not inbox or not inbox.streams, 20)
        await until(lambda: not any(endpoint.in_progress for endpoint in self.service.endpoints), 20)
        assert set(requester._engine.registry.reply_handlers) <= {inbox}


async def read_into(read: list[bytes], parts: ResponseStream[Message]) -> None:
    async for part in parts:
        read.append(part.data)  # noqa: PERF401  (also those before an error)


async def streams_of(nc: Client) -> Streams:
    streams = Streams(await nc.add_service("streams", "1.0.0"))
    await nc.flush()
    return streams


@both_loops
async def test_parts_come_in_order(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        for count, size, window in ((0, 1, 100), (1, 1, 1), (1000, 1, 1 << 20), (1000, 100, 1000), (100, 4000, 1)):
            parts = other.stream("count", b"%d %d" % (count, size), window=window)
            assert [int(part.data) async for part in parts] == list(range(count))
            assert parts.received == count
        stats = {endpoint.name: endpoint.stats() for endpoint in streams.service.endpoints}
        assert (stats["count"].num_requests, stats["count"].num_errors) == (5, 0)
        await streams.nothing_is_left(other)
        assert list(nc._engine.registry.reply_handlers) == [streams.service._credit_inbox]
        await streams.service.stop()
        assert not nc._engine.registry.reply_handlers


@both_loops
async def test_slow_reader_slows_the_endpoint(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        async with other.stream("count", b"5000 1000", window=100_000) as parts:
            reader = aiter(parts)
            for number in range(300):
                assert int((await anext(reader)).data) == number
            await other.flush()
            await nc.flush()
            await asyncio.sleep(0.05)
            assert 300 < streams.sent <= 300 + 100_000 // 1064 + 2
            assert [int(part.data) async for part in parts] == list(range(300, 5000))
        stats = streams.service.endpoints[0].stats()
        assert stats.num_requests == 1
        assert stats.processing_time < 0.05 + 5000 * 100e-6  # waiting for credit does not count


@both_loops
async def test_leaving_cancels_the_generator(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        for endpoint, payload in (("count", b"1000000 10"), ("pause", b""), ("pause", b"2")):
            async with asyncio.timeout(5):
                async with other.stream(endpoint, payload, window=1000) as parts:
                    async for _ in parts:
                        break
                assert await streams.finished.get() == endpoint
                async for _ in other.stream(endpoint, payload, window=1000):
                    break
                assert await streams.finished.get() == endpoint
            await streams.nothing_is_left(other)
        assert sum(endpoint.stats().num_errors for endpoint in streams.service.endpoints) == 0


@both_loops
async def test_leaving_before_the_first_part_cancels(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        async with asyncio.timeout(5):
            async with other.stream("pause", b"1"):
                await until(lambda: bool(streams.service.endpoints[1].in_progress), 20)
            assert await streams.finished.get() == "pause"
        await streams.nothing_is_left(other)


@both_loops
async def test_cancelling_the_reader_cancels_the_generator(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)

        async def read() -> None:
            async for _ in other.stream("pause", b"2"):
                begun.set_result(None)

        begun = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(read())
        await begun
        task.cancel()
        async with asyncio.timeout(5):
            assert await streams.finished.get() == "pause"
        with pytest.raises(asyncio.CancelledError):
            await task
        await streams.nothing_is_left(other)


@both_loops
async def test_error_comes_after_the_parts(nats_server: Server) -> None:
    events = list[object]()
    async with client(nats_server.url, on_event=events.append) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        for payload, window, code in (
            (b"refuse", 1000, 418),
            (b"raise", 1000, 500),
            (b"refuse", None, 418),
            (b"raise", None, 500),
        ):
            read = list[bytes]()
            with pytest.raises(ServiceError) as raised:
                await read_into(read, other.stream("fail", payload, window=window))
            assert (read, raised.value.code) == ([b"1"], code)
        assert raised.value.description == "ValueError: broken pot"
        stats = streams.service.endpoints[2].stats()
        assert (stats.num_requests, stats.num_errors, stats.last_error) == (4, 4, "500:ValueError: broken pot")
        assert sum(isinstance(event, HandlerFailed) for event in events) == 2
        await streams.nothing_is_left(other)


async def test_nobody_there_is_known_at_once(nats_client: Client) -> None:
    with pytest.raises(NoResponders, match="nobody"):
        async for _ in nats_client.stream("nobody"):
            pass
    assert not nats_client._engine.registry.reply_handlers


# ---------------------------------------------------------------- parts that cannot be sent


@pytest.mark.parametrize("window", [1000, None])
async def test_bad_part_raises_where_it_is_yielded(nats_client: Client, window: int | None) -> None:
    service = await nats_client.add_service("bad", "1.0.0")
    caught = list[BaseException]()
    bad: list[object] = ["text", 5, None, b"x" * 2_000_000, b"" if window is None else object()]

    @service.endpoint()
    async def lenient(request: Request) -> AsyncIterator[bytes]:
        for value in bad:
            try:
                yield value  # type: ignore[misc]
            except (TypeError, ValueError, PayloadTooLarge) as exc:
                caught.append(exc)
            yield memoryview(b"good")  # type: ignore[misc]

    @service.endpoint()
    async def strict(request: Request) -> AsyncIterator[bytes]:
        yield b"first"
        yield "text"  # type: ignore[misc]

    @service.endpoint()
    async def last(request: Request) -> AsyncIterator[bytes]:
        try:
            yield "text"  # type: ignore[misc]
        except TypeError:
            return

    await nats_client.flush()
    parts = nats_client.stream("lenient", window=window)
    assert [part.data async for part in parts] == [b"good"] * 5
    kinds = [TypeError, TypeError, TypeError, PayloadTooLarge, ValueError if window is None else TypeError]
    assert [type(exc) for exc in caught] == kinds
    assert "encode it first" in str(caught[0])
    assert [part.data async for part in nats_client.stream("last", window=window)] == []
    with pytest.raises(ServiceError, match="payload must be bytes, not str: encode it first"):
        [part async for part in nats_client.stream("strict", window=window)]


async def test_empty_parts_are_parts(nats_client: Client) -> None:
    service = await nats_client.add_service("empty", "1.0.0")

    @service.endpoint()
    async def empty(request: Request) -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b""

    await nats_client.flush()
    assert [part.data async for part in nats_client.stream("empty", window=200)] == [b""] * 1000


# ---------------------------------------------------------------- arguments


async def test_bad_arguments_raise_at_the_call(nats_client: Client) -> None:
    for arguments in (
        {"window": 0},
        {"window": -1},
        {"window": True},
        {"window": 1.5},
        {"heartbeat": 0},
        {"heartbeat": 0.01},
        {"heartbeat": 4000},
        {"headers": {"Stream-Window": "5"}},
    ):
        with pytest.raises(ConfigError):
            nats_client.stream("s", **arguments)
    with pytest.raises(InvalidSubject):
        nats_client.stream("a..b")
    with pytest.raises(TypeError, match="payload must be bytes"):
        nats_client.stream("s", "text")  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        [part async for part in nats_client.stream("s", b"x" * 2_000_000)]
    assert not nats_client._engine.registry.reply_handlers
    with pytest.raises(TypeError, match="async for"):
        await nats_client.stream("s")  # type: ignore[misc]
    service = await nats_client.add_service("bad", "1.0.0")

    async def generator(request: Request) -> AsyncIterator[bytes]:
        yield b""

    async def no_request() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(ConfigError, match="executor"):
        service.add_endpoint("x", generator, executor=True)
    with pytest.raises(TypeError, match="one request"):
        service.add_endpoint("x", no_request)  # type: ignore[arg-type]


async def test_a_response_is_requested_once(nats_client: Client) -> None:
    streams = await streams_of(nats_client)
    parts = nats_client.stream("count", b"3 1")
    async with parts:
        async for _ in parts:
            break
        assert [part.data async for part in parts] == [b"1", b"2"]
        assert [part.data async for part in parts] == []
    with pytest.raises(LocalProtocolError, match="call stream"):
        async with parts:
            pass
    await streams.nothing_is_left(nats_client)


async def test_bad_requests_get_an_error(nats_client: Client) -> None:
    await streams_of(nats_client)
    for headers in ({"Stream-Window": "0"}, {"Stream-Window": "10", "Stream-Heartbeat": "1"}):
        with pytest.raises(ServiceError, match="must be"):
            await nats_client.call("count", b"1 1", headers=headers)


# ---------------------------------------------------------------- the plain form


@both_loops
async def test_request_many_reads_an_endpoint_with_parts(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        replies = other.request_many("count", b"1000 10", timeout=20, sentinel="empty")
        got = [reply async for reply in replies]
        assert [int(reply.data) for reply in got] == list(range(1000))
        assert not any(reply.has_reply or reply.has_headers for reply in got)
        got = [reply async for reply in other.request_many("fail", b"refuse", timeout=20, sentinel="empty")]
        assert [reply.data for reply in got] == [b"1", b"teapot"]
        assert got[1].headers["Nats-Service-Error-Code"] == "418"
        await streams.nothing_is_left(other)


async def test_stream_reads_a_plain_responder(nats_client: Client) -> None:
    async def respond(message: Message) -> None:
        for number in range(5):
            await message.respond(b"%d" % number)
        await message.respond(b"")

    await nats_client.subscribe("plain", cb=respond)
    assert [part.data async for part in nats_client.stream("plain")] == [b"0", b"1", b"2", b"3", b"4"]

    async def once(message: Message) -> None:
        await message.respond(b"only")

    await nats_client.subscribe("once", cb=once)
    read = list[bytes]()
    with pytest.raises(StreamBroken, match="silent for"):
        await read_into(read, nats_client.stream("once", heartbeat=0.05))
    assert read == [b"only"]


# ---------------------------------------------------------------- time


async def test_pauses_on_both_sides_are_no_silence(nats_client: Client) -> None:
    streams = await streams_of(nats_client)
    async with nats_client.stream("pause", b"2", heartbeat=0.05) as parts:
        reader = aiter(parts)
        assert (await anext(reader)).data == b"1"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await anext(reader)
        assert streams.service.endpoints[1].in_progress == 1
    async with nats_client.stream("pause", b"1", heartbeat=0.05) as parts:
        await asyncio.sleep(0.4)  # eight of its own heartbeats without a part
        assert parts._stream.is_open
        assert streams.service.endpoints[1].in_progress == 1
    async with nats_client.stream("count", b"50 10", window=100, heartbeat=0.05) as parts:
        async with aclosing(aiter(parts)) as unread:
            await asyncio.sleep(0.4)  # the reader's own pause, before it has read anything
            assert (await anext(unread)).data == b"0" * 10
            await asyncio.sleep(0.4)  # another of its own pauses
        assert len([part async for part in parts]) == 49
    await streams.nothing_is_left(nats_client)
