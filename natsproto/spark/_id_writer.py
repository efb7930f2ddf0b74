"""Publishing the rows of a task with ids, so that a repetition stores nothing twice. Runs on the loop of the worker.

The id of a row is a value of its own, or it is made of its task and its number in it. A task that runs again publishes
the same ids, and the stream drops those of its ``duplicate_window``. Rows that may have been stored longer ago are
looked up first (``StoredRows``). For that, a header beside an id of a row's own names the micro-batch and the task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from natsproto.jetstream import AckFuture, JetStream
from natsproto.jetstream._publish.headers import message_blocks
from natsproto.spark._stored_rows import StoredRows, forget_look_ups
from natsproto.spark._task import TASK_HEADER, MessageColumns, WriteResult, WriteTask

IdsOf: TypeAlias = Callable[[int, MessageColumns], Sequence[str]]
"""The ids of a batch that begins with this row."""
LookUp: TypeAlias = Callable[[WriteTask, str], Awaitable[StoredRows | None]]
"""Looks up the rows stored in the stream of a subject; None if that is not possible."""
ROWS_AT_A_TIME = 1000
"""Rows that are encoded and published together. With the 10,000 of a batch of Spark the garbage collector visits their
futures again and again: 12 % of the time of a row."""


class IdWriter:
    """Publishes the rows of one task. Without ``ids`` a repetition stores them again."""

    def __init__(
        self, js: JetStream, task: WriteTask, *, ids: IdsOf | None, look_up: LookUp, max_pending: int, timeout: float
    ) -> None:
        self._task, self._ids_of = task, ids
        self._mark = {TASK_HEADER: task.name} if task.epoch >= 0 else None
        self._look_up = look_up if task.may_be_stored else None
        if not task.may_be_stored:
            forget_look_ups()
        self._stored: StoredRows | None = None
        self._publisher = js.publisher(max_pending=max_pending, timeout=timeout)
        self._unsettled: list[AckFuture] = []

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        """Publishes the rows, and returns when all are acknowledged."""
        rows = duplicates = 0
        async with self._publisher:
            async for batch in batches:
                count = len(batch.subjects)
                if self._ids_of is None or not count:
                    duplicates += await self._publish(batch, batch.ids or [None] * count, None)
                else:
                    ids, mark = self._ids_of(rows, batch), self._mark if batch.ids else None
                    if (look_up := self._look_up) is not None:
                        self._stored, self._look_up = await look_up(self._task, batch.subjects[0]), None
                    if self._stored is not None:
                        new = self._new_rows(self._stored, batch, ids)
                        batch, ids = batch.at(new), [ids[index] for index in new]
                        duplicates += count - len(new)
                    duplicates += await self._publish(batch, ids, mark)
                rows += count
            await self._publisher.flush()
        return WriteResult(rows=rows, duplicates=duplicates + self._count_duplicates())

    async def _publish(self, batch: MessageColumns, ids: Sequence[str | None], mark: Mapping[str, str] | None) -> int:
        """Publish rows; return the number of duplicates among those that are settled by now."""
        publisher, duplicates = self._publisher, 0
        for begin in range(0, len(ids), ROWS_AT_A_TIME):
            end = begin + ROWS_AT_A_TIME
            subjects, payloads, headers, _ = batch.rows_between(begin, end)
            if publisher._is_traced:
                marks = [*(mark or {}).items()]
                rows = zip(subjects, payloads, headers or [None] * len(subjects), ids[begin:end], strict=True)
                for subject, data, pairs, key in rows:
                    own = [*pairs, *marks] if pairs else mark
                    self._unsettled.append(await publisher.publish(subject, data, msg_id=key, headers=own))
            else:
                blocks = message_blocks(ids[begin:end], headers, mark or {})
                self._unsettled += await publisher._publish_blocks(subjects, payloads, blocks)
            duplicates += self._count_duplicates()
        return duplicates

    def _new_rows(self, stored: StoredRows, batch: MessageColumns, ids: Sequence[str]) -> list[int]:
        """Indexes of the rows in a batch that are not stored."""
        known, own = stored.known(ids), batch.ids or [None] * len(ids)
        return [
            index
            for index, (key, given, subject) in enumerate(zip(ids, own, batch.subjects, strict=True))
            if key not in known and not (given is None and stored.is_replaced(self._task, key, subject))
        ]

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
