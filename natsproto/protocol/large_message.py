"""A large message on its way: a buffer of its size, into which a transport can read.

Owns the bytes of one frame, from its control line to its line end, and no rule of the protocol. The payload is copied
once, out of the buffer; as part of a growing tail it would be copied four times.
"""

from __future__ import annotations

from functools import cache

from natsproto.errors import RemoteProtocolError
from natsproto.protocol.frames import Message, Route

LARGE_FRAME_SIZE = 131_072
"""Bytes of a frame above which it is worth a buffer of its own."""

NO_LINE_END = "no line end behind the payload"

_MAX_KEPT_BUFFER_SIZE = 2_097_152  # bytes of a buffer that is kept for the next message

_WARMUP_BLOCK_SIZE = 8_388_608  # bytes of a block that is allocated and freed once; see _keep_freed_memory()

MessageHead = tuple[Route, str, bytes | None, int, int]
"""Route, subject, reply subject, bytes of headers, bytes in all."""


class LargeMessage:
    """Collects one frame at a time. ``need`` is 0 while there is none."""

    __slots__ = ("_body", "_buffer", "_head", "filled", "need")

    def __init__(self) -> None:
        self.need: int = 0
        """Bytes of the frame that is being collected."""
        self.filled: int = 0
        """How many of them are there."""
        self._buffer = bytearray()
        self._head: MessageHead | None = None
        self._body = 0

    def begin(self, head: MessageHead, line: int, frame: bytes) -> None:
        """The first bytes of a frame, whose control line takes ``line`` of them."""
        self._head, self._body = head, line
        self.need = line + head[4] + 2
        if len(self._buffer) < self.need:
            _keep_freed_memory()
            self._buffer = bytearray(self.need)
        self.filled = 0
        self.add(frame)

    @property
    def room(self) -> memoryview:
        """Where the rest of the frame belongs."""
        return memoryview(self._buffer)[self.filled : self.need]

    def add(self, chunk: bytes) -> bytes:
        """Copies what belongs to the frame; returns what is behind it."""
        missing = self.need - self.filled
        piece = chunk[:missing]
        self._buffer[self.filled : self.filled + len(piece)] = piece
        self.filled += len(piece)
        return chunk[missing:]

    def take(self, position: int) -> tuple[Route, Message]:
        """The message, when the frame is whole, and whose it is.

        RemoteProtocolError without a line end behind it; ``position`` is where in the stream the frame began.
        """
        assert self._head is not None
        route, subject, reply, head_size, total = self._head
        split, stop = self._body + head_size, self._body + total
        whole = memoryview(self._buffer)
        end = bytes(whole[stop : stop + 2])
        if end != b"\r\n":
            raise RemoteProtocolError(NO_LINE_END, position + stop, end)
        message = route.message_class.__new__(route.message_class)
        head = bytes(whole[self._body : split]) if head_size else None
        Message.__init__(message, subject, reply, bytes(whole[split:stop]), head, route.origin)
        message._note = route.note
        self.clear()
        return route, message

    def clear(self) -> None:
        """Forgets the frame."""
        self.need = self.filled = 0
        self._head = None
        if len(self._buffer) > _MAX_KEPT_BUFFER_SIZE:
            self._buffer = bytearray()


@cache
def _keep_freed_memory() -> None:
    """Lets the allocator keep the memory of freed payloads for the next ones.

    glibc gives each payload of this size back to the kernel, which then has to clear its pages anew for the next one:
    three quarters of the time that receiving 1 MiB takes. It keeps blocks as large as the largest one that was freed
    so far. This one is never written to and so takes no memory (docs/decisions/0013-receiving.md).
    """
    bytes(_WARMUP_BLOCK_SIZE)
