"""The instrumentation as programs use it, with one pair of providers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, Unpack

from opentelemetry import propagate
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import Span, SpanKind, TracerProvider, get_tracer

from natsproto._client import THE_WORLD, Connecting, options_for
from natsproto._options import OptionArgs, Options
from natsproto._version import __version__
from natsproto.middleware import Call, with_middleware
from natsproto.otel._client import TracedConnecting
from natsproto.otel._metrics import Metrics
from natsproto.otel._spans import Spans
from natsproto.protocol.frames import Message

M = TypeVar("M", bound=Message)


class Telemetry:
    """Instruments clients with these providers; None takes the global ones. Make it once and keep it."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._spans = Spans(get_tracer("natsproto", __version__, tracer_provider))
        self._metrics = Metrics(get_meter("natsproto", __version__, meter_provider))

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
        return TracedConnecting(chosen, THE_WORLD, self._spans, self._metrics)

    @contextmanager
    def processing(self, message: Message, *, consumer: str | None = None) -> Iterator[Span]:
        """See the function of this name."""
        parent = propagate.extract(message.headers) if message.has_headers else None
        size = len(message.data)
        with self._spans.span("process", "process", SpanKind.CONSUMER, message.subject, size, parent) as span:
            if consumer is not None:
                span.set_attribute("messaging.consumer.group.name", consumer)
            yield span

    async def tracing(self, message: Message, call: Call) -> None:
        """See the function of this name."""
        with self.processing(message):
            await call()

    def process(self, handler: Callable[[M], Awaitable[object] | object]) -> Callable[[M], Awaitable[None]]:
        """See the function of this name."""
        return with_middleware(handler, self.tracing)
