"""Every error natsproto raises.

Errors carry facts as fields, and their messages say what to do. Timeouts are also ``TimeoutError``, bad arguments also
``ValueError``, missing keys also ``KeyError``. Errors of other libraries (``OSError``, ``ssl.SSLError`` …) are
translated and kept as ``__cause__``. ``asyncio.CancelledError`` is never wrapped.

::

    NatsError
    ├── ConfigError(ValueError)
    │   ├── InvalidSubject
    │   ├── InvalidHeader
    │   └── InvalidCredentials
    ├── ProtocolError
    │   ├── LocalProtocolError
    │   │   └── PayloadTooLarge
    │   └── RemoteProtocolError
    ├── Unavailable
    │   ├── ConnectFailed
    │   │   ├── LoginRefused(NotAuthorized)
    │   │   └── TlsConnectFailed(TlsFailed)
    │   ├── NotAuthorized
    │   ├── ConnectionLost
    │   │   └── StaleConnection
    │   ├── TlsFailed
    │   ├── ConnectionClosed
    │   └── OutboxFull
    ├── AlreadyExists
    ├── NotFound
    ├── RequestTimeout(TimeoutError)
    │   └── DrainTimeout
    ├── NoResponders
    ├── InvalidPayload(ValueError)
    ├── HandlerTimeout(TimeoutError)
    ├── SubscriptionClosed
    ├── SlowConsumer
    ├── StreamBroken
    ├── ServerError
    │   ├── PermissionDenied
    │   └── TooManySubscriptions
    ├── UnsupportedByServer
    ├── JetStreamError
    │   ├── ApiError
    │   │   ├── BadRequest
    │   │   ├── BatchRefused
    │   │   ├── ConsumerExists(AlreadyExists)
    │   │   ├── ConsumerNotFound(NotFound)
    │   │   ├── CounterRefused
    │   │   ├── InvalidConsumerConfig
    │   │   ├── InvalidStreamConfig
    │   │   ├── JetStreamNotEnabled
    │   │   ├── JetStreamUnavailable
    │   │   ├── LimitReached
    │   │   ├── MessageNotFound(NotFound)
    │   │   ├── MessageTooLarge
    │   │   ├── ScheduleRefused
    │   │   ├── StreamExists(AlreadyExists)
    │   │   ├── StreamNotFound(NotFound)
    │   │   ├── StreamProtected
    │   │   ├── SubjectsOverlap
    │   │   ├── TooManyRequests
    │   │   ├── TtlRefused
    │   │   └── WrongExpectation
    │   │       └── WrongLastSequence
    │   ├── AlreadyAcked
    │   ├── AlreadyBound
    │   ├── ConsumerGone
    │   │   └── ConsumerDeleted(ConsumerNotFound)
    │   ├── CursorMoved
    │   ├── DataLost
    │   ├── DeliveryUnknown
    │   ├── GroupChanged
    │   ├── GroupNotFound(NotFound)
    │   ├── HeartbeatMissed
    │   ├── InvalidReply
    │   ├── NoStream
    │   │   └── StreamUnavailable(Unavailable)
    │   ├── PublishFailed
    │   ├── PublishUncertain
    │   │   └── PublishTimeout(RequestTimeout)
    │   ├── PullRefused
    │   ├── SourceChanged
    │   ├── StateTooLarge
    │   └── StreamWentBack
    ├── KeyValueError
    │   ├── BucketExists(ObjectStoreError, AlreadyExists)
    │   ├── BucketNotFound(ObjectStoreError, NotFound)
    │   ├── KeyNotFound(NotFound, KeyError)
    │   │   └── KeyDeleted
    │   ├── LockLost
    │   └── WrongRevision
    │       └── KeyExists(AlreadyExists)
    ├── ObjectStoreError
    │   ├── ObjectNotFound(NotFound, KeyError)
    │   ├── ObjectExists(AlreadyExists)
    │   ├── ObjectChanged
    │   ├── ObjectLinkError
    │   └── DigestMismatch
    └── ServiceError
"""

from typing import TYPE_CHECKING

