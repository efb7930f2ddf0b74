"""The instrumented client: a subclass of the ordinary one, whose verbs make spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from opentelemetry.trace import SpanKind

from natsproto._client import Client, Connecting
from natsproto._core.runtime import Runtime
from natsproto._core.subscription import Handler, SlowPolicy, Subscription
from natsproto._options import Options
from natsproto.jetstream._api_trace import TraceCallback
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._message import read_ack_subject
from natsproto.otel._jetstream import TracedJetStream
from natsproto.otel._metrics import Metrics
from natsproto.otel._receiving import TracedSubscription
from natsproto.otel._spans import Observed, Spans, injected, size_of
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

_ACK = "$JS.ACK."


class TracedClient(Observed):
    """A client whose verbs make spans. Made by ``natsproto.otel.connect``."""

    _subscription = TracedSubscription

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish`` in a span, with the trace in the headers."""
        spans = self.tracing(subject)
        if spans is None:
            await super().publish(subject, payload, reply=reply, headers=headers)
            return
        with spans.span("send", "send", SpanKind.PRODUCER, subject, size_of(payload), client=self, sent=1):
            await super().publish(subject, payload, reply=reply, headers=injected(headers))

    def publish_nowait(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """``Connection.publish_nowait`` in a span, with the trace in the headers."""
        spans = self.tracing(subject)
        if spans is None:
            super().publish_nowait(subject, payload, reply=reply, headers=headers)
            return
        with spans.span("send", "send", SpanKind.PRODUCER, subject, size_of(payload), client=self, sent=1):
            super().publish_nowait(subject, payload, reply=reply, headers=injected(headers))

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """``Connection.request`` in a span, with the trace in the headers."""
        if isinstance(subject, str) and subject.startswith(_ACK) and self.spans is not None:
            with self._settling(self.spans, subject, payload):
                return await super().request(subject, payload, timeout=timeout, headers=headers)
        spans = self.tracing(subject)
        if spans is None:
            return await super().request(subject, payload, timeout=timeout, headers=headers)
        with spans.span("request", "send", SpanKind.CLIENT, subject, size_of(payload), client=self, sent=1):
            return await super().request(subject, payload, timeout=timeout, headers=injected(headers))

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Handler | None = None,
        max_msgs: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicy | str = SlowPolicy.DROP_NEWEST,
        message_type: type[Message] = Message,
        message_note: object = None,
    ) -> Subscription:
        """``Connection.subscribe``; there is a span for each message that is read, but for inboxes."""
        made = super().subscribe(
            subject,
            queue=queue,
            cb=cb,
            max_msgs=max_msgs,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
            slow_policy=slow_policy,
            message_type=message_type,
            message_note=message_note,
        )
        is_inbox = subject.startswith(f"{self._options.inbox_prefix}.")
        if isinstance(made, TracedSubscription) and not is_inbox and not subject.startswith("$"):
            made.client = self
        return made

    async def answer(self, reply: str, payload: Payload, headers: HeadersLike | None) -> None:
        """``Connection.answer`` with the trace in the headers."""
        await super().answer(reply, payload, injected(headers))

    def answer_nowait(self, reply: bytes, payload: bytes) -> None:
        """``Connection.answer_nowait``, in a span when it settles a message of JetStream."""
        spans = self.spans
        if spans is None or not reply.startswith(_ACK.encode()):
            super().answer_nowait(reply, payload)
            return
        with self._settling(spans, reply.decode("utf-8", "surrogateescape"), payload):
            super().answer_nowait(reply, payload)

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta = 5.0,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> JetStream:
        """``Client.jetstream`` whose ``publish`` makes spans."""
        options = self._options
        if domain is None and prefix is None:
            domain, prefix = options.jetstream_domain, options.jetstream_api_prefix
        return TracedJetStream(
            self, domain=domain, prefix=prefix, timeout=timeout, trace=trace, inbox_prefix=inbox_prefix
        )

    @contextmanager
    def _settling(self, spans: Spans, subject: str, words: Payload) -> Iterator[None]:
        metadata = read_ack_subject(subject)
        group = metadata.consumer
        with spans.span(
            "settle", "settle", SpanKind.CLIENT, metadata.stream, client=self, is_stream=True, group=group
        ) as begun:
            begun.span.set_attributes(
                {
                    "messaging.message.id": str(metadata.stream_seq),
                    "nats.answer": bytes(words).split(b" ", 1)[0].decode("ascii", "replace"),
                }
            )
            yield


class TracedConnecting(Connecting):
    """``Connecting`` for a client that is traced and measured."""

    def __init__(self, options: Options, runtime: Runtime, spans: Spans, metrics: Metrics) -> None:
        super().__init__(options, runtime)
        self._spans, self._metrics = spans, metrics

    async def _open(self) -> Client:
        client = await TracedClient.open(self._options, self._runtime)
        assert isinstance(client, TracedClient)
        client.spans = self._spans
        self._metrics.adopt(client)
        return client
