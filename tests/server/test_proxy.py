"""Proxies: the option ``proxy`` goes through real ones, of both kinds, for every transport."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from urllib.parse import quote

import pytest

import natsproto
from natsproto import Options
from natsproto._core.events import Reconnected
from natsproto.errors import ConfigError, ConnectFailed, ConnectionLost
from natsproto.testing import Server, ServerTls, run_server
from tests.kit.pki import Authority
from tests.kit.proxies import PASSWORD, USER, Kind, run_proxy
from tests.kit.watch import Watch
from tests.server.helpers import client

KINDS: tuple[Kind, ...] = ("http", "socks5")


async def echoes(nc: natsproto.Client) -> None:
    async with nc.subscribe("a") as sub:
        await nc.publish("a", bytes(500_000))
        assert len((await sub.next(timeout=20)).data) == 500_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transport", ["tcp", "tls", "tls first", "ws", "wss"])
async def test_proxy_is_gone_through_for_every_transport(tmp_path: Path, kind: Kind, transport: str) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    encrypted, web, first = transport not in ("tcp", "ws"), transport.startswith("ws"), transport == "tls first"
    tls = ServerTls(cert=cert, key=key, handshake_first=first) if encrypted else None
    context = ssl.create_default_context(cafile=str(authority.cert)) if encrypted else None
    watch = Watch()
    async with run_server(tls=tls, websocket=web) as server, run_proxy(kind) as proxy:
        url = server.websocket_url if web else server.url
        options = {"proxy": proxy.url, "tls": context, "tls_first": first, "on_event": watch}
        async with client(url.replace("127.0.0.1", "localhost"), **options) as nc:  # type: ignore[arg-type]
            await echoes(nc)
            assert proxy.accepted == 1
            await nc.reconnect()
            await watch.until(Reconnected)
            await echoes(nc)
            assert proxy.accepted == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_proxy_with_a_password_gets_it(kind: Kind) -> None:
    async with run_server() as server, run_proxy(kind, password=PASSWORD) as proxy:
        reported = proxy.url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
        async with client(server.url, proxy=reported) as nc:
            await echoes(nc)
        assert PASSWORD not in repr(Options(server.url, proxy=reported))
        for wrong in (proxy.url, reported.replace(USER, "ben")):
            with pytest.raises(ConnectFailed) as failed:
                await natsproto.connect(server.url, proxy=wrong)
            [(_, cause)] = failed.value.attempts
            assert isinstance(cause, ConnectionLost)
            assert f"the proxy 127.0.0.1:{proxy.port}" in str(cause)


@pytest.mark.parametrize("kind", KINDS)
async def test_server_away_behind_a_proxy_is_reported(kind: Kind) -> None:
    async with run_proxy(kind) as proxy:
        with pytest.raises(ConnectFailed, match="did not connect"):
            await natsproto.connect("nats://127.0.0.1:1", proxy=proxy.url)
    with pytest.raises(ConnectFailed, match=f"the proxy 127.0.0.1:{proxy.port} did not connect"):
        await natsproto.connect("nats://127.0.0.1:1", proxy=proxy.url)


ANSWERS = {
    "glued to INFO": [b"HTTP/1.1 200 OK\r\n\r\n"],
    "in pieces": [b"HTTP/1.0 2", b"00\r\nVia: x\r", b"\n\r\n"],
    "with bare line ends": [b"HTTP/1.1 204\nVia: x\n\n"],
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_info_behind_the_answer_of_a_proxy_is_read(nats_server: Server, answer: list[bytes]) -> None:
    """The server speaks first, so its INFO may come in the read that brings the end of the proxy's answer."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        there, outgoing = await asyncio.open_connection(nats_server.host, nats_server.port)
        info = await there.readuntil(b"\r\n")
        for piece in answer[:-1]:
            writer.write(piece)
            await asyncio.sleep(0)
        writer.write(answer[-1] + info)
        await asyncio.gather(pump(reader, outgoing), pump(there, writer))
        ended.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        async with client(nats_server.url, proxy=f"http://127.0.0.1:{port}") as nc:
            await echoes(nc)
        await ended.wait()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication Required"),
        (b"SSH-2.0-x\r\n\r\n", "does not answer with HTTP"),
        (b"", "ended the connection"),
        (b"x" * 20_000, "header is too long"),
    ],
)
async def test_odd_answer_of_a_proxy_is_worded(answer: bytes, reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ConnectFailed, match=reason):
            await natsproto.connect("nats://127.0.0.1:1", proxy=f"http://127.0.0.1:{port}")


async def test_silent_proxy_ends_at_the_connect_timeout(nats_server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody reads
        port = silent.getsockname()[1]
        with pytest.raises(ConnectFailed, match=r"0\.2 s"):
            await natsproto.connect(nats_server.url, proxy=f"socks5://127.0.0.1:{port}", connect_timeout=0.2)


async def test_context_with_socks_proxy_is_followed(tmp_path: Path) -> None:
    async with run_server() as server, run_proxy("socks5") as proxy:
        path = tmp_path / "shop.json"
        path.write_text(f'{{"url": "{server.url}", "socks_proxy": "{proxy.url}"}}')
        async with natsproto.connect(context=str(path)) as nc:
            await echoes(nc)
        assert proxy.accepted == 1


@pytest.mark.parametrize(
    "url",
    ["", "socks5://host", "host:1080", "https://host:1", "socks4://host:1", "http://:1", "http://h:1/x", "http://h:99999",
     "http://h:1?x", "http://a b:1", "http://h:1\n", "http://[::1:1"],
)  # fmt: skip
def test_proxy_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="like socks5://host:port"):
        Options(proxy=url)


def test_proxy_and_dialer_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="together with proxy"):
        Options(proxy="http://h:1", dialer=lambda server: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError):
        Options(proxy=5)  # type: ignore[arg-type]
