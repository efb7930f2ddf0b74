"""Asking the services of an account (ADR-32): who is there, what are they, what have they done.

Owns the questions. Who answers is not known beforehand, so an answer that cannot be read is skipped and logged.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from time import perf_counter  # uvloop's clock knows only milliseconds
from typing import TypeVar

from natsproto._core.connection import Connection
from natsproto.errors import ConfigError, NoResponders
from natsproto.protocol.frames import Message
from natsproto.service._report import PREFIX, error_of

log = logging.getLogger("natsproto")

MAX_WAIT = 2.0
"""Seconds in which services may answer."""

STALL = 0.5
"""Seconds of silence behind an answer after which no other is expected."""

T = TypeVar("T")


def control_subject(verb: str, name: str | None = None, id: str | None = None, prefix: str = PREFIX) -> str:
    """Where all services are asked, those of a name, or one instance."""
    return ".".join(part for part in (prefix, verb, name, id) if part is not None)


def ask(
    connection: Connection,
    verb: str,
    decode: Callable[[bytes, float], T],
    name: str | None,
    id: str | None,
    *,
    max_wait: float | timedelta,
    stall: float | timedelta | None,
    prefix: str,
) -> AsyncGenerator[T]:
    """Yields what ``decode`` makes of every answer and the seconds it took; nothing when nobody is there."""
    if id is not None and name is None:
        raise ConfigError("id", id, "give the name of the service too: an instance is asked by both")
    answers = connection.request_many(
        control_subject(verb, name, id, prefix), max_wait=max_wait, stall=stall, max_msgs=None if id is None else 1
    )
    return _read(answers, verb, decode)


async def _read(answers: AsyncGenerator[Message], verb: str, decode: Callable[[bytes, float], T]) -> AsyncGenerator[T]:
    asked = perf_counter()
    async with aclosing(answers):
        try:
            async for answer in answers:
                error = error_of(answer)
                try:
                    if error is not None:
                        raise ValueError(str(error))
                    said = decode(answer.data, perf_counter() - asked)
                except (ValueError, RecursionError) as exc:
                    log.warning("an answer to %s is skipped: %s", verb, exc)
                    continue
                yield said
        except NoResponders:
            return
