"""Messages and subscriptions for threads without an event loop.

Owns nothing: what was taken over from a subscription and not read yet is the Reader's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from natsproto._core import subscription
from natsproto.errors import NatsError
from natsproto.protocol import frames
from natsproto.protocol.headers import Headers
from natsproto.sync._facade import Facade, Reader, blocking
from natsproto.sync._portal import Portal

M = TypeVar("M", bound=frames.Message, covariant=True)


class Received(Facade[M], Generic[M]):
    """What all messages have."""

    @property
    def subject(self) -> str:
        """The subject it was published on."""
        return self._inner.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._inner.data

    @property
    def reply(self) -> str | None:
        """The subject an answer goes to, or None when none is expected."""
        return self._inner.reply

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        return self._inner.headers

    @property
    def size(self) -> int:
        """Bytes of subject, reply subject, headers and payload together."""
        return self._inner.size

    def __repr__(self) -> str:
        return repr(self._inner)


class Message(Received[frames.Message]):
    """A message as it was delivered."""

    respond: Final = blocking(frames.Message.respond)


class Readers:
    """Threads that iterate over subscriptions of one client, or handle requests: when it drains, they are waited for.
    Used on the loop.
    """

    def __init__(self) -> None:
        self._at_it: dict[asyncio.Event, threading.Thread] = {}
        self._handling: dict[threading.Thread, asyncio.Future[None]] = {}

    def begin(self, inner: subscription.Subscription, thread: threading.Thread) -> asyncio.Event:
        """The thread iterates until this is set."""
        over = asyncio.Event()

        async def iterating() -> None:
            try:
                await over.wait()
            finally:
                del self._at_it[over]

        self._at_it[over] = thread
        inner.enlist(asyncio.get_running_loop().create_task(iterating(), name="natsproto sync reader"))
        return over

    async def handled(self, thread: threading.Thread, done: asyncio.Future[None]) -> None:
        """Waits until the thread has handled a request, or is dismissed; raises what became of it."""
        self._handling[thread] = done
        try:
            await done
        finally:
            del self._handling[thread]

    def dismiss(self, thread: threading.Thread) -> None:
        """This thread, and those that have ended, are not waited for: what they iterated over was left half-way."""
        for over, reader in self._at_it.items():
            if reader is thread or not reader.is_alive():
                over.set()
        handling = self._handling.get(thread)
        if handling is not None and not handling.done():
            handling.set_result(None)


class Subscription(Reader[subscription.Subscription, frames.Message]):
    """Messages of one subject or wildcard: iterate it, or ask for the ``next``. Leaving ``with`` unsubscribes."""

    def __init__(self, portal: Portal, inner: subscription.Subscription, readers: Readers) -> None:
        super().__init__(portal, inner)
        self._readers = readers

    drain: Final = blocking(subscription.Subscription[frames.Message].drain)

    @property
    def subject(self) -> str:
        """What it subscribes to."""
        return self._inner.subject

    @property
    def queue(self) -> str | None:
        """The queue group, if any."""
        return self._inner.queue

    @property
    def pending_msgs(self) -> int:
        """Messages received and not read yet."""
        return self._inner.pending_msgs + len(self._taken)

    @property
    def delivered(self) -> int:
        """Messages read so far."""
        return self._inner.delivered - len(self._taken)

    @property
    def dropped(self) -> int:
        """Messages lost because the limits were reached."""
        return self._inner.dropped

    @property
    def closed(self) -> bool:
        """Whether nothing more will arrive."""
        return self._inner.closed

    @property
    def error(self) -> NatsError | None:
        """What ended the subscription when that was not its owner: the server refused it, or it was too slow."""
        return self._inner.error

    def next(self, timeout: float | timedelta | None = None) -> Message:
        """The next message; waits at most ``timeout`` seconds (None: for ever; 0: only one that is here).

        RequestTimeout when none came in time, SubscriptionClosed when none will come any more, or the error that
        ended the subscription.
        """
        return Message(self._portal, self._next(timeout))

    def __iter__(self) -> Iterator[Message]:
        over = self._portal.run(self._readers.begin, self._inner, threading.current_thread())

        async def leave() -> None:
            over.set()

        try:
            for message in self._each():
                yield Message(self._portal, message)
        finally:
            self._portal.part(leave, wait=False)

    def unsubscribe(self, max_msgs: int | None = None) -> None:
        """Ends the subscription: now, dropping what is unread, or after max_msgs received in all."""
        self._portal.call(self._inner.unsubscribe, max_msgs)
        if max_msgs is None:
            self._taken.clear()

    async def _one(self, wait: float | None) -> frames.Message:
        return await self._inner.next(wait)

    def _rest(self) -> list[frames.Message]:
        return self._inner.take_nowait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inner.closed and not self._portal.stopped:
            self.unsubscribe()
