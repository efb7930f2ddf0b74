"""Subscriptions: a bounded inbox, and the ways to read it.

Owns the waiting messages. ``InboxLimits`` bounds them, ``SubscriptionReaders`` knows who handles them. The receive path
appends to the inbox directly and calls ``_account`` once per chunk, so nothing here runs once per message except the
user's own reading.

1. Every reader waits in ``_has_message`` for a message and for its turn. Loops ask the clock themselves first.
2. A message leaves the inbox in the same step in which the reader gets it, with no await in between, so cancelling a
   reader never loses one.
3. ``drain`` waits for the callback only. Loops read what has arrived, and end by themselves.
4. ``unsubscribe`` of a draining subscription drops what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from natsproto import errors
from natsproto._core.ending import CUT_TIMEOUT_S, Ending
from natsproto._core.inbox.handler import Handler, HandlerCallbacks, HandlerRunner
from natsproto._core.inbox.inbox_limits import InboxLimits, SlowPolicy
from natsproto._core.inbox.subscription_readers import SubscriptionReaders
from natsproto._core.instrumentation import Instrumentation, ReaderInfo, ReportedIterator
from natsproto._core.notifier import Notifier
from natsproto._durations import seconds, time_limit
from natsproto._help.async_hints import AsyncForHint
from natsproto.protocol.frames import Message, Route

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

    def check_loop(self) -> None:
        """LocalProtocolError in another event loop, thread or process."""
        ...

    async def flush_connection(self) -> None:
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

    _route: Route
    """The route of its messages, since it is registered. For layers on top, which set its note."""

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
        self._registry, self._time_slice = registry, registry.time_slice
        self._ending: Ending | None = None
        self._notifier = Notifier()
        self._limits = InboxLimits(self._inbox, msgs_limit, bytes_limit, policy)
        self._callback = None if handler is None else HandlerRunner(handler, self._inbox, subject, registry)
        self._readers = SubscriptionReaders(subject, self._callback, self._limits, self._notifier)
        self._holds_reading = False
        self._pause_disabled = False
        self._close_reason: errors.NatsError | None = None

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
    def error(self) -> errors.NatsError | None:
        """The error that ended the subscription: the server rejected it, or it was too slow. None otherwise."""
        return None if isinstance(self._close_reason, errors.SubscriptionClosed) else self._close_reason

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
        inbox, time_slice, clock = self._inbox, self._time_slice, monotonic
        task = self._readers.enter()
        try:
            while (inbox and clock() < time_slice.ends_at) or await self._has_message():
                yield inbox.popleft()
            self._raise_error()
        finally:
            self._readers.leave(task)

    def batches(self, max_messages: int | None = None) -> AsyncGenerator[list[M]]:
        """Yield everything that has arrived as one list (of at most ``max_messages``), each time something arrives.

        ConfigError at once if ``max_messages`` is not a positive number. Cancelling loses no message that was not
        yielded.

        Args:
            max_messages: The most messages of one list; None: all that have arrived.
        """
        if max_messages is not None and (type(max_messages) is not int or not 1 <= max_messages < 2**63):
            raise errors.ConfigError("max_messages", max_messages, "must be a positive number, and less than 2**63")
        return self._iterate_batches(max_messages)

    async def _iterate_batches(self, max_messages: int | None) -> AsyncGenerator[list[M]]:
        self._check_readable()
        task, asked_at = self._readers.enter(), time_ns()
        try:
            while await self._has_message():
                batch = self._read_batch_nowait(max_messages)
                if self._instrumentation is not None:
                    self._instrumentation.received(batch, asked_at, self._reader_info(), batch=True)
                yield batch
                asked_at = time_ns()
            self._raise_error()
        finally:
            self._readers.leave(task)

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
        wait = None if timeout is None else seconds("timeout", timeout)
        if not inbox or monotonic() >= self._time_slice.ends_at:
            deadline = None if wait is None else asyncio.get_running_loop().time() + wait
            if not await self._has_message(deadline):
                if self._close_reason is not None:
                    raise self._close_reason.with_traceback(None)
                assert wait is not None
                raise errors.RequestTimeout(f"next message on {self.subject!r}", wait, missing="message")
        message = inbox.popleft()
        if self._holds_reading:
            self._on_inbox_read()
        if self._instrumentation is not None:
            self._instrumentation.received([message], asked_at, self._reader_info(), batch=False)
        return message

    async def _has_message(self, deadline: float | None = None) -> bool:
        """Wait for a message and for the turn to take it. False at the deadline (loop time), and at the end."""
        inbox, time_slice, notifier = self._inbox, self._time_slice, self._notifier
        while True:
            if inbox:
                if monotonic() < time_slice.ends_at:
                    return True
                await time_slice.next_turn()
                continue
            self._on_inbox_read()
            if self._close_reason is not None:
                return False
            if deadline is None:
                await notifier.wait()
            elif asyncio.get_running_loop().time() >= deadline:
                return False
            else:
                await notifier.wait(deadline)

    async def _read_batch(self, timeout: float | None = None) -> list[M]:
        """Return all messages that have arrived, waiting at most ``timeout`` seconds for one (None: forever).

        An empty list when none came in time, after ``_wake_reader``, or when the subscription has ended. Cancelling
        loses no message.
        """
        self._check_readable()
        if not self._inbox and self._close_reason is None and (timeout is None or timeout > 0):
            await self._notifier.wait(None if timeout is None else asyncio.get_running_loop().time() + timeout)
        return self._read_batch_nowait()

    def _read_batch_nowait(self, max_messages: int | None = None) -> list[M]:
        """Return the messages that have arrived, possibly none; the oldest ``max_messages`` of them, if given."""
        inbox = self._inbox
        if max_messages is None or len(inbox) <= max_messages:
            batch = list(inbox)
            inbox.clear()
        else:
            batch = [inbox.popleft() for _ in range(max_messages)]
        if self._holds_reading:
            self._on_inbox_read()
        return batch

    def _wake_reader(self) -> None:
        """Make a waiting ``_read_batch`` return now."""
        self._notifier.wake()

    # ---------------------------------------------------------------- ending

    def _unsubscribe_nowait(self) -> None:
        """End it from code that cannot await."""
        if not self.closed:
            self._registry.unsubscribe(self, None)

    def _stop_delivery_nowait(self) -> None:
        """Send UNSUB now; ``drain`` then receives the remaining messages and ends it."""
        if not self.closed:
            self._registry.stop_delivery(self)

    async def unsubscribe(self, max_messages: int | None = None) -> None:
        """End the subscription: now, dropping unread messages, or after ``max_messages`` received in all.

        ConfigError if ``max_messages`` is not from 1 to 999,999,999, which is as far as servers count. Does nothing if
        the subscription has ended. Never waits.

        Args:
            max_messages: End after this many messages since the beginning instead of at once; None: at once.
        """
        check_max_messages(max_messages)
        self._registry.check_loop()
        if self._close_reason is None:
            self._registry.unsubscribe(self, max_messages)
        elif self._ending is not None and max_messages is None:
            self._limits.discard_all()  # it drains: what waits is dropped

    async def drain(self, timeout: float | timedelta | None = 25.0) -> None:
        """End the subscription without losing messages that the server has already sent.

        Returns when the callback has handled all of them; from inside of it, when no more come. Readers still get the
        remaining messages, and end after them. It does not wait for a connection that has ended, as nothing more comes
        from it.

        DrainTimeout after ``timeout`` seconds (None: no limit): what still waits is dropped, and a running callback is
        cancelled; so it is when the last one who waits is cancelled.

        Args:
            timeout: Seconds for the messages that have arrived; None: no limit.
        """
        wait = time_limit("timeout", timeout)
        self._registry.check_loop()
        ending = self._ending
        if ending is None:
            ending = Ending(f"drain of {self.subject!r}", self._drain, self._describe_rest, self._end_callback)
            self._ending = ending
        ending.begin(wait)
        await ending.wait_as_caller(lambda: [self._readers] if self._callback is not None else [])

    async def _drain(self) -> None:
        assert self._ending is not None
        if self._close_reason is None:
            self._registry.stop_delivery(self)
            try:
                await self._registry.flush_connection()
            except errors.ConnectionClosed:
                pass  # nothing more comes
            finally:
                self._registry.remove(self)
                self._close(None)
        self._ending.on_stopped()
        await self._readers.join_callback()

    async def _describe_rest(self) -> list[str]:
        assert self._ending is not None
        left = [] if self._ending.is_stopped else [f"the server did not confirm the end of {self.subject!r}"]
        if self._readers.is_callback_busy:
            left.append(f"{self._readers.unhandled} messages of {self.subject!r} not handled")
        return left

    async def _end_callback(self) -> None:
        if self._callback is not None and (tasks := self._readers.cut()):
            await asyncio.wait(tasks, timeout=CUT_TIMEOUT_S)

    def _track_task(self, task: asyncio.Task[None]) -> SubscriptionReaders:
        """Let a draining client wait for this task, as it waits for a running iterator. Return its readers.

        For layers that take messages out of the inbox and handle them in tasks of their own.
        """
        self._readers.track(task)
        return self._readers

    def _disable_pause(self) -> None:
        """Stop pausing the socket: the confirmation of the server follows the messages it has sent."""
        self._pause_disabled = True
        self._release_reading()

    def _close(self, error: errors.NatsError | None, *, discard: bool = False, reason: str = "unsubscribed") -> None:
        """End the subscription. Readers get ``error`` after the remaining messages, or end for this ``reason``."""
        if self._close_reason is None:
            self._close_reason = error or errors.SubscriptionClosed(self.subject, reason)
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

    def _account(self, count: int, nbytes: int, excess: int) -> bool:
        """Account for ``count`` messages that one chunk put into the inbox.

        The last ``excess`` of them exceed the limit of an auto-unsubscribe and are removed again. A ``def`` callback is
        called here, until the time slice is over; a task handles the rest.
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
        elif inbox and ((task := callback.task) is None or task.done()):
            if callback.is_async:
                callback.start(self._on_callback_idle, at_once=True)
            else:
                awaitable = callback.context.run(callback.call)
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

    def _slow_error(self, dropped: int) -> errors.SlowConsumer:
        """Return the error for a reader that is too slow."""
        return errors.SlowConsumer(self.subject, dropped, len(self._inbox), self._limits.count_bytes())

    # ---------------------------------------------------------------- internals

    def _reader_info(self) -> ReaderInfo:
        return ReaderInfo(self.subject, self.queue)

    def _check_readable(self) -> None:
        if self._callback is not None:
            raise errors.LocalProtocolError(f"cannot read the subscription to {self.subject!r}: it has a callback")

    def _raise_error(self) -> None:
        """Raise the error that ended the subscription, if any."""
        if (error := self.error) is not None:
            raise error.with_traceback(None)

    def _on_inbox_read(self) -> None:
        """Resume reading if the inbox is empty."""
        if self._holds_reading and not self._inbox:
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
        raise errors.ConfigError("max_messages", max_messages, "must be from 1 to 999,999,999 messages")
