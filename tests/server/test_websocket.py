"""WebSocket on the real server, behind a proxy that sees the bytes, and with peers that know better."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.frames import Opcode

import natsproto
from natsproto._core.engine import engine
from natsproto._core.events import Disconnected, LameDuck, Moved, Reconnected, ServersDiscovered, SlowConsumerDetected
from natsproto._options.options import Options
from natsproto.errors import (
    ConfigError,
    ConnectionLost,
    NotAuthorized,
    RemoteProtocolError,
    RequestTimeout,
    TlsFailed,
)
from natsproto.testing import Direction, FaultProxy, Server, ServerTls, run_cluster, run_server
from natsproto.testing._ports import ReservedPort
from tests.kit.failures import cause_of
from tests.kit.pki import Authority
from tests.kit.watch import Watch
from tests.kit.websocket import WebSocketServer
from tests.server.helpers import Run


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls(ca: Authority) -> ServerTls:
    cert, key = ca.issue("localhost", "127.0.0.1")
    return ServerTls(cert=cert, key=key)


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()  # a transport that nobody closed is a ResourceWarning, hence an error, of this test


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a server that is configured by hand."""
    with ReservedPort() as held:
        held.release()
        yield held.number


def compressing(port: int, more: str = "") -> str:
    return f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true, compression: true }}\n{more}'


async def round_trip(nc: natsproto.Client, payload: bytes, number: int = 1) -> bool:
    """Whether messages that are published come back whole and in order."""
    async with nc.subscribe("round.trip") as messages:
        await nc.flush()

        async def publish() -> None:
            for at in range(number):
                await nc.publish("round.trip", payload, headers={"At": str(at)})

        publishing = asyncio.create_task(publish())
        for at in range(number):
            message = await messages.next(timeout=10)
            if (message.data, message.headers["At"]) != (payload, str(at)):
                return False
        await publishing
        return True


# ---------------------------------------------------------------- it works


def test_ws(run: Run) -> None:
    async def body() -> None:
        async with run_server(websocket=True) as server, natsproto.connect(server.websocket_url) as nc:
            assert nc.connected_url == server.websocket_url
            assert await round_trip(nc, b"hello")
            assert await nc.rtt() < 5

    run(body())


def test_wss(run: Run, ca: Authority, tls: ServerTls) -> None:
    async def body() -> None:
        async with (
            run_server(websocket=True, tls=tls) as server,
            natsproto.connect(server.websocket_url, tls=ca.client()) as nc,
        ):
            assert nc.connected_url == server.websocket_url
            assert await round_trip(nc, b"hello")

    run(body())


@pytest.mark.parametrize("scheme", ["ws", "wss", "ws compressed"])
def test_big_messages_pass_both_ways(run: Run, ca: Authority, tls: ServerTls, port: int, scheme: str) -> None:
    payload = os.urandom(1_048_576 - 64)  # the headers count

    async def body() -> None:
        if scheme == "ws compressed":
            async with (
                run_server(config=compressing(port)),
                natsproto.connect(f"ws://127.0.0.1:{port}", websocket_compression=True) as nc,
            ):
                assert await round_trip(nc, payload, 6)
        else:
            async with (
                run_server(websocket=True, tls=tls if scheme == "wss" else None) as server,
                natsproto.connect(server.websocket_url, tls=ca.client() if scheme == "wss" else None) as nc,
            ):
                assert await round_trip(nc, payload, 24)

    run(body())


async def test_compression_saves_bytes_both_ways(port: int) -> None:
    async with (
        run_server(config=compressing(port)),
        FaultProxy("127.0.0.1", port, record=True) as proxy,
        natsproto.connect(f"ws://127.0.0.1:{proxy.port}", websocket_compression=True) as nc,
    ):
        assert await round_trip(nc, b"tulips and roses " * 5_000)
        seen = proxy.link.seen
    answer = bytes(seen[Direction.TO_CLIENT]).partition(b"\r\n\r\n")[0].lower()
    assert b"permessage-deflate; server_no_context_takeover; client_no_context_takeover" in answer
    assert len(seen[Direction.TO_SERVER]) < 10_000
    assert len(seen[Direction.TO_CLIENT]) < 10_000


