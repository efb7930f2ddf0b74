"""Spans of messaging, and who has any.

Owns what is in a span (the semantic conventions for messaging), the context that goes with a message, and the rule
that a verb which is built on other verbs makes the only span.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter, time_ns
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer

from natsproto._client import Client
from natsproto._core.connection import Connection
from natsproto.otel._measures import Enrich, Measures, Operation
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike

if TYPE_CHECKING:
    from natsproto.jetstream._info import PubAck

log = logging.getLogger("natsproto")

LINKS = 128
"""Messages of a batch that its span is linked to, at most; more are beyond the limit that OpenTelemetry sets a span."""

_inside: ContextVar[bool] = ContextVar("natsproto_otel_inside", default=False)
"""Whether a verb that makes a span of its own is at work: those it is built on make none."""


class Begun:
    """An operation at work: its span, and what is measured of it. ``end`` it once."""

    def __init__(
        self, span: Span, type: str, measured: dict[str, str | int], measures: Measures, sent: int, consumed: int
    ) -> None:
        self.span = span
        self.consumed = consumed
        self._type, self._measured, self._measures, self._sent = type, measured, measures, sent
        self._began = perf_counter()

    def end(self, error: BaseException | None = None, *, seconds: float | None = None) -> None:
        """It is over, with an error if there is one; ``seconds`` where it began before its span was made."""
        if error is not None and isinstance(error, Exception):
            self._measured["error.type"] = _type_of(error)
            failed(self.span, error)
        self.span.end()
        took = perf_counter() - self._began if seconds is None else seconds
        self._measures.record(self._type, self._measured, took, self._sent, self.consumed)


class Spans:
    """Makes spans with one tracer, and measures with one meter."""

    def __init__(
        self,
        tracer: Tracer,
        measures: Measures,
        template: Callable[[str], str | None],
        enrich: Enrich | None,
    ) -> None:
        self._tracer, self._measures, self._template, self._enrich = tracer, measures, template, enrich

    def begin(
        self,
        operation: str,
        type: str,
        kind: SpanKind,
        destination: str | None,
        size: int | None = None,
        *,
        client: Observed | None = None,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        is_stream: bool = False,
        filter: str | None = None,
        group: str | None = None,
        messages: Sequence[Message] = (),
        sent: int = 0,
        consumed: int = 0,
        start_time: int | None = None,
    ) -> Begun:
        """A span of this operation, which is to be ended.

        ``destination`` is None for messages that go to several subjects. The name of a span, and what is measured, hold
        what has few values: a stream, the ``filter`` of a subscription, a template. ``sent`` and ``consumed`` are
        messages to count.
        """
        measured: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": type,
        }
        said: dict[str, str | int | bool] = {}
        few = filter
        if destination is not None:
            said["messaging.destination.name"] = destination
            if is_stream:
                measured["messaging.destination.name"] = few = destination
            elif "_INBOX." in destination:
                said["messaging.destination.temporary"] = True
                few = few or "(temporary)"
            elif few is None:
                few = self._template(destination)
        if few is not None and few != "(temporary)" and not is_stream:
            measured["messaging.destination.template"] = few
        if group:
            measured["messaging.consumer.group.name"] = group
        if size is not None:
            said["messaging.message.body.size"] = size
        if client is not None:
            measured |= client.location()
        name = operation if few is None else f"{operation} {few}"
        span = self._tracer.start_span(
            name, parent, kind=kind, attributes={**measured, **said}, links=links, start_time=start_time
        )
        if self._enrich is not None:
            try:
                self._enrich(span, Operation(operation, type, destination, messages))
            except Exception as exc:
                log.error("enrich failed: %r", exc, exc_info=exc)
        return Begun(span, type, measured, self._measures, sent, consumed)

    @contextmanager
    def span(
        self,
        operation: str,
        type: str,
        kind: SpanKind,
        destination: str | None,
        size: int | None = None,
        *,
        client: Observed | None = None,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        is_stream: bool = False,
        group: str | None = None,
        messages: Sequence[Message] = (),
        sent: int = 0,
        consumed: int = 0,
    ) -> Iterator[Begun]:
        """``begin`` for a block, at the end of which it ends; its exceptions are recorded."""
        begun = self.begin(
            operation,
            type,
            kind,
            destination,
            size,
            client=client,
            parent=parent,
            links=links,
            is_stream=is_stream,
            group=group,
            messages=messages,
            sent=sent,
            consumed=consumed,
        )
        try:
            with trace.use_span(begun.span, record_exception=False, set_status_on_exception=False):
                yield begun
        except BaseException as exc:
            begun.end(exc)
            raise
        begun.end()

    def received(
        self,
        client: Observed,
        began: int,
        messages: Sequence[Message],
        *,
        destination: str | None,
        filter: str | None = None,
        is_stream: bool = False,
        group: str | None = None,
        batch: bool,
    ) -> None:
        """A span of what a reader was given, from when it asked (``began``, in nanoseconds since the epoch) until now,
        linked to those who published. Of a ``batch`` the number of messages is told, else the size of the one.
        """
        begun = self.begin(
            "receive",
            "receive",
            SpanKind.CLIENT,
            destination,
            None if batch else len(messages[0].data),
            client=client,
            links=links_to(messages),
            is_stream=is_stream,
            filter=filter,
            group=group,
            messages=messages,
            consumed=len(messages),
            start_time=began,
        )
        if batch:
            begun.span.set_attribute("messaging.batch.message_count", len(messages))
        begun.end(seconds=max(0, time_ns() - began) / 1e9)

    def create(
        self, subject: str, payload: Payload, given: HeadersLike | None
    ) -> tuple[HeadersLike | None, SpanContext]:
        """The context of one message of many: its headers with it, and itself, for whoever links to it.

        It is the one that is in the headers already, or that of a span of its own.
        """
        if given is not None:
            theirs = context_of(given)
            if theirs.is_valid:
                return given, theirs
        with self.span("create", "create", SpanKind.PRODUCER, subject, size_of(payload)) as begun:
            return injected(given), begun.span.get_span_context()


class Observed(Client):
    """A client whose verbs make spans; none while it has no ``spans``."""

    spans: Spans | None = None

    def tracing(self, subject: str) -> Spans | None:
        """None for what makes no span: the server's own subjects, and what a verb with a span is built on."""
        if _inside.get() or not isinstance(subject, str) or subject.startswith("$"):
            return None
        return self.spans

    def location(self) -> dict[str, str | int]:
        """Which server it is connected to, as attributes."""
        host, _, port = self.connected_url.rpartition("://")[2].rpartition(":")
        return {"server.address": host, "server.port": int(port)} if host and port.isdecimal() else {}


