"""Callbacks of nats-py whose calls a test can wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(reached: Callable[[], bool]) -> None:
    """Wait for a state of which nobody is told."""
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class CallbackLog:
    """Callbacks that write down what they are told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.errors: list[BaseException] = []
        self._changed = asyncio.Event()

    def callbacks(self) -> dict[str, Any]:
        names = ("disconnected_cb", "closed_cb", "discovered_server_cb", "reconnected_cb", "lame_duck_mode_cb")
        return {"error_cb": self.error, **{name: self._callback(name) for name in names}}

    def _callback(self, name: str) -> Any:
        async def callback() -> None:
            self.names.append(name)
            self._changed.set()

        return callback

    async def error(self, error: Exception) -> None:
        self.errors.append(error)
        self._changed.set()

    async def until(self, name: str) -> None:
        while name not in self.names:
            await self.changed()

    async def changed(self) -> None:
        """Wait for the next call."""
        self._changed.clear()
        await self._changed.wait()
