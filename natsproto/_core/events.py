"""Events of a client: one frozen class for each kind.

Owns the events and the streams they are read from. Addresses are ``host:port``; no event contains secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, ClassVar

from natsproto import errors
from natsproto._value import Value

if TYPE_CHECKING:
    from natsproto._core.inbox.subscription import Subscription

MAX_QUEUED_EVENTS = 1024
"""Events kept for a slow reader; the oldest are dropped first."""


class Event(Value):
    """Base of all events. ``line`` is the log message at ``level``, with the fields by name.

    Events that a server can send without end have a ``pause``: for that many seconds after one, others of the type are
    logged at DEBUG.
    """

    client: ClassVar[str] = ""
    """The name of the client that reported it, to distinguish several clients."""
    level: ClassVar[int] = logging.INFO
    line: ClassVar[str] = ""
    pause: ClassVar[float] = 0.0
    trace_level: ClassVar[int] = logging.DEBUG
    """The traceback of an error is logged where this level is enabled."""

    def log_line(self) -> tuple[int, str]:
        """Return the log level and the message; an empty message is not logged."""
        return self.level, self.line

    def fields(self) -> Mapping[str, object]:
        """Return names and values, for a structured log."""
        return self._values()


class Connected(Event):
    """The first connection is established."""

    server: str
    """``host:port`` of the server that accepted the login."""

    line = "connected to %(server)s"


class Disconnected(Event):
    """The connection ended. ``in_flight`` messages were sent that may not have arrived."""

    server: str
    """``host:port`` of the server that was lost."""
    cause: Exception
    """The reason: ConnectionLost, StaleConnection, an error of the server, or one of the socket."""
    in_flight: int
    """Messages handed to the socket since the last answered ping, at most: each may or may not have arrived."""
    buffered: int
    """Messages that wait for the next connection, which sends them."""

    level = logging.WARNING
    line = "disconnected from %(server)s: %(cause)s (up to %(in_flight)d messages uncertain, %(buffered)d buffered)"


class Reconnecting(Event):
    """An attempt to connect to ``server`` begins in ``delay`` seconds; ``attempt`` counts from 1 in each outage."""

    server: str
    attempt: int
    delay: float

    level = logging.DEBUG
    line = "connect attempt %(attempt)d: %(server)s in %(delay).3f s"


class AttemptFailed(Event):
    """An attempt to connect failed, at the start or in an outage."""

    server: str
    """``host:port`` of the server that was tried."""
    cause: Exception
    """The reason: NotAuthorized, TlsFailed, a refused port, a name that DNS does not know …"""

    line = "connecting to %(server)s failed: %(cause)s"


class Reconnected(Event):
    """The connection is restored: subscriptions are back, waiting messages are being sent."""

    server: str
    """``host:port`` of the server, which may be another one than before."""
    outage: float
    """Seconds without a connection."""

    level = logging.WARNING  # that of Disconnected, so that a log has both or neither
    line = "reconnected to %(server)s after %(outage).3f s"


class ServersDiscovered(Event):
    """The cluster announced new servers."""

    servers: tuple[str, ...]
    """``host:port`` of each one that was not known before."""

    line = "servers discovered: %(servers)s"
    pause: ClassVar[float] = 1.0


class LameDuck(Event):
    """The connected server is shutting down."""

    server: str
    """``host:port`` of the server; the client moves to another one while this one still serves it."""

    level = logging.WARNING
    line = "%(server)s is going to shut down (lame duck)"


class Moved(Event):
    """The client moved to another server without an outage: the previous one is in lame duck mode, or it is cut off
    from its cluster. ``reason`` says which.
    """

    previous_server: str
    """``host:port`` of the server that was left."""
    server: str
    """``host:port`` of the server that is used now."""
    reason: str = "it is in lame duck mode"

    line = "moved from %(previous_server)s to %(server)s: %(reason)s"


class MessageDropped(Event):
    """A waiting message exceeds a limit of the new server; it was not sent."""

    subject: str
    """Where the message was published to, perhaps long before."""
    error: errors.PayloadTooLarge | errors.InvalidSubject
    """The size of the message and the smaller ``max_payload`` of the new server, or that its subject is too long."""

    level = logging.WARNING
    line = "a message on %(subject)s was dropped: %(error)s"


class SlowConsumerDetected(Event):
    """A subscription drops messages: it has begun to, or still does after a minute.

    ``error.dropped`` counts the messages since the last such event, ``subscription.dropped`` all.
    """

    subscription: Subscription
    """The one that drops; raise its limits, read it faster, or share it by a queue group."""
    error: errors.SlowConsumer
    """How many messages it dropped since the last such event, and how many wait."""

    level = logging.WARNING
    line = "%(error)s"


class PermissionViolation(Event):
    """The server rejected a publish or a subscription."""

    error: errors.PermissionDenied
    """The operation and the subject that were refused."""

    level = logging.WARNING
    line = "%(error)s"
    pause: ClassVar[float] = 1.0


class ReplyRefused(Event):
    """A response was not sent, because the reply subject that a peer has chosen is invalid, or belongs to an API or a
    store (see the option ``allow_api_replies``). ``count`` includes those since the last such event; there is at most
    one in a second.
    """

    reply: str
    """The reply subject as the peer sent it."""
    reason: str
    """Which rule the reply subject breaks, or whose subject it is."""
    count: int

    level = logging.WARNING
    line = "response to %(reply)r not sent: %(reason)s (%(count)d since the last report)"


class ServerErrorEvent(Event):
    """The server sent -ERR, and keeps the connection; otherwise the error is the cause of Disconnected. Or it closed
    the connection for the length of a subject, and the subscription to it has ended, which the error names.
    """

    error: errors.NatsError
    """The server's words, as an error of the class that fits."""

    level = logging.WARNING
    line = "%(error)s"
    pause: ClassVar[float] = 1.0


