"""PURE. Offsets of a streaming query, and how its sequences are divided into batches and partitions.

An ``Offset`` is what Spark keeps in its checkpoint and compares as text. A micro-batch that runs again gets the same
two offsets, and what it reads depends only on them, because the stream may have changed since.

The checkpoint holds the end of the first batch, but not its start: Spark asks for the initial offset again, and
"latest" is another sequence by then. So every offset carries the sequence where the query began (``base``), and a
first batch starts at the base of its end. It also carries the number of partitions and their limit, as message ids
count rows within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from natsproto import errors
from natsproto._value import Value
from natsproto.spark._ranges import StreamBounds, auto_partitions

VERSION = 1


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
    partition_sequences: int = 0

    def get(self, stream: str) -> StreamOffset | None:
        """The position in a stream; None if the query has not found the stream yet."""
        return next((offset for offset in self.streams if offset.stream == stream), None)

    def json(self) -> dict[str, object]:
        """The offset in Spark's checkpoint; the order of the keys is part of the format."""
        limit = {"m": self.partition_sequences} if self.partition_sequences else {}
        return {
            "v": VERSION,
            "s": {offset.stream: {"seq": offset.seq, "created": offset.created} for offset in self.streams},
            "base": {offset.stream: offset.base for offset in self.streams},
            "n": self.partitions,
            **limit,
        }

    @classmethod
    def read(cls, saved: Mapping[str, object]) -> Offset:
        """Reads an offset of a checkpoint. ConfigError if it is not one, or of an unknown version."""
        if saved.get("v") != VERSION:
            raise errors.ConfigError(
                "checkpoint", saved, f"is no offset of version {VERSION}: it was written by something else"
            )
        offsets, bases, counts = saved.get("s"), saved.get("base", {}), (saved.get("n", 0), saved.get("m", 0))
        if not isinstance(offsets, dict) or not isinstance(bases, dict) or not all(map(_is_count, counts)):
            raise errors.ConfigError("checkpoint", saved, "is no offset: its fields cannot be read")
        found = []
        for stream in sorted(offsets):
            offset, base = offsets[stream], bases.get(stream, 0)
            seq, created = (offset.get("seq"), offset.get("created")) if isinstance(offset, dict) else (None, None)
            if not isinstance(created, str) or not _is_count(seq) or not _is_count(base):
                raise errors.ConfigError("checkpoint", saved, "is no offset: its fields cannot be read")
            found.append(StreamOffset(stream=stream, seq=int(str(seq)), created=created, base=base))
        partitions, limit = (int(str(count)) for count in counts)
        return cls(streams=tuple(found), partitions=partitions, partition_sequences=limit)


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


def partition_numbers(counts: Sequence[int], partitions: int, limit: int = 0) -> list[int]:
    """The number of partitions for each range; ``counts`` are the sequences of the ranges.

    They are about ``partitions`` in all (0: by their size), and more where one would have more than ``limit`` sequences
    (0: none).
    """
    wanted = shares(partitions, counts)
    if not limit:
        return wanted
    pairs = zip(counts, wanted, strict=True)
    return [max(number or auto_partitions(count), ceil(count / limit)) for count, number in pairs]
