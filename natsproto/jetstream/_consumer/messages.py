"""Reading: the buffer between a source and a reader, and the two ways to read it.

Buffer owns what came and was not taken, who waits for it, and the counts of both. A source appends to it; Messages
reads it without end, Fetch up to a bound. Nothing here knows how messages are got.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import Any, Final, Protocol

from natsproto._async_hints import AsyncForHint, AwaitHint
from natsproto._core.events import Event
from natsproto._core.notifier import release, running_loop, wrong_loop_error
from natsproto._durations import seconds
from natsproto.errors import LocalProtocolError, NatsError, RequestTimeout, SubscriptionClosed
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch
from natsproto.jetstream._message import JsMessage, consumer_seq

DRAIN_TIMEOUT_S: Final = 2.0
"""Seconds that leaving waits for the server to confirm that it sends no more."""
MAX_UNCOUNTED: Final = 64
"""Messages that may be taken before the buffer counts them: for each it would cost 0.4 µs."""
NEVER_REFILL: Final = sys.maxsize


class ConsumerNotice(Event):
    """Something went wrong with a consumer: it was survived (a missed heartbeat, a refused pull), or ended reading."""

    stream: str
    consumer: str
    error: NatsError

    line = "consumer %(consumer)r of stream %(stream)r: %(error)s"


def nak_all(messages: list[JsMessage]) -> None:
    """Tells the server that nobody here is going to handle these."""
    for message in messages:
        if message.is_acked:
            continue
        try:
            message.nak_nowait()
        except NatsError:
            return  # nobody takes it now; the server delivers all of them again after ack_wait


class Buffer:
    """Messages on their way from one source to one reader.

    With ``counts_bytes`` the source needs the sizes of messages. Consumed messages are counted ``count_interval`` at a
    time. ``prefetch`` measures the reader, if given.
    """

    def __init__(
        self,
        *,
        counts_bytes: bool = False,
        count_interval: int = MAX_UNCOUNTED,
        prefetch: AdaptivePrefetch | None = None,
    ) -> None:
        self.counts_bytes: bool = counts_bytes
        self.count_interval: int = count_interval
        self.prefetch: AdaptivePrefetch | None = prefetch
        self.ready: deque[JsMessage] = deque()
        """What came and was not taken."""
        self.received: int = 0
        self.received_bytes: int = 0
        """Messages, and their bytes, that came in all."""
        self.consumed = self.consumed_bytes = 0
        """How many of them the reader has dealt with."""
        self.refill_at = NEVER_REFILL
        """How many are to be taken before the source wants to know."""
        self.ended: bool = False
        """Whether nothing more will come."""
        self.error: NatsError | None = None
        """Why, if that was not its owner."""
        self.unread: list[JsMessage] | None = None
        """What came for a reader that has stopped; None while it reads."""
        self._queues = [self.ready]
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._end_waiters: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- the source's side

    def put(self, messages: list[JsMessage], size: int = 0) -> None:
        """These came, of so many bytes together (0 unless ``counts_bytes``)."""
        if self.prefetch is not None:
            self.prefetch.on_messages(messages, self.received - self.consumed, monotonic())
        self.received += len(messages)
        self.received_bytes += size
        if self.unread is not None:
            self.unread += messages
            return
        self.ready += messages
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def put_counted(self, messages: list[JsMessage]) -> None:
        """``put``, with the bytes counted here."""
        self.put(messages, sum(message.counted_size for message in messages) if self.counts_bytes else 0)

    def drop_after(self, last_known: int) -> None:
        """Takes back what waits to be read and came after this consumer sequence, which is the last one that the server
        knows: it delivers the rest again. A server that was killed may not know of its last deliveries when it is back.
        It repeats them with the same sequences, and does not answer acknowledgements of the first ones before.
        """
        for queue in self._queues:
            # Messages wait in the order of their delivery, but for what was put back in front.
            waiting = [(message, consumer_seq(message) > last_known) for message in queue]
            unknown = [message for message, is_unknown in waiting if is_unknown]
            if unknown:
                queue.clear()
                queue.extend(message for message, is_unknown in waiting if not is_unknown)
                self.received -= len(unknown)
                if self.counts_bytes:
                    self.received_bytes -= sum(message.counted_size for message in unknown)

    def end(self, error: NatsError | None) -> None:
        """Nothing more comes."""
        self.ended, self.error = True, error
        waiters = [*self._waiters, *self._end_waiters]
        self._waiters, self._end_waiters = [], []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---------------------------------------------------------------- the reader's side

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come, or the reader has stopped."""
        return self.ended or self.unread is not None

    def next_change(self) -> asyncio.Future[None]:
        """What to await when there is nothing: done when something came, or ``wake`` was called."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = self._loop.create_future()
        if len(self._waiters) > 8:  # who was cancelled has left one behind
            self._waiters = [one for one in self._waiters if not one.done()]
        self._waiters.append(waiter)
        return waiter

    def wait_end(self) -> asyncio.Future[None]:
        """What to await for the end alone."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._end_waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)

    def stop(self) -> list[JsMessage]:
        """The reader has left: what is here and comes from now on is unread, and put into this list."""
        self.unread = unread = list(self.ready)
        self.ready.clear()
        self.wake()
        return unread

    def add_queues(self, queues: list[deque[JsMessage]]) -> None:
        """Messages that were taken wait in these too: what is dropped before it is read is dropped there as well."""
        self._queues += queues


