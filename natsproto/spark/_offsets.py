"""PURE. Where a streaming query stands in a stream, and what its next batch reads.

Owns the offset that Spark keeps in its checkpoint and compares as text, and every decision that follows from two of
them. A batch that is run again is given the same two offsets, so what it reads follows from them alone: the stream has
moved on meanwhile.

The checkpoint holds the end of the first batch, but not its start: Spark asks for the initial offset once more, and
"latest" is another place by then. So every offset carries the place where the query began (``base``), and a first
batch starts at the base of its end. It also carries the number of partitions, as ids of rows count within them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from natsproto._value import Value
from natsproto.errors import ConfigError
from natsproto.jetstream._info import StreamInfo

VERSION = 1
AUTO_PARTITIONS = 4
"""Partitions of a small batch when nobody says how many; with 2 cores more of them gained nothing."""
PARTITION_SEQUENCES = 100_000
"""Sequences of a partition in batches that are too big for these."""
MAX_AUTO_PARTITIONS = 200
WORTHWHILE = 2000
"""Sequences that are worth a partition of their own."""


class Horizon(Value):
    """What a stream holds at a moment. ``created`` tells it from another one of the same name."""

    created: str
    first_seq: int
    last_seq: int
    messages: int = 0
    octets: int = 0
    superseding: bool = False
    """Whether messages only leave when newer ones of their subject come, as in a bucket: nothing is lost by that."""

    @classmethod
    def of(cls, info: StreamInfo) -> Horizon:
        """Read from the server's word. An empty stream begins behind its last message."""
        state, config = info.state, info.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_age > 0
        return cls(
            created=info.created.rfc3339(),
            first_seq=max(1, state.first_seq),
            last_seq=state.last_seq,
            messages=state.messages,
            octets=state.bytes,
            superseding=config.max_msgs_per_subject > 0 and not limited,
        )

    def sequences_in(self, octets: int) -> int:
        """How many sequences hold about so many bytes, by the average of the stream; at least one."""
        if not self.messages or not self.octets:
            return max(1, octets)
        spread = (self.last_seq - self.first_seq + 1) / self.messages  # deleted ones are sequences as well
        return max(1, int(octets * self.messages / self.octets * spread))


class Offset(Value):
    """A place in a stream: ``seq`` is read next. ``base`` is where the query began, 0 when that is not known."""

    stream: str
    seq: int
    created: str
    base: int = 0
    partitions: int = 0

    @property
    def initial(self) -> bool:
        """Whether nothing was read yet."""
        return self.seq == self.base

    def json(self) -> dict[str, object]:
        """As Spark keeps it; always with the keys in this order."""
        return {
            "v": VERSION,
            "s": {self.stream: {"seq": self.seq, "created": self.created}},
            "base": {self.stream: self.base},
            "n": self.partitions,
        }

    @classmethod
    def read(cls, stream: str, saved: Mapping[str, object]) -> Offset:
        """What a checkpoint holds. ConfigError when it is of another stream, or of a version not known here."""
        if saved.get("v") != VERSION:
            raise ConfigError(
                "checkpoint", saved, f"is no offset of version {VERSION}: it was written by something else"
            )
        places, bases = saved.get("s"), saved.get("base")
        place = places.get(stream) if isinstance(places, dict) else None
        if not isinstance(place, dict):
            raise ConfigError(
                "checkpoint", saved, f"is not of stream {stream!r}: another stream needs a checkpoint of its own"
            )
        base = bases.get(stream, 0) if isinstance(bases, dict) else 0
        partitions = saved.get("n", 0)
        fields = (place.get("seq"), base, partitions)
        created = place.get("created")
        if not isinstance(created, str) or not all(type(field) is int and field >= 0 for field in fields):
            raise ConfigError("checkpoint", saved, "is no offset: its fields cannot be read")
        seq, base, partitions = (int(str(field)) for field in fields)
        return cls(stream=stream, seq=seq, created=created, base=base, partitions=partitions)


class Span(Value):
    """The sequences of a batch, both inclusive; ``last`` is before ``first`` when there are none.

    ``recreated`` says that the stream is not the one the query had read so far.
    """

    first: int
    last: int
    recreated: bool = False


def span(start: Offset, end: Offset) -> Span:
    """What the batch between two offsets reads."""
    if start.created != end.created:
        return Span(first=end.base or 1, last=end.seq - 1, recreated=True)
    first = end.base if start.initial and end.base else start.seq
    return Span(first=first, last=end.seq - 1)


def advance(
    start: Offset, now: Horizon, *, most: int | None = None, until: int | None = None, from_front: bool = False
) -> Offset:
    """Where the next batch ends: at most ``most`` sequences on, not beyond the sequence ``until``.

    ``start`` itself when there is nothing new. A stream that was created anew is read from its first message on. With
    ``from_front`` the first batch begins where the stream begins by now.
    """
    last = now.last_seq if until is None else min(now.last_seq, until)
    if from_front and start.initial and start.seq < now.first_seq <= last:
        start = start.but(base=now.first_seq, seq=now.first_seq)
    if start.created != now.created:
        base = now.first_seq
        start = start.but(created=now.created, base=base, seq=base)
    # What is gone already is no reason for a batch that finds nothing.
    begin = max(start.seq, now.first_seq)
    end = last + 1 if most is None else min(last + 1, begin + most)
    return start if end <= start.seq else start.but(seq=end)


def lost(start: Offset, now: Horizon) -> tuple[int, int] | None:
    """The sequences that were to be read and are gone, both inclusive."""
    if start.created != now.created or start.seq >= now.first_seq or start.seq > now.last_seq or now.superseding:
        return None
    return start.seq, now.first_seq - 1


def auto_partitions(count: int) -> int:
    """Into how many partitions so many sequences are cut when nobody says it."""
    by_size = min(MAX_AUTO_PARTITIONS, ceil(count / PARTITION_SEQUENCES))
    return max(min(AUTO_PARTITIONS, ceil(count / WORTHWHILE)), by_size)


def pieces(first: int, last: int, partitions: int = 0) -> list[tuple[int, int]]:
    """Splits sequences into so many runs of nearly the same length, in order; 0 chooses by their number."""
    count = last - first + 1
    if count <= 0:
        return []
    wanted = partitions or auto_partitions(count)
    parts = min(wanted, count)
    return [(first + count * part // parts, first + count * (part + 1) // parts - 1) for part in range(parts)]
