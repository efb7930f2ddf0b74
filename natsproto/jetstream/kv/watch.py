"""Watching: what keys hold now, and then everything that happens to them, without an end.

Owns what was read ahead and the moment at which the initial values are complete. Order, and going on behind the last
entry after whatever broke, are the ordered consumer's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic

from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    StreamNotFound,
    SubscriptionClosed,
)
from natsproto.jetstream.codec import Duration
from natsproto.jetstream.config import DeliverPolicy
from natsproto.jetstream.kv.entry import DeliveredEntry, KeyValueEntry, Operation, operation_in
from natsproto.jetstream.kv.keys import without_covered
from natsproto.jetstream.kv.layout import Layout, V
from natsproto.jetstream.kv.store import Store
from natsproto.jetstream.message import JsMessage, none_has_headers
from natsproto.jetstream.ordered import OrderedConsumer
from natsproto.jetstream.reader import Messages
from natsproto.protocol.pool import seconds

AHEAD, AHEAD_FIRST, AHEAD_BYTES = 4096, 500, 16 * 2**20
"""Entries that may be on their way, also before it is known how big they are, and bytes that these should not pass: a
server cuts off whoever lets 64 MiB pile up. With 500 entries initial values come at a third of the speed.
"""
SAMPLES = 8
"""Entries of a batch that are weighed: to count the bytes of each would cost a quarter of the speed."""
LOOK = 1.0
"""Seconds of silence after which it is asked whether initial values are still to come: they may have been removed."""


class KeyWatcher(Generic[V]):
    """Entries as they are written. Made by ``kv.watch``; enter it, then iterate it.

    ``async for`` gives one entry at a time, ``batches()`` all that is there, ``next()`` one within a time. It goes on
    over restarts, reconnects and changes of leader, whether it is read or not, and misses nothing that the bucket
    still holds. Reading ends after ``stop`` or the end of the client, or raises BucketNotFound when the bucket was
    deleted, PermissionDenied, and the server's refusal of the filters. Cancelling a reader loses nothing.
    """

    def __init__(
        self, ordered: OrderedConsumer, layout: Layout[V], *, ignore_deletes: bool, updates_only: bool
    ) -> None:
        self._ordered, self._layout, self._ahead = ordered, layout, AHEAD_FIRST
        self._ignore_deletes, self._updates_only = ignore_deletes, updates_only
        self._messages: Messages | None = None
        self._first: asyncio.Task[None] | None = None
        self._held: deque[JsMessage] = deque()  # entries are made when they are read: 10 % faster than all at once
        self._consumer = ""  # whose messages are counted
        self._left = 0  # how many of them belong to the initial values
        self._came = 0
        self._complete = False

    # ---------------------------------------------------------------- what it is

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._layout.bucket

    @property
    def what(self) -> str:
        """What it is called in errors."""
        return f"watch of bucket {self._layout.bucket!r}"

    @property
    def caught_up(self) -> bool:
        """Whether the initial values are complete and everything that has come was read."""
        return self._complete and not self._held

    @property
    def revision(self) -> int:
        """The last revision that has come, 0 before the first: one more is where ``resume_from`` goes on."""
        return self._ordered.last_sequence

    async def ready(self) -> None:
        """Waits until the initial values are complete: at once in an empty bucket, and for ``updates_only`` as soon as
        no update can be missed any more.

        They need not be read meanwhile; however many they are, they are held here. Raises what ends the watch;
        SubscriptionClosed when it was stopped. Cancelling ends the wait.
        """
        while not self._complete:
            if not await self._more():
                raise SubscriptionClosed(self.what, "stopped")

    # ---------------------------------------------------------------- reading

    async def initial(self) -> AsyncGenerator[KeyValueEntry[V]]:
        """Yields the initial values as they come and ends when they are complete; reading goes on behind them.

        What was written meanwhile may be among them. Raises what ends the watch; SubscriptionClosed when it was stopped
        or the client closed before they were complete. Cancelling loses nothing.
        """
        held, layout = self._held, self._layout
        while True:
            while held:
                yield DeliveredEntry(layout, held.popleft())
            if self._complete:
                return
            if not await self._more() and not held:
                raise SubscriptionClosed(self.what, "stopped")

    def __aiter__(self) -> AsyncIterator[KeyValueEntry[V]]:
        return self._each()

    async def _each(self) -> AsyncGenerator[KeyValueEntry[V]]:
        held, layout = self._held, self._layout
        while True:
            while held:
                yield DeliveredEntry(layout, held.popleft())
            if not await self._more() and not held:
                return

    async def batches(self) -> AsyncGenerator[list[KeyValueEntry[V]]]:
        """Yields all that has come, as soon as something has: one wake-up for many."""
        held, layout = self._held, self._layout
        while True:
            if held:
                batch: list[KeyValueEntry[V]] = [DeliveredEntry(layout, message) for message in held]
                held.clear()
                yield batch
            if not await self._more() and not held:
                return

    async def next(self, timeout: Duration | None = None) -> KeyValueEntry[V]:
        """The next entry; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        held = self._held
        wait = None if timeout is None else seconds("timeout", timeout)
        try:
            async with asyncio.timeout(wait):
                while not held:
                    if not await self._more() and not held:
                        raise SubscriptionClosed(self.what, "stopped")
        except TimeoutError:
            if not held:
                raise RequestTimeout(f"next entry of {self.what}", wait or 0.0) from None
        return DeliveredEntry(self._layout, held.popleft())

    async def stop(self) -> None:
        """Ends it. What has come and was not read is gone. Never raises."""
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
        self._held.clear()
        if self._messages is not None:
            await self._messages.stop()
            await self._ordered.close()

    async def __aenter__(self) -> KeyWatcher[V]:
        if self._messages is None:
            messages = self._ordered.messages(max_messages=self._ahead)
            messages.start()
            self._messages = messages
            self._first = asyncio.create_task(self._see_first(messages), name="natsproto watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------- inside

    async def _more(self) -> bool:
        """Takes in what has come, or waits until something has changed; False when nothing more will come."""
        messages = self._messages
        if messages is None:
            raise LocalProtocolError(f"{self.what} is to be entered first: async with kv.watch() as watcher")
        going = await messages.wait()
        if batch := messages.take_all():
            self._take_in(batch)
        elif not going and isinstance(messages.error, StreamNotFound):
            raise BucketNotFound(self._layout.bucket) from messages.error
        elif not going and messages.error is not None:
            raise messages.error.with_traceback(None)
        return going

    def _take_in(self, batch: list[JsMessage]) -> None:
        self._came += len(batch)
        self._weigh(batch)
        if not self._complete:
            self._count(batch)
        if self._ignore_deletes and not none_has_headers(batch):
            batch = [message for message in batch if operation_in(message) is Operation.PUT]
        self._held += batch

    def _weigh(self, batch: list[JsMessage]) -> None:
        """As many entries may be on their way as fit if they are like these."""
        sample = batch[:: -(-len(batch) // SAMPLES)]
        size = sum(message.size for message in sample)
        ahead = max(1, min(AHEAD, AHEAD_BYTES * len(sample) // size))
        if ahead != self._ahead:
            self._ahead = ahead
            self._ordered.resize(ahead)

    def _count(self, batch: list[JsMessage]) -> None:
        """Whether the initial values end in this batch. What was written meanwhile may follow them at once, so it is
        not waited for a message with nothing behind it; another consumer may go on, so its own count is used then.
        """
        last = batch[-1].metadata
        if last.consumer != self._consumer:
            self._consumer, self._left = last.consumer, last.num_pending
        else:
            self._left -= len(batch)
        if self._left <= 0 or last.num_pending == 0:
            self._done()

    async def _see_first(self, messages: Messages) -> None:
        """Finds out that there are no initial values, or that those to come were removed before they came."""
        try:
            info = await self._ordered.created()
            pending = 0 if self._updates_only else info.num_pending
            while pending and not self._complete:
                came = self._came
                await asyncio.sleep(LOOK)
                if came == self._came and not messages.pending:
                    pending = await self._pending(pending)
        except NatsError:
            return  # whoever reads will hear of it
        if not self._complete:
            self._done()
            messages.wake()

    async def _pending(self, before: int) -> int:
        try:
            return (await self._ordered.info()).num_pending
        except NatsError:
            return before

    def _done(self) -> None:
        self._complete = True

    def __repr__(self) -> str:
        return f"KeyWatcher(bucket={self._layout.bucket!r}, revision={self.revision})"


def watch(
    store: Store[V],
    keys: tuple[str, ...],
    *,
    include_history: bool = False,
    ignore_deletes: bool = False,
    updates_only: bool = False,
    meta_only: bool = False,
    resume_from: int | None = None,
) -> KeyWatcher[V]:
    """A watch of these keys, or of all. InvalidSubject, ConfigError."""
    if updates_only and (include_history or resume_from is not None):
        what = "include_history" if include_history else "resume_from"
        raise ConfigError(what, resume_from or include_history, "says the opposite of updates_only")
    layout = store.layout
    policy = DeliverPolicy.ALL if include_history else DeliverPolicy.LAST_PER_SUBJECT
    ordered = store.stream.ordered_consumer(
        filter_subjects=without_covered(map(layout.filter, keys)) or (f"{layout.stored}>",),
        headers_only=meta_only,
        start_sequence=resume_from,
        deliver_policy=DeliverPolicy.NEW if updates_only else policy,
    )
    return KeyWatcher(ordered, layout, ignore_deletes=ignore_deletes, updates_only=updates_only)
