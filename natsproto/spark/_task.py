"""The task that may run more than once, its messages, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

from natsproto._value import Value
from natsproto.protocol.frames import Payload

HeaderPairs: TypeAlias = list[tuple[str, str]]


class MessageColumns(NamedTuple):
    """Messages to publish, column by column; ``headers`` and ``ids`` are empty when the batch has no such column."""

    subjects: Sequence[str]
    payloads: Sequence[Payload]
    headers: Sequence[HeaderPairs | None]
    ids: Sequence[str | None]

    def rows_between(self, begin: int, end: int) -> MessageColumns:
        """The messages from ``begin`` to before ``end``."""
        cut = slice(begin, end)
        return MessageColumns(self.subjects[cut], self.payloads[cut], self.headers[cut], self.ids[cut])

    def rows_at(self, rows: Sequence[int]) -> MessageColumns:
        """The messages with these numbers."""
        return MessageColumns(
            [self.subjects[row] for row in rows],
            [self.payloads[row] for row in rows],
            [self.headers[row] for row in rows] if self.headers else (),
            [self.ids[row] for row in rows] if self.ids else (),
        )

    def digest(self, before: int) -> int:
        """A checksum of these subjects and payloads, after rows with the checksum ``before``."""
        for subject, payload in zip(self.subjects, self.payloads, strict=True):
            before = crc32(payload, crc32(subject.encode("utf-8", "surrogateescape"), before))
        return before


class WriteTask(Value):
    """A piece of work that Spark may run more than once: the rows of one partition of one write or micro-batch."""

    owner: str
    epoch: int
    """The number of the micro-batch; -1 for a write without them."""
    partition: int
    is_repeated: bool = False
    """True if it may have had an earlier attempt, also in an earlier run of the query."""
    since: float = 0.0
    """When the write or micro-batch was planned first, as ``time.time()``: nothing of it was stored before."""

    @property
    def name(self) -> str:
        """The text that its ids are made of: the same in every attempt, and of no other task."""
        return f"{self.owner}.{self.epoch}.{self.partition}" if self.epoch >= 0 else f"{self.owner}.{self.partition}"


class WriteResult(Value):
    """The result of a task: its ``rows``, of which ``duplicates`` were in the stream already.

    ``removed_headers`` counts the removed server-control headers by name. ``bad_rows`` counts the other rows, which
    cannot be messages, by the class of their error.
    """

    rows: int
    duplicates: int
    removed_headers: Mapping[str, int] = {}
    bad_rows: Mapping[str, int] = {}
