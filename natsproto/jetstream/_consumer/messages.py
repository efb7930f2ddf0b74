"""Reading messages: the buffer between a source and a reader, and the two ways to read it.

Buffer owns the received messages that are not read yet, the waiting readers, and the counts. A source appends to it;
Messages reads it endlessly, Fetch up to a bound. This module does not know how messages are pulled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, Protocol, TypeVar

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.ending import Reader
from natsproto._core.events import Event
from natsproto._core.inbox.readers import ReaderTasks
from natsproto._core.instrumentation import ReaderInfo, ReportedIterator
from natsproto._core.notifier import release, running_loop, wrong_loop_error
from natsproto._core.time_slice import TimeSlice
from natsproto._durations import seconds
from natsproto._help.async_hints import AsyncForHint, AwaitHint
from natsproto.jetstream._consumer.delivery.batch_window import MAX_BATCH_MESSAGES, BatchWindow, check_window
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.delivery.fetch_iterator import FetchIterator
from natsproto.jetstream._consumer.delivery.lending import Lending
from natsproto.jetstream._consumer.delivery.worker_prefetch import FAST_CALL_S, SAMPLE_MASK
from natsproto.jetstream._consumer.message import ACKED, JsMessage, counted_size
from natsproto.jetstream._values.codec import Duration

T = TypeVar("T")


class ConsumerNotice(Event):
    """A problem with a consumer: a survived one (a missed heartbeat, a refused pull), or the one that ended reading."""

    stream: str
    consumer: str
    error: errors.NatsError
    """HeartbeatMissed, ConsumerGone, PullRefused, PermissionDenied …"""

    line = "%(error)s"


class ReaderSource(Protocol):
    """Fills a buffer: a PullSource, a PushSource or an OrderedReader."""

    buffer: Buffer
    """The buffer that it fills."""
    connection: Connection
    """The connection it comes from."""

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer in use."""
        ...

    def start(self) -> None:
        """Start to fill the buffer."""

    def wait_created(self) -> Awaitable[object]:
        """Wait until the server confirms that the consumer exists, or the source ends. Cancelling ends the wait."""
        ...

    def refill(self) -> None:
        """Called when as many messages were consumed as ``refill_at`` says."""

    async def finish(self) -> None:
        """Stop pulling, receive the messages that are in flight, and end. Raises only when cancelled."""

    def close(self) -> None:
        """End at once; nothing more is added to the buffer. A source that has ended the buffer is closed."""


def reported(items: AsyncIterator[T], source: ReaderSource) -> AsyncIterator[T]:
    """Return the items of this source so that each is reported to the instrumentation, if there is one."""
    instrumentation = source.connection._instrumentation
    return items if instrumentation is None else ReportedIterator(items, instrumentation, source.reader_info)


