"""The threads that iterate over messages of one client; ``drain`` waits for them."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import NamedTuple, Protocol

from natsproto._core.ending import Reader, ReaderKey


class TrackedReader(Protocol):
    """An object of the async client that is read, and lets a draining client wait for tasks."""

    def _track_task(self, task: asyncio.Task[None]) -> Reader: ...


class TrackedContext(TrackedReader, Protocol):
    """A TrackedReader that is an async context manager."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Iteration(NamedTuple):
    """An iteration in a thread. A task stands for it, until the event is set."""

    key: ReaderKey
    done: asyncio.Event
    thread: threading.Thread


class ThreadTracker:
    """The iterations that a draining client waits for. To be used on the event loop."""

    def __init__(self) -> None:
        self._running: set[Iteration] = set()

    def track_iteration(self, reader: TrackedReader, thread: threading.Thread) -> Iteration:
        """Register a thread that iterates over the reader until the event of the result is set."""
        done = asyncio.Event()

        async def wait_done() -> None:
            await done.wait()

        task = asyncio.get_running_loop().create_task(wait_done(), name="natsproto sync reader")
        try:
            key = reader._track_task(task).key
        except BaseException:
            done.set()
            raise
        key.in_use += 1
        iteration = Iteration(key, done, thread)
        self._running.add(iteration)

        def on_done(_: asyncio.Task[None]) -> None:
            key.in_use -= 1
            self._running.discard(iteration)

        task.add_done_callback(on_done)
        return iteration

    def forget_ended(self) -> None:
        """Do not wait for threads that ended in the middle of an iteration."""
        for iteration in self._running:
            if not iteration.thread.is_alive():
                iteration.done.set()
