"""The signals that end a program: Ctrl-C, and SIGTERM of Kubernetes, Docker and systemd.

Owns the handlers between ``stop_event`` and the first signal. The second signal finds the handlers of before, so a
program that hangs while it ends can always be ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial
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
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise LocalProtocolError(
            "call it inside the event loop; in a blocking program use natsproto.sync.stop_event()"
        ) from None
    stop = asyncio.Event()
    handle_stop(signals, partial(_set_in_loop, loop, stop))
    return stop


def check_until(until: object) -> None:
    """Raise TypeError for what is no event of asyncio, before something starts that would never end."""
    if until is not None and not isinstance(until, asyncio.Event):
        raise TypeError("until must be an asyncio.Event, such as that of stop_event()")


def handle_stop(signals: tuple[signal.Signals, ...], set_event: Callable[[], bool]) -> None:
    """Call ``set_event`` at the first of these signals. It returns False if nobody can wait for the event any more."""
    if threading.current_thread() is not threading.main_thread():
        raise LocalProtocolError("stop_event() works in the main thread only: signals do not reach others")
    handler = _StopHandler(set_event, signals or (signal.SIGINT, signal.SIGTERM))
    for number in handler.before:
        signal.signal(number, handler)


def _set_in_loop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> bool:
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:  # the loop is closed
        return False
    return True


class _StopHandler:
    """The handler of the first signal. It sets the events of all calls of ``stop_event`` before, too.

    ``set_event`` returns False if nobody can wait for the event any more.
    """

    def __init__(self, set_event: Callable[[], bool], signals: tuple[signal.Signals, ...]) -> None:
        self._set_event = set_event
        self.before = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self._set(signal.Signals(number)):
            signal.raise_signal(number)  # the program goes on, or ends, without the events

    def _set(self, number: signal.Signals) -> bool:
        """Restore the handlers of before and set the events. False if nobody can wait for one of them."""
        for one, handler in self.before.items():
            signal.signal(one, handler)
        is_set = self._set_event()
        earlier = self.before[number]
        return (isinstance(earlier, _StopHandler) and earlier._set(number)) or is_set
