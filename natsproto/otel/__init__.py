"""OpenTelemetry (the extra ``natsproto[otel]``): spans, context propagation and metrics.

Only clients made by ``natsproto.otel.connect`` are instrumented; others have no overhead. Spans and attributes follow
the semantic conventions for messaging. The global state of OpenTelemetry is not changed; without a configured provider
its API does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from natsproto._handlers import HandlerResult
from natsproto._help.introspection import import_late_types
from natsproto.middleware import Call
from natsproto.protocol.headers import Headers, HeadersLike

try:
    from natsproto.otel._instruments import Enrich, Operation, Templates
    from natsproto.otel._spans import inject_trace
    from natsproto.otel._telemetry import Telemetry
except ModuleNotFoundError as _missing:
    raise ImportError("natsproto.otel needs the package opentelemetry-api: pip install natsproto[otel]") from _missing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from natsproto._client import Connecting
    from natsproto._options.options import OptionArgs, Options
    from natsproto.protocol.frames import Message

__all__ = ["Enrich", "Operation", "Telemetry", "Templates", "connect", "headers", "process", "processing", "tracing"]

T = TypeVar("T")
M = TypeVar("M", bound="Message")


def connect(
    servers: str | Sequence[str] | Options | None = None,
    /,
    *,
    context: str | None = None,
    **options: Unpack[OptionArgs],
) -> Connecting:
    """``natsproto.connect`` for a client that records spans and metrics with the global providers.

    Args:
        servers: One URL, a comma-separated list, a sequence, or Options. None: those of the context or
            ``nats://127.0.0.1:4222``.
        context: The name of a context of the ``nats`` tool, whose settings are the defaults of the other options; None:
            no context.
        **options: The fields of Options, by keyword.
    """
    return _default().connect(servers, context=context, **options)


def processing(message: Message, *, consumer: str | None = None) -> AbstractContextManager[Span]:
    """Return a context manager for processing a message: a span in the trace of the message's publisher.

    ``consumer`` names the queue group or consumer.

    Args:
        message: The message that the block handles.
        consumer: The name of the consumer; None: that of the message, if it has one.
    """
    return _default().processing(message, consumer=consumer)


async def tracing(message: Message, call: Call) -> None:
    """Middleware that runs each call of a handler in ``processing``.

    Args:
        message: What the handler would get.
        call: Calls the next middleware or the handler.
    """
    await _default().tracing(message, call)


@overload
def process(handler: Callable[[M], HandlerResult]) -> Callable[[M], Awaitable[None]]: ...


@overload
def process(handler: Callable[[M], AsyncIterator[T]]) -> Callable[[M], AsyncIterator[T]]: ...


def process(handler: Callable[[M], Any]) -> Callable[[M], Any]:
    """Decorate a handler (def, async def, or the async generator of an endpoint) with the middleware ``tracing``.

    Args:
        handler: The handler to decorate, ``def`` or ``async def``.
    """
    return _default().process(handler)


def headers(given: HeadersLike | None = None) -> Headers:
    """Return the headers with the current trace context, for messages that are sent by other means.

    Args:
        given: Headers to add the trace context to; None: none.
    """
    return Headers(inject_trace(given) or ())


@functools.lru_cache(maxsize=1)
def _default() -> Telemetry:
    return Telemetry()


import_late_types(__name__)
