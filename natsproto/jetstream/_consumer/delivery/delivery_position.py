"""Which message a delivery brings, and how often it was delivered: the ack subject as the readers need it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from natsproto import errors
from natsproto.jetstream._consumer.message import DeliveryStamp, JsMessage

AckSubject: TypeAlias = bytes | str | None
MessageKey: TypeAlias = tuple[bytes, bytes]
"""The sequence and the time of a message: a stream that has lost its end gives its sequences again."""


class Position(NamedTuple):
    """A delivery of a message, as its ack subject describes it."""

    key: MessageKey
    number: int
    """The number of the delivery of this message, from 1."""
    consumer_seq: int
    first: bytes
    """How the ack subjects of first deliveries begin; empty for a redelivery."""


def position_of(subject: AckSubject) -> Position | None:
    """Read an ack subject; None for another subject, as anybody may publish to an inbox."""
    if isinstance(subject, str):
        subject = subject.encode("utf-8", "surrogateescape")
    tokens = (subject or b"").split(b".")
    at = 0  # where the sequence stands
    if len(tokens) == 9:
        at = 5
    elif len(tokens) > 10:
        at = 7
    if not at or not (tokens[at - 1].isdigit() and tokens[at].isdigit() and tokens[at + 1].isdigit()):
        return None
    number = int(tokens[at - 1])
    first = b".".join(tokens[:at]) + b"." if number == 1 else b""
    return Position((tokens[at], tokens[at + 2]), number, int(tokens[at + 1]), first)


def number_of(message: JsMessage) -> int:
    """The number of the delivery, from 1."""
    try:
        return message.metadata.num_delivered
    except errors.LocalProtocolError:
        return 1  # somebody has published to the inbox


def age_of(message: JsMessage, now: float) -> float:
    """Seconds for which the server has waited for its acknowledgement, at most; 0 once it is settled."""
    note = message._note
    return now - note.since if type(note) is DeliveryStamp and note.arrived else 0.0
