"""Loops and tasks that still handle messages; ``drain`` waits for them.

ReaderTasks, a Reader of ``ending``, are those of higher layers (JetStream, key/value) that read from one MessageHolder,
and ActiveReaders owns the ReaderTasks that have any. SubscriptionReaders are those of a subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol, Self

from natsproto._core.consumer_stats import MeasuredReaders
from natsproto._core.ending import ReaderKey
from natsproto._core.notifier import Notifier

IDLE_TURNS = 2
"""Turns of the event loop after which idle tasks have seen the end of their reading or their cancellation, and are
gone.
"""


async def give_turns(waited_for: Collection[object]) -> None:
    """Give tasks IDLE_TURNS turns of the event loop, if there are any to wait for."""
    if waited_for:
        for _ in range(IDLE_TURNS):
            await asyncio.sleep(0)


class Waiting(Protocol):
    """The messages that wait to be read."""

    @property
    def waiting(self) -> int:
        """Their number."""
        ...


class MessageHolder(Protocol):
    """Holds the messages that its tasks read."""

    what: str
    """Its description in errors."""

    @property
    def buffer(self) -> Waiting:
        """The messages that wait to be read."""
        ...

    def _end(self) -> None:
        """No more messages will come; those that wait can still be read."""
        ...

    def _return_waiting(self) -> None:
        """End, and return the messages that wait to the server."""
        ...


class LoopsAndTasks:
    """The running loops of the application over one thing, and the tasks of natsproto that handle its messages."""

    __slots__ = ("_loops", "_notifier", "_tasks", "key")

    def __init__(self, notifier: Notifier) -> None:
        self.key: ReaderKey = ReaderKey()
        """In the context of its handlers and loops."""
        self._notifier = notifier
        self._loops: list[asyncio.Task[object] | None] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self) -> asyncio.Task[object] | None:
        """The current task begins to iterate; pass what this returns to ``leave``."""
        task = asyncio.current_task()
        self._loops.append(task)
        self.key.enter()
        return task

    def leave(self, task: asyncio.Task[object] | None) -> None:
        """A task has ended its iteration."""
        self._loops.remove(task)
        self.key.leave()
        self._on_left()

    def track(self, task: asyncio.Task[None]) -> Self:
        """Register a task of natsproto that calls a handler, until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return self

    @property
    def is_busy(self) -> bool:
        """True while messages are handled. A loop that outlived its task does not count."""
        return bool(self._tasks) or any(task is not None and not task.done() for task in self._loops)

    async def join(self, *, from_inside: bool = False) -> None:
        """See Reader."""
        while self.is_busy and not (from_inside and self.key.inner_waiters):
            await self._notifier.wait()

    def wake(self) -> None:
        """Let those who join look again."""
        self._notifier.wake()

    def _cancel_tasks(self) -> list[asyncio.Task[None]]:
        """Cancel the tasks, except the caller, and return them, without those cancelled before."""
        me = asyncio.current_task()
        others = [task for task in self._tasks if task is not me and not task.cancelling()]
        for task in others:
            task.cancel()
        return others

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_left()

    def _on_left(self) -> None:
        self._notifier.wake()


class ActiveReaders:
    """Every ReaderTasks of a client that has tasks."""

    def __init__(self) -> None:
        self.open: dict[ReaderTasks, None] = {}
        """In the order in which their first task began."""
        self.measured: MeasuredReaders = MeasuredReaders()
        """The readers of consumers, and members of groups, whose state is reported."""

    def add(self, tasks: ReaderTasks) -> None:
        """Register ``tasks`` when the first one begins."""
        self.open[tasks] = None

    def remove(self, tasks: ReaderTasks) -> None:
        """Unregister ``tasks`` after the last one."""
        del self.open[tasks]

    async def end(self) -> list[ReaderTasks]:
        """End all readers; return those that still read."""
        readers = list(self.open)
        for tasks in readers:
            tasks.holder._end()
        await give_turns(readers)
        return readers

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel the handlers that run, except the caller, and return their tasks.

        The waiting messages return to the server.
        """
        return [handler for tasks in list(self.open) for handler in tasks.cut()]


class ReaderTasks(LoopsAndTasks):
    """The tasks that read from one holder: running loops of the application, and handlers in tasks of their own."""

    __slots__ = ("_readers", "holder")

    def __init__(self, readers: ActiveReaders, holder: MessageHolder) -> None:
        super().__init__(Notifier())
        self.holder = holder
        self._readers = readers

    def enter(self) -> asyncio.Task[object] | None:
        """See LoopsAndTasks."""
        self._readers.add(self)
        return super().enter()

    def track(self, task: asyncio.Task[None]) -> Self:
        """See LoopsAndTasks."""
        self._readers.add(self)
        return super().track(task)

    def track_supervisor(self, task: asyncio.Task[None]) -> None:
        """Register a task that waits for handlers of others: a caller inside of one of these does not wait for it."""
        self.track(task)
        self.key.inner_waiters += 1

    @property
    def what(self) -> str:
        """Its name in errors."""
        return self.holder.what

    @property
    def unhandled(self) -> int:
        """The messages that wait or are being handled."""
        loops = {task for task in self._loops if task is not None and not task.done()}
        return len(loops | self._tasks) + self.holder.buffer.waiting

    def cut(self) -> list[asyncio.Task[None]]:
        """Return what waits to the server, and cancel the handlers, except the caller. Return their tasks, without
        those cancelled before.
        """
        if not self.is_busy:
            return []
        cancelled = self._cancel_tasks()
        self.holder._return_waiting()
        return cancelled

    def _on_left(self) -> None:
        if not self._loops and not self._tasks:
            self._readers.remove(self)
        super()._on_left()
