"""Messages as a stream stores them: one at a time, or many in one go (direct get, ADR-31).

Owns the value ``RawMessage``, the reading of a server's replies (in which the headers of the server stand behind those
of the publisher, who may have written the same names) and the run of a get of many messages: its inbox, and the
``PageCursor`` that says what to ask for next. It does not know what a stream is configured to allow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from operator import attrgetter
from typing import cast

from natsproto._async_hints import AsyncForHint
from natsproto._core.events import Closed, Disconnected, Event, Moved, PermissionViolation
from natsproto._durations import seconds
from natsproto.errors import (
    ApiError,
    BadRequest,
    ConnectionLost,
    InvalidReply,
    LimitReached,
    LocalProtocolError,
    MessageNotFound,
    PermissionDenied,
    RequestTimeout,
    UnsupportedByServer,
)
from natsproto.jetstream._api import Api, raise_closed
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._codec import Duration, decode, dumps
from natsproto.jetstream._info import StoredMessage
from natsproto.jetstream._retry_request import TIMER_SLACK_S
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import NO_HEADERS, Headers
from natsproto.protocol.subject import subscribe_subject

MAX_PAGE_MESSAGES = 4096
"""Messages asked for at once; the next page is on its way while the last one is read."""
MAX_PAGE_BYTES = 8 * 2**20
"""Bytes asked for at once: two pages wait here at most, and no server cuts a client off for so little."""

_VERSION = b"NATS/1.0\r\n"
# The server writes its headers behind everything else, in this order. A user's header of the same name comes earlier,
# and none of them can contain a line end, so the last of them begins what the server says.
_STREAM_LINE, _SUBJECT_LINE = b"Nats-Stream: ", b"\r\nNats-Subject: "
_SEQUENCE_LINE, _TIME_LINE = b"\r\nNats-Sequence: ", b"\r\nNats-Time-Stamp: "
_MAX_SEQUENCE_DIGITS = 20  # of 64 bits
_MAX_TAIL_BYTES = (
    len(_TIME_LINE) + 39
)  # a time of up to 35 bytes and two line ends; a server says twice as much and more
_SERVER_HEADERS = re.compile(
    rb"Nats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: ([0-9]{1,20})\r\nNats-Time-Stamp: ([^\r]*)\r\n"
    rb"(?:Nats-Num-Pending: ([0-9]+)\r\nNats-Last-Sequence: ([0-9]+)\r\n)?"
)
_SERVER_HEADER_NAMES = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp")
_GO_TIME = re.compile(r"([0-9-]{10}) ([0-9:.]+) ([+-][0-9]{2})([0-9]{2}) \w+")  # of the first servers with direct get


class RawMessage:
    """A message as the stream holds it.

    ``stream``, ``subject``, ``seq`` (its sequence in the stream), ``data`` and ``time`` (when it was stored, to the
    nanosecond). ``headers`` are the publisher's own, as they were published. ``num_pending`` counts the messages
    behind it that match too; it is 0 unless many were asked for. Treat it as frozen.
    """

    __slots__ = ("_head", "_time", "data", "num_pending", "seq", "stream", "subject")

    def __init__(
        self,
        stream: str,
        subject: str,
        seq: int,
        time: bytes | Timestamp,
        data: bytes,
        head: bytes | Headers | None = None,
        num_pending: int = 0,
    ) -> None:
        self.stream: str = stream
        self.subject: str = subject
        self.seq: int = seq
        self.data: bytes = data
        self.num_pending: int = num_pending
        self._time = time
        self._head = head

    @property
    def time(self) -> Timestamp:
        """When the stream stored it. Read when first asked for; InvalidReply when it is no time."""
        time = self._time
        if isinstance(time, bytes):
            self._time = time = _read_time(time)
        return time

    @property
    def has_headers(self) -> bool:
        """Whether the publisher gave it headers; cheaper than looking into them."""
        return self._head is not None

    @property
    def headers(self) -> Headers:
        """The publisher's headers; empty when there are none. Read when first asked for."""
        head = self._head
        if head is None:
            return NO_HEADERS
        if type(head) is bytes:
            self._head = head = Headers.parse(head)
        return head  # type: ignore[return-value]  # bytes were handled above

    @property
    def size(self) -> int:
        """Bytes of subject, headers and payload together: what limits count."""
        head = self._head
        head_size = 0 if head is None else head.wire_size if isinstance(head, Headers) else len(head)
        subject = self.subject
        return (len(subject) if subject.isascii() else len(subject.encode("utf-8", "surrogateescape"))) + (
            head_size + len(self.data)
        )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same message of the same stream with the same content."""
        if not isinstance(other, RawMessage):
            return NotImplemented
        return (self.stream, self.seq, self.subject, self.data, self.time, self.headers) == (
            *(other.stream, other.seq, other.subject, other.data, other.time, other.headers),
        )

    def __hash__(self) -> int:
        return hash((self.stream, self.seq))

    def __repr__(self) -> str:
        return f"RawMessage(stream={self.stream!r}, seq={self.seq}, subject={self.subject!r}, {len(self.data)} bytes)"


_head_of = attrgetter("_head")
_time_of = attrgetter("_time")


def stored_header_blocks(messages: Iterable[RawMessage]) -> list[bytes | Headers | None]:
    """Their headers as they came off the wire; see ``message.header_blocks``."""
    return list(map(_head_of, messages))


def stored_times(messages: Iterable[RawMessage]) -> list[bytes | Timestamp]:
    """When they were stored, as it came off the wire: RFC 3339, or a Timestamp where somebody looked before."""
    return list(map(_time_of, messages))


def _read_time(text: bytes) -> Timestamp:
    time = text.decode("ascii", "replace")
    if found := _GO_TIME.fullmatch(time):
        time = f"{found[1]}T{found[2]}{found[3]}:{found[4]}"
    try:
        return Timestamp.parse(time)
    except ValueError:
        raise InvalidReply("RawMessage", "time", text, "must be a time") from None


# ---------------------------------------------------------------- replies of a server


class DirectReply(Message):
    """A reply to a direct get: a stored message, or a status."""

    __slots__ = ()

    @classmethod
    def of(cls, message: Message) -> DirectReply:
        """The reply of a request, read as what it is."""
        made = cls(message.subject, None, message.data, None)
        made._head = message._head
        return made

    def parts(self) -> tuple[RawMessage, int | None] | None:
        """The stored message and, when many were asked for, the sequence sent before it; None for a status."""
        head = self._head
        if head is None:
            return None
        if isinstance(head, Headers):
            return self._parsed_parts(head)
        cut = head.rfind(_STREAM_LINE)
        if cut < 0:
            return None
        found = _SERVER_HEADERS.match(head, cut)
        if found is None:
            raise InvalidReply("direct get", "headers", head[cut:], "are not those of a stored message")
        stream, subject, seq, time, pending, last = found.groups()
        own = None if cut <= len(_VERSION) else head[:cut] + b"\r\n"
        message = RawMessage(
            stream.decode("utf-8", "surrogateescape"),
            subject.decode("utf-8", "surrogateescape"),
            int(seq),
            time,
            self.data,
            own,
            0 if pending is None else int(pending),
        )
        return message, (None if last is None else int(last))

    def _parsed_parts(self, headers: Headers) -> tuple[RawMessage, int | None] | None:
        """The same when somebody has looked into the headers before: of each name the last value is the server's."""
        if "Nats-Stream" not in headers:
            return None
        said = {name: headers.last(name) for name in _SERVER_HEADER_NAMES}
        if not said["Nats-Sequence"].isdecimal():
            raise InvalidReply("direct get", "headers", headers, "are not those of a stored message")
        own: list[tuple[str, str]] = []
        for name in headers:
            values = headers.get_all(name)
            own += [(name, value) for value in (values[:-1] if name in _SERVER_HEADER_NAMES else values)]
        published = Headers(own)
        published.status, published.description = headers.status, headers.description
        message = RawMessage(
            said["Nats-Stream"],
            said["Nats-Subject"],
            int(said["Nats-Sequence"]),
            said["Nats-Time-Stamp"].encode("utf-8", "surrogateescape"),
            self.data,
            published,
        )
        return message, None


