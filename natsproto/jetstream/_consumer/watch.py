"""Watching: what there is now, and then everything that changes, without an end.

Owns what was read ahead and the moment at which what there was at the beginning is complete. Order, and going on
behind the last message after whatever broke, are the ordered consumer's; what a message means is the subclass's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsproto._async_hints import AsyncForHint
from natsproto._durations import seconds
from natsproto.errors import (
    BucketNotFound,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    StreamNotFound,
    SubscriptionClosed,
)
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._consumer.messages import Buffer, Messages
from natsproto.jetstream._consumer.ordered import OrderedConsumer
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._unexpected import wrap_unexpected

H = TypeVar("H")

POLL_INTERVAL_S = 1.0
"""Seconds of silence after which the server is asked whether initial messages are still to come: some may be gone."""


class WatchBase(AsyncForHint, Generic[H]):
    """Holds an H for what was read ahead. ``what`` names the watch in errors."""

    def __init__(self, ordered: OrderedConsumer, bucket: str, what: str, *, updates_only: bool) -> None:
        self._bucket = bucket
        self.what = what
        """What it is called in errors."""
        self._ordered, self._updates_only = ordered, updates_only
        self._messages: Messages | None = None
        self._poll: asyncio.Task[None] | None = None
        self._buffered: deque[H] = deque()
        self._consumer = ""  # whose messages are counted
        self._initial_left = 0  # how many of them belong to the beginning
        self._received = 0
        self._initial_done = False

    @property
    def caught_up(self) -> bool:
        """Whether the beginning is complete and everything that has come was read."""
        return self._initial_done and not self._buffered

    async def ready(self) -> None:
        """Waits until what there was at the beginning is complete: at once when there was nothing, and for
        ``updates_only`` as soon as no update can be missed any more.

        It need not be read meanwhile; however much it is, it is held here. Raises what ends the watch;
        SubscriptionClosed when it was stopped. Cancelling ends the wait.
        """
        while not self._initial_done:
            if not await self._wait_more():
                raise SubscriptionClosed(self.what, "stopped")

    async def stop(self) -> None:
        """Ends it. What has come and was not read is gone. Never raises."""
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
        self._buffered.clear()
        if self._messages is not None:
            await self._messages.stop()
            await self._ordered.close()

    async def __aenter__(self) -> Self:
        if self._messages is None:
            messages = self._messages = self._ordered.messages()
            try:
                await messages.__aenter__()
            except BaseException:
                self._messages = None
                raise
            if not messages.closed:
                self._start_initial(messages)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------- for subclasses

    def _receive(self, messages: Messages) -> bool:
        """Holds what the messages say that have come, and counts them while the beginning is not complete. Whether
        there were any.
        """
        raise NotImplementedError

    async def _next_item(self, timeout: Duration | None, name: str) -> H:
        """The next of what is held; waits at most ``timeout`` seconds for it (None: for ever)."""
        buffered = self._buffered
        wait = None if timeout is None else seconds("timeout", timeout)
        try:
            async with asyncio.timeout(wait):
                while not buffered:
                    if not await self._wait_more() and not buffered:
                        raise SubscriptionClosed(self.what, "stopped")
        except TimeoutError:
            if not buffered:
                raise RequestTimeout(f"next {name} of {self.what}", wait or 0.0) from None
        return buffered.popleft()

    async def _wait_more(self) -> bool:
        """Takes in what has come, or waits until something has changed; False when nothing more will come."""
        messages = self._require_entered()
        going = await messages.wait()
        if not self._receive(messages) and not going:
            self._check_end(messages.buffer)
        return going

    def _require_entered(self) -> Messages:
        if self._messages is None:
            raise LocalProtocolError(f"{self.what} is to be entered first: async with … as watcher")
        return self._messages

    def _check_end(self, buffer: Buffer) -> None:
        """Raises what has ended the reading, if that was not its owner."""
        if isinstance(buffer.error, StreamNotFound):
            raise BucketNotFound(self._bucket) from buffer.error
        if buffer.error is not None:
            raise buffer.error.with_traceback(None)

    def _count_initial(self, batch: Sequence[JsMessage]) -> None:
        """Whether the beginning ends in this batch. What was written meanwhile may follow it at once, so it is not
        waited for a message with nothing behind it; another consumer may go on, so its own count is used then.
        """
        last = batch[-1].metadata
        if last.consumer != self._consumer:
            self._consumer, self._initial_left = last.consumer, last.num_pending
        else:
            self._initial_left -= len(batch)
        self._initial_done = self._initial_left <= 0 or last.num_pending == 0

    # ---------------------------------------------------------------- inside

    def _start_initial(self, messages: Messages) -> None:
        """The consumer exists: what there was when it was made is the beginning."""
        pending = 0 if self._updates_only else self._ordered.cached_info.num_pending
        if pending:
            self._poll = asyncio.create_task(self._poll_pending(messages, pending), name="natsproto watch")
        else:
            self._initial_done = True

    async def _poll_pending(self, messages: Messages, pending: int) -> None:
        """Finds out that what is to come was removed before it came."""
        try:
            while pending and not self._initial_done:
                received = self._received
                await asyncio.sleep(POLL_INTERVAL_S)
                if received == self._received and not messages.pending:
                    pending = await self._pending(pending)
        except Exception as exc:
            messages.fail(wrap_unexpected(f"reading {self.what}", exc))
            return
        if not self._initial_done:
            self._initial_done = True
            messages.wake()

    async def _pending(self, before: int) -> int:
        try:
            return (await self._ordered.info()).num_pending
        except NatsError:
            return before
