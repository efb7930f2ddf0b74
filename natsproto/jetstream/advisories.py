"""Advisories and metrics, which JetStream publishes.

Owns their types and the stream of them. An advisory of a type that is unknown here is an Advisory with its fields in
``extra``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.ending import Reader
from natsproto._help.async_hints import AsyncForHint
from natsproto.jetstream._values.codec import (
    NEVER,
    Many,
    Moment,
    Record,
    Seconds,
    Strings,
    decode,
    flag,
    instant,
    integer,
    many,
    moment,
    optional,
    parse,
    seconds,
    strings,
    text,
)
from natsproto.jetstream._values.info import PeerInfo, StreamState
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.frames import Message

__all__ = [
    "Advisories",
    "Advisory",
    "ApiAudit",
    "ApiLimitReached",
    "BatchAbandoned",
    "ClientInfo",
    "ConsumerAck",
    "ConsumerAction",
    "ConsumerLeaderElected",
    "ConsumerPaused",
    "ConsumerQuorumLost",
    "GroupPinned",
    "GroupUnpinned",
    "MaxDeliveries",
    "MessageNaked",
    "MessageTerminated",
    "MetaLeaderElected",
    "MetaRescued",
    "RestoreCompleted",
    "RestoreStarted",
    "ServerOutOfStorage",
    "ServerRemoved",
    "SnapshotCompleted",
    "SnapshotStarted",
    "StreamAction",
    "StreamLeaderElected",
    "StreamQuorumLost",
]

if TYPE_CHECKING:
    from natsproto._core.inbox.subscription import Subscription


class ClientInfo(Record):
    """A client as the server knows it; ``rtt`` in seconds."""

    start: Moment = moment(default=None)
    """When it connected."""
    stop: Moment = moment(default=None)
    """When it disconnected; None: it is connected."""
    host: str = text(default="")
    """The address that it connected from."""
    id: int = integer(default=0)
    """The number that its server gave to the connection."""
    account: str = text(default="", key="acc")
    """Its account, by name or public key."""
    service: str = text(default="", key="svc")
    """The account that it acts for, through an imported service; "" for none."""
    user: str = text(default="")
    name: str = text(default="")
    """The name that it gave itself."""
    lang: str = text(default="")
    """The language of the client library: ``go``, ``python3``, ``nats.js`` …"""
    version: str = text(default="", key="ver")
    """The version of the client library."""
    rtt: Seconds = seconds(default=0.0)
    server: str = text(default="")
    """The server that it is connected to."""
    cluster: str = text(default="")
    alternates: Strings = strings(default=(), key="alts")
    """The other clusters of a supercluster, the nearest first."""
    jwt: str = text(default="")
    """The user JWT that it logged in with, where it was asked for."""
    issuer_key: str = text(default="")
    """The signing key that issued its ``jwt``."""
    name_tag: str = text(default="")
    """The ``name`` of its JWT, or of the account."""
    tags: Strings = strings(default=())
    """Those of its JWT."""
    kind: str = text(default="")
    """``Client``, ``Leafnode``, ``Router``, ``Gateway``, ``JetStream``, ``Account`` or ``System``."""
    client_type: str = text(default="")
    """``nats``, ``mqtt`` or ``websocket``."""
    client_id: str = text(default="")
    """The id of an MQTT client; "" for others."""
    nonce: str = text(default="")
    reply: str = text(default="")
    """Where the server answers, of a client that acts through an imported service."""


class Advisory(Record):
    """Something that happened. ``type`` says what, in the server's words; ``domain`` where.

    An Advisory that is of no subclass is one that this version does not know: ``extra`` holds all it says.
    """

    type: str = text(default="")
    id: str = text(default="")
    """Different for each one; a second copy of an advisory has the same."""
    time: Timestamp = instant(default=NEVER, key="timestamp")
    """When the server noticed it."""
    domain: str = text(default="")


class ApiAudit(Advisory):
    """A client called the JetStream API: ``subject``, ``request`` and ``response`` as they were sent."""

    server: str = text(default="")
    """The server that handled the request."""
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked; None: the system."""
    subject: str = text(default="")
    request: str = text(default="")
    response: str = text(default="")


class ApiLimitReached(Advisory):
    """A server dropped API requests because too many were waiting."""

    server: str = text(default="")
    """``server_name`` of the one that was too busy."""
    dropped: int = integer(default=0)
    """Requests that got no answer."""


class StreamAction(Advisory):
    """A stream was created, changed or deleted: ``action`` is "create", "modify" or "delete"."""

    stream: str = text(default="")
    action: str = text(default="")
    template: str = text(default="")
    """Always "" since server 2.10, which has no templates."""


class ConsumerAction(Advisory):
    """A consumer was created or deleted."""

    stream: str = text(default="")
    consumer: str = text(default="")
    action: str = text(default="")
    """``create`` or ``delete``."""


