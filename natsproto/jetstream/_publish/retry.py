"""PURE. When a message that was not stored is sent again.

Owns the figures and the list of refusals that pass. It sends nothing.
"""

from __future__ import annotations

from natsproto.jetstream._api_errors import ErrCode

RETRY_ATTEMPTS = 2
RETRY_WAIT = 0.25
"""Seconds; both as ADR-22 has them."""

RESEND_AFTER = 1.0
"""Seconds of silence after which a message with an id is sent again, and again after as many."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts on a server that is busy, at most."""

BUSY = frozenset(
    {
        ErrCode.STREAM_TOO_MANY_REQUESTS,
        ErrCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT,
        ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT,
        ErrCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY,
        ErrCode.STREAM_DUPLICATE_MESSAGE_CONFLICT,
        ErrCode.CLUSTER_NOT_AVAIL,
        ErrCode.CLUSTER_NOT_LEADER,
    }
)
"""Refusals that pass: the message was not stored, and will be when it comes again a little later."""


def default_attempts(*, has_id: bool) -> int:
    """How often a message that no stream receives is tried again; -1 for as often as its timeout allows.

    With an id it may be sent as often as need be, so that it lives through an election.
    """
    return -1 if has_id else RETRY_ATTEMPTS


def pause_after(refusals: int, retry_wait: float) -> float:
    """Seconds to wait after so many busy answers before this one: short at first, as that is often enough."""
    return float(min(LONGEST_PAUSE, retry_wait / 8 * 2 ** min(refusals, 10)))