async def test_compression_is_not_offered_unless_asked_for(port: int) -> None:
    async with (
        run_server(config=compressing(port)),
        FaultProxy("127.0.0.1", port, record=True) as proxy,
        natsproto.connect(f"ws://127.0.0.1:{proxy.port}") as nc,
    ):
        assert await round_trip(nc, b"hello" * 100)
        assert b"permessage-deflate" not in proxy.link.seen[Direction.TO_SERVER]


async def test_server_without_compression() -> None:
    async with (
        run_server(websocket=True) as server,
        natsproto.connect(server.websocket_url, websocket_compression=True) as nc,
    ):
        assert await round_trip(nc, b"hello" * 1000)


async def test_compressed_frames_stay_below_the_server_limit(port: int) -> None:
    """A server hangs up on a compressed frame of more than max_payload bytes, however many messages are in it."""
    async with run_server(config=compressing(port, "max_payload: 1000")) as server:
        watch = Watch()
        async with natsproto.connect(f"ws://127.0.0.1:{port}", websocket_compression=True, on_event=watch) as nc:
            assert await round_trip(nc, b"x" * 500, 200)
            assert watch.all(Disconnected) == []
        assert "maximum payload" not in server.log()


# ---------------------------------------------------------------- the request


def request_of(proxy: FaultProxy) -> tuple[str, dict[str, str]]:
    """The path and the headers of the newest upgrade request."""
    head = bytes(proxy.link.seen[Direction.TO_SERVER]).partition(b"\r\n\r\n")[0].decode()
    first, *lines = head.split("\r\n")
    headers = [line.partition(": ") for line in lines]
    assert len({name for name, _, _ in headers}) == len(headers)
    return first, {name: value for name, _, value in headers}


async def proxied(server: Server) -> FaultProxy:
    return FaultProxy("127.0.0.1", int(server.websocket_url.rpartition(":")[2]), record=True)


async def test_custom_headers_are_sent() -> None:
    given = {"Authorization": "Bearer abc", "X-Tenant": "shop", "Host": "nats.example"}
    async with run_server(websocket=True) as server, await proxied(server) as proxy:
        async with natsproto.connect(f"ws://127.0.0.1:{proxy.port}", websocket_headers=given):
            pass
        first, headers = request_of(proxy)
    assert first == "GET / HTTP/1.1"
    assert headers.items() >= given.items()
    assert "permessage-deflate" not in headers.values()


@pytest.mark.parametrize("sort", ["sync", "async"])
async def test_header_callable_is_asked_at_every_attempt(sort: str) -> None:
    tokens = iter("abc")

    def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {next(tokens)}"}

    async def later() -> dict[str, str]:
        await asyncio.sleep(0)
        return headers()

    async with run_server(websocket=True) as server, await proxied(server) as proxy:
        watch = Watch()
        async with natsproto.connect(
            f"ws://127.0.0.1:{proxy.port}", websocket_headers=headers if sort == "sync" else later, on_event=watch
        ) as nc:
            assert request_of(proxy)[1]["Authorization"] == "Bearer a"
            await nc.reconnect()
            await watch.until(Reconnected)
            assert request_of(proxy)[1]["Authorization"] == "Bearer b"


async def test_headers_callable_that_hangs_ends_in_time() -> None:
    async def hangs() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    cause = await cause_of("ws://127.0.0.1:1", websocket_headers=hangs, connect_timeout=0.2)
    assert isinstance(cause, RequestTimeout)
    assert "WebSocket headers" in str(cause)


@pytest.mark.parametrize("name", ["Upgrade", "connection", "Sec-WebSocket-Key", "sec-websocket-extensions"])
def test_headers_of_the_handshake_are_reserved(name: str) -> None:
    with pytest.raises(ConfigError, match="handshake itself"):
        Options("ws://127.0.0.1", websocket_headers={name: "x"})


