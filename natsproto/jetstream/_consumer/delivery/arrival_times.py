"""When the server may have sent what arrives: the time of a delivery is not on the wire.

It was sent after the pull, if only one is open, and after the socket was last known to be empty, less the time that it
travels. While a timer ticks, the event loop has polled the sockets between two ticks, so all that had come by one tick
was read by the next. Without a timer, the watch of the event loop knows for how long it has stood still.
"""

from __future__ import annotations

from time import monotonic

from natsproto._core.connection import Connection


class ArrivalTimes:
    """The times after which the server has sent what arrives at one reader."""

    def __init__(self, connection: Connection) -> None:
        self.ticked_at: float = 0.0
        """The last tick of the timer."""
        self._connection = connection
        self._emptied_at = 0.0  # all that had come by then is read
        self._pulled_at = 0.0

    def on_pull(self) -> None:
        """A pull is sent, and no other one is open."""
        self._pulled_at = monotonic()

    def on_start(self, now: float) -> None:
        """The timer starts."""
        self.ticked_at = self._emptied_at = now

    def on_tick(self, now: float) -> None:
        """The timer ticks."""
        if self._connection._round_trips.is_emptied:
            self._emptied_at = self.ticked_at
        self.ticked_at = now

    def sent_after(self, now: float, travel: float, *, is_ticking: bool) -> float:
        """Return the time after which the server has sent what arrives now, if that travels so long at most."""
        emptied_at = self._emptied_at if is_ticking else now - self._connection._round_trips.stood_still(now)
        return min(max(emptied_at - travel, self._pulled_at), now)
