"""The tools do what they say: each promise of the kit, against asyncio itself and an independent client."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from natsproto.testing import Direction, End, FaultProxy
from tests.kit.clock import Deadlock, TimeRanOut, advance, run_virtual, virtual_clock
from tests.kit.hostile import HOSTILE, HostileEnd
from tests.kit.memory import MemoryNetwork, MemoryPeer, MemoryTransport, PeerGone
from tests.kit.scripted import Behaviour, ScriptedServer

# ---------------------------------------------------------------- clock


def test_hours_pass_at_once_and_in_order() -> None:
    async def main() -> list[float]:
        loop, fired = asyncio.get_running_loop(), list[float]()
        began = loop.time()
        for delay in (7200.0, 30.0, 0.5, 3600.0):
            loop.call_later(delay, lambda: fired.append(round(loop.time() - began, 6)))
        await asyncio.sleep(7200)
        return fired

    real = time.monotonic()
    assert run_virtual(main) == [0.5, 30.0, 3600.0, 7200.0]
    assert time.monotonic() - real < 5


def test_endless_wait_names_the_waiting_task() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="wait_for_nothing"):
        run_virtual(wait_for_nothing)


def test_endless_periodic_timers_run_into_the_limit() -> None:
    async def ping_for_ever() -> None:
        while True:  # noqa: ASYNC110  (what a keep-alive does)
            await asyncio.sleep(120)

    with pytest.raises(TimeRanOut, match="ping_for_ever"):
        run_virtual(ping_for_ever, limit=10_000)


def test_virtual_time_waits_for_threads() -> None:
    async def main() -> str:
        async with asyncio.timeout(3600):
            return await asyncio.to_thread(lambda: "done")

    assert run_virtual(main) == "done"


def test_real_sockets_work_on_the_virtual_clock() -> None:
    async def main() -> bytes:
        async with _echo() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            async with asyncio.timeout(60):
                answer = await reader.readexactly(5)
            writer.close()
            await writer.wait_closed()
            return answer

    assert run_virtual(main) == b"hello"


@virtual_clock
async def test_decorator_keeps_fixtures_on_virtual_time(tmp_path: Path) -> None:
    assert tmp_path.is_absolute()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.get_running_loop().create_future()


# ---------------------------------------------------------------- memory


class CallbackTrace:
    """Writes down every callback, in order."""

    def __init__(self) -> None:
        self.trace: list[object] = []
        self.transport: asyncio.Transport | None = None
        self.keep_open = False
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.trace.append("made")

    def got(self, data: bytes) -> None:
        if self.trace and isinstance(self.trace[-1], bytes):
            self.trace[-1] += data
        else:
            self.trace.append(data)

    def eof_received(self) -> bool:
        self.trace.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.trace.append("pause")

    def resume_writing(self) -> None:
        self.trace.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.trace.append(("lost", type(exc)))
        self.lost.set()

    @property
    def wire(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport


class PlainProtocol(CallbackTrace, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.got(data)


class Buffered(CallbackTrace, asyncio.BufferedProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = bytearray(7)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got(bytes(self.buffer[:nbytes]))


Made = tuple[MemoryTransport, PlainProtocol | Buffered, MemoryPeer]
BOTH = pytest.mark.parametrize("kind", [PlainProtocol, Buffered])
Kind = Callable[[], PlainProtocol | Buffered]


async def _pair(kind: Kind) -> Made:
    network = MemoryNetwork()
    network.listen("memory", 1)
    transport, protocol = await network.connect(kind, "memory", 1)
    return transport, protocol, await network.peer()


@BOTH
@virtual_clock
async def test_bytes_go_both_ways_whatever_the_pieces(kind: Kind) -> None:
    transport, protocol, peer = await _pair(kind)
    transport.writelines([b"PING", b"\r\n"])
    assert await peer.read_until(b"\r\n") == b"PING\r\n"
    peer.send(b"a message longer than the buffer")
    peer.chop(1)
    peer.send(b" in pieces")
    await peer.drain()
    assert protocol.trace == ["made", b"a message longer than the buffer in pieces"]
    assert (bytes(peer.received), bytes(peer.sent)) == (b"PING\r\n", b"a message longer than the buffer in pieces")


@BOTH
@virtual_clock
async def test_a_paused_reader_gets_nothing_until_it_resumes(kind: Kind) -> None:
    transport, protocol, peer = await _pair(kind)
    transport.pause_reading()
    peer.send(b"abc")
    await advance(1)
    assert protocol.trace == ["made"]
    assert not transport.is_reading()
    transport.resume_reading()
    await peer.drain()
    assert protocol.trace == ["made", b"abc"]


@BOTH
@virtual_clock
async def test_stalled_peer_pauses_the_writer(kind: Kind) -> None:
    transport, protocol, peer = await _pair(kind)
    transport.set_write_buffer_limits(high=10, low=2)
    peer.stall(room=4)
    transport.write(b"x" * 14)
    assert transport.get_write_buffer_size() == 10
    assert protocol.trace == ["made"]
    transport.write(b"y")
    assert protocol.trace == ["made", "pause"]
    transport.close()
    await advance(1)
    assert not protocol.lost.is_set()
    peer.unstall()
    await protocol.lost.wait()
    assert protocol.trace == ["made", "pause", "resume", ("lost", type(None))]
    assert peer.received == b"x" * 14 + b"y"


@BOTH
@virtual_clock
async def test_abort_ends_stalled_connection_at_once(kind: Kind) -> None:
    transport, protocol, peer = await _pair(kind)
    peer.stall()
    transport.write(b"never")
    transport.abort()
    transport.write(b"after the end")
    await protocol.lost.wait()
    assert (transport.is_closing(), bytes(peer.received), peer.at_end) == (True, b"", True)
    with pytest.raises(PeerGone):
        await peer.read_exactly(1)


@BOTH
@virtual_clock
async def test_protocol_exception_ends_the_connection(kind: Kind) -> None:
    _, protocol, peer = await _pair(kind)
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def explode(data: bytes) -> None:
        raise KeyError("mine")

    protocol.got = explode  # type: ignore[method-assign]
    peer.send(b"x")
    await protocol.lost.wait()
    assert protocol.trace == ["made", ("lost", KeyError)]
    assert [type(context["exception"]) for context in reported] == [KeyError]


@virtual_clock
async def test_addresses_refuse_vanish_and_answer_as_set() -> None:
    network = MemoryNetwork()
    with pytest.raises(ConnectionRefusedError):
        await network.connect(PlainProtocol, "memory", 1)
    network.black_hole("memory", 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(300):
            await network.connect(PlainProtocol, "memory", 2)

    async def greet(peer: MemoryPeer) -> None:
        peer.send(b"hello " + await peer.read_until(b"\n"))

    network.listen("memory", 3, greet)
    transport, protocol = await network.connect(PlainProtocol, "memory", 3)
    transport.write(b"you\n")
    await advance(0.1)
    assert protocol.trace == ["made", b"hello you\n"]
    assert network.dialled == [("memory", 1), ("memory", 2), ("memory", 3)]


Ending = Callable[[CallbackTrace, Callable[[bytes], None], Callable[[], None], Callable[[], None]], None]


def _fin(client: CallbackTrace, send: Callable[[bytes], None], cut: Callable[[], None], _: Callable[[], None]) -> None:
    send(b"last words")
    cut()


def _rst(client: CallbackTrace, _: Callable[[bytes], None], __: Callable[[], None], reset: Callable[[], None]) -> None:
    reset()


def _own_close(client: CallbackTrace, *_: object) -> None:
    client.wire.write(b"bye")
    client.wire.close()
    client.wire.close()


def _own_abort(client: CallbackTrace, *_: object) -> None:
    client.wire.abort()


@BOTH
@pytest.mark.parametrize("ending", [_fin, _rst, _own_close, _own_abort])
async def test_memory_network_ends_like_sockets(kind: Kind, ending: Ending) -> None:
    _, remembered, peer = await _pair(kind)
    ending(remembered, peer.send, peer.cut, peer.reset)
    await remembered.lost.wait()

    server = ScriptedServer(Behaviour(greeting=None))
    async with server:
        _, real = await asyncio.get_running_loop().create_connection(kind, server.host, server.port)
        connection = await server.accepted()
        ending(real, connection.send, connection.close, connection.reset)
        await real.lost.wait()
    assert remembered.trace == real.trace


# ---------------------------------------------------------------- scripted server


async def test_scripted_server_serves_nats_py() -> None:
    async with ScriptedServer(Behaviour(lenient=True)) as server:
        nc = await nats.connect(server.url, allow_reconnect=False)
        sub = await nc.subscribe("orders.*")
        await nc.publish("orders.eu", b"42", headers={"Trace": "abc"})
        message = await sub.next_msg(timeout=5)
        assert (message.subject, message.data, message.headers) == ("orders.eu", b"42", {"Trace": "abc"})
        op = await server.expect("HPUB", "orders.eu", payload=b"42")
        assert op.headers == b"NATS/1.0\r\nTrace: abc\r\n\r\n"

        async def add(request: object) -> None:
            await request.respond(b"3")  # type: ignore[attr-defined]

        await nc.subscribe("svc.add", cb=add)
        assert (await nc.request("svc.add", b"1 2", timeout=5)).data == b"3"
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("svc.none", b"", timeout=5)

        sid = (await server.expect("SUB", "orders.*")).args[-1]
        server.deliver(sid, "orders.us", b"by hand", reply="back", headers=[("A", "1")])
        message = await sub.next_msg(timeout=5)
        assert (message.subject, message.reply, message.data) == ("orders.us", "back", b"by hand")
        await nc.close()
        assert server.faults == []


async def _speak(server: ScriptedServer, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(raw)
    heard = await reader.read()
    writer.close()
    await writer.wait_closed()
    return heard


@pytest.mark.parametrize(
    "raw",
    [
        b"PING\n",
        b"ping\r\n",
        b"SUB  a 1\r\n",
        b"PUB a +1\r\nx\r\n",
        b"PUB a 1\r\nxyz",
        b"CONNECT []\r\n",
        b"HPUB a 9 5\r\nabcde\r\n",
    ],
)
async def test_the_server_is_strict_with_clients(raw: bytes) -> None:
    async with ScriptedServer() as server:
        assert b"-ERR 'Unknown Protocol Operation'" in await _speak(server, raw)
        assert len(server.faults) == 1


async def test_each_connection_has_its_behaviour() -> None:
    async with ScriptedServer(
        Behaviour(greeting=b"garbage", hang_up=True),
        Behaviour(greeting={"max_payload": 7, "headers": None}, refuse="Authorization Violation"),
        Behaviour(first_ping=b"-ERR 'nothing'\r\n", hang_up=True),
    ) as server:
        assert await _speak(server, b"") == b"garbage"
        second = await _speak(server, b"CONNECT {}\r\n")
        assert b'"max_payload": 7' in second
        assert b'"headers"' not in second
        assert second.endswith(b"-ERR 'Authorization Violation'\r\n")
        for _ in range(2):
            assert (await _speak(server, b"CONNECT {}\r\nPING\r\n")).endswith(b"-ERR 'nothing'\r\n")


@virtual_clock
async def test_scripted_server_on_memory_network() -> None:
    network, server = MemoryNetwork(), ScriptedServer(Behaviour(delay=60))
    network.listen("a", 4222, server.accept)
    transport, protocol = await network.connect(PlainProtocol, "a", 4222)
    transport.write(b'CONNECT {"verbose":true}\r\nPING\r\n')
    began = asyncio.get_running_loop().time()
    connection = await server.connection(timeout=300)
    assert asyncio.get_running_loop().time() - began == pytest.approx(120)
    transport.write(b"SUB a 1\r\n")
    await server.expect("SUB", ..., "1", timeout=100)
    with pytest.raises(AssertionError, match="no UNSUB 1 within 2 s"):
        await server.expect("UNSUB", "1", timeout=2)
    connection.close()
    await protocol.lost.wait()
    text = protocol.trace[1]
    assert isinstance(text, bytes)
    assert text.endswith(b" \r\n+OK\r\nPONG\r\n")
    assert text.startswith(b"INFO {")
    await server.stop()


def _self_signed(where: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for a server at 127.0.0.1 and for a client that trusts it and nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "scripted")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (where / "server.pem").write_bytes(pem + secret)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(where / "server.pem")
    return serving, ssl.create_default_context(cadata=pem.decode())


async def test_tls_is_upgraded_behind_info(tmp_path: Path) -> None:
    serving, trusting = _self_signed(tmp_path)
    async with ScriptedServer(Behaviour(tls=serving, lenient=True)) as server:
        nc = await nats.connect(server.url, tls=trusting, tls_hostname="127.0.0.1", allow_reconnect=False)
        await nc.publish("over.tls", b"x")
        await nc.flush()
        await server.expect("PUB", "over.tls", payload=b"x")
        await nc.close()


# ---------------------------------------------------------------- proxy


@asynccontextmanager
async def _echo() -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # the client was reset, as the test wanted
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


class Client:
    """A plain socket through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self, count: int = -1) -> bytes:
        async with asyncio.timeout(5):
            return await (self.reader.read() if count < 0 else self.reader.readexactly(count))


