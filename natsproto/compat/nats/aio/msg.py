"""``nats.aio.msg``: the messages of subscriptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from natsproto import Message
from natsproto.compat._peers import ClientPeer
from natsproto.compat.nats.errors import Error, MsgAlreadyAckdError, NotJSMessageError
from natsproto.protocol.subject import is_api_subject


@dataclass
class Msg(Message):
    """A message. ``reply`` is "" when no reply is expected; ``headers`` is None when there are none."""

    _client: ClientPeer
    subject: str = ""
    reply: str = ""  # pyright: ignore[reportIncompatibleMethodOverride]
    data: bytes = b""
    headers: dict[str, str] | None = None  # type: ignore[assignment]  # natsproto's are an object of their own
    _metadata: Metadata | None = None
    _ackd: bool = False
    _sid: int | None = None

    class Ack:
        Ack = b"+ACK"
        Nak = b"-NAK"
        Progress = b"+WPI"
        Term = b"+TERM"
        Prefix0 = "$JS"
        Prefix1 = "ACK"
        Domain = 2
        AccHash = 3
        Stream = 4
        Consumer = 5
        NumDelivered = 6
        StreamSeq = 7
        ConsumerSeq = 8
        Timestamp = 9
        NumPending = 10

    @dataclass(frozen=True)
    class Metadata:
        sequence: SequencePair
        num_pending: int
        num_delivered: int
        timestamp: datetime
        stream: str
        consumer: str
        domain: str | None = None

        @dataclass(frozen=True)
        class SequencePair:
            consumer: int
            stream: int

    def __post_init__(self) -> None:
        self._origin = None  # not received by itself: it is made of another message, or by a program

    @property
    def header(self) -> dict[str, str] | None:
        return self.headers

    @property
    def has_headers(self) -> bool:
        return self.headers is not None

    @property
    def is_acked(self) -> bool:
        return self._ackd

    @property
    def sid(self) -> int:
        if self._sid is None:
            raise Error("sid not set")
        return self._sid

    @property
    def metadata(self) -> Metadata:
        """The message's metadata. NotJSMessageError when it is not from a stream."""
        if self._metadata is None:
            self._metadata = _metadata_of(self.reply)
        return self._metadata

    async def respond(self, data: bytes) -> None:  # type: ignore[override]
        if not self.reply:
            raise Error("no reply subject available")
        if not self._client:
            raise Error("client not set")
        await self._client._respond(self.reply, data, self.headers)

    async def ack(self) -> None:
        self._check_reply()
        await self._client._answer(self.reply, self.Ack.Ack)
        self._ackd = True

    async def ack_sync(self, timeout: float = 1.0) -> Msg:
        self._check_reply()
        if is_api_subject(self.reply):
            raise NotJSMessageError
        answer: Msg = await self._client.request(self.reply, self.Ack.Ack, timeout=timeout)
        self._ackd = True
        return answer

    async def nak(self, delay: float | None = None) -> None:
        """Reject the message: the server redelivers it, at once or after ``delay`` seconds."""
        self._check_reply()
        words = self.Ack.Nak
        if delay:
            words += b" " + json.dumps({"delay": int(delay * 1_000_000_000)}).encode()
        await self._client._answer(self.reply, words)
        self._ackd = True

    async def in_progress(self) -> None:
        if not self.reply:
            raise NotJSMessageError
        await self._client._answer(self.reply, self.Ack.Progress)

    async def term(self) -> None:
        self._check_reply()
        await self._client._answer(self.reply, self.Ack.Term)
        self._ackd = True

    def __copy__(self) -> Self:
        return replace(self)

    def _check_reply(self) -> None:
        if not self.reply:
            raise NotJSMessageError
        if self._ackd:
            raise MsgAlreadyAckdError(self)


class _Lazy:
    """A field of a message that natsproto made: worked out when it is first read, and then a plain attribute."""

    def __init__(self, name: str, read: Callable[[Msg], object]) -> None:
        self._name, self._read = name, read

    def __get__(self, msg: Msg | None, owner: object = None) -> object:
        if msg is None:
            return self
        found = msg.__dict__[self._name] = self._read(msg)
        return found


def _prepare(kind: type[Msg]) -> None:
    """Prepare the class so that natsproto can create its messages by filling slots, without ``__init__``.

    Each message has the client and the sid as its note.
    """
    del kind.subject, kind.data  # the defaults, which hide the slots
    read: dict[str, Callable[[Msg], object]] = {
        "_client": lambda msg: msg._note[0],
        "_sid": lambda msg: msg._note[1],
        "reply": lambda msg: Message.reply.__get__(msg) or "",
        "headers": headers_of,
    }
    for name, how in read.items():
        setattr(kind, name, _Lazy(name, how))


def _metadata_of(reply: str) -> Msg.Metadata:
    """Decode an ack subject: 9 tokens, or 11 and more with a domain and an account hash before them."""
    tokens = reply.split(".")
    domain: str | None = None
    if tokens[:2] != [Msg.Ack.Prefix0, Msg.Ack.Prefix1] or (len(tokens) != 9 and len(tokens) < 11):
        raise NotJSMessageError
    if len(tokens) > 9:
        domain = "" if tokens[2] == "_" else tokens[2]
        del tokens[2:4]
    stream, consumer, *numbers = tokens[2:9]
    delivered, stream_seq, consumer_seq, nanoseconds, pending = map(int, numbers)
    return Msg.Metadata(
        sequence=Msg.Metadata.SequencePair(consumer=consumer_seq, stream=stream_seq),
        num_pending=pending,
        num_delivered=delivered,
        timestamp=datetime.fromtimestamp(nanoseconds / 1_000_000_000, UTC),
        stream=stream,
        consumer=consumer,
        domain=domain,
    )


def headers_of(message: Message) -> dict[str, str] | None:
    """Return a message's headers as a dict: the last value of each name, and the status under its own names."""
    if not Message.has_headers.__get__(message):
        return None
    headers = Message.headers.__get__(message)
    found = {name: headers.last(name) for name in headers}
    if headers._status:
        found["Status"] = f"{headers._status:03}"
        if headers._description:
            found["Description"] = headers._description
    return found or None


_prepare(Msg)
