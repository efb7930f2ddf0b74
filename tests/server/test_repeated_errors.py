"""Errors that say what happened, as often as it helps: refusals before TLS, repeated failures, given-up requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto import Client, errors
from natsproto._core.event_bus import MAX_TRACEBACKS
from natsproto._core.events import HandlerFailed
from natsproto.jetstream import JetStream
from natsproto.testing import Server
from tests.kit.waiting import until

INFO = b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1000,"tls_required":true}\r\n'
FULL = b"-ERR 'maximum connections exceeded'\r\n"


@asynccontextmanager
async def _serve(*parts: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes one after the other, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, part in enumerate(parts):
            if number:
                await reader.read(1)  # the client has begun with TLS
            writer.write(part)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(("parts", "url"), [((INFO + FULL,), "nats"), ((FULL,), "tls"), ((FULL + INFO,), "tls")])
async def test_refusal_before_tls_is_quoted(parts: tuple[bytes, ...], url: str) -> None:
    """It is not believed, and it ends nothing: anybody could have written it."""
    async with _serve(*parts) as address:
        with pytest.raises(errors.ConnectFailed) as caught:
            await natsproto.connect(address.replace("nats", url), connect_timeout=5)
    assert "unencrypted bytes before TLS; said, unencrypted: 'maximum connections exceeded'" in str(caught.value)


async def test_rejected_login_before_tls_is_not_believed() -> None:
    async with _serve(b"-ERR 'Authorization Violation'\r\n") as address:
        with pytest.raises(errors.ConnectFailed, match="said, unencrypted: 'Authorization Violation'") as caught:
            await natsproto.connect(address.replace("nats", "tls"), user="u", password="p", connect_timeout=5)
    assert not isinstance(caught.value, errors.NotAuthorized)


async def test_refusal_during_the_tls_handshake() -> None:
    """The text is lost in the handshake; the advice is not to remove an option that was not given."""
    async with _serve(INFO, FULL) as address:
        with pytest.raises(errors.ConnectFailed, match="for example with 'maximum connections exceeded'") as caught:
            await natsproto.connect(address, connect_timeout=5)
    assert "tls_first" not in str(caught.value)


# ---------------------------------------------------------------- handlers that always fail


def _fail(_: object) -> None:
    raise ValueError("the column is missing")


async def _subscription(nc: Client, js: JetStream, count: int) -> None:
    await nc.subscribe("a", cb=_fail)
    for _ in range(count):
        await nc.publish("a")


async def _endpoint(nc: Client, js: JetStream, count: int) -> None:
    service = await nc.add_service("svc", "1.0.0")
    service.add_endpoint("a", _fail)
    for _ in range(count):
        await nc.request("a")


async def _consumer(nc: Client, js: JetStream, count: int) -> None:
    stream = await js.create_stream("S", subjects=["s"])
    for _ in range(count):
        await js.publish("s")
    consumer = await stream.create_consumer("c")
    await consumer.consume(_fail, on_error="term", stop_after=count).run()


@pytest.mark.parametrize("work", [_subscription, _endpoint, _consumer], ids=lambda work: work.__name__)
async def test_repeated_failures_are_counted(
    nats_client: Client,
    jetstream: JetStream,
    caplog: pytest.LogCaptureFixture,
    work: Callable[[Client, JetStream, int], object],
) -> None:
    """The first with tracebacks, then their number; each is an event."""
    seen: list[HandlerFailed] = []
    nats_client.add_listener(lambda event: seen.append(event) if isinstance(event, HandlerFailed) else None)
    count = 200
    await work(nats_client, jetstream, count)  # type: ignore[misc]
    await until(lambda: len(seen) == count, 20)
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert sum(record.exc_info is not None for record in records) == MAX_TRACEBACKS
    counts = [record.args[1] for record in records if "each is a HandlerFailed event" in record.msg]  # type: ignore[index]
    assert counts == [10, 20, 40, 80, 160]
    assert len(records) == MAX_TRACEBACKS + len(counts)


async def test_another_error_is_logged_in_full(nats_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: natsproto.Message) -> None:
        if message.data == b"rare":
            raise KeyError("rare")
        raise ValueError("often")

    sub = await nats_client.subscribe("a", cb=handle)
    for number in range(100):
        await nats_client.publish("a", b"rare" if number == 90 else b"")
    await sub.drain()
    assert any(record.exc_info and record.exc_info[0] is KeyError for record in caplog.records)


# ---------------------------------------------------------------- what is said


async def test_alive_while_the_server_stands_still(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    nats_server.freeze()
    health = await nc.health(timeout=0.05)
    nats_server.thaw()
    assert (health.alive, health.ok) == (True, False)
    await nc.close()
    assert not (await nc.health()).alive


async def test_batch_over_two_streams_says_so(jetstream: JetStream) -> None:
    await jetstream.create_stream("A", subjects=["a"], allow_atomic=True)
    await jetstream.create_stream("B", subjects=["b"], allow_atomic=True)
    batch = jetstream.atomic_batch()
    await batch.publish("a", b"")
    await batch.publish("b", b"")
    with pytest.raises(errors.BatchRefused, match="be for one stream: check their subjects"):
        await batch.commit()


async def test_message_that_is_only_traced_is_refused(jetstream: JetStream) -> None:
    """No stream stores it, so nothing would acknowledge it."""
    await jetstream.create_stream("A", subjects=["a"])
    with pytest.raises(errors.ConfigError, match="keeps a message from being stored"):
        await jetstream.publish("a", headers={"Nats-Trace-Dest": "t", "Nats-Trace-Only": "true"})
    async with jetstream.publisher() as publisher:
        with pytest.raises(errors.ConfigError, match="keeps a message from being stored"):
            await publisher.publish("a", headers={"Nats-Trace-Dest": "t", "Nats-Trace-Only": "true"})


async def test_long_reply_subject_is_shown_as_text(nats_client: Client) -> None:
    with pytest.raises(errors.InvalidSubject, match=r"^subject 's"):
        await nats_client.publish("s" * 40_000, reply="r" * 40_000)


def test_missing_import_of_acknowledgements_is_named() -> None:
    assert "imports the stream also $JS.ACK" in str(errors.NoResponders("$JS.ACK.S.C.1.1.1.1.0"))
    assert "start a service" in str(errors.NoResponders("orders"))
