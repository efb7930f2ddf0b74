"""natsproto: a pure-Python asyncio client for NATS and JetStream, written from the wire protocol up."""

from natsproto._client import Client, Connecting, connect
from natsproto._core.connection import Connection, Stats
from natsproto._core.engine import State
from natsproto._core.events import (
    AttemptFailed,
    Closed,
    Connected,
    Denied,
    Disconnected,
    Event,
    HandlerFailed,
    LameDuck,
    MessageDropped,
    Moved,
    Reconnected,
    Reconnecting,
    ServerComplained,
    ServersDiscovered,
    SlowConsumerDetected,
)
from natsproto._core.subscription import SlowPolicy, Subscription
from natsproto._options import AuthChallenge, Options
from natsproto._version import __version__
from natsproto.errors import NatsError
from natsproto.protocol.auth import Credentials
from natsproto.protocol.frames import Message, ServerInfo
from natsproto.protocol.headers import Headers
from natsproto.protocol.pool import ServerAddress

__all__ = [
    "AttemptFailed",
    "AuthChallenge",
    "Client",
    "Closed",
    "Connected",
    "Connecting",
    "Connection",
    "Credentials",
    "Denied",
    "Disconnected",
    "Event",
    "HandlerFailed",
    "Headers",
    "LameDuck",
    "Message",
    "MessageDropped",
    "Moved",
    "NatsError",
    "Options",
    "Reconnected",
    "Reconnecting",
    "ServerAddress",
    "ServerComplained",
    "ServerInfo",
    "ServersDiscovered",
    "SlowConsumerDetected",
    "SlowPolicy",
    "State",
    "Stats",
    "Subscription",
    "__version__",
    "connect",
]
