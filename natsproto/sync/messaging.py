"""Messages and subscriptions for threads without an event loop.

Owns the messages that were taken over from a subscription and not read yet: they come in batches, as each way into
the loop costs more than a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsproto.core import subscription
from natsproto.errors import RequestTimeout, SubscriptionClosed
from natsproto.protocol import frames
from natsproto.protocol.headers import Headers
from natsproto.protocol.pool import seconds
from natsproto.sync.facade import Facade, blocking
from natsproto.sync.portal import Portal

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

    respond = blocking(frames.Message.respond)


class Subscription(Facade[subscription.Subscription]):
    """Messages of one subject or wildcard: iterate it, or ask for the ``next``. Leaving ``with`` unsubscribes."""

    def __init__(self, portal: Portal, inner: subscription.Subscription) -> None:
        super().__init__(portal, inner)
        self._taken: deque[frames.Message] = deque()

    drain = blocking(subscription.Subscription[frames.Message].drain)

    @property
    def subject(self) -> str:
        """What it subscribes to."""
        return self._inner.subject

    @property
    def pending_msgs(self) -> int:
        """Messages received and not read yet."""
        return self._inner.pending_msgs + len(self._taken)

    @property
    def dropped(self) -> int:
        """Messages lost because the limits were reached."""
        return self._inner.dropped

    @property
    def closed(self) -> bool:
        """Whether nothing more will arrive."""
        return self._inner.closed

    def next(self, timeout: float | timedelta | None = None) -> Message:
        """The next message; waits at most ``timeout`` seconds (None: for ever; 0: only one that is here).

        RequestTimeout when none came in time, SubscriptionClosed when none will come any more, or the error that
        ended the subscription.
        """
        wait = None if timeout is None else seconds("timeout", timeout)
        deadline = None if wait is None else monotonic() + wait
        while True:
            try:
                return Message(self._portal, self._taken.popleft())
            except IndexError:
                pass
            left = None if deadline is None else max(0.0, deadline - monotonic())
            came = self._portal.call(self._inner.take, left)
            if came:
                self._taken.extend(came[1:])  # for whoever comes next, which may be another thread
                return Message(self._portal, came[0])
            if self._inner.closed and not self._taken:
                raise self._inner.error or SubscriptionClosed(self.subject)
            if left == 0:
                raise RequestTimeout(f"next message on {self.subject!r}", wait or 0.0)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.next()
            except SubscriptionClosed:
                return
            yield message

    def unsubscribe(self, max_msgs: int | None = None) -> None:
        """Ends the subscription: now, dropping what is unread, or after max_msgs received in all."""
        self._portal.call(self._inner.unsubscribe, max_msgs)
        if max_msgs is None:
            self._taken.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inner.closed:
            self.unsubscribe()
