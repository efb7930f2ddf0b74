"""Connections that the user makes himself: the option ``dialer``."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import natsproto
from natsproto._core.events import AttemptFailed, Reconnected
from natsproto._options.options import Dialer
from natsproto.errors import ConfigError, RequestTimeout
from natsproto.protocol.addresses import ServerAddress
from natsproto.testing import Server, ServerTls, run_server
from tests.faults.helpers import descriptors
from tests.kit.failures import cause_of
from tests.kit.pki import Authority
from tests.kit.watch import Watch
from tests.server.helpers import also_uvloop, client


def at_once(server: ServerAddress) -> socket.socket:
    """From an address of our own."""
    return socket.create_connection((server.host, server.port), source_address=("127.0.0.5", 0))


async def in_time(server: ServerAddress) -> socket.socket:
    """The same."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind(("127.0.0.5", 0))
    await asyncio.get_running_loop().sock_connect(sock, (server.host, server.port))
    return sock


async def echoes(nc: natsproto.Client) -> None:
    async with nc.subscribe("a") as sub:
        await nc.publish("a", bytes(500_000))
        assert len((await sub.next(timeout=5)).data) == 500_000


@pytest.mark.parametrize("dialer", [at_once, in_time])
@also_uvloop
async def test_dialer_is_used_at_every_attempt(nats_server: Server, dialer: Dialer) -> None:
    watch = Watch()
    async with client(nats_server.url, dialer=dialer, on_event=watch, name="orders") as nc:
        assert nc.server_info.client_ip == "127.0.0.5"
        await nc.reconnect()
        await watch.until(Reconnected)
        assert nc.server_info.client_ip == "127.0.0.5"
        await echoes(nc)


@pytest.mark.parametrize("kind", ["early", "TLS", "TLS first", "WebSocket", "WebSocket and TLS"])
@also_uvloop
async def test_tls_and_websocket_are_done_on_top_of_it(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    encrypted = "TLS" in kind
    tls = ServerTls(cert=cert, key=key, handshake_first=kind == "TLS first") if encrypted else None
    context = ssl.create_default_context(cafile=str(authority.cert)) if encrypted else None
    web = "WebSocket" in kind
    async with run_server(tls=tls, websocket=web) as server:
        url = server.websocket_url if web else server.url
        async with client(url, dialer=in_time, tls=context, tls_first=kind == "TLS first") as nc:
            await nc.flush()
            assert nc.server_info.client_ip == "127.0.0.5"
            await echoes(nc)


@asynccontextmanager
async def unix_socket(path: Path, server: Server) -> AsyncIterator[None]:
    """Passes on what comes there."""

    relays: list[asyncio.Future[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(server.host, server.port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.append(asyncio.ensure_future(relay(reader, writer)))

    listener = await asyncio.start_unix_server(accept, path)
    try:
        yield
    finally:
        listener.close()
        await listener.wait_closed()
        await asyncio.gather(*relays)


async def test_a_unix_socket_leads_to_the_server(nats_server: Server, tmp_path: Path) -> None:
    async def dial(server: ServerAddress) -> socket.socket:
        assert (server.host, server.port, server.token) == ("a.name.that.nobody.asks.for", 4222, None)
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(tmp_path / "nats"))
        return sock

    url = "nats://t0ken@a.name.that.nobody.asks.for"
    async with unix_socket(tmp_path / "nats", nats_server), client(url, dialer=dial) as nc:
        await echoes(nc)


def _raises(error: Exception) -> Dialer:
    def dial(server: ServerAddress) -> socket.socket:
        raise error

    return dial


def _returns(make: Callable[[], object]) -> Dialer:
    def dial(server: ServerAddress) -> socket.socket:
        return make()  # type: ignore[return-value]  # that is what the test is about

    return dial


@pytest.mark.parametrize(
    ("dialer", "error", "words"),
    [
        (_raises(OSError(113, "No route to host")), OSError, "No route to host"),
        (_raises(ValueError("s3cret")), ConfigError, "the callable failed with ValueError"),
        (_returns(lambda: None), ConfigError, "returned None: must be a connected, unencrypted stream socket"),
        (
            _returns(lambda: socket.socket(type=socket.SOCK_DGRAM)),
            ConfigError,
            "must be a connected, unencrypted stream",
        ),
        (_returns(socket.socket), OSError, ""),
    ],
    ids=["OSError", "another error", "nothing", "a datagram socket", "a socket that is not connected"],
)
async def test_what_it_does_wrong_is_why_the_attempt_failed(
    nats_server: Server, dialer: Dialer, error: type[Exception], words: str
) -> None:
    before = descriptors()
    cause = await cause_of(nats_server.url, dialer=dialer, connect_timeout=5.0)
    assert isinstance(cause, error | natsproto.errors.ConnectionLost)
    assert re.search(words, str(cause))
    assert "s3cret" not in str(cause)
    await asyncio.sleep(0)
    assert descriptors() <= before


async def test_one_that_hangs_ends_at_the_connect_timeout(nats_server: Server) -> None:
    async def hang(server: ServerAddress) -> socket.socket:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it hangs")

    cause = await cause_of(nats_server.url, dialer=hang, connect_timeout=0.1)
    assert isinstance(cause, RequestTimeout)
    assert "dialling" in str(cause)


async def test_one_that_fails_for_a_while_is_asked_again(nats_server: Server) -> None:
    watch = Watch()
    fails = False

    def dial(server: ServerAddress) -> socket.socket:
        if fails:
            raise ValueError("not now")
        return at_once(server)

    async with client(nats_server.url, dialer=dial, on_event=watch, reconnect_wait=0.01, jitter=0) as nc:
        fails = True
        await nc.reconnect()
        await watch.until(AttemptFailed, 3)
        fails = False
        await watch.until(Reconnected)
        await echoes(nc)
