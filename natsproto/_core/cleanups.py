"""Cleanups: tasks of higher layers that undo something on the server, and for which ``close`` waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

IN_CLEANUP: ContextVar[bool] = ContextVar("natsproto cleanup", default=False)
"""True in cleanups, and in the tasks that they start."""


class Cleanups:
    """The cleanups of one client."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that has to end before the client closes, also when its caller is cancelled. It may publish
        while the client closes.
        """
        context = copy_context()
        context.run(IN_CLEANUP.set, True)
        task = asyncio.get_running_loop().create_task(work, name="natsproto cleanup", context=context)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def wait(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the end of all cleanups, then cancel the others."""
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            while self.running and (left := deadline - asyncio.get_running_loop().time()) > 0:  # one may start another
                await asyncio.wait(self.running, timeout=left)
        finally:
            for cleanup in self.running:
                cleanup.cancel()
