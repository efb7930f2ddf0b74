"""Events of an account that servers publish: clients that connect, disconnect or are refused, and service latency.

Owns the types of these events and their stream. All except service latency need a user of the system account.
JetStream's events are ``js.advisories()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType, TracebackType

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.inbox.subscription import Subscription
from natsproto._help.async_hints import AsyncForHint
from natsproto.jetstream._values.codec import Record, Seconds, decode, integer, optional, parse, seconds, text
from natsproto.jetstream.advisories import Advisory, ClientInfo
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import subscribe_subject

__all__ = [
    "AccountEvents",
    "AuthenticationFailed",
    "ClientConnected",
    "ClientDisconnected",
    "DataStats",
    "ServerIdentity",
    "ServiceLatency",
    "read_event",
]

MAX_QUEUED_EVENTS = 1024
"""Events queued for a reader. More events stay in the subscriptions, whose limits apply then."""


class ServerIdentity(Record):
    """The server that published an event."""

    name: str = text(default="")
    """``server_name`` of its configuration, or its id."""
    host: str = text(default="")
    """The address that it listens on, often 0.0.0.0."""
    id: str = text(default="")
    """Its public key, new at every start."""
    cluster: str = text(default="")
    """The cluster that it belongs to; "" for none."""
    domain: str = text(default="")
    """Its JetStream domain; "" for none."""
    version: str = text(default="", key="ver")


class DataStats(Record):
    """Messages and bytes in one direction."""

    messages: int = integer(default=0, key="msgs")
    """Counted over the whole life of the connection."""
    bytes: int = integer(default=0)
    """Their payloads and headers."""


class ClientConnected(Advisory):
    """A client has connected."""

    server: ServerIdentity | None = optional(ServerIdentity, default=None)
    """The server that accepted it."""
    client: ClientInfo | None = optional(ClientInfo, default=None)
    """The client with its account and address; None if the server leaves it out."""


class ClientDisconnected(ClientConnected):
    """A client has disconnected. ``reason`` is the server's text; ``sent`` and ``received`` are the client's totals."""

    sent: DataStats | None = optional(DataStats, default=None)
    received: DataStats | None = optional(DataStats, default=None)
    reason: str = text(default="")


class AuthenticationFailed(ClientDisconnected):
    """A client was refused. ``client.user`` is the user name that it gave."""


class ServiceLatency(Advisory):
    """The latency of a service request in seconds: ``service_time`` in the service, ``system`` between the servers, and
    ``total``. It is published on the subject that the account's configuration names for an exported service.
    """

    status: int = integer(default=0)
    """As in HTTP: 200 for a response, 400 for a bad request, 503 where nobody answered, 504 for a late answer."""
    error: str = text(default="")
    """The reason of a ``status`` other than 200."""
    requestor: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that asked; only with ``share: true`` in the import."""
    responder: ClientInfo | None = optional(ClientInfo, default=None)
    """The client that answered; None if none did."""
    service_time: Seconds = seconds(default=0.0, key="service")
    system: Seconds = seconds(default=0.0)
    total: Seconds = seconds(default=0.0)


KINDS: Mapping[str, type[Advisory]] = MappingProxyType(
    {
        "io.nats.server.advisory.v1.client_connect": ClientConnected,
        "io.nats.server.advisory.v1.client_disconnect": ClientDisconnected,
        "io.nats.server.metric.v1.service_latency": ServiceLatency,
    }
)
"""The class for each ``type``. AuthenticationFailed has the type of ClientDisconnected, on another subject."""


def read_event(message: Message) -> Advisory:
    """Return the event in a message. Never raises: an unknown event is an Advisory with all its fields in ``extra``.

    Args:
        message: A message of the system account, or of a subject for service latency.
    """
    try:
        payload = parse(message.data, "account event")
        name = payload.get("type")
        kind = KINDS.get(name, Advisory) if isinstance(name, str) else Advisory
        if kind is ClientDisconnected and message.subject.endswith(".AUTH.ERR"):
            kind = AuthenticationFailed
        try:
            return decode(kind, payload)
        except errors.InvalidReply:
            return decode(Advisory, payload)
    except errors.InvalidReply:
        return Advisory(extra={"data": message.data.decode("utf-8", "replace")})


class AccountEvents(AsyncForHint):
    """The events of an account's clients from now on. Use it with ``async with``; read with ``async for`` or ``next``.

    Created by ``System.events``. It ends with the block or with ``stop``. Refused clients belong to no account, so
    AuthenticationFailed is reported for every account.
    """

    def __init__(self, connection: Connection, account: str) -> None:
        subscribe_subject(account, "account")
        self._connection = connection
        self._subjects = (
            f"$SYS.ACCOUNT.{account}.CONNECT",
            f"$SYS.ACCOUNT.{account}.DISCONNECT",
            "$SYS.SERVER.*.CLIENT.AUTH.ERR",
        )
        self._events: asyncio.Queue[Advisory | None] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._open: list[Subscription] = []

    async def __aenter__(self) -> AccountEvents:
        for subject in self._subjects:
            self._open.append(await self._connection.subscribe(subject, cb=self._put))
        await self._connection.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> AsyncIterator[Advisory]:
        return self

    async def __anext__(self) -> Advisory:
        event = await self._events.get() if self._open or not self._events.empty() else None
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout: float | None = None) -> Advisory:
        """Return the next event. Waits at most ``timeout`` seconds (None: for ever). TimeoutError; SubscriptionClosed
        when it was stopped.

        Args:
            timeout: Seconds to wait for an event; None: no limit.
        """
        async with asyncio.timeout(timeout):
            try:
                return await self.__anext__()
            except StopAsyncIteration:
                raise errors.SubscriptionClosed("account events", "stopped") from None

    async def stop(self) -> None:
        """Stop and drop unread events."""
        subscriptions, self._open = self._open, []
        for subscription in subscriptions:
            await subscription.unsubscribe()
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)  # wakes the reader

    async def _put(self, message: Message) -> None:
        await self._events.put(read_event(message))
