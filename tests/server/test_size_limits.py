"""A small max_payload: calls of any size send what fits, or raise PayloadTooLarge. The connection stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import ConfigError, NoResponders, PayloadTooLarge, ServiceError
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.service import Request
from natsproto.service._responses import EndpointInfo, EndpointStats, ServiceInfo, ServiceStats, encode, encode_within
from natsproto.testing import run_server

LIMIT = 4096
SIZES = [*range(LIMIT - 200, LIMIT + 3, 7), 2 * LIMIT, 100 * LIMIT]


@pytest.fixture
async def small() -> AsyncIterator[Client]:
    """A client of a server that accepts messages of 4 KiB; its connection must stay."""
    async with (
        run_server(jetstream=True, config=f"max_payload: {LIMIT}") as server,
        natsproto.connect(server.url) as nc,
    ):
        yield nc
        await nc.flush()
        assert nc.stats.reconnects == 0


async def _respond(nc: Client, size: int) -> None:
    async with nc.subscribe("r") as requests:
        await nc.publish("r", reply="x")
        await (await requests.next(5)).respond(bytes(size))


async def _window(nc: Client, size: int) -> None:
    async with nc.jetstream().publisher() as publisher:
        await publisher.publish("s.a", bytes(size))


async def _atomic(nc: Client, size: int) -> None:
    async with nc.jetstream().atomic_batch() as batch:
        await batch.publish("s.a", bytes(size))
        await batch.publish("s.a", bytes(size))


async def _fast(nc: Client, size: int) -> None:
    async with nc.jetstream().fast_publisher() as batch:
        await batch.publish("s.a", bytes(size))


async def _term(nc: Client, size: int) -> None:
    js = nc.jetstream()
    await js.publish("s.a", b"poison")
    consumer = await (await js.stream("S")).create_consumer("c", ack_wait=60)
    for message in await consumer.fetch(500, no_wait=True):
        await message.term("é" * size)


CALLS: dict[str, Callable[[Client, int], Awaitable[object]]] = {
    "publish": lambda nc, size: nc.publish("p", bytes(size)),
    "publish with a reply": lambda nc, size: nc.publish("p", bytes(size), reply="r.a"),
    "headers": lambda nc, size: nc.publish("p", b"x", headers={"a": "y" * size}),
    "request": lambda nc, size: nc.request("nobody", bytes(size)),
    "respond": _respond,
    "stream": lambda nc, size: nc.jetstream().publish("s.a", bytes(size), msg_id=f"{size}"),
    "window": _window,
    "atomic batch": _atomic,
    "fast batch": _fast,
    "term": _term,
}


@pytest.mark.parametrize("call", CALLS)
async def test_no_size_cuts_the_connection(small: Client, call: str) -> None:
    await small.jetstream().create_stream("S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
    sent = []
    for size in SIZES:
        try:
            await CALLS[call](small, size)
        except PayloadTooLarge:
            pass
        except NoResponders:
            sent.append(size)  # it has arrived
        else:
            sent.append(size)
        await small.flush()
        assert small.stats.reconnects == 0, size
    assert sent
    assert (100 * LIMIT in sent) == (call == "term")


# ---------------------------------------------------------------- the reason of term


async def _message(nc: Client) -> tuple[JetStream, Stream, natsproto.jetstream.JsMessage]:
    js = nc.jetstream()
    stream = await js.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=60)
    await js.publish("s", b"poison")
    return js, stream, await consumer.next(5)


@pytest.mark.parametrize("letter", ["x", "é", "𝄞", '"'])
async def test_long_reason_is_cut(small: Client, letter: str) -> None:
    """It ends the deliveries, and its beginning is in the advisory."""
    _, stream, message = await _message(small)
    async with small.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>") as advisories:
        await small.flush()
        await message.term("ValueError: " + letter * 70_000)
        reason = json.loads((await advisories.next(5)).data)["reason"]
    assert reason == "ValueError: " + letter * len(reason[12:])
    assert len(reason.encode()) > LIMIT // 4
    assert (await (await stream.consumer("c")).info()).num_ack_pending == 0


@pytest.mark.parametrize("reason", [b"x", ValueError("x"), None, 1])
async def test_reason_must_be_a_str(small: Client, reason: object) -> None:
    _, _, message = await _message(small)
    refused = f"reason must be a str, not {type(reason).__name__}"
    with pytest.raises(TypeError, match=refused):
        await message.term(reason)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=refused):
        message.term_nowait(reason)  # type: ignore[arg-type]
    assert not message.is_acked
    await message.term("\udcff odd")


# ---------------------------------------------------------------- services


@pytest.mark.parametrize("text", ["x" * 300_000, "é" * 300_000, "\r\n\0" * 3000])
async def test_long_errors_leave_the_statistics(small: Client, text: str) -> None:
    """The more endpoints, the less of each text."""

    async def fail(request: Request) -> None:
        raise ValueError(text)

    async def fail_in_parts(request: Request) -> AsyncIterator[bytes]:
        if text:
            raise ValueError(text)
        yield b""

    async with await small.add_service("s", "1.0.0", stats_handler=lambda _: "z" * LIMIT) as service:
        for number in range(10):
            service.add_endpoint(f"e{number}", fail)
            assert "ValueError" in (await small.request(f"e{number}")).headers["Nats-Service-Error"]
            (stats,) = [stats async for stats in small.service_stats("s")]
            assert stats.endpoints[number].num_errors == 1
            assert stats.endpoints[number].last_error.startswith("500:ValueError: ") or number > 3
        service.add_endpoint("parts", fail_in_parts)
        with pytest.raises(ServiceError, match="ValueError"):
            async for _ in small.stream("parts"):
                pass


async def test_description_that_cannot_fit_is_refused(small: Client) -> None:
    with pytest.raises(ConfigError, match=r"^metadata .*need 4\d\d\d bytes; this server accepts 4096"):
        await small.add_service("s", "1.0.0", metadata={"key": "v" * 4000})
    with pytest.raises(ConfigError, match=r"^description "):
        await small.add_service("s", "1.0.0", description="é" * 1000)
    async with await small.add_service("s", "1.0.0", metadata={"key": "v" * 1000}) as service:

        async def handle(request: Request) -> None: ...

        with pytest.raises(ConfigError, match=r"^endpoint 'large'"):
            service.add_endpoint("large", handle, metadata={"key": "v" * 3000})
        with suppress(ConfigError):
            for number in range(100):
                service.add_endpoint(f"e{number}", handle)
        assert 3 < len(service.endpoints) < 50
        assert [info async for info in small.discover_services("s")] == [service.info()]
        assert [stats.endpoints async for stats in small.service_stats("s")] == [service.stats().endpoints]


def test_response_is_cut_for_a_smaller_server() -> None:
    """As after a reconnect: the names come in any case."""
    metadata = {"key": "v" * 1000}
    endpoint = EndpointInfo(name="e", subject="e", queue_group="q", metadata=metadata)
    info = ServiceInfo(
        name="s", id="i", version="1.0.0", metadata=metadata, description="d" * 1000, endpoints=(endpoint,)
    )
    assert encode_within(info, 0) == encode_within(info, LIMIT) == encode(info)
    cut = json.loads(encode_within(info, 400))
    assert cut["endpoints"] == [{"name": "e", "subject": "e", "queue_group": "q", "metadata": {}}]
    one = EndpointStats(
        name="e",
        subject="e",
        queue_group="q",
        num_requests=2,
        num_errors=1,
        last_error="500:" + "x" * 600,
        processing_time=0.0,
        average_processing_time=0.0,
        data=[1] * 200,
    )
    stats = ServiceStats(
        name="s", id="i", version="1.0.0", metadata=metadata, started=datetime.now(UTC), endpoints=(one,)
    )
    full = len(encode(stats))
    for less, error, data in (
        (1, 100, True),
        (504, 100, True),
        (505, 100, False),
        (1100, 100, False),
        (1101, 0, False),
    ):
        payload = encode_within(stats, full - less)
        assert len(payload) <= full - less
        (got,) = json.loads(payload)["endpoints"]
        assert (len(got["last_error"]), got["data"] is not None, got["num_errors"]) == (error, data, 1)
        assert json.loads(payload)["metadata"] == metadata
    assert json.loads(encode_within(stats, 500))["metadata"] == {}


async def test_error_response_fits(small: Client) -> None:
    """The text of an error is cut, so that the requester gets it in any case."""

    async def fail(request: Request) -> None:
        await request.respond_error(400, "é" * LIMIT)

    async with await small.add_service("s", "1.0.0") as service:
        service.add_endpoint("e", fail)
        reply = await asyncio.wait_for(small.request("e"), 10)
        assert reply.headers["Nats-Service-Error"].startswith("éé")
