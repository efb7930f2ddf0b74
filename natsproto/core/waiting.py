"""How coroutines wait for the same thing."""

from __future__ import annotations

import asyncio


def release(waiter: asyncio.Future[None]) -> None:
    """Lets the coroutine that waits go on; harmless when it does already."""
    if not waiter.done():
        waiter.set_result(None)


class Waiters:
    """Coroutines that wait for the same thing, in order."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    async def wait(self, deadline: float | None = None) -> None:
        """Until the next wake(), or the deadline (loop time) is reached. Cancelling takes the coroutine out."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline is None else loop.call_at(deadline, release, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """All of them go on soon, each to see whether what it waits for is there."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)
