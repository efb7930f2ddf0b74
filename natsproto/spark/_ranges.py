"""PURE. Ranges of a stream: sequences, pull sizes and the check for lost messages.

Everything is decided from the range, the stream's info and the messages that came. ``_range_reader`` reads.
"""

from __future__ import annotations

import logging
from math import ceil, sqrt

from natsproto import errors
from natsproto._value import Value
from natsproto.jetstream import StreamInfo
from natsproto.jetstream._values.asset_names import check_stream_name
from natsproto.jetstream._values.codec import UINT64

log = logging.getLogger("natsproto")

AUTO_PARTITIONS = 4
"""Default number of partitions of a small batch; more were no faster on 2 cores."""
PARTITION_SEQUENCES = 100_000
"""Sequences in a partition of a bigger batch."""
MAX_AUTO_PARTITIONS = 200
MIN_PARTITION_SEQUENCES = 2000
"""Smallest partition, unless the number of partitions is given."""


class StreamBounds(Value):
    """The state of a stream. ``created`` distinguishes it from another one of the same name."""

    created: str
    first_seq: int
    last_seq: int
    messages: int = 0
    nbytes: int = 0
    only_replaces: bool = False
    """True if messages are only replaced by newer ones of their subject, as in a bucket: that is no data loss."""
    reads_directly: bool = False
    """True if the stream allows direct get, which counts messages by subject."""

    @classmethod
    def of(cls, info: StreamInfo) -> StreamBounds:
        """From the server's stream info. An empty stream starts after its last message."""
        state, config = info.state, info.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_age > 0
        return cls(
            created=info.created.rfc3339(),
            first_seq=max(1, state.first_seq),
            last_seq=state.last_seq,
            messages=state.messages,
            nbytes=state.bytes,
            only_replaces=config.max_msgs_per_subject > 0 and not limited,
            reads_directly=config.allow_direct,
        )

    def bytes_of(self, sequences: int) -> int:
        """The number of bytes in a number of sequences, by the average of the stream."""
        return sequences * self.nbytes // max(1, self.last_seq - self.first_seq + 1)

    def sequences_in(self, nbytes: int) -> int:
        """The number of sequences that hold about ``nbytes``, by the average of the stream; at least 1."""
        if not self.messages or not self.nbytes:
            return max(1, nbytes)
        spread = (self.last_seq - self.first_seq + 1) / self.messages  # deleted messages leave their sequences
        return max(1, int(nbytes * self.messages / self.nbytes * spread))


def auto_partitions(count: int) -> int:
    """The default number of partitions for ``count`` sequences."""
    by_size = min(MAX_AUTO_PARTITIONS, ceil(count / PARTITION_SEQUENCES))
    return max(min(AUTO_PARTITIONS, ceil(count / MIN_PARTITION_SEQUENCES)), by_size)


