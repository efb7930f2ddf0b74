"""PURE. How far to read ahead when nobody has said it: the measure of a reader."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from operator import attrgetter
from typing import Final, Protocol

from natsproto.jetstream._consumer.pull_options import DEFAULT_MAX_MESSAGES

MAX_PREFETCH: Final = 4096
"""With 500 initial values of a key/value watch come at a third of the speed, with more than this hardly faster."""
PREFETCH_SPAN_S: Final = 0.1
"""Seconds of reading that may be ahead: more than a round trip takes."""
MAX_PREFETCH_BYTES: Final = 16 * 2**20
"""Bytes that these should not pass, judged by those that came: a server cuts off whoever lets 64 MiB pile up."""
MAX_PULL_BYTES: Final = 2 * MAX_PREFETCH_BYTES
"""Bytes that a pull of more than DEFAULT_MESSAGES messages may bring, if they grow all of a sudden."""
SAMPLES_PER_BATCH: Final = 8
"""Messages of a batch that are weighed: to count the bytes of each would cost a quarter of the speed."""
_MIN_SAMPLE_MESSAGES: Final = 64  # messages, to judge a reader by
_data_of = attrgetter("data")


class HasPayload(Protocol):
    """What can be weighed."""

    @property
    def data(self) -> Sized:
        """The payload."""
        ...


class AdaptivePrefetch:
    """How many messages may be on their way or wait to be taken when nobody has said it.

    As many as the reader takes within PREFETCH_SPAN_S, from DEFAULT_MESSAGES to MAX_PREFETCH, but no more of them than
    PREFETCH_BYTES of payload are likely to hold. With few messages on their way a fast reader waits for the server; a
    slow one holds many in vain. It is for readers who have their messages to themselves and acknowledge none: what is
    read ahead would be missing elsewhere, and would come a second time when a fast reader turns slow.

    Only the time counts in which something waited for the reader; it is passed in (float seconds on a clock that goes
    on within a turn of the event loop, as a reader may keep that busy).
    """

    __slots__ = ("_busy", "_consumed", "_mean_size", "_pace", "_since")

    def __init__(self) -> None:
        self._pace = DEFAULT_MAX_MESSAGES
        self._consumed = 0
        self._since = self._busy = 0.0
        self._mean_size = 0  # bytes of a message

    def on_messages(self, messages: Sequence[HasPayload], waiting: int, now: float) -> None:
        """These came, and wait to be taken behind as many others."""
        if not waiting:
            self._since = now
        sample = messages[:: -(-len(messages) // SAMPLES_PER_BATCH)]
        self._mean_size = sum(map(len, map(_data_of, sample))) // len(sample)

    def on_consumed(self, count: int, now: float) -> None:
        """So many of them were taken."""
        self._busy += now - self._since
        self._since = now
        self._consumed += count

    def reset(self) -> None:
        """What was seen is no longer true: messages are much bigger."""
        self._pace, self._consumed, self._busy = DEFAULT_MAX_MESSAGES, 0, 0.0

    def decide(self) -> int:
        """How many it is from now on, by what was seen since the last decision."""
        if self._consumed >= _MIN_SAMPLE_MESSAGES:
            quick = self._consumed * PREFETCH_SPAN_S >= MAX_PREFETCH * self._busy
            measured = MAX_PREFETCH if quick else int(self._consumed * PREFETCH_SPAN_S / self._busy)
            self._pace = max(DEFAULT_MAX_MESSAGES, measured)
            self._consumed, self._busy = 0, 0.0
        return self.bound

    @property
    def bound(self) -> int:
        """How many it is, by the pace of the last decision."""
        return max(1, min(self._pace, MAX_PREFETCH_BYTES // self._mean_size)) if self._mean_size else self._pace
