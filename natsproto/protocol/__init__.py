"""The NATS wire protocol without I/O: bytes in, events out; commands in, bytes out.

Nothing in this package knows sockets, clocks, tasks or randomness; what it needs of them is passed in. ``Link`` is one
connection: give it what the socket receives, do what its events say, send what it returns. ``Parser`` is the part of it
that reads frames, ``commands`` writes them.
"""

from natsproto.protocol import commands
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.auth import Credentials, connect_fields
from natsproto.protocol.frames import Message, Payload, Route, ServerInfo
from natsproto.protocol.headers import Headers, HeadersLike, encode_headers
from natsproto.protocol.line_parser import Limits
from natsproto.protocol.link import (
    InfoChanged,
    Link,
    LinkEvent,
    LinkFailed,
    LinkState,
    NeedCredentials,
    PongFor,
    Ready,
    ServerErr,
    UpgradeTls,
)
from natsproto.protocol.parser import MAX_MESSAGE, Parser
from natsproto.protocol.pool import ServerPool
from natsproto.protocol.subject import matches, publish_subject, queue_group, subscribe_subject
from natsproto.protocol.subscription_table import SubscriptionEntry, SubscriptionTable

__all__ = [
    "MAX_MESSAGE",
    "Credentials",
    "Headers",
    "HeadersLike",
    "InfoChanged",
    "Limits",
    "Link",
    "LinkEvent",
    "LinkFailed",
    "LinkState",
    "Message",
    "NeedCredentials",
    "Parser",
    "Payload",
    "PongFor",
    "Ready",
    "Route",
    "ServerAddress",
    "ServerErr",
    "ServerInfo",
    "ServerPool",
    "SubscriptionEntry",
    "SubscriptionTable",
    "UpgradeTls",
    "commands",
    "connect_fields",
    "encode_headers",
    "matches",
    "parse_servers",
    "publish_subject",
    "queue_group",
    "subscribe_subject",
]
