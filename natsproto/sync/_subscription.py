"""Messages and subscriptions for threads without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from natsproto import errors
from natsproto._core.inbox import subscription
from natsproto._core.inbox.inbox_limits import SlowPolicy
from natsproto.protocol import frames
from natsproto.protocol.headers import Headers
from natsproto.sync._wrapper import BufferedReader, SyncWrapper, blocking

M = TypeVar("M", bound=frames.Message, covariant=True)


class Received(SyncWrapper[M], Generic[M]):
    """Base class of the blocking messages."""

    @property
    def subject(self) -> str:
        """The subject that the message was published on."""
        return self._inner.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._inner.data

    @property
    def text(self) -> str:
        """The payload as text; InvalidPayload when it is not UTF-8."""
        return self._inner.text

    def json(self) -> Any:
        """Return the value of a JSON payload; InvalidPayload for others, as for NaN and 1e999."""
        return self._inner.json()

    @property
    def reply(self) -> str | None:
        """The subject for the response, or None when no response is expected."""
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
    """A message that a subscription received."""

    respond: Final = blocking(frames.Message.respond)


class Subscription(BufferedReader[subscription.Subscription, frames.Message]):
    """The messages of a subject or wildcard: iterate it, or call ``next``. Leaving ``with`` unsubscribes."""

    drain: Final = blocking(subscription.Subscription[frames.Message].drain)

    @property
    def subject(self) -> str:
        """The subject as subscribed, with its wildcards."""
        return self._inner.subject

    @property
    def queue(self) -> str | None:
        """The queue group whose members share the messages; None: none."""
        return self._inner.queue

    @property
    def pending_msgs(self) -> int:
        """The number of messages received and not read yet."""
        return self._inner.pending_msgs + len(self._buffer)

    @property
    def pending_msgs_limit(self) -> int:
        """The most messages to be unread on the client's own thread."""
        return self._inner.pending_msgs_limit

    @property
    def pending_bytes_limit(self) -> int:
        """The most bytes to be unread on the client's own thread."""
        return self._inner.pending_bytes_limit

    @property
    def policy(self) -> SlowPolicy:
        """The action at a pending limit."""
        return self._inner.policy

    @property
    def delivered(self) -> int:
        """The number of messages read so far."""
        return self._inner.delivered - len(self._buffer)

    @property
    def dropped(self) -> int:
        """The number of messages dropped because a pending limit was reached."""
        return self._inner.dropped

    @property
    def closed(self) -> bool:
        """True when the subscription has ended; no further message will arrive."""
        return self._inner.closed

    @property
    def error(self) -> errors.NatsError | None:
        """The error that ended the subscription: the server refused it, or it was a slow consumer. None otherwise."""
        return self._inner.error

    def next(self, timeout: float | timedelta | None = None) -> Message:
        """Return the next message. Waits at most ``timeout`` seconds (None: for ever; 0: only a pending message).

        RequestTimeout when no message arrived in time; SubscriptionClosed, or the error that ended the subscription,
        when no further message will arrive.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that has arrived.
        """
        return Message(self._portal, self._next(timeout))

    def __iter__(self) -> Iterator[Message]:
        for message in self._iterate():
            yield Message(self._portal, message)

    def unsubscribe(self, max_messages: int | None = None) -> None:
        """End the subscription: at once, dropping unread messages, or once ``max_messages`` were received in all.

        Args:
            max_messages: End after this many messages since the beginning instead of at once; None: at once.
        """
        self._portal.call(self._inner.unsubscribe, max_messages)
        if max_messages is None:
            self._buffer.clear()

    async def _next_item(self, timeout: float | None) -> frames.Message:
        return await self._inner.next(timeout)

    def _available_items(self) -> list[frames.Message]:
        return self._inner._read_batch_nowait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inner.closed and not self._portal.stopped:
            self.unsubscribe()
