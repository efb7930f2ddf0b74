"""Traced JetStream: each published message or batch has a span."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from natsproto.errors import NatsError
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast_batch import FastPublisher
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.retry_policy import RETRY_WAIT_S
from natsproto.otel._spans import (
    MAX_LINKS,
    OpenSpan,
    SpanFactory,
    TracedClientBase,
    inject_trace,
    set_ack_attributes,
    size_of,
    suppress_spans,
    traced_client,
)
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike

if TYPE_CHECKING:
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream._info import PubAck
    from natsproto.jetstream._publish.headers import ExpectationArgs, MessageArgs


class TracedPublisher(Publisher):
    """A publisher with a span for each message, which ends with the acknowledgement."""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> AckFuture:
        """``Publisher.publish`` in a span that ends when the message is acknowledged or has failed."""
        client = traced_client(self._connection)
        spans = client.spans_for(subject)
        if spans is None:
            return await super().publish(subject, payload, msg_id=msg_id, headers=headers, **args)
        operation = spans.start("publish", "send", SpanKind.PRODUCER, subject, size_of(payload), client=client, sent=1)
        try:
            with trace.use_span(operation.span, record_exception=False, set_status_on_exception=False):
                future = await super().publish(subject, payload, msg_id=msg_id, headers=inject_trace(headers), **args)
        except BaseException as exc:
            operation.end(exc)
            raise
        future.add_done_callback(functools.partial(_settled, operation))
        return future


def _settled(operation: OpenSpan, future: AckFuture) -> None:
    error = future.outcome if isinstance(future.outcome, NatsError) else None
    if error is None:
        try:
            set_ack_attributes(operation.span, future.result())
        except NatsError as exc:  # the server's reply is not an acknowledgement
            error = exc
    operation.end(error)


class _BatchSpan:
    """Collects the data for the span of a batch: links to its messages, their number and their subject."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.count = 0
        self._subject: str | None = None

    def add(self, subject: str, context: SpanContext) -> None:
        self._subject = subject if self._subject == subject or not self.count else None
        self.count += 1
        if context.trace_flags.sampled and len(self.links) < MAX_LINKS:
            self.links.append(Link(context))

    @contextmanager
    def sent(self, client: TracedClientBase, spans: SpanFactory) -> Iterator[Span]:
        """Return a context manager: a span for sending the batch, linked to the spans of its messages."""
        with spans.start(
            "publish", "send", SpanKind.CLIENT, self._subject, client=client, links=self.links, sent=self.count
        ).active() as operation:
            operation.span.set_attribute("messaging.batch.message_count", self.count)
            with suppress_spans():
                yield operation.span


class TracedBatch(AtomicBatch):
    """An atomic batch with a trace context for each message and a span for the commit."""

    @functools.cached_property
    def _batch(self) -> _BatchSpan:
        return _BatchSpan()

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        **args: Unpack[MessageArgs],
    ) -> None:
        """``AtomicBatch.publish`` with a trace context in the headers."""
        spans = traced_client(self._connection).spans_for(subject)
        if spans is None:
            await super().publish(subject, payload, headers=headers, **args)
            return
        headers, context = spans.create_context(subject, payload, headers)
        with suppress_spans():
            await super().publish(subject, payload, headers=headers, **args)
        self._batch.add(subject, context)

    async def flush(self) -> None:
        """``AtomicBatch.flush``; it makes no span."""
        with suppress_spans():
            await super().flush()

    async def commit(self) -> PubAck | None:
        """``AtomicBatch.commit`` in a span with links to the messages' spans."""
        client = traced_client(self._connection)
        spans = client.spans
        if spans is None or not self._batch.count:
            with suppress_spans():
                return await super().commit()
        with self._batch.sent(client, spans) as span:
            ack = await super().commit()
            if ack is not None:
                set_ack_attributes(span, ack)
            return ack

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress_spans():
            await super().__aexit__(kind, exc, trace)


class TracedFastPublisher(FastPublisher):
    """A fast publisher with a trace context for each message and a span for each wait for acknowledgements."""

    _batch: _BatchSpan | None = None

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> int:
        """``FastPublisher.publish`` with a trace context in the headers."""
        spans = traced_client(self._connection).spans_for(subject)
        if spans is None:
            return await super().publish(subject, payload, msg_id=msg_id, headers=headers, **args)
        headers, context = spans.create_context(subject, payload, headers)
        number = await super().publish(subject, payload, msg_id=msg_id, headers=headers, **args)
        self._add(subject, context)
        return number

    async def commit(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> PubAck:
        """``FastPublisher.commit`` in a span with links to the messages' spans."""
        spans = traced_client(self._connection).spans_for(subject)
        if spans is None:
            return await super().commit(subject, payload, msg_id=msg_id, headers=headers, **args)
        headers, context = spans.create_context(subject, payload, headers)
        self._add(subject, context)
        with self._sent():
            return await super().commit(subject, payload, msg_id=msg_id, headers=headers, **args)

    async def flush(self) -> None:
        """``FastPublisher.flush`` in a span with links to the messages' spans."""
        with self._sent():
            await super().flush()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:  # it waits for no acknowledgement
            await super().__aexit__(kind, exc, trace)
            return
        with self._sent():
            await super().__aexit__(kind, exc, trace)

    def _add(self, subject: str, context: SpanContext) -> None:
        if self._batch is None:
            self._batch = _BatchSpan()
        self._batch.add(subject, context)

    @contextmanager
    def _sent(self) -> Iterator[None]:
        client = traced_client(self._connection)
        batch, self._batch = self._batch, None
        if client.spans is None or batch is None:
            yield
            return
        with batch.sent(client, client.spans) as span:
            yield
            if self.ack is not None:
                set_ack_attributes(span, self.ack)


class TracedJetStream(JetStream):
    """JetStream of a traced client."""

    _windowed = TracedPublisher
    _atomic = TracedBatch
    _fast = TracedFastPublisher

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        retry_attempts: int | None = None,
        retry_wait: Duration = RETRY_WAIT_S,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """``JetStream.publish`` in a span, with the trace context in the headers."""
        client = traced_client(self._connection)
        spans = client.spans_for(subject)
        if spans is None:
            return await super().publish(
                subject,
                payload,
                headers=headers,
                timeout=timeout,
                retry_attempts=retry_attempts,
                retry_wait=retry_wait,
                **args,
            )
        with spans.start(
            "publish", "send", SpanKind.PRODUCER, subject, size_of(payload), client=client, sent=1
        ).active() as operation:
            with suppress_spans():
                ack = await super().publish(
                    subject,
                    payload,
                    headers=inject_trace(headers),
                    timeout=timeout,
                    retry_attempts=retry_attempts,
                    retry_wait=retry_wait,
                    **args,
                )
            set_ack_attributes(operation.span, ack)
            return ack
