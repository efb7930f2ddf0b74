"""Work in steps, which can wait in a thread or on an event loop.

Work that takes time is a generator that yields the seconds to pause, and its driver decides how to sleep. So ``with``
and ``async with`` share one algorithm, and a cancelled or interrupted wait closes the generator, whose
``except BaseException`` undoes what it had begun. This module knows nothing of servers.
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

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02


class Startable(Protocol):
    """The interface that a Scope needs: starting and closing in steps."""

    def _start_steps(self) -> Steps:
        """Start. An error or an early end undoes everything."""
        ...

    def _close_steps(self) -> Steps:
        """Stop. An early end stops it by force."""
        ...


T = TypeVar("T", bound=Startable)


class Scope(Generic[T]):
    """A context manager for ``with`` and ``async with`` that starts a server or cluster and stops it.

    ``with`` blocks the thread while it waits; ``async with`` lets the event loop run. Cancelling or interrupting it
    stops what was started.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: list[T] = []

    def __enter__(self) -> T:
        held = self._make()
        drive_blocking(held._start_steps())
        self._held.append(held)
        return held

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive_blocking(self._held.pop()._close_steps())

    def __await__(self) -> Generator[object, None, T]:
        """Start it without a block, as in a notebook: it ends with the process, if it is not stopped before."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> T:
        held = self._make()
        await drive(held._start_steps())
        self._held.append(held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await drive(self._held.pop()._close_steps())


async def drive(steps: Generator[float, None, object]) -> None:
    """Run the steps, with the event loop running in the pauses. Cancelling closes the steps."""
    with closing(steps):
        for pause in steps:
            await asyncio.sleep(pause)


def drive_blocking(steps: Steps) -> None:
    """Run the steps and sleep in the pauses."""
    with closing(steps):
        for pause in steps:
            time.sleep(pause)


def wait_until(check: Callable[[], bool], timeout: float) -> Generator[float, None, bool]:
    """Pause until ``check()`` is true and return True, or False after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while not check():
        if time.monotonic() >= deadline:
            return False
        yield pause
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    return True