class Messages(AsyncForHint):
    """An endless, pre-buffered stream of messages: enter it, then iterate it.

    ``async for`` yields one message at a time, ``batches()`` all that have arrived, ``next()`` one within a timeout.
    Several tasks may read. Entering waits until the server confirms that the consumer exists, so every message stored
    from then on is delivered; an error is raised by reading. It survives restarts, reconnects and changes of leader,
    whether it is being read or not. Reading ends after ``stop``, ``drain`` or the end of the client, or raises the
    error that made the consumer unusable (ConsumerGone, PullRefused). Leaving the block stops. Cancelling a reader
    loses nothing.

    Created by ``messages`` of a consumer.
    """

    _await_hint = "enter it with async with, then use async for"

    def __init__(self, source: ReaderSource, what: str, return_unread: Callable[[list[JsMessage]], None]) -> None:
        self._source = source
        self.buffer: Buffer = source.buffer
        """The buffer that it reads. For layers on top."""
        self.what = what  # in errors
        self._return_unread = return_unread
        self._tasks: ReaderTasks | None = None
        self._released: int = 0
        self._released_bytes: int = 0
        """Consumed messages, and their bytes, that are not counted yet."""
        self._lending: Lending | None = None
        self._started = False

    # ---------------------------------------------------------------- properties

    @property
    def pending(self) -> int:
        """Messages that have arrived and are not read yet."""
        return len(self.buffer.ready)

    @property
    def closed(self) -> bool:
        """True if no more messages will arrive; pending ones can still be read."""
        return self.buffer.ended

    @property
    def error(self) -> errors.NatsError | None:
        """The error that ended it; None if its owner did."""
        return self.buffer.error

    # ---------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return reported(self._each(), self._source)

    async def _each(self) -> AsyncGenerator[JsMessage]:
        self._check_started()
        if self._lending is not None:
            self._lending.leave()
        buffer, ready, sized = self.buffer, self.buffer.ready, self.buffer.counts_bytes
        connection, is_followed, newest = self._source.connection, buffer.is_followed, buffer.newest
        time_slice, outbox, note_ack = TimeSlice.of(asyncio.get_running_loop()), connection._outbox, buffer.note_ack
        count = size = 0
        task, reader = self._reader_tasks.enter(), buffer.add_reader()
        held, now = buffer.hand_of(reader), monotonic()
        try:
            while True:
                while ready:
                    if now >= time_slice.ends_at:
                        await time_slice.next_turn()
                        now = monotonic()
                        if not ready:
                            break
                    message = ready.popleft()
                    if is_followed and now >= message._note.check_at and not buffer.may_hand_over(message, now):
                        continue
                    count += 1
                    if sized:
                        size += message._counted_size
                    held[0] = message
                    yield message
                    began, now = now, monotonic()
                    if message._note is ACKED:
                        note_ack((message._reply, now))
                    if newest:
                        buffer.on_released(message)
                    if now - began > buffer.sample_above or not count & SAMPLE_MASK:
                        buffer.on_handled(now - began, (message,))
                    if count >= buffer.count_interval:
                        self._add_consumed(count, size)
                        count = size = 0
                held[0] = None
                if count:
                    self._add_consumed(count, size)
                    count = size = 0
                if not ready:
                    if (buffer.ended or buffer.unread is not None) and self._at_end():
                        return
                    await buffer.next_change()
                    now = monotonic()
                    if buffer.sample_above == FAST_CALL_S and len(ready) > 1:
                        outbox.cork()  # one write for all acknowledgements
        finally:
            self._reader_tasks.leave(task)
            if newest and held[0] is not None:
                buffer.on_released(held[0])
            buffer.remove_reader(reader)
            if count:
                self._add_consumed(count, size)

    def batches(
        self, max_messages: int | None = None, *, max_wait: Duration | None = None
    ) -> AsyncIterator[list[JsMessage]]:
        """Yield lists of the messages that have arrived, at most ``max_messages`` at a time: one wake-up for many.

        With ``max_wait`` a list is yielded when it is full, or its oldest message has waited for that many seconds.
        It is full with ``max_messages``, by default and at most the ``prefetch`` of ``messages``. ConfigError at once
        for invalid arguments, also for a ``max_wait`` of 0.1 of the consumer's ``ack_wait`` or more.

        Args:
            max_messages: Messages that fill a list; None: the ``prefetch`` of ``messages``, which is also the most.
            max_wait: Seconds after which a list that is not full is yielded, counted from its oldest message; None:
                what has arrived is yielded at once.
        """
        buffer = self.buffer
        if max_messages is not None or max_wait is not None:
            terms = None if buffer.deliveries is None else buffer.deliveries.terms
            ack_wait = None if terms is None else terms.known_shortest
            most = min(buffer.max_messages, MAX_BATCH_MESSAGES) if max_messages is None else max_messages
            wait = check_window(most, 0.0 if max_wait is None else max_wait, ack_wait)
        window = None if max_wait is None else BatchWindow(buffer, min(most, buffer.max_messages), wait)
        return reported(self._each_batch(max_messages or 0, window), self._source)

    async def _each_batch(self, most: int, window: BatchWindow | None) -> AsyncGenerator[list[JsMessage]]:
        self._check_started()
        if self._lending is not None:
            self._lending.leave()
        buffer, time_slice = self.buffer, TimeSlice.of(asyncio.get_running_loop())
        size = 1 if window is None else window.max_messages
        task, reader = self._reader_tasks.enter(), buffer.add_reader(size)
        try:
            while True:
                if buffer.ready and monotonic() >= time_slice.ends_at:
                    await time_slice.next_turn()
                if window is None:
                    share = buffer.fair_count()
                    batch = buffer.take_batch(min(most, share) if most else share)
                else:
                    batch = await window.collect()
                if not batch:
                    if self._at_end():
                        return
                    await buffer.next_change()
                    continue
                nbytes = counted_size(batch) if buffer.counts_bytes else 0
                buffer.hand_of(reader)[:] = batch
                began = monotonic()
                try:
                    yield batch[:]  # the reader may change its list
                finally:
                    buffer.hand_of(reader).clear()
                    buffer.on_batch_handled(batch, monotonic() - began, size)
                    self._add_consumed(len(batch), nbytes)
        finally:
            self._reader_tasks.leave(task)
            buffer.remove_reader(reader)

    async def next(self, timeout: Duration | None = None) -> JsMessage:
        """Return the next message; wait at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when no more will come, or the error that ended it.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that has arrived.
        """
        self._check_started()
        wait = None if timeout is None else seconds("timeout", timeout)
        buffer, instrumentation = self.buffer, self._source.connection._instrumentation
        asked_at = 0 if instrumentation is None else time_ns()
        if buffer.deliveries is not None:
            if self._lending is None:
                self._lending = Lending(buffer, self._release)
            self._lending.on_ask()
        deadline = None if wait is None else asyncio.get_running_loop().time() + wait
        while True:
            if not buffer.ready:
                await self._wait_ready(wait, deadline)
            message = buffer.ready.popleft()
            now = monotonic()
            if buffer.deliveries is None or now < message._note.check_at or buffer.may_hand_over(message, now):
                break
        if self._lending is None:
            self._release(message)
        else:
            self._lending.lend(message, now)
        if instrumentation is not None:
            instrumentation.received([message], asked_at, self._source.reader_info(), batch=False)
        return message

    async def _lend(self, queue: deque[JsMessage], timeout: float | None, most: int) -> None:
        """Wait for messages and move up to ``most`` to a queue that other threads take from; raises the errors of
        ``next``.
        """
        self._check_started()
        if not self.buffer.ready:
            deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
            await self._wait_ready(timeout, deadline)
        ready = self.buffer.ready
        if self.buffer.deliveries is not None:
            queue.extend([ready.popleft() for _ in range(min(most, len(ready)))])

    def _on_handled(self, times: list[float]) -> None:
        """Record messages that other threads have handled: the seconds that each took."""
        for took in times:
            self.buffer.on_handled(took)
        if times:
            self._add_consumed(len(times), 0)

    async def _wait_ready(self, wait: float | None, deadline: float | None) -> None:
        """Wait for a message until the deadline, a time of the loop; raises the errors of ``next``."""
        buffer, loop = self.buffer, asyncio.get_running_loop()
        while not buffer.ready:
            if self._at_end():
                raise errors.SubscriptionClosed(self.what, "stopped")
            self._count_released()
            waiter = buffer.next_change()
            if deadline is None:
                await waiter
                continue
            if loop.time() >= deadline:
                raise errors.RequestTimeout(f"next message of {self.what}", wait or 0.0, missing="message")
            timer = loop.call_at(deadline, release, waiter)
            try:
                await waiter
            finally:
                timer.cancel()

    # ---------------------------------------------------------------- leaving

    async def stop(self) -> None:
        """Stop now. Unread messages return to the server, or, without acknowledgements, to the consumer handle, whose
        next reader gets them first. Never raises.
        """
        self._source.connection._check_loop()
        await self._stop(keeps_last=False)

    async def _stop(self, *, keeps_last: bool) -> None:
        """Stop. ``keeps_last``: messages that the server does not deliver again stay, for a handler."""
        if not self._started or self.buffer.unread is not None:
            return
        unread = self.buffer.stop()
        if self._lending is not None:
            self._lending.end()
        try:
            await self._source.finish()
        finally:
            deliveries = self.buffer.deliveries
            if keeps_last and deliveries is not None:
                self.buffer.ready.extend([one for one in unread if deliveries.is_last(one)])
                unread = [one for one in unread if not deliveries.is_last(one)]
            self._end()
            self._return_unread(unread)

    def _return_rest(self) -> None:
        """Return messages that were kept for a handler, and that it will not get."""
        if rest := self.buffer.take_waiting():
            self._return_unread(rest)

    async def drain(self) -> None:
        """Stop pulling, and end reading after the messages that have arrived or are in flight. Never raises. Messages
        that the server delivers later come after ``ack_wait``; without acknowledgements they are lost.
        """
        self._source.connection._check_loop()
        if not self._started or self.buffer.ended:
            return
        try:
            await self._source.finish()
        finally:
            self._end()

    async def __aenter__(self) -> Messages:
        self._start()
        try:
            await self._source.wait_created()
        except BaseException:
            self._return_waiting()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------- for layers on top

    @property
    def _reader_tasks(self) -> ReaderTasks:
        """The tasks that read it, for which a draining client waits."""
        if self._tasks is None:
            self._tasks = ReaderTasks(self._source.connection._readers, self)
        return self._tasks

    def _track_task(self, task: asyncio.Task[None]) -> Reader:  # a draining client waits for it
        return self._reader_tasks.track(task)

    def _start(self) -> None:
        """Start reading, as entering does."""
        self._source.connection._check_loop()
        if not self._started:
            self._started = True
            self._source.start()

    def _take(self) -> JsMessage | None:
        """Take the next message, if there is one. It counts as consumed when it is released."""
        return self.buffer.ready.popleft() if self.buffer.ready else None

    def _release(self, message: JsMessage) -> None:
        """Count a message as consumed, so that another one may be pulled."""
        buffer = self.buffer
        self._released += 1
        if buffer.counts_bytes:
            self._released_bytes += message._counted_size
        if self._released >= buffer.count_interval or not buffer.ready:
            self._count_released()

    def _count_released(self) -> None:
        if self._released:
            count, size = self._released, self._released_bytes
            self._released = self._released_bytes = 0
            self._add_consumed(count, size)

    def _take_all(self) -> list[JsMessage]:
        """Take all messages that have arrived and count them as consumed."""
        buffer = self.buffer
        taken = list(buffer.ready)
        if taken:
            buffer.ready.clear()
            self._add_consumed(len(taken), counted_size(taken) if buffer.counts_bytes else 0)
        return taken

    def _put_back(self, messages: list[JsMessage]) -> None:
        """Return messages that were taken and not handled: they are the next ones again."""
        if self.buffer.unread is not None:
            self._return_unread(messages)
        else:
            self.buffer.ready.extendleft(reversed(messages))

    def _end(self) -> None:
        """End it now; pending messages can still be read."""
        self._fail(self.buffer.error)

    def _return_waiting(self) -> None:
        """End it, and return unread messages as ``stop`` does, but do not wait for those in flight."""
        unread = self.buffer.stop()
        self._end()
        self._return_unread(unread)

    def _fail(self, error: errors.NatsError | None) -> None:
        """End it with this error, which readers get after the pending messages."""
        self._source.close()
        self.buffer.end(error)

    async def _wait(self) -> bool:
        """Wait until a message may be taken. False when no more will arrive."""
        buffer = self.buffer
        if not buffer.ready and not buffer.is_finished:
            self._count_released()  # others may have been dropped
            await buffer.next_change()
        return bool(buffer.ready) or not buffer.is_finished

    # ---------------------------------------------------------------- internals

    def _add_consumed(self, count: int, size: int) -> None:
        """Count consumed messages and refill the buffer when it is due."""
        buffer = self.buffer
        buffer.on_consumed(count, size)
        if buffer.consumed >= buffer.refill_at:
            self._source.refill()

    def _check_started(self) -> None:
        if not self._started:
            raise errors.LocalProtocolError(
                f"enter the messages of {self.what} first: async with consumer.messages() as messages"
            )
        self._source.connection._check_loop()

    def _at_end(self) -> bool:
        """With an empty buffer: True if reading has ended. Raises the error that ended it."""
        buffer = self.buffer
        if buffer.unread is not None:
            return True
        if buffer.error is not None:
            raise buffer.error.with_traceback(None)
        return buffer.ended


