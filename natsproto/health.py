"""A health check of a client, for probes.

It sends a request to a new inbox without a subscriber. The server's "no responders" reply then passes through the same
code as every message; a PONG would only show that the server reads.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.consumer_stats import ConsumerStats, GroupStats
from natsproto._core.engine.engine import State
from natsproto._value import Value

__all__ = [
    "ConsumerStats",
    "GroupStats",
    "Health",
]

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream


class Health(Value):
    """The result of a health check. Its truth value is ``ok``.

    ``ok`` is for readiness probes: a round trip to the server succeeded, and the requested stream and consumer exist.
    ``alive`` is for liveness probes: it is true until the client is closed, also while it connects or the server does
    not respond, because a restarted process could do no better. ``problem`` describes the failure. ``rtt`` is the time
    of the round trip in seconds, 0 without one. ``consumers`` has the lag and other figures of the consumers that the
    client reads now, from their deliveries; ``groups`` the partitions of its members of groups that come and go by
    themselves.
    """

    ok: bool
    alive: bool
    state: State
    """The state at the time of the check."""
    server: str
    """The URL of the connected server; "" without one."""
    rtt: float
    problem: str
    consumers: tuple[ConsumerStats, ...] = ()
    groups: tuple[GroupStats, ...] = ()

    def __bool__(self) -> bool:
        return self.ok


async def check(
    connection: Connection, jetstream: JetStream | None, stream: str | None, consumer: str | None, timeout: float
) -> Health:
    """Run the check of ``Client.health``."""
    if consumer is not None and stream is None:
        raise errors.ConfigError("consumer", consumer, "needs the name of its stream too")
    problem, rtt = "", 0.0
    if not connection.is_connected:
        problem = f"not connected: the client is {connection.state}"
    else:
        try:
            async with asyncio.timeout(timeout):
                began = perf_counter()  # uvloop's clock has a resolution of a millisecond
                await _round_trip(connection, timeout)
                rtt = perf_counter() - began
                if jetstream is not None:
                    await _look_up(jetstream, stream, consumer)
        except TimeoutError as exc:
            problem = str(exc) if isinstance(exc, errors.NatsError) else f"no response within {timeout:g} s"
        except errors.NatsError as exc:
            problem = str(exc)
    return Health(
        ok=not problem,
        alive=connection.state is not State.CLOSED,
        state=connection.state,
        server=connection.connected_url,
        rtt=rtt,
        problem=problem,
        consumers=tuple(connection._readers.measured.stats()),
        groups=tuple(connection._readers.measured.groups()),
    )


async def _round_trip(connection: Connection, timeout: float) -> None:
    try:
        await connection.request(connection.new_inbox(), timeout=timeout)
    except errors.NoResponders:
        return  # the expected reply
    except errors.PermissionDenied:
        await connection.flush(timeout)  # the account may not publish to inboxes; a PONG has to suffice


async def _look_up(jetstream: JetStream, stream: str | None, consumer: str | None) -> None:
    if stream is None:
        await jetstream.account_info()
        return
    handle = await jetstream.stream(stream)
    if consumer is not None:
        await handle.consumer_info(consumer)
