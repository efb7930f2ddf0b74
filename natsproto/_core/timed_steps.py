"""Finds the handler that holds the event loop.

Owns the time of each step of a task that runs handlers. ``LoopWatch`` judges the slow ones, and finds what blocks
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

SLOW_STEP_S: Final = 0.1
"""Seconds after which a handler that holds the event loop is told to ``LoopWatch``."""


class TimedSteps(Coroutine[Any, Any, None]):
    """A coroutine that runs handlers, and reports each slow step. A task runs it, or a coroutine awaits it.

    A step lasts from one suspension to the next. To time the steps finds a block behind an ``await`` of a handler. It
    costs half a microsecond, and as much for a suspension, but nothing for the further messages of a step. A caller
    that has run and timed the first step itself passes the future that it has ``yielded``.
    """

    __slots__ = ("_coroutine", "_on_blocked", "_where", "_yielded")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, object],
        where: str,
        on_blocked: Callable[[str, float], None],
        *yielded: object,
    ) -> None:
        self._coroutine, self._where, self._on_blocked = coroutine, where, on_blocked
        self._yielded = yielded

    def __await__(self) -> Any:
        """The steps, for the coroutine that awaits it."""
        return self

    def __next__(self) -> Any:
        """Run a step, or hand on what the first one has yielded."""
        if self._yielded:
            (future,), self._yielded = self._yielded, ()
            return future
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        """The frame and the name of the coroutine, for tools that show tasks."""
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        """Run a step."""
        began = monotonic()
        try:
            return self._coroutine.send(value)
        finally:
            if monotonic() - began > SLOW_STEP_S:
                self._on_blocked(self._where, monotonic() - began)

    def throw(self, *error: Any) -> Any:
        """Run a step that begins with an exception."""
        began = monotonic()
        try:
            return self._coroutine.throw(*error)
        finally:
            if monotonic() - began > SLOW_STEP_S:
                self._on_blocked(self._where, monotonic() - began)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()
