"""Writing the messages of a task in atomic batches (ADR-50), each with a marker.

A marker says how many messages of the task are stored. It is only accepted after the one before it, so of two
concurrent attempts one is refused, whole; a later attempt, however late, reads the marker and continues after it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from natsproto._value import Value
from natsproto.errors import InvalidReply, MessageNotFound, PublishUncertain, WrongExpectation
from natsproto.jetstream import JetStream, StreamConfig
from natsproto.spark._task import MessageColumns, WriteResult, WriteTask

MAX_BATCH_ATTEMPTS = 20
"""Attempts to store a batch while other attempts of the task store it too."""


class Marker(Value):
    """The progress of a task: ``rows`` stored of ``epoch``. ``seq`` is the sequence of the marker, 0 if there is none.

    ``digest`` is the checksum of these rows, by which a retry with other rows is detected; -1 if unknown.
    """

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    digest: int = -1

    @classmethod
    def read(cls, seq: int, data: bytes) -> Marker:
        """InvalidReply if it is not a marker: something else publishes to the subject."""
        try:
            said = json.loads(data)
            return cls(seq=seq, epoch=int(said["epoch"]), rows=int(said["rows"]), digest=int(said.get("digest", -1)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidReply(
                "progress of a task",
                "marker",
                data[:64],
                "is not a marker: only their writer may publish on the subject of markers",
            ) from None

    def data(self) -> bytes:
        """The payload of the marker."""
        return json.dumps({"epoch": self.epoch, "rows": self.rows, "digest": self.digest}).encode()

    def rows_of(self, epoch: int) -> int | None:
        """The number of stored rows of that epoch; None for all of them."""
        if self.epoch > epoch:
            return None
        return self.rows if self.epoch == epoch else 0


class RowsChanged(Exception):
    """A repetition of the task has other messages than before, or in another order. Nothing more was written."""


class MarkedBatchWriter:
    """Writes the messages of one task in atomic batches, each after the marker of the one before."""

    def __init__(
        self, js: JetStream, config: StreamConfig, task: WriteTask, *, progress: str, batch_size: int, timeout: float
    ) -> None:
        self._js, self._task, self._batch_size, self._timeout = js, task, batch_size, timeout
        self._stream, self._rollup = str(config.name), config.allow_rollup_hdrs
        self._subject = f"{progress}.{task.owner}.{task.partition}"
        self._marker = Marker()
        self._digest = 0
        """Checksum of the rows before the current ones."""

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        """Stores what is not stored yet. RowsChanged, PublishUncertain, and the errors of ``atomic_batch``."""
        await self._read_marker()
        row = before = 0
        async for batch in batches:
            for begin in range(0, len(batch.subjects), self._batch_size):
                piece = batch.rows_between(begin, begin + self._batch_size)
                before += await self._store(row, piece)
                row += len(piece.subjects)
                self._digest = piece.digest(self._digest)
        if self._marker.epoch == self._task.epoch and row < self._marker.rows:
            raise RowsChanged
        return WriteResult(rows=row, duplicates=before)

    async def _store(self, row: int, piece: MessageColumns) -> int:
        """Stores the rows of the piece (its first one is ``row``), except stored ones, and returns their number."""
        count = len(piece.subjects)
        stored_here = 0
        for _ in range(MAX_BATCH_ATTEMPTS):
            done = self._marker.rows_of(self._task.epoch)
            skip = count if done is None else min(count, max(0, done - row))
            if skip and done is not None and done <= row + count:
                self._check_same_rows(piece.rows_between(0, skip))
            if skip == count:
                return count - stored_here
            try:
                await self._commit(row + count, piece.rows_between(skip, count), piece.digest(self._digest))
            except WrongExpectation:
                await self._read_marker()  # another attempt was here
            except PublishUncertain:
                await self._read_marker()  # says whether it is stored; if it still comes, the next one is refused
            else:
                stored_here = count - skip
        raise PublishUncertain(
            self._subject,
            f"gave up after {MAX_BATCH_ATTEMPTS} attempts: another attempt of the task keeps writing the same rows",
        )

    def _check_same_rows(self, stored: MessageColumns) -> None:
        """RowsChanged unless the marker was written after the same rows: these, and those before."""
        if self._marker.digest not in (-1, stored.digest(self._digest)):
            raise RowsChanged

    async def _commit(self, rows: int, piece: MessageColumns, digest: int) -> None:
        marker = Marker(epoch=self._task.epoch, rows=rows, digest=digest)
        async with self._js.atomic_batch(timeout=self._timeout) as batch:
            for index, (subject, data) in enumerate(zip(piece.subjects, piece.payloads, strict=True)):
                headers = piece.headers[index] if piece.headers else None
                await batch.publish(subject, data, headers=headers, msg_id=piece.ids[index] if piece.ids else None)
            await batch.publish(
                self._subject,
                marker.data(),
                expected_last_subject_seq=self._marker.seq,
                rollup="sub" if self._rollup else None,
            )
        self._marker = marker.replace(seq=batch.ack.seq)

    async def _read_marker(self) -> None:
        try:
            # From the leader: another server may lack the newest.
            stream = await self._js.stream(self._stream, bind=True)
            found = await stream.get_last_message(self._subject, direct=False)
        except MessageNotFound:
            self._marker = Marker()
        else:
            self._marker = Marker.read(found.seq, found.data)
