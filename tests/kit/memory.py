"""A wire without a network: one asyncio transport for the client, one scripted peer for the test.

Owns the bytes on their way and the contract of ``asyncio.Transport``: ``connection_made`` before any data,
one delivery per turn of the loop, nothing while reading is paused, ``connection_lost`` exactly once and
through ``call_soon``, ``pause_writing`` above the high-water mark. Knows nothing of NATS and has no time of
its own, so it runs on a virtual clock.

What a real socket does and this one doesn't: merge two sends into one delivery. Ask for it by sending once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["MemoryNetwork", "MemoryPeer", "MemoryTransport", "PeerGone"]

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)
Arrival = Callable[["MemoryPeer"], Awaitable[None] | None]

SENT_KEPT = 1024 * 1024  # a test that floods a client measures the client's memory, not this record
RECEIVE_SIZE = 256 * 1024  # what one recv() of asyncio's selector transport takes at most


class PeerGone(ConnectionError):
    """The client's side ended before the bytes that were waited for came; ``seen`` are the ones that did."""

    def __init__(self, wanted: str, seen: bytes) -> None:
        self.wanted, self.seen = wanted, seen
        super().__init__(f"waited for {wanted}; the client closed after {seen[-200:]!r}")


class MemoryTransport(asyncio.Transport):
    """The client's end. Made by MemoryNetwork; behaves as asyncio's own socket transport does."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, object] | None = None,
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._protocol = protocol
        self.peer = MemoryPeer(self)
        self._incoming: deque[bytes] = deque()
        self._eof_incoming = False
        self._reset_incoming: BaseException | None = None
        self._delivery: asyncio.Handle | None = None
        self._reading = False
        self._paused = False
        self._outgoing = bytearray()
        self._eof_written = False
        self._closing = False
        self._lost = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._protocol_paused = False
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._start_reading)

    # ------------------------------------------------------------ reading

    def _start_reading(self) -> None:
        self._reading = True
        self._wake()

    def is_reading(self) -> bool:
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused = True

    def resume_reading(self) -> None:
        if not self._closing and self._paused:
            self._paused = False
            self._wake()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def _wake(self) -> None:
        if self._delivery is None and self._reading and self.is_reading():
            self._delivery = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery = None
        if not self.is_reading():
            return
        try:
            if self._reset_incoming is not None:
                self._fail(self._reset_incoming)
                return
            if self._incoming:
                self._deliver_chunk(self._incoming.popleft())
                self.peer._taken()
            elif self._eof_incoming:
                self._eof_incoming = self._reading = False
                if not self._reader().eof_received():
                    self.close()
                return
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._fail(exc)
            return
        if self._incoming or self._eof_incoming:
            self._wake()

    def _reader(self) -> asyncio.Protocol | asyncio.BufferedProtocol:
        assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        return self._protocol

    def _deliver_chunk(self, chunk: bytes) -> None:
        protocol = self._reader()
        if isinstance(protocol, asyncio.Protocol):
            if len(chunk) > RECEIVE_SIZE:
                self._incoming.appendleft(chunk[RECEIVE_SIZE:])
                chunk = chunk[:RECEIVE_SIZE]
            protocol.data_received(chunk)
            return
        buffer = memoryview(protocol.get_buffer(-1)).cast("B")
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        taken = min(len(buffer), len(chunk))
        buffer[:taken] = chunk[:taken]
        if taken < len(chunk):
            self._incoming.appendleft(chunk[taken:])
        protocol.buffer_updated(taken)

    # ------------------------------------------------------------ writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data: expected a bytes-like object, got {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not len(data):
            return
        if self._reset_incoming is not None:
            self._fail(self._reset_incoming)
            return
        self._outgoing += data
        self.peer._take()
        if len(self._outgoing) > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._tell(self._protocol.pause_writing)

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written:
            self._eof_written = True
            self._flushed()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        if len(self._outgoing) > high and not self._protocol_paused:
            self._protocol_paused = True
            self._tell(self._protocol.pause_writing)

    def _give(self, room: int) -> bytes:
        """Hand up to ``room`` written bytes to the peer, as send() to a socket buffer with that much space."""
        taken = bytes(self._outgoing[:room])
        del self._outgoing[:room]
        return taken

    def _flushed(self) -> None:
        """What follows when the peer took bytes: the protocol may write again; a pending end is carried out."""
        if self._lost:
            return
        if self._protocol_paused and len(self._outgoing) <= self._low:
            self._protocol_paused = False
            self._tell(self._protocol.resume_writing)
        if self._outgoing:
            return
        if self._closing:
            self._lose(None)
        elif self._eof_written:
            self.peer._ended()

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler(
                {"message": f"protocol.{callback.__name__}() failed", "exception": exc, "transport": self}
            )

    # ------------------------------------------------------------ ending

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._incoming.clear()
            self.peer._taken()
            if not self._outgoing:
                self._lose(None)

    def abort(self) -> None:
        self._end(None)

    def _fail(self, exc: BaseException) -> None:
        """An error of the wire ends the connection; one of the protocol's own code is reported as well."""
        if not isinstance(exc, OSError):
            self._loop.call_exception_handler(
                {"message": "Fatal error: protocol callback failed.", "exception": exc, "transport": self}
            )
        self._end(exc)

    def _end(self, exc: BaseException | None) -> None:
        if not self._lost:
            self._closing = True
            self._outgoing.clear()
            self._incoming.clear()
            self.peer._taken()
            self._lose(exc)

    def _lose(self, exc: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._say_lost, exc)

    def _say_lost(self, exc: BaseException | None) -> None:
        try:
            # typeshed says Exception; a BaseException that is not one cannot come here
            self._protocol.connection_lost(exc if isinstance(exc, Exception) else None)
        finally:
            self.peer._ended()


