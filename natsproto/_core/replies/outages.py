"""The time without a connection, which the errors of calls that ended meanwhile name.

Owns the beginning and the end of the last outage. An error that says only "no answer" during an outage sends its reader
to a responder that never got the request.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from natsproto.errors import RequestTimeout


class Outages:
    """The last outage: it lasts from the creation of the client, or the loss of a connection, to the next connection.

    ``clock`` is that of the event loop, in seconds.
    """

    __slots__ = ("_began_at", "_clock", "_ended_at")

    def __init__(self, clock: Callable[[], float]) -> None:
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
    ) -> RequestTimeout:
        """Return the error of a call that ends now, after ``timeout`` seconds (None: ``waited`` is the same)."""
        disconnected = self.seconds_of_last(timeout if waited is None else waited)
        return RequestTimeout(operation, timeout, sent=sent, disconnected=disconnected, advice=advice)
