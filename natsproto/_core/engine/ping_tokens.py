"""The tokens of PINGs, by which their PONGs are known, and what the PONGs say about round trips.

A PONG shows that the server has handled everything that was sent before its PING.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsproto._core.socket.session import Session

ROUND_TRIPS = 4
"""Round trips to take the shortest of: a busy event loop makes them longer."""


class FlushToken:
    """A PING whose PONG shows that the server has handled everything before it: messages, and SUBs up to a sid."""

    __slots__ = ("answered", "frames_out", "last_sid", "sent_at")

    def __init__(self, answered: asyncio.Future[None] | None, frames_out: int, last_sid: int) -> None:
        self.answered, self.frames_out, self.last_sid = answered, frames_out, last_sid
        self.sent_at: float = monotonic()
        """The time before which everything was sent; 0 if messages still wait."""

    @property
    def is_waited_for(self) -> bool:
        """True if a call waits for the PONG."""
        return self.answered is not None and not self.answered.done()


class OldConnectionDrained:
    """A PING whose PONG shows that the old session of a move has delivered all its messages."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session


class RoundTrips:
    """The last round trips to the server, and whether the socket was read empty. Times are those of time.monotonic."""

    __slots__ = ("_last", "_session", "confirmed_at", "stood_still")

    def __init__(self, session: Callable[[], Session | None], stood_still: Callable[[float], float]) -> None:
        self._session = session
        self.stood_still: Callable[[float], float] = stood_still
        """Returns the seconds for which the event loop has stood still until a time: it polled no socket."""
        self.confirmed_at: float = 0.0
        """The server has handled what was sent before this time."""
        self._last: deque[float] = deque(maxlen=ROUND_TRIPS)

    @property
    def is_emptied(self) -> bool:
        """True if the last read took all bytes that had come."""
        session = self._session()
        return session is None or session.is_emptied

    @property
    def shortest(self) -> float:
        """Seconds of the shortest of the last ones; 0 when there was none."""
        return min(self._last, default=0.0)

    def on_pong(self, sent_at: float) -> None:
        """The PONG of a FlushToken's PING has come."""
        if sent_at:
            self.confirmed_at = max(self.confirmed_at, sent_at)
            self._last.append(monotonic() - sent_at)
