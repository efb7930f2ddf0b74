"""Waiting for the end of an outage: a request that only reads is repeated until its servers are there again.

The class of an error decides whether it passes (``is_transient``). All that asks first, for a stream, a bucket or a
range, waits as reading in the middle of a range does: until nothing has come for ``SparkNats.outage_timeout`` seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto.errors._base import is_transient

log = logging.getLogger("natsproto.spark")

R = TypeVar("R")
DEFAULT_OUTAGE_TIMEOUT_S = 60.0
"""Seconds without any reply after which a request is given up, by default."""
READ_RETRY_WAIT_S, MAX_READ_RETRY_WAIT_S = 0.05, 2.0
"""Seconds between attempts: the shortest and the longest."""


class OutageWait:
    """The attempts of one reader or request. ``what`` names it for RequestTimeout. Runs on the loop."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._deadline, self._backoff = Deadline(seconds), Backoff(READ_RETRY_WAIT_S, MAX_READ_RETRY_WAIT_S)
        self._is_logged = False

    def reset(self) -> None:
        """Notes that something has come."""
        self._deadline = Deadline(self._seconds)
        self._backoff.reset()

    async def pause(self, error: errors.NatsError | None = None, *, existed: bool = True) -> None:
        """Waits before the next attempt, after ``error`` or a reply without content.

        Raises an error that does not pass, and RequestTimeout at the end of the time. A consumer that is gone passes:
        its reader makes another one.
        """
        if error is not None and not _passes(error, existed):
            raise error
        if error is not None and not self._is_logged:
            self._is_logged = True
            log.warning("%s: waiting up to %.0f s for the end of an outage: %s", self._what, self._deadline.left, error)
        if not await self._backoff.pause(self._deadline):
            last = "" if error is None else f" (last error: {error})"
            raise errors.RequestTimeout(f"{self._what}{last}", self._seconds) from error


def _passes(error: errors.NatsError, existed: bool) -> bool:
    return is_transient(error, existed=existed) or isinstance(error, errors.ConsumerGone | errors.ConsumerNotFound)


async def outlast(what: str, seconds: float, request: Callable[[], Awaitable[R]], *, existed: bool = True) -> R:
    """The result of ``request``, which only reads, and is repeated while its errors pass.

    RequestTimeout after ``seconds``, and at once all errors that do not pass. ``existed``: it was answered before.
    """
    wait = OutageWait(what, seconds)
    while True:
        try:
            return await request()
        except errors.NatsError as exc:
            await wait.pause(exc, existed=existed)
