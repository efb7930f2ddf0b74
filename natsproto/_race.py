"""Attempts side by side, of which the first that succeeds is used: dials of servers, and of the addresses of a name.

Owns the tasks of the attempts. The rules:

1. The next attempt is begun beside the others as soon as one has failed or has been silent for STAGGER_S seconds.
2. The first result wins, in the order of the attempts if several come at once.
3. The others are cancelled; a result that one of them had already is discarded, so that no connection is left open.
4. An attempt reports its own failure and returns None: a race knows no errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

STAGGER_S = 0.4
"""Seconds of silence after which another server is dialled beside. A loser may have logged in: each client causes at
most one such login in this time."""


class Race(Generic[K, T]):
    """The attempts in flight, each with the server or address that it tries. ``discard`` ends the result of a loser."""

    def __init__(self, name: str, discard: Callable[[T], None]) -> None:
        self._name, self._discard = name, discard
        self._running: dict[asyncio.Task[T | None], K] = {}
        self._cut: set[asyncio.Task[T | None]] = set()  # cancelled, and not ended yet

    @property
    def running(self) -> Collection[K]:
        """The keys of the attempts that may still win."""
        return self._running.values()

    @property
    def tasks(self) -> list[asyncio.Task[T | None]]:
        """Every task that has not ended, those of losers too."""
        return [*self._running, *self._cut]

    def start(self, key: K, attempt: Coroutine[Any, Any, T | None]) -> None:
        """Begin an attempt. It returns None when it fails."""
        self._running[asyncio.get_running_loop().create_task(attempt, name=self._name)] = key

    async def winner(self, seconds: float | None = None, *ends: asyncio.Future[Any]) -> T | None:
        """Return the first result. None as soon as an attempt has failed, after ``seconds`` (None: no limit), or when
        one of ``ends`` is done.
        """
        await asyncio.wait((*self._running, *ends), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        winner: T | None = None
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            if winner is None and not task.cancelled():
                winner = task.result()
            else:
                self._on_cut(task)
        return winner

    def cut(self) -> None:
        """Cancel every attempt. It does not wait for their ends."""
        tasks, self._running = self._running, {}
        for task in tasks:
            task.cancel()
            self._cut.add(task)
            task.add_done_callback(self._on_cut)

    def _on_cut(self, task: asyncio.Task[T | None]) -> None:
        """Discard the result of an attempt that nobody waits for."""
        self._cut.discard(task)
        if not task.cancelled() and task.exception() is None and (result := task.result()) is not None:
            self._discard(result)
