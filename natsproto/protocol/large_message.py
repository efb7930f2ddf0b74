"""A buffer for one large message, into which a transport can read directly.

Owns the bytes of one frame, from its control line to its line end. The payload is copied once, out of the buffer; as
part of a growing tail it would be copied four times.
"""

from __future__ import annotations

from functools import cache

from natsproto import errors
from natsproto.protocol.frames import Message, Route

LARGE_FRAME_SIZE = 131_072
"""Bytes of a frame above which it is worth a buffer of its own."""

NO_LINE_END = "no line end after the payload"

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
        """Begin with the first bytes of a frame, whose control line takes ``line`` of them."""
        self._head, self._body = head, line
        self.need = line + head[4] + 2
        if len(self._buffer) < self.need:
            _keep_freed_memory()
            self._buffer = bytearray(self.need)
        self.filled = 0
        self.add(frame)

    @property
    def room(self) -> memoryview:
        """The buffer for the rest of the frame."""
        return memoryview(self._buffer)[self.filled : self.need]

    def add(self, chunk: bytes) -> bytes:
        """Copy the bytes of the frame; return those after it."""
        missing = self.need - self.filled
        piece = chunk[:missing]
        self._buffer[self.filled : self.filled + len(piece)] = piece
        self.filled += len(piece)
        return chunk[missing:]

    def take(self, position: int) -> tuple[Route, Message]:
        """Return the message of a complete frame, and its route.

        RemoteProtocolError without a line end after it; ``position`` is the start of the frame in the stream.
        """
        assert self._head is not None
        route, subject, reply, head_size, total = self._head
        split, stop = self._body + head_size, self._body + total
        whole = memoryview(self._buffer)
        end = bytes(whole[stop : stop + 2])
        if end != b"\r\n":
            raise errors.RemoteProtocolError(NO_LINE_END, position + stop, end)
        message = route.message_class.__new__(route.message_class)
        head = bytes(whole[self._body : split]) if head_size else None
        Message.__init__(message, subject, reply, bytes(whole[split:stop]), head, route.origin)
        message._note = route.note
        self.clear()
        return route, message

    def clear(self) -> None:
        """Drop the frame."""
        self.need = self.filled = 0
        self._head = None
        if len(self._buffer) > _MAX_KEPT_BUFFER_SIZE:
            self._buffer = bytearray()


@cache
def _keep_freed_memory() -> None:
    """Make the allocator keep the memory of freed payloads for the next ones.

    glibc returns each payload of this size to the kernel, which then clears its pages again for the next one: three
    quarters of the time of receiving 1 MiB. It keeps blocks up to the size of the largest one freed so far. This block
    is never written to, so it takes no memory (docs/decisions/0013-receiving.md).
    """
    bytes(_WARMUP_BLOCK_SIZE)
