"""Spans of messaging operations.

Owns the attributes of a span (the semantic conventions for messaging) and the trace context in a message's headers.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from time import perf_counter
from typing import Self

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer

from natsproto._core.instrumentation import Sending
from natsproto.jetstream._values.info import PubAck
from natsproto.otel._instruments import Enrich, Instruments, Operation
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike

log = logging.getLogger("natsproto")

MAX_LINKS = 128
"""The maximum number of links of a batch's span to its messages: OpenTelemetry's default limit."""


class OpenSpan(Sending):
    """An operation in progress: its span and its measurements."""

    __slots__ = ("_began", "_consumed", "_ended", "_instruments", "_measured", "_sent", "_type", "span")

    def __init__(
        self, span: Span, type: str, measured: dict[str, str | int], instruments: Instruments, sent: int, consumed: int
    ) -> None:
        super().__init__()
        self.span = span
        self._type, self._measured, self._instruments = type, measured, instruments
        self._sent, self._consumed = sent, consumed
        self._ended = False
        self._began = perf_counter()

    def end(self, outcome: object = None, *, seconds: float | None = None) -> None:
        """End the span. ``seconds`` is the duration if it began before the span."""
        if self._ended:
            return
        self._ended = True
        if isinstance(outcome, (Exception, CancelledError)):  # one that was given up has no result
            self._measured["error.type"] = name = f"{outcome.__class__.__module__}.{outcome.__class__.__qualname__}"
            self.span.set_attribute("error.type", name)
            self.span.record_exception(outcome)
            self.span.set_status(StatusCode.ERROR, f"{outcome.__class__.__name__}: {outcome}")
        elif isinstance(outcome, PubAck):  # of the message, or of the last message of a batch
            self.span.set_attributes({"nats.stream": outcome.stream, "messaging.message.id": str(outcome.seq)})
        self.span.end()
        duration = perf_counter() - self._began if seconds is None else seconds
        self._instruments.record(self._type, self._measured, duration, self._sent, self._consumed)

    def with_headers(self, headers: HeadersLike | None) -> Self:
        """Set the headers to send: these with the context of this span. InvalidHeader."""
        try:
            self.headers = inject_trace(headers, trace.set_span_in_context(self.span))
        except Exception as exc:
            self.end(exc)
            raise
        return self

    @contextmanager
    def active(self) -> Iterator[Span]:
        """Make the span the current one for a block, and end it with the block's exception, if any."""
        with self, trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
            yield self.span


class SpanFactory:
    """Starts spans with one tracer and records measurements with one meter."""

    def __init__(
        self,
        tracer: Tracer,
        instruments: Instruments,
        template: Callable[[str], str | None],
        enrich: Enrich | None,
    ) -> None:
        self._tracer, self._instruments, self._template, self._enrich = tracer, instruments, template, enrich

    def start(
        self,
        operation: str,
        kind: SpanKind,
        destination: str | None,
        size: int | None = None,
        *,
        server: Mapping[str, str | int] | None = None,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        is_stream: bool = False,
        filter: str | None = None,
        group: str | None = None,
        messages: Sequence[Message] = (),
        sent: int = 0,
        consumed: int = 0,
        start_time: int | None = None,
        details: Mapping[str, str | int] | None = None,
    ) -> OpenSpan:
        """Start the span of an operation. The caller ends it.

        ``destination`` is None for messages to several subjects. Span names and metrics contain only values of low
        cardinality: a stream, the ``filter`` of a subscription, or a template. ``server`` has the attributes of the
        connection, ``details`` those of the span only; ``sent`` and ``consumed`` are the numbers of messages to count.
        """
        type = "send" if operation in ("send", "request", "publish") else operation
        measured: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": type,
        }
        span_only: dict[str, str | int | bool] = {**(details or {})}
        low_cardinality_name = filter
        if destination is not None:
            span_only["messaging.destination.name"] = destination
            if is_stream:
                measured["messaging.destination.name"] = low_cardinality_name = destination
            elif "_INBOX." in destination:
                span_only["messaging.destination.temporary"] = True
                low_cardinality_name = low_cardinality_name or "(temporary)"
            elif low_cardinality_name is None:
                low_cardinality_name = self._template(destination)
        if low_cardinality_name is not None and low_cardinality_name != "(temporary)" and not is_stream:
            measured["messaging.destination.template"] = low_cardinality_name
        if group:
            measured["messaging.consumer.group.name"] = group
        if size is not None:
            span_only["messaging.message.body.size"] = size
        measured |= server or {}
        name = operation if low_cardinality_name is None else f"{operation} {low_cardinality_name}"
        span = self._tracer.start_span(
            name, parent, kind=kind, attributes={**measured, **span_only}, links=links, start_time=start_time
        )
        if self._enrich is not None:
            try:
                self._enrich(span, Operation(operation, type, destination, messages))
            except Exception as exc:
                log.error("enrich failed: %r", exc, exc_info=exc)
        return OpenSpan(span, type, measured, self._instruments, sent, consumed)


def inject_trace(given: HeadersLike | None, context: Context | None = None) -> HeadersLike | None:
    """Return the headers with the trace context (default: the current one), unless they have one already."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if not carrier:
        return given
    pairs = [] if given is None else list(Headers(given).pairs())
    known = {name for name, _ in pairs}
    return [*pairs, *((name, value) for name, value in carrier.items() if name not in known)]


def context_of(headers: HeadersLike) -> SpanContext:
    """Return the trace context in headers; an invalid one when there is none."""
    return _extract(tuple(Headers(headers).pairs()), propagate.get_global_textmap())


@lru_cache(maxsize=2 * MAX_LINKS)
def _extract(pairs: tuple[tuple[str, str], ...], propagator: TextMapPropagator) -> SpanContext:
    """Extract a trace context: once for the receive span and the settle span of a message."""
    return trace.get_current_span(propagator.extract(Headers(pairs), Context())).get_span_context()


def links_to(messages: Sequence[Message]) -> list[Link]:
    """Return links to the spans in which these messages were published."""
    contexts = (context_of(message.headers) for message in messages[:MAX_LINKS] if message.has_headers)
    return [Link(context) for context in contexts if context.is_valid]


def size_of(payload: Payload) -> int | None:
    """Return the size of a payload in bytes, or None if it is not bytes already."""
    return len(payload) if isinstance(payload, (bytes, bytearray)) else None
