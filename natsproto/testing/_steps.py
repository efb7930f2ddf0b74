"""Waiting, apart from who waits.

Owns one idea: something that takes time is a generator which yields how many seconds to pause, and whoever
drives it decides how to sleep. So ``with`` and ``async with`` share one algorithm, and a cancelled or
interrupted wait closes the generator, whose ``except BaseException`` undoes what it had begun. Knows nothing
of servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import closing
from types import TracebackType
from typing import Generic, Protocol, TypeVar

Steps = Generator[float, None, None]
"""A piece of work that yields the seconds to pause before it is resumed."""

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02


class Startable(Protocol):
    """What a Scope can hold: something that starts and closes in steps."""

    def start_steps(self) -> Steps:
        """Starts it; left early or by an error, everything is undone."""

    def close_steps(self) -> Steps:
        """Stops it; left early, it is stopped the hard way."""


T = TypeVar("T", bound=Startable)


class Scope(Generic[T]):
    """Starts something on entering and stops it on leaving; takes ``with`` and ``async with``.

    ``with`` blocks the thread while it waits, ``async with`` lets the event loop run. Cancelling or
    interrupting either one stops what was started.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: list[T] = []

    def __enter__(self) -> T:
        held = self._make()
        drive_blocking(held.start_steps())
        self._held.append(held)
        return held

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive_blocking(self._held.pop().close_steps())

    async def __aenter__(self) -> T:
        held = self._make()
        await drive(held.start_steps())
        self._held.append(held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await drive(self._held.pop().close_steps())


async def drive(steps: Generator[float, None, object]) -> None:
    """Runs the steps and lets the event loop run in the pauses. Cancelling closes the steps."""
    with closing(steps):
        for pause in steps:
            await asyncio.sleep(pause)


def drive_blocking(steps: Steps) -> None:
    """Runs the steps and sleeps in the pauses."""
    with closing(steps):
        for pause in steps:
            time.sleep(pause)


def until(check: Callable[[], bool], timeout: float) -> Generator[float, None, bool]:
    """Pauses until ``check()`` holds and returns True; False once ``timeout`` seconds have passed."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while not check():
        if time.monotonic() >= deadline:
            return False
        yield pause
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True
