"""The signals that end a program: Ctrl-C, and SIGTERM of Kubernetes, Docker and systemd.

Owns the handlers between ``stop_event`` and the first signal. The second signal finds the handlers of before, so a
program that hangs while it ends can always be ended. Only SIGTERM is ignored for ``REPEAT_S`` after the first one: a
launcher that forwards it, such as ``uv run`` under systemd, makes two of one.

A signal that comes while a client waits for its first connection ends that wait, since nobody looks at the event yet.
One that came before ends only ``retry_connect_for``: the program may need a connection to end in order.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TypeAlias
from weakref import WeakSet

from natsproto import errors

StopEvent: TypeAlias = asyncio.Event | threading.Event

REPEAT_S = 1.0
"""Seconds in which another SIGTERM is taken for the same one."""

_signalled: WeakSet[StopEvent] = WeakSet()
"""The events that a signal has set. Signals belong to the process, hence this and the next one do."""
_on_signal: set[Callable[[], object]] = set()
"""The clients that wait for a first connection: called in the main thread. A set's own methods are atomic."""


def stop_event(*signals: signal.Signals) -> asyncio.Event:
    """Return an event that the first Ctrl-C or SIGTERM sets (or the first of these ``signals``).

    Call it before ``connect``, which the signal ends with ConnectFailed while there is no connection yet. Wait for it
    where the program works, for example with ``consume(handler).run(until=stop_event())``, and leave the blocks in
    order. A second signal has its usual effect at once: Ctrl-C cancels the program, SIGTERM ends it. Within a second
    of the first, another SIGTERM is ignored, as from a launcher that forwards it. Works on Windows, too.
    LocalProtocolError outside the main thread, which alone gets signals.

    Args:
        *signals: The signals that set the event; none: SIGINT and SIGTERM.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise errors.LocalProtocolError(
            "call it inside the event loop; in a blocking program use natsproto.sync.stop_event()"
        ) from None
    stop = asyncio.Event()
    handle_stop(signals, partial(_set_in_loop, loop, stop))
    return stop


@contextmanager
def calling_on_signal(callback: Callable[[], object]) -> Iterator[None]:
    """Call back, in the main thread, when a signal sets an event of ``stop_event``."""
    _on_signal.add(callback)
    try:
        yield
    finally:
        _on_signal.discard(callback)


def is_stopping() -> bool:
    """True if a signal has set an event that the program still has, and has not cleared."""
    return bool(_signalled) and any(event.is_set() for event in list(_signalled))


def check_until(until: object) -> None:
    """Raise TypeError for what is no event of asyncio, before something starts that would never end."""
    if until is not None and not isinstance(until, asyncio.Event):
        raise TypeError("until must be an asyncio.Event, such as that of stop_event()")


def handle_stop(signals: tuple[signal.Signals, ...], set_event: Callable[[], StopEvent | None]) -> None:
    """Call ``set_event`` at the first of these signals. It returns the event that is set, None if nobody can wait for
    it any more.
    """
    if threading.current_thread() is not threading.main_thread():
        raise errors.LocalProtocolError("stop_event() works in the main thread only: signals do not reach others")
    handler = _StopHandler(set_event, signals or (signal.SIGINT, signal.SIGTERM))
    for number in handler.before:
        signal.signal(number, handler)


def _set_in_loop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> asyncio.Event | None:
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:  # the loop is closed
        return None
    return stop


class _StopHandler:
    """The handler of the first signal. It sets the events of all calls of ``stop_event`` before, too.

    ``set_event`` returns the event, None if nobody can wait for it any more.
    """

    def __init__(self, set_event: Callable[[], StopEvent | None], signals: tuple[signal.Signals, ...]) -> None:
        self._set_event = set_event
        self.before = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self._set(signal.Signals(number)):
            signal.raise_signal(number)  # the program goes on, or ends, without the events
            return
        if number == signal.SIGTERM:
            signal.signal(number, _RepeatHandler(signal.getsignal(number) or signal.SIG_DFL))
        for callback in list(_on_signal):
            callback()

    def _set(self, number: signal.Signals) -> bool:
        """Restore the handlers of before and set the events. False if nobody can wait for one of them."""
        for one, handler in self.before.items():
            signal.signal(one, handler)
        event = self._set_event()
        if event is not None:
            _signalled.add(event)
        earlier = self.before[number]
        return (isinstance(earlier, _StopHandler) and earlier._set(number)) or event is not None


class _RepeatHandler:
    """The handler after the first SIGTERM: it ignores copies of it, and restores the handler of before at another."""

    def __init__(self, before: Callable[[int, FrameType | None], object] | int) -> None:
        self._before, self._until = before, time.monotonic() + REPEAT_S

    def __call__(self, number: int, _: FrameType | None) -> None:
        if time.monotonic() >= self._until:
            signal.signal(number, self._before)
            signal.raise_signal(number)
