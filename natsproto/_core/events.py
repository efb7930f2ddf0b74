"""What a client tells the application about itself: one frozen value for everything that happens.

Owns the vocabulary of connection events and the streams they are read from. Addresses are ``host:port``;
nothing secret is ever part of an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, ClassVar

from natsproto._value import Value
from natsproto.errors import NatsError, PayloadTooLarge, PermissionDenied, SlowConsumer

if TYPE_CHECKING:
    from natsproto._core.subscription import Subscription

MAX_QUEUED_EVENTS = 1024
"""Events held for a reader that does not read; the oldest go first."""


class Event(Value):
    """Base of all events. ``line`` is what the log says of it at ``level``, with the names of its fields in it.

    What servers can send without end has a ``pause``: for so many seconds behind such a line others are for DEBUG.
    """

    level: ClassVar[int] = logging.INFO
    line: ClassVar[str] = ""
    pause: ClassVar[float] = 0.0

    def log_line(self) -> tuple[int, str]:
        """The level at which it is logged and the line; an empty one when it is not."""
        return self.level, self.line

    def fields(self) -> Mapping[str, object]:
        """Its fields by name."""
        return self._values()


class Connected(Event):
    """The first connection is up."""

    server: str

    line = "connected to %(server)s"


class Disconnected(Event):
    """The connection ended. ``in_flight`` messages were handed to it that may not have arrived."""

    server: str
    cause: Exception
    in_flight: int
    waiting: int

    level = logging.WARNING
    line = "disconnected from %(server)s: %(cause)s (up to %(in_flight)d messages uncertain, %(waiting)d waiting)"


class Reconnecting(Event):
    """An attempt on ``server`` begins in ``delay`` seconds; ``attempt`` counts from 1 in this outage."""

    server: str
    attempt: int
    delay: float

    level = logging.DEBUG
    line = "attempt %(attempt)d to reconnect: to %(server)s in %(delay).3f s"


class AttemptFailed(Event):
    """An attempt to connect, the first time or again, failed."""

    server: str
    cause: Exception

    line = "connecting to %(server)s failed: %(cause)s"


class Reconnected(Event):
    """The connection is up again: subscriptions are back, waiting messages are on their way."""

    server: str
    outage: float

    line = "reconnected to %(server)s after %(outage).3f s"


class ServersDiscovered(Event):
    """The cluster announced servers that were not known."""

    servers: tuple[str, ...]

    line = "servers discovered: %(servers)s"


class LameDuck(Event):
    """The connected server is going to shut down."""

    server: str

    level = logging.WARNING
    line = "%(server)s is going to shut down (lame duck)"


class Moved(Event):
    """The client changed from a server in lame duck mode to another one, without an outage."""

    left: str
    server: str

    line = "moved from %(left)s to %(server)s"


class MessageDropped(Event):
    """A message that waited for a connection is larger than the new server accepts; it was not sent."""

    subject: str
    error: PayloadTooLarge

    level = logging.WARNING
    line = "a message on %(subject)s was dropped: %(error)s"


class SlowConsumerDetected(Event):
    """A subscription starts to lose messages; once per episode, see its ``dropped`` for the sum."""

    subscription: Subscription
    error: SlowConsumer

    level = logging.WARNING
    line = "%(error)s"


class PermissionViolation(Event):
    """The server refused a publish or a subscription."""

    error: PermissionDenied

    level = logging.WARNING
    line = "%(error)s"
    pause: ClassVar[float] = 1.0


class ServerErrorEvent(Event):
    """The server sent -ERR."""

    error: NatsError

    level = logging.WARNING
    line = "%(error)s"
    pause: ClassVar[float] = 1.0


class HandlerFailed(Event):
    """A callback of the application raised; the connection is not affected. Whoever called it has logged it."""

    where: str
    error: BaseException


class Closed(Event):
    """The end. ``reason`` is None when the application closed the client."""

    reason: Exception | None

    line = "closed"

    def log_line(self) -> tuple[int, str]:
        """See Event."""
        return (self.level, self.line) if self.reason is None else (logging.ERROR, "closed for good: %(reason)s")


class EventStream:
    """One reader's view of the events, from the moment it was opened."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """Adds an event; Closed is the last one."""
        self._kept.append(event)
        self._ended = self._ended or isinstance(event, Closed)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> AsyncGenerator[Event]:
        """Yields events until Closed was yielded. Cancelling loses none that was not yielded."""
        while True:
            while self._kept:
                yield self._kept.popleft()
            if self._ended:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
