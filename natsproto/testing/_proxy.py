"""A proxy on the loopback interface that breaks what passes through it, at a chosen byte.

Owns the bytes between a client and any TCP server, and the faults of a network. It knows nothing of the protocol that
it carries. Randomness is passed in, so that a run can be repeated. Byte counts are per connection and direction, start
at 0, and count what the source sent; inserted bytes do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from natsproto import errors
from natsproto.testing._config import HOST, check_port

_MAX_CHUNK_BYTES = 64 * 1024
_CHUNKS_PER_SECOND = 20
"""The number of parts in which a second's bytes are forwarded when the bandwidth is limited."""


class Direction(enum.Enum):
    """Which way the bytes go."""

    TO_SERVER = "to the server"
    """The bytes that clients send."""
    TO_CLIENT = "to the client"
    """The bytes that the server sends."""


class End(enum.Enum):
    """How a link ends: in an orderly way, or as after a crash (bytes on their way are lost)."""

    FIN = "fin"
    """An orderly end: the other side reads everything sent before, then end of file."""
    RST = "rst"
    """A reset: bytes on their way are lost."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Something that happens once, when byte ``at`` of ``direction`` comes by."""

    direction: Direction
    at: int
    end: End | None = None
    flip: int = 0
    insert: bytes = b""


