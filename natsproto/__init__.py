"""natsproto: a pure-Python asyncio client for NATS and JetStream, written from the wire protocol up."""

from natsproto import errors
from natsproto._client import Client, Connecting, connect
from natsproto._core.connection import Connection
from natsproto._core.engine import State
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
from natsproto._core.inbox_limits import SlowPolicy
from natsproto._core.stats import Stats
from natsproto._core.subscription import Subscription
from natsproto._options import AuthChallenge, Options
from natsproto._signals import stop_event
from natsproto._version import __version__
from natsproto.errors import NatsError
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.auth import Credentials
from natsproto.protocol.frames import Message, ServerInfo
from natsproto.protocol.headers import Headers

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
    "Options",
    "PermissionViolation",
    "Reconnected",
    "Reconnecting",
    "ReplyRefused",
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
