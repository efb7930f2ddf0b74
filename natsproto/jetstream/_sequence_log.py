"""PURE. The highest acknowledged sequence of each stream, to notice sequences that go back.

A server that lost the end of its store gives sequences twice. Only acknowledgements are compared, and only with one
that had come before the message was sent: reads may lag, and acknowledgements of messages in flight overtake each
other.
"""

from __future__ import annotations

from typing import NamedTuple

from natsproto.jetstream._info import PubAck


class AckedSequence(NamedTuple):
    """A sequence, and when its acknowledgement came, in seconds of the event loop."""

    seq: int
    acked_at: float


class SequenceLog:
    """The highest acknowledged sequence of each stream of a JetStream context."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: dict[str | tuple[str, str], tuple[int, float]] = {}

    def on_ack(self, ack: PubAck, sent_at: float, now: float) -> AckedSequence | None:
        """Record an acknowledgement. Return the highest sequence before if the stream went back behind it: once."""
        key = (ack.domain, ack.stream) if ack.domain else ack.stream
        highest, seq = self._highest.get(key), ack.seq
        if highest is None or seq > highest[0]:
            self._highest[key] = seq, now
            return None
        if ack.duplicate or sent_at <= highest[1]:
            return None
        self._highest[key] = seq, now
        return AckedSequence(*highest)
