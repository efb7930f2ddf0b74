"""Getting one stored message from a stream (direct get, ADR-31).

Owns the value ``RawMessage`` and the parsing of the server's replies, in which the headers of the server follow those
of the publisher, who may have used the same names. It does not know whether a stream allows direct get.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from datetime import datetime
from operator import attrgetter

from natsproto import errors
from natsproto._core.replies.pending_replies import READ_AGAIN
from natsproto.errors._base import shown_payload
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._values.codec import Duration, decode, dumps
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.info import StoredMessage
from natsproto.jetstream._values.source import MessageSource, read_source
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import NO_HEADERS, Headers, parse_headers
from natsproto.protocol.subject import subscribe_subject

_VERSION = b"NATS/1.0\r\n"
# The server appends its headers in this order. A publisher's header of the same name comes earlier and cannot contain a
# line end, so the last Nats-Stream header is the first of the server's headers.
_STREAM_LINE, _SUBJECT_LINE = b"Nats-Stream: ", b"\r\nNats-Subject: "
_SEQUENCE_LINE, _TIME_LINE = b"\r\nNats-Sequence: ", b"\r\nNats-Time-Stamp: "
_MAX_SEQUENCE_DIGITS = 20  # of 64 bits
_MAX_TAIL_BYTES = (
    len(_TIME_LINE) + 39
)  # a time of up to 35 bytes and two line ends; all headers of a server are more than twice as long
_SERVER_HEADERS = re.compile(
    rb"Nats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: ([0-9]{1,20})\r\nNats-Time-Stamp: ([^\r]*)\r\n"
    rb"(?:Nats-Num-Pending: ([0-9]+)\r\nNats-Last-Sequence: ([0-9]+)\r\n)?"
)
_SERVER_HEADER_NAMES = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp")
_GO_TIME = re.compile(r"([0-9-]{10}) ([0-9:.]+) ([+-][0-9]{2})([0-9]{2}) \w+")  # the first servers with direct get


class RawMessage:
    """A stored message, created by the methods of its stream that read one.

    ``seq`` is its sequence in the stream and ``time`` the time when it was stored, to the nanosecond. ``headers`` are
    those of the publisher. ``num_pending`` is the number of later messages that match the request; it is 0 unless many
    messages were requested. Treat it as frozen.
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
        """The time when the stream stored it, parsed at the first use; InvalidReply when that fails."""
        time = self._time
        if isinstance(time, bytes):
            self._time = time = _read_time(time)
        return time

    @property
    def has_headers(self) -> bool:
        """True if the publisher set headers; cheaper than reading them."""
        return self._head is not None

    @property
    def headers(self) -> Headers:
        """The publisher's headers, parsed at the first use; empty when there are none."""
        head = self._head
        if head is None:
            return NO_HEADERS
        if type(head) is bytes:
            self._head = head = parse_headers(head)
        return head  # type: ignore[return-value]  # bytes were handled above

    @property
    def source(self) -> MessageSource | None:
        """Where the stream has this message from, if it has sources; None if it was published to it."""
        return None if self._head is None else read_source(self.headers)

    @property
    def size(self) -> int:
        """Bytes of subject, headers and payload together, as limits count them."""
        head, head_size = self._head, 0
        if head is not None:
            head_size = head._wire_size if isinstance(head, Headers) else len(head)
        subject = self.subject
        return (len(subject) if subject.isascii() else len(subject.encode("utf-8", "surrogateescape"))) + (
            head_size + len(self.data)
        )

    def __eq__(self, other: object) -> bool:
        """Compare stream, sequence and content."""
        if not isinstance(other, RawMessage):
            return NotImplemented
        return (self.stream, self.seq, self.subject, self.data, self.time, self.headers) == (
            *(other.stream, other.seq, other.subject, other.data, other.time, other.headers),
        )

    def __hash__(self) -> int:
        return hash((self.stream, self.seq))

    def __repr__(self) -> str:
        return (
            f"RawMessage(stream={self.stream!r}, seq={self.seq}, subject={self.subject!r}, {shown_payload(self.data)})"
        )


