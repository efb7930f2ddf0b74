"""Writing the rows of a task with a cursor, which counts them: each once, at any time, however often the task runs.

The cursor is that of one partition of one write or query, and is stored in the batch of the rows. Its value says how
many rows of which micro-batch are stored, with their checksum: a repetition with other rows is not continued.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from natsproto import errors
from natsproto.jetstream import Cursor
from natsproto.spark._task import MessageColumns, WriteResult, WriteTask

MAX_PIECE_ROWS = 900
"""Rows of a batch: the server takes 1,000 messages."""
MAX_BYTES = 8 * 2**20
"""Bytes of the payloads of a batch; one row may exceed it."""
MAX_ATTEMPTS = 20
"""Attempts to store a batch while other attempts of the task store it too."""


class CursorProgress(NamedTuple):
    """The value of a cursor: the last micro-batch, the number of its stored rows, and their checksum."""

    epoch: int = -2
    """The number of the micro-batch, -1 for a batch write; -2 before the first one."""
    rows: int = 0
    """How many of its rows are stored."""
    digest: int = 0
    """The checksum of their subjects and payloads."""

    @classmethod
    def read(cls, value: int | bytes | None, subject: str) -> CursorProgress:
        """Return the value of the cursor on this subject; InvalidReply if it is one of another program."""
        if value is None:
            return cls()
        try:
            epoch, rows, digest = json.loads(value if isinstance(value, bytes) else "")
            return cls(int(epoch), int(rows), int(digest))
        except (ValueError, TypeError):
            raise errors.InvalidReply("cursor of a task", subject, value, "must be that of Spark's sink") from None

    def rows_of(self, epoch: int) -> int | None:
        """The number of stored rows of that micro-batch; None for all of them."""
        if self.epoch > epoch:
            return None
        return self.rows if self.epoch == epoch else 0


class RowsChanged(Exception):
    """A repetition of the task has other messages than before, or in another order. Nothing more was written."""


class CursorWriter:
    """Writes the rows of one task, in batches that advance its cursor."""

    def __init__(self, cursor: Cursor, task: WriteTask) -> None:
        self._cursor, self._epoch = cursor, task.epoch
        self._digest = 0
        """Checksum of the rows before the current ones."""

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        """Stores what is not stored yet. RowsChanged, and the errors of ``Cursor.advance``."""
        row = before = 0
        async for batch in batches:
            for piece in _pieces(batch):
                before += await self._store(row, piece)
                row += len(piece.subjects)
                self._digest = piece.digest(self._digest)
        found = self._progress()
        if found.epoch == self._epoch and row < found.rows:
            raise RowsChanged
        return WriteResult(rows=row, duplicates=before)

    async def _store(self, row: int, piece: MessageColumns) -> int:
        """Stores the rows of the piece (its first one is ``row``), except stored ones, and returns their number."""
        count = len(piece.subjects)
        to = CursorProgress(self._epoch, row + count, piece.digest(self._digest))
        for attempt in range(MAX_ATTEMPTS):
            done = self._progress().rows_of(self._epoch)
            skip = count if done is None else min(count, max(0, done - row))
            if skip and done is not None and done <= row + count:
                self._check_same_rows(piece.rows_between(0, skip))
            if skip == count:
                return count
            try:
                await self._advance(to, piece.rows_between(skip, count))
            except errors.CursorMoved:  # another attempt was here, or the stream went back
                await self._cursor.load()
                found = self._progress().rows_of(self._epoch)
                if attempt == MAX_ATTEMPTS - 1 or (found is not None and found < row):
                    raise  # the rows before are not at hand any more: the next attempt has them
            else:
                return skip
        raise AssertionError  # the last attempt raises

    async def _advance(self, to: CursorProgress, piece: MessageColumns) -> None:
        async with self._cursor.advance(to=json.dumps(to).encode()) as batch:
            for index, (subject, data) in enumerate(zip(piece.subjects, piece.payloads, strict=True)):
                headers = piece.headers[index] if piece.headers else None
                await batch.publish(subject, data, headers=headers, msg_id=piece.ids[index] if piece.ids else None)

    def _check_same_rows(self, stored: MessageColumns) -> None:
        """RowsChanged unless the cursor was advanced over the same rows: these, and those before."""
        if self._progress().digest != stored.digest(self._digest):
            raise RowsChanged

    def _progress(self) -> CursorProgress:
        return CursorProgress.read(self._cursor.value, self._cursor.subject)


def _pieces(batch: MessageColumns) -> Iterator[MessageColumns]:
    """The rows of a batch, as many at a time as go into one advance."""
    begin = size = 0
    for index, payload in enumerate(batch.payloads):
        size += len(payload)
        if index > begin and (index - begin == MAX_PIECE_ROWS or size > MAX_BYTES):
            yield batch.rows_between(begin, index)
            begin, size = index, len(payload)
    if begin < len(batch.subjects):
        yield batch.rows_between(begin, len(batch.subjects))
