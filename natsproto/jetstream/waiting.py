"""How those who publish wait: for a connection, and for one another."""

from __future__ import annotations

import asyncio

from natsproto.core.connection import Connection
from natsproto.core.engine import State
from natsproto.core.events import Closed, Connected, Event, Reconnected


async def connected(connection: Connection, deadline: float) -> None:
    """Until there is a connection, the client is closed, or the deadline (loop time) has passed."""
    loop = asyncio.get_running_loop()
    change: asyncio.Future[None] = loop.create_future()

    def hear(event: Event) -> None:
        if isinstance(event, (Connected, Reconnected, Closed)):
            release(change)

    silence = connection.listen(hear)
    timer = loop.call_at(deadline, release, change)
    try:
        if connection.state is State.RECONNECTING:
            await change
    finally:
        timer.cancel()
        silence()


def release(waiter: asyncio.Future[None]) -> None:
    """Lets the coroutine that waits go on; harmless when it does already."""
    if not waiter.done():
        waiter.set_result(None)


class Queue:
    """Coroutines that wait for the same thing, in order."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    async def wait(self) -> None:
        """Until the next wake(). Cancelling takes the coroutine out of the queue."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """All of them go on soon, each to see whether what it waits for is there."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)
