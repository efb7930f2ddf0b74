"""Many calls of an async function on the loop, for the rows of an iterator here, in their order or as they end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Generic, Literal, TypeAlias, TypeVar, cast

from natsproto import errors
from natsproto.spark._row_bridge import CLEANUP_TIMEOUT_S, stop_and_wait, take_rows
from natsproto.sync._portal import Portal

T = TypeVar("T")
R = TypeVar("R")
OnError: TypeAlias = Literal["raise", "null"] | Callable[[T, Exception], R]
"""For an input whose call fails: fail the task, return None, or return the result of this function."""


class _Failed:
    """The error of a call, on its way to the reader of the results."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Calls(Generic[T, R]):
    """Calls of an async function for many rows, some at a time. The loop's thread calls everything but ``results_for``.

    Each task makes many calls in turn. With one task per row, a third of a request's time went into creating tasks.
    """

    def __init__(
        self,
        call: Callable[[T], Awaitable[R]],
        concurrency: int,
        ordered: bool,
        timeout: float | None,
        on_error: OnError[T, R],
    ) -> None:
        self._call, self._concurrency, self._ordered = call, concurrency, ordered
        self._timeout, self._on_error = timeout, on_error
        self.results: SimpleQueue[list[R | _Failed | None]] = SimpleQueue()
        """Results, with all that one turn of the loop brought in one list."""
        self._rows: deque[T] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0
        self._next = 0
        """The number of the row whose result is next, when they are ordered."""
        self._early: dict[int, R | _Failed | None] = {}
        self._ready: list[R | _Failed | None] = []

    def results_for(self, portal: Portal, rows: Iterable[T]) -> Iterator[R | None]:
        """Calls the function for each row on the loop, and yields the results here."""
        source = iter(rows)
        prefetch = 2 * self._concurrency  # rows wait on the loop, so that a call begins when another ends
        unread, over = 0, False
        worthwhile = max(1, self._concurrency // 2)  # each refill wakes the loop

        def refill() -> None:
            nonlocal unread, over
            found, over = take_rows(source, prefetch - unread)
            unread += len(found)
            if found:
                portal.post(partial(self.begin, found))

        try:
            while True:
                if not unread and not over:
                    refill()
                if not unread:
                    return
                for result in self.results.get():
                    if type(result) is _Failed:
                        raise result.error
                    yield cast("R | None", result)
                    unread -= 1
                    if not over and prefetch - unread >= worthwhile:
                        refill()
        finally:
            stop_and_wait(portal, self.stop)

    def begin(self, rows: list[T]) -> None:
        """Calls the function for more rows."""
        self._rows += rows
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._rows), self._concurrency - len(self._tasks))):
            self._tasks.add(loop.create_task(self._make_calls(), name="natsproto sync calls"))

    async def stop(self) -> None:
        """Cancels the running calls and waits for them."""
        self._rows.clear()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLEANUP_TIMEOUT_S)

    async def _make_calls(self) -> None:
        rows, call = self._rows, self._call if self._timeout is None else self._call_in_time
        task = asyncio.current_task()
        assert task is not None
        while rows:
            row = rows.popleft()
            number, self._begun = self._begun, self._begun + 1
            try:
                result: R | _Failed | None = await call(row)
            except Exception as exc:
                result = self._replace(row, exc)
            except BaseException as exc:
                # Cancelled although the thread still reads: the loop is ending.
                self._add(
                    number, _Failed(errors.ConnectionClosed() if isinstance(exc, asyncio.CancelledError) else exc)
                )
                raise
            self._add(number, result)
        self._tasks.discard(task)  # not by a callback: ``begin`` may come before it

    async def _call_in_time(self, row: T) -> R:
        assert self._timeout is not None
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._call(row)
        except TimeoutError:
            if limit.expired():
                raise errors.RequestTimeout("the call for a row", self._timeout) from None
            raise

    def _replace(self, row: T, error: Exception) -> R | _Failed | None:
        """The result for a row whose call raised."""
        if not callable(self._on_error):
            return None if self._on_error == "null" else _Failed(error)
        try:
            return self._on_error(row, error)
        except Exception as other:
            return _Failed(other)

    def _add(self, number: int, result: R | _Failed | None) -> None:
        """Hands a result over when it is its turn."""
        if self._ordered and number != self._next:
            self._early[number] = result
            return
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._flush)
        self._ready.append(result)
        self._next += 1
        while self._next in self._early:
            self._ready.append(self._early.pop(self._next))
            self._next += 1

    def _flush(self) -> None:
        self.results.put(self._ready)
        self._ready = []
