"""The traced client: a subclass of Client whose methods make spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from opentelemetry.trace import SpanKind

from natsproto._client import Client, Connecting
from natsproto._core.wire import Runtime
from natsproto._options import Options
from natsproto.jetstream._api_trace import TraceCallback
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._message import read_ack_subject
from natsproto.otel._instrumentation import ClientInstrumentation
from natsproto.otel._jetstream import TracedJetStream
from natsproto.otel._metrics import ClientMetrics
from natsproto.otel._spans import SpanFactory, TracedClientBase, inject_trace, size_of
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

_ACK = "$JS.ACK."


class TracedClient(TracedClientBase):
    """A client whose methods make spans. Created by ``natsproto.otel.connect``."""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish`` in a span, with the trace context in the headers."""
        spans = self.spans_for(subject)
        if spans is None:
            await super().publish(subject, payload, reply=reply, headers=headers)
            return
        with spans.start("send", "send", SpanKind.PRODUCER, subject, size_of(payload), client=self, sent=1).active():
            await super().publish(subject, payload, reply=reply, headers=inject_trace(headers))

    def publish_nowait(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish_nowait`` in a span, with the trace context in the headers."""
        spans = self.spans_for(subject)
        if spans is None:
            super().publish_nowait(subject, payload, reply=reply, headers=headers)
            return
        with spans.start("send", "send", SpanKind.PRODUCER, subject, size_of(payload), client=self, sent=1).active():
            super().publish_nowait(subject, payload, reply=reply, headers=inject_trace(headers))

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """``Connection.request`` in a span, with the trace context in the headers."""
        if isinstance(subject, str) and subject.startswith(_ACK) and self.spans is not None:
            with self._settle_span(self.spans, subject, payload):
                return await super().request(subject, payload, timeout=timeout, headers=headers)
        spans = self.spans_for(subject)
        if spans is None:
            return await super().request(subject, payload, timeout=timeout, headers=headers)
        with spans.start("request", "send", SpanKind.CLIENT, subject, size_of(payload), client=self, sent=1).active():
            return await super().request(subject, payload, timeout=timeout, headers=inject_trace(headers))

    async def _send_reply(self, reply: str, payload: Payload, headers: HeadersLike | None) -> None:
        """``Connection._send_reply`` with the trace context in the headers."""
        await super()._send_reply(reply, payload, inject_trace(headers))

    def _send_reply_nowait(self, reply: bytes, payload: bytes) -> None:
        """``Connection._send_reply_nowait``, in a span when it acknowledges a JetStream message."""
        spans = self.spans
        if spans is None or not reply.startswith(_ACK.encode()):
            super()._send_reply_nowait(reply, payload)
            return
        with self._settle_span(spans, reply.decode("utf-8", "surrogateescape"), payload):
            super()._send_reply_nowait(reply, payload)

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta = 5.0,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> JetStream:
        """``Client.jetstream`` that makes spans."""
        options = self._options
        if domain is None and prefix is None:
            domain, prefix = options.jetstream_domain, options.jetstream_api_prefix
        return TracedJetStream(
            self, domain=domain, prefix=prefix, timeout=timeout, trace=trace, inbox_prefix=inbox_prefix
        )

    @contextmanager
    def _settle_span(self, spans: SpanFactory, subject: str, ack: Payload) -> Iterator[None]:
        metadata = read_ack_subject(subject)
        group = metadata.consumer
        with spans.start(
            "settle", "settle", SpanKind.CLIENT, metadata.stream, client=self, is_stream=True, group=group
        ).active() as operation:
            operation.span.set_attributes(
                {
                    "messaging.message.id": str(metadata.stream_seq),
                    "nats.ack": bytes(ack).split(b" ", 1)[0].decode("ascii", "replace"),
                }
            )
            yield


class TracedConnecting(Connecting):
    """``Connecting`` for a traced client."""

    def __init__(self, options: Options, runtime: Runtime, spans: SpanFactory, metrics: ClientMetrics) -> None:
        super().__init__(options, runtime)
        self._spans, self._metrics = spans, metrics

    async def _open(self) -> Client:
        client = await TracedClient._connect(self._options, self._runtime)
        assert isinstance(client, TracedClient)
        client.spans = self._spans
        client._instrumentation = ClientInstrumentation(self._spans, client, self._options.inbox_prefix)
        self._metrics.add_client(client)
        return client