async def test_cookie_logs_in(port: int) -> None:
    config = f"""
      authorization {{ token: t0k3n }}
      websocket {{ listen: "127.0.0.1:{port}", no_tls: true, token_cookie: "login" }}
    """
    url = f"ws://127.0.0.1:{port}"
    async with run_server(config=config):
        async with natsproto.connect(url, websocket_headers={"Cookie": "theme=dark; login=t0k3n"}) as nc:
            await nc.flush()
        assert isinstance(await cause_of(url, websocket_headers={"Cookie": "login=wrong"}), NotAuthorized)


@pytest.mark.parametrize(
    ("path", "option", "wanted"),
    [
        ("", None, "/"),
        ("/bus%20a/nats", None, "/bus%20a/nats"),
        ("", "/gate", "/gate"),
        ("/a", "/b", "/a"),
        ("/a?tenant=b&key=s3cret", "/b", "/a?tenant=b&key=s3cret"),
        ("", "/gate?key=s3cret", "/gate?key=s3cret"),
    ],
)
async def test_path_is_that_of_the_url_or_the_option(path: str, option: str | None, wanted: str) -> None:
    async with run_server(websocket=True) as server, await proxied(server) as proxy:
        async with natsproto.connect(f"ws://127.0.0.1:{proxy.port}{path}", websocket_path=option) as nc:
            assert await round_trip(nc, b"hello")
            shown = f"{nc!r} {nc.connected_url} {nc.servers}"
        assert request_of(proxy)[0] == f"GET {wanted} HTTP/1.1"
        assert "s3cret" not in shown


# ---------------------------------------------------------------- restarts, clusters, lame ducks


def test_restart_is_reported_with_its_close_code(run: Run) -> None:
    async def body() -> None:
        watch = Watch()
        async with (
            run_server(websocket=True) as server,
            natsproto.connect(server.websocket_url, on_event=watch) as nc,
            nc.subscribe("news") as news,
        ):
            await server.restart()
            await watch.until(Reconnected)
            await nc.publish("news", b"still here")
            assert (await news.next(timeout=5)).data == b"still here"
        assert "WebSocket closed with 1001 Server Shutdown" in str(watch.all(Disconnected)[0].cause)

    run(body())


async def test_server_that_is_killed_is_left() -> None:
    async with run_server(websocket=True) as server:
        watch = Watch()
        async with natsproto.connect(server.websocket_url, on_event=watch) as nc:
            server.kill()
            assert isinstance((await watch.until(Disconnected)).cause, ConnectionLost)
            await server.restart()
            await watch.until(Reconnected)
            assert await round_trip(nc, b"hello")


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_cluster_announces_its_websocket_ports(ca: Authority, tmp_path: Path, scheme: str) -> None:
    cert, key = ca.issue("localhost")  # of the announced addresses it says nothing
    tls = ServerTls(cert=cert, key=key) if scheme == "wss" else None
    async with run_cluster(2, jetstream=False, websocket=True, tls=tls) as cluster:
        first, second = cluster.servers
        watch = Watch()
        url = first.websocket_url.replace("127.0.0.1", "localhost")
        async with natsproto.connect(url, on_event=watch, tls=ca.client() if tls else None) as nc:
            await watch.until(ServersDiscovered)
            assert second.websocket_url.removeprefix(f"{scheme}://") in nc.discovered_servers
            first.kill()
            await watch.until(Reconnected)
            assert nc.connected_url == second.websocket_url
            assert await round_trip(nc, b"hello")


@pytest.mark.slow
async def test_lame_duck_is_left_without_losing_a_message() -> None:
    async with run_cluster(2, jetstream=False, websocket=True) as cluster:
        first, second = cluster.servers
        watch = Watch()
        async with (
            natsproto.connect(first.websocket_url, on_event=watch) as nc,
            natsproto.connect(second.url) as publisher,
            nc.subscribe("news") as news,
        ):
            await nc.flush()
            await first.lame_duck()
            await watch.until(LameDuck)
            await watch.until(Moved)
            assert nc.connected_url == second.websocket_url
            await nc.flush()
            await publisher.publish("news", b"still here")
            assert (await news.next(timeout=5)).data == b"still here"
            assert watch.all(Disconnected) == []