class ProxyLink:
    """A connection through a FaultProxy, created by it.

    ``seen`` holds what each source sent, if the proxy has ``record=True``; ``passed`` is how many bytes were forwarded;
    ``over`` is set when both sockets are closed.
    """

    def __init__(
        self,
        proxy: FaultProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy = proxy
        self.seen: dict[Direction, bytearray] = {direction: bytearray() for direction in Direction}
        self.passed: dict[Direction, int] = dict.fromkeys(Direction, 0)
        self.over: asyncio.Event = asyncio.Event()
        self._from = {Direction.TO_SERVER: client[0], Direction.TO_CLIENT: server[0]}
        self._to = {Direction.TO_SERVER: server[1], Direction.TO_CLIENT: client[1]}
        self._finned = False

    async def _run(self) -> None:
        """Forward both directions until both have ended."""
        pumps = [asyncio.create_task(self._pump(direction)) for direction in Direction]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            self.abort()
            await asyncio.gather(
                *pumps, *(writer.wait_closed() for writer in self._to.values()), return_exceptions=True
            )
            self.over.set()

    def cut(self, end: End = End.FIN) -> None:
        """End both sides now. After a FIN, what they still send is read and dropped until they end too.

        Args:
            end: How the connection ends: with FIN, or with RST as after a crash.
        """
        for writer in self._to.values():
            if end is End.RST and not writer.is_closing():
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if end is End.RST:
                writer.transport.abort()
            elif not writer.is_closing():
                self._finned = True
                with contextlib.suppress(OSError):  # it has ended on its own in this moment
                    writer.write_eof()

    def abort(self) -> None:
        """Close both sides without waiting for anything."""
        for writer in self._to.values():
            writer.transport.abort()

    def inject(self, direction: Direction, data: bytes) -> None:
        """Send ``data`` to the receiver of that direction now, between two chunks.

        Args:
            direction: Which way the bytes go.
            data: The bytes to add.
        """
        self._to[direction].write(data)

    async def _pump(self, direction: Direction) -> None:
        source, sink, seen = self._from[direction], self._to[direction], self.seen[direction]
        try:
            while True:
                await self.proxy._open[direction].wait()
                chunk = await source.read(_MAX_CHUNK_BYTES)
                await self._hold()
                await self.proxy._open[direction].wait()
                if not chunk:
                    break
                if self.proxy.record:
                    seen += chunk
                if not self._finned:
                    await self._forward(direction, chunk)
            if not self._finned and not sink.is_closing():
                sink.write_eof()
        except OSError:
            # One side has gone (ENOTCONN is no ConnectionError); the other one notices it in the same way.
            self.cut(End.RST)

    async def _hold(self) -> None:
        delay = self.proxy._delay + self.proxy._jitter * self.proxy.rng.random()
        if delay:
            await asyncio.sleep(delay)

    async def _forward(self, direction: Direction, chunk: bytes) -> None:
        while chunk and not self._finned:
            fault = self.proxy._next_fault(direction, self.passed[direction], len(chunk))
            clean = len(chunk) if fault is None else fault.at - self.passed[direction]
            await self._write(direction, chunk[:clean])
            chunk = chunk[clean:]
            if fault is None:
                continue
            if fault.end is not None:
                self.cut(fault.end)
                return
            if fault.insert:
                self._to[direction].write(fault.insert)
            if fault.flip:
                self._to[direction].write(bytes([chunk[0] ^ fault.flip]))
                self.passed[direction] += 1
                chunk = chunk[1:]

    async def _write(self, direction: Direction, data: bytes) -> None:
        sink, at = self._to[direction], 0
        while at < len(data):
            rate = self.proxy._bandwidth
            size = self.proxy._chop or (len(data) if rate is None else math.ceil(rate / _CHUNKS_PER_SECOND))
            part, at = data[at : at + size], at + size
            sink.write(part)
            self.passed[direction] += len(part)
            await sink.drain()
            if rate is not None:
                await asyncio.sleep(len(part) / rate)
            elif self.proxy._chop:
                # A turn of the loop between two chunks, and TCP_NODELAY: they arrive as separate segments.
                await asyncio.sleep(0)


class FaultProxy:
    """A TCP proxy on 127.0.0.1 with the faults of a network.

    ``async with FaultProxy(server.host, server.port) as proxy``, then connect to ``proxy.url``. Every fault acts on all
    connections and ends with ``heal()``. ``links`` are the open connections, ``history`` all of them, ``accepted`` is
    their number. ``port`` is the port to listen on (default: a free one). ``rng`` draws the jitter of delays (default:
    ``random.Random(0)``). ``receive_buffer`` limits the kernel's buffer on the client's side, in bytes, so that a
    client soon notices that nothing is read. ``record`` keeps all bytes in ``ProxyLink.seen``. Use it on one event loop
    only.

    Args:
        target_host: Where connections are forwarded to, such as ``server.host``.
        target_port: Where connections are forwarded to, such as ``server.port``.
        rng: Draws the jitter of delays; None: ``random.Random(0)``.
        port: The port to listen on; 0: a free one.
        receive_buffer: Bytes of the kernel's buffer on the client's side, so that a client soon notices that nothing is
            read; None: the system's.
        record: Keep what was sent in ``seen`` of each link.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        rng: random.Random | None = None,
        port: int = 0,
        receive_buffer: int | None = None,
        record: bool = False,
    ) -> None:
        check_port(port)
        self.target: tuple[str, int] = (target_host, target_port)
        self.rng: random.Random = rng or random.Random(0)  # noqa: S311  # no secret
        self.record = record
        self.host: str = HOST
        self.port: int = port
        self.accepted: int = 0
        self.links: list[ProxyLink] = []
        self.history: list[ProxyLink] = []
        self._receive_buffer = receive_buffer
        self._faults: list[_Fault] = []
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._delay = self._jitter = 0.0
        self._chop: int | None = None
        self._bandwidth: float | None = None
        self._cuts = 0
        self._news = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self.heal()

    @property
    def url(self) -> str:
        """The URL for NATS clients, ``nats://127.0.0.1:port``. It stays the same."""
        return f"nats://{self.host}:{self.port}"

    @property
    def link(self) -> ProxyLink:
        """The newest connection. LookupError before the first."""
        if not self.history:
            raise LookupError("no client has connected to the proxy yet")
        return self.history[-1]

    async def __aenter__(self) -> Self:
        await self.allow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the proxy and all its connections. Leaving the ``async with`` block does this."""
        listener = self._listener
        self._over = True
        self.refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if listener is not None:
            await listener.wait_closed()

    def refuse(self) -> None:
        """Stop listening, so that new connections are refused, until ``allow``. Existing ones stay; see ``cut``."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def allow(self) -> None:
        """Listen again on the same port."""
        if self._listener is None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.bind((self.host, self.port))
            self._listener = await asyncio.start_server(self._accept, sock=sock, limit=_MAX_CHUNK_BYTES)
            self.port = sock.getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._over:  # it came while the proxy was closed
            writer.transport.abort()
            return
        self.accepted += 1
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._on_carried)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may be cancelled before it has begun

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cuts = self._cuts
        try:
            server = await asyncio.open_connection(*self.target, limit=_MAX_CHUNK_BYTES)
        except BaseException as exc:
            writer.transport.abort()
            if isinstance(exc, OSError):
                return  # the target refuses: so does the proxy, as far as it can
            raise
        if self._cuts != cuts:  # cut() came while the connection was made
            writer.transport.abort()
            server[1].transport.abort()
            return
        link = ProxyLink(self, (reader, writer), server)
        self.links.append(link)
        self.history.append(link)
        self._news.set()
        try:
            await link._run()
        finally:
            self.links.remove(link)
            self._news.set()

    def _on_carried(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._news.set()

    @property
    def is_idle(self) -> bool:
        """True if there is no link, and none begins."""
        return not self._tasks

    async def wait(self, enough: Callable[[], bool]) -> None:
        """Wait until ``enough()`` is true. It is called whenever a connection begins or ends.

        Args:
            enough: Called whenever a connection begins or ends; True ends the waiting.
        """
        while not enough():
            self._news.clear()
            await self._news.wait()

    def cut(self, end: End = End.FIN) -> None:
        """End every connection now, those too that are being made. New ones are accepted; see ``refuse``.

        Args:
            end: How the connection ends: with FIN, or with RST as after a crash.
        """
        self._cuts += 1
        for link in list(self.links):
            link.cut(end)

    def cut_at(self, direction: Direction, at: int, end: End = End.FIN) -> None:
        """End the next connection that forwards byte ``at``, after exactly ``at`` bytes of that direction. Once.

        With 0, the first byte ends it and is not forwarded.

        Args:
            direction: Which way the bytes go.
            at: The position of the byte on the next connection, from 0.
            end: How the connection ends: with FIN, or with RST as after a crash.
        """
        self._faults.append(_Fault(direction, at, end=end))

    def corrupt_at(self, direction: Direction, at: int, flip: int = 0xFF) -> None:
        """Flip these bits of byte ``at``, on the next connection that forwards it. Once.

        Args:
            direction: Which way the bytes go.
            at: The position of the byte on the next connection, from 0.
            flip: The bits to flip in that byte.
        """
        self._faults.append(_Fault(direction, at, flip=flip))

    def inject_at(self, direction: Direction, at: int, data: bytes) -> None:
        """Insert ``data`` before byte ``at``, on the next connection that forwards it. Once.

        Args:
            direction: Which way the bytes go.
            at: The position of the byte on the next connection, from 0.
            data: The bytes to add.
        """
        self._faults.append(_Fault(direction, at, insert=data))

    def inject(self, direction: Direction, data: bytes) -> None:
        """Send ``data`` now, on the newest connection.

        Args:
            direction: Which way the bytes go.
            data: The bytes to add.
        """
        self.link.inject(direction, data)

    def stall(self, *directions: Direction) -> None:
        """Forward nothing in these directions (default: both), as on a half-open connection.

        Ends of connections are not forwarded either, and new connections are accepted and get nothing.

        Args:
            *directions: Which way nothing passes; none: both.
        """
        for direction in directions or Direction:
            self._open[direction].clear()

    def heal(self) -> None:
        """End all faults but ``refuse``, and forget those that wait for a byte. Delayed bytes are forwarded."""
        self._faults.clear()
        self._delay = self._jitter = 0.0
        self._chop = self._bandwidth = None
        for gate in self._open.values():
            gate.set()

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold every chunk (up to 64 KiB) back for ``seconds`` and up to ``jitter`` seconds more; 0 ends it.

        Args:
            seconds: Seconds to hold every chunk back; 0 ends it.
            jitter: Random seconds on top, at most this many.
        """
        self._delay, self._jitter = seconds, jitter

    def bandwidth(self, bytes_per_second: float | None) -> None:
        """Limit the bytes per second of each connection and direction; None ends it.

        ConfigError unless it is above 0.

        Args:
            bytes_per_second: The most bytes per second; None: no limit.
        """
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise errors.ConfigError("bytes_per_second", bytes_per_second, "give a number above 0, or stall()")
        self._bandwidth = bytes_per_second

    def chop(self, size: int | None = 1) -> None:
        """Forward in chunks of ``size`` bytes (default 1); None ends it.

        Args:
            size: Bytes of one chunk; None ends it.
        """
        self._chop = size

    def _next_fault(self, direction: Direction, offset: int, size: int) -> _Fault | None:
        # An end comes right after the last byte that may pass; the others need the byte they act upon.
        due = [
            f for f in self._faults if f.direction is direction and offset <= f.at < offset + size + (f.end is not None)
        ]
        if not due:
            return None
        fault = min(due, key=lambda f: f.at)
        self._faults.remove(fault)
        return fault
