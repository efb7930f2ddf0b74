"""A session: one connection, from the dial to its end, on a scripted server and virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import ssl
from collections.abc import Mapping
from typing import Unpack

import pytest

from natsproto._core.events import Disconnected, Reconnected
from natsproto._core.socket.session import Session
from natsproto._core.socket.wire import DialPlan, Runtime, Wire, WireHandler
from natsproto._options.options import OptionArgs, Options
from natsproto.errors import (
    ConnectFailed,
    ConnectionLost,
    NatsError,
    NotAuthorized,
    RemoteProtocolError,
    RequestTimeout,
    ServerError,
    StaleConnection,
    UnsupportedByServer,
)
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.frames import Message, Route, ServerInfo
from natsproto.protocol.link import Link, LinkEvent
from tests.core.helpers import HOST, PORT, ScriptedNetwork, scripted_network, turns, turns_until
from tests.faults.helpers import EventRecorder
from tests.kit.clock import advance, virtual_clock
from tests.kit.memory import MemoryPeer
from tests.kit.scripted import Behaviour, info_line


def only_cause(failed: ConnectFailed) -> BaseException:
    [(address, cause)] = failed.attempts
    assert address == f"{HOST}:{PORT}"
    assert address in str(failed)
    reported = cause.reason if isinstance(cause, NotAuthorized) else str(cause)
    assert reported in str(failed), "the sentence names the cause"
    return cause


async def refused_cause(net: ScriptedNetwork, **options: object) -> BaseException:
    """Tries to connect, which must fail, and returns why the only server failed."""
    with pytest.raises(ConnectFailed) as failed:
        await net.connect(connect_timeout=2.0, **options)  # type: ignore[arg-type]
    await turns(1)
    for peer in net.network.peers:
        assert peer.at_end, "no connection is left behind"
    return only_cause(failed.value)


# ---------------------------------------------------------------- the handshake


@virtual_clock
async def test_the_client_says_who_it_is_and_what_it_can() -> None:
    async with scripted_network() as net:
        nc = await net.connect(name="orders", no_echo=True, user="u", password="p")
        fields = dict((await net.server.connection()).connect)
        assert fields.pop("version")
        assert fields == {
            "verbose": False,
            "pedantic": False,
            "tls_required": False,
            "name": "orders",
            "lang": "python-natsproto",
            "protocol": 1,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "user": "u",
            "pass": "p",
        }
        assert (nc.client_id, nc.max_payload, nc.server_info.server_name) == (1, 1048576, "scripted")
        assert nc.connected_url == f"nats://{HOST}:{PORT}"


_SILENCES: Mapping[str, tuple[Behaviour, str]] = {
    "no INFO": (Behaviour(greeting=None, answer_ping=False), "waiting for INFO (if the server has handshake_first"),
    "half an INFO": (Behaviour(greeting=b'INFO {"server', answer_ping=False), "(so far b'INFO {\"server')"),
    "half of something else": (
        Behaviour(greeting=b"SSH-2.0", answer_ping=False),
        "waiting for INFO (so far b'SSH-2.0': answered like an SSH server)",
    ),
    "no PONG": (Behaviour(answer_ping=False), "waiting for the server to accept"),
    "+OK for ever": (Behaviour(first_ping=b"+OK\r\n" * 100), "waiting for the server to accept"),
}


@pytest.mark.parametrize("kind", _SILENCES)
@virtual_clock
async def test_silent_server_times_out_with_phase(
    kind: str,
) -> None:
    behaviour, stage = _SILENCES[kind]
    loop = asyncio.get_running_loop()
    async with scripted_network(behaviour) as net:
        began = loop.time()
        cause = await refused_cause(net)
        assert loop.time() - began == pytest.approx(2.0, abs=1e-6)
        assert isinstance(cause, RequestTimeout)
        assert stage in str(cause)


@pytest.mark.parametrize("silence", [0.0, 2.0])
@virtual_clock
async def test_server_that_closes_at_once_is_no_riddle(silence: float) -> None:
    """A server that stops closes new connections at once. One with handshake_first waits for TLS for two seconds."""

    async def close_later(peer: MemoryPeer) -> None:
        await asyncio.sleep(silence)
        peer.close()

    async with scripted_network() as net, asyncio.TaskGroup() as closing:
        net.network.listen(HOST, PORT, lambda peer: closing.create_task(close_later(peer)))
        with pytest.raises(ConnectFailed, match="closed by the server while waiting for INFO") as failed:
            await net.connect(connect_timeout=5.0)
        assert ("handshake_first" in str(failed.value)) == (silence > 1)


@virtual_clock
async def test_black_hole_address_times_out() -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        net.network.black_hole(HOST, PORT)
        began = loop.time()
        cause = await refused_cause(net)
        assert loop.time() - began == pytest.approx(2.0, abs=1e-6)
        assert isinstance(cause, RequestTimeout)
        assert "dial" in str(cause)


@virtual_clock
async def test_refused_address_fails_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        net.network.refuse(HOST, PORT)
        began = loop.time()
        assert isinstance(await refused_cause(net), ConnectionRefusedError)
        assert loop.time() == began


_OFFENCES: Mapping[str, tuple[Behaviour, type[NatsError], str]] = {
    "hangs up at once": (Behaviour(greeting=None, hang_up=True), ConnectionLost, "waiting for INFO"),
    "hangs up behind INFO": (Behaviour(hang_up=True), ConnectionLost, "closed by the server"),
    "hangs up behind CONNECT": (Behaviour(first_ping=b"", hang_up=True), ConnectionLost, "accept the connection"),
    "speaks HTTP": (
        Behaviour(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        RemoteProtocolError,
        "unknown operation (answered like an HTTP server: is this the monitoring port?) at byte 0: b'HTTP/1.1 400",
    ),
    "speaks SSH": (
        Behaviour(greeting=b"SSH-2.0-OpenSSH_9.6\r\n"),
        RemoteProtocolError,
        "(answered like an SSH server) at byte 0: b'SSH-2.0-OpenSSH_9.6'",
    ),
    "speaks something else": (
        Behaviour(greeting=b"* OK IMAP4 ready\r\n"),
        RemoteProtocolError,
        "(is it a NATS server at all?) at byte 0: b'* OK IMAP4 ready'",
    ),
    "INFO is a list": (Behaviour(greeting=b"INFO []\r\n"), RemoteProtocolError, "INFO cannot be read"),
    "a message first": (Behaviour(first_ping=b"MSG a 1 1\r\nx\r\n"), RemoteProtocolError, "before anything was"),
    "a message with its PONG": (
        Behaviour(first_ping=b"PONG\r\nMSG a 1 1\r\nx\r\n"),
        RemoteProtocolError,
        "before anything",
    ),
    "garbage instead of PONG": (Behaviour(first_ping=b"\x00\xff\r\n"), RemoteProtocolError, "unknown operation"),
    "refuses us": (Behaviour(refuse="Authorization Violation"), NotAuthorized, "Authorization Violation"),
    "is full": (Behaviour(refuse="maximum connections exceeded"), ServerError, "maximum connections exceeded"),
    "knows no headers": (Behaviour(greeting={"headers": False}), UnsupportedByServer, "headers"),
}


@pytest.mark.parametrize("kind", _OFFENCES)
@virtual_clock
async def test_a_handshake_that_goes_wrong_says_how_at_once(kind: str) -> None:
    behaviour, error, said = _OFFENCES[kind]
    loop = asyncio.get_running_loop()
    async with scripted_network(behaviour) as net:
        began = loop.time()
        cause = await refused_cause(net)
        assert loop.time() == began
        assert type(cause) is error
        assert said in str(cause)


@virtual_clock
async def test_the_handshake_works_byte_by_byte() -> None:
    async with scripted_network() as net:

        def chop(peer: MemoryPeer) -> None:
            peer.chop(1)
            net.server.accept(peer)

        net.network.listen(HOST, PORT, chop)
        nc = await net.connect()
        async with nc.subscribe("a") as sub:
            await nc.publish("a", b"hello", headers={"K": "v"})
            got = await sub.next(timeout=5)
            assert (got.data, got.headers["K"]) == (b"hello", "v")


@virtual_clock
async def test_handshake_accepts_ping_and_new_info() -> None:
    first = b"PING\r\n" + info_line({"headers": True, "max_payload": 5}) + b"PING\r\nPONG\r\n"
    async with scripted_network(Behaviour(first_ping=first)) as net:
        nc = await net.connect()
        await net.server.expect("PONG")
        await net.server.expect("PONG")
        assert nc.max_payload == 5


@virtual_clock
async def test_data_with_last_handshake_chunk_is_kept() -> None:
    behind = b"PONG\r\n" + info_line({"headers": True, "max_payload": 7}) + b"PING\r\n"
    async with scripted_network(Behaviour(first_ping=behind)) as net:
        nc = await net.connect()
        await net.server.expect("PONG")
        assert nc.max_payload == 7


class _Paper:
    """A wire that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes], size: int) -> None:
        self.write(b"".join(parts))

    def unsent_bytes(self) -> int:
        return 0

    def sent_bytes(self) -> int:
        return 0

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def read_into(self, room: memoryview) -> None: ...
    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None: ...


