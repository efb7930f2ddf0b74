"""OpenTelemetry (the extra ``natsproto[otel]``): spans, context propagation and metrics, for clients that ask for it.

Owns the instrumented client, a subclass of the ordinary one: a client made by ``natsproto.connect`` has none of this
and pays nothing. Spans and attributes follow the semantic conventions for messaging. Nothing is done to the
global state of OpenTelemetry; without a configured provider its API does nothing.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

from natsproto.client import THE_WORLD, Client, Connecting, options_for
from natsproto.core.connection import Stats
from natsproto.core.events import Closed, Event
from natsproto.core.runtime import Runtime
from natsproto.errors import ConfigError
from natsproto.jetstream.context import JetStream
from natsproto.jetstream.exchange import Trace
from natsproto.jetstream.message import read_ack_subject
from natsproto.jetstream.retry import RETRY_ATTEMPTS, RETRY_WAIT
from natsproto.options import OptionArgs, Options
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.pool import seconds
from natsproto.version import __version__

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, SpanKind, TracerProvider
except ImportError as exc:
    raise ConfigError("otel", "otel", "needs the package opentelemetry-api: pip install natsproto[otel]") from exc

if TYPE_CHECKING:
    from natsproto.jetstream.codec import Duration
    from natsproto.jetstream.info import PubAck
    from natsproto.jetstream.outgoing import MessageArgs

P = ParamSpec("P")
M = TypeVar("M", bound=Message)
R = TypeVar("R")

_ACK = "$JS.ACK."
_inside: ContextVar[bool] = ContextVar("natsproto_otel_inside", default=False)
"""Whether a verb that makes a span of its own is at work: those it is built on make none."""


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


def process(handler: Callable[[M], Awaitable[object] | object]) -> Callable[[M], Awaitable[None]]:
    """Decorates a handler (def or async def) of one message: each call is a block in ``processing``."""
    return _default().process(handler)


def headers(given: HeadersLike | None = None) -> Headers:
    """These headers with the current trace in them, for verbs that make no spans (the publishers of JetStream)."""
    return Headers(_injected(given) or ())


@functools.lru_cache(maxsize=1)
def _default() -> Telemetry:
    return Telemetry()


class Telemetry:
    """Instruments clients with these providers; None takes the global ones. Make it once and keep it."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self.tracer = trace.get_tracer("natsproto", __version__, tracer_provider)
        self._clients: weakref.WeakSet[TracedClient] = weakref.WeakSet()
        self._past: Counter[str] = Counter()
        self._measure(metrics.get_meter("natsproto", __version__, meter_provider))

    def connect(
        self,
        servers: str | Sequence[str] | Options | None = None,
        /,
        *,
        context: str | None = None,
        **options: Unpack[OptionArgs],
    ) -> Connecting:
        """``natsproto.connect`` for a client that makes spans and metrics."""
        chosen = options_for(servers, context, options)
        return _TracedConnecting(chosen, THE_WORLD, self)

    @contextmanager
    def processing(self, message: Message, *, consumer: str | None = None) -> Iterator[Span]:
        """See the function of this name."""
        parent = propagate.extract(message.headers) if message.has_headers else None
        size = len(message.data)
        with self.span("process", "process", SpanKind.CONSUMER, message.subject, size, parent) as span:
            if consumer is not None:
                span.set_attribute("messaging.consumer.group.name", consumer)
            yield span

    def process(self, handler: Callable[[M], Awaitable[object] | object]) -> Callable[[M], Awaitable[None]]:
        """See the function of this name."""

        @functools.wraps(handler)
        async def processed(message: M) -> None:
            with self.processing(message):
                result = handler(message)
                if inspect.isawaitable(result):
                    await result

        return processed

    @contextmanager
    def span(
        self,
        operation: str,
        type: str,
        kind: SpanKind,
        destination: str,
        size: int | None,
        parent: Context | None = None,
    ) -> Iterator[Span]:
        """A span of this operation while the block runs; exceptions are recorded."""
        temporary = "_INBOX." in destination
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "nats",
            "messaging.destination.name": destination,
            "messaging.operation.name": operation,
            "messaging.operation.type": type,
        }
        if temporary:
            attributes["messaging.destination.temporary"] = True
        if size is not None:
            attributes["messaging.message.body.size"] = size
        # Names of inboxes are never seen twice, and names of spans should be few.
        name = f"{operation} {'(temporary)' if temporary else destination}"
        with self.tracer.start_as_current_span(name, parent, kind=kind, attributes=attributes) as span:
            try:
                yield span
            except Exception as exc:
                span.set_attribute("error.type", f"{exc.__class__.__module__}.{exc.__class__.__qualname__}")
                raise

    # ---------------------------------------------------------------- metrics

    def adopt(self, client: TracedClient) -> None:
        """Counts what the client does from now on, and keeps what it did when it is closed."""
        self._clients.add(client)
        reference = weakref.ref(client)

        def hear(event: Event) -> None:
            closed = reference()
            if isinstance(event, Closed) and closed is not None and closed in self._clients:
                self._clients.discard(closed)
                self._past.update(_counted(closed.stats))

        client.listen(hear)

    def _measure(self, meter: metrics.Meter) -> None:
        for name, unit, description in _COUNTERS:
            meter.create_observable_counter(name, [self._observer(name)], unit, description)
        for name, unit, description in _GAUGES:
            meter.create_observable_up_down_counter(name, [self._observer(name)], unit, description)

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            read = _waiting if name in _NOW else _counted
            total = self._past[name] + sum(read(_stats(client))[name] for client in list(self._clients))
            return [Observation(total, {"messaging.system": "nats"})]

        return observe


