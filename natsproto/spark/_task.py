"""The task that may run more than once, its messages, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

from natsproto._value import Value
from natsproto.protocol.frames import Payload

TASK_HEADER = "Spark-Task"
"""The header by which a task recognizes messages of its own: owner, epoch, partition."""
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

    def digest(self, before: int) -> int:
        """A checksum of these subjects and payloads, after rows with the checksum ``before``."""
        for subject, payload in zip(self.subjects, self.payloads, strict=True):
            before = crc32(payload, crc32(subject.encode("utf-8", "surrogateescape"), before))
        return before

    def at(self, indexes: Sequence[int]) -> MessageColumns:
        """The messages at these indexes."""
        return MessageColumns(
            [self.subjects[index] for index in indexes],
            [self.payloads[index] for index in indexes],
            [self.headers[index] for index in indexes] if self.headers else (),
            [self.ids[index] for index in indexes] if self.ids else (),
        )


class WriteTask(Value):
    """A piece of work that Spark may run more than once: the rows of one partition of one write or micro-batch."""

    owner: str
    epoch: int
    """The number of the micro-batch; -1 for a write without them."""
    partition: int
    run: str = ""
    """The run of the query, or the write, for which rows are looked up once in a process; "" for each task."""
    folder: str = ""
    """Where the processes of a machine share what one of them has looked up for the run; "" for each process."""
    may_be_stored: bool = False
    """True if its rows may have been stored before, longer ago than the duplicate window."""
    retry: bool = False
    """True if the same run had an earlier attempt."""
    after: int = 0
    """All its rows come after this sequence of the target; 0 if unknown."""

    @property
    def name(self) -> str:
        """The value of the task header, with which ids begin."""
        return f"{self.owner}.{self.epoch}.{self.partition}" if self.epoch >= 0 else f"{self.owner}.{self.partition}"


class WriteResult(Value):
    """The result of a task: its ``rows``, of which ``duplicates`` were in the stream already.

    ``removed_headers`` counts the removed server-control headers by name.
    """

    rows: int
    duplicates: int
    removed_headers: Mapping[str, int] = {}
