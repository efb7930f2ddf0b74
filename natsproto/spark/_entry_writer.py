"""Writing entries of a bucket for a task that may have had an earlier attempt, at any time later.

A value that somebody else has put since the work was planned first stays, and so does a deletion. So each key is read
first. Its newest entry is one of the task's own, by its id, or is newer than the plan; then only later
rows of the task follow it. Else the rows are put, each only onto the revision that was read.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from natsproto import errors
from natsproto.jetstream import JetStream, Stream
from natsproto.spark._task import MessageColumns, WriteResult, WriteTask

MAX_KEYS_AT_A_TIME = 64


class EntryWriter:
    """Writes the entries of one repeated task."""

    def __init__(self, js: JetStream, stream: Stream, task: WriteTask, timeout: float) -> None:
        self._js, self._stream, self._timeout = js, stream, timeout
        age = timedelta(seconds=time.time() - task.since)
        self._planned: datetime = stream.cached_info.ts - age
        self._numbers: dict[str | None, int] = {}
        """The ids of the task's rows up to here, in their order."""
        self._turns = asyncio.Semaphore(MAX_KEYS_AT_A_TIME)

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        """Puts what neither the task nor somebody else has written since. The errors of ``js.publish``."""
        rows = duplicates = 0
        async for batch in batches:
            of_key: dict[str, list[int]] = defaultdict(list)
            for index, (subject, key) in enumerate(zip(batch.subjects, batch.ids, strict=True)):
                of_key[subject].append(index)
                self._numbers[key] = rows + index
            written = [self._write_key(rows, batch, subject, indexes) for subject, indexes in of_key.items()]
            rows += len(batch.ids)
            duplicates += len(batch.ids) - sum(await asyncio.gather(*written))
        return WriteResult(rows=rows, duplicates=duplicates)

    async def _write_key(self, first: int, batch: MessageColumns, subject: str, indexes: list[int]) -> int:
        """Put the rows of a key that are to follow its newest entry; return their number."""
        async with self._turns:
            revision, written = 0, 0
            try:
                last = await self._stream.get_last_message(subject, direct=False, timeout=self._timeout)
            except errors.MessageNotFound:
                pass
            else:
                revision = last.seq
                number = self._numbers.get(last.headers.last("Nats-Msg-Id", ""))
                if number is None and last.time >= self._planned:
                    return 0
                indexes = [index for index in indexes if number is None or first + index > number]
            for index in indexes:
                try:
                    ack = await self._js.publish(
                        subject,
                        batch.payloads[index],
                        headers=batch.headers[index] if batch.headers else None,
                        msg_id=batch.ids[index],
                        expected_last_subject_seq=revision,
                        timeout=self._timeout,
                    )
                except errors.WrongExpectation:
                    return written  # somebody else was here, after the reading
                if not ack.duplicate:
                    revision, written = ack.seq, written + 1
            return written