_COUNTERS = (
    ("messaging.client.sent.messages", "{message}", "Messages handed to connections"),
    ("messaging.client.consumed.messages", "{message}", "Messages received"),
    ("natsproto.client.sent.bytes", "By", "Payloads, headers and subjects sent"),
    ("natsproto.client.consumed.bytes", "By", "Payloads, headers and subjects received"),
    ("natsproto.client.reconnects", "{reconnect}", "Connections that replaced a lost one"),
    ("natsproto.client.dropped.messages", "{message}", "Messages lost because their reader was too slow"),
)
_GAUGES = (
    ("natsproto.client.waiting.messages", "{message}", "Messages waiting to be sent"),
    ("natsproto.client.waiting.bytes", "By", "Bytes waiting to be sent"),
)
_NOW = frozenset(name for name, _, _ in _GAUGES)


def _counted(stats: Stats) -> dict[str, int]:
    return {
        "messaging.client.sent.messages": stats.out_msgs,
        "messaging.client.consumed.messages": stats.in_msgs,
        "natsproto.client.sent.bytes": stats.out_bytes,
        "natsproto.client.consumed.bytes": stats.in_bytes,
        "natsproto.client.reconnects": stats.reconnects,
        "natsproto.client.dropped.messages": stats.dropped,
    }


def _waiting(stats: Stats) -> dict[str, int]:
    return {
        "natsproto.client.waiting.messages": stats.waiting_msgs,
        "natsproto.client.waiting.bytes": stats.waiting_bytes,
    }


def _stats(client: Client) -> Stats:
    """Metrics are read on a thread of their own, while subscriptions come and go."""
    while True:
        try:
            return client.stats
        except RuntimeError:  # a dictionary changed its size meanwhile
            continue


# ---------------------------------------------------------------- clients


