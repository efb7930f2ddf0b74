"""Telemetry: the instrumentation with one tracer provider and one meter provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, Unpack, overload

from opentelemetry import propagate
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import Span, SpanKind, TracerProvider, get_tracer

from natsproto import errors
from natsproto._client import DEFAULT_RUNTIME, Client, Connecting, options_for
from natsproto._handlers import HandlerResult
from natsproto._options.options import OptionArgs, Options
from natsproto._version import __version__
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.middleware import Call, with_middleware
from natsproto.otel._instrumentation import ClientInstrumentation, last_processed
from natsproto.otel._instruments import Enrich, Instruments, Templates, template_of
from natsproto.otel._metrics import ClientMetrics
from natsproto.otel._spans import SpanFactory
from natsproto.protocol.frames import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Telemetry:
    """Instruments clients with these providers; None uses the global ones. Make it once and keep it.

    ``templates`` group subjects: ``orders.{id}`` or ``orders.*``, of which the first match is used, or a function of
    the subject. A subject without a template appears neither in a span's name nor in a metric. ``enrich`` is called
    with every new span and its Operation to set further attributes; its exceptions are logged. ConfigError or
    InvalidSubject for invalid templates.

    Args:
        tracer_provider: Makes the spans; None: the global one.
        meter_provider: Makes the metrics; None: the global one.
        templates: Group subjects, such as ``orders.{id}`` or ``orders.*``, or a function of the subject; subjects
            without one appear in no name.
        enrich: Called with every span and its Operation, to add attributes; None: not called.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        templates: Templates = (),
        enrich: Enrich | None = None,
    ) -> None:
        meter = get_meter("natsproto", __version__, meter_provider)
        tracer = get_tracer("natsproto", __version__, tracer_provider)
        self._spans = SpanFactory(tracer, Instruments(meter), template_of(templates), enrich)
        self._metrics = ClientMetrics(meter)

    def connect(
        self,
        servers: str | Sequence[str] | Options | None = None,
        /,
        *,
        context: str | None = None,
        **options: Unpack[OptionArgs],
    ) -> Connecting:
        """``natsproto.connect`` for a client that records spans and metrics.

        Args:
            servers: One URL, a comma-separated list, a sequence, or Options. None: those of the context or
                ``nats://127.0.0.1:4222``.
            context: The name of a context of the ``nats`` tool, whose settings are the defaults of the other options;
                None: no context.
            **options: The fields of Options, by keyword.
        """
        return InstrumentedConnecting(options_for(servers, context, options), self._spans, self._metrics)

    @contextmanager
    def processing(self, message: Message, *, consumer: str | None = None) -> Iterator[Span]:
        """See the function of the same name in ``natsproto.otel``.

        Args:
            message: The message that the block handles.
            consumer: The name of the consumer; None: that of the message, if it has one.
        """
        with self._process(message, consumer, consumed=0) as span:
            yield span

    async def tracing(self, message: Message, call: Call) -> None:
        """See the function of the same name in ``natsproto.otel``.

        Args:
            message: What the handler would get.
            call: Calls the next middleware or the handler.
        """
        with self._process(message, None, consumed=1):
            await call()

    @contextmanager
    def _process(self, message: Message, group: str | None, consumed: int) -> Iterator[Span]:
        parent = propagate.extract(message.headers) if message.has_headers else None
        details: dict[str, str | int] = {}
        if isinstance(message, JsMessage):
            with suppress(errors.LocalProtocolError):  # no consumer has delivered it
                metadata = message.metadata
                group = group or metadata.consumer
                details = {"nats.stream": metadata.stream, "messaging.message.id": str(metadata.stream_seq)}
        instrumentation = getattr(message._origin, "_instrumentation", None)
        with self._spans.start(
            "process",
            SpanKind.CONSUMER,
            message.subject,
            len(message.data),
            server=instrumentation.server() if isinstance(instrumentation, ClientInstrumentation) else None,
            parent=parent,
            group=group,
            messages=(message,),
            consumed=consumed,
            details=details,
        ).active() as span:
            if isinstance(message, JsMessage):
                last_processed.set((message, span.get_span_context()))
            yield span

    @overload
    def process(self, handler: Callable[[M], HandlerResult]) -> Callable[[M], Awaitable[None]]: ...

    @overload
    def process(self, handler: Callable[[M], AsyncIterator[T]]) -> Callable[[M], AsyncIterator[T]]: ...

    def process(self, handler: Callable[[M], Any]) -> Callable[[M], Any]:
        """See the function of the same name in ``natsproto.otel``.

        Args:
            handler: The handler to decorate, ``def`` or ``async def``.
        """
        return with_middleware(handler, self.tracing)


class InstrumentedConnecting(Connecting):
    """``Connecting`` for an instrumented client."""

    def __init__(self, options: Options, spans: SpanFactory, metrics: ClientMetrics) -> None:
        super().__init__(options, DEFAULT_RUNTIME)
        self._spans, self._metrics = spans, metrics

    async def _open(self) -> Client:
        client = await super()._open()
        client._instrumentation = ClientInstrumentation(self._spans, client, self._options.inbox_prefix)
        self._metrics.add_client(client)
        return client
