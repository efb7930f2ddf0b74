"""JetStream: streams, consumers and what is built on them. ``Client.jetstream()`` is the way in.

Uses only the public verbs of a connection. The key/value and object stores, partitioned groups and advisories are
packages and modules of their own (``natsproto.jetstream.kv``, ``.objectstore``, ``.groups``, ``.advisory``).
"""

from natsproto.jetstream.backup import Progress
from natsproto.jetstream.config import (
    AckPolicy,
    Compression,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    ExternalStream,
    KeyValueConfig,
    ObjectStoreConfig,
    PersistMode,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    Republish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from natsproto.jetstream.context import JetStream
from natsproto.jetstream.counter import CounterValue
from natsproto.jetstream.direct import RawMessage, StoredMessages
from natsproto.jetstream.exchange import ApiExchange
from natsproto.jetstream.info import (
    AccountInfo,
    ConsumerInfo,
    ConsumerPause,
    ConsumerReset,
    PubAck,
    StreamInfo,
    StreamState,
)
from natsproto.jetstream.message import JsMessage, Metadata
from natsproto.jetstream.publishing.ackfuture import AckFuture
from natsproto.jetstream.publishing.batch import AtomicBatch
from natsproto.jetstream.publishing.fast import FastPublisher
from natsproto.jetstream.publishing.publish import Publisher
from natsproto.jetstream.publishing.schedule import Schedule
from natsproto.jetstream.reading.consumer import Consumer, PullConsumer
from natsproto.jetstream.reading.fetch import Fetch
from natsproto.jetstream.reading.handling import Consumption
from natsproto.jetstream.reading.ordered import OrderedConsumer
from natsproto.jetstream.reading.push import PushConsumer
from natsproto.jetstream.reading.reader import Messages
from natsproto.jetstream.stream import Stream
from natsproto.jetstream.timestamp import Timestamp

__all__ = [
    "AccountInfo",
    "AckFuture",
    "AckPolicy",
    "ApiExchange",
    "AtomicBatch",
    "Compression",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerPause",
    "ConsumerReset",
    "Consumption",
    "CounterValue",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "FastPublisher",
    "Fetch",
    "JetStream",
    "JsMessage",
    "KeyValueConfig",
    "Messages",
    "Metadata",
    "ObjectStoreConfig",
    "OrderedConsumer",
    "PersistMode",
    "Placement",
    "PriorityPolicy",
    "Progress",
    "PubAck",
    "Publisher",
    "PullConsumer",
    "PushConsumer",
    "RawMessage",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "Schedule",
    "StorageType",
    "StoredMessages",
    "Stream",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamInfo",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "Timestamp",
]
