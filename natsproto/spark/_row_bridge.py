"""Rows that pass between the loop and one thread: an async generator there, an iterator here.

The loop runs on while the thread is busy. This module does not know what the rows are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from natsproto import errors
from natsproto.sync._portal import Portal

T = TypeVar("T")
R = TypeVar("R")
MAX_PULL_TIME_S = 0.05
"""Seconds for which rows are collected before they are sent to the loop."""
CLEANUP_TIMEOUT_S = 5.0
"""Seconds that a thread waits for the clean-up of its coroutines."""


def run_with_rows(
    portal: Portal,
    produce: Callable[[AsyncIterator[T]], AsyncIterator[R]],
    rows: Iterable[T],
    *,
    prefetch: int,
) -> Generator[R]:
    """Run ``produce(rows)`` on the loop and yield its results; ``rows`` are iterated in this thread.

    At most ``prefetch`` results wait here and ``prefetch`` rows there; no row is taken before ``produce``
    asks for it. Closing the generator cancels ``produce`` and waits until it
    has cleaned up.
    """
    if type(prefetch) is not int or prefetch < 1:
        raise errors.ConfigError("prefetch", prefetch, "must be a positive number")
    bridge: RowBridge[T, R] = RowBridge(prefetch)
    portal.run(bridge.start, produce)
    source = iter(rows)
    try:
        while True:
            item = bridge.from_loop.get()
            if isinstance(item, list):
                portal.post(partial(bridge.taken, len(item)))
                yield from item
            elif isinstance(item, _RowsWanted):
                portal.post(partial(bridge.feed, *take_rows(source, prefetch)))
            elif isinstance(item, BaseException):
                raise item
            else:
                return
    finally:
        stop_and_wait(portal, bridge.stop)


def take_rows(source: Iterator[T], max_count: int) -> tuple[list[T], bool]:
    """Up to ``max_count`` rows, fewer if they arrive slowly, and True if they are the last."""
    rows: list[T] = []
    until = monotonic() + MAX_PULL_TIME_S
    while len(rows) < max_count:
        try:
            rows.append(next(source))
        except StopIteration:
            return rows, True
        if monotonic() >= until:
            break
    return rows, False


def stop_and_wait(portal: Portal, stop: Callable[[], Awaitable[None]]) -> None:
    """Stops a coroutine on the loop and waits for it, where that is possible."""
    if portal.stopped:
        return
    if portal.is_loop_thread:  # the garbage collector closes a forgotten generator on whichever thread it runs
        asyncio.ensure_future(stop())
    else:
        portal.call(stop)


class _RowsWanted:
    """The loop asks for rows."""


_ROWS_WANTED = _RowsWanted()


class RowBridge(Generic[T, R]):
    """Passes rows and results between an async generator on the loop and one thread.

    The loop's thread calls everything but ``from_loop``. Results cross as lists, with all that one turn of the loop
    brought: many small ones cost one wake-up.
    """

    def __init__(self, prefetch: int) -> None:
        self.from_loop: SimpleQueue[list[R] | _RowsWanted | BaseException | None] = SimpleQueue()
        """Carries results, requests for rows, the error that ended the generator, or None if it ended normally."""
        self._prefetch = prefetch
        self._rows: deque[T] = deque()
        self._last = False  # the thread has no more rows
        self._rows_arrived = asyncio.Event()
        self._results: list[R] = []
        self._unread = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, produce: Callable[[AsyncIterator[T]], AsyncIterator[R]]) -> None:
        """Starts the generator."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(produce(self._each_row())), name="natsproto sync rows"
        )
        self._task.add_done_callback(self._end)

    def feed(self, rows: list[T], last: bool) -> None:
        """Adds the next rows; ``last`` if there are no more."""
        self._rows += rows
        self._last = last
        self._rows_arrived.set()

    def taken(self, count: int) -> None:
        """Notes that the thread has taken ``count`` results."""
        self._unread -= count
        self._room.set()

    async def stop(self) -> None:
        """Stops the generator and waits for its clean-up."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLEANUP_TIMEOUT_S)

    async def _run(self, results: AsyncIterator[R]) -> None:
        try:
            async for result in results:
                await self._hand_over(result)
        finally:
            if isinstance(results, AsyncGenerator):
                await results.aclose()

    async def _each_row(self) -> AsyncIterator[T]:
        rows = self._rows
        while True:
            while rows:
                yield rows.popleft()
            if self._last:
                return
            self._rows_arrived.clear()
            self.from_loop.put(_ROWS_WANTED)
            await self._rows_arrived.wait()

    async def _hand_over(self, result: R) -> None:
        if not self._results:
            asyncio.get_running_loop().call_soon(self._flush)
        self._results.append(result)
        self._unread += 1
        while self._unread >= self._prefetch:
            self._room.clear()
            await self._room.wait()

    def _flush(self) -> None:
        if self._results:
            self.from_loop.put(self._results)
            self._results = []

    def _end(self, task: asyncio.Task[None]) -> None:
        self._flush()
        # Cancelled although the thread still reads: the loop is ending.
        self.from_loop.put(errors.ConnectionClosed() if task.cancelled() else task.exception())
