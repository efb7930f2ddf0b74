"""Turns: the time that everything which takes messages shares, in one event loop.

A reader or handler that never suspends would keep the event loop: no acknowledgement leaves, no heartbeat is answered
and no other task runs. The rules:

1. One TimeSlice for a loop, whatever the number of clients: ``TimeSlice.of``.
2. Before each message its taker compares ``monotonic()`` with ``ends_at``. When the time is used up, it awaits
   ``next_turn`` and looks again whether there is a message.
3. A chunk of the socket begins a slice, unless somebody waits for a turn.
4. Those who wait get the turn in order, one in a turn of the loop while time is left.
5. When it is used up, a new slice begins after ready tasks, due timers and sockets have had their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

TIME_SLICE_S: Final = 0.005
"""Seconds in which messages are handled before other tasks get a turn."""


class TimeSlice:
    """The time in which messages may be taken now."""

    __slots__ = ("_waiters", "ends_at")

    def __init__(self) -> None:
        self.ends_at: float = 0.0
        """A time of time.monotonic; passed long ago, if there was nothing to do: then one waits for a turn first."""
        self._waiters: deque[asyncio.Future[None]] = deque()

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> TimeSlice:
        """Return the one of this loop."""
        found = _of_loops.get(loop)
        if found is None:
            found = _of_loops[loop] = TimeSlice()
        return found

    def begin(self) -> None:
        """Messages came from the socket: those who take them have a slice, unless others wait for a turn."""
        if not self._waiters:
            self.ends_at = monotonic() + TIME_SLICE_S

    async def next_turn(self) -> None:
        """Wait for a turn, after those who have waited longer. Cancelling ends the wait."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            loop.call_soon(self._begin_slice, loop)
        await waiter

    def _begin_slice(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ends_at = monotonic() + TIME_SLICE_S
        self._wake_first(loop)

    def _wake_first(self, loop: asyncio.AbstractEventLoop) -> None:
        """The one that has waited longest takes messages next."""
        waiters = self._waiters
        while waiters and waiters[0].done():
            waiters.popleft()  # cancelled
        if waiters:
            waiters[0].set_result(None)
            loop.call_soon(self._on_taken, loop)

    def _on_taken(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first one has had its turn. The next one follows, or a new slice begins in the turn after the next: what
        is due then, was found in the next.
        """
        self._waiters.popleft()
        if monotonic() < self.ends_at:
            self._wake_first(loop)
        elif self._waiters:
            loop.call_soon(loop.call_soon, self._begin_slice, loop)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, TimeSlice] = WeakKeyDictionary()