class _Nobody:
    """Whom a session works for in tests that are about its handshake."""

    def on_messages(self, touched: list[Route]) -> bool:
        return True

    def on_link_event(self, session: Session, event: LinkEvent) -> None: ...
    def on_write_paused(self, session: Session) -> None: ...
    def on_write_resumed(self, session: Session) -> None: ...
    def on_session_ended(self, session: Session) -> None: ...


async def dialled(**options: Unpack[OptionArgs]) -> tuple[Session, _Paper, asyncio.Task[ServerInfo]]:
    """A session that waits for INFO, what it writes to, and its opening."""
    paper = _Paper()

    async def dial(address: ServerAddress, plan: DialPlan, handler: WireHandler) -> Wire:
        return paper

    [address] = parse_servers(f"nats://{HOST}:{PORT}")
    session = Session(address, Options(**options), Runtime(dial=dial, rng=random.Random(1)), _Nobody(), Link({}))
    opening = asyncio.create_task(session.open(asyncio.get_running_loop().time() + 5))
    await turns(3)
    return session, paper, opening


@virtual_clock
async def test_connect_answers_info_and_says_what_was_chosen() -> None:
    session, paper, opening = await dialled(verbose=True, no_echo=True)
    assert paper.written == []
    session.on_data(info_line({"headers": True, "version": "2.12.0"}))
    await turns(3)
    [line] = paper.written
    assert line.startswith(b"CONNECT {")
    assert line.endswith(b"}\r\nPING\r\n")
    fields = json.loads(line.removeprefix(b"CONNECT ").removesuffix(b"\r\nPING\r\n"))
    assert (fields["verbose"], fields["echo"], fields["tls_required"]) == (True, False, False)
    assert "name" not in fields
    session.on_data(b"+OK\r\n")
    await turns(3)
    assert not opening.done()
    session.on_data(b"PONG\r\n")
    assert (await opening).version == "2.12.0"
    assert paper.written == [line]


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (b"", ConnectionLost, "while waiting for INFO"),
        (b"-ERR 'Authorization Violation'\r\n", NotAuthorized, "Authorization Violation"),
        (info_line({"headers": True}), ConnectionLost, "while waiting for the server to accept the connection"),
    ],
)
@virtual_clock
async def test_end_of_handshake_is_blamed_on_what_was_said(said: bytes, error: type[NatsError], words: str) -> None:
    session, _, opening = await dialled()
    session.on_data(said)
    await turns(3)
    session.on_disconnect(ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises(error, match=words) as caught:
        await opening
    assert type(caught.value) is error


_NO_GREETING: Mapping[str, tuple[bytes, type[NatsError]]] = {
    "no headers": (info_line({"headers": False, "version": "2.1.0"}), UnsupportedByServer),
    "garbage": (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError),
    "garbage behind it": (info_line({"headers": True, "version": "2.12.0"}) + b"\xff\r\n", RemoteProtocolError),
    "a message": (b"MSG a 1 1\r\nx\r\n" + info_line({"headers": True}), RemoteProtocolError),
    "full at once": (b"-ERR 'maximum connections exceeded'\r\n", ServerError),
    "in clear behind TLS": (info_line({"headers": True, "tls_required": True}) + b"PING\r\n", RemoteProtocolError),
}


@pytest.mark.parametrize("kind", _NO_GREETING)
@virtual_clock
async def test_an_info_that_will_not_do_is_not_answered(kind: str) -> None:
    said, error = _NO_GREETING[kind]
    session, paper, opening = await dialled()
    session.on_data(said)
    with pytest.raises(error):
        await opening
    assert paper.written == []


@virtual_clock
async def test_connect_is_signed_for_its_info() -> None:
    session, paper, opening = await dialled(user="u", password="p")
    session.on_data(info_line({"headers": True, "version": "2.12.0"}))
    await turns_until(lambda: paper.written)
    assert b'"user":"u"' in paper.written[0]
    session.on_data(b"PONG\r\n")
    await opening


# ---------------------------------------------------------------- keep-alive


@virtual_clock
async def test_silent_server_is_pinged_and_dropped() -> None:
    loop = asyncio.get_running_loop()
    recorder = EventRecorder()
    async with scripted_network(Behaviour(), Behaviour()) as net:
        await net.connect(on_event=recorder, ping_interval=10, max_outstanding_pings=2)
        connection = await net.server.connection()
        await advance(60)
        assert recorder.of(Disconnected) == [], "it answers"
        began = loop.time()
        connection.behaviour = Behaviour(answer_ping=False)
        lost = await recorder.wait(Disconnected, timeout=100)
        assert isinstance(lost.cause, StaleConnection)
        assert loop.time() - began <= 10 * (2 + 1) + 0.1
        await recorder.wait(Reconnected)


@virtual_clock
async def test_any_byte_is_a_sign_of_life() -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        await net.connect(on_event=recorder, ping_interval=10, max_outstanding_pings=1)
        connection = await net.server.connection()
        connection.behaviour = Behaviour(answer_ping=False)
        for _ in range(30):
            await advance(8)
            connection.send(b"+OK\r\n")
        assert recorder.events == []


@virtual_clock
async def test_server_that_does_not_read_is_dropped() -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder, ping_interval=10, max_outstanding_pings=2)
        connection = await net.server.connection()
        net.peer.stall()
        await nc.publish("a", bytes(100_000))
        for _ in range(6):
            await advance(8)
            connection.send(b"PING\r\n")
        [lost] = recorder.of(Disconnected)
        assert "accepts no data" in str(lost.cause)


