"""A subscription: one bounded inbox and the ways to read it.

Owns the messages waiting for the user, their limits, and the task of a handler. The receive path appends to
the inbox directly and calls ``_account`` once per chunk, so nothing here runs once per message but the
user's own reading.

A message leaves the inbox in the same step in which it is handed over, with no await in between: cancelling
a reader never loses one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeAlias, TypeVar

from natsproto._async_hints import AsyncForHint
from natsproto._core.notifier import Notifier
from natsproto._durations import seconds
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

MAX_MESSAGES_PER_TURN = 512
"""Messages a callback handles before other tasks get a turn, even if it never suspends."""

CALLBACK_TIME_SLICE_S = 0.005
"""Seconds in which ``def`` callbacks handle messages before other tasks get a turn."""

Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]
SlowPolicyLike: TypeAlias = "SlowPolicy | Literal['drop_newest', 'drop_oldest', 'error', 'pause']"


class SlowPolicy(StrEnum):
    """What happens when a subscription reaches its limits."""

    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"
    ERROR = "error"
    PAUSE = "pause"


class SubscriptionCallbacks(Protocol):
    """What a subscription needs of the engine that feeds it."""

    def unsubscribe(self, subscription: Subscription, max_msgs: int | None) -> None:
        """Ends interest now (None) or after max_msgs in all."""
        ...

    def stop_interest(self, subscription: Subscription) -> None:
        """Tells the server to send no more; what it has sent already is still taken in."""
        ...

    def remove(self, subscription: Subscription) -> None:
        """Takes in no more."""
        ...

    async def flush(self, timeout: float) -> None:
        """Waits until the server has handled everything sent so far."""
        ...

    def on_slow_consumer(self, subscription: Subscription, error: SlowConsumer) -> None:
        """An episode of losing messages begins."""
        ...

    def hold_reading(self, subscription: Subscription, wanted: bool) -> None:
        """Asks for reading from the socket to stop, or takes that back."""
        ...

    def on_slow_consumer_recovered(self, subscription: Subscription, dropped: int) -> None:
        """An episode of losing messages has ended; so many were lost."""
        ...

    def yield_to_readers(self) -> None:
        """Stops reading from the socket for a turn of the event loop."""
        ...

    def on_handler_error(self, where: str, error: BaseException) -> None:
        """A callback raised."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the client goes on: it is neither closed nor is its own task being cancelled."""
        ...


