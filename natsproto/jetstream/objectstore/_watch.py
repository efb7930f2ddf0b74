"""Watching the objects of a store: their current infos, and then every change.

Reads the infos. WatchBase detects the end of the initial ones; the ordered consumer keeps the order and recovers from
failures.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from natsproto import errors
from natsproto.jetstream._consumer.messages import Messages
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._consumer.watch import WatchBase
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import ObjectInfo, read_info


class ObjectWatcher(WatchBase[ObjectInfo]):
    """The infos of objects as they change. Created by ``ObjectStore.watch``; use it with ``async with``, then iterate.

    ``async for`` yields one at a time, ``next()`` returns one within a timeout. It continues after restarts, reconnects
    and changes of the leader, whether it is read or not. Reading ends after ``stop`` or the end of the client, and
    raises BucketNotFound when the store was deleted, and PermissionDenied. An entry that cannot be read is skipped,
    with an ObjectStoreNotice event. Cancelling a reader loses nothing. When several tasks read one watch, each change
    goes to one of them and its end to all.
    """

    def __init__(
        self, index: ObjectIndex, ordered: OrderedConsumer, *, ignore_deletes: bool, updates_only: bool
    ) -> None:
        super().__init__(ordered, index.bucket, f"watch of object store {index.bucket!r}", updates_only=updates_only)
        self._index, self._ignore_deletes = index, ignore_deletes

    def __aiter__(self) -> AsyncIterator[ObjectInfo]:
        return self._each()

    async def _each(self) -> AsyncGenerator[ObjectInfo]:
        tasks = self._require_entered()._reader_tasks
        task = tasks.enter()
        try:
            while await self._has_next():
                yield self._buffered.popleft()
        finally:
            tasks.leave(task)

    async def __anext__(self) -> ObjectInfo:
        if await self._has_next():
            return self._buffered.popleft()
        raise StopAsyncIteration

    async def _has_next(self) -> bool:
        while not self._buffered:
            if not await self._wait_more() and not self._buffered:
                return False
        return True

    async def next(self, timeout: Duration | None = None) -> ObjectInfo:
        """Return the next change; wait at most ``timeout`` seconds (None: forever).

        RequestTimeout when none came in time; SubscriptionClosed, or the error that ended the watch, after its end.

        Args:
            timeout: Seconds to wait for a change; None: no limit.
        """
        return await self._next_item(timeout, "change")

    def _receive(self, messages: Messages) -> bool:
        before = self._received
        while (message := messages._take()) is not None:
            messages._release(message)
            self._received += 1
            if not self._initial_done:
                self._count_initial((message,))
            try:
                seq, time = message.seq, message.metadata.timestamp
                info = read_info(self._bucket, message.subject, seq, message.data, time)
            except errors.InvalidReply as exc:
                self._index.notice(message.subject, exc)
                continue
            if not (info.deleted and self._ignore_deletes):
                self._buffered.append(info)
        return self._received > before
