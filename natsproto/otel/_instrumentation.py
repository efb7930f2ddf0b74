"""The instrumentation of one client: its spans.

A receive span begins when the reader asks and ends when it gets messages; a wait that ends without any makes no span
(except that of a fetch). It is never the current span, because the reader may pass the message on. ``processing`` makes
the span for the work on a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import Self

from opentelemetry.trace import SpanKind

from natsproto._core.instrumentation import ReaderInfo
from natsproto.otel._spans import SpanFactory, TracedClientBase, links_to
from natsproto.protocol.frames import Message


class ClientInstrumentation:
    """Makes the spans of one client."""

    def __init__(self, spans: SpanFactory, client: TracedClientBase, inbox_prefix: str) -> None:
        self._spans, self._client = spans, client
        self._internal = ("$", f"{inbox_prefix}.")

    def of_subscription(self, subject: str) -> Self | None:
        """Return None for inboxes and the subjects of the server."""
        return None if isinstance(subject, str) and subject.startswith(self._internal) else self

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
        if reader.is_stream:
            destination: str | None = reader.name
        elif not batch:
            destination = messages[0].subject
        else:
            destination = None if _has_wildcard(reader.name) else reader.name
        operation = self._spans.start(
            "receive",
            "receive",
            SpanKind.CLIENT,
            destination,
            None if batch else len(messages[0].data),
            client=self._client,
            links=links_to(messages),
            is_stream=reader.is_stream,
            filter=None if reader.is_stream else reader.name,
            group=reader.group,
            messages=messages,
            consumed=len(messages),
            start_time=asked_at,
        )
        if batch:
            operation.span.set_attribute("messaging.batch.message_count", len(messages))
        operation.end(error, seconds=max(0, time_ns() - asked_at) / 1e9)


def _has_wildcard(subject: str) -> bool:
    return not {"*", ">"}.isdisjoint(subject.split("."))
