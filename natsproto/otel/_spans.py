"""Spans of messaging operations.

Owns the attributes of a span (the semantic conventions for messaging), the trace context in a message's headers, and
the rule that a method which calls other methods makes the only span.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Self

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer

from natsproto._client import Client
from natsproto._core.connection import Connection
from natsproto.otel._instruments import Enrich, Instruments, Operation
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike

if TYPE_CHECKING:
    from natsproto.jetstream._info import PubAck

log = logging.getLogger("natsproto")

MAX_LINKS = 128
"""The maximum number of links of a batch's span to its messages: OpenTelemetry's default limit."""

_inside: ContextVar[bool] = ContextVar("natsproto_otel_inside", default=False)
"""True inside a method that has its own span: the methods that it calls make none."""


class OpenSpan:
    """An operation in progress: its span and its measurements. ``end`` it once, or use it as ``active``."""

    def __init__(
        self, span: Span, type: str, measured: dict[str, str | int], instruments: Instruments, sent: int, consumed: int
    ) -> None:
        self.span = span
        self.consumed = consumed
        self._type, self._measured, self._instruments, self._sent = type, measured, instruments, sent
        self._began = perf_counter()

    def end(self, error: BaseException | None = None, *, seconds: float | None = None) -> None:
        """End the span, with an error if there is one. ``seconds`` is the duration if it began before the span."""
        if error is not None and isinstance(error, Exception):
            self._measured["error.type"] = error_type(error)
            record_error(self.span, error)
        self.span.end()
        duration = perf_counter() - self._began if seconds is None else seconds
        self._instruments.record(self._type, self._measured, duration, self._sent, self.consumed)

    @contextmanager
    def active(self) -> Iterator[Self]:
        """Make the span the current one for a block, and end it with the block's exception, if any."""
        try:
            with trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
                yield self
        except BaseException as exc:
            self.end(exc)
            raise
        self.end()


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
        type: str,
        kind: SpanKind,
        destination: str | None,
        size: int | None = None,
        *,
        client: TracedClientBase | None = None,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        is_stream: bool = False,
        filter: str | None = None,
        group: str | None = None,
        messages: Sequence[Message] = (),
        sent: int = 0,
        consumed: int = 0,
        start_time: int | None = None,
    ) -> OpenSpan:
        """Start the span of an operation. The caller ends it.

        ``destination`` is None for messages to several subjects. Span names and metrics contain only values of low
        cardinality: a stream, the ``filter`` of a subscription, or a template. ``sent`` and ``consumed`` are the
        numbers of messages to count.
        """
        measured: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": type,
        }
        span_only: dict[str, str | int | bool] = {}
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
        if client is not None:
            measured |= client.server_attributes()
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

    def create_context(
        self, subject: str, payload: Payload, given: HeadersLike | None
    ) -> tuple[HeadersLike | None, SpanContext]:
        """Return the headers of one message of a batch with a trace context, and that context for links.

        It is the context that the headers have already, or that of a new span.
        """
        if given is not None:
            existing = context_of(given)
            if existing.is_valid:
                return given, existing
        with self.start("create", "create", SpanKind.PRODUCER, subject, size_of(payload)).active() as operation:
            return inject_trace(given), operation.span.get_span_context()


class TracedClientBase(Client):
    """Base class of the traced client. It makes no spans while ``spans`` is None."""

    spans: SpanFactory | None = None

    def spans_for(self, subject: str) -> SpanFactory | None:
        """Return the span factory, or None for the server's own subjects and inside a method that has its own span."""
        if _inside.get() or not isinstance(subject, str) or subject.startswith("$"):
            return None
        return self.spans

    def server_attributes(self) -> dict[str, str | int]:
        """Return the connected server as span attributes."""
        host, _, port = self.connected_url.rpartition("://")[2].rpartition(":")
        return {"server.address": host, "server.port": int(port)} if host and port.isdecimal() else {}


def traced_client(connection: Connection) -> TracedClientBase:
    """Return a connection as the traced client that it is."""
    assert isinstance(connection, TracedClientBase)
    return connection


def record_error(span: Span, error: BaseException) -> None:
    """Record an error in a span and set its status."""
    if span.is_recording():
        span.set_attribute("error.type", error_type(error))
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{error.__class__.__name__}: {error}")


def error_type(error: BaseException) -> str:
    return f"{error.__class__.__module__}.{error.__class__.__qualname__}"


def set_ack_attributes(span: Span, ack: PubAck) -> None:
    """Set the stream and the sequence of the message, or of the last message of a batch."""
    span.set_attributes({"nats.stream": ack.stream, "messaging.message.id": str(ack.seq)})


@contextmanager
def suppress_spans() -> Iterator[None]:
    """Return a context manager: a block in which the client's methods make no spans."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def inject_trace(given: HeadersLike | None) -> HeadersLike | None:
    """Return the headers with the current trace context, unless they have one already."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return given
    pairs = [] if given is None else list(Headers(given).pairs())
    known = {name for name, _ in pairs}
    return [*pairs, *((name, value) for name, value in carrier.items() if name not in known)]


def context_of(headers: HeadersLike) -> SpanContext:
    """Return the trace context in headers; an invalid one when there is none."""
    return trace.get_current_span(propagate.extract(Headers(headers), Context())).get_span_context()


def links_to(messages: Sequence[Message]) -> list[Link]:
    """Return links to the spans in which these messages were published."""
    contexts = (context_of(message.headers) for message in messages[:MAX_LINKS] if message.has_headers)
    return [Link(context) for context in contexts if context.is_valid]


def size_of(payload: Payload) -> int | None:
    """Return the size of a payload in bytes, or None if it is not bytes already."""
    return len(payload) if isinstance(payload, (bytes, bytearray)) else None
