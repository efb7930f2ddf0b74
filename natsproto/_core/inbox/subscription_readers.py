"""The readers of a subscription: its callback, running loops, and tasks of higher layers.

A Reader of ``ending``: whoever drains waits until it is not busy.

1. The callback, a loop in a task that runs, and a tracked task make it busy. A message without a reader does not.
2. A loop that outlived its task, as a generator that is kept does, is not waited for.
3. After ``cut`` nothing would run on: what waits is dropped, the callback and the tracked tasks are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from natsproto._core.inbox.handler import HandlerRunner
from natsproto._core.inbox.inbox_limits import InboxLimits
from natsproto._core.inbox.readers import LoopsAndTasks
from natsproto._core.notifier import Notifier


class SubscriptionReaders(LoopsAndTasks):
    """The readers of one subscription. It does not know the subscription, so there is no reference cycle."""

    __slots__ = ("_callback", "_limits", "on_cut", "what")

    def __init__(
        self, subject: str, callback: HandlerRunner[Any] | None, limits: InboxLimits[Any], notifier: Notifier
    ) -> None:
        super().__init__(notifier)
        self.what: str = repr(subject)
        """Its name in errors."""
        self.on_cut: Callable[[], None] | None = None
        """Called before what waits is dropped, for a layer that answers it."""
        self._callback, self._limits = callback, limits
        if callback is not None:
            self.key.mark(callback.context)

    def __bool__(self) -> bool:
        """True if something reads the subscription, whether or not there are messages."""
        return self._callback is not None or bool(self._loops or self._tasks)

    @property
    def is_callback_busy(self) -> bool:
        """True while the callback handles messages."""
        return self._callback is not None and self._callback.is_busy

    @property
    def is_busy(self) -> bool:
        """True while messages are handled. A tracked task counts until its callbacks have run."""
        return self.is_callback_busy or super().is_busy

    @property
    def unhandled(self) -> int:
        """The messages that wait or are being handled."""
        return self._limits.waiting + max(1, len(self._tasks))

    async def join_callback(self) -> None:
        """Wait until the callback has handled everything."""
        while self.is_callback_busy:
            await self._notifier.wait()

    def cancel_callback(self) -> asyncio.Task[None] | None:
        """Cancel the running callback, unless it is the caller or was cancelled before, and return its task."""
        task = None if self._callback is None else self._callback.cancel()
        if task is not None:
            task.add_done_callback(self._on_callback_ended)  # one that has not begun wakes nobody
        return task

    def _on_callback_ended(self, _: asyncio.Task[None]) -> None:
        self._notifier.wake()

    def cut(self) -> list[asyncio.Task[None]]:
        """Drop what waits, cancel the callback and the tracked tasks, except the caller, and return their tasks."""
        if self.on_cut is not None:
            self.on_cut()
        tasks = self._cancel_tasks()
        if (callback := self.cancel_callback()) is not None:
            tasks.append(callback)
        if self:
            self._limits.discard_all()
        return tasks
