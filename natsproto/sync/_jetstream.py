"""JetStream for threads without an event loop: blocking wrappers of the classes of ``natsproto.jetstream``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Unpack

from natsproto.jetstream import _context as context
from natsproto.jetstream._stream import stream
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.info import ConsumerInfo, StreamInfo
from natsproto.jetstream.kv._keys import KeyCodec
from natsproto.sync._admin import Admin, Advisories, Listing
from natsproto.sync._consumers import JsMessage, OrderedConsumer, PullConsumer, PushConsumer, consumer_of_kind
from natsproto.sync._cursor import Cursor
from natsproto.sync._groups import JoinArgs, JoinedMember, join_group
from natsproto.sync._keyvalue import KeyValue
from natsproto.sync._objects import ObjectStore
from natsproto.sync._publishers import AtomicBatch, FastPublisher, Publisher
from natsproto.sync._subscription import Message
from natsproto.sync._wrapper import SyncWrapper, as_batched_iterator, as_iterator, blocking, blocking_wrapped, wrapped


class Stream(SyncWrapper[stream.Stream]):
    """A stream with its messages and its consumers."""

    info: Final = blocking(stream.Stream.info)
    subjects: Final = as_iterator(stream.Stream.subjects)
    update: Final = blocking(stream.Stream.update)
    seal: Final = blocking(stream.Stream.seal)
    delete: Final = blocking(stream.Stream.delete)
    purge: Final = blocking(stream.Stream.purge)
    backup: Final = blocking(stream.Stream.backup)

    get_message: Final = blocking(stream.Stream.get_message)
    get_last_message: Final = blocking(stream.Stream.get_last_message)
    get_next_message: Final = blocking(stream.Stream.get_next_message)
    delete_message: Final = blocking(stream.Stream.delete_message)
    get_batch: Final = as_batched_iterator(stream.Stream.get_batch, RawMessage)
    get_last_messages: Final = as_batched_iterator(stream.Stream.get_last_messages, RawMessage)

    create_consumer: Final = blocking_wrapped(stream.Stream.create_consumer, PullConsumer)
    update_consumer: Final = blocking_wrapped(stream.Stream.update_consumer, consumer_of_kind)
    create_or_update_consumer: Final = blocking_wrapped(stream.Stream.create_or_update_consumer, PullConsumer)
    consumer: Final = blocking_wrapped(stream.Stream.consumer, PullConsumer)
    create_push_consumer: Final = blocking_wrapped(stream.Stream.create_push_consumer, PushConsumer)
    push_consumer: Final = blocking_wrapped(stream.Stream.push_consumer, PushConsumer)
    ordered_consumer: Final = wrapped(stream.Stream.ordered_consumer, OrderedConsumer)
    delete_consumer: Final = blocking(stream.Stream.delete_consumer)
    consumer_info: Final = blocking(stream.Stream.consumer_info)
    consumers: Final = wrapped(stream.Stream.consumers, Listing[ConsumerInfo])
    consumer_names: Final = as_iterator(stream.Stream.consumer_names)
    pause_consumer: Final = blocking(stream.Stream.pause_consumer)
    resume_consumer: Final = blocking(stream.Stream.resume_consumer)
    unpin_consumer: Final = blocking(stream.Stream.unpin_consumer)
    reset_consumer: Final = blocking(stream.Stream.reset_consumer)

    def join_group(
        self,
        group: str,
        handler: Callable[[JsMessage], object],
        *,
        threads: int = 1,
        partitions: int = 12,
        filters: Mapping[str, Iterable[int]] | Iterable[str] = (),
        name: str | None = None,
        ttl: Duration = 5.0,
        **options: Unpack[JoinArgs],
    ) -> JoinedMember:
        """Join a group whose members share the messages by key, and come and go by themselves; ``handler`` is called in
        ``threads`` threads. The group knows the member when this returns. Experimental.

        See ``groups.join`` of the async client. TypeError for an ``async def`` handler.

        Args:
            group: The name of the group, without dots, spaces and wildcards.
            handler: A plain function that is called with each message in a thread.
            threads: How many threads call the handler, and so how many messages are handled at a time; those of one key
                one after the other.
            partitions: Into how many parts keys are divided: the most members that get messages.
            filters: The subjects of the group; empty: all. A mapping has the numbers of the ``*`` (from 1) that form
                the key, as in ``{"orders.*.*": [1]}``.
            name: A name that stays when the process is replaced, such as that of a pod: the new one gets the same
                partitions, and the old one ends with GroupChanged. A-Z, a-z, 0-9, ``-``, ``_`` and ``=``. None: a new
                name for each member.
            ttl: Seconds after which a member that is silent has died, at least 1. A handler that blocks the event loop
                for two thirds of it looks dead.
            **options: How messages are handled, by keyword: those of JoinArgs.
        """
        return join_group(
            self._portal,
            self._inner,
            group,
            handler,
            threads,
            filters,
            {"partitions": partitions, "name": name, "ttl": ttl, **options},
        )

    @property
    def name(self) -> str:
        """The name that it was created with."""
        return self._inner.name

    @property
    def cached_info(self) -> StreamInfo:
        """The last info received from the server. LocalProtocolError for a handle that never requested it."""
        return self._inner.cached_info


class JetStream(SyncWrapper[context.JetStream]):
    """JetStream of one account or domain."""

    publish: Final = blocking(context.JetStream.publish)
    publisher: Final = wrapped(context.JetStream.publisher, Publisher)
    fast_publisher: Final = wrapped(context.JetStream.fast_publisher, FastPublisher)
    atomic_batch: Final = wrapped(context.JetStream.atomic_batch, AtomicBatch)
    cursor: Final = blocking_wrapped(context.JetStream.cursor, Cursor)
    account_info: Final = blocking(context.JetStream.account_info)

    counter_add: Final = blocking(context.JetStream.counter_add)
    counter_get: Final = blocking(context.JetStream.counter_get)
    counters: Final = as_iterator(context.JetStream.counters)
    cancel_schedule: Final = blocking(context.JetStream.cancel_schedule)
    replace_schedule: Final = blocking(context.JetStream.replace_schedule)

    create_stream: Final = blocking_wrapped(context.JetStream.create_stream, Stream)
    update_stream: Final = blocking_wrapped(context.JetStream.update_stream, Stream)
    create_or_update_stream: Final = blocking_wrapped(context.JetStream.create_or_update_stream, Stream)
    stream: Final = blocking_wrapped(context.JetStream.stream, Stream)
    delete_stream: Final = blocking(context.JetStream.delete_stream)
    restore_stream: Final = blocking_wrapped(context.JetStream.restore_stream, Stream)
    streams: Final = wrapped(context.JetStream.streams, Listing[StreamInfo])
    stream_names: Final = as_iterator(context.JetStream.stream_names)
    stream_name_by_subject: Final = blocking(context.JetStream.stream_name_by_subject)

    create_key_value: Final = blocking_wrapped(context.JetStream.create_key_value, KeyValue)
    update_key_value: Final = blocking_wrapped(context.JetStream.update_key_value, KeyValue)
    create_or_update_key_value: Final = blocking_wrapped(context.JetStream.create_or_update_key_value, KeyValue)
    delete_key_value: Final = blocking(context.JetStream.delete_key_value)
    key_value_names: Final = as_iterator(context.JetStream.key_value_names)
    key_value_statuses: Final = as_iterator(context.JetStream.key_value_statuses)

    create_object_store: Final = blocking_wrapped(context.JetStream.create_object_store, ObjectStore)
    update_object_store: Final = blocking_wrapped(context.JetStream.update_object_store, ObjectStore)
    create_or_update_object_store: Final = blocking_wrapped(
        context.JetStream.create_or_update_object_store, ObjectStore
    )
    object_store: Final = blocking_wrapped(context.JetStream.object_store, ObjectStore)
    delete_object_store: Final = blocking(context.JetStream.delete_object_store)
    object_store_names: Final = as_iterator(context.JetStream.object_store_names)
    object_store_statuses: Final = as_iterator(context.JetStream.object_store_statuses)

    advisories: Final = wrapped(context.JetStream.advisories, Advisories)

    @property
    def admin(self) -> Admin:
        """The administration of the cluster: leaders, peers, servers and accounts."""
        return Admin(self._portal, self._inner.admin)

    def message(self, message: Message) -> JsMessage:
        """Return a core message that a consumer delivered as a message that can be acknowledged.

        LocalProtocolError when its reply subject is not an ack subject.

        Args:
            message: A message of core NATS that a consumer has delivered.
        """
        portal, inner = message._reach()
        return JsMessage(portal, self._inner.message(inner))

    def key_value(
        self,
        bucket: str,
        *,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue:
        """Open the bucket of that name; see the async client. Its values are bytes.

        Args:
            bucket: The name of the bucket, without ``KV_`` or ``OBJ_``.
            key_codec: Converts keys that the server does not allow, such as paths; every client of the bucket needs the
                same. None: keys are sent as they are.
            bind: Send no request, so that the bucket may not exist.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return KeyValue(
            self._portal,
            self._portal.call(self._inner.key_value, bucket, key_codec=key_codec, bind=bind, timeout=timeout),
        )
