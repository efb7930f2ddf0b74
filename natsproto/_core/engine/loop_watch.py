"""Watches event loops: while something holds one, nothing is received, acknowledged or kept alive.

1. The loop of a connected client beats each BEAT_S seconds: one timer for a loop, whatever the number of clients.
2. One daemon thread for the process looks at the beats as often. When one is late, it looks at what the thread of the
   loop executes: that names the handler and the line, behind any ``await``, and costs nothing for a message.
3. The next beat reports the block to the clients of the loop, when it was long, or many short ones add up.
4. A loop that does not run is not late: between the cells of a notebook, or the calls of ``run_until_complete``.
5. A block during which the thread did not look, as of a process that was stopped, must last longer: a busy machine may
   keep a whole process waiting for a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from time import monotonic, sleep
from types import FrameType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from natsproto._core.event_bus import EventBus
from natsproto._core.events import LoopBlocked

BEAT_S: Final = 0.1
"""Seconds between two beats of a loop, and between two looks of the thread."""

LOOP_BLOCKED_S: Final = 1.0
"""Seconds by which a beat is late when the loop stood still. Blocks of LOOP_BLOCKED_S + BEAT_S are never missed."""
UNSEEN_BLOCK_S: Final = 1.4
"""The same when the watching thread stood still, too."""

SLACK_S: Final = 0.05
"""Seconds by which the beat of a busy loop may be late."""
LATE_S: Final = 0.1
WINDOW_S: Final = 10.0
MAX_HELD_S: Final = 5.0
"""Seconds of a window in which the loop may stand still, in pieces of LATE_S or more, before it is reported."""

_NATSPROTO: Final = os.path.join(sys.modules["natsproto"].__path__[0], "")
_STDLIB: Final = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGES: Final = f"{os.sep}site-packages{os.sep}"
"""Where code is that an application calls, and does not write."""
_LOOP: Final = ("asyncio.base_events", "asyncio.runners", "selectors")
"""The modules of the loop: below their frames are those of its caller."""


class Sight(NamedTuple):
    """The code that held a loop when the thread looked."""

    handler: str
    location: str


class LoopWatch:
    """Reports the blocks of the event loop to one client, from ``start`` to ``stop``."""

    def __init__(self, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Watch from now on, if it does not already."""
        beats = _of_loops.get(self._loop)
        if beats is None:
            beats = _of_loops[self._loop] = _Beats()
        beats.add(self._event_bus, self._loop)

    def stood_still(self, now: float) -> float:
        """Seconds for which the loop has stood still, or has not run, until now (time.monotonic), at most; 0 if it did
        not.
        """
        beats = _of_loops.get(self._loop)
        return 0.0 if beats is None else beats.stood_still(now)

    def stop(self) -> None:
        """End the watch."""
        if (beats := _of_loops.get(self._loop)) is not None:
            beats.remove(self._event_bus)


class _Beats:
    """The beats of one loop."""

    def __init__(self) -> None:
        self.due: float = 0.0
        """When the next beat is due (time.monotonic); 0 while nobody watches."""
        self.seen: Sight | None = None
        """The code that held the loop when the thread last looked and the beat was late."""
        self._buses: dict[EventBus, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thread = 0
        self._last = 0.0  # when it has beaten; 0 while nobody watches
        self._stood: tuple[float, float] = (0.0, 0.0)  # the last time that it was late: since when, and until
        self._held, self._window_began = 0.0, 0.0

    def add(self, bus: EventBus, loop: asyncio.AbstractEventLoop) -> None:
        """Report blocks to this bus, too."""
        self._buses[bus] = None
        if self._timer is None:
            self._schedule(loop)
            _run_thread()

    def remove(self, bus: EventBus) -> None:
        """Report nothing to it any more; the last one ends the beats."""
        self._buses.pop(bus, None)
        if not self._buses and self._timer is not None:
            self._timer.cancel()
            self._timer, self.due, self._last = None, 0.0, 0.0

    def stood_still(self, now: float) -> float:
        """See LoopWatch."""
        if self._last and now - self._last > BEAT_S + SLACK_S:
            return now - self._last
        since, until = self._stood
        return now - since if now - until < SLACK_S else 0.0

    def look(self, is_running: bool, now: float, frames: dict[int, FrameType]) -> None:
        """The beat is late: find out why. In the watching thread."""
        if not is_running:
            self.due = now + BEAT_S  # it may run again at once
        elif (frame := frames.get(self._thread)) is not None:
            self.seen = _sight(frame) or self.seen

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        late, seen, self.seen = now - self.due, self.seen, None
        if now - self._last > BEAT_S + SLACK_S:
            self._stood = self._last, now
        if late > LATE_S:
            self._on_late(now, late, seen)
        self._schedule(loop)

    def _on_late(self, now: float, late: float, seen: Sight | None) -> None:
        if now - self._window_began > WINDOW_S:
            self._held, self._window_began = 0.0, now - late
        if seen is not None:
            self._held += late
        handler, location = seen or ("", "")
        if late > (UNSEEN_BLOCK_S if seen is None else LOOP_BLOCKED_S):
            self._report(LoopBlocked(handler=handler, seconds=late, location=location))
        elif self._held > MAX_HELD_S:
            window = now - self._window_began
            self._report(LoopBlocked(handler=handler, seconds=self._held, window=window, location=location))
            self._held, self._window_began = 0.0, now

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.get_ident()
        self._timer = loop.call_later(BEAT_S, self._beat, loop)
        self._last = monotonic()
        self.due = self._last + BEAT_S

    def _report(self, event: LoopBlocked) -> None:
        for bus in list(self._buses):
            bus.emit(event)


def _sight(innermost: FrameType) -> Sight | None:
    """Return the handler of natsproto that runs, and the line of the application that it has come to. None while the
    loop itself runs, or waits.
    """
    handler = location = installed = ""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_globals.get("__name__") not in _LOOP:
        code = frame.f_code
        if code.co_filename.startswith(_NATSPROTO):
            if "self" in code.co_varnames and (name := getattr(frame.f_locals.get("self"), "_where", "")):
                handler = str(name)
                break
        elif code.co_filename.startswith(_STDLIB) or _PACKAGES in code.co_filename:
            installed = installed or _location(frame)
        else:
            location = location or _location(frame)
        frame = frame.f_back
    return None if frame is innermost else Sight(handler, location or installed)


def _location(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Beats] = WeakKeyDictionary()
_pid = 0


def _run_thread() -> None:
    """Start the watching thread of this process, once."""
    global _pid  # a fork has no threads
    if _pid != os.getpid():
        _pid = os.getpid()
        threading.Thread(target=_watch, name="natsproto loop watch", daemon=True).start()


def _watch() -> None:
    while True:
        sleep(BEAT_S)
        now = monotonic()
        late = [(loop.is_running(), beats) for loop, beats in list(_of_loops.items()) if 0 < beats.due < now - LATE_S]
        if late:
            frames = sys._current_frames()
            for is_running, beats in late:
                beats.look(is_running, now, frames)
            del frames
