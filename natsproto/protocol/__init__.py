"""The NATS wire protocol without I/O: bytes in, events out; commands in, bytes out.

Nothing in this package knows sockets, clocks, tasks or randomness; what it needs of them is passed in. ``Link`` is one
connection: give it what the socket receives, do what its events say, send what it returns. ``Parser`` is the part of it
that reads frames, ``commands`` writes them.
"""

from natsproto.protocol import commands
from natsproto.protocol.auth import Credentials, connect_fields
from natsproto.protocol.frames import Message, Payload, ServerInfo, Sink
from natsproto.protocol.headers import Headers, HeadersLike, encode_headers
from natsproto.protocol.lines import Limits
from natsproto.protocol.link import (
    Broken,
    Complaint,
    InfoChanged,
    Link,
    LinkEvent,
    LinkState,
    NeedCredentials,
    PongFor,
    Ready,
    UpgradeTls,
)
from natsproto.protocol.parser import MAX_MESSAGE, Parser
from natsproto.protocol.pool import ServerAddress, ServerPool, parse_servers
from natsproto.protocol.subject import matches, publish_subject, queue_group, subscribe_subject
from natsproto.protocol.table import Interest, SubscriptionTable

__all__ = [
    "MAX_MESSAGE",
    "Broken",
    "Complaint",
    "Credentials",
    "Headers",
    "HeadersLike",
    "InfoChanged",
    "Interest",
    "Limits",
    "Link",
    "LinkEvent",
    "LinkState",
    "Message",
    "NeedCredentials",
    "Parser",
    "Payload",
    "PongFor",
    "Ready",
    "ServerAddress",
    "ServerInfo",
    "ServerPool",
    "Sink",
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
