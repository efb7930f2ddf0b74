"""Traced receiving: each message or batch that a reader receives has a span, linked to the publisher's span.

Owns the subclasses of the readers that make these spans. A receive span begins when the reader asks and ends when it
gets messages; a wait that ends without any makes no span. A receive span is never the current span, because the reader
may pass the message on. ``processing`` makes the span for the work on a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from time import time_ns
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Unpack

from opentelemetry.trace import SpanKind

from natsproto._core.subscription import Subscription
from natsproto.jetstream._consumer.handle import PullConsumer
from natsproto.jetstream._consumer.messages import Fetch, FetchIterator, Messages, MessageSource
from natsproto.jetstream._consumer.ordered import OrderedConsumer, OrderedSource
from natsproto.jetstream._consumer.pull import PullSource
from natsproto.jetstream._consumer.pull_options import FetchArgs, PullMode, PullOptions, fetch_options
from natsproto.jetstream._consumer.push import PushConsumer
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._stream import Stream
from natsproto.otel._spans import TracedClientBase, links_to, suppress_spans, traced_client
from natsproto.protocol.frames import Message

if TYPE_CHECKING:
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream._info import ConsumerInfo

M = TypeVar("M", bound=Message, covariant=True)
T = TypeVar("T")


async def _notify_each(source: AsyncIterator[T], on_item: Callable[[T, int], None]) -> AsyncGenerator[T]:
    """Yield the items of ``source``. Before each, call ``on_item`` with the item and the time when it was asked for."""
    try:
        while True:
            asked_at = time_ns()
            try:
                item = await anext(source)
            except StopAsyncIteration:
                return
            on_item(item, asked_at)
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


# ---------------------------------------------------------------- core subscriptions


class TracedSubscription(Subscription[M], Generic[M]):
    """A subscription whose messages get receive spans when they are read. Callbacks use the decorator instead."""

    client: TracedClientBase | None = None
    """The client that makes the spans; None for inboxes and the server's own subjects, which get none."""

    def __aiter__(self) -> AsyncIterator[M]:
        messages = super().__aiter__()
        return messages if self.client is None else _notify_each(messages, self._received)

    def batches(self, max_messages: int | None = None) -> AsyncGenerator[list[M]]:
        """``Subscription.batches`` with a span for each batch."""
        batches = super().batches(max_messages)
        return batches if self.client is None else _notify_each(batches, self._received_batch)

    async def next(self, timeout: float | timedelta | None = None) -> M:
        """``Subscription.next`` in a span."""
        asked_at = time_ns()
        message = await super().next(timeout)
        if self.client is not None:
            self._received(message, asked_at)
        return message

    def _received(self, message: Message, asked_at: int) -> None:
        self._record(message.subject, [message], asked_at, batch=False)

    def _received_batch(self, messages: Sequence[Message], asked_at: int) -> None:
        has_wildcard = not {"*", ">"}.isdisjoint(self.subject.split("."))
        self._record(None if has_wildcard else self.subject, messages, asked_at, batch=True)

    def _record(self, destination: str | None, messages: Sequence[Message], asked_at: int, *, batch: bool) -> None:
        client = self.client
        if client is not None and client.spans is not None:
            client.spans.record_receive(
                client,
                asked_at,
                messages,
                destination=destination,
                filter=self.subject,
                group=self.queue,
                batch=batch,
            )


# ---------------------------------------------------------------- streams


class TracedConsumer(PullConsumer):
    """A pull consumer whose messages get receive spans when they are read."""

    def _fetch(
        self, mode: PullMode, timeout: Duration, acking: JsMessage | None = None, **arguments: Unpack[FetchArgs]
    ) -> Fetch:
        options = fetch_options(mode, timeout, self._api.timeout, **arguments)
        inbox = self._inbox or self._make_inbox()
        source = PullSource(inbox, options, acking=acking)
        return TracedFetch(source, inbox.put_back, traced_client(self._api.connection), self)

    def _make_messages(self, source: MessageSource, return_unread: Callable[[list[JsMessage]], None]) -> Messages:
        return TracedMessages(source, self._description, return_unread, traced_client(self._api.connection), self)


class TracedPushConsumer(PushConsumer):
    """A push consumer whose messages get receive spans when they are read."""

    def _make_messages(self, source: MessageSource, return_unread: Callable[[list[JsMessage]], None]) -> Messages:
        return TracedMessages(source, self._description, return_unread, traced_client(self._api.connection), self)


