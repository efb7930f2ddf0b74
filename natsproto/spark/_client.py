"""One client for each worker process and config, and the rows that pass between its event loop and a task's thread.

The loop runs on its own thread (that of ``natsproto.sync``), so that a connection stays alive while the task's thread
is busy. This module does not know what the rows are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Concatenate, Generic, ParamSpec, TypeVar

from natsproto._client import Client
from natsproto._core.engine import State
from natsproto.errors import ConfigError, ConnectionClosed
from natsproto.spark._options import SparkNats
from natsproto.sync import _client as blocking
from natsproto.sync._portal import Portal

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
MAX_PULL_TIME_S = 0.05
"""Seconds for which rows are collected before they are sent to the loop."""
CLEANUP_TIMEOUT_S = 5.0
"""Seconds that a task waits for the clean-up of its coroutines."""


class WorkerClient(blocking.Client):
    """The client of this process for one config, as a blocking client and as the async client below it."""

    def reach(self) -> tuple[Portal, Client]:
        """The loop and the client on it; connects if this process has not yet. Raises the errors of ``connect``."""
        return self._reach()

    @property
    def ended(self) -> bool:
        """True if its client is closed for good: by ``close``, or because no server accepts it any more."""
        process = self._processes.get(os.getpid())
        connection = None if process is None else process.connection
        return self._closed or (connection is not None and connection.client.state is State.CLOSED)


_CLIENTS: dict[SparkNats, WorkerClient] = {}


def shared_client(config: SparkNats) -> WorkerClient:
    """The client of this process for this config. It connects at its first use, and again after a fork."""
    if not isinstance(config, SparkNats):
        raise TypeError(f"config must be a SparkNats, not {type(config).__name__}")
    found = _CLIENTS.get(config)
    if found is None or found.ended:
        found = _CLIENTS[config] = WorkerClient(config.options())
    return found


@contextmanager
def worker_client(config: SparkNats) -> Iterator[blocking.Client]:
    """The blocking client (``natsproto.sync``) of this worker process, for plain functions and UDFs.

    All tasks of a process that use the same config share it, so leaving the block does not close it. Connects at its
    first use in a process: ConnectFailed and what else ``natsproto.connect`` raises.
    """
    yield shared_client(config)


def close_workers() -> None:
    """Closes the clients of this process, for a driver that no longer needs them; their next use connects again."""
    while _CLIENTS:
        _CLIENTS.popitem()[1].close()


def run_on_loop(
    config: SparkNats, function: Callable[Concatenate[Client, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs an async function on the loop with the client of this process and returns its result."""
    portal, client = shared_client(config).reach()
    return portal.call(function, client, *args, **kwargs)


def iterate_on_loop(
    config: SparkNats, make: Callable[[Client], AsyncIterator[R]], *, prefetch: int = 1
) -> Generator[R]:
    """Turns the async iterator ``make(client)``, run on the loop, into a generator that reads ``prefetch`` items ahead.

    The loop runs on while the reader is busy. Closing the generator cancels the iterator and waits until it
    has cleaned up. Raises the iterator's errors.
    """

    def produce(client: Client, _: AsyncIterator[object]) -> AsyncIterator[R]:
        return make(client)

    return run_with_rows(config, produce, (), prefetch=prefetch)


def run_with_rows(
    config: SparkNats,
    produce: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]],
    rows: Iterable[T],
    *,
    prefetch: int,
) -> Generator[R]:
    """Runs ``produce(client, rows)`` on the loop and yields its results; ``rows`` are iterated in this thread.

    At most ``prefetch`` results wait here and ``prefetch`` rows there; no row is taken before ``produce``
    asks for it. Closing it is as in ``iterate_on_loop``.
    """
    if type(prefetch) is not int or prefetch < 1:
        raise ConfigError("prefetch", prefetch, "must be a positive number")
    portal, client = shared_client(config).reach()
    bridge: RowBridge[T, R] = RowBridge(prefetch)
    portal.run(bridge.start, produce, client)
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


def is_retry() -> bool:
    """True inside a Spark task that had an earlier attempt."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


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

    def start(self, produce: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]], client: Client) -> None:
        """Starts the generator."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(produce(client, self._each_row())), name="natsproto spark partition"
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
        self.from_loop.put(ConnectionClosed() if task.cancelled() else task.exception())
