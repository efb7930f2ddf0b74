"""OpenTelemetry (the extra ``natsproto[otel]``): spans, context propagation and metrics, for clients that ask for it.

A client made by ``natsproto.connect`` has none of this and pays nothing. Spans and attributes follow the semantic
conventions for messaging. Nothing is done to the global state of OpenTelemetry; without a configured provider its API
does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar, Unpack

from natsproto.middleware import Call
from natsproto.protocol.headers import Headers, HeadersLike

try:
    from natsproto.otel._measures import Enrich, Operation, Templates
    from natsproto.otel._spans import injected
    from natsproto.otel._telemetry import Telemetry
except ModuleNotFoundError as _missing:
    raise ImportError("natsproto.otel needs the package opentelemetry-api: pip install natsproto[otel]") from _missing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from natsproto._client import Connecting
    from natsproto._options import OptionArgs, Options
    from natsproto.protocol.frames import Message

__all__ = ["Enrich", "Operation", "Telemetry", "Templates", "connect", "headers", "process", "processing", "tracing"]

M = TypeVar("M", bound="Message")


def connect(
    servers: str | Sequence[str] | Options | None = None,
    /,
    *,
    context: str | None = None,
    **options: Unpack[OptionArgs],
) -> Connecting:
    """``natsproto.connect`` for a client that makes spans and metrics, with the global providers."""
    return _default().connect(servers, context=context, **options)


def processing(message: Message, *, consumer: str | None = None) -> AbstractContextManager[Span]:
    """A block in which a message is processed: its span belongs to the trace of whoever published the message.

    ``consumer`` names the queue group or consumer.
    """
    return _default().processing(message, consumer=consumer)


async def tracing(message: Message, call: Call) -> None:
    """Middleware: each call of a handler is a block in ``processing``."""
    await _default().tracing(message, call)


def process(handler: Callable[[M], Awaitable[object] | object]) -> Callable[[M], Awaitable[None]]:
    """Decorates a handler (def or async def) of one message: the middleware ``tracing`` alone around it."""
    return _default().process(handler)


def headers(given: HeadersLike | None = None) -> Headers:
    """These headers with the current trace in them, for what makes no spans."""
    return Headers(injected(given) or ())


@functools.lru_cache(maxsize=1)
def _default() -> Telemetry:
    return Telemetry()