@virtual_clock
async def test_pings_are_answered_whatever_else_happens() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        connection = await net.server.connection()
        connection.send(b"PING\r\n" * 100)
        for _ in range(100):
            await net.server.expect("PONG")
        await nc.flush()


@virtual_clock
async def test_a_pong_that_nobody_asked_for_is_no_answer() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        connection = await net.server.connection()
        connection.send(b"PONG\r\n" * 10)
        await turns(5)
        connection.behaviour = Behaviour(answer_ping=False)
        with pytest.raises(RequestTimeout):
            await nc.flush(timeout=1)
        connection.behaviour = Behaviour()
        assert nc.stats.pings_outstanding >= 1
        connection.send(b"PONG\r\n" * nc.stats.pings_outstanding)
        await nc.flush(timeout=1)


@virtual_clock
async def test_late_pongs_do_not_answer_later_flushes() -> None:
    """Pongs come in the order of the pings, so one that was given up on must still be counted."""
    async with scripted_network() as net:
        nc = await net.connect()
        connection = await net.server.connection()
        connection.behaviour = Behaviour(answer_ping=False)
        for _ in range(3):
            with pytest.raises(RequestTimeout):
                await nc.flush(timeout=1)
        connection.behaviour = Behaviour(answer_ping=False)
        fourth = asyncio.create_task(nc.flush(timeout=30))
        await turns(5)
        for left in (3, 2, 1, 0):
            assert not fourth.done()
            connection.send(b"PONG\r\n")
            await turns(5)
            assert nc.stats.pings_outstanding == left
        await fourth
        connection.behaviour = Behaviour()


