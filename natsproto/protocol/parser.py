"""The parser: turns any chunks of bytes into messages for their routes, and control frames.

Owns the bytes of an incomplete frame, and a bounded cache of sizes. It knows nothing of handshakes: any frame may come
at any time.

There is one loop. A chunk is an immutable ``bytes`` that is walked once with an integer position; nothing is deleted
from its front. Parts that repeat in real traffic are looked up separately: the sid, the sizes. A line for which that
fails, or that looks unusual, is parsed by ``read_line``, which alone raises errors.

Bytes of an unfinished frame wait in one bytearray. It is read again only when the missing line end or the missing byte
count has arrived, so the work is linear for any chunk sizes. A message above LARGE_FRAME_SIZE waits in a buffer of its
own size, unless that is more than the server has announced; its ``room`` lets a transport read into it.
"""

from __future__ import annotations

from collections.abc import Mapping

from natsproto import errors
from natsproto.protocol.frames import Frame, Message, Route
from natsproto.protocol.large_message import LARGE_FRAME_SIZE, NO_LINE_END, LargeMessage, MessageHead
from natsproto.protocol.line_parser import Limits, check_open_line, read_line

MAX_LINE = 65_536
MAX_INFO = 1_048_576
MAX_MESSAGE = 67_108_864

_MAX_CACHED = 4096
_UNKNOWN_SIZE = 1 << 62  # as the size of headers: larger than any message


