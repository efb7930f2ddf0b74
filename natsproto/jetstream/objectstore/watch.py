"""Watching: what objects there are now, and then everything that happens to them, without an end.

Owns what was read ahead and the moment at which the initial objects are complete. Order, and going on behind the last
change after whatever broke, are the ordered consumer's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType

from natsproto.errors import LocalProtocolError, NatsError, RequestTimeout, SubscriptionClosed
from natsproto.jetstream.codec import Duration
from natsproto.jetstream.message import JsMessage
from natsproto.jetstream.objectstore.meta import ObjectInfo, read_info
from natsproto.jetstream.ordered import OrderedConsumer
from natsproto.jetstream.reader import Messages
from natsproto.protocol.pool import seconds

LOOK = 1.0
"""Seconds of silence after which it is asked whether initial objects are still to come: they may have been removed."""


class ObjectWatcher:
    """Descriptions of objects as they change. Made by ``ObjectStore.watch``; enter it, then iterate it.

    ``async for`` gives one at a time, ``next()`` one within a time. It goes on over restarts, reconnects and changes of
    leader, whether it is read or not. Reading ends after ``stop`` or the end of the client, or raises StreamNotFound
    when the store was deleted, and PermissionDenied. Cancelling a reader loses nothing.
    """

    def __init__(self, ordered: OrderedConsumer, bucket: str, *, ignore_deletes: bool, updates_only: bool) -> None:
        self._ordered, self._bucket = ordered, bucket
        self._ignore_deletes, self._updates_only = ignore_deletes, updates_only
        self._messages: Messages | None = None
        self._first: asyncio.Task[None] | None = None
        self._held: deque[ObjectInfo] = deque()
        self._consumer = ""  # whose messages are counted
        self._left = 0  # how many of them belong to the initial objects
        self._came = 0
        self._complete = False

    @property
    def caught_up(self) -> bool:
        """Whether the initial objects are complete and everything that has come was read."""
        return self._complete and not self._held

    async def ready(self) -> None:
        """Waits until the initial objects are complete: at once in an empty store, and for ``updates_only`` as soon as
        no change can be missed any more.

        They need not be read meanwhile; however many they are, their descriptions are held here. Raises what ends the
        watch; SubscriptionClosed when it was stopped. Cancelling ends the wait.
        """
        while not self._complete:
            if not await self._more():
                raise SubscriptionClosed(self._what, "stopped")

    def __aiter__(self) -> AsyncIterator[ObjectInfo]:
        return self

    async def __anext__(self) -> ObjectInfo:
        while not self._held:
            if not await self._more() and not self._held:
                raise StopAsyncIteration
        return self._held.popleft()

    async def next(self, timeout: Duration | None = None) -> ObjectInfo:
        """The next change; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        wait = None if timeout is None else seconds("timeout", timeout)
        try:
            async with asyncio.timeout(wait):
                return await anext(self)
        except TimeoutError:
            if not self._held:
                raise RequestTimeout(f"next change of {self._what}", wait or 0.0) from None
            return self._held.popleft()
        except StopAsyncIteration:
            raise SubscriptionClosed(self._what, "stopped") from None

    async def stop(self) -> None:
        """Ends it. What has come and was not read is gone. Never raises."""
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
        self._held.clear()
        if self._messages is not None:
            await self._messages.stop()
            await self._ordered.close()

    async def __aenter__(self) -> ObjectWatcher:
        if self._messages is None:
            self._messages = self._ordered.messages()
            self._messages.start()
            self._first = asyncio.create_task(self._see_first(self._messages), name="natsproto watch")
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
            raise LocalProtocolError(f"{self._what} is to be entered first: async with store.watch() as watcher")
        going = await messages.wait()
        came = False
        while (message := messages.take()) is not None:
            messages.release(message)
            self._take_in(message)
            came = True
        if not came and not going and messages.error is not None:
            raise messages.error.with_traceback(None)
        return going

    def _take_in(self, message: JsMessage) -> None:
        place = message.metadata
        self._came += 1
        if not self._complete:
            # Changes may follow the initial objects at once, so a message with nothing behind it may never come; and
            # another consumer may go on, so its own count is used then.
            if place.consumer != self._consumer:
                self._consumer, self._left = place.consumer, place.num_pending
            else:
                self._left -= 1
            self._complete = self._left <= 0 or place.num_pending == 0
        info = read_info(message.data, place.timestamp)
        if not (info.deleted and self._ignore_deletes):
            self._held.append(info)

    async def _see_first(self, messages: Messages) -> None:
        """Finds out that there are no initial objects, or that those to come were removed before they came."""
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
            self._complete = True
            messages.wake()

    async def _pending(self, before: int) -> int:
        try:
            return (await self._ordered.info()).num_pending
        except NatsError:
            return before

    @property
    def _what(self) -> str:
        return f"watch of object store {self._bucket!r}"
