"""Message tracing (ADR-41): the path of a message through the servers.

Owns the decoding of the servers' trace events and the check that all servers have reported: each one reports the number
of servers that it has forwarded the message to. Every subscriber of the message learns where the reports go, and may
send anything there, so their number and size are limited. OpenTelemetry tracing is ``natsproto.otel``.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Deadline
from natsproto._value import Value
from natsproto.errors._base import escaped
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.protocol.frames import Message, Payload, as_bytes
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.subject import publish_subject

__all__ = [
    "MessageTrace",
    "TraceEvent",
    "TracedServer",
]

DESTINATION_HEADER = "Nats-Trace-Dest"
ONLY_HEADER = "Nats-Trace-Only"
HOP_HEADER = "Nats-Trace-Hop"

_FEATURE = RequiredFeature("trace", "2.11", 1)
"""An older server delivers and stores the message as if it were none to trace."""

_KINDS = ("client", "router", "gateway", "system", "leafnode", "jetstream", "account")
_TYPES = {
    "in": "ingress",
    "sm": "subject mapping",
    "se": "stream export",
    "si": "service import",
    "js": "jetstream",
    "eg": "egress",
}
MAX_REPORTS = 1000
"""Reports and servers of a trace; the rest is not read."""
MAX_REPORT_BYTES = 1 << 20
"""The largest report that is read, decompressed."""
MAX_TRACE_BYTES = 8 << 20
"""All reports of a trace together, decompressed."""
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_is_hop = re.compile(r"(?:[0-9]{1,5}(?:\.[0-9]{1,5}){0,31})?").fullmatch

_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class TraceEvent(Value):
    """An event of the message in one server.

    ``type`` is ingress, subject mapping, stream export, service import, jetstream or egress. ``kind`` is the type of
    the connection of an ingress or egress: client, router, gateway, system, leafnode, jetstream or account. Texts that
    do not apply are empty. ``raw`` has all fields that the server sent.
    """

    type: str
    kind: str
    at: datetime
    """When it happened, by this server's clock."""
    name: str
    """Of the client, server or account at the other end."""
    connection_id: int
    """The number of the connection in this server; 0: none."""
    account: str
    subject: str
    subscription: str
    """The subject of the subscription that got the message, with its wildcards."""
    queue: str
    """Its queue group."""
    stream: str
    hop: str
    """The ``hop`` of the server that it was forwarded to."""
    error: str
    """The reason why it went no further."""
    no_interest: bool
    """True if a stream got it that has no consumer for it (``interest`` retention): it is not stored."""
    raw: Mapping[str, object]


class TracedServer(Value):
    """A server on the message's path. ``hop`` is empty for the first server, then "1", "2", "1.1" …; ``hops`` is the
    number of servers that this one has forwarded the message to.
    """

    hop: str
    name: str
    """``server_name`` of its configuration, or its id."""
    id: str
    """Its public key, new at every start."""
    cluster: str
    domain: str
    version: str
    hops: int
    events: tuple[TraceEvent, ...]
    """In the order in which they happened there."""


class MessageTrace(Value):
    """The path of one message through the servers.

    ``servers`` are in the order of the path: each follows the server that it received the message from. ``complete`` is
    True when all of them have reported. ``str()`` draws the path as a tree.
    """

    subject: str
    """As published, before any mapping."""
    complete: bool
    servers: tuple[TracedServer, ...]

    @property
    def deliveries(self) -> tuple[TraceEvent, ...]:
        """The deliveries to clients, or those that would have happened."""
        return tuple(event for event in self._events() if event.type == "egress" and event.kind == "client")

    @property
    def stored(self) -> tuple[TraceEvent, ...]:
        """The streams that stored the message, or would have."""
        return tuple(event for event in self._events() if event.type == "jetstream" and not event.error)

    @property
    def errors(self) -> tuple[TraceEvent, ...]:
        """The events with an error: the message was refused."""
        return tuple(event for event in self._events() if event.error)

    def _events(self) -> list[TraceEvent]:
        return [event for server in self.servers for event in server.events]

    def __str__(self) -> str:
        lines = []
        for server in self.servers:
            margin = "    " * (server.hop.count(".") + 1 if server.hop else 0)
            shown = f"{server.name} ({', '.join(filter(None, (server.cluster, server.version)))})"
            lines.append(margin + escaped(shown))
            lines += [f"{margin}  {escaped(_draw(event))}" for event in server.events]
        if not self.complete:
            lines.append("(not all servers have reported)")
        return "\n".join(lines)


