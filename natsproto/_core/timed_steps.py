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
    """A coroutine that runs handlers in a task, and reports each slow step.

    A step lasts from one suspension to the next. To time the steps finds a block behind an ``await`` of a handler. It
    costs about a microsecond a task and half of one a suspension, and nothing for the further messages of a step.
    """

    __slots__ = ("_coroutine", "_on_blocked", "_where")

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], where: str, on_blocked: Callable[[str, float], None]
    ) -> None:
        self._coroutine, self._where, self._on_blocked = coroutine, where, on_blocked

    def __await__(self) -> Any:
        """Not used: it is run by a task."""
        return self

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
