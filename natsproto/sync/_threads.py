"""The threads that iterate over messages or handle requests of one client; ``drain`` waits for them."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Protocol


class TrackedReader(Protocol):
    """An object of the async client that is read, and lets a draining client wait for tasks."""

    def _track_task(self, task: asyncio.Task[None]) -> None: ...


class TrackedContext(TrackedReader, Protocol):
    """A TrackedReader that is an async context manager."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ThreadTracker:
    """The threads that a draining client waits for: each is represented by a task. To be used on the event loop."""

    def __init__(self) -> None:
        self._iterating: dict[asyncio.Event, threading.Thread] = {}
        self._handling: dict[threading.Thread, asyncio.Future[None]] = {}

    def track_iteration(self, reader: TrackedReader, thread: threading.Thread) -> asyncio.Event:
        """Register a thread that iterates over the reader until the returned event is set."""
        done = asyncio.Event()

        async def wait_done() -> None:
            await done.wait()

        task = asyncio.get_running_loop().create_task(wait_done(), name="natsproto sync reader")
        self._iterating[done] = thread
        task.add_done_callback(lambda _: self._iterating.pop(done))
        try:
            reader._track_task(task)
        except BaseException:
            done.set()
            raise
        return done

    async def wait_handled(self, thread: threading.Thread, done: asyncio.Future[None]) -> None:
        """Wait until the thread has handled its request, or ``stop_waiting_for`` it; raise the handler's error."""
        self._handling[thread] = done
        try:
            await done
        finally:
            del self._handling[thread]

    def stop_waiting_for(self, thread: threading.Thread) -> None:
        """Stop waiting for this thread, and for threads that ended in the middle of an iteration."""
        for done, reader in self._iterating.items():
            if reader is thread or not reader.is_alive():
                done.set()
        handling = self._handling.get(thread)
        if handling is not None and not handling.done():
            handling.set_result(None)