from natsproto._help import late_names as _late_names
from natsproto._help import nats_py_names as _nats_py_names
from natsproto.errors._base import (
    AlreadyExists,
    ConfigError,
    InvalidCredentials,
    InvalidHeader,
    InvalidSubject,
    NatsError,
    NotFound,
    RequestTimeout,
    Unavailable,
)
from natsproto.errors._client import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    DrainTimeout,
    HandlerTimeout,
    InvalidPayload,
    LocalProtocolError,
    LoginRefused,
    NoResponders,
    NotAuthorized,
    OutboxFull,
    PayloadTooLarge,
    PermissionDenied,
    ProtocolError,
    RemoteProtocolError,
    ServerError,
    SlowConsumer,
    StaleConnection,
    StreamBroken,
    SubscriptionClosed,
    TlsConnectFailed,
    TlsFailed,
    TooManySubscriptions,
    UnsupportedByServer,
)
from natsproto.errors._jetstream import (
    AlreadyAcked,
    AlreadyBound,
    ApiError,
    BadRequest,
    BatchRefused,
    ConsumerDeleted,
    ConsumerExists,
    ConsumerGone,
    ConsumerNotFound,
    CounterRefused,
    CursorMoved,
    DataLost,
    DeliveryUnknown,
    FailedMessage,
    GroupChanged,
    GroupNotFound,
    HeartbeatMissed,
    InvalidConsumerConfig,
    InvalidReply,
    InvalidStreamConfig,
    JetStreamError,
    JetStreamNotEnabled,
    JetStreamUnavailable,
    LimitReached,
    MessageNotFound,
    MessageTooLarge,
    NoStream,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    PullRefused,
    ScheduleRefused,
    SourceChanged,
    StateTooLarge,
    StreamExists,
    StreamNotFound,
    StreamProtected,
    StreamUnavailable,
    StreamWentBack,
    SubjectsOverlap,
    TooManyRequests,
    TtlRefused,
    WrongExpectation,
    WrongLastSequence,
)
from natsproto.errors._stores import (
    BucketExists,
    BucketNotFound,
    DigestMismatch,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    KeyValueError,
    LockLost,
    ObjectChanged,
    ObjectExists,
    ObjectLinkError,
    ObjectNotFound,
    ObjectStoreError,
    ServiceError,
    WrongRevision,
)

__all__ = [
    "AlreadyAcked",
    "AlreadyBound",
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "BatchRefused",
    "BucketExists",
    "BucketNotFound",
    "ConfigError",
    "ConnectFailed",
    "ConnectionClosed",
    "ConnectionLost",
    "ConsumerDeleted",
    "ConsumerExists",
    "ConsumerGone",
    "ConsumerNotFound",
    "CounterRefused",
    "CursorMoved",
    "DataLost",
    "DeliveryUnknown",
    "DigestMismatch",
    "DrainTimeout",
    "FailedMessage",
    "GroupChanged",
    "GroupNotFound",
    "HandlerTimeout",
    "HeartbeatMissed",
    "InvalidConsumerConfig",
    "InvalidCredentials",
    "InvalidHeader",
    "InvalidPayload",
    "InvalidReply",
    "InvalidStreamConfig",
    "InvalidSubject",
    "JetStreamError",
    "JetStreamNotEnabled",
    "JetStreamUnavailable",
    "KeyDeleted",
    "KeyExists",
    "KeyNotFound",
    "KeyValueError",
    "LimitReached",
    "LocalProtocolError",
    "LockLost",
    "LoginRefused",
    "MessageNotFound",
    "MessageTooLarge",
    "NatsError",
    "NoResponders",
    "NoStream",
    "NotAuthorized",
    "NotFound",
    "ObjectChanged",
    "ObjectExists",
    "ObjectLinkError",
    "ObjectNotFound",
    "ObjectStoreError",
    "OutboxFull",
    "PayloadTooLarge",
    "PermissionDenied",
    "ProtocolError",
    "PublishFailed",
    "PublishTimeout",
    "PublishUncertain",
    "PullRefused",
    "RemoteProtocolError",
    "RequestTimeout",
    "ScheduleRefused",
    "ServerError",
    "ServiceError",
    "SlowConsumer",
    "SourceChanged",
    "StaleConnection",
    "StateTooLarge",
    "StreamBroken",
    "StreamExists",
    "StreamNotFound",
    "StreamProtected",
    "StreamUnavailable",
    "StreamWentBack",
    "SubjectsOverlap",
    "SubscriptionClosed",
    "TlsConnectFailed",
    "TlsFailed",
    "TooManyRequests",
    "TooManySubscriptions",
    "TtlRefused",
    "Unavailable",
    "UnsupportedByServer",
    "WrongExpectation",
    "WrongLastSequence",
    "WrongRevision",
]


for _name in __all__:
    globals()[_name].__module__ = __name__  # shown in tracebacks, and where pickle looks for it

if not TYPE_CHECKING:
    __getattr__ = _late_names.LateNames(__name__, advice=_nats_py_names.ERROR_NAMES).get
