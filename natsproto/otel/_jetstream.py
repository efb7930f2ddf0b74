"""JetStream, instrumented: what it publishes has a span, or belongs to one."""

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
from natsproto.jetstream._publish.async_publish import Publisher
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast_batch import FastPublisher
from natsproto.jetstream._publish.retry_policy import RETRY_WAIT
from natsproto.jetstream._stream import Stream
from natsproto.otel._receiving import TracedStream
from natsproto.otel._spans import (
    LINKS,
    Begun,
    Observed,
    Spans,
    acknowledged,
    injected,
    observed,
    size_of,
    within,
)
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike

if TYPE_CHECKING:
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream._info import PubAck, StreamInfo
    from natsproto.jetstream._publish.headers import ExpectationArgs, MessageArgs


class TracedPublisher(Publisher):
    """A publisher each of whose messages has a span, up to the acknowledgement."""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> AckFuture:
        """``Publisher.publish`` in a span that ends when it is known what became of the message."""
        client = observed(self._connection)
        spans = client.tracing(subject)
        if spans is None:
            return await super().publish(subject, payload, msg_id=msg_id, headers=headers, **args)
        begun = spans.begin("publish", "send", SpanKind.PRODUCER, subject, size_of(payload), client=client, sent=1)
        try:
            with trace.use_span(begun.span, record_exception=False, set_status_on_exception=False):
                future = await super().publish(subject, payload, msg_id=msg_id, headers=injected(headers), **args)
        except BaseException as exc:
            begun.end(exc)
            raise
        future.add_done_callback(functools.partial(_settled, begun))
        return future


def _settled(begun: Begun, future: AckFuture) -> None:
    error = future.outcome if isinstance(future.outcome, NatsError) else None
    if error is None:
        try:
            acknowledged(begun.span, future.result())
        except NatsError as exc:  # what the server said is no acknowledgement
            error = exc
    begun.end(error)


class _Batch:
    """The messages of a batch: what its span has to tell of them."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.count = 0
        self._subject: str | None = None

    def add(self, subject: str, context: SpanContext) -> None:
        self._subject = subject if self._subject == subject or not self.count else None
        self.count += 1
        if context.trace_flags.sampled and len(self.links) < LINKS:
            self.links.append(Link(context))

    @contextmanager
    def sent(self, client: Observed, spans: Spans) -> Iterator[Span]:
        """A span of sending them, linked to those of the messages."""
        with spans.span(
            "publish", "send", SpanKind.CLIENT, self._subject, client=client, links=self.links, sent=self.count
        ) as begun:
            begun.span.set_attribute("messaging.batch.message_count", self.count)
            with within():
                yield begun.span


class TracedBatch(AtomicBatch):
    """An atomic batch whose messages have a context each, and whose commit has a span."""

    @functools.cached_property
    def _batch(self) -> _Batch:
        return _Batch()

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        **args: Unpack[MessageArgs],
    ) -> None:
        """``AtomicBatch.publish`` with a context of its own in the headers."""
        spans = observed(self._connection).tracing(subject)
        if spans is None:
            await super().publish(subject, payload, headers=headers, **args)
            return
        headers, context = spans.create(subject, payload, headers)
        with within():
            await super().publish(subject, payload, headers=headers, **args)
        self._batch.add(subject, context)

    async def flush(self) -> None:
        """``AtomicBatch.flush``; it makes no span."""
        with within():
            await super().flush()

    async def commit(self) -> PubAck | None:
        """``AtomicBatch.commit`` in a span that is linked to those of the messages."""
        client = observed(self._connection)
        spans = client.spans
        if spans is None or not self._batch.count:
            with within():
                return await super().commit()
        with self._batch.sent(client, spans) as span:
            ack = await super().commit()
            if ack is not None:
                acknowledged(span, ack)
            return ack

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with within():
            await super().__aexit__(kind, exc, trace)


class TracedFastPublisher(FastPublisher):
    """A fast publisher whose messages have a context each; waiting for what became of them has a span."""

    _batch: _Batch | None = None

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> int:
        """``FastPublisher.publish`` with a context of its own in the headers."""
        spans = observed(self._connection).tracing(subject)
        if spans is None:
            return await super().publish(subject, payload, msg_id=msg_id, headers=headers, **args)
        headers, context = spans.create(subject, payload, headers)
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
        """``FastPublisher.commit`` in a span that is linked to those of the messages."""
        spans = observed(self._connection).tracing(subject)
        if spans is None:
            return await super().commit(subject, payload, msg_id=msg_id, headers=headers, **args)
        headers, context = spans.create(subject, payload, headers)
        self._add(subject, context)
        with self._sent():
            return await super().commit(subject, payload, msg_id=msg_id, headers=headers, **args)

    async def flush(self) -> None:
        """``FastPublisher.flush`` in a span that is linked to those of the messages."""
        with self._sent():
            await super().flush()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:  # nothing is waited for
            await super().__aexit__(kind, exc, trace)
            return
        with self._sent():
            await super().__aexit__(kind, exc, trace)

    def _add(self, subject: str, context: SpanContext) -> None:
        if self._batch is None:
            self._batch = _Batch()
        self._batch.add(subject, context)

    @contextmanager
    def _sent(self) -> Iterator[None]:
        client = observed(self._connection)
        batch, self._batch = self._batch, None
        if client.spans is None or batch is None:
            yield
            return
        with batch.sent(client, client.spans) as span:
            yield
            if self.ack is not None:
                acknowledged(span, self.ack)


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
        retry_wait: Duration = RETRY_WAIT,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """``JetStream.publish`` in a span, with the trace in the headers."""
        client = observed(self._connection)
        spans = client.tracing(subject)
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
        with spans.span(
            "publish", "send", SpanKind.PRODUCER, subject, size_of(payload), client=client, sent=1
        ) as begun:
            with within():
                ack = await super().publish(
                    subject,
                    payload,
                    headers=injected(headers),
                    timeout=timeout,
                    retry_attempts=retry_attempts,
                    retry_wait=retry_wait,
                    **args,
                )
            acknowledged(begun.span, ack)
            return ack

    def _stream(self, name: str, info: StreamInfo | None) -> Stream:
        return TracedStream(self._api, name, info)
