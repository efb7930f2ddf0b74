"""The time slice that all handlers and readers of a client share.

A handler that never suspends would keep the event loop: no acknowledgement leaves, no heartbeat is answered and no
other task runs. After TIME_SLICE_S seconds of a turn, each of them waits for a turn of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Final

from natsproto._core.notifier import release

TIME_SLICE_S: Final = 0.005
"""Seconds in which messages are handled before other tasks get a turn."""


class TimeSlice:
    """The rest of the time in this turn of the event loop.

    Check ``now >= ends_at`` between two messages, and call ``is_over`` only then. If it is over, await ``next_turn``.
    """

    __slots__ = ("_loop", "_waiters", "ends_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ends_at: float = 0.0
        """A time of time.monotonic; 0 until somebody asks in this turn."""
        self._loop = loop
        self._waiters: deque[asyncio.Future[None]] = deque()

    def is_over(self, now: float) -> bool:
        """Return True if the time of this turn is used up. The first call of a turn begins it."""
        if self.ends_at:
            return now >= self.ends_at
        self.ends_at = now + TIME_SLICE_S
        self._loop.call_soon(self._on_next_turn)
        return False

    async def next_turn(self) -> None:
        """Wait for another turn, after those who have waited longer. Cancelling ends the wait."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter
        self.ends_at = monotonic() + TIME_SLICE_S

    def _on_next_turn(self) -> None:
        """A turn begins. If some wait for it, the others come first: the tasks that are ready, and those whose timers
        and sockets are found due in this turn.
        """
        self.ends_at = 0.0
        if self._waiters:
            self.ends_at = monotonic()
            self._loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        """The one that has waited longest gets the turn after this one."""
        while self._waiters and self._waiters[0].cancelled():
            self._waiters.popleft()
        if self._waiters:
            release(self._waiters.popleft())
        self._loop.call_soon(self._loop.call_soon, self._on_next_turn)
