"""What a server or a peer writes does not reach a terminal or a log as it is, nor in any number of lines."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback

import pytest

import natsproto
from natsproto import Message, NatsError, errors
from natsproto._core.event_bus import MAX_FIELD_CHARS
from natsproto.errors import ConnectionLost, ServiceError
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.server_errors import parse_server_error
from tests.core.helpers import scripted_network, turns_until
from tests.hostile.helpers import Stranger, peers
from tests.kit.clock import virtual_clock
from tests.kit.scripted import INFO, info_line

BAD = "\x1b[2J\r\nINFO forged\t\x00\x07\x7f\x9b\u2028\u202e\udcff"
"""Clears a terminal, writes another line, reverses the text, and cannot be encoded."""

RIGHTS = Stranger(("_INBOX.>",), ("_INBOX.>",))


@pytest.mark.parametrize(
    "error",
    [
        parse_server_error(BAD),
        parse_server_error(f"Authorization Violation {BAD}"),
        parse_server_error(f'Permissions Violation for Publish to "{BAD}"'),
        ConnectionLost(f"WebSocket closed with 1001 {BAD}", "127.0.0.1:4222"),
        ServiceError(400, BAD),
        errors.ApiError(400, 10000, BAD),
        errors.ConsumerGone(BAD, "c", "S"),
        errors.UnsupportedByServer("fast ingest", BAD),
        errors.RequestTimeout(BAD, 5),
        errors.KeyNotFound(BAD, BAD),
    ],
    ids=lambda error: type(error).__name__,
)
def test_texts_of_errors_are_escaped(error: NatsError) -> None:
    assert str(error).isprintable()
    assert "INFO forged" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    str(error).encode()


@virtual_clock
async def test_server_texts_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "natsproto")
    async with scripted_network() as net:
        nc = await net.connect()
        net.server.send(b"-ERR 'oh \x1b[2J\x07'\r\n")
        net.server.send(b"-ERR 'Permissions Violation for Publish to \"a.\x1b[2J\"'\r\n")
        await nc.flush()
        net.server.send(b"-ERR 'Stale Connection \x1b[2J'\r\n")
        (await net.server.connection()).close()
        await turns_until(lambda: nc.stats.reconnects == 1)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("x1b[2J" in line for line in lines) >= 3
    assert [line for line in lines if not line.isprintable()] == []


async def test_flood_of_bad_responses_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The stranger subscribes to no request: whoever sees one may send what he likes."""
    async with peers(Stranger(("$SRV.>",), ("_INBOX.>",))) as users:

        async def flood(message: Message) -> None:
            for number in range(1000):
                await message.respond(b"x" * (number % 3), headers={"Nats-Service-Error": "\x1b[2J bad"})

        users.stranger.subscribe("$SRV.PING", cb=flood)
        await users.stranger.flush()
        assert [one async for one in users.client.ping_services(timeout=0.5)] == []
    lines = [record.getMessage() for record in caplog.records if "responses to" in record.getMessage()]
    assert len(lines) == 1
    assert "skipped 1000 responses to PING" in lines[0]
    assert lines[0].isprintable()


def test_info_with_control_characters_is_kept_as_data() -> None:
    info = ServerInfo({"version": "2.11\x1b[2J", "server_name": "a\nb"})
    assert info.version == "2.11\x1b[2J"
    assert repr(info).isprintable()


@virtual_clock
async def test_announced_servers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each INFO announces a thousand other servers, with the longest names."""
    caplog.set_level("INFO", "natsproto")
    async with scripted_network() as net:
        nc = await net.connect()
        for number in range(300):
            name = f"{number:05}.{'.'.join(['x' * 60] * 3)}"
            urls = [f"h{one}.{name}:4222" for one in range(1000)]
            net.server.send(info_line({**INFO, "connect_urls": urls, "server_name": "y" * 20_000}))
            await nc.flush()
        assert len(nc.discovered_servers) == 1000
        lines = [record.getMessage() for record in caplog.records]
    assert sum("servers discovered" in line for line in lines) == 1
    assert max(map(len, lines)) < 2 * MAX_FIELD_CHARS


ANSWERS = [
    b"\x1b[2J evil\r\n\r\n",
    b"HTTP/1.1 101 \x1b[2J\r\n\r\n",
    b"HTTP/1.1 503 \x1b[2J\rINFO forged\r\n\r\n",
    b"HTTP/1.1 503 " + b"\x1b" * 10_000 + b"\r\n\r\n",
    b"HTTP/1.1 101 OK\r\nUpgrade: \x1b[2J\r\n\r\n",
    b"HTTP/1.1 101 OK\r\nA\x1b[2J: b\r\n\r\n",
    b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: \x1b[2J\r\n\r\n",
    b"HTTP/9.9 \x1b[2J 5\r\n\r\n",
    b"\x05\xff\x1b[2J\r\n",
    b"\x05\x00\x05\x1b\x1b[2J\r\n",
]


@pytest.mark.parametrize("way", ["ws", "http", "socks5"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_tracebacks_of_refused_handshakes_are_escaped(
    answer: bytes, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of WebSocket servers and proxies, with all that a log shows of an error."""
    caplog.set_level("DEBUG", "natsproto")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await reader.read()  # until the client has gone
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        url = f"{way}://127.0.0.1:{port}"
        server, proxy = (url, None) if way == "ws" else ("nats://127.0.0.1:1", url)
        with pytest.raises(errors.ConnectFailed) as caught:
            await natsproto.connect(server, proxy=proxy, connect_timeout=2)
    text = "".join(map(logging.Formatter().format, caplog.records))
    text += "".join(traceback.format_exception(caught.value))
    assert "\x1b" not in text
    assert "\r" not in text
    assert max(len(record.getMessage()) for record in caplog.records) < 2 * MAX_FIELD_CHARS
