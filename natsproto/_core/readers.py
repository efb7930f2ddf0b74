"""Tasks of higher layers (JetStream, key/value) that still handle messages; ``drain`` waits for them.

ReaderTasks owns the tasks that read from one MessageHolder, and ActiveReaders the ReaderTasks that have any tasks.
Subscriptions wait for their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from natsproto._core.notifier import Notifier
from natsproto._core.subscription import Subscription

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


class ActiveReaders:
    """Every ReaderTasks of a client that has tasks."""

    def __init__(self) -> None:
        self._open: dict[ReaderTasks, None] = {}
        self._ended: tuple[Subscription, ...] = ()  # the subscriptions whose messages a drain waits for
        self._draining: set[asyncio.Task[object] | None] = set()

    @contextmanager
    def draining(self) -> Iterator[None]:
        """The current task drains the client in this block: no other drain waits for it."""
        task = asyncio.current_task()
        self._draining.add(task)
        for tasks in self._open:
            tasks.wake()
        for ended in self._ended:
            ended._notifier.wake()
        try:
            yield
        finally:
            self._draining.discard(task)

    def is_draining(self, task: asyncio.Task[object] | None) -> bool:
        """True for a task that drains the client."""
        return task in self._draining

    def add(self, tasks: ReaderTasks) -> None:
        """Register ``tasks`` when the first one begins."""
        self._open[tasks] = None

    def remove(self, tasks: ReaderTasks) -> None:
        """Unregister ``tasks`` after the last one."""
        del self._open[tasks]

    async def join(self, subscriptions: Sequence[Subscription], deadline: float) -> list[str]:
        """End all readers, and wait until their messages and those of ended subscriptions were handled, or until the
        deadline. Return what was not handled.
        """
        readers = list(self._open)
        for tasks in readers:
            tasks.holder._end()
        await give_turns(readers)
        self._ended += tuple(subscriptions)
        unhandled = [(await ended._join(deadline, self.is_draining), repr(ended.subject)) for ended in subscriptions]
        unhandled += [(await tasks.join(deadline), tasks.holder.what) for tasks in readers]
        return [f"{number} messages of {what} not handled" for number, what in unhandled if number]

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel the handlers that run, except the caller and those that drain, and return their tasks.

        The waiting messages return to the server.
        """
        return [handler for tasks in list(self._open) for handler in tasks.cancel()]


class ReaderTasks:
    """The tasks that read from one holder: running loops of the application, and handlers in tasks of their own."""

    __slots__ = ("_handlers", "_loops", "_notifier", "_readers", "holder")

    def __init__(self, readers: ActiveReaders, holder: MessageHolder) -> None:
        self.holder = holder
        self._readers = readers
        self._notifier = Notifier()
        self._loops: list[asyncio.Task[object] | None] = []
        self._handlers: set[asyncio.Task[None]] = set()

    def enter(self) -> asyncio.Task[object] | None:
        """The current task begins to iterate; pass what this returns to ``leave``."""
        task = asyncio.current_task()
        self._readers.add(self)
        self._loops.append(task)
        return task

    def leave(self, task: asyncio.Task[object] | None) -> None:
        """A task has ended its iteration."""
        self._loops.remove(task)
        self._on_left()

    def track(self, handler: asyncio.Task[None]) -> None:
        """Register a task of natsproto that calls a handler, until it ends."""
        self._readers.add(self)
        self._handlers.add(handler)
        handler.add_done_callback(self._on_handler_done)

    def wake(self) -> None:
        """Let drains look again which tasks they wait for."""
        self._notifier.wake()

    async def join(self, deadline: float) -> int:
        """Wait until the tasks that do not drain have handled all messages, or until the deadline.

        Return the number of messages that were not handled.
        """
        loop = asyncio.get_running_loop()
        while busy := self._count_busy():
            if loop.time() >= deadline:
                return busy + self.holder.buffer.waiting
            await self._notifier.wait(deadline)
        return 0

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel the handlers, except the caller and those that drain; return those not cancelled before."""
        if not self._handlers:
            return []  # loops belong to the application, and read what is there
        me = asyncio.current_task()
        others = [
            handler
            for handler in self._handlers
            if handler is not me and not handler.cancelling() and not self._readers.is_draining(handler)
        ]
        for handler in others:
            handler.cancel()
        self.holder._return_waiting()
        return others

    def _count_busy(self) -> int:
        """The tasks that still read and do not drain. A loop that outlived its task does not count."""
        loops = {task for task in self._loops if task is not None and not task.done()}
        return sum(not self._readers.is_draining(task) for task in loops | self._handlers)

    def _on_handler_done(self, handler: asyncio.Task[None]) -> None:
        self._handlers.discard(handler)
        self._on_left()

    def _on_left(self) -> None:
        if not self._loops and not self._handlers:
            self._readers.remove(self)
        self._notifier.wake()
