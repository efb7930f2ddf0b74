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
    """
    if threading.current_thread() is not threading.main_thread():
        raise LocalProtocolError("stop_event() works in the main thread only: signals do not reach others")
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    before = {
        number: signal.getsignal(number) or signal.SIG_DFL for number in signals or (signal.SIGINT, signal.SIGTERM)
    }

    def on_signal(number: int, _: FrameType | None) -> None:
        for one, handler in before.items():
            signal.signal(one, handler)
        try:
            loop.call_soon_threadsafe(stop.set)
        except RuntimeError:  # the loop is closed: the program has ended without it
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, on_signal)
    return stop
