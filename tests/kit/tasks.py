"""Tasks that a call has left: some may end in the background, within a round trip to the server."""

from __future__ import annotations

import asyncio

__all__ = ["end_of_tasks"]

_PATIENCE = 10.0


async def end_of_tasks(expected: set[asyncio.Task[object]]) -> None:
    """Waits until no other tasks than the expected ones are left; fails with their names when there still are some."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    await asyncio.sleep(0)  # tasks that were cancelled end in the next turn
    while left := asyncio.all_tasks() - expected:
        assert asyncio.get_running_loop().time() < deadline, [task.get_name() for task in left]
        await asyncio.wait(left, timeout=_PATIENCE)
