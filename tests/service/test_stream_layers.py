"""Responses in parts through the other layers: typed values, middleware, telemetry, the blocking client, drains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import wraps

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from natsproto import sync
from natsproto._client import Client
from natsproto.errors import ConnectionClosed, DrainTimeout, InvalidPayload, ServiceError
from natsproto.middleware import Call, with_middleware
from natsproto.otel import Telemetry
from natsproto.service import Request
from natsproto.testing import Server
from tests.core.helpers import scripted_network
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour
from tests.kit.waiting import until
from tests.server.helpers import client
from tests.service.test_streams import read_into, streams_of


@dataclass
class Row:
    id: int
    name: str


# ---------------------------------------------------------------- typed values


async def test_typed_values_in_parts(nats_client: Client) -> None:
    service = await nats_client.add_service("rows", "1.0.0")
    rows = nats_client.typed(int, Row)

    @service.endpoint()
    @rows.handler
    async def select(count: int) -> AsyncIterator[Row]:
        for number in range(count):
            yield Row(number, f"row {number}")

    await nats_client.flush()
    parts = rows.stream("select", 3)
    assert [part.value async for part in parts] == [Row(0, "row 0"), Row(1, "row 1"), Row(2, "row 2")]
    with pytest.raises(ServiceError) as raised:
        [part async for part in nats_client.stream("select", b'"three"')]
    assert raised.value.code == 400
    with pytest.raises(InvalidPayload):
        rows.stream("select", object())  # type: ignore[arg-type]


async def test_value_of_another_type_raises_at_its_yield(nats_client: Client) -> None:
    service = await nats_client.add_service("rows", "1.0.0")
    caught = list[BaseException]()

    @service.endpoint()
    @nats_client.typed(int).handler
    async def numbers(count: int) -> AsyncIterator[int]:
        for number in range(count):
            try:
                yield object() if number == 1 else number  # type: ignore[misc]
            except InvalidPayload as exc:
                caught.append(exc)
                yield -1
        yield object()  # type: ignore[misc]

    await nats_client.flush()
    read = list[bytes]()
    with pytest.raises(ServiceError, match="InvalidPayload"):
        await read_into(read, nats_client.stream("numbers", b"3"))
    assert read == [b"0", b"-1", b"2"]
    assert len(caught) == 1


# ---------------------------------------------------------------- middleware and telemetry


async def test_middleware_is_around_the_whole_response(nats_client: Client) -> None:
    service = await nats_client.add_service("around", "1.0.0")
    events = list[str]()

    async def outer(request: Request, call: Call) -> None:
        events.append("outer")
        if request.data == b"refuse":
            raise ServiceError(403, "no")
        try:
            await call()
        finally:
            events.append("end of outer")

    async def inner(request: Request, call: Call) -> None:
        events.append("inner")
        await call()
        events.append("end of inner")

    async def parts(request: Request) -> AsyncIterator[bytes]:
        events.append("generator")
        yield b"1"
        if request.data == b"fail":
            raise ServiceError(418, "teapot")

    service.add_endpoint("parts", with_middleware(with_middleware(parts, inner), outer))
    await nats_client.flush()
    assert [part.data async for part in nats_client.stream("parts")] == [b"1"]
    await until(lambda: len(events) == 5, 20)
    assert events == ["outer", "inner", "generator", "end of inner", "end of outer"]
    for payload, code in ((b"fail", 418), (b"refuse", 403)):
        with pytest.raises(ServiceError) as raised:
            [part async for part in nats_client.stream("parts", payload)]
        assert raised.value.code == code
    assert service.endpoints[0].stats().num_errors == 2


async def test_decorator_around_middleware_is_not_skipped(nats_client: Client) -> None:
    """``functools.wraps`` gives it the attributes of the handler that it guards."""

    async def passes(request: Request, call: Call) -> None:
        await call()

    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield b"secret"

    def guarded(handler: Callable[[Request], AsyncIterator[bytes]]) -> Callable[[Request], AsyncIterator[bytes]]:
        @wraps(handler)
        async def guard(request: Request) -> AsyncIterator[bytes]:
            if request.data != b"please":
                raise ServiceError(403, "no")
            async for part in handler(request):
                yield part

        return guard

    async with nats_client.add_service("guarded", "1.0.0") as service:
        service.add_endpoint("inside", with_middleware(guarded(parts), passes))
        service.add_endpoint("outside", guarded(with_middleware(parts, passes)))
        assert [part.data async for part in nats_client.stream("inside", b"please")] == [b"secret"]
        for subject in ("inside", "outside"):
            with pytest.raises(ServiceError, match="no"):
                [part async for part in nats_client.stream(subject)]


async def test_spans_of_a_response(nats_server: Server) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(provider)
    async with telemetry.connect(nats_server.url) as nc:
        service = await nc.add_service("traced", "1.0.0")

        @service.endpoint()
        @telemetry.process
        async def parts(request: Request) -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b"x" * 100
            if request.data == b"fail":
                raise ServiceError(418, "teapot")

        await nc.flush()
        for payload, error in ((b"", None), (b"fail", "natsproto.errors.ServiceError")):
            exporter.clear()
            try:
                assert len([part async for part in nc.stream("parts", payload, window=2000)]) == 1000
            except ServiceError:
                assert error
            await until(lambda: len(exporter.get_finished_spans()) == 2, 20)
            spans = {span.kind: span for span in exporter.get_finished_spans()}
            request, process = spans[SpanKind.CLIENT], spans[SpanKind.CONSUMER]
            assert process.parent is not None
            assert request.context is not None
            assert process.parent.span_id == request.context.span_id
            assert (request.attributes or {}).get("error.type") == error
            assert not request.status.is_ok or error is None


# ---------------------------------------------------------------- the blocking client


def test_blocking_client_reads_parts(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc, nc.add_service("rows", "1.0.0") as service:
        ended = threading.Event()
        caught = list[BaseException]()

        @service.endpoint()
        def count(request: sync.Request) -> Iterator[bytes]:
            try:
                for number in range(int(request.data)):
                    yield b"%d" % number
            finally:
                ended.set()

        @service.endpoint()
        def fail(request: sync.Request) -> Iterator[bytes]:
            try:
                yield "text"  # type: ignore[misc]
            except TypeError as exc:
                caught.append(exc)
            yield b"1"
            raise ServiceError(418, "teapot")

        nc.flush()
        parts = nc.stream("count", b"2000", window=1000)
        assert [int(part.data) for part in parts] == list(range(2000))
        assert parts.received == 2000
        assert ended.wait(5)
        ended.clear()
        with nc.stream("count", b"1000000") as parts:
            for part in parts:
                if part.data == b"10":
                    break
            assert next(iter(parts)).data == b"11"
        assert ended.wait(5)
        ended.clear()
        for part in nc.stream("count", b"1000000", window=1000):
            if part.data == b"10":
                break
        assert ended.wait(5)
        read = list[bytes]()
        with pytest.raises(ServiceError, match="teapot"):
            read.extend(part.data for part in nc.stream("fail"))
        assert read == [b"1"]
        assert len(caught) == 1
        with pytest.raises(TypeError, match="async def needs the async client"):
            service.add_endpoint("bad", streams_of)  # type: ignore[arg-type]


def test_draining_blocking_client_waits_for_readers(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as responder, responder.add_service("slow", "1.0.0") as service:

        @service.endpoint()
        def slow(request: sync.Request) -> Iterator[bytes]:
            for number in range(20):
                time.sleep(0.01)
                yield b"%d" % number

        responder.flush()
        nc = sync.connect(nats_server.url)
        read, begun = list[bytes](), threading.Event()

        def reading() -> None:
            for part in nc.stream("slow"):
                read.append(part.data)
                begun.set()

        thread = threading.Thread(target=reading)
        thread.start()
        assert begun.wait(5)
        nc.drain()
        thread.join(5)
        assert len(read) == 20


# ---------------------------------------------------------------- stops and drains


async def slow(request: Request) -> AsyncIterator[bytes]:
    for number in range(30):
        await asyncio.sleep(0.01)
        yield b"%d" % number


async def test_stop_waits_for_running_responses(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        service = await nc.add_service("slow", "1.0.0")

        service.add_endpoint("slow", slow)
        await nc.flush()
        async with other.stream("slow", window=200) as parts:
            async for _ in parts:
                break
            stopping = asyncio.create_task(service.stop())
            assert len([part async for part in parts]) == 29
            await stopping
        with pytest.raises(Exception, match="no responders"):
            [part async for part in other.stream("slow")]


@virtual_clock
async def test_late_credit_does_not_break_a_response() -> None:
    """The end of the response and the answer to credit that came after it, no responders, arrive in one read."""
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()

        async def read() -> list[bytes]:
            return [part.data async for part in nc.stream("parts")]

        reading = asyncio.create_task(read())
        sid = (await net.server.expect("SUB")).args[-1]
        reply = (await net.server.expect("HPUB", "parts")).args[1]
        end, gone = b"NATS/1.0\r\nStream-End: 1\r\n\r\n", b"NATS/1.0 503\r\n\r\n"
        (await net.server.connection()).send(
            b"MSG %b %b credit.1 1\r\nx\r\n" % (reply.encode(), sid.encode())
            + b"HMSG %b %b credit.1 %d %d\r\n%b\r\n" % (reply.encode(), sid.encode(), len(end), len(end), end)
            + b"HMSG %b %b %d %d\r\n%b\r\n" % (reply.encode(), sid.encode(), len(gone), len(gone), gone)
        )
        assert await reading == [b"x"]


async def test_end_of_another_responder_is_not_the_end(nats_server: Server) -> None:
    """Two services answer one request: the first one's parts and its end are read."""
    go_on = asyncio.Event()

    async def slow(request: Request) -> AsyncIterator[bytes]:
        yield b"1"
        await go_on.wait()
        yield b"2"

    async def quick(request: Request) -> AsyncIterator[bytes]:
        await started.wait()
        yield b"other"

    started = asyncio.Event()
    async with client(nats_server.url) as one, client(nats_server.url) as two, client(nats_server.url) as nc:
        first, second = await one.add_service("s", "1.0.0"), await two.add_service("s", "1.0.0")
        first.add_endpoint("e", slow, queue_group=None)
        second.add_endpoint("e", quick, queue_group=None)
        await one.flush()
        await two.flush()
        got: list[bytes] = []
        async for part in nc.stream("e"):
            got.append(part.data)
            started.set()
            await until(lambda: second.stats().endpoints[0].num_requests == 1, 20)
            await two.flush()
            await nc.flush()
            go_on.set()
        assert got == [b"1", b"2"]


