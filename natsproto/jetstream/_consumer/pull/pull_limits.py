"""PURE. The limits of a consumer, learned from refused pulls (ADR-37), and the wait after a failed one."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from natsproto.jetstream._values.codec import INT64

_LIMIT_EXCEEDED = re.compile(r"exceeded maxrequest(batch|expires|maxbytes) of (\S+)")
_GO_DURATION = re.compile(r"([0-9.]+)(h|ms|m|us|µs|ns|s)")
_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


_MIN_RETRY_WAIT_S, _RETRY_WAIT_GROWTH, _MAX_RETRY_WAIT_S = 0.1, 1.04, 10.0  # overshoots an election by 4 % of its time
_MAX_FAILURES = 120  # in a row, after which the wait is the longest


def retry_wait(failures: int) -> float:
    """Seconds to wait after a number of failures in a row: 0.1 at first, then 4 % of the elapsed time, 10 at most."""
    return min(_MIN_RETRY_WAIT_S * _RETRY_WAIT_GROWTH ** min(failures, _MAX_FAILURES), _MAX_RETRY_WAIT_S)


class PullLimits(NamedTuple):
    """The most that one pull may request, and the bytes that were too few for the next message."""

    batch: int = INT64
    """Messages of a pull."""
    size: int = INT64
    """Bytes of a pull."""
    expires: float = 2.0**31
    """Seconds of a pull."""
    too_small: int = 0
    """Bytes that were too few for the next message."""

    def learn(self, refusal: str) -> PullLimits | None:
        """Return the limits updated from a refusal; None when the refusal is about something else."""
        limit = _LIMIT_EXCEEDED.search(refusal)
        if limit is None:
            return None
        what, value = limit.groups()
        if what == "expires":
            longest = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _GO_DURATION.findall(value))
            return self._replace(expires=longest) if 0 < longest < self.expires else self
        most = int(value) if value.isdecimal() else 0
        if what == "batch":
            return self._replace(batch=most) if 0 < most < self.batch else self
        return self._replace(size=most) if 0 < most < self.size else self


NO_PULL_LIMITS: Final = PullLimits()
