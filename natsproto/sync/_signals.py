"""The signals that end a blocking program.

Owns the event of a thread that the handler of ``natsproto.stop_event`` sets here.
"""

from __future__ import annotations

import threading
from functools import partial
from signal import Signals
from weakref import ref

from natsproto._signals import handle_stop


def stop_event(*signals: Signals) -> threading.Event:
    """Return an event that the first Ctrl-C or SIGTERM sets (or the first of these ``signals``).

    Call it before ``connect``, which the signal ends with ConnectFailed while there is no connection yet. Wait for it
    where the program works, for example with ``consumer.consume(handler).run(until=stop_event())``, and leave the
    blocks in order. A second signal has its usual effect at once: Ctrl-C raises KeyboardInterrupt, SIGTERM ends the
    program. Within a second of the first, another SIGTERM is ignored, as from a launcher that forwards it. Works on
    Windows, too. LocalProtocolError outside the main thread, which alone gets signals.

    Args:
        *signals: The signals that set the event; none: SIGINT and SIGTERM.
    """
    stop = threading.Event()
    handle_stop(signals, partial(_set_in_thread, ref(stop)))
    return stop


def check_until(until: object) -> None:
    """Raise TypeError for anything but an event of threads or None."""
    if until is not None and not isinstance(until, threading.Event):
        raise TypeError("until must be a threading.Event, such as that of natsproto.sync.stop_event()")


def _set_in_thread(event: ref[threading.Event]) -> threading.Event | None:
    """Set the event. None if the program has dropped it."""
    stop = event()
    if stop is None:
        return None
    # In a thread, because the signal may have interrupted the one that holds the event's lock, in its ``wait``.
    threading.Thread(target=stop.set, name="natsproto stop", daemon=True).start()
    return stop