# ---------------------------------------------------------------- reading


@virtual_clock
async def test_flood_is_read_in_turns() -> None:
    """More than the inbox holds, in one burst: an attentive reader loses nothing of it."""
    async with scripted_network() as net:
        nc = await net.connect()
        async with nc.subscribe("a", pending_msgs_limit=4000) as sub:
            await nc.flush()
            got = 0

            async def reader() -> None:
                nonlocal got
                async for batch in sub.batches():
                    got += len(batch)

            task = asyncio.create_task(reader())
            wire = b"MSG a 1 100\r\n" + bytes(100) + b"\r\n"
            count = 8000
            for _ in range(count):
                net.peer.send(wire)
            await net.peer.drain()
            await turns_until(lambda: got + sub.dropped == count)
            assert sub.dropped == 0
            task.cancel()
            await asyncio.wait([task])


@virtual_clock
async def test_receive_error_ends_session_not_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Clumsy:
        def on_messages(self, touched: list[Route]) -> bool:
            raise ZeroDivisionError("a bug")

        def on_link_event(self, session: Session, event: LinkEvent) -> None: ...
        def on_write_paused(self, session: Session) -> None: ...
        def on_write_resumed(self, session: Session) -> None: ...
        def on_session_ended(self, session: Session) -> None: ...

    async with scripted_network() as net:
        got: list[Message] = []
        link = Link({b"1": Route(got.append)})
        [address] = parse_servers(f"nats://{HOST}:{PORT}")
        session = Session(address, Options(), Runtime(dial=net.dial, rng=random.Random(1)), Clumsy(), link)
        await session.open(asyncio.get_running_loop().time() + 5)
        session.start_events()
        net.server.deliver(1, "a", b"x")
        with caplog.at_level(logging.CRITICAL, "natsproto"):
            assert isinstance(await session.ended, ZeroDivisionError)
        await net.peer.wait_end()


