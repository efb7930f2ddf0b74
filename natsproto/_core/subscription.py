"""Subscriptions: a bounded inbox, and the ways to read it.

Owns the waiting messages, their limits and their readers. The receive path appends to the inbox directly and calls
``_account`` once per chunk, so nothing here runs once per message except the user's own reading.

A message leaves the inbox in the same step in which the reader gets it, with no await in between, so cancelling a
reader never loses one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from natsproto._async_hints import AsyncForHint
from natsproto._core.handler import Handler, HandlerCallbacks, HandlerRunner
from natsproto._core.inbox_limits import InboxLimits, SlowPolicy
from natsproto._core.instrumentation import Instrumentation, ReaderInfo, ReportedIterator
from natsproto._core.notifier import Notifier
from natsproto._durations import seconds, time_limit
from natsproto._nats_py_names import SUBSCRIPTION, explain_missing
from natsproto.errors import (
    ConfigError,
    DrainTimeout,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    SlowConsumer,
    SubscriptionClosed,
)
from natsproto.protocol.frames import Message

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import TypeVar as TypeVarWithDefault  # Python has it from 3.13 on

    M = TypeVarWithDefault("M", bound=Message, covariant=True, default=Message)
else:
    M = TypeVar("M")

log = logging.getLogger("natsproto")

MAX_AUTO_UNSUBSCRIBE = 999_999_999
"""The largest ``max_messages``: servers read at most nine digits in UNSUB, and take more as an UNSUB without a number.
"""


class SubscriptionCallbacks(HandlerCallbacks, Protocol):
    """Callbacks that a subscription needs from the registry."""

    def unsubscribe(self, subscription: Subscription, max_messages: int | None) -> None:
        """Unsubscribe now (None), or after ``max_messages`` messages in all."""
        ...

    def stop_delivery(self, subscription: Subscription) -> None:
        """Send UNSUB; messages that the server has already sent are still received."""
        ...

    def remove(self, subscription: Subscription) -> None:
        """Stop receiving messages."""
        ...

    async def flush_connection(self, timeout: float) -> None:
        """Wait until the server has handled everything sent so far, or the connection ends."""
        ...

    def on_dropped(self, subscription: Subscription, count: int) -> None:
        """The subscription has dropped messages."""
        ...

    def hold_reading(self, subscription: Subscription, wanted: bool) -> None:
        """Stop reading from the socket, or allow it again."""
        ...

    def yield_to_readers(self) -> None:
        """Stop reading from the socket for one turn of the event loop."""
        ...


class Subscription(AsyncForHint, Generic[M]):
    """Messages of one subject or wildcard. Created by ``subscribe``.

    Await it, or use ``async with``, which unsubscribes at the end. Read it with ``async for``, ``next`` or ``batches``,
    unless it has a callback. Reading ends when the subscription has ended and all received messages were read; if the
    server rejected the subscription, it ends with that error.
    """

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(SUBSCRIPTION)

    def __init__(
        self,
        registry: SubscriptionCallbacks,
        subject: str,
        queue: str | None,
        handler: Handler | None,
        *,
        msgs_limit: int,
        bytes_limit: int,
        policy: SlowPolicy,
        instrumentation: Instrumentation | None = None,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self._inbox: deque[M] = deque()
        """The receive path appends messages here."""
        self._on_change: Callable[[], None] | None = None
        """Called when a chunk brought messages, and at the end, for layers that react at once, not in a task.

        It must not raise.
        """
        self._instrumentation = instrumentation
        self._registry = registry
        self._callback = None if handler is None else HandlerRunner(handler, self._inbox, subject, registry)
        self._reader_tasks: list[asyncio.Task[object] | None] = []
        self._tracked_tasks: set[asyncio.Task[None]] = set()
        self._notifier = Notifier()
        self._limits = InboxLimits(self._inbox, msgs_limit, bytes_limit, policy)
        self._holds_reading = False
        self._pause_disabled = False
        self._close_reason: NatsError | None = None

    # ---------------------------------------------------------------- state

    @property
    def pending_msgs_limit(self) -> int:
        """Messages that may wait to be read; 0 for no limit."""
        return self._limits.msgs_limit

    @property
    def pending_bytes_limit(self) -> int:
        """Bytes (see Message.size) that may wait to be read; 0 for no limit."""
        return self._limits.bytes_limit

    @property
    def policy(self) -> SlowPolicy:
        """The reaction when a limit is reached."""
        return self._limits.policy

    @property
    def dropped(self) -> int:
        """Messages lost because the limits were reached."""
        return self._limits.dropped

    @property
    def pending_msgs(self) -> int:
        """Messages received and not yet read."""
        return len(self._inbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the messages received and not yet read."""
        return sum(message.size for message in self._inbox)

    @property
    def delivered(self) -> int:
        """Messages read so far."""
        return self._limits.gone - self._limits.discarded

    @property
    def has_callback(self) -> bool:
        """True if messages go to a callback instead of a reader."""
        return self._callback is not None

    @property
    def closed(self) -> bool:
        """True if no more messages will arrive."""
        return self._close_reason is not None

    @property
    def error(self) -> NatsError | None:
        """The error that ended the subscription: the server rejected it, or it was too slow. None otherwise."""
        return None if isinstance(self._close_reason, SubscriptionClosed) else self._close_reason

    def __repr__(self) -> str:
        queue = f", queue={self.queue!r}" if self.queue else ""
        state = "closed" if self.closed else "open"
        return f"Subscription({self.subject!r}{queue}, {state}, {len(self._inbox)} pending)"

    # ---------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[M]:
        messages = self._iterate()
        if self._instrumentation is None:
            return messages
        return ReportedIterator(messages, self._instrumentation, self._reader_info)

    async def _iterate(self) -> AsyncGenerator[M]:
        self._check_readable()
        inbox = self._inbox
        task = asyncio.current_task()
        self._reader_tasks.append(task)
        try:
            while True:
                while inbox:
                    yield inbox.popleft()
                if self._is_finished():
                    return
                await self._notifier.next_wake()
        finally:
            self._reader_tasks.remove(task)
            self._notifier.wake()

    def batches(self, max_messages: int | None = None) -> AsyncGenerator[list[M]]:
        """Yield everything that has arrived as one list (of at most ``max_messages``), each time something arrives.

        ConfigError at once if ``max_messages`` is not a positive number. Cancelling loses no message that was not
        yielded.

        Args:
            max_messages: The most messages of one list; None: all that have arrived.
        """
        if max_messages is not None and (type(max_messages) is not int or not 1 <= max_messages < 2**63):
            raise ConfigError("max_messages", max_messages, "must be a positive number, and less than 2**63")
        return self._iterate_batches(max_messages)

    async def _iterate_batches(self, max_messages: int | None) -> AsyncGenerator[list[M]]:
        self._check_readable()
        inbox = self._inbox
        task = asyncio.current_task()
        self._reader_tasks.append(task)
        asked_at = time_ns()
        try:
            while True:
                while inbox:
                    if max_messages is None or len(inbox) <= max_messages:
                        batch = list(inbox)
                        inbox.clear()
                    else:
                        batch = [inbox.popleft() for _ in range(max_messages)]
                    if self._instrumentation is not None:
                        self._instrumentation.received(batch, asked_at, self._reader_info(), batch=True)
                    yield batch
                    asked_at = time_ns()
                if self._is_finished():
                    return
                await self._notifier.wait()
        finally:
            self._reader_tasks.remove(task)
            self._notifier.wake()

    async def next(self, timeout: float | timedelta | None = None) -> M:
        """Return the next message, waiting at most ``timeout`` seconds (None: forever; 0: only a message already here).

        RequestTimeout when no message came in time, SubscriptionClosed when the subscription has ended (or the error
        that ended it), ConfigError and TypeError for bad timeouts. Cancelling loses no message.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that has arrived.
        """
        self._check_readable()
        inbox = self._inbox
        asked_at = 0 if self._instrumentation is None else time_ns()
        loop = asyncio.get_running_loop()
        wait = None if timeout is None else seconds("timeout", timeout)
        deadline = None if wait is None else loop.time() + wait
        while not inbox:
            if self._close_reason is not None:
                raise self._close_reason.with_traceback(None)
            if deadline is not None and loop.time() >= deadline:
                assert wait is not None
                raise RequestTimeout(f"next message on {self.subject!r}", wait)
            await self._notifier.wait(deadline)
        message = inbox.popleft()
        if self._holds_reading:
            self._on_inbox_read()
        if self._instrumentation is not None:
            self._instrumentation.received([message], asked_at, self._reader_info(), batch=False)
        return message

    async def _read_batch(self, timeout: float | None = None) -> list[M]:
        """Return all messages that have arrived, waiting at most ``timeout`` seconds for one (None: forever).

        An empty list when none came in time, after ``_wake_reader``, or when the subscription has ended. Cancelling
        loses no message.
        """
        self._check_readable()
        inbox = self._inbox
        if not inbox and self._close_reason is None and (timeout is None or timeout > 0):
            await self._notifier.wait(None if timeout is None else asyncio.get_running_loop().time() + timeout)
        return self._read_batch_nowait()

    def _read_batch_nowait(self) -> list[M]:
        """Return all messages that have arrived, possibly none."""
        batch = list(self._inbox)
        self._inbox.clear()
        if self._holds_reading:
            self._on_inbox_read()
        return batch

    def _wake_reader(self) -> None:
        """Make a waiting ``_read_batch`` return now."""
        self._notifier.wake()

    # ---------------------------------------------------------------- ending

    async def unsubscribe(self, max_messages: int | None = None) -> None:
        """End the subscription: now, dropping unread messages, or after ``max_messages`` received in all.

        ConfigError if ``max_messages`` is not from 1 to 999,999,999, which is as far as servers count. Does nothing if
        the subscription has ended. Never waits.

        Args:
            max_messages: End after this many messages since the beginning instead of at once; None: at once.
        """
        check_max_messages(max_messages)
        if self._close_reason is None:
            self._registry.unsubscribe(self, max_messages)

    async def drain(self, timeout: float | timedelta | None = 25.0) -> None:
        """End the subscription without losing messages that the server has already sent.

        Returns when the callback has handled all of them (unless the callback itself calls ``drain``). Readers still
        get the remaining messages, and end after them. It does not wait for a connection that has ended, as nothing
        more comes from it.

        RequestTimeout when the server does not confirm within ``timeout`` seconds (None: no limit), DrainTimeout when
        the callback takes longer. In either case, and when cancelled, the subscription has ended.

        Args:
            timeout: Seconds for the messages that have arrived; None: no limit.
        """
        wait = time_limit("timeout", timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if self._close_reason is None:
            self._registry.stop_delivery(self)
            try:
                await self._registry.flush_connection(wait)
            finally:
                self._registry.remove(self)
                self._close(None)
        me = asyncio.current_task()
        while self._has_running_callback(lambda task: task is me):
            if loop.time() >= deadline:
                left = f"{len(self._inbox) + 1} messages of {self.subject!r} not handled"
                raise DrainTimeout(f"drain of {self.subject!r}", wait, [left])
            await self._notifier.wait(deadline)

    async def _join(self, deadline: float, is_draining: Callable[[asyncio.Task[object] | None], bool]) -> int:
        """Wait until a callback or a running iterator has handled everything and stopped, or until the deadline.

        Returns the number of messages that were not handled. Neither messages without a reader nor tasks
        that drain the client are waited for.
        """
        loop = asyncio.get_running_loop()
        while self._has_running_callback(is_draining) or self._has_other_reader(is_draining):
            if loop.time() >= deadline:
                return len(self._inbox) + 1
            await self._notifier.wait(deadline)
        return 0

    def _has_running_callback(self, is_excepted: Callable[[asyncio.Task[object] | None], bool]) -> bool:
        """True if a callback has messages to handle, in a task that is not excepted."""
        callback = self._callback
        if callback is None:
            return False
        if callback.task is None and self._inbox:
            callback.start(self._on_callback_idle)  # the last task ended early: its callback had cancelled it
        return callback.task is not None and not is_excepted(callback.task)

    def _has_other_reader(self, is_excepted: Callable[[asyncio.Task[object] | None], bool]) -> bool:
        """True if a task is reading that is not excepted. An iterator that outlived its task does not count.

        A tracked task counts until its callbacks have run, as one of them may begin the next task.
        """
        return any(
            task is not None and not task.done() and not is_excepted(task) for task in self._reader_tasks
        ) or not all(map(is_excepted, self._tracked_tasks))

    def _track_task(self, task: asyncio.Task[None]) -> None:
        """Let a draining client wait for this task, as it waits for a running iterator.

        For layers that take messages out of the inbox and handle them in tasks of their own.
        """
        self._tracked_tasks.add(task)
        task.add_done_callback(self._untrack_task)

    def _untrack_task(self, task: asyncio.Task[None]) -> None:
        self._tracked_tasks.discard(task)
        self._notifier.wake()

    def _cancel_callback(self) -> asyncio.Task[None] | None:
        """Cancel the running callback, unless it is the caller, and return its task."""
        return None if self._callback is None else self._callback.cancel()

    def _disable_pause(self) -> None:
        """Stop pausing the socket: the confirmation of the server follows the messages it has sent."""
        self._pause_disabled = True
        self._release_reading()

    def _close(self, error: NatsError | None, *, discard: bool = False, reason: str = "unsubscribed") -> None:
        """End the subscription. Readers get ``error`` after the remaining messages, or end for this ``reason``."""
        if self._close_reason is None:
            self._close_reason = error or SubscriptionClosed(self.subject, reason)
        if discard:
            self._limits.discard_all()
        self._release_reading()  # no more messages will come
        self._notifier.wake()
        if self._on_change is not None:
            self._on_change()

    def __await__(self) -> Generator[None, None, Subscription[M]]:
        yield from ()
        return self

    async def __aenter__(self) -> Subscription[M]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    # ---------------------------------------------------------------- receiving

    def _account(self, count: int, nbytes: int, excess: int, deadline: float = 0.0) -> bool:
        """Account for ``count`` messages that one chunk put into the inbox.

        The last ``excess`` of them exceed the limit of an auto-unsubscribe and are removed again. A ``def`` callback is
        called here, until the deadline (of time.monotonic; 0: for CALLBACK_TIME_SLICE_S); a task handles the rest.
        Returns True if a task has to run before all messages are handled.
        """
        inbox, limits = self._inbox, self._limits
        if limits.is_unlimited and not excess:
            limits.arrived += count
        elif limits.on_chunk(count, nbytes, excess):
            self._apply_limits()
        if self._on_change is not None:
            self._on_change()
            return True
        if (callback := self._callback) is None:
            if self._notifier:
                self._notifier.wake()
        elif callback.task is None and inbox:
            is_late = deadline and monotonic() > deadline
            if callback.is_async or is_late:
                callback.start(self._on_callback_idle, at_once=not is_late)
            else:
                awaitable = callback.context.run(callback.call, deadline)
                if awaitable is not None or inbox:
                    callback.start(self._on_callback_idle, awaitable)
                elif self._holds_reading:
                    self._on_inbox_read()
        return bool(inbox)

    def _apply_limits(self) -> None:
        """React to limits that are exceeded, and give a reader that makes progress a turn of the event loop, as one
        turn can read more than the inbox holds.
        """
        limits = self._limits
        if not limits.exceeded:
            pass
        elif limits.policy is SlowPolicy.PAUSE:
            if not self._holds_reading and not self._pause_disabled:
                self._holds_reading = True
                self._registry.hold_reading(self, True)
        else:
            dropped = limits.drop_excess()
            self._registry.on_dropped(self, dropped)
            if limits.policy is SlowPolicy.ERROR:
                self._registry.remove(self)
                self._close(self._slow_error(dropped))
        if limits.has_reader_progress():
            self._registry.yield_to_readers()

    def _slow_error(self, dropped: int) -> SlowConsumer:
        """Return the error for a reader that is too slow."""
        return SlowConsumer(self.subject, dropped, len(self._inbox), self._limits.count_bytes())

    # ---------------------------------------------------------------- internals

    def _reader_info(self) -> ReaderInfo:
        return ReaderInfo(self.subject, self.queue)

    def _check_readable(self) -> None:
        if self._callback is not None:
            raise LocalProtocolError(f"cannot read the subscription to {self.subject!r}: it has a callback")

    def _is_finished(self) -> bool:
        """With an empty inbox: True if the subscription has ended. Raises the error that ended it."""
        self._on_inbox_read()
        if self._close_reason is None:
            return False
        if not isinstance(self._close_reason, SubscriptionClosed):
            raise self._close_reason.with_traceback(None)
        return True

    def _on_inbox_read(self) -> None:
        """Resume reading if the inbox is empty."""
        if not self._inbox:
            self._release_reading()

    def _on_callback_idle(self) -> None:
        """The callback has handled all waiting messages."""
        self._on_inbox_read()
        self._notifier.wake()

    def _release_reading(self) -> None:
        if self._holds_reading:
            self._holds_reading = False
            self._registry.hold_reading(self, False)


def check_max_messages(max_messages: int | None) -> None:
    """Raise ConfigError for a number of messages after which no subscription can end."""
    if max_messages is not None and (type(max_messages) is not int or not 1 <= max_messages <= MAX_AUTO_UNSUBSCRIBE):
        raise ConfigError("max_messages", max_messages, "must be from 1 to 999,999,999 messages")
