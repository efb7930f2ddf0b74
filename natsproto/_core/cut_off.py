"""PURE. When a client leaves a server that is cut off from its cluster.

A server that is parted from the others keeps its clients and answers their pings, but cannot store anything. This
decides when to compare it with other servers, and whether what was found is a reason to move. ``CutOffWatch`` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from natsproto._value import Value
from natsproto.protocol.addresses import ServerAddress

PROBE_TIMEOUT_S = 1.0
"""Seconds for the answers of all servers; they are compared within this time."""

PROBE_SPREAD_S = 0.5
"""Seconds over which the clients of a server spread their first probe."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 60.0
"""Seconds between two probes; each is twice as long as the one before it, but the first while nothing is decided."""

MAX_PROBES = 12
"""Probes after one silence while nothing is decided, of PROBE_TIMEOUT_S each. An election takes 4 to 9 seconds."""

UNDECIDED_PAUSE_S = 10.0
"""The most seconds from these probes until another silence causes more."""

MOVE_INTERVAL_S = 60.0
"""Seconds between two moves of a client."""

QUIET_S = 120.0
"""Seconds without a silence after which the pauses begin again."""


class ApiAnswer(Enum):
    """The answer of a server to a request for the INFO of JetStream."""

    OK = "ok"
    FAILED = "failed"
    """No answer in time, no responders, or "temporarily unavailable"."""
    DENIED = "denied"


class Finding(Value):
    """The state of another server.

    ``reaches_here`` and ``reaches_others`` say where the answers to requests sent there arrived: at the server in use,
    and at another one that was probed.
    """

    address: ServerAddress
    answer: ApiAnswer
    reaches_here: bool
    reaches_others: bool


class Verdict(Enum):
    """The result of a probe."""

    MOVE = "move"
    STAY = "stay"
    UNDECIDED = "undecided"
    """Another probe may decide: an election takes some seconds."""


def judge(here: ApiAnswer, findings: Sequence[Finding]) -> tuple[Verdict, ServerAddress | None]:
    """Return the verdict, and the server to move to.

    The client moves when JetStream fails here and works there in the same second, if answers of there arrive at a third
    server, too: a leader that was cut off stays leader for up to 20 seconds, and reports that JetStream works. For
    that reason a server where it works is left as well, if no answer of elsewhere arrives here.
    """
    if here is ApiAnswer.DENIED or not findings:
        return Verdict.STAY, None
    if here is ApiAnswer.OK and any(finding.reaches_here for finding in findings):
        return Verdict.STAY, None
    working = (finding for finding in findings if finding.answer is ApiAnswer.OK and finding.reaches_others)
    found = next(working, None)
    return (Verdict.UNDECIDED, None) if found is None else (Verdict.MOVE, found.address)


class ProbePlan:
    """The times of probes and moves. ``now`` is in seconds of a monotonic clock."""

    __slots__ = ("_earliest", "_heard_at", "_left", "_pause", "denied")

    def __init__(self) -> None:
        self.denied = False
        """The server does not permit the probe: there are no more."""
        self._heard_at = self._earliest = float("-inf")
        self._pause = FIRST_PAUSE_S
        self._left = 0

    def on_silence(self, now: float, fraction: float) -> float | None:
        """JetStream gave no answer. Return the seconds until a probe, or None for no probe now; ``fraction`` is a
        random number in [0, 1).
        """
        if now - self._heard_at > QUIET_S:
            self._pause = FIRST_PAUSE_S
        self._heard_at = now
        if self.denied or now < self._earliest:
            return None
        self._left = MAX_PROBES
        return fraction * PROBE_SPREAD_S

    def on_verdict(self, verdict: Verdict, now: float) -> float | None:
        """Return the seconds until the next probe; None: after another silence."""
        if verdict is Verdict.MOVE:
            self._earliest = now + MOVE_INTERVAL_S
            self._pause = FIRST_PAUSE_S
            return None
        self._left -= 1
        pause, self._pause = self._pause, min(2 * self._pause, MAX_PAUSE_S)
        undecided = verdict is Verdict.UNDECIDED
        if undecided and self._left > 0:
            return FIRST_PAUSE_S
        self._earliest = now + (min(pause, UNDECIDED_PAUSE_S) if undecided else pause)
        return None
