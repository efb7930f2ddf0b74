"""Watching: the current messages, and then every change.

Owns the prefetched messages, and detects the end of the initial ones. The ordered consumer keeps the order and recovers
from failures; subclasses interpret the messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsproto import errors
from natsproto._core.ending import Reader
from natsproto._durations import seconds
from natsproto._help.async_hints import AsyncForHint
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import Messages
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._values.codec import Duration

H = TypeVar("H")

POLL_INTERVAL_S = 1.0
"""Seconds of silence after which the server is asked for the number of pending initial messages: some may be gone."""


class WatchBase(AsyncForHint, Generic[H]):
    """A watch with a buffer of H, created by ``watch``. ``what`` describes it in errors."""

    _await_hint = "enter it with async with, then use async for"

    def __init__(self, ordered: OrderedConsumer, bucket: str, what: str, *, updates_only: bool) -> None:
        self._bucket = bucket
        self.what = what  # in errors
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
        """True if the initial messages are complete and all received ones were read."""
        return self._initial_done and not self._buffered

    async def ready(self) -> None:
        """Wait until the initial messages are complete: at once when there are none. With ``updates_only`` it returns
        as soon as no update can be missed.

        The watch need not be read meanwhile; all initial messages are buffered. Raises the error that ends the watch;
        SubscriptionClosed when it was stopped. Cancelling ends the wait.
        """
        while not self._initial_done:
            if not await self._wait_more():
                raise errors.SubscriptionClosed(self.what, "stopped")

    async def stop(self) -> None:
        """Stop the watch and drop unread messages.."""
        self._ordered._state.connection._check_loop()
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
        self._buffered.clear()
        if self._messages is not None:
            self._messages._return_waiting()
            await self._ordered.stop()

    async def __aenter__(self) -> Self:
        if self._messages is None:
            messages = self._messages = self._ordered._messages()
            messages.what = self.what
            try:
                await messages.__aenter__()
            except BaseException:
                self._messages = None
                raise
            if not messages.buffer.ended:
                self._start_initial(messages)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _track_task(self, task: asyncio.Task[None]) -> Reader:
        """Let a draining client wait for a task that calls a callback. For layers on top."""
        return self._require_entered()._track_task(task)

    def _track_supervisor(self, task: asyncio.Task[None]) -> None:
        """Let a draining client wait for a task that waits for handlers of others. For layers on top."""
        self._require_entered()._reader_tasks.track_supervisor(task)

    # ---------------------------------------------------------------- for subclasses

    def _receive(self, messages: Messages) -> bool:
        """Buffer the received messages, and count them while the initial ones are not complete. True if there were
        any.
        """
        raise NotImplementedError

    async def _next_item(self, timeout: Duration | None, name: str) -> H:
        """Return the next buffered item; wait at most ``timeout`` seconds (None: for ever)."""
        buffered = self._buffered
        wait = None if timeout is None else seconds("timeout", timeout)
        try:
            async with asyncio.timeout(wait):
                while not buffered:
                    if not await self._wait_more() and not buffered:
                        raise errors.SubscriptionClosed(self.what, "stopped")
        except TimeoutError:
            if not buffered:
                raise errors.RequestTimeout(f"next {name} of {self.what}", wait or 0.0, missing=name) from None
        return buffered.popleft()

    async def _wait_more(self) -> bool:
        """Receive messages, or wait for a change; False when no more will arrive."""
        messages = self._require_entered()
        buffer = messages.buffer
        if not buffer.ready and not buffer.is_finished:
            await buffer.next_change()
        if self._receive(messages) or not buffer.is_finished:
            return True
        self._check_end(buffer)
        return False

    def _require_entered(self) -> Messages:
        if self._messages is None:
            raise errors.LocalProtocolError(f"enter the {self.what} first: async with … as watcher")
        self._ordered._state.connection._check_loop()
        return self._messages

    def _check_end(self, buffer: Buffer) -> None:
        """Raise the error that ended reading, if there is one."""
        if isinstance(buffer.error, errors.StreamNotFound):
            raise errors.BucketNotFound(self._bucket) from buffer.error
        if buffer.error is not None:
            raise buffer.error.with_traceback(None)

    def _count_initial(self, batch: Sequence[JsMessage]) -> None:
        """Count initial messages and detect their end. Newer messages may follow at once, so it does not wait for a
        message without pending ones; a new consumer brings its own count.
        """
        last = batch[-1].metadata
        if last.consumer != self._consumer:
            self._consumer, self._initial_left = last.consumer, last.num_pending
        else:
            self._initial_left -= len(batch)
        self._initial_done = self._initial_left <= 0 or last.num_pending == 0

    # ---------------------------------------------------------------- internals

    def _start_initial(self, messages: Messages) -> None:
        """Count the initial messages: those that were pending when the consumer was created."""
        pending = 0 if self._updates_only else self._ordered.cached_info.num_pending
        if pending:
            self._poll = asyncio.create_task(self._poll_pending(messages, pending), name="natsproto watch")
        else:
            self._initial_done = True

    async def _poll_pending(self, messages: Messages, pending: int) -> None:
        """Detect that pending initial messages were removed from the stream."""
        try:
            while pending and not self._initial_done:
                received = self._received
                await asyncio.sleep(POLL_INTERVAL_S)
                if received == self._received and not messages.pending:
                    pending = await self._pending(pending)
        except Exception as exc:
            messages._fail(wrap_unexpected(f"reading {self.what}", exc))
            return
        if not self._initial_done:
            self._initial_done = True
            messages.buffer.wake()

    async def _pending(self, before: int) -> int:
        try:
            return (await self._ordered.info()).num_pending
        except errors.NatsError:
            return before
