"""The client for scripts, notebooks and whatever has no event loop.

Owns when a connection is made: at ``connect()``, and in every other process that has inherited or unpickled the
client at its first use there, because neither a thread nor a socket survives a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, Unpack

from natsproto import _client as client
from natsproto import service
from natsproto._core.connection import Stats
from natsproto._core.engine import LINGER, State
from natsproto._core.subscription import SlowPolicy
from natsproto._options import OptionArgs, Options
from natsproto.errors import ConnectionClosed, PayloadTooLarge
from natsproto.jetstream._publish.headers import as_bytes
from natsproto.protocol.frames import Payload, ServerInfo
from natsproto.protocol.headers import Headers, HeadersLike, block_of
from natsproto.protocol.pool import seconds
from natsproto.protocol.subject import publish_subject
from natsproto.sync._facade import Facade, blocking, iterating, making
from natsproto.sync._jetstream import JetStream
from natsproto.sync._looking import System
from natsproto.sync._messaging import Readers, Subscription
from natsproto.sync._portal import Portal
from natsproto.sync._publishing import Outgoing
from natsproto.sync._services import Service, StatsHandler, ask


class Client(Facade[client.Client]):
    """A client whose verbs wait; made by ``connect``. Any thread may use it, all at the same time.

    Its verbs are those of the async client of the same name: arguments, errors and promises are theirs. Leaving
    ``with`` drains it, or closes it when the block raised.

    In a forked process it connects anew at its first use, and so does one that was pickled. Subscriptions, streams
    and consumers belong to the process in which they were made.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._closed = False
        # By process: a lock that was held during a fork would stay so in the child for ever.
        self._lives: dict[int, _Life] = {}

    request = blocking(client.Client.request)
    call = blocking(client.Client.call)
    request_many = iterating(client.Client.request_many)
    rtt = blocking(client.Client.rtt)
    reconnect = blocking(client.Client.reconnect)
    health = blocking(client.Client.health)
    trace = blocking(client.Client.trace)
    events = iterating(client.Client.events)
    system = making(client.Client.system, System)
    discover_services = iterating(client.Client.discover_services)
    ping_services = iterating(client.Client.ping_services)
    service_stats = iterating(client.Client.service_stats)
    jetstream = making(client.Client.jetstream, JetStream)

    def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publishes a message: leaves it to the event loop, from where it goes as the async client's do. Waits only
        when 4096 are on their way.

        Bad arguments and a message that is too large are raised at once, in words; what comes later (OutboxFull in
        a long outage, ConnectionClosed) is raised by the next verb of this client. ``flush`` tells whether the
        server has it.
        """
        portal, connected, outgoing, _ = self._live()
        portal.check()
        connected.heads.wire(subject)
        if reply is not None:
            publish_subject(reply, "reply subject")
        payload = as_bytes(payload)
        kept = None if headers is None else Headers(headers)
        size = len(payload) + len((kept and block_of(kept)) or b"")
        if size > connected.max_payload > 0:
            raise PayloadTooLarge(size, connected.max_payload)
        outgoing.put(_Message(subject, payload, reply, kept), size)

    def flush(self, timeout: float | timedelta | None = None) -> None:
        """Waits until the server has handled everything published and subscribed so far; see the async client."""
        portal, inner = self._reach()
        portal.call(inner.flush, timeout)

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        max_msgs: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicy | str = SlowPolicy.DROP_NEWEST,
    ) -> Subscription:
        """Subscribes to a subject; see the async client. There are no callbacks: iterate it, in a thread if need be."""
        portal, inner = self._reach()
        made = portal.run(
            inner.subscribe,
            subject,
            queue=queue,
            max_msgs=max_msgs,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
            slow_policy=slow_policy,
        )
        return Subscription(portal, made, self._live().readers)

    def add_service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue_group: str | None = "q",
        stats_handler: StatsHandler | None = None,
        prefix: str = "$SRV",
    ) -> Service:
        """Runs an instance of a service (ADR-32) from now on; enter it to have it stopped at the end.

        Its handlers are plain functions, each request has a thread of its own. ``stats_handler`` runs on the thread of
        the event loop: it must be quick, and not call the client. Else as the async client.
        """
        portal, inner = self._reach()
        asked = None if stats_handler is None else partial(ask, stats_handler, portal)

        async def started() -> service.Service:
            return await inner.add_service(
                name,
                version,
                description=description,
                metadata=metadata,
                queue_group=queue_group,
                stats_handler=asked,
                prefix=prefix,
            )

        return Service(portal, portal.call(started), self._live().readers)

    @property
    def state(self) -> State:
        """Where the client is in its life."""
        return State.CLOSED if self._closed else self._live().client.state

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now."""
        return not self._closed and self._live().client.is_connected

    @property
    def connected_url(self) -> str:
        """The URL of the connected server without user and password; empty when there is none."""
        return self._live().client.connected_url

    @property
    def client_id(self) -> int:
        """The number the server knows this connection by."""
        return self._live().client.client_id

    @property
    def servers(self) -> tuple[str, ...]:
        """Every known server as ``host:port``."""
        portal, inner = self._reach()
        return portal.run(lambda: inner.servers)

    @property
    def discovered_servers(self) -> tuple[str, ...]:
        """The servers that the cluster announced, as ``host:port``."""
        portal, inner = self._reach()
        return portal.run(lambda: inner.discovered_servers)

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Replaces every known server, discovered ones included; see the async client. For this process."""
        portal, inner = self._reach()
        portal.run(inner.set_servers, servers)

    def new_inbox(self) -> str:
        """A subject that nobody else uses."""
        return self._live().client.new_inbox()

    @property
    def server_info(self) -> ServerInfo:
        """What the server said last of itself."""
        return self._live().client.server_info

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server accepts in one message."""
        return self._live().client.max_payload

    @property
    def stats(self) -> Stats:
        """The counters as they are now."""
        return self._live().client.stats

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Ends subscriptions, sends what is waiting, closes; see the async client. A handler that calls it is not
        waited for.
        """
        self._end(drain=True, timeout=None if timeout is None else seconds("timeout", timeout))

    def close(self) -> None:
        """Closes the client. Messages already published get up to 2 seconds to leave."""
        self._end(drain=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(drain=exc is None)

    def __repr__(self) -> str:
        life = self._lives.get(os.getpid())
        if self._closed:
            return "<blocking Client, closed>"
        if life is None or life.live is None:
            return "<blocking Client, not connected yet>"
        return f"<blocking {life.live.client!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options,)

    def _reach(self) -> tuple[Portal, client.Client]:
        live = self._live()
        if live.outgoing.busy:
            live.portal.call(live.outgoing.settled)  # what was published first goes first
        return live.portal, live.client

    def _live(self) -> _Live:
        if self._closed:
            raise ConnectionClosed()
        process = os.getpid()
        life = self._lives.get(process)
        if life is None:
            life = self._lives.setdefault(process, _Life())
        if life.live is None:
            weakref.finalize(self, life.end, False)  # also at the end of the program
            return life.begin(self._options)
        return life.live

    def _end(self, *, drain: bool, timeout: float | None = None) -> None:
        self._closed = True
        life = self._lives.pop(os.getpid(), None)
        if life is not None:
            life.end(drain, timeout)


class _Message(NamedTuple):
    """A message as it was when it was published."""

    subject: str
    payload: bytes
    reply: str | None
    headers: Headers | None


class _Live(NamedTuple):
    """What there is while it lives."""

    portal: Portal
    client: client.Client
    outgoing: Outgoing[_Message]
    readers: Readers


class _Life:
    """A connection in one process."""

    def __init__(self) -> None:
        self.live: _Live | None = None
        self._lock = threading.Lock()

    def begin(self, options: Options) -> _Live:
        """Connects, once for all threads that come at the same time."""
        with self._lock:
            if self.live is None:
                portal = Portal()
                try:
                    connected = portal.call(client.connect(options).__aenter__)
                except BaseException:
                    portal.stop()
                    raise

                async def publish(message: _Message) -> None:
                    subject, payload, reply, headers = message
                    await connected.publish(subject, payload, reply=reply, headers=headers)

                self.live = _Live(portal, connected, Outgoing(portal, publish), Readers())
            return self.live

    def end(self, drain: bool, timeout: float | None = None) -> None:
        """Drains or closes, then ends the thread. Does nothing the second time, and in another process."""
        if self.live is None or self.live.portal.stopped:
            return
        portal, connected, outgoing, readers = self.live
        try:
            if not portal.is_here:  # on the loop's own thread nothing can be waited for: it is cut
                try:
                    portal.call(outgoing.settled, timeout if drain else LINGER)
                finally:
                    if drain:
                        portal.run(readers.dismiss, threading.current_thread())
                        portal.call(connected.drain, timeout)
                    else:
                        portal.call(connected.close)
        finally:
            portal.stop()


def connect(
    servers: str | Sequence[str] | Options | None = None,
    /,
    *,
    context: str | None = None,
    **options: Unpack[OptionArgs],
) -> Client:
    """Connects to a NATS server or cluster and returns a client whose verbs wait: use it with ``with``, or close it.

    The arguments and the errors are those of ``natsproto.connect``. A callback among the options runs on the thread
    of the client's event loop and must not call the client.
    """
    made = Client(client.options_for(servers, context, options))
    made._live()
    return made
