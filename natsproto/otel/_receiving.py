"""Receiving, instrumented: whatever a reader is given has a span, linked to whoever published it.

Owns the kinds of readers that make them. A span of receiving begins when the reader asks and ends when it is given
something: waiting in vain makes none, and none is ever the current one, as nobody knows where a reader goes with a
message. What is done with it then is ``processing``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from time import time_ns
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from opentelemetry.trace import SpanKind

from natsproto._core.subscription import Subscription
from natsproto.jetstream._consumer.handle import PullConsumer
from natsproto.jetstream._consumer.messages import Fetch, FetchIterator, Messages, MessageSource
from natsproto.jetstream._consumer.ordered import OrderedConsumer
from natsproto.jetstream._consumer.pull import PullSource
from natsproto.jetstream._consumer.pull_options import PullOptions
from natsproto.jetstream._consumer.push import PushConsumer
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._stream import Stream
from natsproto.otel._spans import Observed, links_to, observed, within
from natsproto.protocol.frames import Message

if TYPE_CHECKING:
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream._info import ConsumerInfo

M = TypeVar("M", bound=Message, covariant=True)
T = TypeVar("T")


async def _handed_over(source: AsyncIterator[T], told: Callable[[T, int], None]) -> AsyncGenerator[T]:
    """The same, and ``told`` of each just before, with the time when it was asked for."""
    try:
        while True:
            begun = time_ns()
            try:
                one = await anext(source)
            except StopAsyncIteration:
                return
            told(one, begun)
            yield one
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


# ---------------------------------------------------------------- the core


class TracedSubscription(Subscription[M], Generic[M]):
    """A subscription for whose messages there are spans when they are read. For callbacks there are decorators."""

    client: Observed | None = None
    """Who makes the spans; None for what makes none: inboxes, and what is the server's."""

    def __aiter__(self) -> AsyncIterator[M]:
        messages = super().__aiter__()
        return messages if self.client is None else _handed_over(messages, self._received)

    def batches(self, max_msgs: int | None = None) -> AsyncGenerator[list[M]]:
        """``Subscription.batches`` with a span for each."""
        batches = super().batches(max_msgs)
        return batches if self.client is None else _handed_over(batches, self._received_batch)

    async def next(self, timeout: float | timedelta | None = None) -> M:
        """``Subscription.next`` in a span."""
        begun = time_ns()
        message = await super().next(timeout)
        if self.client is not None:
            self._received(message, begun)
        return message

    def _received(self, message: Message, begun: int) -> None:
        self._tell(message.subject, [message], begun, batch=False)

    def _received_batch(self, messages: Sequence[Message], begun: int) -> None:
        is_wild = not {"*", ">"}.isdisjoint(self.subject.split("."))
        self._tell(None if is_wild else self.subject, messages, begun, batch=True)

    def _tell(self, destination: str | None, messages: Sequence[Message], began: int, *, batch: bool) -> None:
        client = self.client
        if client is not None and client.spans is not None:
            client.spans.received(
                client,
                began,
                messages,
                destination=destination,
                filter=self.subject,
                group=self.queue,
                batch=batch,
            )


# ---------------------------------------------------------------- streams


class TracedConsumer(PullConsumer):
    """A consumer for whose messages there are spans when they are read."""

    def _fetch(self, options: PullOptions, acking: JsMessage | None = None) -> Fetch:
        inbox = self._inbox or self._make_inbox()
        source = PullSource(inbox, options, acking=acking)
        return TracedFetch(source, inbox.put_back, observed(self._api.connection), self)

    def _make_messages(self, source: MessageSource, return_unread: Callable[[list[JsMessage]], None]) -> Messages:
        return TracedMessages(source, self._what, return_unread, observed(self._api.connection), self)


class TracedPushConsumer(PushConsumer):
    """A push consumer for whose messages there are spans when they are read."""

    def _make_messages(self, source: MessageSource, return_unread: Callable[[list[JsMessage]], None]) -> Messages:
        return TracedMessages(source, self._what, return_unread, observed(self._api.connection), self)