class MessageSource(Protocol):
    """What fills a buffer."""

    @property
    def buffer(self) -> Buffer:
        """Where messages go."""
        ...

    def start(self) -> None:
        """Begins to fill it."""
        ...

    async def wait_created(self) -> None:
        """Waits until the server confirms that the consumer exists, or nothing will come. Cancelling ends the wait."""
        ...

    def refill(self) -> None:
        """As many were taken as ``refill_at`` says."""
        ...

    async def finish(self) -> None:
        """Asks for nothing more, takes in what is on its way and ends; never raises but when cancelled."""
        ...

    def close(self) -> None:
        """Ends at once; nothing more is put into the buffer. A source that has ended the buffer is closed."""
        ...


class Messages(AsyncForHint):
    """An endless, pre-buffered stream of messages: enter it, then iterate it.

    ``async for`` gives one message at a time, ``batches()`` all that is there, ``next()`` one within a time. Several
    tasks may read. Entering waits until the server confirms that the consumer exists, so what is stored from then on is
    seen; what prevents it is raised by reading. It survives restarts, reconnects and changes of leader, whether it is
    being read or not. Reading ends after ``stop``, ``drain`` or the end of the client, or raises what made the consumer
    unusable (ConsumerGone, PullRefused). Leaving the block stops. Cancelling a reader loses nothing.
    """

    def __init__(self, source: MessageSource, what: str, return_unread: Callable[[list[JsMessage]], None]) -> None:
        self._source = source
        self.buffer: Buffer = source.buffer
        """What it reads. For layers on top."""
        self._what = what
        self._return_unread = return_unread
        self._released = self._released_bytes = 0  # and not counted yet
        self._started = False

    # ---------------------------------------------------------------- what it is

    @property
    def pending(self) -> int:
        """Messages that are here and not read yet."""
        return len(self.buffer.ready)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come; what is pending can be read all the same."""
        return self.buffer.ended

    @property
    def error(self) -> NatsError | None:
        """What ended it, if that was not its owner."""
        return self.buffer.error

    # ---------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self._each()

    async def _each(self) -> AsyncGenerator[JsMessage]:
        self._check_started()
        buffer = self.buffer
        ready, count_interval, sized = buffer.ready, buffer.count_interval, buffer.counts_bytes
        count = size = 0
        try:
            while True:
                while ready:
                    message = ready.popleft()
                    count += 1
                    if sized:
                        size += message.counted_size
                    yield message
                    if count >= count_interval:
                        self._add_consumed(count, size)
                        count = size = 0
                if count:
                    self._add_consumed(count, size)
                    count = size = 0
                if not ready:
                    if self._at_end():
                        return
                    await buffer.next_change()
        finally:
            if count:
                self._add_consumed(count, size)

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[JsMessage]]:
        """All that has come, as soon as something has, at most ``max_messages`` at a time: one wake-up for many."""
        return self._each_batch(max_messages or 0)

    async def _each_batch(self, most: int) -> AsyncGenerator[list[JsMessage]]:
        self._check_started()
        buffer = self.buffer
        ready = buffer.ready
        while True:
            while ready:
                if not most or len(ready) <= most:
                    batch = list(ready)
                    ready.clear()
                else:
                    batch = [ready.popleft() for _ in range(most)]
                size = sum(message.counted_size for message in batch) if buffer.counts_bytes else 0
                try:
                    yield batch
                finally:
                    self._add_consumed(len(batch), size)
            if self._at_end():
                return
            await buffer.next_change()

    async def next(self, timeout: Duration | None = None) -> JsMessage:
        """The next message; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        self._check_started()
        wait = None if timeout is None else seconds("timeout", timeout)
        buffer = self.buffer
        if not buffer.ready:
            loop = asyncio.get_running_loop()
            deadline = None if wait is None else loop.time() + wait
            while not buffer.ready:
                if self._at_end():
                    raise SubscriptionClosed(self._what, "stopped")
                waiter = buffer.next_change()
                if deadline is None:
                    await waiter
                    continue
                if loop.time() >= deadline:
                    assert wait is not None
                    raise RequestTimeout(f"next message of {self._what}", wait)
                timer = loop.call_at(deadline, release, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
        message = buffer.ready.popleft()
        self.release(message)
        return message

    # ---------------------------------------------------------------- leaving

    async def stop(self) -> None:
        """Ends it now. What was not read goes back: to the server, or, where that takes nothing back (no
        acknowledgements), to the consumer handle, whose next reader gets it first. Never raises.
        """
        buffer = self.buffer
        if not self._started or buffer.unread is not None:
            return
        unread = buffer.stop()
        try:
            await self._source.finish()
        finally:
            self._close()
            self._return_unread(unread)

    async def drain(self) -> None:
        """Asks for nothing more. What is here or on its way can still be read, then reading ends. Never raises."""
        if not self._started or self.buffer.ended:
            return
        try:
            await self._source.finish()
        finally:
            self._close()

    async def __aenter__(self) -> Messages:
        self.start()
        try:
            await self._source.wait_created()
        except BaseException:
            unread = self.buffer.stop()
            self._close()
            self._return_unread(unread)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------- for layers on top

    def start(self) -> None:
        """Begins; what entering does."""
        if not self._started:
            self._started = True
            self._source.start()

    def take(self) -> JsMessage | None:
        """The next message, if there is one. Its place counts as taken when it is released."""
        ready = self.buffer.ready
        return ready.popleft() if ready else None

    def release(self, message: JsMessage) -> None:
        """This message is dealt with: another one may come in its place."""
        buffer = self.buffer
        self._released += 1
        if buffer.counts_bytes:
            self._released_bytes += message.counted_size
        if self._released >= buffer.count_interval or not buffer.ready:
            count, size = self._released, self._released_bytes
            self._released = self._released_bytes = 0
            self._add_consumed(count, size)

    def take_all(self) -> list[JsMessage]:
        """Everything that is here, with its places: whoever takes it holds it from now on."""
        buffer = self.buffer
        taken = list(buffer.ready)
        if taken:
            buffer.ready.clear()
            self._add_consumed(len(taken), sum(message.counted_size for message in taken) if buffer.counts_bytes else 0)
        return taken

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were taken and not dealt with: they are the next ones again."""
        if self.buffer.unread is not None:
            self._return_unread(messages)
        else:
            self.buffer.ready.extendleft(reversed(messages))

    def add_queues(self, queues: list[deque[JsMessage]]) -> None:
        """See Buffer.add_queues."""
        self.buffer.add_queues(queues)

    def fail(self, error: NatsError) -> None:
        """Ends it with this error: readers hear of it behind what is pending."""
        self._source.close()
        self.buffer.end(error)

    async def wait(self) -> bool:
        """Waits until there may be something to take. False when nothing more will come."""
        buffer = self.buffer
        if buffer.ready:
            return True
        if buffer.is_finished:
            return False
        await buffer.next_change()
        return bool(buffer.ready) or not buffer.is_finished

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self.buffer.wake()

    # ---------------------------------------------------------------- inside

    def _add_consumed(self, count: int, size: int) -> None:
        """So many more were taken."""
        buffer = self.buffer
        buffer.consumed += count
        buffer.consumed_bytes += size
        if buffer.prefetch is not None:
            buffer.prefetch.on_consumed(count, monotonic())
        if buffer.consumed >= buffer.refill_at:
            self._source.refill()

    def _close(self) -> None:
        self._source.close()
        self.buffer.end(self.buffer.error)

    def _check_started(self) -> None:
        if not self._started:
            raise LocalProtocolError(
                f"messages of {self._what} are to be entered first: async with consumer.messages() as messages"
            )

    def _at_end(self) -> bool:
        """With nothing to read: whether it stays so. Raises what ended it."""
        buffer = self.buffer
        if buffer.unread is not None:
            return True
        if buffer.error is not None:
            raise buffer.error.with_traceback(None)
        return buffer.ended


class Fetch(AwaitHint, AsyncForHint, Coroutine[object, None, list[JsMessage]]):
    """One pull of a bounded number of messages: await it for a list, or iterate it to have them as they come.

    Cancelling the wait, or leaving the iteration early, ends it and loses nothing: what had come, and what comes late,
    is what the next reader of the same consumer handle gets first: ``put_back`` takes it.
    """

    _unused_warning = "fetch(...) was never awaited or entered with async for"
    _iterate_hint = "await it for a list, or use async for"
    _start_hint = "await it, or iterate it with async for"

    def __init__(self, source: MessageSource, put_back: Callable[[list[JsMessage]], None]) -> None:
        self._source, self._buffer, self._put_back = source, source.buffer, put_back
        self._started = False
        self._running: Coroutine[object, None, list[JsMessage]] | None = None
        self._begun = False

    def __await__(self) -> Generator[object, None, list[JsMessage]]:
        self._begun = True
        return self._collect().__await__()

    # As a coroutine, for create_task() and what else insists on one.

    def send(self, value: None) -> object:
        """Runs it up to where it waits; what an event loop does."""
        return self._coroutine().send(value)

    def throw(self, *exception: Any) -> object:
        """Raises in it; what an event loop does to cancel."""
        return self._coroutine().throw(*exception)

    def close(self) -> None:
        """Ends it before it has."""
        self._begun = True
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Coroutine[object, None, list[JsMessage]]:
        self._begun = True
        if self._running is None:
            self._running = self._collect()
        return self._running

    async def _collect(self) -> list[JsMessage]:
        buffer = self._buffer
        try:
            if not self._started:  # else it was awaited or iterated before: there is nothing more
                self._started = True
                self._source.start()
            if not buffer.ended:
                await buffer.wait_end()
            if buffer.error is not None and not buffer.ready:
                raise buffer.error
            got = list(buffer.ready)
            buffer.ready.clear()
            return got
        finally:
            self.end()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        self._begun = True
        return FetchIterator(self, self._buffer.ready)

    async def next_message(self) -> JsMessage | None:
        """The next message as it comes; None when it was the last. Raises what ended it when nothing came."""
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

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were given out and not dealt with: they, too, are for the next reader. For layers on top."""
        self._begun = True
        self._put_back(messages)

    def end(self) -> None:
        """Ends it; what has come and was not read is for the next reader."""
        buffer = self._buffer
        self._started = True
        if not buffer.ended:
            buffer.end(None)
            self._source.close()
        if buffer.ready:
            left = list(buffer.ready)
            buffer.ready.clear()
            self._put_back(left)


class FetchIterator(AsyncIterator[JsMessage]):
    """The messages of a Fetch. No generator, as a loop that is left would end that in a later turn of the event loop,
    when the next reader has begun already.
    """

    def __init__(self, fetch: Fetch, ready: deque[JsMessage]) -> None:
        """``ready`` are those of its messages that are here."""
        self._fetch, self._ready = fetch, ready
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    async def __anext__(self) -> JsMessage:
        if self._ready:  # as nearly always, without another coroutine
            return self._ready.popleft()
        try:
            message = await self._fetch.next_message()
        except BaseException:
            self._fetch.end()  # not when this is collected: a cancelled task that somebody keeps holds its frames
            raise
        if message is None:
            self._fetch.end()
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Ends it, for contextlib.aclosing()."""
        self._fetch.end()

    def __del__(self) -> None:
        if self._loop.is_closed():
            return
        if self._thread == get_ident():
            self._fetch.end()
        else:  # collected in some other thread
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._fetch.end)
