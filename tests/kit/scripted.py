"""A NATS server small enough to lie on purpose.

Owns its own reader and its own idea of the protocol, strict about what a client may send, so that natsproto
is never tested with itself. Each connection follows a Behaviour: what it says first, whether it answers, how
slowly, whether it delivers what is published. The test adds to that by hand: deliver, err, ping, raw bytes, an
orderly end, a reset. Knows nothing of JetStream, accounts or clusters: the real server does that better.

Serves real loopback sockets (``async with ScriptedServer() as server``) and, through ``accept``, the peers of
a MemoryNetwork; the second needs no time and no descriptor, so it goes with the virtual clock.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType, TracebackType
from typing import NamedTuple, Protocol, Self

from tests.kit.memory import MemoryPeer

__all__ = ["INFO", "Behaviour", "ClientMisbehaved", "Op", "ScriptedConnection", "ScriptedServer", "info_line"]

Headers = Sequence[tuple[str, str]]

INFO: Mapping[str, object] = {
    "server_id": "NSCRIPTED",
    "server_name": "scripted",
    "version": "2.15.1",
    "api_lvl": 5,
    "proto": 1,
    "host": "127.0.0.1",
    "port": 4222,
    "headers": True,
    "max_payload": 1048576,
    "client_id": 1,
    "client_ip": "127.0.0.1",
}
"""What the server says of itself unless told otherwise; an override of None removes a field."""

ENDED = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)


class ClientMisbehaved(Exception):
    """The client broke the protocol; ``line`` is where."""

    def __init__(self, rule: str, line: bytes) -> None:
        self.rule, self.line = rule, line
        super().__init__(f"{rule}: {line[:200]!r}")


class Op(NamedTuple):
    """One thing a client said. ``headers`` is the raw header block of an HPUB."""

    name: str
    args: tuple[str, ...]
    payload: bytes = b""
    headers: bytes = b""
    connection: int = 0


class _Wire(Protocol):
    async def read_some(self) -> bytes: ...
    def send(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    def reset(self) -> None: ...


class _SocketWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read_some(self) -> bytes:
        return await self._reader.read(65536)

    def send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def start_tls(self, context: ssl.SSLContext) -> None:
        await self._writer.start_tls(context)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    def reset(self) -> None:
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one connection is treated.

    ``greeting`` is said at accept: a mapping overrides fields of INFO, bytes are said as they are, an iterable of
    bytes piece by piece with back-pressure, None says nothing. ``first_ping`` replaces the PONG that answers the
    handshake's PING. ``delay`` holds back every answer, in seconds. ``refuse`` answers CONNECT with this -ERR
    text and ends the connection. ``route`` delivers what is published, and answers 503 where nobody listens.
    ``hang_up`` ends the connection after the greeting or ``first_ping`` was said. ``tls`` upgrades after the
    greeting (``tls_first``: before it); sockets only. ``lenient`` takes repeated spaces in a command as the real
    server does; natsproto's own have one.
    """

    greeting: Mapping[str, object] | Iterable[bytes] | bytes | None = field(default_factory=dict)
    first_ping: Iterable[bytes] | bytes | None = None
    answer_ping: bool = True
    delay: float = 0.0
    refuse: str | None = None
    route: bool = True
    hang_up: bool = False
    tls: ssl.SSLContext | None = None
    tls_first: bool = False
    lenient: bool = False


@dataclass(slots=True)
class _Interest:
    tokens: tuple[str, ...]
    queue: str
    left: int | None = None