_head_of = attrgetter("_head")
_time_of = attrgetter("_time")


def stored_header_blocks(messages: Iterable[RawMessage]) -> list[bytes | Headers | None]:
    """Return the header blocks of many messages, unparsed; see ``message.header_blocks``."""
    return list(map(_head_of, messages))


def stored_times(messages: Iterable[RawMessage]) -> list[bytes | Timestamp]:
    """Return the times when many messages were stored: RFC 3339 as received, or a Timestamp if it was parsed before."""
    return list(map(_time_of, messages))


def _read_time(text: bytes) -> Timestamp:
    time = text.decode("ascii", "replace")
    if found := _GO_TIME.fullmatch(time):
        time = f"{found[1]}T{found[2]}{found[3]}:{found[4]}"
    try:
        return Timestamp.parse(time)
    except ValueError:
        raise errors.InvalidReply("RawMessage", "time", text, "must be a time") from None


# ---------------------------------------------------------------- replies of a server


class DirectReply(Message):
    """A reply to a direct get: a stored message, or a status."""

    __slots__ = ()

    @classmethod
    def of(cls, message: Message) -> DirectReply:
        """Return a reply as a DirectReply."""
        made = cls(message.subject, None, message.data, None)
        made._head = message._head
        return made

    def parts(self) -> tuple[RawMessage, int | None] | None:
        """Return the stored message and, when many were requested, the sequence sent before it; None for a status."""
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
            raise errors.InvalidReply("direct get", "headers", head[cut:], "are not those of a stored message")
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
        """Do the same after the headers were parsed: the last value of each name is the server's."""
        if "Nats-Stream" not in headers:
            return None
        said = {name: headers.last(name) for name in _SERVER_HEADER_NAMES}
        if not said["Nats-Sequence"].isdecimal():
            raise errors.InvalidReply("direct get", "headers", headers, "are not those of a stored message")
        own: list[tuple[str, str]] = []
        for name in headers:
            values = headers.get_all(name)
            own += [(name, value) for value in (values[:-1] if name in _SERVER_HEADER_NAMES else values)]
        published = Headers(own)
        published._status, published._description = headers._status, headers._description
        message = RawMessage(
            said["Nats-Stream"],
            said["Nats-Subject"],
            int(said["Nats-Sequence"]),
            said["Nats-Time-Stamp"].encode("utf-8", "surrogateescape"),
            self.data,
            published,
        )
        return message, None


def status_error(code: int, description: str, operation: str) -> errors.ApiError:
    """Return the error for a status. The server sends no err_code with it, so the closest one is used."""
    if code == 404:
        return errors.MessageNotFound(404, ErrCode.NO_MESSAGE_FOUND, description.lower(), operation)
    if code == 408:
        return errors.BadRequest(408, 0, description, operation)
    if code == 412:
        return errors.ApiError(412, ErrCode.REQUIRED_API_LEVEL, description, operation)
    if code == 413:
        return errors.LimitReached(413, 0, f"{description}: more than 1,024 subjects match", operation)
    return errors.ApiError(code, 0, description or "status without a message", operation)


async def direct_get(
    api: Api, stream: str, body: Mapping[str, object], *, key: str = "", operation: str, timeout: Duration | None
) -> RawMessage:
    """Get a message from any server that has the stream. NoResponders when the stream does not allow it, or is gone.

    With ``key``, the message's subject is part of the request's subject, so that permissions can apply to it.
    """
    endpoint = f"DIRECT.GET.{stream}{'.' if key else ''}{key}"
    try:
        reply = await api.request(endpoint, b"" if key else dumps(body), api.seconds(timeout), resending=READ_AGAIN)
    except errors.ConnectionClosed as exc:
        raise errors.ConnectionClosed(operation, exc.reason) from exc.reason
    return _stored(reply, operation)


def _stored(message: Message, operation: str) -> RawMessage:
    reply = DirectReply.of(message)
    if found := reply.parts():
        return found[0]
    raise status_error(reply.headers._status, reply.headers._description, operation)