async def trace(
    connection: Connection,
    subject: str,
    payload: Payload,
    *,
    headers: HeadersLike | None,
    deliver: bool,
    timeout: float,
) -> MessageTrace:
    """Trace a message for ``Client.trace``."""
    publish_subject(subject)
    as_bytes(payload)
    given = Headers(() if headers is None else headers)
    for name in (DESTINATION_HEADER, ONLY_HEADER, HOP_HEADER):
        if name in given:
            raise errors.ConfigError(f"header {name!r}", given[name], "is set by the trace itself")
    deadline = Deadline(timeout)
    await connection._outages.wait_connected(deadline.at)
    if deadline.is_over:  # nor may it be sent later, to a server that is not known yet
        raise errors.RequestTimeout(f"trace of {subject!r}", timeout, sent=False)
    _FEATURE.check(connection.server_info)
    inbox = connection.new_inbox()
    traced_headers = [*given.pairs(), (DESTINATION_HEADER, inbox), *(() if deliver else ((ONLY_HEADER, "true"),))]
    found = _Reports()
    async with connection.subscribe(inbox, pending_msgs_limit=MAX_REPORTS) as reports:
        await connection._outbox.yield_if_needed(deadline, f"trace of {subject!r}")
        connection.publish_nowait(subject, payload, headers=traced_headers)
        while not found.is_complete and not found.is_full:
            try:
                message = await reports.next(deadline.left)
            except errors.RequestTimeout:
                break
            except errors.SubscriptionClosed:
                raise connection._outbox.closed_error(f"trace of {subject!r}") from None
            found.add(message)
            await asyncio.sleep(0)  # decoding a large report takes 30 ms
    servers = found.servers
    if not servers:
        raise errors.RequestTimeout(f"trace of {subject!r}", timeout)
    servers.sort(key=lambda server: _sort_key(server.hop))
    return MessageTrace(subject=subject, complete=found.is_complete, servers=tuple(servers))


class _Reports:
    """The reports of a trace so far, and the servers that have not reported."""

    def __init__(self) -> None:
        self.servers: list[TracedServer] = []
        self._count = 0
        self._room = MAX_TRACE_BYTES
        self._reported: set[str] = set()
        self._missing = {""}  # hops that were reported by the server before them
        self._has_too_many = False

    @property
    def is_complete(self) -> bool:
        """True when every server that the message was forwarded to has reported."""
        return not self._missing and not self._has_too_many

    @property
    def is_full(self) -> bool:
        """True when no more reports are read."""
        return self._count >= MAX_REPORTS or self._room <= 0

    def add(self, message: Message) -> None:
        """Add a report, unless it is invalid or too large."""
        self._count += 1
        data = message.data
        limit = min(MAX_REPORT_BYTES, self._room)
        if message.has_headers and message.headers.get("Content-Encoding") == "gzip":
            data = _decompressed(data, limit + 1)
        self._room -= len(data)
        server = _read(data) if len(data) <= limit else None
        if server is None:
            return
        self.servers.append(server)
        hop = server.hop
        self._reported.add(hop)
        self._missing.discard(hop)
        if server.hops > MAX_REPORTS - len(self._missing):
            self._has_too_many = True
            return
        following = {f"{hop}.{n}" if hop else str(n) for n in range(1, server.hops + 1)}
        self._missing |= following - self._reported


def _sort_key(hop: str) -> tuple[int, ...]:
    return tuple(map(int, hop.split("."))) if hop else ()


def _decompressed(data: bytes, limit: int) -> bytes:
    """Return up to ``limit`` decompressed bytes; empty when it is no gzip."""
    try:
        return zlib.decompressobj(_GZIP_WINDOW).decompress(data, limit)
    except zlib.error:
        return b""


def _read(data: bytes) -> TracedServer | None:
    """Decode the report of one server. None when it is invalid."""
    try:
        fields = json.loads(data.decode())
        server, request = fields["server"], fields.get("request") or {}
        header = request.get("header") or {}
        events = tuple(_event(event) for event in fields.get("events") or ())
        hop = str((header.get(HOP_HEADER) or [""])[0])
        if not _is_hop(hop):
            return None
        return TracedServer(
            hop=hop,
            name=str(server.get("name", "")),
            id=str(server.get("id", "")),
            cluster=str(server.get("cluster", "")),
            domain=str(server.get("domain", "")),
            version=str(server.get("ver", "")),
            hops=max(0, int(fields.get("hops") or 0)),
            events=events,
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _event(fields: Mapping[str, object]) -> TraceEvent:
    def text(*names: str) -> str:
        return next((value for name in names if isinstance(value := fields.get(name), str)), "")

    def number(name: str) -> int:
        value = fields.get(name)
        return value if isinstance(value, int) else -1

    kind = number("kind")
    return TraceEvent(
        type=_TYPES.get(text("type"), text("type")),
        kind=_KINDS[kind] if 0 <= kind < len(_KINDS) else "",
        at=datetime.fromisoformat(text("ts")) if fields.get("ts") else _NO_TIME,
        name=text("name"),
        connection_id=max(0, number("cid")),
        account=text("acc", "to"),
        subject=text("subj", "subject", "to"),
        subscription=text("sub"),
        queue=text("queue"),
        stream=text("stream"),
        hop=text("hop"),
        error=text("error"),
        no_interest=fields.get("nointerest") is True,
        raw=MappingProxyType(dict(fields)),
    )


def _draw(event: TraceEvent) -> str:
    arrow = {"ingress": "<--", "egress": "-->", "jetstream": "==="}.get(event.type, "...")
    who = " ".join(filter(None, (event.kind, repr(event.name) if event.name else "")))
    parts = [
        f"{arrow} {who or event.type}",
        f"subject {event.subject!r}" if event.subject else "",
        f"subscription {event.subscription!r}" if event.subscription else "",
        f"queue {event.queue!r}" if event.queue else "",
        f"stream {event.stream!r}" if event.stream else "",
        "no interest" if event.no_interest else "",
        f"ERROR {event.error}" if event.error else "",
    ]
    return ", ".join(filter(None, parts))
