"""Whether a client works from end to end: an answer for probes.

Owns the question and what its answer means. A PING would show that somebody reads; a message to an inbox of one's
own that nobody listens on comes back through everything a message goes through, as "no responders".
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from natsproto._core.connection import Connection
from natsproto._core.engine import State
from natsproto._value import Value
from natsproto.errors import ConfigError, NatsError, NoResponders, PermissionDenied

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream


class Health(Value):
    """What a check found; true when the client works.

    ``ok`` says that a message went to the server and an answer came back, and that the stream and consumer asked for
    are there: for a readiness probe. ``alive`` is also true while the client is on its way to a server, which a new
    process would do no better: for a liveness probe. ``problem`` says in words what is wrong. ``rtt`` is the time
    of the round trip in seconds, 0 without one.
    """

    ok: bool
    alive: bool
    state: State
    server: str
    rtt: float
    problem: str

    def __bool__(self) -> bool:
        return self.ok


async def check(
    connection: Connection, jetstream: JetStream | None, stream: str | None, consumer: str | None, timeout: float
) -> Health:
    """What Client.health promises."""
    if consumer is not None and stream is None:
        raise ConfigError("consumer", consumer, "give the name of its stream too")
    problem, rtt = "", 0.0
    if not connection.is_connected:
        problem = f"not connected: the client is {connection.state}"
    else:
        try:
            async with asyncio.timeout(timeout):
                began = perf_counter()  # not the loop's clock, whose steps are a millisecond on uvloop
                await _round_trip(connection, timeout)
                rtt = perf_counter() - began
                if jetstream is not None:
                    await _look_up(jetstream, stream, consumer)
        except TimeoutError as exc:
            problem = str(exc) if isinstance(exc, NatsError) else f"no answer within {timeout:g} s"
        except NatsError as exc:
            problem = str(exc)
    on_its_way = connection.state in (State.CONNECTING, State.RECONNECTING, State.DRAINING)
    return Health(
        ok=not problem,
        alive=not problem or rtt > 0 or on_its_way,
        state=connection.state,
        server=connection.connected_url,
        rtt=rtt,
        problem=problem,
    )


async def _round_trip(connection: Connection, timeout: float) -> None:
    try:
        await connection.request(connection.new_inbox(), timeout=timeout)
    except NoResponders:
        return  # the answer
    except PermissionDenied:
        await connection.flush(timeout)  # an account that may not publish to inboxes; the refusal was an answer too


async def _look_up(jetstream: JetStream, stream: str | None, consumer: str | None) -> None:
    if stream is None:
        await jetstream.account_info()
        return
    found = await jetstream.stream(stream)
    if consumer is not None:
        await found.consumer_info(consumer)