@virtual_clock
async def test_a_connection_that_cannot_be_looked_after_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(link: Link) -> int:
        raise ZeroDivisionError("a bug")

    recorder = EventRecorder()
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder, ping_interval=5)
        with monkeypatch.context() as patch:
            patch.setattr(Link, "count_silent_tick", stumble)
            assert isinstance((await recorder.wait(Disconnected)).cause, ZeroDivisionError)
        await recorder.wait(Reconnected)
        await nc.flush()
    assert "the keep-alive check" in caplog.text


@virtual_clock
async def test_session_keeps_first_cause() -> None:
    async with scripted_network() as net:
        nc = await net.connect(allow_reconnect=False)
        session = nc._engine.session
        assert session is not None
        first, second = ConnectionLost("first"), ConnectionLost("second")
        session.end(first)
        session.end(second)
        net.peer.reset()
        await turns(5)
        assert session.ended.result() is first
        assert await nc.wait_closed() is first


@pytest.mark.parametrize(
    "said",
    ["Stale Connection", "Slow Consumer", "User Authentication Expired", "Maximum Control Line Exceeded"],
)
@virtual_clock
async def test_disconnect_cause_is_last_server_error(said: str) -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        await net.connect(on_event=recorder)
        connection = await net.server.connection()
        connection.err(said)
        connection.close()
        lost = await recorder.wait(Disconnected)
        assert said in str(lost.cause)


@virtual_clock
async def test_harmless_error_is_not_disconnect_cause() -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        await net.connect(on_event=recorder)
        connection = await net.server.connection()
        connection.err("Invalid Subject")
        await turns(5)
        assert recorder.events == []
        connection.close()
        lost = await recorder.wait(Disconnected)
        assert "closed by the server" in str(lost.cause)


@virtual_clock
async def test_protocol_error_ends_only_this_connection() -> None:
    recorder = EventRecorder(Disconnected, Reconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        for number, offence in enumerate(itertools.repeat(b"NONSENSE\r\n", 3), 1):
            (await net.server.connection(number - 1)).send(offence)
            lost = await recorder.wait(Disconnected, number)
            assert isinstance(lost.cause, RemoteProtocolError)
            await recorder.wait(Reconnected, number)
        await nc.flush()