class LastGet:
    """A prepared direct get of the last message of one subject, which key/value gets repeat.

    The subject of the request is its only argument, and the beginning of the reply's headers is known. If the publisher
    set no headers, only a sequence and a time follow, which are parsed at their first use.
    """

    __slots__ = ("_api", "_begin", "_request", "_stream", "_wire", "subject")

    def __init__(self, api: Api, stream: str, subject: str) -> None:
        self._api, self._stream = api, stream
        self.subject: str = subject
        """The subject of the message."""
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
        """Send the request; await the reply at once. NoResponders when the stream does not allow it, or is gone."""
        api = self._api
        return api.request_encoded(self._request, self._wire, b"", api.seconds(timeout), None, READ_AGAIN)

    def headerless(self, reply: Message) -> bytes | None:
        """Return the headers of a reply with a message whose publisher set no headers; None for any other reply."""
        head = reply._head
        if type(head) is bytes and head.startswith(self._begin):
            begin = len(self._begin)
            end = head.find(_TIME_LINE, begin, begin + _MAX_SEQUENCE_DIGITS + len(_TIME_LINE))
            # A publisher may have set the same headers; then those of the server follow.
            if head[begin:end].isdigit() and len(head) - end <= _MAX_TAIL_BYTES:
                return head
        return None

    def read(self, reply: Message) -> RawMessage:
        """Return the message in a reply. MessageNotFound or the error for another status; InvalidReply."""
        return _stored(reply, f"last message of {self.subject!r} in stream {self._stream!r}")


def headerless_message(head: bytes, data: bytes) -> RawMessage:
    """Return the message with this payload and these headers, which ``LastGet.headerless`` has returned."""
    stream, subject, seq, time = (line.partition(b": ")[2] for line in head.split(b"\r\n")[1:5])
    return RawMessage(stream.decode(), subject.decode("utf-8", "surrogateescape"), int(seq), time, data)


async def leader_get(
    api: Api, stream: str, body: Mapping[str, object], *, operation: str, timeout: Duration | None
) -> RawMessage:
    """Get a message from the stream's leader, which has every acknowledged message.

    ``no_hdr`` in the body omits the publisher's headers (servers before 2.12 send them anyway).
    """
    payload = await api.call(f"STREAM.MSG.GET.{stream}", body, operation=operation, timeout=timeout)
    stored = decode(StoredMessage, payload.get("message"))
    head = None if "no_hdr" in body else stored.hdrs or None
    return RawMessage(stream, stored.subject, stored.seq, stored.time, stored.data, head)


class StreamLeader:
    """Looks at the leader of a stream for what another server does not have: a replica or a mirror may lag, or be
    refilled.

    A user without permission for it is not refused each time: the first refusal is remembered.
    """

    __slots__ = ("_api", "_stream", "denied")

    def __init__(self, api: Api, stream: str) -> None:
        self._api, self._stream = api, stream
        self.denied: errors.PermissionDenied | None = None
        """The refusal, once there was one."""

    async def get(self, body: Mapping[str, object], *, operation: str, timeout: Duration | None) -> RawMessage | None:
        """Return the leader's message; None when it has none."""
        try:
            return await leader_get(self._api, self._stream, body, operation=operation, timeout=timeout)
        except errors.MessageNotFound:
            return None

    async def find(self, body: Mapping[str, object], *, operation: str, timeout: Duration | None) -> RawMessage | None:
        """Return the leader's message; None when it has none, or may not be asked."""
        if self.denied is None:
            try:
                return await self.get(body, operation=operation, timeout=timeout)
            except errors.PermissionDenied as exc:
                self.denied = exc
        return None


def check_start_time(message: RawMessage, since: datetime, operation: str) -> None:
    """Raise UnsupportedByServer when a message is older than the start time: the server has ignored it."""
    if message.time < since:
        raise errors.UnsupportedByServer(operation, "a start time needs nats-server 2.11 or newer")
