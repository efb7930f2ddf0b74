"""PURE. Adapts the prefetch to the pace of the reader when the caller sets no bound."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from operator import attrgetter
from typing import Final, Protocol

from natsproto._durations import NO_LIMIT_S
from natsproto.jetstream._consumer.pull_options import DEFAULT_MAX_MESSAGES

MAX_PREFETCH: Final = 4096
"""With 500 initial values of a key/value watch come at a third of the speed, with more than this hardly faster."""
PREFETCH_SPAN_S: Final = 0.1
"""Seconds of reading to prefetch: more than a round trip takes."""
MAX_PREFETCH_BYTES: Final = 16 * 2**20
"""Bytes to prefetch at most, estimated from received messages: a server disconnects a client with 64 MiB pending."""
MAX_PULL_BYTES: Final = 2 * MAX_PREFETCH_BYTES
"""Bytes that a pull of more than DEFAULT_MAX_MESSAGES messages may bring, if messages suddenly grow."""
SAMPLES_PER_BATCH: Final = 8
"""Messages of a batch whose size is measured; measuring each would cost a quarter of the speed."""
_MIN_SAMPLE_MESSAGES: Final = 64  # messages, to judge a reader by
_data_of = attrgetter("data")


class HasPayload(Protocol):
    """A message, as far as its size is needed."""

    @property
    def data(self) -> Sized:
        """The payload."""
        ...


class Prefetch(Protocol):
    """The number of messages that may be requested, unread or in work: adapted to the reader."""

    @property
    def adapts_bytes(self) -> bool:
        """True if it also limits the bytes; then ``reset`` is called when messages have become much bigger."""
        ...

    @property
    def expires(self) -> float:
        """The longest time of a pull, in seconds."""
        ...

    @property
    def bound(self) -> int:
        """The number by the last decision."""
        ...

    @property
    def threshold(self) -> int:
        """The rest at which more messages are requested."""
        ...

    def decide(self) -> int:
        """Return the number from now on."""
        ...

    def reset(self) -> None:
        """Forget the measurements."""
        ...


class AdaptivePrefetch:
    """The number of messages that may be in flight or unread, adapted to the reader.

    It is as many as the reader consumes within PREFETCH_SPAN_S, from DEFAULT_MAX_MESSAGES to MAX_PREFETCH, and about
    MAX_PREFETCH_BYTES of payload at most. With too few a fast reader waits for the server; with too many a slow one
    holds messages in vain. It is for readers that share their messages with no one and acknowledge none: prefetched
    messages would be missing elsewhere, and be redelivered when a fast reader becomes slow.

    Only the time counts in which messages waited for the reader. It is passed in as float seconds of a clock that
    advances within a turn of the event loop, which a reader may keep busy.
    """

    __slots__ = ("_busy", "_consumed", "_mean_size", "_pace", "_since", "adapts_bytes", "bound", "expires", "threshold")

    def __init__(self) -> None:
        self.adapts_bytes: bool = True
        self.expires: float = NO_LIMIT_S
        self.bound: int = DEFAULT_MAX_MESSAGES
        """The number by the pace of the last decision."""
        self.threshold: int = -(-self.bound // 2)
        """Half of the bound."""
        self._pace = DEFAULT_MAX_MESSAGES
        self._consumed = 0
        self._since = self._busy = 0.0
        self._mean_size = 0  # bytes of a message

    def on_messages(self, messages: Sequence[HasPayload], waiting: int, now: float) -> None:
        """Record received messages; ``waiting`` others are unread."""
        if not waiting:
            self._since = now
        sample = messages[:: -(-len(messages) // SAMPLES_PER_BATCH)]
        mean_size = sum(map(len, map(_data_of, sample))) // len(sample)
        if mean_size != self._mean_size:
            self._mean_size = mean_size
            self._limit()

    def on_consumed(self, count: int, now: float) -> None:
        """Record consumed messages."""
        self._busy += now - self._since
        self._since = now
        self._consumed += count

    def reset(self) -> None:
        """Forget the measurements, because messages have become much bigger."""
        self._pace, self._consumed, self._busy = DEFAULT_MAX_MESSAGES, 0, 0.0
        self._limit()

    def decide(self) -> int:
        """Return the number from now on, from the measurements since the last decision."""
        if self._consumed >= _MIN_SAMPLE_MESSAGES:
            quick = self._consumed * PREFETCH_SPAN_S >= MAX_PREFETCH * self._busy
            measured = MAX_PREFETCH if quick else int(self._consumed * PREFETCH_SPAN_S / self._busy)
            self._pace = max(DEFAULT_MAX_MESSAGES, measured)
            self._consumed, self._busy = 0, 0.0
            self._limit()
        return self.bound

    def _limit(self) -> None:
        size = self._mean_size
        self.bound = max(1, min(self._pace, MAX_PREFETCH_BYTES // size)) if size else self._pace
        self.threshold = -(-self.bound // 2)
