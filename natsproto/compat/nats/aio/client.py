"""``nats.aio.client``: natsproto's client with the methods, options and callbacks of nats-py."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import ssl
from collections import UserString
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import ParseResult, urlparse
from weakref import ReferenceType, WeakKeyDictionary, ref

import natsproto
from natsproto import NatsError, State
from natsproto import errors as ours
from natsproto.compat import _options as compat_options
from natsproto.compat._callbacks import Callbacks
from natsproto.compat._options import clean_headers
from natsproto.compat._translate import translate_error, translate_errors
from natsproto.compat.nats import errors
from natsproto.compat.nats.aio.errors import ErrInvalidUserCredentials as ErrInvalidUserCredentials
from natsproto.compat.nats.aio.errors import ErrStaleConnection as ErrStaleConnection
from natsproto.compat.nats.aio.msg import Msg, headers_of
from natsproto.compat.nats.aio.subscription import (
    DEFAULT_SUB_PENDING_BYTES_LIMIT,
    DEFAULT_SUB_PENDING_MSGS_LIMIT,
    MAX_AUTO_UNSUBSCRIBE,
    Subscription,
)
from natsproto.compat.nats.nuid import NUID

if TYPE_CHECKING:
    from natsproto.compat.nats.js import JetStreamContext, JetStreamManager

log: Final = logging.getLogger("natsproto")

__version__ = "2.16.0"  # of nats-py, whose API this is
__lang__ = "python3"
PROTOCOL, STATUS_MSG_LEN, MAX_CONTROL_LINE_SIZE = 1, 3, 1024
NO_RESPONDERS_STATUS, CTRL_STATUS = "503", "100"
DEFAULT_INBOX_PREFIX = b"_INBOX"
DEFAULT_PENDING_SIZE, DEFAULT_BUFFER_SIZE, DEFAULT_MAX_PAYLOAD_SIZE = 2 * 1024 * 1024, 32768, 1048576
DEFAULT_RECONNECT_TIME_WAIT, DEFAULT_MAX_RECONNECT_ATTEMPTS = 2, 60
DEFAULT_PING_INTERVAL, DEFAULT_MAX_OUTSTANDING_PINGS = 120, 2
DEFAULT_MAX_FLUSHER_QUEUE_SIZE, DEFAULT_FLUSH_TIMEOUT = 1024, 10
DEFAULT_CONNECT_TIMEOUT, DEFAULT_DRAIN_TIMEOUT = 2, 30

Callback = Callable[[], Awaitable[None]]
ErrorCallback = Callable[[Exception], Awaitable[None]]
JWTCallback = Callable[[], bytearray | bytes]
SignatureCallback = Callable[[str], bytes]
TokenCallback = Callable[[], str]
CredentialCallback = Callable[[], str]


class RawCredentials(UserString):
    """The text of a creds file."""


Credentials = str | tuple[str, str] | RawCredentials | Path

_STATES = {State.CONNECTING: 4, State.OPEN: 1, State.RECONNECTING: 3, State.DRAINING: 5, State.CLOSED: 2}
_SEMVER = re.compile(
    r"(?P<major>0|[1-9]\d*)\.(?P<minor>0|[1-9]\d*)\.(?P<patch>0|[1-9]\d*)"
    r"(?:-(?P<prerelease>[0-9A-Za-z.-]+))?(?:\+(?P<build>[0-9A-Za-z.-]+))?"
)


@dataclass
class Server:
    uri: ParseResult
    reconnects: int = 0


ReconnectToServerHandler = Callable[[list[Server], dict[str, Any]], tuple[Server | None, float]]


class ServerVersion:
    """The version of a server. Its parts raise ValueError if it is not a semantic version."""

    def __init__(self, server_version: str) -> None:
        self._version = server_version

    def _part(self, name: str) -> str:
        found = _SEMVER.fullmatch(self._version)
        if found is None:
            raise ValueError(f"{self._version} is not a valid Semantic Version")
        return found[name] or ""

    @property
    def major(self) -> int:
        return int(self._part("major"))

    @property
    def minor(self) -> int:
        return int(self._part("minor"))

    @property
    def patch(self) -> int:
        return int(self._part("patch"))

    @property
    def prerelease(self) -> str:
        return self._part("prerelease")

    @property
    def build(self) -> str:
        return self._part("build")

    @property
    def dev(self) -> str:
        return "+".join(filter(None, (self.prerelease, self.build)))

    def __repr__(self) -> str:
        return f"<nats server v{self._version}>"


class Client:
    """A client. ``connect`` opens the connection and may be called again after ``close``."""

    msg_class: type[Msg] = Msg

    DISCONNECTED, CONNECTED, CLOSED, RECONNECTING, CONNECTING, DRAINING_SUBS, DRAINING_PUBS = range(7)

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.stats: dict[str, int] = dict.fromkeys(
            ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects", "errors_received"), 0
        )
        self._nuid = NUID()
        self._nc: natsproto.Client | None = None
        self._callbacks: Callbacks | None = None
        self._urls: list[ParseResult] = []
        self._sid = 0
        self._subs: WeakKeyDictionary[natsproto.Subscription, ReferenceType[Subscription]] = WeakKeyDictionary()
        self._reports: set[asyncio.Task[None]] = set()
        self._status_unopened = self.DISCONNECTED  # the status while there is no client of natsproto

    def __repr__(self) -> str:
        return f"<nats client v{__version__}>"

    @compat_options.hide_secrets
    async def connect(
        self,
        servers: str | list[str] = "nats://localhost:4222",
        error_cb: ErrorCallback | None = None,
        disconnected_cb: Callback | None = None,
        closed_cb: Callback | None = None,
        discovered_server_cb: Callback | None = None,
        reconnected_cb: Callback | None = None,
        name: str | None = None,
        pedantic: bool = False,
        verbose: bool = False,
        allow_reconnect: bool = True,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
        reconnect_time_wait: float = DEFAULT_RECONNECT_TIME_WAIT,
        max_reconnect_attempts: int = DEFAULT_MAX_RECONNECT_ATTEMPTS,
        ping_interval: float = DEFAULT_PING_INTERVAL,
        max_outstanding_pings: int = DEFAULT_MAX_OUTSTANDING_PINGS,
        dont_randomize: bool = False,
        flusher_queue_size: int = DEFAULT_MAX_FLUSHER_QUEUE_SIZE,
        no_echo: bool = False,
        tls: ssl.SSLContext | None = None,
        tls_hostname: str | None = None,
        tls_handshake_first: bool = False,
        user: str | CredentialCallback | None = None,
        password: str | CredentialCallback | None = None,
        token: str | TokenCallback | None = None,
        drain_timeout: float = DEFAULT_DRAIN_TIMEOUT,
        signature_cb: SignatureCallback | None = None,
        user_jwt_cb: JWTCallback | None = None,
        user_credentials: Credentials | None = None,
        nkeys_seed: str | None = None,
        nkeys_seed_str: str | None = None,
        inbox_prefix: str | bytes = DEFAULT_INBOX_PREFIX,
        pending_size: int = DEFAULT_PENDING_SIZE,
        flush_timeout: float | None = None,
        ws_connection_headers: dict[str, list[str]] | None = None,
        reconnect_to_server_handler: ReconnectToServerHandler | None = None,
        lame_duck_mode_cb: Callback | None = None,
        skip_subject_validation: bool = False,
    ) -> None:
        """Connect. ``flusher_queue_size``, ``flush_timeout`` and ``skip_subject_validation`` have no effect."""
        given = dict(locals())
        del given["self"]
        if self._status not in (self.DISCONNECTED, self.CLOSED):
            raise errors.Error("nats: the client is connected")
        callbacks = self._callbacks = Callbacks(given, self._slow_consumer)
        self.options.update({option: value for option, value in given.items() if not option.endswith("_cb")})
        self._urls = compat_options.parse_urls(servers)
        self._nc, self._status_unopened = None, self.CONNECTING
        try:
            choose = None if reconnect_to_server_handler is None else self._choose
            options = compat_options.options_from(self._urls, given, choose, self._on_event)
            self._nc = await natsproto.connect(options)
        except NatsError as exc:
            if allow_reconnect or callbacks.last_error is None:
                callbacks.last_error = translate_error(exc)
            raise callbacks.last_error from exc
        finally:
            self._status_unopened = self.DISCONNECTED

    async def _failed(self, where: str, error: BaseException) -> None:
        """Report an exception that a callback raised in one of this package's tasks."""
        log.error("%s failed: %r", where, error, exc_info=error)
        assert self._callbacks is not None
        await self._callbacks.report(error)

    def _refused(self, error: BaseException) -> None:
        """Call ``error_cb`` for a message that a stream refused."""
        assert self._callbacks is not None
        self._start_report(self._callbacks.report(error))

    def _start_report(self, report: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(report)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _on_event(self, event: natsproto.Event) -> None:
        if isinstance(event, natsproto.Reconnected):
            self.stats["reconnects"] += 1
        assert self._callbacks is not None
        await self._callbacks.on_event(event)

    def _choose(self, servers: Sequence[Any], info: natsproto.ServerInfo | None) -> Any:
        """Let ``reconnect_to_server_handler`` choose the server."""
        known = {str(state.address): state for state in servers}
        offered = [Server(urlparse(state.address.url), state.attempts) for state in servers]
        handler = self.options["reconnect_to_server_handler"]
        chosen, delay = handler(offered, dict(info.raw) if info is not None else {})
        found = None if chosen is None else known.get(f"{chosen.uri.hostname}:{chosen.uri.port}")
        if chosen is not None and found is None:
            # No event, as there is no client yet while the first connection is made.
            self._start_report(self._failed("reconnect_to_server_handler", errors.ServerNotInPoolError()))
        return (servers[0] if found is None else found).address, delay

    def _slow_consumer(self, event: natsproto.SlowConsumerDetected) -> Exception | None:
        found = self._subs.get(event.subscription)
        sub = None if found is None else found()
        return None if sub is None else errors.SlowConsumerError(event.error.subject, "", sub._id, sub)

    # ---------------------------------------------------------------- ending

    async def close(self) -> None:
        if self._nc is None:
            self._status_unopened = self.CLOSED
            if self._callbacks is not None:
                await self._callbacks.ended()
            return
        await self._nc.close()

    async def drain(self) -> None:
        """End subscriptions, handle received messages, send buffered ones, then close.

        After ``drain_timeout`` ``error_cb`` gets a DrainTimeoutError. A second call waits for the end.
        """
        client = self._opened
        if self.is_closed:
            raise errors.ConnectionClosedError
        if self.is_connecting or self.is_reconnecting:
            raise errors.ConnectionReconnectingError
        is_first = not self.is_draining
        try:
            await client.drain()
        except ours.RequestTimeout:
            assert self._callbacks is not None
            if is_first:
                await self._callbacks.failed(errors.DrainTimeoutError())
        except NatsError as exc:
            raise translate_error(exc) from exc

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # ---------------------------------------------------------------- messages

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        client = self._opened
        try:
            if client.is_connected:
                await client.publish(subject, payload, reply=reply or None, headers=headers and clean_headers(headers))
            else:
                client.publish_nowait(subject, payload, reply=reply or None, headers=headers and clean_headers(headers))
        except NatsError as exc:
            if isinstance(exc, ours.ConnectionClosed) and self.is_draining:
                raise errors.ConnectionDrainingError from exc
            raise translate_error(exc) from exc
        stats = self.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += len(payload)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Publish a request and wait for the first reply. ``old_style`` has no effect."""
        client = self._opened
        wait = compat_options.FOREVER_S if timeout is None else timeout
        try:
            reply = await client.request(subject, payload, timeout=wait, headers=headers and clean_headers(headers))
        except NatsError as exc:
            raise translate_error(exc) from exc
        stats = self.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += len(payload)
        return self._message(reply, None)

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: Callable[[Msg], Awaitable[None]] | None = None,
        future: asyncio.Future[Msg] | None = None,
        max_msgs: int = 0,
        pending_msgs_limit: int = DEFAULT_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_SUB_PENDING_BYTES_LIMIT,
    ) -> Subscription:
        """Subscribe, to read the messages, to call ``cb`` with each, or to set one as the result of ``future``."""
        client = self._opened
        if self.is_closed:
            raise errors.ConnectionClosedError
        if self.is_draining:
            raise errors.ConnectionDrainingError
        check_callback(cb)
        self._sid += 1
        sid = self._sid
        sub = Subscription(self, sid, subject, queue or "", is_read=cb is None and future is None)
        ready = self.msg_class is Msg  # natsproto makes the messages as they are
        handler = None
        if cb is not None:
            handler = _Callback(cb, sub, self.stats) if ready else self._calling(cb, sub)
        if future is not None:
            handler = self._resolving(future, sid)
        try:
            sub._source = client._subscribe(
                subject,
                queue=queue or None,
                cb=handler,
                max_messages=max_msgs if max_msgs and max_msgs <= MAX_AUTO_UNSUBSCRIBE else None,
                pending_msgs_limit=max(pending_msgs_limit, 0),
                pending_bytes_limit=max(pending_bytes_limit, 0),
                message_type=Msg if ready else natsproto.Message,
                message_note=(self, sid) if ready else None,
            )
        except NatsError as exc:
            raise translate_error(exc) from exc
        self._subs[sub._source] = ref(sub)
        return sub

    def _calling(self, cb: Callable[[Msg], Awaitable[None]], sub: Subscription) -> Callable[[natsproto.Message], Any]:
        message_of = self._message

        async def deliver(message: natsproto.Message) -> None:
            await cb(message_of(message, sub._id))

        return deliver

    def _resolving(self, future: asyncio.Future[Msg], sid: int) -> Callable[[natsproto.Message], Any]:
        def deliver(message: natsproto.Message) -> None:
            if not future.done():
                future.set_result(self._message(message, sid))

        return deliver

    def _message(self, message: natsproto.Message, sid: int | None) -> Msg:
        """Return a message of natsproto as a message of nats-py."""
        data = message.data
        stats = self.stats
        stats["in_msgs"] += 1
        stats["in_bytes"] += len(data)
        if isinstance(message, Msg):
            return message
        headers = headers_of(message) if message.has_headers else None
        return self.msg_class(self, message.subject, message.reply or "", data, headers, None, False, sid)

    @translate_errors
    async def _answer(self, reply: str, words: bytes) -> None:
        """Acknowledge a message of a stream."""
        client = self._opened
        await client._outbox.yield_if_needed()
        if reply[:1] != "$" or not client._reply_guard.is_refused(reply):
            client._outbox.put_reply(reply.encode("utf-8", "surrogateescape"), b" %d\r\n%b" % (len(words), words))

    @translate_errors
    async def _respond(self, reply: str, payload: bytes, headers: dict[str, str] | None) -> None:
        """Publish a response, unless the reply subject belongs to an API or a store."""
        if reply[:1] != "$" or not self._opened._reply_guard.is_refused(reply):
            await self.publish(reply, payload, headers=headers)

    def new_inbox(self) -> str:
        return self._opened.new_inbox()

    # ---------------------------------------------------------------- the server

    async def flush(self, timeout: float = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Wait until the server has handled everything sent so far. FlushTimeoutError after ``timeout`` seconds."""
        if timeout <= 0:
            raise errors.BadTimeoutError
        client = self._opened
        try:
            await client.flush(timeout)
        except ours.RequestTimeout as exc:
            raise errors.FlushTimeoutError from exc
        except NatsError as exc:
            raise translate_error(exc) from exc

    async def rtt(self, timeout: float = DEFAULT_FLUSH_TIMEOUT) -> float:
        if timeout <= 0:
            raise errors.BadTimeoutError
        try:
            return await self._opened.rtt(timeout)
        except NatsError as exc:
            raise translate_error(exc) from exc

    async def force_reconnect(self) -> None:
        if self._nc is not None and self._nc.state is State.OPEN and self.options["allow_reconnect"]:
            assert self._callbacks is not None
            self._callbacks.is_forced = True
            await self._nc.reconnect()

    def set_server_pool(self, servers: list[str]) -> None:
        """Replace the known servers. The connection stays open."""
        if self.is_closed:
            raise errors.ConnectionClosedError
        self._opened.set_servers([url.geturl() for url in compat_options.parse_urls(servers)])

    @property
    def server_pool(self) -> list[Server]:
        return [Server(url) for url in self.servers]

    @property
    def servers(self) -> list[ParseResult]:
        return self._urls if self._nc is None else self._addresses(self._nc.servers)

    @property
    def discovered_servers(self) -> list[ParseResult]:
        return [] if self._nc is None else self._addresses(self._nc.discovered_servers)

    def _addresses(self, found: Sequence[str]) -> list[ParseResult]:
        scheme = self._urls[0].scheme
        return [urlparse(f"{scheme}://{address}") for address in found]

    @property
    def connected_url(self) -> ParseResult | None:
        return urlparse(self._nc.connected_url) if self._nc is not None and self._nc.connected_url else None

    @property
    def connected_server_version(self) -> ServerVersion:
        return ServerVersion(self._nc.server_info.version if self._nc is not None else "0.0.0-unknown")

    @property
    def max_payload(self) -> int:
        return (self._nc and self._nc.max_payload) or DEFAULT_MAX_PAYLOAD_SIZE

    @property
    def last_error(self) -> BaseException | None:
        return self._callbacks.last_error if self._callbacks else None

    @property
    def pending_data_size(self) -> int:
        return self._nc.stats.buffered_bytes if self._nc else 0

    @property
    def client_id(self) -> int | None:
        return self._nc.client_id if self._nc and not self.is_closed else None

    @property
    def client_ip(self) -> str | None:
        return self._nc.server_info.client_ip if self._nc and not self.is_closed else None

    @property
    def ssl_context(self) -> ssl.SSLContext:
        given = self.options.get("tls")
        return given if isinstance(given, ssl.SSLContext) else ssl.create_default_context()

    # ---------------------------------------------------------------- state

    @property
    def _status(self) -> int:
        if self._nc is None:
            return self._status_unopened
        if self._nc.state is State.OPEN and not self._nc.is_connected:
            return self.RECONNECTING
        return _STATES[self._nc.state]

    @property
    def is_closed(self) -> bool:
        return self._status == self.CLOSED

    @property
    def is_reconnecting(self) -> bool:
        return self._status == self.RECONNECTING

    @property
    def is_connected(self) -> bool:
        return self._status in (self.CONNECTED, self.DRAINING_SUBS)

    @property
    def is_connecting(self) -> bool:
        return self._status == self.CONNECTING

    @property
    def is_draining(self) -> bool:
        return self._status == self.DRAINING_SUBS

    is_draining_pubs: bool = False  # natsproto takes messages to publish until it is closed

    @property
    def _opened(self) -> natsproto.Client:
        if self._nc is None:
            raise errors.ConnectionClosedError
        return self._nc

    @property
    def _drain_timeout(self) -> float:
        return float(self.options["drain_timeout"])

    # ---------------------------------------------------------------- JetStream

    def jetstream(self, **opts: Any) -> JetStreamContext:
        """Return the JetStream context. Options: ``prefix``, ``domain``, ``timeout``, ``publish_async_max_pending``."""
        from natsproto.compat.nats.js import JetStreamContext

        return JetStreamContext(self, **opts)

    def jsm(self, **opts: Any) -> JetStreamManager:
        """Return the JetStream manager. Options: ``prefix``, ``timeout``."""
        from natsproto.compat.nats.js import JetStreamManager

        return JetStreamManager(self, **opts)


class _Callback(partial[Awaitable[None]]):
    """A callback that counts its messages. natsproto treats a partial of a coroutine function as a coroutine function,
    so no wrapper coroutine is needed for each message. It keeps its subscription, for a program that does not.
    """

    __slots__ = ("_cb", "_stats", "_sub")  # half of what its own attributes in a dict cost

    def __init__(self, cb: Callable[[Msg], Awaitable[None]], sub: Subscription, stats: dict[str, int]) -> None:
        self._cb, self._sub, self._stats = cb, sub, stats

    def __call__(self, message: Any) -> Awaitable[None]:
        stats = self._stats
        stats["in_msgs"] += 1
        stats["in_bytes"] += len(message.data)
        return self._cb(message)


def check_callback(cb: object) -> None:
    if cb is None or inspect.iscoroutinefunction(cb) or inspect.iscoroutinefunction(getattr(cb, "func", None)):
        return
    raise errors.Error("nats: must use coroutine for subscriptions")
