"""JetStream: streams, consumers and the stores on top of them. Begin with ``Client.jetstream()``.

It uses a connection through its public methods and the members of ``natsproto._core.seam``.
The names of the key/value and object stores, of groups and of advisories are in ``natsproto.jetstream.kv``,
``natsproto.jetstream.objectstore``, ``natsproto.jetstream.groups`` and ``natsproto.jetstream.advisories``, all others
in this package.
"""

from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._help import guesses as _guesses
from natsproto._help import introspection as _introspection
from natsproto._help import late_names as _late_names
from natsproto.jetstream._api.admin import Admin
from natsproto.jetstream._api.listing import Listing
from natsproto.jetstream._api.trace import ApiTrace
from natsproto.jetstream._consumer.ack_subject import Metadata
from natsproto.jetstream._consumer.consume import ConsumeContext
from natsproto.jetstream._consumer.consume_batches import BatchFailed
from natsproto.jetstream._consumer.delivery.delivery_events import (
    AckWaitExceeded,
    DeliveriesExpired,
    LastDeliveriesUnhandled,
)
from natsproto.jetstream._consumer.handle import Consumer, PullConsumer
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import ConsumerNotice, Fetch, Messages
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._consumer.push.push import PushConsumer
from natsproto.jetstream._consumer.watch_callback import WatchCallback
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._cursor import Advance, Cursor
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast.fast_batch import FastPublisher
from natsproto.jetstream._publish.publish import StreamLostMessages
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.schedule import Schedule
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._stream.batch_get import StoredMessages
from natsproto.jetstream._stream.counter import CounterValue
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._typed import Received, TypedJetStream
from natsproto.jetstream._values.bucket_config import KeyValueConfig, ObjectStoreConfig
from natsproto.jetstream._values.codec import Unlisted
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import (
    ExternalStream,
    Placement,
    Republish,
    StreamConsumerLimits,
    StreamSource,
    StreamSourceConsumer,
    SubjectTransform,
)
from natsproto.jetstream._values.info import (
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
from natsproto.jetstream._values.policies import (
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
from natsproto.jetstream._values.source import MessageSource
from natsproto.jetstream._values.timestamp import Timestamp

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

_guesses.attach(__name__)

_ARGUMENTS = {
    **dict.fromkeys(
        ("StreamArgs", "ConsumerArgs", "KeyValueArgs", "ObjectStoreArgs"), "natsproto.jetstream._values.arguments"
    ),
    **dict.fromkeys(("PrefetchArgs", "PriorityArgs", "ReadArgs"), "natsproto.jetstream._consumer.pull_options"),
    **dict.fromkeys(("ConsumeArgs", "HandlerArgs", "OrderedArgs"), "natsproto.jetstream._consumer.handler_options"),
}
_ARGUMENTS["MessageArgs"] = "natsproto.jetstream._publish.headers"
for _kind in (JetStream, Stream, OrderedConsumer, PullConsumer, PushConsumer):
    _introspection.name_fields(_kind, _ARGUMENTS)

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