def observed(connection: Connection) -> Observed:
    """The client under what is made by such a client."""
    assert isinstance(connection, Observed)
    return connection


def failed(span: Span, error: BaseException) -> None:
    """Says in a span what went wrong."""
    if span.is_recording():
        span.set_attribute("error.type", _type_of(error))
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{error.__class__.__name__}: {error}")


def _type_of(error: BaseException) -> str:
    return f"{error.__class__.__module__}.{error.__class__.__qualname__}"


def acknowledged(span: Span, ack: PubAck) -> None:
    """Says in a span where the message is, or the last one of many."""
    span.set_attributes({"nats.stream": ack.stream, "messaging.message.id": str(ack.seq)})


@contextmanager
def within() -> Iterator[None]:
    """A block in which verbs make no spans."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def injected(given: HeadersLike | None) -> HeadersLike | None:
    """The headers with the current trace, unless they have one already."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return given
    pairs = [] if given is None else list(Headers(given).pairs())
    known = {name for name, _ in pairs}
    return [*pairs, *((name, value) for name, value in carrier.items() if name not in known)]


def context_of(headers: HeadersLike) -> SpanContext:
    """The context that goes with a message; an invalid one when there is none."""
    return trace.get_current_span(propagate.extract(Headers(headers), Context())).get_span_context()


def links_to(messages: Sequence[Message]) -> list[Link]:
    """Links to whoever published these."""
    found = (context_of(message.headers) for message in messages[:LINKS] if message.has_headers)
    return [Link(context) for context in found if context.is_valid]


def size_of(payload: Payload) -> int | None:
    """Bytes of a payload, as far as that is known without looking at it."""
    return len(payload) if isinstance(payload, (bytes, bytearray)) else None
