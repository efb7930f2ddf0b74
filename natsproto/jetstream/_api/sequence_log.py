"""PURE. The acknowledgements of a context: sequences that go back, and servers that acknowledge nothing any more.

A server that lost the end of its store gives sequences twice. Only acknowledgements are compared, and only with one
that had come before the message was sent: reads may lag, and acknowledgements of messages in flight overtake each
other.

A server whose disk is full answers pings and requests, and sends neither an acknowledgement nor an error for a message.
"""

from __future__ import annotations

from typing import NamedTuple

from natsproto.jetstream._values.info import PubAck


class AckedSequence(NamedTuple):
    """A sequence, and when its acknowledgement came, in seconds of the event loop."""

    seq: int
    acked_at: float


class SequenceLog:
    """The highest acknowledged sequence of each stream of a JetStream context, and the timeouts in a row."""

    __slots__ = ("_acked_at", "_first_sent_at", "_highest", "_timeouts")

    def __init__(self) -> None:
        self._timeouts = 0
        self._acked_at = self._first_sent_at = 0.0
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

    def on_timeout(self, sent_at: float, confirmed_at: float) -> int:
        """A message got no acknowledgement in time. Return how many in a row, if the server has received the first.

        It was sent at ``sent_at``; the server has answered a ping that followed what was sent before ``confirmed_at``.
        """
        acked_at = max((when for _, when in self._highest.values()), default=0.0)
        if not self._timeouts or acked_at != self._acked_at:
            self._timeouts, self._acked_at, self._first_sent_at = 0, acked_at, sent_at
        self._timeouts += 1
        return self._timeouts if confirmed_at >= self._first_sent_at else 0
