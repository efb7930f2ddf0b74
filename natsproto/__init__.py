"""natsproto: a pure-Python asyncio client for NATS and JetStream, written from the wire protocol up.

The names that a first program needs are here. Those of JetStream, its stores, services and retries are imported when
they are used, and so are the modules ``natsproto.jetstream``, ``service``, ``sync``, ``testing`` and others.
"""

from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._client import Client, Connecting, connect
from natsproto._core.connection import Connection
from natsproto._core.engine.engine import State
from natsproto._core.events import (
    AttemptFailed,
    Closed,
    Connected,
    Disconnected,
    Event,
    HandlerFailed,
    LameDuck,
    LoopBlocked,
    MessageDropped,
    Moved,
    PermissionViolation,
    Reconnected,
    Reconnecting,
    ReplyRefused,
    ServerErrorEvent,
    ServersDiscovered,
    SlowConsumerDetected,
)
from natsproto._core.inbox.inbox_limits import SlowPolicy
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.stats import Stats
from natsproto._help import guesses as _guesses
from natsproto._help import late_names as _late_names
from natsproto._help import nats_py_names as _nats_py_names
from natsproto._options.options import AuthChallenge, Options
from natsproto._signals import stop_event
from natsproto._version import __version__
from natsproto.errors import NatsError, NoResponders, RequestTimeout
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.auth import Credentials
from natsproto.protocol.frames import Message, ServerInfo
from natsproto.protocol.headers import Headers

if TYPE_CHECKING:
    from natsproto.jetstream import ConsumerConfig as ConsumerConfig
    from natsproto.jetstream import JetStream as JetStream
    from natsproto.jetstream import JsMessage as JsMessage
    from natsproto.jetstream import StreamConfig as StreamConfig
    from natsproto.jetstream.kv import KeyValue as KeyValue
    from natsproto.jetstream.objectstore import ObjectStore as ObjectStore
    from natsproto.retry import Retry as Retry
    from natsproto.retry import RetryPolicy as RetryPolicy

__all__ = [
    "AttemptFailed",
    "AuthChallenge",
    "Client",
    "Closed",
    "Connected",
    "Connecting",
    "Connection",
    "Credentials",
    "Disconnected",
    "Event",
    "HandlerFailed",
    "Headers",
    "LameDuck",
    "LoopBlocked",
    "Message",
    "MessageDropped",
    "Moved",
    "NatsError",
    "NoResponders",
    "Options",
    "PermissionViolation",
    "Reconnected",
    "Reconnecting",
    "ReplyRefused",
    "RequestTimeout",
    "ServerAddress",
    "ServerErrorEvent",
    "ServerInfo",
    "ServersDiscovered",
    "SlowConsumerDetected",
    "SlowPolicy",
    "State",
    "Stats",
    "Subscription",
    "__version__",
    "connect",
    "errors",
    "stop_event",
]

_guesses.attach(__name__)

_LATE = _late_names.LateNames(
    __name__,
    homes={
        **dict.fromkeys(("ConsumerConfig", "JetStream", "JsMessage", "StreamConfig"), "natsproto.jetstream"),
        "KeyValue": "natsproto.jetstream.kv",
        "ObjectStore": "natsproto.jetstream.objectstore",
        **dict.fromkeys(("Retry", "RetryPolicy"), "natsproto.retry"),
    },
    modules=(
        "auth",
        "codecs",
        "health",
        "jetstream",
        "middleware",
        "outbox",
        "retry",
        "service",
        "sync",
        "system",
        "testing",
    ),
    advice=_nats_py_names.MODULE_NAMES,
)

if not TYPE_CHECKING:
    __getattr__, __dir__ = _LATE.get, _LATE.names