def split_range(first: int, last: int, partitions: int = 0) -> list[tuple[int, int]]:
    """Splits sequences into ``partitions`` runs of nearly equal length, in order; 0: by ``auto_partitions``."""
    count = last - first + 1
    if count <= 0:
        return []
    wanted = partitions or auto_partitions(count)
    parts = min(wanted, count)
    return [(first + count * part // parts, first + count * (part + 1) // parts - 1) for part in range(parts)]


class SeqRange(Value):
    """Sequences of a stream, ``start`` to ``end``, both inclusive.

    ``created`` (RFC 3339) is the stream's creation time, by which another one of the same name is detected; "" for any.
    ``earliest``: ``start`` is only the first message that the stream had when the range was planned. Messages that it
    removes before the range is first read are no data loss. Of several ranges it is the first one only: what the stream
    removes of the others would be a hole.
    """

    stream: str
    start: int
    end: int
    created: str = ""
    earliest: bool = False

    def _check(self) -> None:
        check_stream_name(self.stream)
        for name, least in (("start", 1), ("end", self.start)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= UINT64:
                raise errors.ConfigError(name, value, f"must be a sequence from {least} on")


def parts_of(seq_range: SeqRange, number: int = 0) -> list[SeqRange]:
    """A range as up to ``number`` ranges of nearly equal length, in order; 0: by ``auto_partitions``."""
    return [
        seq_range.replace(start=first, end=last, earliest=seq_range.earliest and first == seq_range.start)
        for first, last in split_range(seq_range.start, seq_range.end, number)
    ]


class PullSize:
    """PURE. The size of each pull, so that the server sends few messages that are not read.

    The first pull is small, as readers may stop after a few rows, and each is four times the one before. A full
    stream that removes messages is read with the largest pulls from the start: small ones would not keep ahead of
    it. No pull requests more messages than the range is likely to have, by the share of its sequences that matched.
    """

    FIRST_PULL = 64

    def __init__(self, seq_range: SeqRange, max_count: int) -> None:
        self._range, self._max_sequences = seq_range, max_count
        self.step = 0
        """The size of the last pull before it was limited to the range."""
        self._position, self._received = seq_range.start - 1, 0

    def use_largest(self) -> None:
        """Makes every later pull as large as allowed: the stream removes the messages that are next."""
        self.step = self._max_sequences

    def on_messages(self, count: int, position: int) -> None:
        """Notes ``count`` messages, the last of which has the sequence ``position``."""
        self._received += count
        self._position = position

    def next(self) -> int:
        """The size of the next pull."""
        self.step = min(4 * self.step or self.FIRST_PULL, self._max_sequences)
        left = self._range.end - self._position
        passed = self._position - self._range.start + 1
        if self._received < passed:
            likely = left * self._received / passed
            left = min(left, ceil(likely + sqrt(likely)))
        return max(1, min(self.step, left))


class DataLossCheck:
    """PURE. Detects messages of a range that were removed before they were read.

    Single deleted messages leave gaps that are no loss. Limits and purges remove the first messages of the stream:
    if the stream's first message is not after a gap when the messages around it are read, nothing was lost.
    """

    def __init__(self, seq_range: SeqRange, strict: bool) -> None:
        self._range, self._strict = seq_range, strict
        self._next = seq_range.start
        self._unread = seq_range.earliest  # removed messages are no loss yet

    def begin(self, info: StreamInfo) -> bool:
        """Called before reading; True if the range has messages. DataLost if some are gone already."""
        now = StreamBounds.of(info)
        self.compare(info)
        if now.last_seq < self._range.end:
            self._missing(f"the stream ends at {now.last_seq}")
        return now.first_seq <= self._range.end and now.last_seq >= self._range.start

    @property
    def first_seq_moves(self) -> bool:
        """True if the stream has removed messages of the range since it was planned, and none was read yet."""
        return self._unread and self._next > self._range.start

    def is_complete(self, up_to: int, count: int, first: int) -> bool:
        """True if ``count`` messages are all that follow the last checked ones up to ``up_to``."""
        return up_to - (first if self._unread else self._next) + 1 == count

    def advance(self, up_to: int, found: bool) -> None:
        """Marks everything up to ``up_to`` as checked; ``found`` if there were messages."""
        self._next = up_to + 1
        self._unread = self._unread and not found

    def compare(self, info: StreamInfo) -> int:
        """The next sequence to read. DataLost if the stream no longer has messages that are still to be read."""
        now = StreamBounds.of(info)
        if self._range.created and self._range.created != now.created:
            self._missing(f"the stream was created anew at {now.created}")
        elif now.first_seq > self._next and not now.only_replaces:
            if self._unread:
                log.info("stream %s begins at %d now: it is read from there", self._range.stream, now.first_seq)
                self._next = now.first_seq
            else:
                self._missing(f"the stream begins at {now.first_seq} now")
        return self._next

    def _missing(self, reason: str) -> None:
        error = errors.DataLost(self._range.stream, self._next, self._range.end, reason)
        if self._strict:
            raise error
        log.warning("%s", error)
