"""The signals that end a program: Ctrl-C, and SIGTERM of Kubernetes, Docker and systemd.

Owns the handlers between ``stop_event`` and the first signal. The second signal finds the handlers of before, so a
program that hangs while it ends can always be ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

from natsproto.errors import LocalProtocolError


def stop_event(*signals: signal.Signals) -> asyncio.Event:
    """Return an event that the first Ctrl-C or SIGTERM sets (or the first of these ``signals``).

    Wait for it where the program works, for example with ``consume(handler).run(until=stop_event())``, and leave the
    blocks in order. A second signal has its usual effect at once: Ctrl-C cancels the program, SIGTERM ends it. Works on
    Windows, too. LocalProtocolError outside the main thread, which alone gets signals.

    Args:
        *signals: The signals that set the event; none: SIGINT and SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        raise LocalProtocolError("stop_event() works in the main thread only: signals do not reach others")
    stop = asyncio.Event()
    handler = _StopHandler(asyncio.get_running_loop(), stop, signals or (signal.SIGINT, signal.SIGTERM))
    for number in handler.before:
        signal.signal(number, handler)
    return stop


class _StopHandler:
    """The handler of the first signal. It sets the events of all calls of ``stop_event`` before, too."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event, signals: tuple[signal.Signals, ...]
    ) -> None:
        self._loop, self._stop = loop, stop
        self.before = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self._set(signal.Signals(number)):
            signal.raise_signal(number)  # the loops are closed: the program has ended without the events

    def _set(self, number: signal.Signals) -> bool:
        """Restore the handlers of before and set the events. False if there is none whose loop is open."""
        for one, handler in self.before.items():
            signal.signal(one, handler)
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
            is_set = True
        except RuntimeError:  # the loop is closed
            is_set = False
        earlier = self.before[number]
        return (isinstance(earlier, _StopHandler) and earlier._set(number)) or is_set
