"""The instrumentation of one client: its spans of sending, receiving and settling.

Messages and requests get a span and its context in their headers. The messages of a batch get a span each and one more
for their acknowledgement, which links to them. A receive span begins when the reader asks and ends when it gets
messages; a wait that ends without any makes no span (except that of a fetch). A settle span belongs to the trace of its
message. None of them is ever the current span. The subjects of the server (``$``) and the reading of inboxes make none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from time import time_ns
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, NonRecordingSpan, SpanContext, SpanKind

from natsproto import errors
from natsproto._client import Client
from natsproto._core.instrumentation import BatchReports, ReaderInfo, Sending, SendOperation
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.otel._spans import (
    MAX_LINKS,
    SpanFactory,
    context_of,
    inject_trace,
    links_to,
    size_of,
)
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

last_processed: ContextVar[tuple[Message, SpanContext] | None] = ContextVar("natsproto_last_processed", default=None)
"""The message that this task processes, or has processed last, and its ``process`` span."""


class ClientInstrumentation:
    """Makes the spans of one client; an Instrumentation."""

    def __init__(self, spans: SpanFactory, client: Client, inbox_prefix: str) -> None:
        self._spans, self._client = spans, client
        self._unread = ("$", f"{inbox_prefix}.")
        self._url = ""
        self._server: Mapping[str, str | int] = {}

    def server(self) -> Mapping[str, str | int]:
        """Return the connected server as span attributes."""
        url = self._client.connected_url
        if url != self._url:
            host, _, port = url.rpartition("://")[2].rpartition(":")
            self._server = {"server.address": host, "server.port": int(port)} if host and port.isdecimal() else {}
            self._url = url
        return self._server

    # ---------------------------------------------------------------- sending

    def sending(self, operation: SendOperation, subject: str, payload: Payload, headers: HeadersLike | None) -> Sending:
        """Start the span of a message."""
        if is_internal(subject):
            return Sending(headers)
        kind = SpanKind.CLIENT if operation == "request" else SpanKind.PRODUCER
        span = self._spans.start(operation, kind, subject, size_of(payload), server=self.server(), sent=1)
        return span.with_headers(headers)

    def batch(self) -> BatchReports:
        """Return the spans of a batch."""
        return BatchSpans(self._spans, self)

    def responding(self, headers: HeadersLike | None) -> HeadersLike | None:
        """Return the headers with the current trace context."""
        return inject_trace(headers)

    # ---------------------------------------------------------------- receiving

    def of_subscription(self, subject: str) -> Self | None:
        """Return None for inboxes and the subjects of the server."""
        return None if isinstance(subject, str) and subject.startswith(self._unread) else self

    def received(
        self,
        messages: Sequence[Message],
        asked_at: int,
        reader: ReaderInfo,
        *,
        batch: bool,
        error: BaseException | None = None,
    ) -> None:
        """Record a span for messages that a reader received, linked to the publishers' spans.

        For a ``batch`` it has the number of messages, otherwise the size of the message.
        """
        destination = reader.name if reader.is_stream else messages[0].subject
        span = self._spans.start(
            "receive",
            SpanKind.CLIENT,
            None if batch and destination != reader.name else destination,
            None if batch else len(messages[0].data),
            server=self.server(),
            links=links_to(messages),
            is_stream=reader.is_stream,
            filter=None if reader.is_stream else reader.name,
            group=reader.group,
            messages=messages,
            consumed=len(messages),
            start_time=asked_at,
            details={"messaging.batch.message_count": len(messages)} if batch else None,
        )
        span.end(error, seconds=max(0, time_ns() - asked_at) / 1e9)

    # ---------------------------------------------------------------- settling

    def settling(self, message: Message, words: bytes) -> Sending:
        """Start the span of an acknowledgement, in the trace of the message."""
        assert isinstance(message, JsMessage)
        try:
            metadata = message.metadata
        except errors.LocalProtocolError:  # it is sent anyway
            return Sending()
        parent, links = _place_in_trace(message)
        kind = words.split(b" ", 1)[0].decode("ascii", "replace")
        return self._spans.start(
            "settle",
            SpanKind.CLIENT,
            metadata.stream,
            server=self.server(),
            parent=parent,
            links=links,
            is_stream=True,
            group=metadata.consumer,
            details={"messaging.message.id": str(metadata.stream_seq), "nats.ack": kind},
        )


class BatchSpans(BatchReports):
    """Makes the spans of the messages that are acknowledged together, and of waiting for the acknowledgement."""

    def __init__(self, spans: SpanFactory, instrumentation: ClientInstrumentation) -> None:
        self._spans, self._instrumentation = spans, instrumentation
        self._links: list[Link] = []
        self._count = 0
        self._subject: str | None = None

    def adding(self, subject: str, payload: Payload, headers: HeadersLike | None) -> Sending:
        """Start a ``create`` span, unless the headers have a trace context already."""
        if is_internal(subject):
            return Sending(headers)
        span, context = Sending(headers), INVALID_SPAN_CONTEXT if headers is None else context_of(headers)
        if not context.is_valid:
            span = created = self._spans.start("create", SpanKind.PRODUCER, subject, size_of(payload))
            context = created.with_headers(headers).span.get_span_context()
        return _Adding(span, partial(self._add, subject, context))

    def _add(self, subject: str, context: SpanContext) -> None:
        """Count a message and link to its span."""
        self._subject = subject if self._subject == subject or not self._count else None
        self._count += 1
        if context.trace_flags.sampled and len(self._links) < MAX_LINKS:
            self._links.append(Link(context))

    def sending(self) -> Sending:
        """Start a span that links to the messages since the last one. There is none without messages."""
        links, count, subject = self._links, self._count, self._subject
        if not count:
            return Sending()
        self._links, self._count, self._subject = [], 0, None
        server, size = self._instrumentation.server(), {"messaging.batch.message_count": count}
        return self._spans.start(
            "publish", SpanKind.CLIENT, subject, server=server, links=links, sent=count, details=size
        )


class _Adding(Sending):
    """Adds a message to the spans of a batch."""

    __slots__ = ("_add", "_span")

    def __init__(self, span: Sending, add: Callable[[], None]) -> None:
        super().__init__(span.headers)
        self._span, self._add = span, add

    def end(self, outcome: object = None) -> None:
        self._span.end(outcome)
        if outcome is None:
            self._add()


def is_internal(subject: object) -> bool:
    """True for the server's own subjects, and for what is no subject."""
    return not isinstance(subject, str) or subject.startswith("$")


def _place_in_trace(message: Message) -> tuple[Context | None, list[Link]]:
    """Return the parent of a span in the trace of a message (None: the current span), and the links.

    The parent is the message's ``process`` span or a span within it, otherwise the span of its publisher. The current
    span is linked if it belongs to another trace.
    """
    current = trace.get_current_span().get_span_context()
    processed = last_processed.get()
    origin = processed[1] if processed is not None and processed[0] is message else context_of(message.headers)
    if not origin.is_valid or origin.trace_id == current.trace_id:
        return None, []
    parent = trace.set_span_in_context(NonRecordingSpan(origin))
    return parent, [Link(current)] if current.is_valid else []
