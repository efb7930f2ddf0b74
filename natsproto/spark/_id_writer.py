"""Publishing the rows of a task with ids. Runs on the loop of the worker.

A task that runs again publishes the same ids in the same order, and the stream drops those of its
``duplicate_window``. So a repetition first meets rows that are stored, and then new ones: until it has met them, it
checks that the window is not over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from natsproto.jetstream import AckFuture, JetStream
from natsproto.jetstream._publish.headers import message_blocks
from natsproto.spark._task import MessageColumns, WriteResult

CheckFor: TypeAlias = Callable[[str], Awaitable[Callable[[], None] | None]]
"""Returns what raises once the stream of a subject may have forgotten ids; None if rows cannot be stored twice."""
ROWS_AT_A_TIME = 1000
"""Rows that are encoded and published together. With the 10,000 of a batch of Spark the garbage collector visits their
futures again and again: 12 % of the time of a row."""


class IdWriter:
    """Publishes the rows of one task. A repetition stores those without an id again.

    ``check_for`` is given for a task with ids that may have had an earlier attempt.
    """

    def __init__(self, js: JetStream, *, check_for: CheckFor | None, max_pending: int, timeout: float) -> None:
        self._check_for, self._max_pending = check_for, max_pending
        self._check: Callable[[], None] | None = None
        self._new_rows = 0
        """Rows in a row that were not stored before."""
        self._publisher = js.publisher(max_pending=max_pending, timeout=timeout)
        self._unsettled: list[AckFuture] = []

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        """Publishes the rows, and returns when all are acknowledged."""
        rows = duplicates = 0
        check_for = self._check_for
        async with self._publisher:
            async for batch in batches:
                if not (count := len(batch.subjects)):
                    continue
                ids: Sequence[str | None] = batch.ids or [None] * count
                if check_for is not None:
                    self._check, check_for = await check_for(batch.subjects[0]), None
                for begin in range(0, count, ROWS_AT_A_TIME):
                    end = begin + ROWS_AT_A_TIME
                    publish = self._publish if self._check is None else self._publish_checked
                    duplicates += await publish(batch.rows_between(begin, end), ids[begin:end])
                rows += count
            await self._publisher.flush()
        return WriteResult(rows=rows, duplicates=duplicates + self._count_duplicates())

    async def _publish(self, piece: MessageColumns, ids: Sequence[str | None]) -> int:
        """Publish rows; return the number of duplicates among those that are settled by now."""
        publisher = self._publisher
        subjects, payloads, headers, _ = piece
        if publisher._is_traced:
            rows = zip(subjects, payloads, headers or [None] * len(subjects), ids, strict=True)
            for subject, data, pairs, key in rows:
                self._unsettled.append(await publisher.publish(subject, data, msg_id=key, headers=pairs))
        else:
            blocks = message_blocks(ids, headers)
            self._unsettled += await publisher._publish_blocks(subjects, payloads, blocks)
        return self._count_duplicates()

    async def _publish_checked(self, piece: MessageColumns, ids: Sequence[str | None]) -> int:
        """Publish rows of which an earlier attempt may have stored some, while the stream knows their ids.

        It had at most ``max_pending`` rows in flight, so after as many new ones no stored row follows.
        """
        assert self._check is not None
        self._check()
        duplicates = await self._publish(piece, ids)
        await self._publisher.flush()
        duplicates += self._count_duplicates()
        self._check()
        self._new_rows = 0 if duplicates else self._new_rows + len(ids)
        if self._new_rows >= self._max_pending:
            self._check = None
        return duplicates

    def _count_duplicates(self) -> int:
        """The number of duplicates among the messages that are settled by now, which are then forgotten."""
        count, waiting = 0, []
        for future in self._unsettled:
            outcome = future._outcome
            if type(outcome) is bytes and b'"duplicate"' not in outcome:
                continue  # nearly always
            if future.done():
                count += future.duplicate
            else:
                waiting.append(future)
        self._unsettled = waiting
        return count
