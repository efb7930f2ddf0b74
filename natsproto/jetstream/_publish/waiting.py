"""How those who publish wait for a connection."""

from __future__ import annotations

import asyncio

from natsproto._core.connection import Connection
from natsproto._core.engine import State
from natsproto._core.events import Closed, Connected, Event, Reconnected
from natsproto._core.waiting import release


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
