"""natsproto: a pure-Python asyncio client for NATS and JetStream, written from the wire protocol up."""

from natsproto.client import Client, Connecting, connect
from natsproto.core.connection import Connection, Stats
from natsproto.core.engine import State
from natsproto.core.events import (
    AttemptFailed,
    Closed,
    Connected,
    Denied,
    Disconnected,
    Event,
    HandlerFailed,
    LameDuck,
    Moved,
    Reconnected,
    Reconnecting,
    ServerComplained,
    ServersDiscovered,
    SlowConsumerDetected,
)
from natsproto.core.subscription import SlowPolicy, Subscription
from natsproto.options import AuthChallenge, Options
from natsproto.protocol.auth import Credentials
from natsproto.protocol.frames import Message, ServerInfo
from natsproto.protocol.headers import Headers
from natsproto.version import __version__

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
    "Moved",
    "Options",
    "Reconnected",
    "Reconnecting",
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
