"""JetStream: streams, consumers and the stores on top of them. Begin with ``Client.jetstream()``.

It uses the core through its public methods and the few others that ``LAYER_INTERFACE`` in tests/house.py lists. The
names of the key/value and object stores, of groups and of advisories are in ``natsproto.jetstream.kv``,
``natsproto.jetstream.objectstore``, ``natsproto.jetstream.groups`` and ``natsproto.jetstream.advisories``, all others
in this package.
"""

from typing import TYPE_CHECKING

from natsproto import _introspection, _late_names, errors
from natsproto.jetstream._admin import Admin
from natsproto.jetstream._api_trace import ApiTrace
from natsproto.jetstream._backup import Progress
from natsproto.jetstream._batch_get import StoredMessages
from natsproto.jetstream._bucket_config import KeyValueConfig, ObjectStoreConfig
from natsproto.jetstream._codec import Unlisted
from natsproto.jetstream._config import ConsumerConfig, StreamConfig
from natsproto.jetstream._config_parts import (
    ExternalStream,
    Placement,
    Republish,
    StreamConsumerLimits,
    StreamSource,
    StreamSourceConsumer,
    SubjectTransform,
)
from natsproto.jetstream._consumer.consume import ConsumeContext
from natsproto.jetstream._consumer.consume_batches import BatchFailed
from natsproto.jetstream._consumer.delivery_events import AckWaitExceeded, DeliveriesExpired, LastDeliveriesUnhandled
from natsproto.jetstream._consumer.handle import Consumer, PullConsumer
from natsproto.jetstream._consumer.messages import ConsumerNotice, Fetch, Messages
from natsproto.jetstream._consumer.ordered import OrderedConsumer
from natsproto.jetstream._consumer.push import PushConsumer
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._counter import CounterValue
from natsproto.jetstream._cursor import Advance, Cursor
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._info import (
    AccountInfo,
    AccountLimits,
    AccountTier,
    ApiStats,
    ClusterInfo,
    ConsumerInfo,
    ConsumerPause,
    ConsumerReset,
    DesiredCluster,
    ErrorInfo,
    LostStreamData,
    MetaRescue,
    PeerInfo,
    PriorityGroupState,
    PubAck,
    ReconfigurationOrigin,
    ReconfigurationStatus,
    SequenceInfo,
    StreamAlternate,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
)
from natsproto.jetstream._listing import Listing
from natsproto.jetstream._message import JsMessage, Metadata
from natsproto.jetstream._policies import (
    AckPolicy,
    Compression,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
)
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast_batch import FastPublisher
from natsproto.jetstream._publish.publish import StreamLostMessages
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.schedule import Schedule
from natsproto.jetstream._source import MessageSource
from natsproto.jetstream._stream import Stream
from natsproto.jetstream._timestamp import Timestamp
from natsproto.jetstream._typed import Received, TypedJetStream
from natsproto.jetstream._watch_callback import WatchCallback

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckFuture",
    "AckPolicy",
    "AckWaitExceeded",
    "Admin",
    "Advance",
    "ApiStats",
    "ApiTrace",
    "AtomicBatch",
    "BatchFailed",
    "ClusterInfo",
    "Compression",
    "ConsumeContext",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerNotice",
    "ConsumerPause",
    "ConsumerReset",
    "CounterValue",
    "Cursor",
    "DeliverPolicy",
    "DeliveriesExpired",
    "DesiredCluster",
    "DiscardPolicy",
    "ErrorInfo",
    "ExternalStream",
    "FastPublisher",
    "Fetch",
    "JetStream",
    "JsMessage",
    "KeyValueConfig",
    "LastDeliveriesUnhandled",
    "Listing",
    "LostStreamData",
    "MessageSource",
    "Messages",
    "MetaRescue",
    "Metadata",
    "ObjectStoreConfig",
    "OrderedConsumer",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "Progress",
    "PubAck",
    "Publisher",
    "PullConsumer",
    "PushConsumer",
    "RawMessage",
    "Received",
    "ReconfigurationOrigin",
    "ReconfigurationStatus",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "Schedule",
    "SequenceInfo",
    "StorageType",
    "StoredMessages",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamInfo",
    "StreamLostMessages",
    "StreamSource",
    "StreamSourceConsumer",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "Timestamp",
    "TypedJetStream",
    "Unlisted",
    "WatchCallback",
]

_ARGUMENTS = dict.fromkeys(
    ("StreamArgs", "ConsumerArgs", "KeyValueArgs", "ObjectStoreArgs"), "natsproto.jetstream._arguments"
)
for _kind in (JetStream, Stream):
    _introspection.name_fields(_kind, {"MessageArgs": "natsproto.jetstream._publish.headers", **_ARGUMENTS})

if not TYPE_CHECKING:
    __getattr__ = _late_names.LateNames(
        __name__,
        advice={
            **{name: f"use natsproto.errors.{name}" for name in errors.__all__},
            **{name: f"use natsproto.retry.{name}" for name in ("Retry", "RetryPolicy", "RetryDelay")},
            **{
                name: f"use natsproto.jetstream.kv.{name}"
                for name in ("KeyValue", "KeyValueEntry", "KeyWatcher", "Lock")
            },
            **{name: f"use natsproto.jetstream.objectstore.{name}" for name in ("ObjectStore", "ObjectInfo")},
        },
    ).get