def status_error(code: int, description: str, asked: str) -> ApiError:
    """The error for a status that is no message. The server gives no err_code here; the nearest one is put in."""
    if code == 404:
        return MessageNotFound(404, ErrCode.NO_MESSAGE_FOUND, description.lower(), asked)
    if code == 408:
        return BadRequest(408, 0, description, asked)
    if code == 412:
        return ApiError(412, ErrCode.REQUIRED_API_LEVEL, description, asked)
    if code == 413:
        return LimitReached(413, 0, f"{description}: more than 1,024 subjects match", asked)
    return ApiError(code, 0, description or "status without a message", asked)


async def direct_get(
    api: Api, stream: str, body: Mapping[str, object], *, key: str = "", asked: str, timeout: Duration | None
) -> RawMessage:
    """One message from any server that holds the stream. NoResponders when the stream does not allow it (or is gone).

    With ``key`` the subject is part of the request's subject, where permissions can tell keys apart.
    """
    endpoint = f"DIRECT.GET.{stream}{'.' if key else ''}{key}"
    return _stored(await api.request(endpoint, b"" if key else dumps(body), timeout=timeout), asked)


def _stored(message: Message, asked: str) -> RawMessage:
    reply = DirectReply.of(message)
    if found := reply.parts():
        return found[0]
    raise status_error(reply.headers.status, reply.headers.description, asked)


