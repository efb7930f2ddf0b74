"""PURE. Ack subjects (ADR-15): what the server writes into the reply subject of a delivery.

    $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>
    $JS.ACK.<domain>.<account hash>.<stream>.<consumer>. … the same, and any number of tokens

The second form (v2, the feature flag js_ack_fc_v2) has ``_`` for no domain.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from natsproto import errors
from natsproto._value import Value
from natsproto.jetstream._values.timestamp import Timestamp

ACK_PREFIX: Final = b"$JS.ACK."
STREAM_AT: Final = (0,) * 9 + (2, 0, 4)
"""Where the name of the stream stands among 0 to 10 tokens, and among 11 and more; 0: this is no ack subject."""
MOST_TOKENS: Final = len(STREAM_AT) - 1
_MAX_NANOS = 2**63  # the range of the server's timestamps, from 1970 to 2262

AckSubject: TypeAlias = bytes | str | None
MessageKey: TypeAlias = tuple[bytes, bytes]
"""The sequence and the time of a message: a stream that has lost its end gives its sequences again."""


class Metadata(Value):
    """The metadata in the ack subject of a message.

    ``num_delivered`` counts deliveries, 1 for the first; ``num_pending`` counts the later messages for the consumer.
    ``domain`` is empty without a domain.
    """

    domain: str
    stream: str
    consumer: str
    num_delivered: int
    stream_seq: int
    """The message's number in the stream, which never changes."""
    consumer_seq: int
    """The number of this delivery among those of the consumer: a redelivery has a new one."""
    timestamp: Timestamp
    """When the stream stored it, UTC, with nanoseconds."""
    num_pending: int

    def __getattr__(self, name: str) -> Timestamp:
        # A timestamp costs as much as all the rest, and few programs use it.
        nanos = self.__dict__.get("_nanos")
        if name != "timestamp" or nanos is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.__dict__["timestamp"] = timestamp = Timestamp.from_ns(nanos)
        return timestamp


class Position(NamedTuple):
    """A delivery of a message, as its ack subject describes it."""

    key: MessageKey
    number: int
    """The number of the delivery of this message, from 1."""
    consumer_seq: int
    first: bytes
    """How the ack subjects of first deliveries begin; empty for a redelivery."""


def read_ack_subject(subject: str) -> Metadata:
    """Parse an ack subject; LocalProtocolError when it is not one."""
    tokens = subject.split(".")
    if not (at := STREAM_AT[min(len(tokens), MOST_TOKENS)]):
        raise errors.LocalProtocolError(f"{subject!r} is not an ack subject: {len(tokens)} tokens")
    domain = "" if len(tokens) < MOST_TOKENS or tokens[2] == "_" else tokens[2]
    stream, consumer, *numbers = tokens[at : at + 7]
    try:
        delivered, stream_seq, consumer_seq, nanos, pending = map(int, numbers)
        if not -_MAX_NANOS < nanos < _MAX_NANOS:
            raise ValueError("no time")
    except ValueError:
        raise errors.LocalProtocolError(f"{subject!r} is not an ack subject: its numbers cannot be read") from None
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


def position_of(subject: AckSubject) -> Position | None:
    """Read an ack subject; None for another subject, as anybody may publish to an inbox."""
    if isinstance(subject, str):
        subject = subject.encode("utf-8", "surrogateescape")
    tokens = (subject or b"").split(b".")
    if not (at := STREAM_AT[min(len(tokens), MOST_TOKENS)]):
        return None
    at += 3  # where the sequence stands
    if not (tokens[at - 1].isdigit() and tokens[at].isdigit() and tokens[at + 1].isdigit()):
        return None
    number = int(tokens[at - 1])
    first = b".".join(tokens[:at]) + b"." if number == 1 else b""
    return Position((tokens[at], tokens[at + 2]), number, int(tokens[at + 1]), first)