# ---------------------------------------------------------------- frames


async def test_nats_frames_may_begin_and_end_anywhere() -> None:
    async with WebSocketServer() as server, natsproto.connect(server.url) as nc, nc.subscribe("a") as messages:
        await nc.flush()
        stream = b"".join(b"MSG a 1 %d\r\n%b\r\n" % (len(word), word) for word in (b"tulip", b"", b"rose"))
        for byte in stream[:20]:
            server.peer.say(bytes([byte]))
        server.peer.say(stream[20:30], opcode=Opcode.TEXT)
        server.peer.say(stream[30:])
        assert [(await messages.next(timeout=5)).data for _ in range(3)] == [b"tulip", b"", b"rose"]


async def test_ping_between_fragments_is_answered() -> None:
    async with WebSocketServer() as server, natsproto.connect(server.url) as nc, nc.subscribe("a") as messages:
        await nc.flush()
        peer = server.peer
        peer.say(b"MSG a 1 5\r\ntu", fin=False)
        peer.say(b"are you there?", opcode=Opcode.PING)
        peer.say(b"li", fin=False, opcode=Opcode.CONT)
        await server.until(lambda: Opcode.PONG in peer.control)
        peer.say(b"p\r\n", opcode=Opcode.CONT)
        assert (await messages.next(timeout=5)).data == b"tulip"


async def test_frame_full_of_messages_overruns_no_inbox() -> None:
    """A server sends all it has pending in one frame: here 200,000 messages, thrice what an inbox holds."""
    number = 200_000
    async with WebSocketServer() as server:
        watch = Watch()
        options = Options(server.url, on_event=watch, max_message_size=1024)
        async with natsproto.connect(options) as nc, nc.subscribe("a", max_messages=number) as messages:
            await nc.flush()
            server.peer.say(b"MSG a 1 1\r\nx\r\n" * number)
            assert [batch async for batch in messages.batches()] != []
            assert (messages.delivered, messages.dropped) == (number, 0)
        assert watch.all(SlowConsumerDetected) == []


async def test_reader_that_pauses_the_server_gets_everything() -> None:
    number = 50_000
    async with (
        WebSocketServer() as server,
        natsproto.connect(server.url) as nc,
        nc.subscribe("a", max_messages=number, pending_msgs_limit=100, slow_policy="pause") as messages,
    ):
        await nc.flush()
        server.peer.say(b"MSG a 1 1\r\nx\r\n" * number)
        assert sum([1 async for _ in messages]) == number
        assert messages.dropped == 0


async def test_client_that_pauses_the_server_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 60)
    async with WebSocketServer() as server:
        nc = await natsproto.connect(server.url)
        messages = nc.subscribe("a", pending_msgs_limit=100, slow_policy="pause")
        await nc.flush()
        server.peer.say(b"MSG a 1 1\r\nx\r\n" * 50_000)
        await messages.next(timeout=5)
        started = asyncio.get_running_loop().time()
        await nc.close()
        assert asyncio.get_running_loop().time() - started < 10
        assert server.peer.goodbye is not None


async def test_frame_that_comes_slowly_is_a_sign_of_life() -> None:
    payload = b"x" * 2_000
    message = b"MSG a 1 2000\r\n" + payload + b"\r\n"
    frame = b"\x82\x7e" + len(message).to_bytes(2) + message
    pieces = [frame[at : at + 100] for at in range(0, len(frame), 100)]
    async with WebSocketServer() as server:
        watch = Watch()
        async with (
            natsproto.connect(server.url, ping_interval=0.2, on_event=watch, allow_reconnect=False) as nc,
            nc.subscribe("a") as messages,
        ):
            await nc.flush()
            server.mute = True  # no PONG gets through while the frame is on its way
            loop = asyncio.get_running_loop()
            for at, piece in enumerate(pieces):
                loop.call_later(at * 0.06, server.peer.raw, piece)
            assert (await messages.next(timeout=5)).data == payload
            server.mute = False
        assert watch.all(Disconnected) == []


