"""Types for annotations, such as those of a program's own functions around natsproto. Names only.

``HeadersLike`` and the like are what a call accepts; ``StreamArgs`` and the like the keyword arguments of a call that
configures something, for ``**fields: Unpack[StreamArgs]``. The classes of natsproto are in their own modules.
"""

from natsproto._core.inbox.handler import Handler as MessageHandler
from natsproto._core.inbox.inbox_limits import SlowPolicyLike
from natsproto._core.request_many import Sentinel
from natsproto._durations import Default
from natsproto._options.options import AuthSource, Dialer, OptionArgs, Secret
from natsproto.jetstream._api.trace import TraceCallback
from natsproto.jetstream._consumer.handler_options import (
    ConsumeArgs,
    HandlerArgs,
    NakDelay,
    OnError,
    OnSuccess,
    OrderedArgs,
)
from natsproto.jetstream._consumer.handler_options import Handler as JsMessageHandler
from natsproto.jetstream._consumer.pull_options import PrefetchArgs, PriorityArgs, ReadArgs
from natsproto.jetstream._publish.headers import ExpectationArgs, MessageArgs
from natsproto.jetstream._publish.schedule import ScheduleArgs
from natsproto.jetstream._typed import OnInvalid
from natsproto.jetstream._values.arguments import ConsumerArgs, KeyValueArgs, ObjectStoreArgs, StreamArgs
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.policies import (
    AckPolicyLike,
    CompressionLike,
    DeliverPolicyLike,
    DiscardPolicyLike,
    PersistModeLike,
    PriorityPolicyLike,
    ReplayPolicyLike,
    RetentionPolicyLike,
    StorageTypeLike,
)
from natsproto.jetstream.kv._entry import Ttl
from natsproto.jetstream.objectstore._upload import ObjectContent
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike
from natsproto.protocol.pool import ServerState
from natsproto.service._endpoint import Handler as RequestHandler
from natsproto.service._endpoint import StatsHandler
from natsproto.service._service import QueueGroup
from natsproto.system import AccountKind, ServerKind
from natsproto.typed import TypedHandler

__all__ = [
    "AccountKind",
    "AckPolicyLike",
    "AuthSource",
    "CompressionLike",
    "ConsumeArgs",
    "ConsumerArgs",
    "Default",
    "DeliverPolicyLike",
    "Dialer",
    "DiscardPolicyLike",
    "Duration",
    "ExpectationArgs",
    "HandlerArgs",
    "HeadersLike",
    "JsMessageHandler",
    "KeyValueArgs",
    "MessageArgs",
    "MessageHandler",
    "NakDelay",
    "ObjectContent",
    "ObjectStoreArgs",
    "OnError",
    "OnInvalid",
    "OnSuccess",
    "OptionArgs",
    "OrderedArgs",
    "Payload",
    "PersistModeLike",
    "PrefetchArgs",
    "PriorityArgs",
    "PriorityPolicyLike",
    "QueueGroup",
    "ReadArgs",
    "ReplayPolicyLike",
    "RequestHandler",
    "RetentionPolicyLike",
    "ScheduleArgs",
    "Secret",
    "Sentinel",
    "ServerKind",
    "ServerState",
    "SlowPolicyLike",
    "StatsHandler",
    "StorageTypeLike",
    "StreamArgs",
    "TraceCallback",
    "Ttl",
    "TypedHandler",
]