class TracedClient(Client):
    """A client whose verbs make spans. Made by ``natsproto.otel.connect``."""

    _telemetry: Telemetry | None = None

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish`` in a span, with the trace in the headers."""
        telemetry = self._tracing(subject)
        if telemetry is None:
            await super().publish(subject, payload, reply=reply, headers=headers)
            return
        with telemetry.span("send", "send", SpanKind.PRODUCER, subject, _size(payload)) as span:
            self._locate(span)
            await super().publish(subject, payload, reply=reply, headers=_injected(headers))

    def publish_nowait(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish_nowait`` in a span, with the trace in the headers."""
        telemetry = self._tracing(subject)
        if telemetry is None:
            super().publish_nowait(subject, payload, reply=reply, headers=headers)
            return
        with telemetry.span("send", "send", SpanKind.PRODUCER, subject, _size(payload)) as span:
            self._locate(span)
            super().publish_nowait(subject, payload, reply=reply, headers=_injected(headers))

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """``Connection.request`` in a span, with the trace in the headers."""
        if isinstance(subject, str) and subject.startswith(_ACK) and self._telemetry is not None:
            with self._settling(self._telemetry, subject, payload):
                return await super().request(subject, payload, timeout=timeout, headers=headers)
        telemetry = self._tracing(subject)
        if telemetry is None:
            return await super().request(subject, payload, timeout=timeout, headers=headers)
        with telemetry.span("request", "send", SpanKind.CLIENT, subject, _size(payload)) as span:
            self._locate(span)
            return await super().request(subject, payload, timeout=timeout, headers=_injected(headers))

    async def answer(self, reply: str, payload: Payload, headers: HeadersLike | None) -> None:
        """``Connection.answer`` with the trace in the headers."""
        await super().answer(reply, payload, _injected(headers))

    def answer_nowait(self, reply: bytes, payload: bytes) -> None:
        """``Connection.answer_nowait``, in a span when it settles a message of JetStream."""
        telemetry = self._telemetry
        if telemetry is None or not reply.startswith(_ACK.encode()):
            super().answer_nowait(reply, payload)
            return
        with self._settling(telemetry, reply.decode("utf-8", "surrogateescape"), payload):
            super().answer_nowait(reply, payload)

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta = 5.0,
        trace: Trace | None = None,
    ) -> JetStream:
        """``Client.jetstream`` whose ``publish`` makes spans."""
        options = self._options
        if domain is None and prefix is None:
            domain, prefix = options.jetstream_domain, options.jetstream_api_prefix
        wait = seconds("timeout", timeout)
        return TracedJetStream(self, domain=domain, prefix=prefix, timeout=wait, trace=trace)

    def _tracing(self, subject: str) -> Telemetry | None:
        """None for what makes no span: the server's own subjects, and what a verb with a span is built on."""
        if _inside.get() or not isinstance(subject, str) or subject.startswith("$"):
            return None
        return self._telemetry

    def _locate(self, span: Span) -> None:
        if span.is_recording():
            host, _, port = self.connected_url.rpartition("://")[2].rpartition(":")
            if host and port.isdecimal():
                span.set_attributes({"server.address": host, "server.port": int(port)})

    @contextmanager
    def _settling(self, telemetry: Telemetry, subject: str, words: Payload) -> Iterator[None]:
        metadata = read_ack_subject(subject)
        with telemetry.span("settle", "settle", SpanKind.CLIENT, metadata.stream, None) as span:
            self._locate(span)
            if span.is_recording():
                span.set_attributes(
                    {
                        "messaging.consumer.group.name": metadata.consumer,
                        "messaging.message.id": str(metadata.stream_seq),
                        "messaging.nats.answer": bytes(words).split(b" ", 1)[0].decode("ascii", "replace"),
                    }
                )
            yield


class TracedJetStream(JetStream):
    """JetStream of a traced client."""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: Duration = RETRY_WAIT,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """``JetStream.publish`` in a span, with the trace in the headers."""
        client = self._connection
        assert isinstance(client, TracedClient)
        telemetry = client._tracing(subject)
        if telemetry is None:
            return await super().publish(
                subject,
                payload,
                headers=headers,
                timeout=timeout,
                retry_attempts=retry_attempts,
                retry_wait=retry_wait,
                **args,
            )
        with telemetry.span("publish", "send", SpanKind.PRODUCER, subject, _size(payload)) as span:
            client._locate(span)
            token = _inside.set(True)
            try:
                ack = await super().publish(
                    subject,
                    payload,
                    headers=_injected(headers),
                    timeout=timeout,
                    retry_attempts=retry_attempts,
                    retry_wait=retry_wait,
                    **args,
                )
            finally:
                _inside.reset(token)
            span.set_attributes({"messaging.nats.stream": ack.stream, "messaging.message.id": str(ack.seq)})
            return ack


class _TracedConnecting(Connecting):
    def __init__(self, options: Options, runtime: Runtime, telemetry: Telemetry) -> None:
        super().__init__(options, runtime)
        self._telemetry = telemetry

    def __await__(self) -> Generator[object, None, Client]:
        return self._open().__await__()

    async def _open(self) -> Client:
        client = await TracedClient.open(self._options, self._runtime)
        assert isinstance(client, TracedClient)
        client._telemetry = self._telemetry
        self._telemetry.adopt(client)
        return client


def _injected(given: HeadersLike | None) -> HeadersLike | None:
    """The headers with the current trace, unless they have one already."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return given
    pairs = [] if given is None else list(Headers(given).pairs())
    known = {name for name, _ in pairs}
    return [*pairs, *((name, value) for name, value in carrier.items() if name not in known)]


def _size(payload: Payload) -> int | None:
    return len(payload) if isinstance(payload, (bytes, bytearray)) else None