class Subscription(AsyncForHint, Generic[M]):
    """Messages of one subject or wildcard; to a type checker, those it was told to make (``message_type``).

    Await it or enter it (``async with`` unsubscribes at the end); read it with ``async for``, ``next`` or
    ``batches``, unless it was given a callback. Reading ends when the subscription has ended and everything
    received was read; a subscription that the server refused ends with the error.
    """

    def __init__(
        self,
        engine: SubscriptionCallbacks,
        subject: str,
        queue: str | None,
        handler: Handler | None,
        *,
        msgs_limit: int,
        bytes_limit: int,
        policy: SlowPolicy,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.pending_msgs_limit = msgs_limit
        """Messages that may wait to be read; 0 for no limit."""
        self.pending_bytes_limit = bytes_limit
        """Bytes (see Message.size) that may wait to be read; 0 for no limit."""
        self.policy = policy
        self.dropped: int = 0
        """Messages lost because the limits were reached."""
        self._inbox: deque[M] = deque()
        """Where the receive path puts messages; not for users."""
        self._on_change: Callable[[], None] | None = None
        """Called in the step in which a chunk brought something, or the end came. For layers on top that answer in
        that step instead of waking a task; it must not raise.
        """
        self._engine = engine
        self._handler = handler
        self._context = contextvars.copy_context() if handler is not None else None
        self._is_async = _is_async_callable(handler)
        self._loop = asyncio.get_running_loop()
        self._callback_task: asyncio.Task[None] | None = None
        self._iterator_tasks: list[asyncio.Task[object] | None] = []
        self._tracked_tasks: set[asyncio.Task[None]] = set()
        self._notifier = Notifier()
        self._arrived = 0  # messages that entered the inbox and were not dropped from its new end
        self._discarded = 0  # messages that left its old end without being read
        # (_arrived after a chunk, bytes of the chunk), the oldest first; None: what waits came in one chunk.
        self._chunks: deque[tuple[int, int]] | None = None
        self._chunk_bytes = 0
        self._episode_dropped = 0  # messages lost in this episode; 0: the reader is not slow
        self._read_at_last_drop = 0
        self._read_at_last_yield = -1  # how many had been read when reading from the socket stopped for the reader
        self._holds_reading = False
        self._pause_disabled = False
        self._close_reason: NatsError | None = None
        self._has_failed = False

    # ---------------------------------------------------------------- what it is

    @property
    def pending_msgs(self) -> int:
        """Messages received and not read yet."""
        return len(self._inbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the messages received and not read yet."""
        return sum(message.size for message in self._inbox)

    @property
    def delivered(self) -> int:
        """Messages read so far."""
        return self._arrived - len(self._inbox) - self._discarded

    @property
    def has_callback(self) -> bool:
        """Whether messages go to a callback instead of a reader."""
        return self._handler is not None

    @property
    def closed(self) -> bool:
        """Whether nothing more will arrive."""
        return self._close_reason is not None

    @property
    def error(self) -> NatsError | None:
        """What ended the subscription when that was not its owner: the server refused it, or it was too slow."""
        return self._close_reason if self._has_failed else None

    def __repr__(self) -> str:
        queue = f", queue={self.queue!r}" if self.queue else ""
        state = "closed" if self.closed else "open"
        return f"Subscription({self.subject!r}{queue}, {state}, {len(self._inbox)} pending)"

    # ---------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[M]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[M]:
        self._check_readable()
        inbox = self._inbox
        task = asyncio.current_task()
        self._iterator_tasks.append(task)
        try:
            while True:
                while inbox:
                    yield inbox.popleft()
                if self._is_finished():
                    return
                await self._notifier.join()
        finally:
            self._iterator_tasks.remove(task)
            self._notifier.wake()

    def batches(self, max_msgs: int | None = None) -> AsyncGenerator[list[M]]:
        """Yields everything that has arrived as one list (of at most max_msgs), whenever something has.

        ConfigError at once for a max_msgs that is no positive number. Cancelling takes nothing that was not
        yielded.
        """
        _check_count(max_msgs)
        return self._iterate_batches(max_msgs)

    async def _iterate_batches(self, max_msgs: int | None) -> AsyncGenerator[list[M]]:
        self._check_readable()
        inbox = self._inbox
        task = asyncio.current_task()
        self._iterator_tasks.append(task)
        try:
            while True:
                while inbox:
                    if max_msgs is None or len(inbox) <= max_msgs:
                        batch = list(inbox)
                        inbox.clear()
                    else:
                        batch = [inbox.popleft() for _ in range(max_msgs)]
                    yield batch
                if self._is_finished():
                    return
                await self._notifier.wait()
        finally:
            self._iterator_tasks.remove(task)
            self._notifier.wake()

    async def next(self, timeout: float | timedelta | None = None) -> M:
        """The next message; waits at most ``timeout`` seconds (None: for ever; 0: only one that is here).

        RequestTimeout when none came in time, SubscriptionClosed when none will come any more (or the error
        that ended the subscription), ConfigError and TypeError for bad timeouts. Cancelling takes no message.
        """
        self._check_readable()
        inbox = self._inbox
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
        if self._holds_reading or self._episode_dropped:
            self._on_inbox_read()
        return message

    async def _read_batch(self, timeout: float | None = None) -> list[M]:
        """Everything that has arrived, as soon as something has; waits at most ``timeout`` seconds (None: for ever).

        An empty list when nothing came in time, when ``_wake_reader`` was called, or when the subscription has ended.
        Cancelling takes no message.
        """
        self._check_readable()
        inbox = self._inbox
        if not inbox and self._close_reason is None and (timeout is None or timeout > 0):
            await self._notifier.wait(None if timeout is None else asyncio.get_running_loop().time() + timeout)
        return self._read_batch_nowait()

    def _read_batch_nowait(self) -> list[M]:
        """Everything that has arrived, which may be nothing."""
        batch = list(self._inbox)
        self._inbox.clear()
        if self._holds_reading or self._episode_dropped:
            self._on_inbox_read()
        return batch

    def _wake_reader(self) -> None:
        """Lets ``_read_batch`` return now, with what there is."""
        self._notifier.wake()

    # ---------------------------------------------------------------- ending

    async def unsubscribe(self, max_msgs: int | None = None) -> None:
        """Ends the subscription: now, dropping what is unread, or after max_msgs received in all.

        Does nothing on a subscription that has ended. Never waits.
        """
        _check_count(max_msgs)
        if self._close_reason is None:
            self._engine.unsubscribe(self, max_msgs)

    async def drain(self, timeout: float | timedelta = 30.0) -> None:
        """Ends the subscription without losing what the server has already sent to it.

        Everything sent until now is taken in; a callback has handled all of it when this returns (unless the
        callback itself is who drains); readers still get it and end behind it.

        RequestTimeout when the server does not confirm within ``timeout`` seconds, DrainTimeout when the
        callback takes longer. Either way, and when cancelled, the subscription has ended.
        """
        wait = seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if self._close_reason is None:
            self._engine.stop_interest(self)
            try:
                await self._engine.flush(wait)
            finally:
                self._engine.remove(self)
                self._close(None)
        me = asyncio.current_task()
        while self._has_running_callback(me):
            if loop.time() >= deadline:
                left = f"{len(self._inbox) + 1} messages of {self.subject!r} not handled"
                raise DrainTimeout(f"drain of {self.subject!r}", wait, [left])
            await self._notifier.wait(deadline)

    async def _join(self, deadline: float) -> int:
        """Waits until a callback or a running iterator has taken everything and stopped, or the deadline.

        Returns how many messages were not handled; those that nobody reads are not waited for.
        """
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        while self._has_running_callback(me) or self._has_other_reader(me):
            if loop.time() >= deadline:
                return len(self._inbox) + 1
            await self._notifier.wait(deadline)
        return 0

    def _has_running_callback(self, me: asyncio.Task[object] | None) -> bool:
        """Whether a callback has something to do, in another task than this one."""
        if self._callback_task is None and self._handler is not None and self._inbox:
            self._start_callback_task()  # the last one ended early: the callback had cancelled its task
        return self._callback_task not in (None, me)

    def _has_other_reader(self, me: asyncio.Task[object] | None) -> bool:
        """Whether another task is reading; an iterator that outlived its task is nobody."""
        return any(task is not me and task is not None and not task.done() for task in self._iterator_tasks) or any(
            task is not me for task in self._tracked_tasks
        )

    def _track_task(self, task: asyncio.Task[None]) -> None:
        """A client that drains waits until the callbacks of this task have run, as it does for one that iterates. For
        layers on top that took a message from the inbox, handle it elsewhere, and then take the next one.
        """
        self._tracked_tasks.add(task)
        task.add_done_callback(self._untrack_task)

    def _untrack_task(self, task: asyncio.Task[None]) -> None:
        self._tracked_tasks.discard(task)
        self._notifier.wake()

    def _cancel_callback(self) -> asyncio.Task[None] | None:
        """Cancels the callback at work, unless it is who asks; returns its task, which ends soon."""
        worker = self._callback_task
        if worker is None or worker is asyncio.current_task():
            return None
        worker.cancel()
        return worker

    def _disable_pause(self) -> None:
        """The server was told to send no more: what it has sent already is taken in without a pause, because
        its answer comes behind that.
        """
        self._pause_disabled = True
        self._release_reading()

    def _close(self, error: NatsError | None, *, discard: bool = False, reason: str = "unsubscribed") -> None:
        """Nothing more will arrive. Readers see ``error`` behind what is left, or the end, for a ``reason``."""
        if self._close_reason is None:
            self._close_reason = error or SubscriptionClosed(self.subject, reason)
            self._has_failed = error is not None
        if discard:
            self._discarded += len(self._inbox)
            self._inbox.clear()
        self._release_reading()  # read or not: nothing more comes that could be too much
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

    # ---------------------------------------------------------------- being fed

    def _account(self, count: int, nbytes: int, excess: int, deadline: float = 0.0) -> None:
        """Accounts for ``count`` messages that one chunk put into the inbox; the last ``excess`` of them
        came behind the limit of an auto-unsubscribe and are taken out again.

        A ``def`` callback is called here, until the deadline (of time.monotonic; 0: for CALLBACK_TIME_SLICE_S);
        a task handles the rest.
        """
        inbox = self._inbox
        for _ in range(excess):
            nbytes -= inbox.pop().size
        count -= excess
        self._arrived += count
        waiting = len(inbox)
        if waiting == count:  # everything older has been read
            self._chunks, self._chunk_bytes = None, nbytes
            if self._episode_dropped:
                self._end_drop_episode()
        elif count:
            self._add_chunk(count, nbytes)
        if (0 < self.pending_msgs_limit < waiting * 2 or 0 < self.pending_bytes_limit < self._chunk_bytes) and waiting:
            self._check_limits()
        if self._on_change is not None:
            self._on_change()
        elif self._handler is None:
            if self._notifier:
                self._notifier.wake()
        elif self._callback_task is None and inbox:
            if self._is_async or (deadline and monotonic() > deadline):
                self._start_callback_task()
            else:
                assert self._context is not None
                awaitable = self._context.run(self._call, deadline)
                if awaitable is not None or inbox:
                    self._start_callback_task(awaitable)
                elif self._episode_dropped or self._holds_reading:
                    self._on_inbox_read()

    def _add_chunk(self, count: int, nbytes: int) -> None:
        """Keeps the account by chunks, as older messages wait: nothing has to be done when one is read."""
        if self._chunks is None:
            self._chunks = deque(((self._arrived - count, self._chunk_bytes),))
        self._drop_read_chunks()
        self._chunks.append((self._arrived, nbytes))
        self._chunk_bytes += nbytes

    def _drop_read_chunks(self) -> None:
        chunks = self._chunks
        left = self._arrived - len(self._inbox)  # how many have left the inbox at its old end
        while chunks and chunks[0][0] <= left:
            self._chunk_bytes -= chunks.popleft()[1]

    def _check_limits(self) -> None:
        """The inbox is at least half full."""
        if self._exceeds_limits():
            self._enforce_limits()
        # One turn of the event loop can read more than an inbox holds: who has read something gets a turn to go on.
        gone = self._arrived - len(self._inbox)
        if gone != self._read_at_last_yield:
            self._read_at_last_yield = gone
            self._engine.yield_to_readers()

    def _exceeds_limits(self) -> bool:
        return (
            0 < self.pending_msgs_limit < len(self._inbox) or 0 < self.pending_bytes_limit < self._count_pending_bytes()
        )

    def _count_pending_bytes(self) -> int:
        """Bytes pending, without adding up the whole inbox: only the oldest chunk can be partly read."""
        if not self._inbox:
            return 0
        if self._chunks is None:
            self._chunks = deque(((self._arrived, self._chunk_bytes),))
        self._drop_read_chunks()
        end, nbytes = self._chunks[0]
        left = end - (self._arrived - len(self._inbox))
        return self._chunk_bytes - nbytes + sum(message.size for message in islice(self._inbox, left))

    def _enforce_limits(self) -> None:
        if self.policy is SlowPolicy.PAUSE:
            if not self._holds_reading and not self._pause_disabled:
                self._holds_reading = True
                self._engine.hold_reading(self, True)
            return
        before, begins = self.dropped, not self._episode_dropped
        self._count_pending_bytes()  # from here on there is an account by chunks
        drop = self._drop_oldest if self.policy is SlowPolicy.DROP_OLDEST else self._drop_newest
        while self._exceeds_limits():
            drop()
        dropped = self.dropped - before
        self._episode_dropped += dropped
        self._read_at_last_drop = self.delivered
        if begins:
            error = SlowConsumer(self.subject, dropped, len(self._inbox), self._count_pending_bytes())
            self._engine.on_slow_consumer(self, error)
            if self.policy is SlowPolicy.ERROR:
                self._engine.remove(self)
                self._close(error)

    def _end_drop_episode(self) -> None:
        """The inbox is empty: whoever has read it so is slow no more. What never fitted in was not read."""
        if self.delivered != self._read_at_last_drop:
            lost, self._episode_dropped = self._episode_dropped, 0
            self._engine.on_slow_consumer_recovered(self, lost)

    def _drop_newest(self) -> None:
        assert self._chunks is not None
        size = self._inbox.pop().size
        self.dropped += 1
        self._arrived -= 1
        end, nbytes = self._chunks.pop()
        self._chunk_bytes -= size
        begin = self._chunks[-1][0] if self._chunks else self._arrived - len(self._inbox)
        if end - 1 > begin:
            self._chunks.append((end - 1, nbytes - size))
        else:
            self._chunk_bytes -= nbytes - size

    def _drop_oldest(self) -> None:
        self._inbox.popleft()
        self.dropped += 1
        self._discarded += 1
        self._drop_read_chunks()

    # ---------------------------------------------------------------- inside

    def _check_readable(self) -> None:
        if self._handler is not None:
            raise LocalProtocolError(f"cannot read the subscription to {self.subject!r}: it has a callback")

    def _is_finished(self) -> bool:
        """With the inbox empty: whether it stays so. Raises the error that ended it."""
        self._on_inbox_read()
        if self._close_reason is None:
            return False
        if self._has_failed:
            raise self._close_reason.with_traceback(None)
        return True

    def _on_inbox_read(self) -> None:
        """The inbox may be empty: nobody is slow then."""
        if not self._inbox:
            if self._holds_reading:
                self._release_reading()
            if self._episode_dropped:
                self._end_drop_episode()

    def _release_reading(self) -> None:
        if self._holds_reading:
            self._holds_reading = False
            self._engine.hold_reading(self, False)

    def _start_callback_task(self, begun: Awaitable[object] | None = None) -> None:
        worker = self._loop.create_task(self._run_callbacks(begun), name=self._task_name(), context=self._context)
        # With an eager task factory it may be over already.
        self._callback_task = None if worker.done() else worker

    def _task_name(self) -> str:
        return f"natsproto handler of {self.subject}"

    def _call(self, deadline: float) -> Awaitable[object] | None:
        """Call a ``def`` callback with the waiting messages, until the deadline or for MAX_MESSAGES_PER_TURN messages.

        Returns the first awaitable that it returns, which must be awaited before the callback is called again.
        """
        inbox, handler = self._inbox, self._handler
        assert handler is not None
        watched = self._loop.get_debug()
        if not deadline and (watched or len(inbox) > 1):
            deadline = monotonic() + CALLBACK_TIME_SLICE_S
        for _ in range(MAX_MESSAGES_PER_TURN):
            message = inbox.popleft()
            began = monotonic() if watched else 0.0
            try:
                result = handler(message)
            except (KeyboardInterrupt, SystemExit) as exc:
                return _raise(exc)  # the end of the program, for which a task is the place
            except BaseException as exc:
                self._engine.on_handler_error(f"callback of {self.subject!r}", exc)
                result = None
            if watched and (took := monotonic() - began) > self._loop.slow_callback_duration:
                log.warning("callback of %r kept the event loop for %.3f seconds", self.subject, took)
            if result is not None and inspect.isawaitable(result):
                return result
            if not inbox or (deadline and monotonic() > deadline):
                break
        return None

    async def _run_callbacks(self, begun: Awaitable[object] | None) -> None:
        """Gives the callback every waiting message in order, then ends: an idle subscription has no task.

        What a ``def`` callback has ``begun`` in the read is awaited first.
        """
        inbox, handler = self._inbox, self._handler
        assert handler is not None
        try:
            if begun is not None:
                await self._await_result(begun)
            while inbox:
                if self._is_async:
                    for _ in range(MAX_MESSAGES_PER_TURN):
                        try:
                            await handler(inbox.popleft())  # type: ignore[misc]  # awaitable, as was found out
                        except BaseException as exc:
                            if not self._report_callback_error(exc):
                                raise
                        if not inbox:
                            break
                elif (awaitable := self._call(0.0)) is not None:
                    await self._await_result(awaitable)
                if inbox:
                    await asyncio.sleep(0)
        finally:
            self._callback_task = None
            self._on_inbox_read()
            self._notifier.wake()

    async def _await_result(self, result: Awaitable[object]) -> None:
        """Awaits what a ``def`` callback has returned."""
        try:
            await result
        except BaseException as exc:
            if not self._report_callback_error(exc):
                raise

    def _report_callback_error(self, exc: BaseException) -> bool:
        """Reports what a callback has raised, unless it is the end of this task or of the program."""
        if isinstance(exc, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            return False
        if isinstance(exc, asyncio.CancelledError) and not self._continue_after_cancel():
            return False
        self._engine.on_handler_error(f"callback of {self.subject!r}", exc)
        return True

    def _continue_after_cancel(self) -> bool:
        """Whether only this task was cancelled, which a callback does to itself; not all at the end of a program."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() and not self._engine.is_running:
            return False
        while task.cancelling():
            task.uncancel()
        return True


def _is_async_callable(handler: Handler | None) -> bool:
    """Whether it is an ``async def``, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # which is what is asked
    )


async def _raise(exc: BaseException) -> None:
    raise exc


def _check_count(max_msgs: int | None) -> None:
    if max_msgs is not None and (type(max_msgs) is not int or max_msgs < 1):
        raise ConfigError("max_msgs", max_msgs, "must be a positive number of messages")