# ---------------------------------------------------------------- the end


def test_close_says_goodbye_and_waits_for_the_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 60)
        async with WebSocketServer() as server:
            nc = await natsproto.connect(server.url)
            await nc.publish("a", b"last words")
            started = asyncio.get_running_loop().time()
            await nc.close()
            assert asyncio.get_running_loop().time() - started < 10
            await server.peer.gone.wait()
            assert server.peer.goodbye is not None
            assert server.peer.goodbye.code == 1000
            assert server.peer.said.endswith(b"PUB a 10\r\nlast words\r\n")

    run(body())


@pytest.mark.slow
async def test_close_does_not_wait_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 0.3)
    async with run_server(websocket=True) as server:
        nc = await natsproto.connect(server.websocket_url)
        server.freeze()
        started = asyncio.get_running_loop().time()
        await nc.close()
        assert 0.29 < asyncio.get_running_loop().time() - started < 10
        server.thaw()


def test_close_of_an_aborted_connection(run: Run) -> None:
    async def body() -> None:
        async with run_server(websocket=True) as server:
            watch = Watch()
            nc = await natsproto.connect(
                server.websocket_url, ping_interval=0.1, outbox_limit=64 << 20, allow_reconnect=False, on_event=watch
            )
            server.freeze()
            for _ in range(300):  # more than the kernel takes: what is left waits in the outbox
                nc.publish_nowait("a", bytes(100_000))
            started = asyncio.get_running_loop().time()
            await nc.close()
            assert asyncio.get_running_loop().time() - started < 10
            server.thaw()

    run(body())


def test_publish_behind_the_server_close_frame(run: Run) -> None:
    """It stands behind messages that readers must have first."""

    async def body() -> None:
        watch = Watch()
        async with (
            WebSocketServer() as server,
            natsproto.connect(server.url, on_event=watch) as nc,
            nc.subscribe("a") as messages,
        ):
            await nc.flush()
            server.peer.say(b"MSG a 1 1\r\nx\r\n" * 60_000)
            server.peer.close(1001, "Server Shutdown")
            await messages.next(timeout=5)
            while nc.is_connected:
                await nc.publish("b")
                await asyncio.sleep(0)
            assert (await watch.until(Disconnected)).in_flight > 0

    run(body())


@pytest.mark.parametrize("stays", [False, True])
async def test_close_code_and_reason_are_reported(stays: bool) -> None:
    """Also of a server that says goodbye and never closes the socket."""
    async with WebSocketServer(stays=stays) as server:
        watch = Watch()
        async with natsproto.connect(server.url, on_event=watch):
            server.peer.close(1008, "not at night")
            assert "WebSocket closed with 1008 not at night" in str((await watch.until(Disconnected)).cause)
            await watch.until(Reconnected)


async def test_messages_before_the_close_frame_are_delivered() -> None:
    async with (
        WebSocketServer() as server,
        natsproto.connect(server.url) as nc,
        nc.subscribe("a", max_messages=100_000) as messages,
    ):
        await nc.flush()
        server.peer.say(b"MSG a 1 1\r\nx\r\n" * 100_000)
        server.peer.close(1001, "Server Shutdown")
        assert sum([1 async for _ in messages]) == 100_000


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 10,
        b"\x82\xff" + bytes(12),
        b"\x82\x7f" + (1 << 62).to_bytes(8),
        b"\x80\x01x",
        b"INFO {}\r\n" * 20,
        b"\x89\x7e\xff\xff" + bytes(70_000),
    ],
    ids=["reserved bits", "masked", "enormous", "stray continuation", "plain NATS", "long ping"],
)
async def test_peer_that_breaks_the_framing_is_left(raw: bytes) -> None:
    async with WebSocketServer(stays=True) as server:
        watch = Watch()
        async with natsproto.connect(server.url, on_event=watch):
            server.peer.raw(raw)
            cause = (await watch.until(Disconnected)).cause
            assert isinstance(cause, RemoteProtocolError)
            assert "not WebSocket" in str(cause)
            await watch.until(Reconnected)


