"""Signs of life, and how long to wait for one, without I/O: who pulls has to find out that nobody is there.

Time is passed in: float seconds on any steady clock.
"""

from __future__ import annotations

from typing import Final

HEARTBEATS_MISSED: Final = 2
HEARTBEAT: Final = 2.0
"""Seconds between heartbeats. ADR-37 says half of ``expires``, but a leader that was killed says nothing: with 15 s its
end would be noticed after 30. Two of these are shorter than any election (4 to 9 s), so that the pulls are being asked
again when the next leader is there.
"""
ANXIOUS_HEARTBEAT: Final = 0.25
"""Seconds between heartbeats of the first pull after a loss, doubling with every pull of which nothing is heard: a pull
that reaches a leader on its way out disappears without a word.
"""
ANXIOUS_EXPIRES: Final = 5.0
PROBE_AFTER: Final = 0.2
"""Seconds of sudden silence after which it is asked whether anybody takes pulls at all."""
PROBE_EVERY: Final = 8
"""Messages that must have come since the last such question, so that a trickle is not doubled by questions."""
_FIRST_WAIT, _WAIT_GROWTH, _LONGEST_WAIT = 0.1, 1.04, 10.0  # overshoots an election by 4 % of its time
_MOST_FAILURES = 120  # in a row; the longest wait is reached then
_WITHOUT_HEARTBEAT = 1.0  # how much longer than `expires` a pull without heartbeats is waited for


def heartbeat_for(expires: float) -> float:
    """The heartbeat that goes with a pull: half its time, 2 s at most; none when it ends within one second.

    The server refuses a heartbeat longer than half of ``expires``.
    """
    return min(expires / 2, HEARTBEAT) if expires >= 1.0 else 0.0


class Pulse:
    """When the server was heard of last, and how long its silence is borne while something is asked of it."""

    __slots__ = ("_flow", "_heard_at", "losses", "patience")

    def __init__(self) -> None:
        self.losses = 0
        """Pulls lost in a row, without a sign of life between."""
        self.patience = 0.0
        """Seconds of silence after which what was asked is lost."""
        self._heard_at = 0.0
        self._flow = 0  # messages since it was last asked whether anybody is there

    def listen(self, now: float, expires: float, heartbeat: float) -> None:
        """A pull goes out: from now on a sign of life is due."""
        self.patience = HEARTBEATS_MISSED * heartbeat if heartbeat else expires + _WITHOUT_HEARTBEAT
        self._heard_at = now

    def beat(self, now: float) -> None:
        """The server said something."""
        self._heard_at = now

    def flow(self, count: int) -> None:
        """It sent so many messages: nothing that was lost before matters any more."""
        self.losses = 0
        self._flow += count

    @property
    def silent_at(self) -> float:
        """When something is to be done about its silence."""
        wait = min(self.patience, PROBE_AFTER) if self._flow >= PROBE_EVERY else self.patience
        return self._heard_at + wait

    def wants_probe(self, now: float) -> bool:
        """Whether the silence is so sudden that it is asked if anybody is there; once for each flow of messages."""
        if now >= self._heard_at + self.patience:
            return False
        self._flow = 0
        return True

    def anxious(self, heartbeat: float, expires: float) -> tuple[float, float]:
        """Heartbeat and time of a pull: after others were lost it shows soon whether anybody has it."""
        if heartbeat * 2 > expires:
            heartbeat = heartbeat_for(expires)
        if not self.losses:
            return heartbeat, expires
        sooner = ANXIOUS_HEARTBEAT * 2.0 ** min(self.losses - 1, 10)
        if sooner >= heartbeat or sooner * 2 > expires:
            return heartbeat, expires
        return sooner, min(expires, max(ANXIOUS_EXPIRES, sooner * 2))


class Backoff:
    """How long to wait before what failed is tried again: later and later, but no longer than it has failed for."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0  # in a row

    def __bool__(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    def fail(self) -> float:
        """It failed: seconds to wait. 0.1 at first, 4 % of the time that it has failed for, 10 at most."""
        pause = min(_FIRST_WAIT * _WAIT_GROWTH**self._failures, _LONGEST_WAIT)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        return pause

    def reset(self) -> None:
        """It worked."""
        self._failures = 0