class LastGet:
    """The direct get of the last message of one subject, prepared for being repeated: what a key/value get is made of.

    The server is told everything in the subject, and its reply begins with what is known already. Unless the publisher
    gave the message headers, all there is to find out is whether a sequence and a time follow. To read them may wait
    until somebody looks.
    """

    __slots__ = ("_api", "_begin", "_request", "_stream", "_wire", "subject")

    def __init__(self, api: Api, stream: str, subject: str) -> None:
        self._api, self._stream = api, stream
        self.subject: str = subject
        """Of the message."""
        self._request = f"{api.prefix}.DIRECT.GET.{stream}.{subject}"
        self._wire = subscribe_subject(self._request)
        self._begin = (
            _VERSION
            + _STREAM_LINE
            + stream.encode()
            + _SUBJECT_LINE
            + subject.encode("utf-8", "surrogateescape")
            + _SEQUENCE_LINE
        )

    def request(self, timeout: Duration | None) -> Awaitable[Message]:
        """Sends the request; await the reply at once. NoResponders when the stream does not allow it, or is gone."""
        return self._api.request_encoded(self._request, self._wire, timeout)

    def headerless(self, reply: Message) -> bytes | None:
        """The headers of a reply that is a message to which its publisher gave none; None for any other."""
        head = reply._head
        if type(head) is bytes and head.startswith(self._begin):
            begin = len(self._begin)
            end = head.find(_TIME_LINE, begin, begin + _MAX_SEQUENCE_DIGITS + len(_TIME_LINE))
            # A publisher may write the same: then what the server says follows behind it.
            if head[begin:end].isdigit() and len(head) - end <= _MAX_TAIL_BYTES:
                return head
        return None

    def read(self, reply: Message) -> RawMessage:
        """The message in any reply. MessageNotFound, or the error for what else it says; InvalidReply."""
        return _stored(reply, f"last message of {self.subject!r} in stream {self._stream!r}")


def headerless_message(head: bytes, data: bytes) -> RawMessage:
    """The message with this payload and these headers, which ``LastGet.headerless`` has looked at."""
    stream, subject, seq, time = (line.partition(b": ")[2] for line in head.split(b"\r\n")[1:5])
    return RawMessage(stream.decode(), subject.decode("utf-8", "surrogateescape"), int(seq), time, data)


async def leader_get(
    api: Api, stream: str, body: Mapping[str, object], *, asked: str, timeout: Duration | None
) -> RawMessage:
    """One message from the stream's leader, who knows everything that was acknowledged.

    ``no_hdr`` in the body leaves the publisher's headers out (servers before 2.12 send them all the same).
    """
    payload = await api.call(f"STREAM.MSG.GET.{stream}", body, asked=asked, timeout=timeout)
    stored = decode(StoredMessage, payload.get("message"))
    head = None if "no_hdr" in body else stored.hdrs or None
    return RawMessage(stream, stored.subject, stored.seq, stored.time, stored.data, head)


def check_start_time(message: RawMessage, since: datetime, asked: str) -> None:
    """UnsupportedByServer for a message that is older than what was asked for: such a server reads no start time."""
    if message.time < since:
        raise UnsupportedByServer(asked, "a start time needs nats-server 2.11 or newer")


# ---------------------------------------------------------------- many messages


