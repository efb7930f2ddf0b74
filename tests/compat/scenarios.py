"""Scenarios that both packages run, and what each returns.

Owns the names of the two packages and the order in which they run. A scenario is a coroutine function of the package;
its result is compared by whoever asks for both.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import natsproto

OURS, THEIRS = "natsproto.compat.nats", "nats"

Scenario = Callable[[Any], Awaitable[Any]]


class Results(NamedTuple):
    """What a scenario returned with nats-py, and with natsproto.compat.nats."""

    theirs: Any
    ours: Any


def package_of(name: str) -> Any:
    """One of the packages, with its services."""
    importlib.import_module(f"{name}.micro")
    return importlib.import_module(name)


async def with_both(scenario: Scenario) -> Results:
    """Run the scenario with nats-py, then with natsproto.compat.nats."""
    return Results(await scenario(package_of(THEIRS)), await scenario(package_of(OURS)))


async def delete_streams(url: str, **login: Any) -> None:
    """Delete what an earlier scenario has left."""
    async with natsproto.connect(url, **login) as nc:
        js = nc.jetstream()
        for name in [name async for name in js.stream_names()]:
            await js.delete_stream(name)


async def raised(call: Awaitable[Any]) -> str:
    """The name of the class of what it raises, or "" """
    try:
        await call
    except Exception as exc:
        return type(exc).__name__
    return ""


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