class ConsumerPaused(Advisory):
    """A consumer was paused or resumed."""

    stream: str = text(default="")
    consumer: str = text(default="")
    paused: bool = flag(default=False)
    """False: it was resumed."""
    pause_until: Moment = moment(default=None)
    """When it delivers again; None: it was resumed."""


class ConsumerAck(Advisory):
    """METRIC: a message was acknowledged ``ack_time`` seconds after its delivery (consumers with ``sample_freq``)."""

    stream: str = text(default="")
    consumer: str = text(default="")
    consumer_seq: int = integer(default=0)
    """The number of the delivery among those of the consumer."""
    stream_seq: int = integer(default=0)
    ack_time: Seconds = seconds(default=0.0)
    deliveries: int = integer(default=0)
    """How often it was delivered until then; 1: at the first time."""


class MaxDeliveries(Advisory):
    """A message reached the ``max_deliver`` of its consumer without an acknowledgement; it is not redelivered."""

    stream: str = text(default="")
    consumer: str = text(default="")
    stream_seq: int = integer(default=0)
    """Its number, by which ``stream.get_message`` still gets it."""
    deliveries: int = integer(default=0)
    """The number of the last delivery, which is ``max_deliver``."""


class MessageNaked(Advisory):
    """A client sent a nak for a message, which will be redelivered."""

    stream: str = text(default="")
    consumer: str = text(default="")
    consumer_seq: int = integer(default=0)
    """The number of the delivery among those of the consumer."""
    stream_seq: int = integer(default=0)
    deliveries: int = integer(default=0)
    """How often it was delivered until then."""


class MessageTerminated(MessageNaked):
    """A client terminated a message, which is not redelivered; ``reason`` is the client's reason."""

    reason: str = text(default="")


class SnapshotStarted(Advisory):
    """A backup of a stream starts."""

    stream: str = text(default="")
    state: StreamState | None = optional(StreamState, default=None)
    """The content of the stream when it began."""
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked for it."""


class SnapshotCompleted(Advisory):
    """A backup of a stream has ended; ``error`` is the reason if it failed."""

    stream: str = text(default="")
    start: Moment = moment(default=None)
    """When it began."""
    end: Moment = moment(default=None)
    """When it ended, well or not."""
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked for it."""
    error: str = text(default="")


class RestoreStarted(Advisory):
    """A stream is being restored."""

    stream: str = text(default="")
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked for it."""


class RestoreCompleted(Advisory):
    """The restore of a stream has ended; ``bytes`` were restored."""

    stream: str = text(default="")
    start: Moment = moment(default=None)
    """When it began."""
    end: Moment = moment(default=None)
    """When it ended."""
    bytes: int = integer(default=0)
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked for it."""


class MetaLeaderElected(Advisory):
    """The cluster, or domain, has a new meta leader."""

    leader: str = text(default="")
    """Its ``server_name``."""
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    """The servers of the metadata group."""
    cluster: str = text(default="")
    """The cluster it leads, which a supercluster has several of."""


class StreamLeaderElected(Advisory):
    """A replicated stream has a new leader."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    leader: str = text(default="")
    """Its ``server_name``."""
    replicas: Many[PeerInfo] = many(PeerInfo, default=())


class StreamQuorumLost(Advisory):
    """A replicated stream has lost its quorum."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    """Its servers, and which of them are gone: see ``offline`` and ``active``."""


class BatchAbandoned(Advisory):
    """An atomic batch was not committed and was removed.

    ``reason`` is "timeout", "large", "incomplete" or "unsupported".
    """

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    batch: str = text(default="")
    """The id of the batch, which its messages had in the header Nats-Batch-Id."""
    reason: str = text(default="")


class ConsumerLeaderElected(Advisory):
    """A replicated consumer has a new leader."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    consumer: str = text(default="")
    leader: str = text(default="")
    """Its ``server_name``."""
    replicas: Many[PeerInfo] = many(PeerInfo, default=())


class ConsumerQuorumLost(Advisory):
    """A replicated consumer has lost its quorum."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    consumer: str = text(default="")
    replicas: Many[PeerInfo] = many(PeerInfo, default=())
    """Its servers, and which of them are gone: see ``offline`` and ``active``."""


class GroupPinned(Advisory):
    """A priority group is pinned to another client (ADR-42)."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    consumer: str = text(default="")
    group: str = text(default="")
    pinned_id: str = text(default="")
    """The id of the pin, new for each client."""


class GroupUnpinned(Advisory):
    """A priority group lost its pin: ``reason`` is "admin" or "timeout"."""

    account: str = text(default="")
    """By its name, or its public key."""
    stream: str = text(default="")
    consumer: str = text(default="")
    group: str = text(default="")
    reason: str = text(default="")