class PageCursor:
    """PURE. How far a get of many messages is, and what to ask for next.

    ``body`` is what every request says. A request gives messages in the order of their sequences, each with the
    sequence of the one sent before it, and ends with a word of how many are left.
    """

    def __init__(
        self,
        body: Mapping[str, object],
        first: Mapping[str, object],
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._body, self._first = body, first
        self._limit, self._max_bytes = limit, max_bytes
        self._before = 0  # sequence of the message before, in this request
        self.seq = 0
        """Sequence of the last message taken; 0 before the first."""
        self.pending = 0
        """Messages left at the end of the last page."""
        self._up_to = 0

    @property
    def counts_bytes(self) -> bool:
        """Whether it counts bytes."""
        return self._max_bytes is not None

    @property
    def done(self) -> bool:
        """Whether as much was taken as was wanted."""
        return self._limit == 0 or (self._max_bytes is not None and self._max_bytes <= 0)

    def request(self) -> dict[str, object]:
        """What to ask for now; the replies to whatever was asked before are void."""
        self._before = 0
        wanted: dict[str, object] = {**self._body}
        wanted |= {"seq": self.seq + 1} if self.seq else self._first
        if self._up_to:
            wanted["up_to_seq"] = self._up_to
            wanted.pop("up_to_time", None)
        wanted["batch"] = MAX_PAGE_MESSAGES if self._limit is None else min(MAX_PAGE_MESSAGES, self._limit)
        wanted["max_bytes"] = MAX_PAGE_BYTES if self._max_bytes is None else min(MAX_PAGE_BYTES, self._max_bytes)
        return wanted

    def single_request(self) -> dict[str, object]:
        """The same place, for a request that gives one message only."""
        wanted: dict[str, object] = {"next_by_subj": self._body.get("next_by_subj", ">")}
        return wanted | ({"seq": self.seq + 1} if self.seq else dict(self._first))

    def take(self, seq: int, before: int, size: int) -> bool:
        """Whether this message follows the last one; False when some were lost on the way."""
        if before != self._before:
            return False
        self.advance(seq, size)
        self._before = seq
        return True

    def advance(self, seq: int, size: int) -> None:
        """A message was had."""
        self.seq = seq
        if self._limit is not None:
            self._limit -= 1
        if self._max_bytes is not None:
            self._max_bytes -= size

    def end_of_page(self, pending: int, last: int, up_to: int) -> bool:
        """Whether there is something to ask for: another page, or the end of this one that was lost on the way."""
        self._up_to = up_to
        if last != self._before:
            return True
        self.pending = pending
        return pending > 0 and not self.done


class StoredMessages(AsyncForHint):
    """Many stored messages, in the order of the stream: ``async for`` gives one at a time, ``batches()`` what is there.

    Sends nothing before it is read, and can be read once; leaving the loop early ends it.
    """

    def __init__(self, source: AsyncGenerator[list[RawMessage]], asked: str) -> None:
        self._source, self._asked = source, asked
        self._read = False

    def __aiter__(self) -> AsyncIterator[RawMessage]:
        return self._each()

    async def _each(self) -> AsyncGenerator[RawMessage]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yields what has arrived as a list, whenever something has. Errors are those of whoever gave this.

        LocalProtocolError when it was read before. Cancelling ends it.
        """
        if self._read:
            raise LocalProtocolError(f"{self._asked}: was read before, ask for it again")
        self._read = True
        return self._source


class BatchGet:
    """One get of many messages: an inbox of its own, and the requests that its cursor asks for.

    Messages that a broken connection lost on the way are asked for again.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        cursor: PageCursor,
        *,
        can_get_single: bool,
        direct: bool,
        asked: str,
        timeout: Duration | None,
        since: datetime | None = None,
    ) -> None:
        """``can_get_single``: without direct get the messages can be had one by one; ``direct``: start with direct get;
        ``since``: the start time that the cursor asks for.
        """
        self._since = since
        self._api, self._stream, self._cursor = api, stream, cursor
        self._can_get_single, self._direct, self._asked = can_get_single, direct, asked
        self._timeout = seconds("timeout", api.timeout if timeout is None else timeout)
        self._subject = f"{api.prefix}.DIRECT.GET.{stream}"
        self._reply = ""  # where the page in progress comes in; "" when none does
        self._needs_page = True  # whether the next page is to be asked for
        self._refused: PermissionDenied | None = None
        self.pages = 0
        """How many were asked for so far."""

    async def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yields what has arrived as a list, whenever something has.

        RequestTimeout when nothing came for ``timeout`` seconds; BadRequest, LimitReached, StreamNotFound,
        PermissionDenied, ConnectionClosed; UnsupportedByServer when the stream or its server cannot do it.
        Cancelling ends it.
        """
        if self._direct:
            try:
                async with aclosing(self._pages()) as pages:
                    async for batch in pages:
                        yield batch
                return
            except _NoDirectGet:
                pass  # the stream or the server cannot do it, or the stream is gone: its leader will say
        if not self._can_get_single:
            raise UnsupportedByServer(self._asked, "needs a stream with allow_direct, and nats-server 2.11 or newer")
        async for message in self._single_gets():
            yield [message]

    async def _single_gets(self) -> AsyncGenerator[RawMessage]:
        while not self._cursor.done:
            message = await self._get_from_leader()
            if message is None:
                return
            yield message

    async def _get_from_leader(self) -> RawMessage | None:
        """The next message, from the one server that surely has it; None when there is none."""
        loop = asyncio.get_running_loop()
        left, deadline = self._timeout, loop.time() + self._timeout
        while True:
            try:
                message = await leader_get(
                    self._api, self._stream, self._cursor.single_request(), asked=self._asked, timeout=left
                )
            except MessageNotFound:
                return None
            except ConnectionLost:  # reading twice is harmless; the next request waits for the next connection
                left = deadline - loop.time()
                if left <= TIMER_SLACK_S:
                    raise
            else:
                break
        if self._since is not None:
            check_start_time(message, self._since, self._asked)
        self._cursor.advance(message.seq, message.size)
        return message

    async def _pages(self) -> AsyncGenerator[list[RawMessage]]:
        connection, cursor = self._api.connection, self._cursor
        inbox = self._api.new_inbox()
        subscription = connection.subscribe(
            f"{inbox}.*", pending_msgs_limit=0, pending_bytes_limit=0, message_type=DirectReply
        )  # bounded by the size of a page

        def on_event(event: Event) -> None:
            if isinstance(event, Disconnected | Moved):
                self._needs_page = True
            elif isinstance(event, PermissionViolation) and event.error.subject == self._subject:
                self._refused = event.error
            elif not isinstance(event, Closed):
                return
            subscription._wake_reader()

        async def ask() -> None:
            self.pages += 1
            self._needs_page, self._reply = False, f"{inbox}.{self.pages}"
            await connection.publish(self._subject, dumps(cursor.request()), reply=self._reply)

        unlisten = connection.listen(on_event)
        try:
            while self._reply or (self._needs_page and not cursor.done):
                if self._needs_page:
                    await ask()
                came = cast("list[DirectReply]", await subscription._read_batch(self._timeout))
                if self._refused is not None:
                    raise self._refused
                if not came and not self._needs_page:
                    if subscription.closed:
                        await raise_closed(subscription, self._asked)
                    raise RequestTimeout(self._asked, self._timeout)
                found, status = self._read_page(came)
                if status is not None and (message := await self._end_page(status)) is not None:
                    found.append(message)
                if cursor.done:
                    self._reply = ""
                elif self._needs_page:  # before what was found is handled: the next page travels meanwhile
                    await ask()
                if found:
                    yield found
        finally:
            unlisten()
            await subscription.unsubscribe()

    def _read_page(self, came: list[DirectReply]) -> tuple[list[RawMessage], DirectReply | None]:
        """The messages of the page in progress, in order and without a gap, and the status that ended it."""
        found: list[RawMessage] = []
        take, weigh = self._cursor.take, self._cursor.counts_bytes
        for reply in came:
            if reply.subject != self._reply:
                continue  # of a page that was given up
            parts = reply.parts()
            if parts is None:
                return found, reply
            message, before = parts
            if before is None:
                raise _NoDirectGet  # a server before 2.11 gives one message and leaves it at that
            if not take(message.seq, before, message.size if weigh else 0):
                self._restart_page()
                break
            found.append(message)
        return found, None

    def _restart_page(self) -> None:
        self._reply, self._needs_page = "", True

    async def _end_page(self, status: DirectReply) -> RawMessage | None:
        """Decides how it goes on behind a page; a message when that had to be found out elsewhere."""
        headers, cursor = status.headers, self._cursor
        self._reply = ""
        if headers.status == 204:
            pending, last, up_to = (
                int(headers.last(f"Nats-{name}", "0")) for name in ("Num-Pending", "Last-Sequence", "UpTo-Sequence")
            )
            self._needs_page = cursor.end_of_page(pending, last, up_to)
            return None
        if headers.status == 503:
            raise _NoDirectGet
        if headers.status == 404 and self._can_get_single:
            if not cursor.pending:
                return None
            # Another server than that of the last page answered, and it has not got that far.
            message = await self._get_from_leader()
            self._needs_page = message is not None
            return message
        if headers.status == 404 and "Results" in headers.description:
            return None
        if headers.status == 408 and "Empty" in headers.description:
            raise _NoDirectGet  # a server that does not know what fills this request
        raise status_error(headers.status, headers.description, self._asked)


class _NoDirectGet(Exception):
    """Many messages cannot be had by direct get."""
