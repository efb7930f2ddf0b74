"""Tasks that a call has left: some may end in the background, within a round trip to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

__all__ = ["cancel_after", "end_of_tasks"]

_PATIENCE = 10.0


async def end_of_tasks(expected: set[asyncio.Task[object]]) -> None:
    """Waits until no other tasks than the expected ones are left; fails with their names when there still are some."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    await asyncio.sleep(0)  # tasks that were cancelled end in the next turn
    while left := asyncio.all_tasks() - expected:
        assert asyncio.get_running_loop().time() < deadline, [task.get_name() for task in left]
        await asyncio.wait(left, timeout=_PATIENCE)


async def cancel_after(turns: int, begun: asyncio.Event, work: Coroutine[object, object, object]) -> None:
    """Run the work in a task, cancel it so many turns of the event loop after ``begun``, and wait for its end."""
    task = asyncio.create_task(work)
    await begun.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