class ServerOutOfStorage(Advisory):
    """A server has run out of space."""

    server: str = text(default="")
    """``server_name`` of the one whose disk, or share of it, is full."""
    server_id: str = text(default="")
    """Its public key, new at every start."""
    stream: str = text(default="")
    """The one that could not be written; "" if it was none."""
    cluster: str = text(default="")


class ServerRemoved(Advisory):
    """A server was removed from the cluster; its JetStream is disabled."""

    server: str = text(default="")
    """``server_name`` of the one that was removed."""
    server_id: str = text(default="")
    """Its public key."""
    cluster: str = text(default="")


class MetaRescued(Advisory):
    """A server has lowered the quorum of the metadata group."""

    server: str = text(default="")
    """``server_name`` of the one that did it."""
    server_id: str = text(default="")
    """Its public key, new at every start."""
    prev_quorum: int = integer(default=0)
    """Servers that had to agree before."""
    new_quorum: int = integer(default=0)
    """Servers that have to agree from now on."""
    cluster: str = text(default="")


ADVISORY_TYPES: Mapping[str, type[Advisory]] = {
    f"io.nats.jetstream.{name}": kind
    for name, kind in (
        ("advisory.v1.api_audit", ApiAudit),
        ("advisory.v1.api_limit_reached", ApiLimitReached),
        ("advisory.v1.stream_action", StreamAction),
        ("advisory.v1.consumer_action", ConsumerAction),
        ("advisory.v1.consumer_pause", ConsumerPaused),
        ("metric.v1.consumer_ack", ConsumerAck),
        ("advisory.v1.max_deliver", MaxDeliveries),
        ("advisory.v1.nak", MessageNaked),
        ("advisory.v1.terminated", MessageTerminated),
        ("advisory.v1.snapshot_create", SnapshotStarted),
        ("advisory.v1.snapshot_complete", SnapshotCompleted),
        ("advisory.v1.restore_create", RestoreStarted),
        ("advisory.v1.restore_complete", RestoreCompleted),
        ("advisory.v1.domain_leader_elected", MetaLeaderElected),
        ("advisory.v1.stream_leader_elected", StreamLeaderElected),
        ("advisory.v1.stream_quorum_lost", StreamQuorumLost),
        ("advisory.v1.stream_batch_abandoned", BatchAbandoned),
        ("advisory.v1.consumer_leader_elected", ConsumerLeaderElected),
        ("advisory.v1.consumer_quorum_lost", ConsumerQuorumLost),
        ("advisory.v1.consumer_group_pinned", GroupPinned),
        ("advisory.v1.consumer_group_unpinned", GroupUnpinned),
        ("advisory.v1.server_out_of_space", ServerOutOfStorage),
        ("advisory.v1.server_removed", ServerRemoved),
        ("advisory.v1.meta_rescue", MetaRescued),
    )
}
"""The class for each ``type``."""


def read_advisory(data: bytes) -> Advisory:
    """Return the event in a message. Never fails: an unreadable one has its text in ``extra["data"]``."""
    try:
        payload = parse(data, "advisory")
        said = payload.get("type")
        kind = ADVISORY_TYPES.get(said, Advisory) if isinstance(said, str) else Advisory
        try:
            return decode(kind, payload)
        except errors.InvalidReply:
            return decode(Advisory, payload)
    except errors.InvalidReply:
        return Advisory(extra={"data": data.decode("utf-8", "replace")})


class Advisories(AsyncForHint):
    """The events of an account from the moment this was made: read them with ``async for``, leave with ``stop``.

    Use it as ``async with js.advisories() as events`` to have it stopped at the end. Events that are not read wait, up
    to the pending limits of the client's options.

    Created by ``JetStream.advisories``.
    """

    def __init__(self, connection: Connection, subject: str) -> None:
        self._subscription: Subscription = connection.subscribe(subject)

    def __await__(self) -> Generator[object, None, Advisories]:
        yield from ()
        return self

    async def __aenter__(self) -> Advisories:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> AsyncIterator[Advisory]:
        return self._each()

    async def _each(self) -> AsyncGenerator[Advisory]:
        async for message in self._subscription:
            yield read_advisory(message.data)

    async def next(self, timeout: float | None = None) -> Advisory:
        """Return the next event within ``timeout`` seconds (None: no limit). RequestTimeout; SubscriptionClosed.

        Args:
            timeout: Seconds to wait for an advisory; None: no limit.
        """
        message: Message = await self._subscription.next(timeout)
        return read_advisory(message.data)

    def _track_task(self, task: asyncio.Task[None]) -> Reader:
        """Let a draining client wait for a task that handles events."""
        return self._subscription._track_task(task)

    async def stop(self) -> None:
        """Unsubscribe; unread events are dropped."""
        await self._subscription.unsubscribe()