class MemoryPeer:
    """The test's end of one connection: says bytes, reads bytes, and misbehaves on demand.

    ``received`` holds every byte the client ever got rid of, ``sent`` what was said to it (of a flood, the first
    MiB).
    ``host`` and ``port`` are what the client asked for.
    """

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.received = bytearray()
        self.sent = bytearray()
        self.host, self.port = "", 0
        self._chop: int | None = None
        self._room: int | None = None
        self._at = 0
        self._over = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    # ------------------------------------------------------------ saying

    def send(self, data: bytes) -> None:
        """Say ``data``: one delivery, or many pieces while chopping. After the end it goes nowhere."""
        if self._over or self.transport._eof_incoming:
            return
        if len(self.sent) < SENT_KEPT:
            self.sent += data
        size = self._chop or len(data) or 1
        self.transport._incoming.extend(data[at : at + size] for at in range(0, len(data), size))
        if self.transport._incoming:
            self._drained.clear()
        self.transport._wake()

    async def drain(self) -> None:
        """Wait until the client took everything that was said. Raises PeerGone when it is gone instead."""
        await self._drained.wait()
        if self._over:
            raise PeerGone("room", bytes(self.received))

    def chop(self, size: int | None = 1) -> None:
        """From now on deliver in pieces of ``size`` bytes, one a turn; None ends it."""
        self._chop = size

    def cut(self) -> None:
        """End the stream in an orderly way (FIN); what was said before still arrives."""
        self.transport._eof_incoming = True
        self.transport._wake()

    def reset(self, exc: BaseException | None = None) -> None:
        """End it as a RST does: bytes said and not yet read are lost, and so are the client's unsent ones.

        The client notices when it reads or writes; one that paused reading and is idle doesn't know yet.
        """
        self.transport._incoming.clear()
        self.transport._reset_incoming = exc or ConnectionResetError(104, "Connection reset by peer")
        self.transport._wake()

    # ------------------------------------------------------------ hearing

    def stall(self, room: int = 0) -> None:
        """Take ``room`` more bytes (what a socket buffer would hold) and then none."""
        self._room = room

    def unstall(self) -> None:
        """Take bytes again, beginning with those the client holds back, in the next turn of the loop."""
        self._room = None
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        taken = self.transport._give(len(self.transport._outgoing) if self._room is None else self._room)
        if self._room is not None:
            self._room -= len(taken)
        self.received += taken
        self.transport._flushed()
        self._changed.set()

    def _taken(self) -> None:
        if not self.transport._incoming:
            self._drained.set()

    def _ended(self) -> None:
        self._over = True
        self._changed.set()
        self._drained.set()

    @property
    def at_end(self) -> bool:
        """Whether the client ended its side (close, abort, write_eof, or lost)."""
        return self._over

    @property
    def unread(self) -> bytes:
        """Bytes received that no read has returned yet."""
        return bytes(self.received[self._at :])

    async def _more(self, wanted: str) -> None:
        if self._over:
            raise PeerGone(wanted, bytes(self.received))
        self._changed.clear()
        await self._changed.wait()

    async def read_some(self) -> bytes:
        """Return what came since the last read, at least one byte; b"" once the client has ended."""
        while self._at == len(self.received) and not self._over:
            await self._more("a byte")
        data = self.unread
        self._at += len(data)
        return data

    async def read_exactly(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises PeerGone when the client ends first."""
        while len(self.received) - self._at < count:
            await self._more(f"{count} bytes")
        self._at += count
        return bytes(self.received[self._at - count : self._at])

    async def read_until(self, separator: bytes) -> bytes:
        """Return the bytes up to and with ``separator``. Raises PeerGone when the client ends first."""
        looked = self._at
        while (found := self.received.find(separator, looked)) < 0:
            looked = max(self._at, len(self.received) - len(separator) + 1)
            await self._more(repr(separator))
        return await self.read_exactly(found + len(separator) - self._at)

    async def wait_end(self) -> None:
        """Wait until the client has ended its side."""
        while not self._over:
            await self._more("the end")

    # The names a StreamWriter has, so that one server can serve both.

    def close(self) -> None:
        """Same as cut()."""
        self.cut()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class MemoryNetwork:
    """The addresses of an imaginary network. ``connect`` has the shape of ``loop.create_connection``.

    An address nobody listens on refuses; a black hole never answers. ``peers`` holds the test's end of every
    connection in the order they were made, ``dialled`` every address asked for.
    """

    def __init__(self) -> None:
        self.peers: list[MemoryPeer] = []
        self.dialled: list[tuple[str, int]] = []
        self._listeners: dict[tuple[str, int], Arrival | None] = {}
        self._holes: set[tuple[str, int]] = set()
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()

    def listen(self, host: str, port: int, arrival: Arrival | None = None) -> None:
        """Accept connections to the address; ``arrival`` is called (and run as a task) with each peer."""
        self._listeners[host, port] = arrival
        self._holes.discard((host, port))

    def refuse(self, host: str, port: int) -> None:
        """Refuse new connections to the address; those that exist stay."""
        self._listeners.pop((host, port), None)
        self._holes.discard((host, port))

    def black_hole(self, host: str, port: int) -> None:
        """Let connection attempts to the address hang for ever."""
        self._holes.add((host, port))

    async def connect(
        self, protocol_factory: Callable[[], AnyProtocol], host: str, port: int
    ) -> tuple[MemoryTransport, AnyProtocol]:
        """Connect a client: ``(transport, protocol)``, after ``connection_made``.

        Raises ConnectionRefusedError where nobody listens. Cancelling it leaves nothing behind.
        """
        loop = asyncio.get_running_loop()
        self.dialled.append((host, port))
        if (host, port) in self._holes:
            await loop.create_future()
        if (host, port) not in self._listeners:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        arrival = self._listeners[host, port]
        protocol = protocol_factory()
        transport = MemoryTransport(loop, protocol, {"peername": (host, port), "sockname": ("memory", 0)})
        peer = transport.peer
        peer.host, peer.port = host, port
        made: asyncio.Future[None] = loop.create_future()
        loop.call_soon(_settle, made)
        try:
            await made
        except asyncio.CancelledError:
            transport.abort()
            raise
        self.peers.append(peer)
        self._arrived.set()
        answer = arrival(peer) if arrival is not None else None
        if answer is not None:
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return transport, protocol

    async def peer(self, index: int = 0) -> MemoryPeer:
        """Wait for the connection with that number, counted from 0, and return the test's end of it."""
        while len(self.peers) <= index:
            self._arrived.clear()
            await self._arrived.wait()
        return self.peers[index]
