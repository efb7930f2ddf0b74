"""The callback of a subscription: called with every message, in order, one call after the other.

Owns the task that runs it and its context. A ``def`` callback is called synchronously from the read callback; an
``async def``, a slow ``def`` and the awaitable that a ``def`` returns run in a task, which ends with the last message:
an idle subscription has no task.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from natsproto._core.time_slice import TimeSlice
from natsproto._handlers import HandlerResult, awaitable_of, check_result, is_async_callable
from natsproto.protocol.frames import Message

M = TypeVar("M", bound=Message)

_AT_ONCE: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

Handler: TypeAlias = Callable[[Message], HandlerResult]
"""The handler of a subscription: ``def`` or ``async def``, called with one message after the other."""


class HandlerCallbacks(Protocol):
    """Callbacks that a handler needs from the registry."""

    def on_handler_error(self, where: str, error: BaseException) -> None:
        """A callback raised."""
        ...

    @property
    def time_slice(self) -> TimeSlice:
        """The time that all readers and handlers of the loop share."""
        ...

    @property
    def is_running(self) -> bool:
        """True while the client is open and its own task is not being cancelled."""
        ...


class HandlerRunner(Generic[M]):
    """Calls ``handler`` with the messages of ``inbox``."""

    def __init__(self, handler: Handler, inbox: deque[M], subject: str, registry: HandlerCallbacks) -> None:
        self.context = contextvars.copy_context()
        """The context of the subscriber, in which the callback runs."""
        self.is_async = is_async_callable(handler)
        """True if every call must be awaited."""
        self.task: asyncio.Task[None] | None = None
        """Handles messages now; None while there are none."""
        self._handler, self._inbox, self._registry = handler, inbox, registry
        self._time_slice = registry.time_slice
        self._where, self._task_name = f"callback of {subject!r}", f"natsproto handler of {subject}"
        self._loop = asyncio.get_running_loop()
        self._starts_at_once = bool(_AT_ONCE) and self._loop.get_task_factory() is None
        self._is_cancelled = False  # because the client closes

    @property
    def is_busy(self) -> bool:
        """True while a task handles messages. One that was cancelled before it began has not reset ``task``."""
        return self.task is not None and not self.task.done()

    def start(
        self, on_idle: Callable[[], None], begun: Awaitable[object] | None = None, *, at_once: bool = False
    ) -> None:
        """Start a task that awaits ``begun``, handles the waiting messages and calls ``on_idle``.

        With ``at_once`` its first step runs before this returns, where Python can do that. Only the task keeps
        ``on_idle``, so the subscription that it belongs to is not in a reference cycle.
        """
        loop, name, run = self._loop, self._task_name, self._run(on_idle, begun)
        if at_once and self._starts_at_once:
            try:
                task = asyncio.Task(run, loop=loop, name=name, context=self.context, **_AT_ONCE)
            except (KeyboardInterrupt, SystemExit) as exc:
                loop.create_task(_raise(exc))  # the end of the program: not raised during a read
                return
        else:
            task = loop.create_task(run, name=name, context=self.context)
        # One that has begun may be done already.
        self.task = None if task.done() else task

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel the running callback once, unless it is the caller, and return its task."""
        task = self.task
        if task is None or self._is_cancelled or task is asyncio.current_task():
            return None
        self._is_cancelled = True
        task.cancel()
        return task

    def call(self) -> Awaitable[object] | None:
        """Call a ``def`` callback with the waiting messages until the time slice is over.

        Returns the first awaitable that the callback returns, which must be awaited before the callback is called
        again.
        """
        inbox, handler, time_slice = self._inbox, self._handler, self._time_slice
        while inbox and monotonic() < time_slice.ends_at:
            try:
                if (value := handler(inbox.popleft())) is not None and (awaitable := awaitable_of(value)) is not None:
                    return awaitable
            except (KeyboardInterrupt, SystemExit) as exc:
                return _raise(exc)  # the end of the program: raise it in a task
            except BaseException as exc:
                self._registry.on_handler_error(self._where, exc)
        return None

    async def _run(self, on_idle: Callable[[], None], begun: Awaitable[object] | None) -> None:
        """Call the callback with every waiting message in order, then end.

        The awaitable ``begun``, returned by a ``def`` callback during the read, is awaited first.
        """
        if self.task is None:
            self.task = asyncio.current_task()  # it has begun at once
        inbox, handler, time_slice, clock = self._inbox, self._handler, self._time_slice, monotonic
        is_async = self.is_async
        try:
            if begun is not None:
                await self._await_result(begun)
            while inbox:
                if clock() >= time_slice.ends_at:
                    try:
                        await time_slice.next_turn()
                    except asyncio.CancelledError:
                        if not self._continue_after_cancel():
                            raise
                elif is_async:
                    try:
                        if (value := await handler(inbox.popleft())) is not None:  # type: ignore[misc]  # is_async
                            check_result(value)
                    except BaseException as exc:
                        if not self._report_error(exc):
                            raise
                elif (awaitable := self.call()) is not None:
                    await self._await_result(awaitable)
        finally:
            self.task = None
            on_idle()

    async def _await_result(self, result: Awaitable[object]) -> None:
        """Await the result of a ``def`` callback."""
        try:
            check_result(await result)
        except BaseException as exc:
            if not self._report_error(exc):
                raise

    def _report_error(self, exc: BaseException) -> bool:
        """Report an error of the callback; False if the error ends this task or the program."""
        if isinstance(exc, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            return False
        if isinstance(exc, asyncio.CancelledError) and not self._continue_after_cancel():
            return False
        self._registry.on_handler_error(self._where, exc)
        return True

    def _continue_after_cancel(self) -> bool:
        """True if only this task was cancelled, as a callback can do to itself; False at the end of the program."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() and (self._is_cancelled or not self._registry.is_running):
            return False
        while task.cancelling():
            task.uncancel()
        return True


async def _raise(exc: BaseException) -> None:
    raise exc
