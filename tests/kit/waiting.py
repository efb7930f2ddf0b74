"""Waits for a state that nobody reports: it is looked at again and again.

Owns how often, and how long at most. Where something calls back, wait for that (``tests.kit.watch``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["eventually", "until"]

LOOK_INTERVAL_S = 0.001


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Turns the loop until the condition holds; AssertionError after ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        assert loop.time() < deadline, "the condition never held"
        await asyncio.sleep(LOOK_INTERVAL_S)


async def eventually(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """As ``until``, for what a server or another process does, which may be long on a busy machine."""
    await until(condition, timeout)
