"""The time without a connection, which the errors of calls that ended meanwhile name.

Owns the beginning and the end of the last outage. An error that says only "no answer" during an outage sends its reader
to a responder that never got the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

from natsproto import errors


class WaitConnected(Protocol):
    """Waits until there is a connection, the client drains or is closed, or the deadline (loop time) has passed."""

    def __call__(self, deadline: float, *, in_drain: bool = False) -> Awaitable[None]:
        """``in_drain``: a drain does not end the wait, for what need not be sent before it ends."""
        ...


class SilenceWatch(Protocol):
    """Finds out whether the server in use is cut off from its cluster; CutOffWatch."""

    def use(self, prefix: str) -> None:
        """JetStream is used with this prefix of its API."""
        ...

    def on_silence(self) -> None:
        """A request to JetStream, or a message to a stream, got no answer."""
        ...


async def _no_wait(deadline: float, *, in_drain: bool = False) -> None:
    pass


class Outages:
    """The last outage: it lasts from the creation of the client, or the loss of a connection, to the next connection.

    ``clock`` is that of the event loop, in seconds.
    """

    __slots__ = ("_began_at", "_clock", "_ended_at", "cut_off", "wait_connected")

    cut_off: SilenceWatch
    """A server that is cut off is an outage that the connection does not show."""

    def __init__(self, clock: Callable[[], float], wait_connected: WaitConnected = _no_wait) -> None:
        self.wait_connected: WaitConnected = wait_connected
        self._clock = clock
        self._began_at, self._ended_at = clock(), inf

    def begin(self) -> None:
        """The connection was lost."""
        self._began_at, self._ended_at = self._clock(), inf

    def end(self) -> None:
        """There is a connection."""
        self._ended_at = min(self._ended_at, self._clock())

    @property
    def lasts(self) -> bool:
        """True while there is no connection."""
        return self._ended_at == inf

    def seconds_of_last(self, period: float) -> float:
        """Return how many of the last ``period`` seconds the outage took."""
        now = self._clock()
        return max(0.0, min(now, self._ended_at) - max(now - period, self._began_at))

    def timeout_error(
        self, operation: str, timeout: float, *, waited: float | None = None, sent: bool = True, advice: str = ""
    ) -> errors.RequestTimeout:
        """Return the error of a call that ends now, after ``timeout`` seconds (None: ``waited`` is the same)."""
        disconnected = self.seconds_of_last(timeout if waited is None else waited)
        return errors.RequestTimeout(operation, timeout, sent=sent, disconnected=disconnected, advice=advice)
