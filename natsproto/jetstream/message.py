"""JetStream messages: where a message stands in its stream, and answering for it once.

Owns the ack subject (v1 and v2, ADR-15) and whether this message was acknowledged. It knows nothing of how
the message was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from natsproto.errors import AlreadyAcked, ConfigError, LocalProtocolError, NatsError
from natsproto.jetstream.codec import Duration, nanoseconds
from natsproto.jetstream.timestamp import Timestamp
from natsproto.protocol.frames import Message
from natsproto.protocol.pool import seconds
from natsproto.value import Value

if TYPE_CHECKING:
    from natsproto.core.connection import Connection
    from natsproto.protocol.headers import Headers

_ACK_PREFIX = b"$JS.ACK."
_NANOS = 2**63  # as many as a server counts, from 1970 to 2262


class Metadata(Value):
    """What the ack subject of a message tells.

    ``num_delivered`` counts deliveries, 1 for the first; ``num_pending`` the messages behind it that match the
    consumer. ``domain`` is empty outside of one.
    """

    domain: str
    stream: str
    consumer: str
    num_delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp: Timestamp
    num_pending: int

    def __getattr__(self, name: str) -> Timestamp:
        # A timestamp costs as much as all the rest, and few ask for it.
        nanos = self.__dict__.get("_nanos")
        if name != "timestamp" or nanos is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.__dict__["timestamp"] = timestamp = Timestamp.from_ns(nanos)
        return timestamp


class JsMessage(Message):
    """A message that a consumer delivered.

    Answer for it once: ``ack``, ``nak`` or ``term``, each with a twin that never waits. ``in_progress`` may be said
    any number of times before. A second answer raises AlreadyAcked and sends nothing.
    """

    __slots__ = ()

    _answer: bytes | None

    ack_wait: ClassVar[float] = 1.5
    """Seconds after which the server delivers it again unless it hears of it, as far as known. Nobody says so in a
    message: this is for consumers that were bound without asking, and as short as anybody sets it.
    """

    @classmethod
    def of(cls, message: Message) -> JsMessage:
        """A core message that came from a stream, as a JetStream message (the same bytes, nothing is copied).

        LocalProtocolError when its reply subject is no ack subject.
        """
        made = cls(message.subject, None, message.data, None, message._origin)
        made._reply, made._head = message._reply, message._head
        made.metadata  # noqa: B018  # raises for what did not come from a stream
        return made

    @classmethod
    def waiting(cls, ack_wait: float) -> type[JsMessage]:
        """The class of messages whose consumer waits so many seconds for an answer."""
        return _class_for(ack_wait)

    @property
    def metadata(self) -> Metadata:
        """Where the message stands. Read from the ack subject at every call; keep it if you need it often."""
        return read_ack_subject(self._ack_subject().decode("utf-8", "surrogateescape"))

    @property
    def counted_size(self) -> int:
        """What the server counts for it: not the pin header, which it adds afterwards (ADR-37)."""
        head = self._head
        if head is None or (type(head) is bytes and b"Nats-Pin-Id" not in head):
            return self.size  # nearly always: headers stay unread
        pin = self.headers.get("Nats-Pin-Id")
        return self.size - (0 if pin is None else len(pin) + len("Nats-Pin-Id: \r\n"))

    @property
    def position(self) -> tuple[str, int, int]:
        """Consumer, consumer sequence and stream sequence: a third of what ``metadata`` reads, at a third of its cost.

        LocalProtocolError when it was not delivered by a consumer.
        """
        tokens = self._ack_subject().split(b".")
        first = 5 if len(tokens) > 10 else 3 if len(tokens) == 9 else len(tokens)
        try:
            return tokens[first].decode(), int(tokens[first + 3]), int(tokens[first + 2])
        except (ValueError, IndexError):
            raise LocalProtocolError(f"{self.reply!r} is no ack subject") from None

    @property
    def stream_seq(self) -> int:
        """The stream sequence alone: a third of what ``position`` costs. LocalProtocolError as there."""
        reply = self._reply
        if type(reply) is bytes:
            words = reply.rsplit(b".", 4)
            if words[0] in _known:
                try:
                    return int(words[1])
                except ValueError:
                    pass  # it is told below
        return self._stream_seq()

    @property
    def is_status(self) -> bool:
        """Whether it is a word of the server to whoever reads, and no message of a stream.

        The status line alone does not tell: a publisher may have written one. But what comes from a stream has an ack
        subject.
        """
        if self._head is None:
            return False
        reply = self._reply
        start = reply[:8].encode() if isinstance(reply, str) else reply
        if start is not None and start.startswith(_ACK_PREFIX):
            return False
        return self.headers.status > 0

    @property
    def is_acked(self) -> bool:
        """Whether this object was answered for."""
        return self._answer is not None

    # ---------------------------------------------------------------- answering

    async def ack(self) -> None:
        """It is handled. Not confirmed: see ``ack_sync``. Waits only while the connection is congested."""
        if (origin := self._origin) is not None and (outbox := origin.outbox).wait_first:  # type: ignore[attr-defined]
            await outbox.turn()
        self.ack_nowait()

    def ack_nowait(self) -> None:
        """``ack`` that never waits: OutboxFull when the bound on waiting bytes is reached."""
        # What _say_nowait does, written out: a call for each would cost a tenth more.
        reply, origin = self._reply, self._origin
        if self._answer is not None or type(reply) is not bytes or origin is None or reply[:8] != _ACK_PREFIX:
            self._say_nowait(b"+ACK")  # raises, or the reply was looked at
        else:
            origin.answer_nowait(reply, b"+ACK")  # type: ignore[attr-defined]
            self._answer = b"+ACK"

    async def ack_sync(self, timeout: float | None = None) -> None:
        """``ack``, and waits until the server has it: what makes handling exactly once (with a message id).

        RequestTimeout, NoResponders (the consumer is gone), ConnectionLost: whether the server has it is then
        unknown, and the message may be answered for again. Cancelling leaves the same doubt.
        """
        self._claim(b"+ACK")
        try:
            reply = self._ack_subject().decode("utf-8", "surrogateescape")
            await self._connection().request(reply, b"+ACK", timeout=timeout)
        except BaseException:
            self._answer = None
            raise

    def ack_next_nowait(self, request: bytes, reply: str) -> None:
        """``ack``, and a pull request in the same message. For layers on top: ``PullConsumer.next(acking=…)``."""
        if self._answer is not None:
            raise AlreadyAcked(self.subject, _word(self._answer), _word(b"+ACK"))
        subject = self._ack_subject().decode("utf-8", "surrogateescape")
        self._connection().publish_nowait(subject, b"+NXT " + request, reply=reply)
        self._answer = b"+ACK"

    async def nak(self, delay: Duration | None = None) -> None:
        """It was not handled: deliver it again, now or after ``delay`` seconds."""
        await self._say(_nak(delay))

    def nak_nowait(self, delay: Duration | None = None) -> None:
        """``nak`` that never waits."""
        self._say_nowait(_nak(delay))

    async def term(self, reason: str = "") -> None:
        """Never deliver it again. The reason is part of the server's advisory."""
        await self._say(_term(reason))

    def term_nowait(self, reason: str = "") -> None:
        """``term`` that never waits."""
        self._say_nowait(_term(reason))

    async def in_progress(self) -> None:
        """It is being handled: the time to acknowledge it starts anew. AlreadyAcked when it was answered for."""
        await self._say(b"+WPI")
        self._answer = None

    @asynccontextmanager
    async def keep_alive(self, interval: Duration | None = None) -> AsyncGenerator[None]:
        """Says ``in_progress`` every ``interval`` seconds while the block runs, so that long work is not delivered to
        somebody else. Ends with the block or the answer.

        The default is a third of the consumer's ack_wait; 0.5 s when it is not known, because the consumer was bound
        without asking or the message made by ``js.message``.
        """
        pause = self.ack_wait / 3 if interval is None else seconds("interval", interval)
        if pause <= 0:
            raise ConfigError("interval", interval, "must be more than 0 seconds")
        teller = asyncio.create_task(self._tell_progress(pause), name="natsproto keep_alive")
        try:
            yield
        finally:
            teller.cancel()

    async def _tell_progress(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            if self._answer is not None:
                return
            try:
                await self.in_progress()
            except NatsError:
                continue  # a full outbox or a closed client: the answer to the message will say so

    # ---------------------------------------------------------------- how

    async def _say(self, words: bytes) -> None:
        if self._answer is None:
            await self._connection().breathe()
        self._say_nowait(words)

    def _say_nowait(self, words: bytes) -> None:
        if self._answer is not None:
            raise AlreadyAcked(self.subject, _word(self._answer), _word(words))
        reply = self._ack_subject()
        self._connection().answer_nowait(reply, words)
        self._answer = words

    def _claim(self, words: bytes) -> None:
        if self._answer is not None:
            raise AlreadyAcked(self.subject, _word(self._answer), _word(words))
        self._answer = words

    def _ack_subject(self) -> bytes:
        reply = self._reply
        if type(reply) is bytes and reply.startswith(_ACK_PREFIX):
            return reply  # nearly always
        if isinstance(reply, str):
            reply = reply.encode("utf-8", "surrogateescape")
        if reply is None or not reply.startswith(_ACK_PREFIX):
            raise LocalProtocolError(f"message on {self.subject!r} was not delivered by a consumer: nothing to ack")
        return reply

    def _stream_seq(self) -> int:
        subject, (*_, seq) = self._ack_subject(), self.position
        if subject.count(b".") in (8, 10):  # neither has words at its end that nobody knows yet
            if len(_known) >= 100:
                _known.clear()
            _known.add(subject.rsplit(b".", 4)[0])
        return seq

    def _connection(self) -> Connection:
        if self._origin is None:
            raise LocalProtocolError(f"message on {self.subject!r} came from no connection: there is nobody to answer")
        return self._origin  # type: ignore[return-value]  # what made the message

    def __repr__(self) -> str:
        answered = "" if self._answer is None else f", {_word(self._answer)}"
        return f"JsMessage(subject={self.subject!r}, {len(self.data)} bytes{answered})"


@lru_cache(256)
def _class_for(ack_wait: float) -> type[JsMessage]:
    """Costs a message nothing, where a slot of its own would cost 30 ns."""
    return type("JsMessage", (JsMessage,), {"__slots__": (), "__module__": __name__, "ack_wait": ack_wait})


_known: set[bytes] = set()
"""Ack subjects without their last four words: the same for all first deliveries of a consumer. 100 at most."""


_head_of = attrgetter("_head")
_reply_of = attrgetter("_reply")


def ack_subjects(messages: Iterable[Message]) -> list[bytes | str | None]:
    """Their ack subjects as they came off the wire, for readers of many at once: str where somebody looked before."""
    return list(map(_reply_of, messages))


def header_blocks(messages: Iterable[Message]) -> list[bytes | Headers | None]:
    """Their headers as they came off the wire, unread; Headers where somebody looked before, None where there are none.

    Reading a block costs 1.5 us; who makes columns of them reads a thousand at once.
    """
    return list(map(_head_of, messages))


def none_has_headers(messages: list[JsMessage]) -> bool:
    """Whether none of them, as they came off the wire, carries headers."""
    return not any(map(_head_of, messages))  # 25 ns a message; has_headers costs 60


def read_ack_subject(subject: str) -> Metadata:
    """What an ack subject tells; LocalProtocolError when it is none.

    v1 has 9 tokens, v2 (feature flag js_ack_fc_v2) 11 or more with domain (``_`` for none) and account hash in front.
    """
    tokens = subject.split(".")
    if len(tokens) == 9:
        domain, rest = "", tokens[2:]
    elif len(tokens) >= 11:
        domain, rest = ("" if tokens[2] == "_" else tokens[2]), tokens[4:11]
    else:
        raise LocalProtocolError(f"{subject!r} is no ack subject: {len(tokens)} tokens")
    stream, consumer, *numbers = rest
    try:
        delivered, stream_seq, consumer_seq, nanos, pending = map(int, numbers)
        if not -_NANOS < nanos < _NANOS:
            raise ValueError("no time")
    except ValueError:
        raise LocalProtocolError(f"{subject!r} is no ack subject: its numbers cannot be read") from None
    made = Metadata.__new__(Metadata)
    made.__dict__.update(
        domain=domain,
        stream=stream,
        consumer=consumer,
        num_delivered=delivered,
        stream_seq=stream_seq,
        consumer_seq=consumer_seq,
        num_pending=pending,
        _nanos=nanos,
    )
    return made


def _nak(delay: Duration | None) -> bytes:
    if delay is None:
        return b"-NAK"
    wait = nanoseconds(delay)
    if wait < 0:
        raise ConfigError("delay", delay, "must be 0 seconds or more")
    return b'-NAK {"delay": %d}' % wait


def _term(reason: str) -> bytes:
    return b"+TERM " + reason.encode() if reason else b"+TERM"


def _word(words: bytes) -> str:
    return {b"+ACK": "ack", b"-NAK": "nak", b"+TER": "term", b"+WPI": "in_progress"}[words[:4]]