class TracedOrderedConsumer(OrderedConsumer):
    """An ordered consumer for whose messages there are spans when they are read."""

    def _make_fetch(self, source: MessageSource) -> Fetch:
        state = self._state
        return TracedFetch(source, state.put_back, observed(state.connection), self)

    def _make_messages(self, source: MessageSource) -> Messages:
        state = self._state
        return TracedMessages(source, self._what, state.put_back, observed(state.connection), self)


class TracedStream(Stream):
    """A stream whose consumers are traced."""

    _ordered = TracedOrderedConsumer
    _pushed = TracedPushConsumer

    def _consumer(self, name: str, info: ConsumerInfo | None) -> PullConsumer:
        return TracedConsumer(self._api, self.name, name, info)


_Consumer: TypeAlias = TracedConsumer | TracedPushConsumer | TracedOrderedConsumer


def _received(client: Observed, consumer: _Consumer, messages: list[JsMessage], began: int, *, batch: bool) -> None:
    if client.spans is not None:
        client.spans.received(
            client,
            began,
            messages,
            destination=consumer.stream_name,
            is_stream=True,
            group=consumer.name,
            batch=batch,
        )


class TracedMessages(Messages):
    """An endless stream of messages, with a span for each message or batch that a reader is given."""

    def __init__(
        self,
        source: MessageSource,
        what: str,
        return_unread: Callable[[list[JsMessage]], None],
        client: Observed,
        consumer: _Consumer,
    ) -> None:
        super().__init__(source, what, return_unread)
        self._client, self._of = client, consumer

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return _handed_over(super().__aiter__(), self._received)

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[JsMessage]]:
        """``Messages.batches`` with a span for each."""
        return _handed_over(super().batches(max_messages), self._received_batch)

    async def next(self, timeout: Duration | None = None) -> JsMessage:
        """``Messages.next`` in a span."""
        begun = time_ns()
        message = await super().next(timeout)
        self._received(message, begun)
        return message

    def _received(self, message: JsMessage, begun: int) -> None:
        _received(self._client, self._of, [message], begun, batch=False)

    def _received_batch(self, messages: list[JsMessage], begun: int) -> None:
        _received(self._client, self._of, messages, begun, batch=True)


class TracedFetch(Fetch):
    """A fetch: awaited it is a span, linked to those of the messages; iterated, each message has one."""

    def __init__(
        self,
        source: MessageSource,
        put_back: Callable[[list[JsMessage]], None],
        client: Observed,
        consumer: _Consumer,
    ) -> None:
        super().__init__(source, put_back)
        self._client, self._of = client, consumer

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        self._begun = True
        return TracedFetchIterator(self, self._buffer.ready, self._received)

    def _received(self, message: JsMessage, begun: int) -> None:
        _received(self._client, self._of, [message], begun, batch=False)

    async def _collect(self) -> list[JsMessage]:
        client, consumer = self._client, self._of
        if client.spans is None:
            return await super()._collect()
        with client.spans.span(
            "receive",
            "receive",
            SpanKind.CLIENT,
            consumer.stream_name,
            client=client,
            is_stream=True,
            group=consumer.name,
        ) as begun:
            with within():
                messages = await super()._collect()
            begun.consumed = len(messages)
            if begun.span.is_recording():
                begun.span.set_attribute("messaging.batch.message_count", len(messages))
                for link in links_to(messages):
                    begun.span.add_link(link.context)
            return messages


class TracedFetchIterator(FetchIterator):
    """The messages of a fetch, with a span for each."""

    def __init__(self, fetch: Fetch, ready: deque[JsMessage], told: Callable[[JsMessage, int], None]) -> None:
        super().__init__(fetch, ready)
        self._told = told

    async def __anext__(self) -> JsMessage:
        begun = time_ns()
        message = await super().__anext__()
        self._told(message, begun)
        return message
