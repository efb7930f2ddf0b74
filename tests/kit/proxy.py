"""A loopback proxy that breaks what passes through it, at a chosen byte.

Owns the bytes between a client and any TCP server, and every fault a network can have: an end (FIN) or a
reset (RST), at once or at byte N; a half-open link that forwards nothing and tells nobody; delay; one-byte
pieces; a flipped byte; inserted bytes; a refused connection. Knows nothing of the protocol it carries.

Randomness is passed in, so that a run can be repeated. Byte counts are per link and direction, from 0, and
count what the source said (inserted bytes don't count).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

__all__ = ["Direction", "End", "FaultProxy", "Link"]

PIECE = 64 * 1024


class Direction(enum.Enum):
    """Which way the bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class End(enum.Enum):
    """How a link ends: in an orderly way, or as after a crash (bytes on their way are lost)."""

    FIN = "fin"
    RST = "rst"


@dataclass(frozen=True, slots=True)
class _Fault:
    """Something that happens once, when byte ``at`` of ``direction`` comes by."""

    direction: Direction
    at: int
    end: End | None = None
    flip: int = 0
    insert: bytes = b""


class Link:
    """One client connection through the proxy.

    ``seen`` holds what each source said, ``passed`` how many of those bytes were forwarded; ``over`` is set when
    both sockets are closed.
    """

    def __init__(
        self,
        proxy: FaultProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy = proxy
        self.seen = {direction: bytearray() for direction in Direction}
        self.passed = dict.fromkeys(Direction, 0)
        self.over = asyncio.Event()
        self._from = {Direction.TO_SERVER: client[0], Direction.TO_CLIENT: server[0]}
        self._to = {Direction.TO_SERVER: server[1], Direction.TO_CLIENT: client[1]}
        self._finned = False

    async def run(self) -> None:
        """Carry both directions until both have ended."""
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
        """End both sides now. After a FIN what they still say is read and thrown away until they end too."""
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
        """Say ``data`` to the receiver of that direction now, between two pieces."""
        self._to[direction].write(data)

    async def _pump(self, direction: Direction) -> None:
        source, sink, seen = self._from[direction], self._to[direction], self.seen[direction]
        try:
            while True:
                await self.proxy._open[direction].wait()
                piece = await source.read(PIECE)
                await self._hold()
                await self.proxy._open[direction].wait()
                if not piece:
                    break
                if self.proxy.record:
                    seen += piece
                if not self._finned:
                    await self._forward(direction, piece)
            if not self._finned and not sink.is_closing():
                sink.write_eof()
        except OSError:
            # One side is gone (ENOTCONN is no ConnectionError); the other learns it in the same way.
            self.cut(End.RST)

    async def _hold(self) -> None:
        delay = self.proxy._delay + self.proxy._jitter * self.proxy.rng.random()
        if delay:
            await asyncio.sleep(delay)

    async def _forward(self, direction: Direction, piece: bytes) -> None:
        while piece and not self._finned:
            fault = self.proxy._next_fault(direction, self.passed[direction], len(piece))
            clean = len(piece) if fault is None else fault.at - self.passed[direction]
            await self._write(direction, piece[:clean])
            piece = piece[clean:]
            if fault is None:
                continue
            if fault.end is not None:
                self.cut(fault.end)
                return
            if fault.insert:
                self._to[direction].write(fault.insert)
            if fault.flip:
                self._to[direction].write(bytes([piece[0] ^ fault.flip]))
                self.passed[direction] += 1
                piece = piece[1:]

    async def _write(self, direction: Direction, data: bytes) -> None:
        sink = self._to[direction]
        size = self.proxy._chop or len(data) or 1
        for at in range(0, len(data), size):
            sink.write(data[at : at + size])
            self.passed[direction] += len(data[at : at + size])
            await sink.drain()
            if self.proxy._chop:
                # A turn of the loop between two pieces, and TCP_NODELAY: they arrive as separate segments.
                await asyncio.sleep(0)


class FaultProxy:
    """The proxy. ``async with FaultProxy(host, port) as proxy``, then connect to ``proxy.host, proxy.port``.

    ``accepted`` counts connections ever taken, ``links`` holds the living ones, ``history`` all. ``rng`` decides
    the jitter of delays. ``receive_buffer`` limits the kernel's buffer on the client's side, in bytes, so that a
    stall is felt by the client's own write buffer soon.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        rng: random.Random | None = None,
        receive_buffer: int | None = None,
        record: bool = True,
    ) -> None:
        self.target = (target_host, target_port)
        self.rng = rng or random.Random(0)
        self.record = record
        self.host, self.port = "127.0.0.1", 0
        self.accepted = 0
        self.links: list[Link] = []
        self.history: list[Link] = []
        self._receive_buffer = receive_buffer
        self._faults: list[_Fault] = []
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._delay = self._jitter = 0.0
        self._chop: int | None = None
        self._news = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self.heal()

    @property
    def url(self) -> str:
        """Where it listens, as a NATS client wants it."""
        return f"nats://{self.host}:{self.port}"

    @property
    def link(self) -> Link:
        """The newest link."""
        assert self.history, "nobody has connected yet"
        return self.history[-1]

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        await self.allow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Stop listening: new connections are refused by the kernel. Links that exist stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def allow(self) -> None:
        """Listen (again), on the same port."""
        if self._listener is None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.bind((self.host, self.port))
            self._listener = await asyncio.start_server(self._accept, sock=sock, limit=PIECE)
            self.port = sock.getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._over:  # it came in the moment of the end
            writer.transport.abort()
            return
        self.accepted += 1
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._on_carried)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may be cancelled before it has begun

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(*self.target, limit=PIECE)
        except BaseException as exc:
            writer.transport.abort()
            if isinstance(exc, OSError):
                return  # the target refuses: so do we, as far as a proxy can
            raise
        link = Link(self, (reader, writer), server)
        self.links.append(link)
        self.history.append(link)
        self._news.set()
        try:
            await link.run()
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
        """Wait until ``enough()`` is true; asked again whenever a link comes or goes."""
        while not enough():
            self._news.clear()
            await self._news.wait()

    # ------------------------------------------------------------ faults

    def cut(self, end: End = End.FIN) -> None:
        """End every living link now."""
        for link in list(self.links):
            link.cut(end)

    def cut_at(self, direction: Direction, at: int, end: End = End.FIN) -> None:
        """End the next link that comes so far, right after exactly ``at`` bytes went that way. Once.

        0 ends it when the first byte comes by, and lets none pass.
        """
        self._faults.append(_Fault(direction, at, end=end))

    def corrupt_at(self, direction: Direction, at: int, flip: int = 0xFF) -> None:
        """Flip these bits of byte ``at`` on the next link that comes to it. Once."""
        self._faults.append(_Fault(direction, at, flip=flip))

    def inject_at(self, direction: Direction, at: int, data: bytes) -> None:
        """Insert ``data`` before byte ``at`` on the next link that comes to it. Once."""
        self._faults.append(_Fault(direction, at, insert=data))

    def inject(self, direction: Direction, data: bytes) -> None:
        """Say ``data`` now on the newest link."""
        self.link.inject(direction, data)

    def spare(self) -> None:
        """Forget the cuts, flips and insertions that have not come yet."""
        self._faults.clear()

    def stall(self, *directions: Direction) -> None:
        """Forward nothing that way (both, unless named), and don't tell: ends are not passed on either.

        New connections are taken and get nothing: a black hole.
        """
        for direction in directions or Direction:
            self._open[direction].clear()

    def heal(self) -> None:
        """Undo stall(): what was held back is forwarded."""
        for gate in self._open.values():
            gate.set()

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold every piece back for ``seconds`` and up to ``jitter`` more; 0 ends it."""
        self._delay, self._jitter = seconds, jitter

    def chop(self, size: int | None = 1) -> None:
        """Forward in pieces of ``size`` bytes; None ends it."""
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