class TracedOrderedConsumer(OrderedConsumer):
    """An ordered consumer whose messages get receive spans when they are read."""

    def _make_fetch(self, options: PullOptions) -> Fetch:
        state = self._state
        return TracedFetch(OrderedSource(state, options), state.put_back, traced_client(state.connection), self)

    def _make_messages(self, options: PullOptions) -> Messages:
        state, source = self._state, OrderedSource(self._state, options)
        return TracedMessages(source, self._description, state.put_back, traced_client(state.connection), self)


class TracedStream(Stream):
    """A stream whose consumers are traced."""

    _ordered = TracedOrderedConsumer
    _push_consumer_class = TracedPushConsumer

    def _consumer(self, name: str, info: ConsumerInfo | None) -> PullConsumer:
        return TracedConsumer(self._api, self.name, name, info)


_Consumer: TypeAlias = TracedConsumer | TracedPushConsumer | TracedOrderedConsumer


def _record_receive(
    client: TracedClientBase, consumer: _Consumer, messages: list[JsMessage], asked_at: int, *, batch: bool
) -> None:
    if client.spans is not None:
        client.spans.record_receive(
            client,
            asked_at,
            messages,
            destination=consumer.stream_name,
            is_stream=True,
            group=consumer.name,
            batch=batch,
        )


class TracedMessages(Messages):
    """An endless sequence of messages, with a span for each message or batch that is read."""

    def __init__(
        self,
        source: MessageSource,
        what: str,
        put_back: Callable[[list[JsMessage]], None],
        client: TracedClientBase,
        consumer: _Consumer,
    ) -> None:
        super().__init__(source, what, put_back)
        self._client, self._consumer = client, consumer

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return _notify_each(super().__aiter__(), self._received)

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[JsMessage]]:
        """``Messages.batches`` with a span for each batch."""
        return _notify_each(super().batches(max_messages), self._received_batch)

    async def next(self, timeout: Duration | None = None) -> JsMessage:
        """``Messages.next`` in a span."""
        asked_at = time_ns()
        message = await super().next(timeout)
        self._received(message, asked_at)
        return message

    def _received(self, message: JsMessage, asked_at: int) -> None:
        _record_receive(self._client, self._consumer, [message], asked_at, batch=False)

    def _received_batch(self, messages: list[JsMessage], asked_at: int) -> None:
        _record_receive(self._client, self._consumer, messages, asked_at, batch=True)


class TracedFetch(Fetch):
    """A fetch. Awaiting makes one span, linked to those of the messages; iterating makes a span for each message."""

    def __init__(
        self,
        source: MessageSource,
        put_back: Callable[[list[JsMessage]], None],
        client: TracedClientBase,
        consumer: _Consumer,
    ) -> None:
        super().__init__(source, put_back)
        self._client, self._consumer = client, consumer

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        self._begun = True
        return TracedFetchIterator(self, self._buffer.ready, self._received)

    def _received(self, message: JsMessage, asked_at: int) -> None:
        _record_receive(self._client, self._consumer, [message], asked_at, batch=False)

    async def _collect(self) -> list[JsMessage]:
        client, consumer = self._client, self._consumer
        if client.spans is None:
            return await super()._collect()
        with client.spans.start(
            "receive",
            "receive",
            SpanKind.CLIENT,
            consumer.stream_name,
            client=client,
            is_stream=True,
            group=consumer.name,
        ).active() as operation:
            with suppress_spans():
                messages = await super()._collect()
            operation.consumed = len(messages)
            if operation.span.is_recording():
                operation.span.set_attribute("messaging.batch.message_count", len(messages))
                for link in links_to(messages):
                    operation.span.add_link(link.context)
            return messages


class TracedFetchIterator(FetchIterator):
    """Iterates over the messages of a fetch, with a span for each."""

    def __init__(self, fetch: Fetch, ready: deque[JsMessage], on_item: Callable[[JsMessage, int], None]) -> None:
        super().__init__(fetch, ready)
        self._on_message = on_item

    async def __anext__(self) -> JsMessage:
        asked_at = time_ns()
        message = await super().__anext__()
        self._on_message(message, asked_at)
        return message