@asynccontextmanager
async def _through_proxy(proxy: FaultProxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    async with _echo() as port, FaultProxy("127.0.0.1", port, rng=random.Random(1), record=True) as proxy:
        yield proxy


async def test_the_proxy_passes_and_records_everything(proxy: FaultProxy) -> None:
    data = random.Random(2).randbytes(300_000)
    async with _through_proxy(proxy) as client:
        client.writer.write(data)
        assert await client.read(len(data)) == data
        client.writer.write_eof()
        assert await client.read() == b""
    await proxy.wait(lambda: not proxy.links)
    assert proxy.link.seen == {Direction.TO_SERVER: data, Direction.TO_CLIENT: data}
    assert proxy.link.passed == {Direction.TO_SERVER: len(data), Direction.TO_CLIENT: len(data)}
    assert proxy.accepted == 1


@pytest.mark.parametrize("direction", list(Direction))
async def test_a_fin_lets_exactly_n_bytes_pass(proxy: FaultProxy, direction: Direction) -> None:
    proxy.cut_at(direction, 5, End.FIN)
    async with _through_proxy(proxy) as client:
        client.writer.write(b"0123456789")
        heard = await client.read()
    # Cut on the way to the server, the echo of the five bytes may or may not have come back before.
    assert heard == b"01234" if direction is Direction.TO_CLIENT else b"01234".startswith(heard)
    assert proxy.link.passed[direction] == 5


async def test_cut_happens_once_at_its_byte(proxy: FaultProxy) -> None:
    proxy.cut_at(Direction.TO_CLIENT, 3)
    async with _through_proxy(proxy) as client:
        client.writer.write(b"abc")
        assert await client.read() == b"abc"
    async with _through_proxy(proxy) as client:
        client.writer.write(b"abcdef")
        assert await client.read(6) == b"abcdef"


async def test_a_reset_is_felt_as_a_reset(proxy: FaultProxy) -> None:
    async with _through_proxy(proxy) as client:
        client.writer.write(b"x")
        assert await client.read(1) == b"x"
        proxy.cut(End.RST)
        with pytest.raises(ConnectionResetError):
            await client.read()


async def test_bytes_are_flipped_and_inserted_where_asked(proxy: FaultProxy) -> None:
    proxy.corrupt_at(Direction.TO_SERVER, 1, flip=0x20)
    proxy.inject_at(Direction.TO_CLIENT, 3, b"<new>")
    async with _through_proxy(proxy) as client:
        client.writer.write(b"abcde")
        assert await client.read(10) == b"aBc<new>de"
        proxy.inject(Direction.TO_CLIENT, b"more")
        assert await client.read(4) == b"more"


async def test_a_stall_holds_everything_back_and_heals(proxy: FaultProxy) -> None:
    async with _through_proxy(proxy) as client:
        client.writer.write(b"one")
        assert await client.read(3) == b"one"
        proxy.stall()
        client.writer.write(b"two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.read(1)
        assert proxy.link.passed[Direction.TO_SERVER] == 3
        proxy.heal()
        assert await client.read(3) == b"two"


async def test_pieces_of_one_byte_and_delays_lose_nothing(proxy: FaultProxy) -> None:
    proxy.chop(1)
    proxy.delay(0.001, jitter=0.001)
    async with _through_proxy(proxy) as client:
        client.writer.write(b"piecemeal" * 10)
        assert await client.read(90) == b"piecemeal" * 10


async def test_proxy_refuses_and_allows_connections(proxy: FaultProxy) -> None:
    port = proxy.port
    async with _through_proxy(proxy) as client:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(proxy.host, port)
        client.writer.write(b"still here")
        assert await client.read(10) == b"still here"
    await proxy.allow()
    async with _through_proxy(proxy) as client:
        client.writer.write(b"back")
        assert await client.read(4) == b"back"
    assert proxy.port == port


# ---------------------------------------------------------------- corpora


def test_the_hostile_corpus_is_large_named_and_judged() -> None:
    assert len(HOSTILE) >= 150
    assert [name for name, count in Counter(map(str, HOSTILE)).items() if count > 1] == []
    for hostile in HOSTILE:
        assert hostile.outcomes
        assert (HostileEnd.REFUSE in hostile.outcomes) <= (hostile.moment != "ready")
        # The same bytes at every attempt.
        assert next(hostile.chunks(b"7"), b"") == next(hostile.chunks(b"7"), b"")


async def test_a_hostile_greeting_is_said_at_every_attempt() -> None:
    hostile = next(one for one in HOSTILE if one.name == "HTTP error server")
    async with ScriptedServer(hostile.behaviour()) as server:
        for _ in range(2):
            assert await _speak(server, b"") == b"".join(hostile.chunks())
