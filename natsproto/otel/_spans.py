"""Spans of messaging, and who has any.

Owns what is in a span (the semantic conventions for messaging), the context that goes with a message, and the rule
that a verb which is built on other verbs makes the only span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer

from natsproto._client import Client
from natsproto._core.connection import Connection
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike

if TYPE_CHECKING:
    from natsproto.jetstream._info import PubAck

LINKS = 128
"""Messages of a batch that its span is linked to, at most; more are beyond the limit that OpenTelemetry sets a span."""

_inside: ContextVar[bool] = ContextVar("natsproto_otel_inside", default=False)
"""Whether a verb that makes a span of its own is at work: those it is built on make none."""


class Spans:
    """Makes spans with one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def span(
        self,
        operation: str,
        type: str,
        kind: SpanKind,
        destination: str | None,
        size: int | None,
        parent: Context | None = None,
        *,
        links: Sequence[Link] = (),
        lasting: bool = False,
    ) -> Iterator[Span]:
        """A span of this operation while the block runs; exceptions are recorded.

        ``destination`` is None for messages that go to several. A ``lasting`` span goes on behind a block that did not
        raise, and is ended by whoever has it.
        """
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": type,
        }
        name = operation
        if destination is not None:
            temporary = "_INBOX." in destination
            attributes["messaging.destination.name"] = destination
            if temporary:
                attributes["messaging.destination.temporary"] = True
            # Names of inboxes are never seen twice, and names of spans should be few.
            name = f"{operation} {'(temporary)' if temporary else destination}"
        if size is not None:
            attributes["messaging.message.body.size"] = size
        span = self._tracer.start_span(name, parent, kind=kind, attributes=attributes, links=links)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as exc:
            if isinstance(exc, Exception):
                failed(span, exc)
            span.end()
            raise
        if not lasting:
            span.end()

    def received(
        self,
        client: Observed,
        begun: int,
        name: str,
        attributes: Mapping[str, str | int],
        messages: Sequence[Message],
        *,
        batch: bool,
    ) -> None:
        """A span of what a reader was given, from when it asked (``begun``, in nanoseconds since the epoch) until now,
        linked to those who published. ``attributes`` say what was read, which ``name`` does in few words; of a
        ``batch`` the number of messages is told, else the size of the one.
        """
        said: dict[str, str | int | bool] = {
            "messaging.system": "nats",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            **attributes,
        }
        if batch:
            said["messaging.batch.message_count"] = len(messages)
        else:
            said["messaging.message.body.size"] = len(messages[0].data)
        span = self._tracer.start_span(
            f"receive {name}", kind=SpanKind.CLIENT, attributes=said, links=links_to(messages), start_time=begun
        )
        client.locate(span)
        span.end()

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
        with self.span("create", "create", SpanKind.PRODUCER, subject, size_of(payload)) as span:
            return injected(given), span.get_span_context()


class Observed(Client):
    """A client whose verbs make spans; none while it has no ``spans``."""

    spans: Spans | None = None

    def tracing(self, subject: str) -> Spans | None:
        """None for what makes no span: the server's own subjects, and what a verb with a span is built on."""
        if _inside.get() or not isinstance(subject, str) or subject.startswith("$"):
            return None
        return self.spans

    def locate(self, span: Span) -> None:
        """Says in a span which server it is about."""
        if span.is_recording():
            host, _, port = self.connected_url.rpartition("://")[2].rpartition(":")
            if host and port.isdecimal():
                span.set_attributes({"server.address": host, "server.port": int(port)})


def observed(connection: Connection) -> Observed:
    """The client under what is made by such a client."""
    assert isinstance(connection, Observed)
    return connection


def failed(span: Span, error: BaseException) -> None:
    """Says in a span what went wrong."""
    if span.is_recording():
        span.set_attribute("error.type", f"{error.__class__.__module__}.{error.__class__.__qualname__}")
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{error.__class__.__name__}: {error}")


def acknowledged(span: Span, ack: PubAck) -> None:
    """Says in a span where the message is, or the last one of many."""
    span.set_attributes({"messaging.nats.stream": ack.stream, "messaging.message.id": str(ack.seq)})


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
