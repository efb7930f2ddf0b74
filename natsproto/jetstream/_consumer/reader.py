"""Reading: the endless stream of messages as users see it.

Owns what came and was not read yet, and who waits for it. Where messages come from (pulls, an ordered consumer, a
push consumer) is the business of a Feed, which is told how much was read and decides what that means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Protocol

from natsproto._async_hints import AsyncIterated
from natsproto._core.events import Event
from natsproto._core.waiting import Waiters
from natsproto.errors import LocalProtocolError, NatsError, RequestTimeout, SubscriptionClosed
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._message import JsMessage, consumer_seq
from natsproto.protocol.pool import seconds

PARTING = 2.0
"""Seconds that leaving waits for the server to confirm that it sends no more."""


class ConsumerNotice(Event):
    """Something went wrong with a consumer: it was survived (a missed heartbeat, a refused pull), or ended reading."""

    stream: str
    consumer: str
    error: NatsError

    line = "consumer %(consumer)r of stream %(stream)r: %(error)s"


class Outlet(Protocol):
    """Where a Feed puts what it gets. Nothing here waits or raises."""

    def put(self, messages: list[JsMessage]) -> None:
        """These came, in this order."""
        ...

    def drop_unknown(self, last_known: int) -> list[JsMessage]:
        """Takes back what waits to be read and came after this consumer sequence, which is the last one that the server
        knows: it delivers the rest again.
        """
        ...

    def end(self, error: NatsError | None) -> None:
        """Nothing more will come: because of ``error``, or in good order."""
        ...


class Feed(Protocol):
    """A source of messages for one Outlet."""

    @property
    def piece(self) -> int:
        """After how many messages, at most, ``taken`` is to be told."""
        ...

    @property
    def counts_bytes(self) -> bool:
        """Whether ``taken`` wants to know sizes."""
        ...

    def start(self, outlet: Outlet) -> None:
        """Begins to fill it."""
        ...

    async def established(self) -> None:
        """Waits until the server confirms that the consumer exists, or nothing will come. Cancelling ends the wait."""
        ...

    def taken(self, count: int, size: int) -> None:
        """So many messages, of so many bytes (0 unless ``counts_bytes``), were read: there is room again."""
        ...

    async def finish(self) -> None:
        """Asks for nothing more, takes in what is on its way and ends; never raises but when cancelled."""
        ...

    def close(self) -> None:
        """Ends at once; the outlet hears nothing more."""
        ...


class Guard(Protocol):
    """Who watches over the order of what a consumer delivers, and replaces it."""

    def accept(self, messages: list[JsMessage]) -> int:
        """How many of these, from the first on, are the next ones. If not all: the consumer has been given up."""
        ...

    def heard(self, last_consumer_seq: int) -> None:
        """A heartbeat said what was delivered last."""
        ...

    def lost(self, error: NatsError | None) -> None:
        """Nothing more is to be had from this consumer."""
        ...

    def broken(self, error: NatsError) -> None:
        """A bug ended what it watches over, or itself."""
        ...


def give_back(messages: list[JsMessage]) -> None:
    """Tells the server that nobody here is going to deal with these."""
    for message in messages:
        if message.is_acked:
            continue
        try:
            message.nak_nowait()
        except NatsError:
            return  # nobody takes it now; the server delivers all of them again after ack_wait


class Messages(AsyncIterated):
    """An endless, pre-buffered stream of messages: enter it, then iterate it.

    ``async for`` gives one message at a time, ``batches()`` all that is there, ``next()`` one within a time. Several
    tasks may read. Entering waits until the server confirms that the consumer exists, so what is stored from then on is
    seen; what prevents it is raised by reading. It survives restarts, reconnects and changes of leader, whether it is
    being read or not. Reading ends after ``stop``, ``drain`` or the end of the client, or raises what made the consumer
    unusable (ConsumerGone, PullRefused). Leaving the block stops. Cancelling a reader loses nothing.
    """

    def __init__(self, feed: Feed, what: str, give_back: Callable[[list[JsMessage]], None]) -> None:
        self._feed = feed
        self._what = what
        self._give_back = give_back
        self._ready: deque[JsMessage] = deque()
        self._queues = [self._ready]
        self._left: list[JsMessage] = []
        self._waiters = Waiters()
        self._dealt = self._dealt_bytes = 0  # released, and not told yet
        self._started = self._stopped = self._over = False
        self._error: NatsError | None = None

    # ---------------------------------------------------------------- what it is

    @property
    def pending(self) -> int:
        """Messages that are here and not read yet."""
        return len(self._ready)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come; what is pending can be read all the same."""
        return self._over

    @property
    def error(self) -> NatsError | None:
        """What ended it, if that was not its owner."""
        return self._error

    # ---------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self._each()

    async def _each(self) -> AsyncGenerator[JsMessage]:
        self._check_started()
        ready, feed = self._ready, self._feed
        piece, sized = feed.piece, feed.counts_bytes
        count = size = 0
        try:
            while True:
                while ready:
                    message = ready.popleft()
                    count += 1
                    if sized:
                        size += message.counted_size
                    yield message
                    # Told for some at once: for each it would cost 0.4 µs.
                    if count >= piece:
                        feed.taken(count, size)
                        count = size = 0
                if count:
                    feed.taken(count, size)
                    count = size = 0
                if self._at_end():
                    return
                await self._waiters.wait()
        finally:
            if count:
                feed.taken(count, size)

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[JsMessage]]:
        """All that has come, as soon as something has, at most ``max_messages`` at a time: one wake-up for many."""
        return self._each_batch(max_messages or 0)

    async def _each_batch(self, most: int) -> AsyncGenerator[list[JsMessage]]:
        self._check_started()
        ready, feed = self._ready, self._feed
        while True:
            while ready:
                if not most or len(ready) <= most:
                    batch = list(ready)
                    ready.clear()
                else:
                    batch = [ready.popleft() for _ in range(most)]
                size = sum(message.counted_size for message in batch) if feed.counts_bytes else 0
                try:
                    yield batch
                finally:
                    feed.taken(len(batch), size)
            if self._at_end():
                return
            await self._waiters.wait()

    async def next(self, timeout: Duration | None = None) -> JsMessage:
        """The next message; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        self._check_started()
        wait = None if timeout is None else seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        while (message := self.take()) is None:
            if self._at_end():
                raise SubscriptionClosed(self._what, "stopped")
            if deadline is not None and loop.time() >= deadline:
                assert wait is not None
                raise RequestTimeout(f"next message of {self._what}", wait)
            await self._waiters.wait(deadline)
        self.release(message)
        return message

    # ---------------------------------------------------------------- leaving

    async def stop(self) -> None:
        """Ends it now. What was not read goes back: to the server, or, where that takes nothing back (no
        acknowledgements), to the consumer handle, whose next reader gets it first. Never raises.
        """
        if not self._started or self._stopped:
            return
        self._stopped = True
        self._left += self._ready
        self._ready.clear()
        self.wake()
        try:
            await self._feed.finish()
        finally:
            self._feed.close()
            self._over = True
            left, self._left = self._left, []
            self._give_back(left)
            self.wake()

    async def drain(self) -> None:
        """Asks for nothing more. What is here or on its way can still be read, then reading ends. Never raises."""
        if not self._started or self._over:
            return
        try:
            await self._feed.finish()
        finally:
            self._feed.close()
            self._over = True
            self.wake()

    async def __aenter__(self) -> Messages:
        self.start()
        try:
            await self._feed.established()
        except BaseException:
            self._stopped = self._over = True
            self._feed.close()
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
            self._feed.start(self)

    def take(self) -> JsMessage | None:
        """The next message, if there is one. Its place counts as taken until ``release``."""
        return self._ready.popleft() if self._ready else None

    def release(self, message: JsMessage) -> None:
        """This message is dealt with: another one may come in its place. The feed is told for some at once."""
        self._dealt += 1
        if self._feed.counts_bytes:
            self._dealt_bytes += message.counted_size
        if self._dealt >= self._feed.piece or not self._ready:
            count, size = self._dealt, self._dealt_bytes
            self._dealt = self._dealt_bytes = 0
            self._feed.taken(count, size)

    def take_all(self) -> list[JsMessage]:
        """Everything that is here, with its places: whoever takes it holds it from now on."""
        ready = self._ready
        if not ready:
            return []
        taken = list(ready)
        ready.clear()
        self._feed.taken(len(taken), sum(m.counted_size for m in taken) if self._feed.counts_bytes else 0)
        return taken

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were taken and not dealt with: they are the next ones again."""
        if self._stopped:
            self._give_back(messages)
        else:
            self._ready.extendleft(reversed(messages))

    def add_queues(self, queues: list[deque[JsMessage]]) -> None:
        """Messages that were taken wait in these too: what is dropped before it is read is dropped there as well."""
        self._queues += queues

    def fail(self, error: NatsError) -> None:
        """Ends it with this error: readers hear of it behind what is pending."""
        self._feed.close()
        self.end(error)

    async def wait(self) -> bool:
        """Waits until there may be something to take. False when nothing more will come."""
        if self._ready:
            return True
        if self._over or self._stopped:
            return False
        await self._waiters.wait()
        return bool(self._ready) or not (self._over or self._stopped)

    # ---------------------------------------------------------------- as an outlet

    def put(self, messages: list[JsMessage]) -> None:
        """These came."""
        if self._stopped:
            self._left += messages
            return
        self._ready += messages
        if self._waiters:
            self.wake()

    def drop_unknown(self, last_known: int) -> list[JsMessage]:
        """Drops what waits and came after this consumer sequence."""
        dropped: list[JsMessage] = []
        for queue in self._queues:
            # Messages wait in the order of their delivery, but for what was put back in front.
            waiting = [(message, consumer_seq(message) > last_known) for message in queue]
            if any(is_unknown for _, is_unknown in waiting):
                queue.clear()
                queue.extend(message for message, is_unknown in waiting if not is_unknown)
                dropped += [message for message, is_unknown in waiting if is_unknown]
        return dropped

    def end(self, error: NatsError | None) -> None:
        """Nothing more comes."""
        self._over = True
        self._error = error
        self.wake()

    # ---------------------------------------------------------------- inside

    def _check_started(self) -> None:
        if not self._started:
            raise LocalProtocolError(
                f"messages of {self._what} are to be entered first: async with consumer.messages() as messages"
            )

    def _at_end(self) -> bool:
        """With nothing to read: whether it stays so. Raises what ended it."""
        if self._stopped:
            return True
        if self._over and self._error is not None:
            raise self._error.with_traceback(None)
        return self._over

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        self._waiters.wake()
