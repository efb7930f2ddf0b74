"""Watches the event loop: while something holds it, nothing is received, acknowledged or kept alive.

Owns a timer, which fires late when the loop has stood still, for whatever reason. Handlers are timed where they run
(``timed_steps``); what they have reported is not reported again. Costs two timers in a second and nothing for a
message.
"""

from __future__ import annotations

import asyncio
from typing import Final

from natsproto._core.event_bus import EventBus
from natsproto._core.events import LoopBlocked

LOOP_BLOCKED_S: Final = 1.0
"""Seconds in one piece after which a handler that holds the event loop is reported."""

WINDOW_S: Final = 10.0
MAX_HELD_S: Final = 5.0
"""Seconds of a window in which a handler may hold the event loop, in pieces, before it is reported."""

CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two looks at the clock."""

LATE_TIMER_S: Final = 1.4
"""Seconds by which the timer is late when the loop has stood still. Blocks of LATE_TIMER_S + CHECK_INTERVAL_S seconds
are never missed. A busy machine may keep a process waiting for a second."""


class LoopWatch:
    """Reports the blocks of the event loop of one client, from ``start`` to ``stop``."""

    def __init__(self, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reported_s = 0.0  # of handlers, since the timer last fired
        self._held: dict[str, float] = {}  # by handlers since the window began
        self._window_began = 0.0

    def start(self) -> None:
        """Watch from now on, if it does not already."""
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def stop(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_blocked(self, where: str, seconds: float) -> None:
        """A step of a handler was slow."""
        self._reported_s += seconds
        if seconds > LOOP_BLOCKED_S:
            self._event_bus.emit(LoopBlocked(handler=where, seconds=seconds))
            return
        now = self._loop.time()
        if now - self._window_began > WINDOW_S:
            self._held.clear()
            self._window_began = now - seconds
        self._held[where] = held = self._held.get(where, 0.0) + seconds
        if held > MAX_HELD_S:
            self._event_bus.emit(LoopBlocked(handler=where, seconds=held, window=now - self._window_began))
            self._held[where] = 0.0

    def _check(self) -> None:
        assert self._timer is not None
        late = self._loop.time() - self._timer.when() - self._reported_s
        self._reported_s = 0.0
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        if late > LATE_TIMER_S:
            self._event_bus.emit(LoopBlocked(handler="", seconds=late))