# ---------------------------------------------------------------- peers that are something else


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (HTTPStatus.FORBIDDEN, "HTTP 403"),
        (HTTPStatus.UNAUTHORIZED, "HTTP 401"),
        (HTTPStatus.NOT_FOUND, "HTTP 404"),
        (HTTPStatus.FOUND, "HTTP 302"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "HTTP 503"),
        (HTTPStatus.OK, "HTTP 200"),
    ],
)
def test_refused_upgrade_is_worded(run: Run, status: HTTPStatus, words: str) -> None:
    async def body() -> None:
        async with WebSocketServer(status=status) as server:
            cause = await cause_of(server.url)
        assert isinstance(cause, ConnectionLost)
        assert "the WebSocket handshake was refused" in str(cause)
        assert words in str(cause)

    run(body())


@pytest.mark.parametrize(
    "answer",
    [
        b"INFO {}\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: d3Jvbmc=\r\n\r\n",
        b"HTTP/1.1 " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000,
        bytes(range(256)) * 40,
    ],
    ids=["NATS", "SSH", "bare 101", "no key", "wrong key", "endless line", "endless headers", "garbage"],
)
async def test_peer_that_is_no_websocket_server_is_worded(answer: bytes) -> None:
    async with WebSocketServer(answer=answer) as server:
        cause = await cause_of(server.url, connect_timeout=2)
    assert isinstance(cause, ConnectionLost)
    assert "the WebSocket handshake was refused" in str(cause)


async def test_real_server_on_the_wrong_port_is_worded(ca: Authority, tls: ServerTls) -> None:
    async with run_server(websocket=True) as plain, run_server(websocket=True, tls=tls) as encrypted:
        assert "handshake was refused" in str(await cause_of(f"ws://127.0.0.1:{plain.port}"))
        assert "handshake was refused" in str(await cause_of(encrypted.websocket_url.replace("wss", "ws")))
        swapped = await cause_of(plain.websocket_url.replace("ws", "wss"), tls=ca.client())
        assert isinstance(swapped, TlsFailed)
        assert "remove tls_first (or wss)" in str(swapped)
        unasked = plain.websocket_url.replace("ws", "nats")
        silent = str(await cause_of(unasked, connect_timeout=1.5))
        assert "this may not be a NATS client port" in silent


@pytest.mark.parametrize("stage", ["before the answer", "before INFO"])
async def test_peer_that_is_silent_ends_at_the_timeout(stage: str) -> None:
    answer = b"" if stage == "before the answer" else None
    async with WebSocketServer(answer=answer, greets=False) as server:
        started = asyncio.get_running_loop().time()
        cause = await cause_of(server.url, connect_timeout=1.5)
        assert asyncio.get_running_loop().time() - started < 10
    assert isinstance(cause, RequestTimeout)
    assert ("WebSocket handshake" if answer == b"" else "waiting for INFO") in str(cause)


async def test_peer_that_hangs_up_in_the_handshake_is_worded() -> None:
    async with WebSocketServer(answer=b"") as server:
        connecting = asyncio.create_task(cause_of(server.url))
        await server.until(lambda: bool(server.peers))
        server.peer.abort()
        cause = await connecting
    assert isinstance(cause, ConnectionLost)
    assert "WebSocket handshake" in str(cause)


async def test_wss_verifies_like_tls(ca: Authority, tls: ServerTls, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with run_server(websocket=True, tls=tls) as server:
        cause = await cause_of(server.websocket_url, tls=stranger.client())
        assert isinstance(cause, TlsFailed)
        assert "not signed by a trusted CA" in str(cause)
        assert "for another host" in str(await cause_of(server.websocket_url, tls=ca.client(), tls_hostname="other"))


async def test_cancelled_connect_leaves_nothing_behind() -> None:
    async with WebSocketServer(answer=b"") as server:
        connecting = asyncio.create_task(cause_of(server.url))
        await server.until(lambda: bool(server.peers))
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        async with asyncio.timeout(5):
            await server.peer.gone.wait()