async def test_stop_that_does_not_wait_tells_the_requester(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        async with other.stream("pause", b"2") as parts:
            async for _ in parts:
                break
            with pytest.raises(DrainTimeout, match="unfinished"):
                await streams.service.stop(timeout=0.3)
            with pytest.raises(ServiceError, match="the service was stopped"):
                [part async for part in parts]
        assert streams.finished.get_nowait() == "pause"


async def test_drained_client_finishes_its_responses(nats_server: Server) -> None:
    """Also one that a handler passes on from another service with the same client."""
    async with client(nats_server.url) as source, client(nats_server.url) as nc, client(nats_server.url) as other:
        upstream = await source.add_service("source", "1.0.0")
        service = await nc.add_service("relay", "1.0.0")

        upstream.add_endpoint("slow", slow)

        @service.endpoint()
        async def relay(request: Request) -> AsyncIterator[bytes]:
            async with nc.stream("slow") as parts:
                async for part in parts:
                    yield part.data

        await asyncio.gather(source.flush(), nc.flush())
        async with other.stream("relay") as parts:
            async for _ in parts:
                break
            draining = asyncio.create_task(nc.drain())
            assert len([part async for part in parts]) == 29
            await draining


@pytest.mark.parametrize("closes", ["responder", "requester"])
async def test_closing_a_client_ends_the_response(nats_server: Server, closes: str) -> None:
    async with client(nats_server.url) as responder, client(nats_server.url) as requester:
        streams = await streams_of(responder)
        parts = requester.stream("pause", b"2", heartbeat=0.1)
        await parts.__aenter__()
        async for _ in parts:
            break
        await (responder if closes == "responder" else requester).close()
        async with asyncio.timeout(5):
            with pytest.raises(ServiceError if closes == "responder" else ConnectionClosed, match=r"503|closed"):
                [part async for part in parts]
            assert await streams.finished.get() == "pause"
