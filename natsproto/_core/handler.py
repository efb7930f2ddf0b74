"""The callback of a subscription: called with every message, in order, one call after the other.

Owns the task that runs it and its context. A ``def`` callback is called synchronously from the read callback; an
``async def``, a slow ``def`` and the awaitable that a ``def`` returns run in a task, which ends with the last message:
an idle subscription has no task.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from types import CoroutineType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from natsproto._core.timed_steps import SLOW_STEP_S, TimedSteps
from natsproto._handlers import HandlerResult, awaitable_of, check_result, is_async_callable
from natsproto.protocol.frames import Message

log = logging.getLogger("natsproto")

M = TypeVar("M", bound=Message)

MAX_MESSAGES_PER_TURN = 512
"""Messages a callback handles before other tasks get a turn, even if it never suspends."""

CALLBACK_TIME_SLICE_S = 0.005
"""Seconds in which ``def`` callbacks handle messages before other tasks get a turn."""

_AT_ONCE: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

Handler: TypeAlias = Callable[[Message], HandlerResult]
"""The handler of a subscription: ``def`` or ``async def``, called with one message after the other."""


class HandlerCallbacks(Protocol):
    """Callbacks that a handler needs from the registry."""

    def on_handler_error(self, where: str, error: BaseException) -> None:
        """A callback raised."""
        ...

    def on_loop_blocked(self, where: str, seconds: float) -> None:
        """A callback held the event loop for long."""
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
        self._where, self._task_name = f"callback of {subject!r}", f"natsproto handler of {subject}"
        self._loop = asyncio.get_running_loop()
        self._starts_at_once = bool(_AT_ONCE) and self._loop.get_task_factory() is None
        self._is_cancelled = False  # because the client closes

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
        if task is None or task is asyncio.current_task():
            return None
        if not self._is_cancelled:
            self._is_cancelled = True
            task.cancel()
        return task

    def call(self, deadline: float, *, in_task: bool = False) -> Awaitable[object] | None:
        """Call a ``def`` callback with the waiting messages, until the deadline or for MAX_MESSAGES_PER_TURN messages.

        The deadline is a time of time.monotonic; 0: CALLBACK_TIME_SLICE_S from now. Returns the first awaitable that
        the callback returns, which must be awaited before the callback is called again.
        """
        inbox, handler = self._inbox, self._handler
        watched = self._loop.get_debug()
        if not deadline:
            deadline = monotonic() + CALLBACK_TIME_SLICE_S
        for _ in range(MAX_MESSAGES_PER_TURN):
            message = inbox.popleft()
            began = monotonic() if watched else 0.0
            result: Awaitable[object] | None = None
            try:
                if (value := handler(message)) is not None:
                    result = awaitable_of(value)
            except (KeyboardInterrupt, SystemExit) as exc:
                return _raise(exc)  # the end of the program: raise it in a task
            except BaseException as exc:
                self._registry.on_handler_error(self._where, exc)
            if watched and (took := monotonic() - began) > self._loop.slow_callback_duration:
                log.warning("%s kept the event loop for %.3f seconds", self._where, took)
            if (late := monotonic() - deadline) > SLOW_STEP_S and not in_task:
                self._registry.on_loop_blocked(self._where, late)
            if result is not None:
                return result
            if not inbox or late > 0.0:
                break
        return None

    async def _run(self, on_idle: Callable[[], None], begun: Awaitable[object] | None) -> None:
        """Call the callback with every waiting message in order, then end.

        The awaitable ``begun``, returned by a ``def`` callback during the read, is awaited first.
        """
        if self.task is None:
            self.task = asyncio.current_task()  # it has begun at once
        inbox = self._inbox
        try:
            if begun is not None:
                await self._timed(self._await_result(begun))
            elif self.is_async and (rest := self._begin(inbox.popleft())) is not None:
                await self._await_result(rest)
            if inbox:
                await self._timed(self._handle_waiting())
        finally:
            self.task = None
            on_idle()

    def _begin(self, message: M) -> Awaitable[object] | None:
        """Run the first step of an ``async def`` callback: most calls end with it. Returns what is left of the call."""
        began = monotonic()
        try:
            call: Coroutine[Any, Any, object] = self._handler(message)  # type: ignore[assignment]  # is_async
            if type(call) is not CoroutineType:
                return call
            try:
                yielded = call.send(None)
            except StopIteration as end:
                if end.value is not None:
                    check_result(end.value)
                return None
        except BaseException as exc:
            if not self._report_error(exc):
                raise
            return None
        finally:
            if (held := monotonic() - began) > SLOW_STEP_S:
                self._registry.on_loop_blocked(self._where, held)
        return self._timed(call, yielded)

    def _timed(self, coroutine: Coroutine[Any, Any, object], *yielded: object) -> TimedSteps:
        return TimedSteps(coroutine, self._where, self._registry.on_loop_blocked, *yielded)

    async def _handle_waiting(self) -> None:
        """Call the callback with every waiting message in order."""
        inbox, handler = self._inbox, self._handler
        while inbox:
            if self.is_async:
                for _ in range(MAX_MESSAGES_PER_TURN):
                    try:
                        if (value := await handler(inbox.popleft())) is not None:  # type: ignore[misc]  # is_async
                            check_result(value)
                    except BaseException as exc:
                        if not self._report_error(exc):
                            raise
                    if not inbox:
                        break
            elif (awaitable := self.call(0.0, in_task=True)) is not None:
                await self._await_result(awaitable)
            if inbox:
                await asyncio.sleep(0)

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