class ScriptedConnection:
    """The server's side of one client connection. ``connect`` is the client's CONNECT object once it came."""

    def __init__(self, server: ScriptedServer, wire: _Wire, number: int, behaviour: Behaviour) -> None:
        self.server, self.number, self.behaviour = server, number, behaviour
        self.connect: dict[str, object] = {}
        self.ended = asyncio.Event()
        self.ready = asyncio.Event()
        self.interest: dict[str, _Interest] = {}
        self._wire = wire
        self._buffer = bytearray()
        self._handshaken = False

    # ------------------------------------------------------------ saying

    def send(self, raw: bytes) -> None:
        """Say these bytes, whatever they are."""
        self._wire.send(raw)

    async def play(self, pieces: Iterable[bytes]) -> bool:
        """Say the pieces one by one, never ahead of the client; False if the client left before the end."""
        for piece in pieces:
            if self.ended.is_set():
                return False
            try:
                self._wire.send(piece)
                await self._wire.drain()
            except ENDED:
                return False
            await asyncio.sleep(0)
        return not self.ended.is_set()

    def info(self, **override: object) -> None:
        """Say INFO with these fields overridden."""
        self.send(info_line({**self.server.identity(), **override}))

    def deliver(
        self,
        sid: str | int,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Headers | bytes | None = None,
    ) -> None:
        """Say MSG, or HMSG when there are headers (pairs, or a raw block with its blank line)."""
        middle = f"{subject} {sid}{' ' + reply if reply else ''}"
        if headers is None:
            self.send(f"MSG {middle} {len(payload)}\r\n".encode() + payload + b"\r\n")
            return
        block = headers if isinstance(headers, bytes) else header_block(headers)
        sizes = f"{len(block)} {len(block) + len(payload)}"
        self.send(f"HMSG {middle} {sizes}\r\n".encode() + block + payload + b"\r\n")

    def err(self, text: str) -> None:
        """Say -ERR with the text in quotes."""
        self.send(f"-ERR '{text}'\r\n".encode())

    def ping(self) -> None:
        """Say PING."""
        self.send(b"PING\r\n")

    def pong(self) -> None:
        """Say PONG."""
        self.send(b"PONG\r\n")

    def close(self) -> None:
        """End in an orderly way (FIN)."""
        self._wire.close()

    def reset(self) -> None:
        """End as a crashed machine does (RST)."""
        self._wire.reset()

    # ------------------------------------------------------------ hearing

    async def serve(self) -> None:
        """Follow the behaviour until either side ends. A protocol error of the client is kept in ``faults``."""
        try:
            await self._greet()
            while (op := await self._read_op()) is not None:
                self.server._heard(op)
                await self._answer(op)
        except ClientMisbehaved as exc:
            self.server.faults.append(exc)
            self.err("Unknown Protocol Operation")
        except ENDED:
            pass  # the client is gone; what it said is in the record
        finally:
            self.interest.clear()
            self.ended.set()
            self._wire.close()

    async def _greet(self) -> None:
        behaviour = self.behaviour
        if behaviour.tls is not None and behaviour.tls_first:
            await self._upgrade(behaviour.tls)
        greeting = behaviour.greeting
        if isinstance(greeting, Mapping):
            required = behaviour.tls is not None and not behaviour.tls_first
            fields = {"tls_required": True} if required else {}
            self.send(info_line({**self.server.identity(), **fields, **greeting}))
        elif greeting is not None:
            await self._say(greeting)
        if behaviour.tls is not None and not behaviour.tls_first:
            await self._upgrade(behaviour.tls)
        if behaviour.hang_up and behaviour.first_ping is None:
            self.close()

    async def _upgrade(self, context: ssl.SSLContext) -> None:
        assert isinstance(self._wire, _SocketWire), "TLS needs a real socket"
        await self._wire.start_tls(context)

    async def _say(self, what: Iterable[bytes] | bytes) -> None:
        if isinstance(what, bytes):
            self.send(what)
        else:
            await self.play(what)

    async def _line(self) -> bytes | None:
        looked = 0
        while (end := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            if not await self._fill():
                if self._buffer:
                    raise ClientMisbehaved("ended in the middle of a line", bytes(self._buffer))
                return None
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        if not line.endswith(b"\r\n"):
            raise ClientMisbehaved("a line must end with CR LF", line)
        if b"\r" in line[:-2] or b"\x00" in line:
            raise ClientMisbehaved("CR or NUL inside a line", line)
        if len(line) > 4096 and not line.startswith(b"CONNECT"):
            raise ClientMisbehaved("a control line is longer than 4096 bytes", line)
        return line[:-2]

    async def _fill(self) -> bool:
        data = await self._wire.read_some()
        self._buffer += data
        return bool(data)

    async def _body(self, size: int, line: bytes) -> bytes:
        while len(self._buffer) < size + 2:
            if not await self._fill():
                raise ClientMisbehaved("ended in the middle of a payload", line)
        body, end = bytes(self._buffer[:size]), self._buffer[size : size + 2]
        del self._buffer[: size + 2]
        if end != b"\r\n":
            raise ClientMisbehaved("a payload must be followed by CR LF", line)
        return body

    async def _read_op(self) -> Op | None:
        line = await self._line()
        if line is None:
            return None
        name, _, rest = line.partition(b" ")
        try:
            verb, text = name.decode("ascii"), rest.decode()
        except UnicodeDecodeError:
            raise ClientMisbehaved("not UTF-8", line) from None
        if self.behaviour.lenient and verb != "CONNECT":
            text = " ".join(text.split())
        args = (text,) if verb == "CONNECT" else tuple(text.split(" ")) if text else ()
        if "" in args:
            raise ClientMisbehaved("an empty argument", line)
        low, high = _ARGUMENTS.get(verb, (-1, -1))
        if not low <= len(args) <= high:
            raise ClientMisbehaved("an unknown verb, or a wrong number of arguments", line)
        if verb == "PUB":
            return Op(verb, args[:-1], await self._body(_number(args[-1], line), line), b"", self.number)
        if verb == "HPUB":
            head, total = _number(args[-2], line), _number(args[-1], line)
            if head > total:
                raise ClientMisbehaved("headers longer than the message", line)
            body = await self._body(total, line)
            block = body[:head]
            if not block.startswith(b"NATS/1.0") or not block.endswith(b"\r\n\r\n"):
                raise ClientMisbehaved("a header block must begin with NATS/1.0, end with a blank line", block)
            return Op(verb, args[:-2], body[head:], block, self.number)
        return Op(verb, args, b"", b"", self.number)

    async def _answer(self, op: Op) -> None:
        if self.behaviour.delay:
            await asyncio.sleep(self.behaviour.delay)
        if op.name == "CONNECT":
            self._take_connect(op)
        elif op.name == "PING":
            await self._take_ping()
        elif op.name == "SUB":
            queue = op.args[1] if len(op.args) == 3 else ""
            self.interest.setdefault(op.args[-1], _Interest(tuple(op.args[0].split(".")), queue))
        elif op.name == "UNSUB":
            self._take_unsub(op)
        elif op.name in {"PUB", "HPUB"} and self.behaviour.route:
            self.server._route(op, self)
        if self.connect.get("verbose") and op.name not in {"PING", "PONG"}:
            self.send(b"+OK\r\n")

    def _take_connect(self, op: Op) -> None:
        try:
            fields = json.loads(op.args[0])
        except ValueError:
            raise ClientMisbehaved("CONNECT is not JSON", op.args[0].encode()) from None
        if not isinstance(fields, dict):
            raise ClientMisbehaved("CONNECT is not an object", op.args[0].encode())
        self.connect = fields
        if self.behaviour.refuse is not None:
            self.err(self.behaviour.refuse)
            self.close()

    async def _take_ping(self) -> None:
        first, self._handshaken = not self._handshaken, True
        if first and self.behaviour.first_ping is not None:
            await self._say(self.behaviour.first_ping)
            if self.behaviour.hang_up:
                self.close()
        elif self.behaviour.answer_ping:
            self.pong()
        if first:
            self.ready.set()

    def _take_unsub(self, op: Op) -> None:
        interest = self.interest.get(op.args[0])
        if interest is not None and len(op.args) == 2:
            interest.left = int(op.args[1])
        else:
            self.interest.pop(op.args[0], None)


_ARGUMENTS = {
    "CONNECT": (1, 1),
    "PING": (0, 0),
    "PONG": (0, 0),
    "SUB": (2, 3),
    "UNSUB": (1, 2),
    "PUB": (2, 3),
    "HPUB": (3, 4),
}


class ScriptedServer:
    """The server. The n-th connection gets the n-th behaviour; the last one is for all that follow.

    ``ops`` is everything any client said, in order; ``faults`` what clients did wrong; ``connections`` every
    connection ever made. ``behaviours`` may be changed at any time.
    """

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours) or [Behaviour()]
        self.ops: list[Op] = []
        self.faults: list[ClientMisbehaved] = []
        self.connections: list[ScriptedConnection] = []
        self.host, self.port = "127.0.0.1", 4222
        self._unclaimed: list[Op] = []
        self._news = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[_SocketWire] = []

    @property
    def url(self) -> str:
        """Where it listens, as a client wants it."""
        return f"nats://{self.host}:{self.port}"

    @property
    def current(self) -> ScriptedConnection:
        """The newest connection."""
        assert self.connections, "nobody has connected yet"
        return self.connections[-1]

    def identity(self) -> dict[str, object]:
        """The fields of its INFO."""
        return {**INFO, "host": self.host, "port": self.port, "client_id": len(self.connections)}

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept_socket, self.host, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End every connection and stop listening."""
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for wire in self._sockets:
            wire.abort()
        if self._listener is not None:
            await self._listener.wait_closed()

    def _accept_socket(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = _SocketWire(reader, writer)
        self._sockets.append(wire)
        task = asyncio.create_task(self._run(wire))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def accept(self, peer: MemoryPeer) -> None:
        """Serve one connection of a MemoryNetwork: ``network.listen(host, port, server.accept)``."""
        self.host, self.port = peer.host, peer.port
        task = asyncio.create_task(self._run(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, wire: _Wire) -> None:
        number = len(self.connections)
        behaviour = self.behaviours[min(number, len(self.behaviours) - 1)]
        connection = ScriptedConnection(self, wire, number, behaviour)
        self.connections.append(connection)
        self._news.set()
        await connection.serve()

    # ------------------------------------------------------------ watching

    def _heard(self, op: Op) -> None:
        self.ops.append(op)
        self._unclaimed.append(op)
        self._news.set()

    async def accepted(self, number: int = 0, *, timeout: float = 5.0) -> ScriptedConnection:
        """Wait until connection ``number`` (from 0) exists, and return it, whatever its state.

        AssertionError after ``timeout`` seconds.
        """
        return await self._connection(number, timeout, handshake=False)

    async def connection(self, number: int = 0, *, timeout: float = 5.0) -> ScriptedConnection:
        """Wait until connection ``number`` (from 0) finished its handshake, and return it.

        AssertionError after ``timeout`` seconds says what was heard.
        """
        return await self._connection(number, timeout, handshake=True)

    async def _connection(self, number: int, timeout: float, *, handshake: bool) -> ScriptedConnection:
        try:
            async with asyncio.timeout(timeout):
                while len(self.connections) <= number:
                    self._news.clear()
                    await self._news.wait()
                if handshake:
                    await self.connections[number].ready.wait()
        except TimeoutError:
            raise AssertionError(
                f"connection {number} was not {'ready' if handshake else 'made'} within {timeout:g} s; "
                f"{len(self.connections)} were made; heard: {self.ops}; faults: {self.faults}"
            ) from None
        return self.connections[number]

    async def expect(
        self, name: str, *args: str | EllipsisType, payload: bytes | None = None, timeout: float = 5.0
    ) -> Op:
        """Wait for the next op that fits and was not returned before.

        ``args`` are compared from the left, ``...`` fits anything; fewer args than the op has are fine.
        AssertionError after ``timeout`` seconds says what came instead, and what the client did wrong.
        """
        try:
            async with asyncio.timeout(timeout):
                while (op := self._claim(name, args, payload)) is None:
                    self._news.clear()
                    await self._news.wait()
                return op
        except TimeoutError:
            wanted = " ".join([name, *("..." if arg is ... else str(arg) for arg in args)])
            raise AssertionError(
                f"no {wanted} within {timeout:g} s; unclaimed: {self._unclaimed}; faults: {self.faults}"
            ) from None

    def _claim(self, name: str, args: Sequence[str | EllipsisType], payload: bytes | None) -> Op | None:
        for at, op in enumerate(self._unclaimed):
            if op.name != name or len(op.args) < len(args) or payload not in (None, op.payload):
                continue
            if all(want is ... or want == got for want, got in zip(args, op.args, strict=False)):
                return self._unclaimed.pop(at)
        return None

    def forget(self) -> None:
        """Drop what was heard and not yet expected, so that the next expect() sees news only."""
        self._unclaimed.clear()

    def count(self, name: str) -> int:
        """How many ops of that name were heard so far."""
        return sum(op.name == name for op in self.ops)

    # ------------------------------------------------------------ saying, on the newest connection

    def deliver(
        self,
        sid: str | int,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Headers | bytes | None = None,
    ) -> None:
        """ScriptedConnection.deliver on the newest connection."""
        self.current.deliver(sid, subject, payload, reply=reply, headers=headers)

    def send(self, raw: bytes) -> None:
        """ScriptedConnection.send on the newest connection."""
        self.current.send(raw)

    def err(self, text: str) -> None:
        """ScriptedConnection.err on the newest connection."""
        self.current.err(text)

    def info(self, **override: object) -> None:
        """ScriptedConnection.info on the newest connection."""
        self.current.info(**override)

    # ------------------------------------------------------------ routing

    def _route(self, op: Op, origin: ScriptedConnection) -> None:
        subject, reply = op.args[0], op.args[1] if len(op.args) > 1 else ""
        tokens, groups, heard = subject.split("."), set[str](), False
        for connection in self.connections:
            if connection is origin and connection.connect.get("echo") is False:
                continue
            for sid, interest in list(connection.interest.items()):
                if not _fits(interest.tokens, tokens) or interest.queue in groups:
                    continue
                if interest.queue:
                    groups.add(interest.queue)  # the first member always: there is no chance in a script
                heard = True
                connection.deliver(sid, subject, op.payload, reply=reply, headers=op.headers or None)
                if interest.left is not None:
                    interest.left -= 1
                    if interest.left <= 0:
                        connection.interest.pop(sid, None)
        if not heard and reply and origin.connect.get("no_responders"):
            for sid, interest in origin.interest.items():
                if _fits(interest.tokens, reply.split(".")):
                    origin.deliver(sid, reply, headers=b"NATS/1.0 503\r\n\r\n")
                    break


def info_line(fields: Mapping[str, object]) -> bytes:
    """INFO as a real server writes it: with a space before CRLF. Fields that are None are left out."""
    present = {key: value for key, value in fields.items() if value is not None}
    return b"INFO " + json.dumps(present).encode() + b" \r\n"


def header_block(headers: Headers) -> bytes:
    """A header block, blank line included."""
    return "".join(["NATS/1.0\r\n", *(f"{name}: {value}\r\n" for name, value in headers), "\r\n"]).encode()


def _number(text: str, line: bytes) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ClientMisbehaved("a size must be digits", line)
    return int(text)


def _fits(pattern: Sequence[str], tokens: Sequence[str]) -> bool:
    for at, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > at
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return False
    return len(pattern) == len(tokens)
