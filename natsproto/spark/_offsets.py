"""PURE. Sequences of a stream: offsets of a streaming query, ranges, pull sizes and the check for lost messages.

An ``Offset`` is what Spark keeps in its checkpoint and compares as text. A micro-batch that runs again gets the same
two offsets, and what it reads depends only on them, because the stream may have changed since.

The checkpoint holds the end of the first batch, but not its start: Spark asks for the initial offset again, and
"latest" is another sequence by then. So every offset carries the sequence where the query began (``base``), and a
first batch starts at the base of its end. It also carries the number of partitions, as message ids count rows within
them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import ceil, sqrt

from natsproto._value import Value
from natsproto.errors import ConfigError, DataLost
from natsproto.jetstream._asset_names import check_stream_name
from natsproto.jetstream._codec import UINT64
from natsproto.jetstream._info import StreamInfo

log = logging.getLogger("natsproto.spark")

VERSION = 1
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


class StreamOffset(Value):
    """A position in a stream: ``seq`` is read next. ``base`` is the sequence where the query began, 0 if unknown."""

    stream: str
    seq: int
    created: str
    base: int = 0

    @property
    def initial(self) -> bool:
        """True if nothing was read yet."""
        return self.seq == self.base

    @classmethod
    def first(cls, stream: str, now: StreamBounds) -> StreamOffset:
        """Before the first message that the stream has."""
        return cls(stream=stream, seq=now.first_seq, created=now.created, base=now.first_seq)

    @classmethod
    def end(cls, stream: str, now: StreamBounds) -> StreamOffset:
        """After the last message that the stream has."""
        return cls(stream=stream, seq=now.last_seq + 1, created=now.created)


class Offset(Value):
    """The offset of a query: its position in each of its streams, by name."""

    streams: tuple[StreamOffset, ...]
    partitions: int = 0

    def get(self, stream: str) -> StreamOffset | None:
        """The position in a stream; None if the query has not found the stream yet."""
        return next((offset for offset in self.streams if offset.stream == stream), None)

    def json(self) -> dict[str, object]:
        """The offset in Spark's checkpoint; the order of the keys is part of the format."""
        return {
            "v": VERSION,
            "s": {offset.stream: {"seq": offset.seq, "created": offset.created} for offset in self.streams},
            "base": {offset.stream: offset.base for offset in self.streams},
            "n": self.partitions,
        }

    @classmethod
    def read(cls, saved: Mapping[str, object]) -> Offset:
        """Reads an offset of a checkpoint. ConfigError if it is not one, or of an unknown version."""
        if saved.get("v") != VERSION:
            raise ConfigError(
                "checkpoint", saved, f"is no offset of version {VERSION}: it was written by something else"
            )
        offsets, bases, partitions = saved.get("s"), saved.get("base", {}), saved.get("n", 0)
        if not isinstance(offsets, dict) or not isinstance(bases, dict) or not _is_count(partitions):
            raise ConfigError("checkpoint", saved, "is no offset: its fields cannot be read")
        found = []
        for stream in sorted(offsets):
            offset, base = offsets[stream], bases.get(stream, 0)
            seq, created = (offset.get("seq"), offset.get("created")) if isinstance(offset, dict) else (None, None)
            if not isinstance(created, str) or not _is_count(seq) or not _is_count(base):
                raise ConfigError("checkpoint", saved, "is no offset: its fields cannot be read")
            found.append(StreamOffset(stream=stream, seq=int(str(seq)), created=created, base=base))
        return cls(streams=tuple(found), partitions=int(str(partitions)))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


class BatchRange(Value):
    """The sequences of a batch, both inclusive; ``last`` is before ``first`` when there are none.

    ``recreated`` if the stream is not the one that the query has read so far.
    """

    first: int
    last: int
    recreated: bool = False


def batch_range(start: StreamOffset | None, end: StreamOffset) -> BatchRange:
    """The sequences of the batch between two offsets; without ``start`` the stream is new to the query."""
    if start is None:
        return BatchRange(first=end.base or 1, last=end.seq - 1)
    if start.created != end.created:
        return BatchRange(first=end.base or 1, last=end.seq - 1, recreated=True)
    first = end.base if start.initial and end.base else start.seq
    return BatchRange(first=first, last=end.seq - 1)


def advance(
    start: StreamOffset,
    now: StreamBounds,
    *,
    max_count: int | None = None,
    until: int | None = None,
    from_first_message: bool = False,
) -> StreamOffset:
    """The end of the next batch: at most ``max_count`` sequences later, and not after the sequence ``until``.

    ``start`` itself if there is nothing new. A recreated stream is read from its first message. With
    ``from_first_message`` the first batch starts at the first message that the stream still has.
    """
    last = now.last_seq if until is None else min(now.last_seq, until)
    if from_first_message and start.initial and start.seq < now.first_seq <= last:
        start = start.replace(base=now.first_seq, seq=now.first_seq)
    if start.created != now.created:
        base = now.first_seq
        start = start.replace(created=now.created, base=base, seq=base)
    # Removed messages alone make no batch.
    begin = max(start.seq, now.first_seq)
    end = last + 1 if max_count is None else min(last + 1, begin + max_count)
    return start if end <= start.seq else start.replace(seq=end)


def lost_range(start: StreamOffset, now: StreamBounds) -> tuple[int, int] | None:
    """The unread sequences that the stream has removed, both inclusive; None if there are none."""
    if start.created != now.created or start.seq >= now.first_seq or start.seq > now.last_seq or now.only_replaces:
        return None
    return start.seq, now.first_seq - 1


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divides ``total`` in proportion to the weights; every share is at least 1, unless ``total`` is 0."""
    whole = sum(weights)
    return [max(min(1, total), total * weight // whole) if whole else total for weight in weights]


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
    removes before the range is first read are no data loss.
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
                raise ConfigError(name, value, f"must be a sequence from {least} on")


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
        error = DataLost(self._range.stream, self._next, self._range.end, reason)
        if self._strict:
            raise error
        log.warning("%s", error)
