"""The blocking client, for scripts, notebooks and other programs without an event loop.

Owns when a connection is made: at ``connect()``, and in every other process that inherited or unpickled the client at
its first use there, because neither a thread nor a socket survives a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, Self, Unpack

from natsproto import _client as client
from natsproto import errors, service
from natsproto._core.deadline import CONGESTED
from natsproto._core.engine.engine import CLOSE_TIMEOUT_S, State
from natsproto._core.inbox.inbox_limits import SlowPolicy, SlowPolicyLike
from natsproto._core.stats import Stats
from natsproto._durations import DEFAULT, NO_LIMIT_S, Default, positive_seconds
from natsproto._help.guesses import explain_publish, wrong_keywords
from natsproto._options.options import OptionArgs, Options
from natsproto.errors._base import hide_arguments
from natsproto.protocol.frames import Payload, ServerInfo, as_bytes
from natsproto.protocol.headers import Headers, HeadersLike, block_of
from natsproto.protocol.subject import publish_subject
from natsproto.sync._admin import System
from natsproto.sync._jetstream import JetStream
from natsproto.sync._portal import Portal
from natsproto.sync._publish_queue import PublishQueue
from natsproto.sync._services import ResponseStream, Service, StatsHandler, call_stats_handler
from natsproto.sync._subscription import Subscription
from natsproto.sync._wrapper import NOTICED_S, SyncWrapper, as_iterator, blocking, wrapped


class Client(SyncWrapper[client.Client]):
    """A blocking client, created by ``connect``. Several threads may use it at the same time.

    Its methods have the arguments, errors and guarantees of the async client's methods of the same name. Leaving
    ``with`` drains it, or closes it when the block raised.

    In a forked process, and after unpickling, it connects again at its first use. Subscriptions, streams and consumers
    belong to the process in which they were made.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._closed = False
        # By process: a lock that was held during a fork would stay locked in the child for ever.
        self._processes: dict[int, _Process] = {}

    request: Final = blocking(client.Client.request)
    call: Final = blocking(client.Client.call)
    request_many: Final = as_iterator(client.Client.request_many)
    stream: Final = wrapped(client.Client.stream, ResponseStream)
    rtt: Final = blocking(client.Client.rtt)
    reconnect: Final = blocking(client.Client.reconnect)
    health: Final = blocking(client.Client.health)
    trace: Final = blocking(client.Client.trace)
    events: Final = as_iterator(client.Client.events)
    system: Final = wrapped(client.Client.system, System)
    discover_services: Final = as_iterator(client.Client.discover_services)
    ping_services: Final = as_iterator(client.Client.ping_services)
    service_stats: Final = as_iterator(client.Client.service_stats)
    jetstream: Final = wrapped(client.Client.jetstream, JetStream)

    def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publish a message by handing it to the event loop. Waits only when 4096 messages are queued for the loop.

        Bad arguments and a message that is too large raise at once. Later errors (OutboxFull in a long outage,
        ConnectionClosed) are raised by the next method of this client. ``flush`` waits until the server has the
        message. While the client drains, threads that it waits for can still publish, and wait for the event loop.

        Args:
            subject: The subject to publish to, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            reply: The subject for responses, which receivers see as ``message.reply``; None: none.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        portal, connected, queue = self._connection()
        portal.check()
        publish_subject(subject)
        if reply is not None:
            publish_subject(reply, "reply subject")
        payload = as_bytes(payload)
        copied = None if headers is None else Headers(headers)
        size = len(payload) + len((copied and block_of(copied)) or b"")
        if size > connected.max_payload > 0:
            raise errors.PayloadTooLarge(size, connected.max_payload)
        queue.put(_Message(subject, payload, reply, copied), size)
        if connected.state is State.DRAINING:
            portal.call(queue.join)  # the client may close as soon as this thread has ended its work

    def flush(self, timeout: float | timedelta | None = None) -> None:
        """Wait until the server has handled everything published and subscribed so far; see the async client.

        Args:
            timeout: Seconds to wait for the server's confirmation; None: the option ``request_timeout``.
        """
        began = monotonic()
        wait = self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout)
        portal, inner = self._reach(wait)
        portal.call(inner.flush, max(NOTICED_S, wait - (monotonic() - began)))

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        max_messages: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
        cb: None = None,
    ) -> Subscription:
        """Subscribe to a subject; see the async client. There are no callbacks: iterate it, in a thread if need be.

        TypeError for a ``cb``.

        Args:
            subject: The subject to listen to; ``*`` stands for one token, ``>`` at the end for any number.
            queue: The queue group: each message goes to one of its subscribers. None: to all.
            max_messages: Messages after which the subscription ends; None: no limit.
            pending_msgs_limit: Messages that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            pending_bytes_limit: Bytes that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            slow_policy: What happens to messages beyond the limits: "drop_newest" (default), "drop_oldest", "error",
                which ends the subscription, or "pause", which stops reading from the server.
            cb: Not possible here, a TypeError; use ``consume`` or a thread.
        """
        if cb is not None:
            raise TypeError("the blocking client calls no callbacks: iterate the subscription, in a thread if need be")
        portal, inner = self._reach()
        subscription = portal.run(
            inner.subscribe,
            subject,
            queue=queue,
            max_messages=max_messages,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
            slow_policy=slow_policy,
        )
        return Subscription(portal, subscription)

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
        """Start an instance of a service (ADR-32). Use it with ``with``, which stops it at the end.

        Handlers are plain functions; each request is handled on a thread of its own. ``stats_handler`` runs on the
        thread of the event loop: it must be quick and must not call the client. Otherwise as the async client.

        Args:
            name: What clients find the service by: A-Z, a-z, 0-9, ``-`` and ``_``.
            version: The version of the service, as semantic versioning writes it: "1.2.0".
            description: A text for people who look the service up.
            metadata: Labels of the instance that ``discover_services`` shows.
            queue_group: The default queue group of the endpoints, "q": each request goes to one instance. None: to all
                instances.
            stats_handler: Called with each endpoint when statistics are asked for; returns what ``data`` is to hold.
                None: no data.
            prefix: The first token of the subjects on which the service answers questions about itself.
        """
        portal, inner = self._reach()
        async_handler = None if stats_handler is None else partial(call_stats_handler, stats_handler, portal)

        async def start() -> service.Service:
            return await inner.add_service(
                name,
                version,
                description=description,
                metadata=metadata,
                queue_group=queue_group,
                stats_handler=async_handler,
                prefix=prefix,
            )

        return Service(portal, portal.call(start))

    @property
    def state(self) -> State:
        """The state of the client, such as open or reconnecting."""
        return State.CLOSED if self._closed else self._connection().client.state

    @property
    def is_connected(self) -> bool:
        """True when the client is connected to a server right now."""
        return not self._closed and self._connection().client.is_connected

    @property
    def connected_url(self) -> str:
        """The URL of the connected server without user and password; empty when there is none."""
        return self._connection().client.connected_url

    @property
    def client_id(self) -> int:
        """The id that the server gave this connection."""
        return self._connection().client.client_id

    @property
    def servers(self) -> tuple[str, ...]:
        """Every known server as ``host:port``."""
        portal, inner, _ = self._connection()
        return portal.run(lambda: inner.servers)

    @property
    def discovered_servers(self) -> tuple[str, ...]:
        """The servers that the cluster advertised, as ``host:port``."""
        portal, inner, _ = self._connection()
        return portal.run(lambda: inner.discovered_servers)

    @hide_arguments
    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Replace every known server, discovered ones included, in this process; see the async client.

        Args:
            servers: One URL, a comma-separated list or a sequence, for the next attempts to connect.
        """
        portal, inner, _ = self._connection()
        portal.run(inner.set_servers, servers)

    def new_inbox(self) -> str:
        """Return a unique reply subject."""
        return self._connection().client.new_inbox()

    @property
    def server_info(self) -> ServerInfo:
        """The server's last INFO message."""
        return self._connection().client.server_info

    @property
    def max_payload(self) -> int:
        """The maximum bytes of headers and payload that the server accepts in one message."""
        return self._connection().client.max_payload

    @property
    def stats(self) -> Stats:
        """The current counters of the connection."""
        return self._connection().client.stats

    def drain(self, timeout: float | timedelta | Default | None = DEFAULT) -> None:
        """End subscriptions, send buffered messages and close; see the async client. Does not wait for a handler that
        calls it.

        Args:
            timeout: Seconds for handlers and buffered messages. Left out: the option ``drain_timeout``; None: no limit.
        """
        if timeout is DEFAULT:
            self._end(drain=True)
        else:
            self._end(drain=True, timeout=NO_LIMIT_S if timeout is None else positive_seconds("timeout", timeout))

    def close(self) -> None:
        """Close the client. Messages already published get up to 2 seconds to be sent, and before that, locks that are
        being released and ordered consumers that are being deleted up to 2 seconds.
        """
        self._end(drain=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        explain_publish(exc)
        if exc is None:
            self._end(drain=True)
        self._end(drain=False)  # also after a drain inside of an iteration that is not over

    def __repr__(self) -> str:
        process = self._processes.get(os.getpid())
        if self._closed:
            return "<blocking Client, closed>"
        if process is None or process.connection is None:
            return "<blocking Client, not connected yet>"
        return f"<blocking {process.connection.client!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options_again(),)

    def _options_again(self) -> Options:
        """Return the options for another process: what has used TLS in one requires it in all."""
        for process in list(self._processes.values()):
            if process.connection is not None:
                self._options = process.connection.client._options_again()
        return self._options

    def _reach(self, timeout: float | None = None) -> tuple[Portal, client.Client]:
        portal, inner, queue = self._connection()
        if queue.busy:  # keeps the order of publishing
            wait = self._options.request_timeout if timeout is None else timeout
            if not portal.call(queue.join, wait):
                raise errors.RequestTimeout("sending the messages published before", wait, sent=False, advice=CONGESTED)
        return portal, inner

    def _connection(self) -> _Connection:
        if self._closed:
            raise errors.ConnectionClosed()
        pid = os.getpid()
        process = self._processes.get(pid)
        if process is None:
            process = self._processes.setdefault(pid, _Process())
        if process.connection is None:
            weakref.finalize(self, process.close, False)  # also runs when the interpreter exits
            return process.connect(self._options_again())
        return process.connection

    def _end(self, *, drain: bool, timeout: float | None = None) -> None:
        process = self._processes.get(os.getpid())
        self._options_again()  # for a client of Spark that takes the place of this one
        try:
            if process is not None:
                process.close(drain, timeout)
        finally:
            # Not before, as threads that it waits for may still use it; and its handler, if one of them drains.
            if process is None or process.is_ended:
                self._closed = True
                self._processes.pop(os.getpid(), None)


class _Message(NamedTuple):
    """A copy of a message at the time of publishing."""

    subject: str
    payload: bytes
    reply: str | None
    headers: Headers | None


class _Connection(NamedTuple):
    """An open connection and the objects that belong to it."""

    portal: Portal
    client: client.Client
    queue: PublishQueue[_Message]


class _Process:
    """The connection of one process; made at the first use."""

    def __init__(self) -> None:
        self.connection: _Connection | None = None
        self._lock = threading.Lock()

    def connect(self, options: Options) -> _Connection:
        """Connect, once for all threads that call this at the same time."""
        with self._lock:
            if self.connection is None:
                portal, ended = Portal(), threading.Event()

                async def enter(_: object) -> client.Client:
                    try:
                        return await client.connect(options).__aenter__()
                    finally:
                        ended.set()

                try:
                    # A thread that is about to wait without a limit does not see a signal of that moment (CPython).
                    connected = portal.call_until(enter, ended)
                except BaseException:
                    portal.stop()
                    raise

                async def publish(message: _Message) -> None:
                    subject, payload, reply, headers = message
                    await connected.publish(subject, payload, reply=reply, headers=headers)

                self.connection = _Connection(portal, connected, PublishQueue(portal, publish))
            return self.connection

    @property
    def is_ended(self) -> bool:
        """True without a connection in this process."""
        return self.connection is None or self.connection.portal.stopped

    def close(self, drain: bool, timeout: float | None = None) -> None:
        """Drain or close, then end the thread. Does nothing in another process, and when it has ended.

        The thread goes on after a drain by a handler or an iteration, which can still use the client. It ends after
        them.
        """
        if self.connection is None or self.connection.portal.stopped:
            return
        portal, connected, queue = self.connection
        goes_on = False
        wait = connected._options.drain_timeout if timeout is None else timeout
        began = monotonic()
        try:
            if not portal.is_loop_thread:  # the loop's own thread cannot wait for the loop: it just stops
                try:
                    portal.call(queue.join, wait if drain else CLOSE_TIMEOUT_S)
                finally:
                    if drain:
                        portal.run(portal.threads.forget_ended)
                        portal.call(connected.drain, max(NOTICED_S, wait - (monotonic() - began)))
                        if goes_on := connected.state is not State.CLOSED:
                            portal.run_detached(partial(_stop_after, portal, connected), wait=False)
                    else:
                        portal.call(connected.close)
        except errors.ConnectionClosed:
            if not portal.stopped:
                raise
            # another thread has closed it meanwhile
        finally:
            if not goes_on:
                portal.stop()


async def _stop_after(portal: Portal, connected: client.Client) -> None:
    """End the thread of the event loop when the client is closed. A thread that ends itself would wait for itself."""
    await connected.wait_closed()
    threading.Thread(target=portal.stop, name="natsproto sync end", daemon=True).start()


@hide_arguments
@wrong_keywords("give one URL: connect('nats://host:4222')")
def connect(
    servers: str | Sequence[str] | Options | None = None,
    *,
    context: str | None = None,
    **options: Unpack[OptionArgs],
) -> Client:
    """Connect to a NATS server or cluster and return a blocking client. Use it with ``with``, or close it.

    The arguments and the errors are those of ``natsproto.connect``. Callbacks among the options run on the thread of
    the client's event loop and must not call the client.

    Args:
        servers: One URL, a comma-separated list, a sequence, or Options. None: those of the context or
            ``nats://127.0.0.1:4222``.
        context: The name of a context of the ``nats`` tool, whose settings are the defaults of the other options; None:
            no context.
        **options: The fields of Options, by keyword.
    """
    connected = Client(client.options_for(servers, context, options))
    connected._connection()  # connects
    return connected
