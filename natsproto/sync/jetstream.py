"""JetStream for threads without an event loop. Owns nothing: every verb is that of ``natsproto.jetstream``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from natsproto.jetstream import consumer, context, message, stream
from natsproto.sync.facade import Facade, blocking, iterating, opening
from natsproto.sync.keyvalue import KeyValue
from natsproto.sync.messaging import Received
from natsproto.sync.objects import ObjectStore

if TYPE_CHECKING:
    from natsproto.jetstream.codec import Duration
    from natsproto.jetstream.kv.keys import KeyCodec
    from natsproto.jetstream.message import Metadata


class JsMessage(Received[message.JsMessage]):
    """A message that a consumer delivered; answer for it once."""

    ack = blocking(message.JsMessage.ack)
    ack_sync = blocking(message.JsMessage.ack_sync)
    nak = blocking(message.JsMessage.nak)
    term = blocking(message.JsMessage.term)
    in_progress = blocking(message.JsMessage.in_progress)

    @property
    def metadata(self) -> Metadata:
        """Where the message stands in its stream."""
        return self._inner.metadata

    @property
    def is_acked(self) -> bool:
        """Whether this object was answered for."""
        return self._inner.is_acked


class PullConsumer(Facade[consumer.PullConsumer]):
    """A consumer of a stream: ``fetch``, ``next``, ``messages``."""

    info = blocking(consumer.PullConsumer.info)
    delete = blocking(consumer.PullConsumer.delete)
    pause = blocking(consumer.PullConsumer.pause)
    resume = blocking(consumer.PullConsumer.resume)
    next = opening(consumer.PullConsumer.next, JsMessage)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._inner.name

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
    ) -> list[JsMessage]:
        """Pulls up to ``max_messages`` (default 500) and ``max_bytes``; what has come after ``timeout`` seconds, which
        may be nothing. Raises what ``natsproto.jetstream.consumer.PullConsumer.fetch`` raises.
        """

        async def fetched() -> list[message.JsMessage]:
            return await self._inner.fetch(max_messages, timeout=timeout, max_bytes=max_bytes, no_wait=no_wait)

        return [JsMessage(self._portal, one) for one in self._portal.call(fetched)]

    def messages(self, *, max_messages: int | None = None, stop_after: int = 0) -> Iterator[JsMessage]:
        """Yields messages without end, or ``stop_after``; up to ``max_messages`` (default 500) are pulled ahead.

        Raises what ``natsproto.jetstream.consumer.PullConsumer.messages`` raises. What was pulled and not yielded
        when the loop is left is what the next reader of this handle gets first.
        """
        messages = self._portal.run(self._inner.messages, max_messages=max_messages, stop_after=stop_after)
        self._portal.call(messages.__aenter__)
        try:
            for one in self._portal.iterate(messages):
                yield JsMessage(self._portal, one)
        finally:
            self._portal.call(messages.__aexit__, None, None, None)


class Stream(Facade[stream.Stream]):
    """A stream: its messages and its consumers."""

    info = blocking(stream.Stream.info)
    update = blocking(stream.Stream.update)
    purge = blocking(stream.Stream.purge)
    get_message = blocking(stream.Stream.get_message)
    get_last_message = blocking(stream.Stream.get_last_message)
    delete_message = blocking(stream.Stream.delete_message)
    get_batch = iterating(stream.Stream.get_batch)
    get_last_messages = iterating(stream.Stream.get_last_messages)
    create_consumer = opening(stream.Stream.create_consumer, PullConsumer)
    create_or_update_consumer = opening(stream.Stream.create_or_update_consumer, PullConsumer)
    consumer = opening(stream.Stream.consumer, PullConsumer)
    delete_consumer = blocking(stream.Stream.delete_consumer)
    consumer_names = iterating(stream.Stream.consumer_names)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._inner.name


class JetStream(Facade[context.JetStream]):
    """JetStream of one account or domain."""

    publish = blocking(context.JetStream.publish)
    account_info = blocking(context.JetStream.account_info)
    create_stream = opening(context.JetStream.create_stream, Stream)
    update_stream = opening(context.JetStream.update_stream, Stream)
    create_or_update_stream = opening(context.JetStream.create_or_update_stream, Stream)
    stream = opening(context.JetStream.stream, Stream)
    delete_stream = blocking(context.JetStream.delete_stream)
    stream_names = iterating(context.JetStream.stream_names)
    stream_name_by_subject = blocking(context.JetStream.stream_name_by_subject)

    create_key_value = opening(context.JetStream.create_key_value, KeyValue)
    update_key_value = opening(context.JetStream.update_key_value, KeyValue)
    create_or_update_key_value = opening(context.JetStream.create_or_update_key_value, KeyValue)
    delete_key_value = blocking(context.JetStream.delete_key_value)
    key_value_names = iterating(context.JetStream.key_value_names)

    create_object_store = opening(context.JetStream.create_object_store, ObjectStore)
    update_object_store = opening(context.JetStream.update_object_store, ObjectStore)
    create_or_update_object_store = opening(context.JetStream.create_or_update_object_store, ObjectStore)
    object_store = opening(context.JetStream.object_store, ObjectStore)
    delete_object_store = blocking(context.JetStream.delete_object_store)
    object_store_names = iterating(context.JetStream.object_store_names)

    def key_value(
        self,
        bucket: str,
        *,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue:
        """The bucket of that name; see the async client. Its values are bytes."""
        return KeyValue(
            self._portal,
            self._portal.call(self._inner.key_value, bucket, key_codec=key_codec, bind=bind, timeout=timeout),
        )
