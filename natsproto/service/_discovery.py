"""Discovery of services (ADR-32): PING, INFO and STATS requests to the services of an account.

Any client may respond to such a request, so responses that cannot be decoded are skipped, and counted in the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from time import perf_counter  # uvloop's clock knows only milliseconds
from typing import TypeVar

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto.errors._base import escaped
from natsproto.protocol.frames import Message
from natsproto.service._responses import PREFIX, error_of

log = logging.getLogger("natsproto")


T = TypeVar("T")


def control_subject(verb: str, name: str | None = None, id: str | None = None, prefix: str = PREFIX) -> str:
    """Return the control subject of all services, of those with a name, or of one instance."""
    return ".".join(part for part in (prefix, verb, name, id) if part is not None)


def request_services(
    connection: Connection,
    verb: str,
    decode: Callable[[bytes, float], T],
    name: str | None,
    id: str | None,
    *,
    timeout: float | timedelta | None,
    stall: float | timedelta | None,
    prefix: str,
) -> AsyncGenerator[T]:
    """Yield the decoded responses; nothing when there are no services. ``decode`` takes the payload and the seconds
    that the response took.
    """
    if id is not None and name is None:
        raise errors.ConfigError("id", id, "give the name of the service too: an instance is addressed by both")
    responses = connection.request_many(
        control_subject(verb, name, id, prefix), timeout=timeout, stall=stall, max_messages=None if id is None else 1
    )
    return _decoded(responses, verb, decode)


async def _decoded(
    responses: AsyncGenerator[Message], verb: str, decode: Callable[[bytes, float], T]
) -> AsyncGenerator[T]:
    sent_at = perf_counter()
    skipped, first = 0, ""
    async with aclosing(responses):
        try:
            async for response in responses:
                error = error_of(response)
                try:
                    if error is not None:
                        raise ValueError(str(error))
                    value = decode(response.data, perf_counter() - sent_at)
                except (ValueError, RecursionError) as exc:
                    skipped, first = skipped + 1, first or escaped(str(exc))
                    continue
                yield value
        except errors.NoResponders:
            return
        finally:
            if skipped:  # one line, as anybody may send any number of them
                log.warning("skipped %d responses to %s; the first: %s", skipped, verb, first)
