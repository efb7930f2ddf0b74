"""How those who publish wait for a connection."""

from __future__ import annotations

import asyncio

from natsproto.core.connection import Connection
from natsproto.core.engine import State
from natsproto.core.events import Closed, Connected, Event, Reconnected
from natsproto.core.waiting import release


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