class HandlerFailed(Event):
    """A callback of the application raised; the connection is not affected. The caller has logged it."""

    handler: str
    """The kind of handler with its subject or name, as in the log: ``callback of 'orders'``."""
    error: BaseException
    """The exception of the callback."""


class LoopBlocked(Event):
    """Something held the event loop for more than a second: nothing else ran, no acknowledgement and no heartbeat left.
    Or several calls held it for more than 5 of 10 seconds, each for a tenth of a second or longer.

    Blocks of 1.1 seconds are never missed, whoever holds the loop; time that is awaited does not count, nor the time in
    which the loop does not run, as between the cells of a notebook.
    """

    handler: str
    """The callback of ``subscribe`` or ``watch``, the handler of ``consume`` or ``consume_batches``, or the endpoint
    that held it, as in the log: ``callback of 'orders'``. Empty for other code.
    """
    seconds: float
    """How long nothing else ran; up to 0.1 short."""
    window: float = 0.0
    """Of how many seconds, for several calls; 0: in one piece."""
    location: str = ""
    """The line of the application that held it, or one that was called there: ``app.py:17 in handle``. Empty when the
    whole process stood still.
    """

    level = logging.WARNING
    line = "%(handler)s held the event loop for %(seconds).1f s: pass executor=True, with a def handler"
    pause: ClassVar[float] = 60.0

    def log_line(self) -> tuple[int, str]:
        """See Event."""
        line = self.line
        if not self.handler:
            line = "the event loop stood still for %(seconds).1f s: is there a call that blocks?"
        if self.window:
            line = line.replace("s:", "of %(window).1f s:")
        return self.level, f"{line} (%(location)s)" if self.location else line


class Closed(Event):
    """The client is closed; the last event. ``reason`` is None when the application closed it."""

    reason: Exception | None

    line = "closed"

    def log_line(self) -> tuple[int, str]:
        """See Event."""
        return (self.level, self.line) if self.reason is None else (logging.ERROR, "closed for good: %(reason)s")


class EventStream:
    """The events for one reader, from the moment the stream was opened."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """Add an event; Closed is the last one."""
        self._kept.append(event)
        self._ended = self._ended or isinstance(event, Closed)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> AsyncGenerator[Event]:
        """Yield events up to Closed. Cancelling loses no event that was not yielded."""
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
