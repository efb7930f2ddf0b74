"""Watching with a callback: a task that passes each entry of a watch to a function, as ``subscribe(cb=...)`` does.

Owns that task. The watcher reads the entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.ending import CUT_TIMEOUT_S, Ending, Reader
from natsproto._handlers import HandlerResult, check_handler, finish
from natsproto._help.async_hints import RunHint
from natsproto._signals import check_until
from natsproto.jetstream._consumer.end_waiters import EndWaiters

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Watcher(Protocol[E_co]):
    """A KeyWatcher or an ObjectWatcher."""

    what: str

    @property
    def caught_up(self) -> bool:
        """True if the initial entries are complete and all received ones were read."""
        ...

    async def ready(self) -> None:
        """Wait until the initial entries have arrived."""
        ...

    async def stop(self) -> None:
        """End the watch."""
        ...

    def _track_task(self, task: asyncio.Task[None]) -> Reader:
        """Let a draining client wait for this task."""
        ...

    async def __aenter__(self) -> object:
        """Start the watch."""
        ...

    def __aiter__(self) -> AsyncIterator[E_co]:
        """Iterate over the entries."""
        ...


class WatchCallback(RunHint, Generic[E]):
    """A watch that passes its entries to a callback, one after the other. Use it with ``async with``, or ``await`` its
    ``run()``.

    The callback is ``def`` or ``async def``; an exception is logged and emitted as a HandlerFailed event, then the next
    entry follows. An error that ends the watch (its bucket was deleted, the client was closed) is raised by ``wait``,
    ``ready``, ``run`` and at the end of the block; it is logged if none of them is waiting.

    Created by ``watch`` of a bucket or store.
    """

    _unused_warning = "watch(cb=...) was never run or entered"

    def __init__(self, watcher: Watcher[E], callback: Callable[[E], HandlerResult], connection: Connection) -> None:
        check_handler("cb", callback, "entry")
        self._watcher, self._callback, self._connection = watcher, callback, connection
        self._where = f"callback of {watcher.what}"
        self._called = asyncio.Event()
        self._busy = False
        self._task: asyncio.Task[None] | None = None
        self._reader: Reader | None = None
        self._ending: Ending | None = None
        self._end_waiters = EndWaiters(connection._event_bus.log)
        self._begun = False

    async def ready(self) -> None:
        """Wait until the callback has handled the initial entries; returns at once when there were none.

        Raises the error that ends the watch; SubscriptionClosed when it was stopped. Cancelling ends only the wait.
        """
        task = self._started()
        with self._end_waiters.waiting():
            await self._watcher.ready()
            while self._busy or not self._watcher.caught_up:
                self._called.clear()
                called = asyncio.ensure_future(self._called.wait())
                try:
                    await asyncio.wait((called, task), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    called.cancel()
                if task.done():
                    _raise_error(task)
                    raise errors.SubscriptionClosed(self._watcher.what, "stopped")

    async def wait(self, until: asyncio.Event | None = None) -> None:
        """Wait until the watch has ended, or until the event is set. Raises the error that ended it, if any.

        Cancelling ends only the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        task = self._started()
        with self._end_waiters.waiting():
            await self._end_waiters.wait((task,), until)
            if task.done():
                _raise_error(task)

    async def stop(self) -> None:
        """Stop calling the callback and wait for a running call. Entries that were not passed to it are dropped.

        DrainTimeout when the call takes longer than the option ``drain_timeout``. Then, and when the last caller that
        waits is cancelled, it is cancelled. In the callback it returns at once, and the rest happens after it.
        """
        self._connection._check_loop()
        self._begun = True
        with self._end_waiters.waiting():
            if (reader := self._reader) is None:
                await self._watcher.stop()
                return
            ending = self._ending
            if ending is None:
                what = f"stop of {self._watcher.what}"
                ending = self._ending = Ending(what, self._finish, self._describe_rest, self._cut)
            ending.begin(self._connection._options.drain_timeout)
            await ending.wait_as_caller(lambda: [reader])

    async def _finish(self) -> None:
        assert self._ending is not None
        assert self._task is not None
        await self._watcher.stop()
        self._ending.on_stopped()
        await asyncio.wait((self._task,))

    async def _describe_rest(self) -> list[str]:
        assert self._ending is not None
        left = [] if self._ending.is_stopped else ["its consumer was not ended"]
        return [*left, "1 call of its callback"] if self._busy else left

    async def _cut(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CUT_TIMEOUT_S)

    async def __aenter__(self) -> WatchCallback[E]:
        self._begun = True
        self._connection._check_loop()
        if self._task is None:
            await self._watcher.__aenter__()
            self._task = asyncio.create_task(self._run(), name=f"natsproto {self._where}")
            self._reader = self._watcher._track_task(self._task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        self._connection._check_loop()
        if exc is not None and task is not None:
            task.cancel()
        await self.stop()
        if exc is None and task is not None and task.done():
            _raise_error(task)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Start it, and wait until it has ended, or until the event is set, which stops it.

        Raises the error that ended it, if any. Cancelling also cancels a running call.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        self._begun = True  # an error replaces the warning
        check_until(until)
        async with self:
            await self.wait(until)

    def _started(self) -> asyncio.Task[None]:
        self._begun = True  # suppresses the warning about an unused object
        self._connection._check_loop()
        if self._task is None:
            raise errors.LocalProtocolError(f"enter the {self._watcher.what} with async with first")
        return self._task

    async def _run(self) -> None:
        try:
            async for entry in self._watcher:
                self._busy = True
                try:
                    await self._call(entry)
                finally:
                    self._busy = False
                    self._called.set()
        except errors.NatsError as exc:
            self._end_waiters.on_end("watch(cb=...)", exc, "then watch it again")
            raise

    async def _call(self, entry: E) -> None:
        try:
            await finish(self._callback(entry))
        except Exception as exc:
            self._connection._event_bus.on_handler_error(self._where, exc)


def _raise_error(task: asyncio.Task[None]) -> None:
    """Raise the error that ended the watch. The closing of the client cancels a running callback, not who waits."""
    if not task.cancelled():
        task.result()