class Fetch(AwaitHint, AsyncForHint, Coroutine[object, None, list[JsMessage]]):
    """One pull of a bounded number of messages: await it for a list, or iterate it to get them as they arrive.

    Cancelling, or leaving the iteration early, ends it and loses nothing: the next reader of the same consumer handle
    gets the unread and late messages first.

    Created by ``fetch`` of a consumer.
    """

    _unused_warning = "fetch(...) was never awaited or entered with async for"
    _iterate_hint = "await it for a list, or use async for"
    _start_hint = "await it, or iterate it with async for"

    def __init__(self, source: ReaderSource, return_unread: Callable[[list[JsMessage]], None]) -> None:
        self._source, self._buffer, self._return_unread = source, source.buffer, return_unread
        self._loop = asyncio.get_running_loop()
        self._started = False
        self._running: Coroutine[object, None, list[JsMessage]] | None = None
        self._begun = False

    def __await__(self) -> Generator[object, None, list[JsMessage]]:
        self._begun = True
        return self._collect().__await__()

    # It is a coroutine for create_task() and others that require one.

    def send(self, value: None) -> object:
        """Resume the coroutine, as an event loop does."""
        return self._coroutine().send(value)

    def throw(self, *exception: Any) -> object:
        """Raise in the coroutine, as an event loop does to cancel."""
        return self._coroutine().throw(*exception)

    def close(self) -> None:
        """Close the coroutine."""
        self._begun = True
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Coroutine[object, None, list[JsMessage]]:
        self._begun = True
        if self._running is None:
            self._running = self._collect()
        return self._running

    async def _collect(self) -> list[JsMessage]:
        buffer, instrumentation = self._buffer, self._source.connection._instrumentation
        asked_at = 0 if instrumentation is None else time_ns()
        try:
            if not buffer.ended:
                if running_loop() is not self._loop:
                    raise wrong_loop_error()
                ended: asyncio.Future[None] = self._loop.create_future()
                buffer.end_waiters.append(ended)
                if not self._started:  # else it was awaited or iterated before: there are no more
                    self._started = True
                    self._source.start()
                await ended
            if buffer.error is not None and not buffer.ready:
                raise buffer.error
            got = list(buffer.ready)
            buffer.ready.clear()
        except BaseException as exc:
            self.stop()
            if instrumentation is not None:
                instrumentation.received((), asked_at, self._source.reader_info(), batch=True, error=exc)
            raise
        self.stop()
        if instrumentation is not None:
            instrumentation.received(got, asked_at, self._source.reader_info(), batch=True)
        return got

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        self._begun = True
        return reported(FetchIterator(self._buffer.ready, self._next_message, self.stop), self._source)

    async def _next_message(self) -> JsMessage | None:
        """Return the next message; None after the last one. Raises the error that ended the pull."""
        if not self._started:
            self._started = True
            self._source.start()
        buffer = self._buffer
        while not buffer.ready:
            if buffer.ended:
                if buffer.error is not None:
                    raise buffer.error.with_traceback(None)
                return None
            await buffer.next_change()
        return buffer.ready.popleft()

    def _put_back(self, messages: list[JsMessage]) -> None:
        """Return messages that were read and not handled, for the next reader. For layers on top."""
        self._begun = True
        self._return_unread(messages)

    def stop(self) -> None:
        """End the pull; unread messages go to the next reader."""
        buffer = self._buffer
        self._started = True
        if not buffer.ended:
            buffer.end(None)
            self._source.close()
        if buffer.ready:
            left = list(buffer.ready)
            buffer.ready.clear()
            self._return_unread(left)