class Parser:
    """Splits a byte stream into frames.

    ``feed`` accepts any chunks. Afterwards ``events`` holds the control frames and ``touched`` the routes that received
    messages, in the order of each one's first message; the caller takes both, and sets ``arrived`` of each route back
    to 0. After the first RemoteProtocolError every further call raises the same error.

    ``max_message`` bounds headers plus payload of one message, ``max_line`` a control line and ``max_info`` an INFO
    line, in bytes.
    """

    __slots__ = (
        "_failure",
        "_limits",
        "_need",
        "_offset",
        "_sizes",
        "_tail",
        "_unrouted",
        "events",
        "large",
        "max_payload",
        "routes",
        "touched",
    )  # fmt: skip

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        *,
        max_message: int = MAX_MESSAGE,
        max_line: int = MAX_LINE,
        max_info: int = MAX_INFO,
    ) -> None:
        self.events: list[Frame] = []
        self.touched: list[Route] = []
        self.routes: Mapping[bytes, Route] = routes
        """sid → route. Messages of other sids are dropped. May be replaced at any time."""
        self.max_payload: int = 0
        """INFO's max_payload; no buffer for a larger message is allocated in advance."""
        self._limits = Limits(max_line, max_info, max_message)
        self._sizes: dict[bytes, int] = {}
        self._unrouted = Route(_forget)
        self._unrouted.arrived = 1  # so that it is never touched
        self._tail = bytearray()
        self._need = 0  # bytes the waiting frame has in all; 0: its control line is not complete yet
        self.large: LargeMessage = LargeMessage()  # the waiting frame is here or in _tail
        """While ``large.need`` > 0, a transport may write into ``large.room``, then call ``filled(count)``."""
        self._offset = 0  # bytes of the stream in front of what is being walked
        self._failure: errors.RemoteProtocolError | None = None

    @property
    def position(self) -> int:
        """Bytes of complete frames so far."""
        return self._offset

    @property
    def waiting(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._tail) + self.large.filled

    @property
    def unread(self) -> bytes:
        """The first 64 bytes of the incomplete frame, for error messages."""
        return bytes(self._tail[:64])

    @property
    def unrouted(self) -> int:
        """Messages so far whose sid has no route."""
        return self._unrouted.arrived - 1

    def feed(self, chunk: bytes) -> None:
        """Parse the next bytes of the stream.

        RemoteProtocolError when they are not the NATS protocol or exceed a limit; everything before the error was
        delivered.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if self._tail or self.large.need:
                chunk = self._complete_frame(chunk)
            self._parse(chunk)
        except errors.RemoteProtocolError as exc:
            self._failure, self._tail = exc, bytearray()
            self.large.clear()
            raise

    def filled(self, count: int) -> None:
        """``count`` bytes of the stream were written to ``large.room``. Raises the errors of ``feed``."""
        self.large.filled += count
        if self.large.filled == self.large.need:
            self.feed(b"")

    def _parse(self, chunk: bytes) -> None:
        """Handle all complete frames, and keep the rest."""
        # One long function: moving any part into a function of its own costs 5 to 10 % of the throughput.
        find, routes, sizes, touched = chunk.find, self.routes, self._sizes, self.touched
        max_line, new = self._limits.line, object.__new__
        pos, end = 0, len(chunk)
        route: Route
        while pos < end:
            eol = find(b"\r\n", pos)
            if eol < 0:
                break
            words = chunk[pos:eol].split(b" ")
            verb, count = words[0], len(words)
            if verb == b"MSG" and 3 < count < 6:
                head_size, reply = 0, words[3] if count == 5 else None
            elif verb == b"HMSG" and 4 < count < 7:
                head_size, reply = sizes.get(words[-2], _UNKNOWN_SIZE), words[3] if count == 6 else None
            else:
                head_size, reply = _UNKNOWN_SIZE, None
            total, subject = sizes.get(words[-1], -1), ""
            if head_size <= total and reply != b"" and eol - pos <= max_line and words[2] in routes:
                route = routes[words[2]]
                try:
                    subject = words[1].decode()  # caching saves nothing for one subject, and costs 6 % with 1,000
                except UnicodeDecodeError:
                    subject = ""  # read below
            if not subject:
                line = self._read_line(chunk[pos:eol], pos)
                if line is None:
                    pos = eol + 2
                    continue
                route, subject, reply, head_size, total = line
            body = eol + 2
            split, stop = body + head_size, body + total
            if stop + 2 > end:
                if stop - pos > LARGE_FRAME_SIZE and total <= self.max_payload:
                    self.large.begin((route, subject, reply, head_size, total), body - pos, chunk[pos:])
                else:
                    self._need = stop + 2 - pos
                break
            if chunk[stop : stop + 2] != b"\r\n":
                raise errors.RemoteProtocolError(NO_LINE_END, self._offset + stop, chunk[stop : stop + 2])
            message: Message = new(route.message_class)
            message.subject = subject
            message._reply = reply
            message.data = chunk[split:stop]
            message._head = chunk[body:split] if head_size else None
            message._origin = route.origin
            message._note = route.note
            route.deliver(message)
            if not route.arrived:
                touched.append(route)
            route.arrived += 1
            route.nbytes += len(words[1]) + total if reply is None else len(words[1]) + len(reply) + total
            pos = stop + 2
        self._offset += pos
        if pos < end and not self.large.need:
            self._tail += chunk[pos:]
            if not self._need:
                check_open_line(self._tail, self._offset, self._limits)

    def _complete_frame(self, chunk: bytes) -> bytes:
        """Return the bytes to parse, now that this chunk completes the incomplete frame, or nothing."""
        tail, large = self._tail, self.large
        if need := large.need:
            chunk = large.add(chunk)
            if large.filled == need:
                route, message = large.take(self._offset)
                route.deliver(message)
                if not route.arrived:
                    self.touched.append(route)
                route.arrived += 1
                route.nbytes += message.size
                self._offset += need
            return chunk
        need = self._need
        whole = len(tail) + len(chunk) >= need if need else b"\r\n" in chunk or (tail[-1] == 13 and chunk[:1] == b"\n")
        tail += chunk
        if whole:
            self._tail, self._need = bytearray(), 0
            return bytes(tail)
        if not need:
            check_open_line(tail, self._offset, self._limits)
        return b""

    def _read_line(self, line: bytes, pos: int) -> MessageHead | None:
        """Parse the control line of a message and cache its sizes; append other frames to ``events``."""
        said = read_line(line, self._offset + pos, self._limits)
        if not isinstance(said, tuple):
            self.events.append(said)
            return None
        name, sid, reply, head_size, total = said
        if len(self._sizes) >= _MAX_CACHED:
            self._sizes.clear()
        words = line.rsplit(b" ", 2)
        self._sizes[words[2]] = total
        if line[0] in b"Hh":
            self._sizes[words[1]] = head_size
        subject = name.decode("utf-8", "surrogateescape")
        return self.routes.get(sid, self._unrouted), subject, reply, head_size, total


def _forget(message: Message) -> None:
    """Drop a message whose sid has no route."""
