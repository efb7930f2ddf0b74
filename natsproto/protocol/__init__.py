"""The NATS wire protocol without I/O: bytes in, events out; commands in, bytes out.

This package uses no sockets, clocks, tasks or randomness; callers pass in what it needs. ``Link`` is one connection:
give it the received bytes, act on its events, and send the bytes it returns. ``Parser`` is the part that reads frames,
``commands`` writes them.
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
