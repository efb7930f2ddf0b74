"""The Options of a client: names, defaults and rules.

Opens no connection. Values that may change while a client lives (credentials, TLS contexts, headers) are read again at
every attempt to connect.
"""

from __future__ import annotations

import inspect
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypedDict, TypeGuard, Unpack, cast

from natsproto import errors
from natsproto._durations import positive_seconds, seconds
from natsproto._help.nats_py_names import OPTIONS, hint
from natsproto._options import rules
from natsproto._options.rules import AUTH_OPTIONS, MAX_FILE, TlsFiles, type_name
from natsproto._value import Value, did_you_mean
from natsproto.errors._base import HIDDEN, hide_arguments, hide_locals
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.auth import Credentials, parse_creds, parse_seed
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.pool import Chooser, ServerPool, Shuffle

DEFAULT_SERVER = "nats://127.0.0.1:4222"


Text = str | os.PathLike[str]
"""A text, or the path of a file that holds it."""

Secret = Text | Callable[[], Text | Awaitable[Text]]
"""A secret, a path, or a callable (sync or async) that returns one; called and read at every attempt."""

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""HTTP headers of the WebSocket handshake, or a callable (sync or async), called at every attempt."""

Dialer = Callable[[ServerAddress], socket.socket | Awaitable[socket.socket]]
"""Connects to a server; sync or async."""

TlsSource = ssl.SSLContext | bool | str | os.PathLike[str] | Callable[[], ssl.SSLContext]
"""A context, True for the default one, or a callable that returns a context, called at every attempt."""


class AuthChallenge(Value):
    """The argument of an ``auth`` callable: the ``server``, the bytes of its ``nonce``, its ``info``.

    ``nonce`` is empty when the server sent none. Before TLS an attacker can put anything into ``info``.
    """

    server: ServerAddress
    nonce: bytes
    info: ServerInfo


AuthSource = Callable[[AuthChallenge], Credentials | Awaitable[Credentials]]
"""Returns the credentials of one attempt; sync or async."""


class OptionArgs(TypedDict, total=False):
    """The keyword arguments of ``Options`` and ``connect()``; ``Options`` documents them."""

    name: str | None
    """How the server calls this client in its logs and monitoring, for example the name of your service; None: no name.
    It is sent inside TLS if the server requires TLS.
    """
    user: Secret | None
    """The name to log in with, instead of one in the URL. Each credential is a text, a path (``pathlib.Path``) of a
    file with it, or a callable (``def`` or ``async def``) that returns either.
    """
    password: Secret | None
    """The password of ``user``. Files are read and callables called at every attempt to connect, so that a new password
    is picked up.
    """
    token: Secret | None
    """The token to log in with, instead of ``user`` and ``password``."""
    jwt: Secret | None
    """The user JWT, together with ``nkey_seed``, which signs the server's challenge. ``creds`` has both in one file."""
    nkey_seed: Secret | None
    """The seed (``SU…``) whose key logs in, alone or with ``jwt``. It never leaves the process."""
    creds: Secret | None
    """A credentials file as ``nsc`` writes it: its path, or its text if that holds a ``BEGIN`` line. It is read again
    at every attempt.
    """
    auth: AuthSource | None
    """A callable (``def`` or ``async def``) that gets an AuthChallenge and returns Credentials, instead of all the
    options above.
    """
    ignore_auth_error_abort: bool
    """Keep trying a server that has rejected the credentials for two seconds; False (default) gives such a server up.
    """
    tls: TlsSource | None
    """An ``ssl.SSLContext``, the path of a file with the certificates of authorities (read at every attempt), True for
    the system's authorities, or a callable that returns a context at every attempt. None (default): TLS if the server
    asks for it, or if a URL is ``tls://`` or ``wss://``.
    """
    tls_first: bool
    """Begin with the TLS handshake, before the server has said anything; the server must have ``handshake_first``."""
    tls_hostname: str | None
    """The name that the server's certificate must have, if it is not the host of the URL."""
    connect_timeout: float | timedelta
    """Seconds for one attempt to connect, from TCP to the server's first PONG."""
    dialer: Dialer | None
    """A callable (``def`` or ``async def``) that gets the ServerAddress and returns a connected socket: a Unix socket,
    or one with a local address. TLS and WebSocket go on top.
    """
    proxy: str | None
    """The URL of a proxy, ``socks5://host:port`` or ``http://host:port`` (HTTP CONNECT). It resolves the names of the
    servers.
    """
    allow_reconnect: bool
    """Connect again after the connection broke; False closes the client instead."""
    retry_on_failed_connect: bool
    """If the first connection fails, return from ``connect`` and go on in the background; False (default) raises."""
    retry_connect_for: float | timedelta
    """Seconds for which ``connect`` repeats its attempts before it raises ConnectFailed; 0 (default): one attempt at
    each server. An attempt in progress is completed.
    """
    max_reconnect_attempts: int
    """Attempts at each server in one outage before it is given up; -1 (default): no limit. The client closes when no
    server is left.
    """
    reconnect_wait: float | timedelta
    """Seconds to wait after every server was tried once; doubled with each round, up to ``reconnect_wait_max``."""
    reconnect_wait_max: float | timedelta
    """The longest wait between two rounds of attempts, in seconds; in the first ten seconds of an outage 1, unless
    ``reconnect_wait`` is longer.
    """
    jitter: float | timedelta
    """Random seconds, at most this many, on top of each wait, so that not all clients come back at once."""
    jitter_tls: float | timedelta
    """The same for servers with TLS, whose handshakes cost them more."""
    reconnect_delay: Callable[[int], float | timedelta] | None
    """A function of the number of rounds so far that returns the seconds to wait, instead of the four options above."""
    reconnect_to_server: Chooser | None
    """A function ``(servers, info)`` that returns the next server and the seconds to wait for it, or None for the
    default choice (ADR-40).
    """
    randomize: bool
    """Try the servers in random order, so that clients spread over a cluster; False tries them as listed."""
    ignore_discovered_servers: bool
    """Use the given servers only, not those that the cluster announces."""
    leave_cut_off_server: bool
    """Move to another server when JetStream works there and not here, because this one has lost its cluster."""
    ping_interval: float | timedelta
    """Seconds between two PINGs to the server: 120. 20 suits most cloud load balancers, which drop idle connections
    sooner.
    """
    max_outstanding_pings: int
    """Unanswered PINGs after which the connection counts as broken."""
    drain_timeout: float | timedelta
    """Seconds that ``nc.drain()`` and leaving ``async with`` give handlers and buffered messages before the connection
    is closed. At most 10 of them wait for a connection.
    """
    request_timeout: float | timedelta
    """Seconds that ``nc.request``, ``nc.flush`` and ``nc.rtt`` wait for a reply unless they get a ``timeout`` of their
    own.
    """
    fail_requests_on_disconnect: bool
    """End pending requests with ConnectionLost when the connection breaks, because their replies are lost; False lets
    them wait for their timeout.
    """
    outbox_limit: int
    """Bytes that may wait for the socket or for the next connection: 8 MiB. Then ``publish`` waits and
    ``publish_nowait`` raises OutboxFull. 0: nothing is kept while disconnected.
    """
    pending_msgs_limit: int
    """Messages that may wait in a subscription for its reader: 65,536; then ``slow_policy`` applies. 0: no limit."""
    pending_bytes_limit: int
    """Bytes that may wait in a subscription for its reader: 64 MiB; then ``slow_policy`` applies. 0: no limit."""
    max_message_size: int
    """Bytes of a message from the server, 64 MiB, above which the connection is dropped with RemoteProtocolError."""
    no_echo: bool
    """Receive no messages that this client itself has published."""
    verbose: bool
    """Let the server confirm every command with ``+OK``. For debugging; it costs a line for each message."""
    pedantic: bool
    """Let the server check the subjects of published messages and report invalid ones."""
    allow_api_replies: bool
    """Let ``respond`` publish to reply subjects of JetStream's API and of stores, such as ``$JS.API.>``. False
    (default) refuses them: whoever sends a request chooses its reply subject, and could make this client delete a
    stream.
    """
    inbox_prefix: str
    """The first tokens of the subjects for replies. Another one for each user lets permissions keep users from reading
    each other's replies.
    """
    jetstream_domain: str | None
    """The JetStream domain, such as that of a leaf node, that ``nc.jetstream()`` uses; None: that of the server."""
    jetstream_api_prefix: str | None
    """The first tokens of JetStream's API, as another account exports it, for ``nc.jetstream()``; None: ``$JS.API``."""
    websocket_headers: HeaderSource | None
    """HTTP headers of the WebSocket handshake, or a callable (``def`` or ``async def``) that returns them at every
    attempt.
    """
    websocket_compression: bool
    """Ask the server to compress WebSocket messages."""
    websocket_path: str | None
    """The path of the WebSocket handshake for URLs that have none."""
    on_event: Callable[..., object] | None
    """Called with every event of the client, ``def`` or ``async def``; see Event. It must not block."""


class ReplaceOptionArgs(OptionArgs, total=False):
    """The arguments of ``Options.replace``."""

    servers: str | Sequence[str]


class _Option:
    """The default and the rule of an option."""

    __slots__ = ("default", "rule")

    def __init__(self, default: object, rule: Callable[[str, object], object]) -> None:
        self.default, self.rule = default, rule


def _option(default: object, rule: Callable[[str, object], object]) -> Any:
    return _Option(default, rule)


class Options(Value):
    """All settings of a client. Durations are seconds (or timedelta), sizes bytes.

    Values are checked at creation: ConfigError (InvalidCredentials for secrets, InvalidSubject for subjects) names the
    option and the rule, TypeError the wrong type. Files and callables are read later, at every attempt to connect.
    ``repr`` shows the options that differ from the defaults.

    User information in a URL is used when ``user``, ``token`` and ``auth`` are not set. One ``tls://`` or ``wss://``
    URL requires TLS of all servers. No error, event or ``repr`` has a secret.
    """

    servers: str | Sequence[str] = _option(DEFAULT_SERVER, rules.servers)
    """One URL, a comma-separated list or a sequence: ``nats://``, ``tls://``, ``ws://``, ``wss://``, or ``host:port``.
    A URL may have ``user:password@`` or ``token@``.
    """
    name: str | None = _option(None, rules.label)
    """How the server calls this client in its logs and monitoring, for example the name of your service; None: no name.
    It is sent inside TLS if the server requires TLS.
    """
    user: Secret | None = _option(None, rules.secret)
    """The name to log in with, instead of one in the URL. Each credential is a text, a path (``pathlib.Path``) of a
    file with it, or a callable (``def`` or ``async def``) that returns either.
    """
    password: Secret | None = _option(None, rules.password)
    """The password of ``user``. Files are read and callables called at every attempt to connect, so that a new password
    is picked up.
    """
    token: Secret | None = _option(None, rules.secret)
    """The token to log in with, instead of ``user`` and ``password``."""
    jwt: Secret | None = _option(None, rules.jwt)
    """The user JWT, together with ``nkey_seed``, which signs the server's challenge. ``creds`` has both in one file."""
    nkey_seed: Secret | None = _option(None, rules.seed)
    """The seed (``SU…``) whose key logs in, alone or with ``jwt``. It never leaves the process."""
    creds: Secret | None = _option(None, rules.creds)
    """A credentials file as ``nsc`` writes it: its path, or its text if that holds a ``BEGIN`` line. It is read again
    at every attempt.
    """
    auth: AuthSource | None = _option(None, rules.function)
    """A callable (``def`` or ``async def``) that gets an AuthChallenge and returns Credentials, instead of all the
    options above.
    """
    ignore_auth_error_abort: bool = _option(False, rules.flag)
    """Keep trying a server that has rejected the credentials for two seconds; False (default) gives such a server up.
    """
    tls: TlsSource | None = _option(None, rules.tls)
    """An ``ssl.SSLContext``, the path of a file with the certificates of authorities (read at every attempt), True for
    the system's authorities, or a callable that returns a context at every attempt. None (default): TLS if the server
    asks for it, or if a URL is ``tls://`` or ``wss://``.
    """
    tls_first: bool = _option(False, rules.flag)
    """Begin with the TLS handshake, before the server has said anything; the server must have ``handshake_first``."""
    tls_hostname: str | None = _option(None, rules.host)
    """The name that the server's certificate must have, if it is not the host of the URL."""
    connect_timeout: float = _option(5.0, positive_seconds)
    """Seconds for one attempt to connect, from TCP to the server's first PONG."""
    dialer: Dialer | None = _option(None, rules.function)
    """A callable (``def`` or ``async def``) that gets the ServerAddress and returns a connected socket: a Unix socket,
    or one with a local address. TLS and WebSocket go on top.
    """
    proxy: str | None = _option(None, rules.proxy)
    """The URL of a proxy, ``socks5://host:port`` or ``http://host:port`` (HTTP CONNECT). It resolves the names of the
    servers.
    """
    allow_reconnect: bool = _option(True, rules.flag)
    """Connect again after the connection broke; False closes the client instead."""
    retry_on_failed_connect: bool = _option(False, rules.flag)
    """If the first connection fails, return from ``connect`` and go on in the background; False (default) raises."""
    retry_connect_for: float = _option(0.0, seconds)
    """Seconds for which ``connect`` repeats its attempts before it raises ConnectFailed; 0 (default): one attempt at
    each server. An attempt in progress is completed.
    """
    max_reconnect_attempts: int = _option(-1, rules.whole(-1))
    """Attempts at each server in one outage before it is given up; -1 (default): no limit. The client closes when no
    server is left.
    """
    reconnect_wait: float = _option(0.05, seconds)
    """Seconds to wait after every server was tried once; doubled with each round, up to ``reconnect_wait_max``."""
    reconnect_wait_max: float = _option(4.0, seconds)
    """The longest wait between two rounds of attempts, in seconds; in the first ten seconds of an outage 1, unless
    ``reconnect_wait`` is longer."""
    jitter: float = _option(0.1, seconds)
    """Random seconds, at most this many, on top of each wait, so that not all clients come back at once."""
    jitter_tls: float = _option(1.0, seconds)
    """The same for servers with TLS, whose handshakes cost them more."""
    reconnect_delay: Callable[[int], float | timedelta] | None = _option(None, rules.function)
    """A function of the number of rounds so far that returns the seconds to wait, instead of the four options above."""
    reconnect_to_server: Chooser | None = _option(None, rules.function)
    """A function ``(servers, info)`` that returns the next server and the seconds to wait for it, or None for the
    default choice (ADR-40).
    """
    randomize: bool = _option(True, rules.flag)
    """Try the servers in random order, so that clients spread over a cluster; False tries them as listed."""
    ignore_discovered_servers: bool = _option(False, rules.flag)
    """Use the given servers only, not those that the cluster announces."""
    leave_cut_off_server: bool = _option(True, rules.flag)
    """Move to another server when JetStream works there and not here, because this one has lost its cluster."""
    ping_interval: float = _option(120.0, positive_seconds)
    """Seconds between two PINGs to the server: 120. 20 suits most cloud load balancers, which drop idle connections
    sooner.
    """
    max_outstanding_pings: int = _option(2, rules.whole(1))
    """Unanswered PINGs after which the connection counts as broken."""
    drain_timeout: float = _option(25.0, positive_seconds)
    """Seconds that ``nc.drain()`` and leaving ``async with`` give handlers and buffered messages before the connection
    is closed. At most 10 of them wait for a connection.
    """
    request_timeout: float = _option(5.0, positive_seconds)
    """Seconds that ``nc.request``, ``nc.flush`` and ``nc.rtt`` wait for a reply unless they get a ``timeout`` of their
    own.
    """
    fail_requests_on_disconnect: bool = _option(True, rules.flag)
    """End pending requests with ConnectionLost when the connection breaks, because their replies are lost; False lets
    them wait for their timeout.
    """
    outbox_limit: int = _option(8 << 20, rules.whole(0))
    """Bytes that may wait for the socket or for the next connection: 8 MiB. Then ``publish`` waits and
    ``publish_nowait`` raises OutboxFull. 0: nothing is kept while disconnected.
    """
    pending_msgs_limit: int = _option(65536, rules.whole(0))
    """Messages that may wait in a subscription for its reader: 65,536; then ``slow_policy`` applies. 0: no limit."""
    pending_bytes_limit: int = _option(64 << 20, rules.whole(0))
    """Bytes that may wait in a subscription for its reader: 64 MiB; then ``slow_policy`` applies. 0: no limit."""
    max_message_size: int = _option(64 << 20, rules.whole(1))
    """Bytes of a message from the server, 64 MiB, above which the connection is dropped with RemoteProtocolError."""
    no_echo: bool = _option(False, rules.flag)
    """Receive no messages that this client itself has published."""
    verbose: bool = _option(False, rules.flag)
    """Let the server confirm every command with ``+OK``. For debugging; it costs a line for each message."""
    pedantic: bool = _option(False, rules.flag)
    """Let the server check the subjects of published messages and report invalid ones."""
    allow_api_replies: bool = _option(False, rules.flag)
    """Let ``respond`` publish to reply subjects of JetStream's API and of stores, such as ``$JS.API.>``. False
    (default) refuses them: whoever sends a request chooses its reply subject, and could make this client delete a
    stream.
    """
    inbox_prefix: str = _option("_INBOX", rules.inbox)
    """The first tokens of the subjects for replies. Another one for each user lets permissions keep users from reading
    each other's replies.
    """
    jetstream_domain: str | None = _option(None, rules.domain)
    """The JetStream domain, such as that of a leaf node, that ``nc.jetstream()`` uses; None: that of the server."""
    jetstream_api_prefix: str | None = _option(None, rules.subject)
    """The first tokens of JetStream's API, as another account exports it, for ``nc.jetstream()``; None: ``$JS.API``."""
    websocket_headers: HeaderSource | None = _option(None, rules.headers)
    """HTTP headers of the WebSocket handshake, or a callable (``def`` or ``async def``) that returns them at every
    attempt.
    """
    websocket_compression: bool = _option(False, rules.flag)
    """Ask the server to compress WebSocket messages."""
    websocket_path: str | None = _option(None, rules.path)
    """The path of the WebSocket handshake for URLs that have none."""
    on_event: Callable[..., object] | None = _option(None, rules.function)
    """Called with every event of the client, ``def`` or ``async def``; see Event. It must not block."""

    _addresses: tuple[ServerAddress, ...] = ()  # until the options are checked: an error report may print them
    _anonymous: bool

    @hide_arguments
    def __init__(self, servers: str | Sequence[str] = DEFAULT_SERVER, **given: Unpack[OptionArgs]) -> None:
        made = self.__dict__
        made.update(_DEFAULTS)
        for name, value in {**given, "servers": servers}.items():
            option = _OPTIONS.get(name)
            if option is None:
                advice = hint(name, OPTIONS) or did_you_mean(name, _OPTIONS)
                raise TypeError(f"there is no option {name!r}{advice}")
            made[name] = option.default if value is None and option.default is None else option.rule(name, value)
            if option.rule is positive_seconds:
                rules.note_milliseconds(name, made[name])
        made["_addresses"] = tuple(parse_servers(self.servers))
        self._check_together()

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """The parsed ``servers``."""
        return self._addresses

    @hide_arguments
    def replace(self, **changed: Unpack[ReplaceOptionArgs]) -> Self:  # type: ignore[override]
        """Return a copy with some options changed, checked like a new one."""
        return super().replace(**changed)

    def _for_probe(self) -> Options:
        """Return the options of a short connection beside that of a client."""
        return self.replace(
            allow_reconnect=False,
            retry_on_failed_connect=False,
            retry_connect_for=0.0,
            connect_timeout=1.0,
            ignore_discovered_servers=True,
            reconnect_to_server=None,
            on_event=None,
        )

    def __repr__(self) -> str:
        shown = [f"servers='{', '.join(map(str, self.addresses))}'"]
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if name != "servers" and value != option.default:
                shown.append(f"{name}={HIDDEN if name in _HIDDEN else repr(value)}")
        return f"Options({', '.join(shown)})"

    # ------------------------------------------------------------ what an attempt needs

    def _server_pool(self, shuffle: Shuffle) -> ServerPool:
        """Return the server pool for these options; ``shuffle`` is used when ``randomize`` is set."""
        return ServerPool(
            self.addresses,
            shuffle=shuffle if self.randomize else None,
            ignore_discovered=self.ignore_discovered_servers,
            max_attempts_per_server=self.max_reconnect_attempts,
            wait=self.reconnect_wait,
            wait_cap=self.reconnect_wait_max,
            jitter=self.jitter,
            jitter_tls=self.jitter_tls,
            delay=self.reconnect_delay,
            ignore_auth_error_abort=self.ignore_auth_error_abort,
            tls=self._tls_required,
        )

    def _anonymous_to(self, address: ServerAddress) -> bool:
        """True if neither the options nor the URL of this server have credentials."""
        return self._anonymous and address.user is None and address.token is None

    @property
    def _credentials_at_hand(self) -> bool:
        """True if ``_credentials_for`` calls no callable and reads no file."""
        sources = (self.user, self.password, self.token, self.jwt, self.nkey_seed)
        return self.auth is None and self.creds is None and all(one is None or type(one) is str for one in sources)

    def _check_files(self) -> None:
        """Raise InvalidCredentials for a file with credentials that cannot be read, unless the client retries: then it
        may come later.
        """
        if self.retry_connect_for or self.retry_on_failed_connect:
            return
        for name in ("user", "password", "token", "jwt", "nkey_seed"):
            if isinstance(source := getattr(self, name), os.PathLike):
                _read(name, source)
        if self.creds is not None and not callable(self.creds) and not _is_creds_text(self.creds):
            parse_creds(_read("creds", self.creds))

    @hide_locals
    async def _credentials_for(self, address: ServerAddress, nonce: str, info: ServerInfo) -> Credentials:
        """Return the credentials of one attempt: callables are called and files read every time.

        ``nonce`` is INFO's, empty when there is none. InvalidCredentials when a file cannot be read, a callable fails
        or returns another type, or the parts do not fit together; natsproto errors raised by a callable pass unchanged.
        Cancelling it cancels the awaited callable.
        """
        auth = self.auth
        if auth is not None:
            challenge = AuthChallenge(server=address.public(), nonce=nonce.encode("utf-8", "surrogatepass"), info=info)
            made = await _answer("auth", lambda: auth(challenge))
            if not isinstance(made, Credentials):
                raise errors.InvalidCredentials("auth", f"must return Credentials, not {type_name(made)}")
            return made
        jwt, seed = None, None
        if self.creds is not None:
            parsed = parse_creds(await _creds_text(self.creds))
            jwt, seed = parsed.jwt, parsed.seed
        if self.jwt is not None:
            jwt = (await _words("jwt", self.jwt)).strip()
        if self.nkey_seed is not None:
            seed = parse_seed(await _words("nkey_seed", self.nkey_seed))
        if self.user is None and self.token is None:
            user, password, token = address.user, address.password, address.token
        else:
            user = None if self.user is None else await _words("user", self.user)
            password = None if self.password is None else await _words("password", self.password)
            token = None if self.token is None else await _words("token", self.token)
        return Credentials(user=user, password=password, token=token, jwt=jwt, seed=seed)

    def _dialer_for(self, address: ServerAddress) -> Callable[[], Awaitable[object]] | None:
        """Return a function that opens the socket of one attempt, for ``dialer`` or ``proxy``; None: the default."""
        if self.proxy is not None:
            from natsproto._options.proxy import connect_through  # not everybody needs it; importing natsproto is fast

            return partial(connect_through, self.proxy, address.host, address.port, self.connect_timeout)
        return None if self.dialer is None else partial(self._dialled, address)

    async def _dialled(self, address: ServerAddress) -> object:
        """Return the result of ``dialer`` for one attempt.

        An OSError or natsproto error passes unchanged, other errors become a ConfigError. Cancelling it cancels the
        callable.
        """
        assert self.dialer is not None
        try:
            made: object = self.dialer(address.public())
            return await made if inspect.isawaitable(made) else made
        except (errors.NatsError, OSError):
            raise
        except Exception as exc:
            raise errors.ConfigError("dialer", self.dialer, f"the callable failed with {type_name(exc)}") from exc

    @property
    def _tls_required(self) -> bool:
        """True if no server may receive CONNECT before TLS, whatever its INFO says: by an option, or by one URL."""
        return self.tls is not None or self.tls_first or any(address.tls for address in self.addresses)

    def _for_server(self, server: str) -> Options:
        """Return the options of another client, for one server of the list; what requires TLS of the list stays."""
        chosen = self.replace(servers=server)
        return chosen._requiring_tls() if self._tls_required else chosen

    def _requiring_tls(self) -> Options:
        """Return the options of another client for the same servers, after TLS was used or required."""
        return self if self._tls_required else self.replace(tls=True)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context of one attempt.

        The default is ``ssl.create_default_context()``: certificates and host names are verified. ConfigError when the
        callable fails or returns another type.
        """
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if not callable(self.tls):
            return ssl.create_default_context()
        try:
            context: object = self.tls()
        except errors.NatsError:
            raise
        except Exception as exc:
            reason = f": {exc}" if isinstance(exc, OSError) else ""  # other errors may contain secrets
            what = "reading the files" if isinstance(self.tls, TlsFiles) else "the callable"
            raise errors.ConfigError("tls", self.tls, f"{what} failed with {type_name(exc)}{reason}") from exc
        if not isinstance(context, ssl.SSLContext):
            raise errors.ConfigError(
                "tls", self.tls, f"the callable must return an ssl.SSLContext, not {type_name(context)}"
            )
        return context

    def _tls_hostname_for(self, address: ServerAddress) -> str:
        """Return the name that the certificate of ``address`` is verified against."""
        return self.tls_hostname or address.tls_name

    @hide_locals
    async def _websocket_headers_for(self, address: ServerAddress) -> dict[str, str]:
        """Return the custom HTTP headers of one WebSocket handshake; a callable is called every time.

        ConfigError when it fails or a header is invalid. Cancelling it cancels the callable.
        """
        source = self.websocket_headers
        if source is None or not address.websocket:
            return {}
        headers = await _answer("websocket_headers", source) if callable(source) else source
        if not isinstance(headers, Mapping):
            raise errors.ConfigError(
                "websocket_headers", HIDDEN, f"the callable must return a mapping, not {type_name(headers)}"
            )
        try:
            return cast("dict[str, str]", rules.headers("websocket_headers", headers))
        except TypeError as exc:
            raise errors.ConfigError("websocket_headers", HIDDEN, str(exc)) from None

    def _websocket_path_for(self, address: ServerAddress) -> str:
        """Return the path and the query of the WebSocket request: those of the URL, or of ``websocket_path``."""
        path, _, query = ("" if address.path else self.websocket_path or "").partition("?")
        query = address.query or query
        return f"{address.path or path or '/'}{'?' if query else ''}{query}"

    # ------------------------------------------------------------ where options come from

    @classmethod
    @hide_arguments
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """Create Options from the environment variables of the ``nats`` command line tool.

        NATS_URL; NATS_USER (alone it is a token) and NATS_PASSWORD; NATS_TOKEN; NATS_CREDS and NATS_NKEY (paths);
        NATS_CERT, NATS_KEY and NATS_CA (paths, read at every attempt); NATS_TIMEOUT (``5s``, ``1m30s``), for connecting
        and for requests; NATS_SOCKS_PROXY; NATS_CONTEXT names a context that the others override. Empty variables count
        as unset. Secrets may be references, see ``from_context``. ConfigError for invalid values.

        Args:
            environ: The environment variables to read.
        """
        from natsproto._options.context_files import read_environment  # few programs have either

        return cls(**cast("dict[str, Any]", read_environment(environ)))

    @classmethod
    @hide_arguments
    def from_context(cls, name: str | None = None, environ: Mapping[str, str] = os.environ) -> Options:
        """Create Options from a context of the ``nats`` command line tool (ADR-21).

        ``name`` is that of ``$XDG_CONFIG_HOME/nats/context/NAME.json`` (``~/.config`` by default) or the absolute path
        of such a file; None takes the selected one (``context.txt``). As in the tool, the first of user, creds, nkey,
        user_jwt and token that is set is used.

        The fields password, token, creds, nkey, user_jwt and user_seed may be references: ``file://PATH``, read at
        every attempt, ``env://NAME`` (a variable of ``environ``) and ``data:;base64,TEXT``, read once. ConfigError when
        there is no such context, it cannot be read, a variable is not set, or it needs an unsupported feature: nsc, the
        Windows certificate store, other references (``op://``, ``nsc://``).

        Args:
            name: The name of the context; None: the one that is selected in the ``nats`` tool.
            environ: The environment variables to read.
        """
        from natsproto._options.context_files import read_context

        return cls(**cast("dict[str, Any]", read_context(name, environ)))

    # ------------------------------------------------------------ internals

    def _check_together(self) -> None:
        made = self.__dict__
        given = [name for name in AUTH_OPTIONS if made[name] is not None]
        made["_anonymous"] = not given
        if given:
            self._check_credentials(given)
        if self.proxy is not None and self.dialer is not None:
            raise errors.ConfigError("dialer", self.dialer, "cannot be given together with proxy")
        if self._tls_required:
            rules.no_plain_websocket(self.addresses)

    @staticmethod
    def _check_credentials(given: Sequence[str]) -> None:
        for one, other in _CONFLICTS:
            if one in given and other in given:
                raise errors.InvalidCredentials(one, f"cannot be given together with {other}")
        if "auth" in given and len(given) > 1:
            raise errors.InvalidCredentials(given[0], "cannot be given together with auth, which makes all credentials")
        if "password" in given and "user" not in given:
            raise errors.InvalidCredentials("password", "needs a user")


_OPTIONS: Mapping[str, _Option] = {name: vars(Options)[name] for name in Options._fields}
_DEFAULTS = {name: option.default for name, option in _OPTIONS.items()}
_HIDDEN = frozenset({*AUTH_OPTIONS, "websocket_headers", "websocket_path", "proxy"})
_CONFLICTS = (("token", "user"), ("creds", "nkey_seed"), ("creds", "jwt"))


# ---------------------------------------------------------------- files and callables


async def _answer(name: str, ask: Callable[[], object]) -> object:
    """Return the result of a user's callable, awaited if needed; errors contain only the type of its error."""
    try:
        value = ask()
        return await value if inspect.isawaitable(value) else value
    except errors.NatsError:
        raise
    except Exception as exc:
        raise errors.InvalidCredentials(name, f"the callable failed with {type_name(exc)}") from exc


async def _given(name: str, source: Secret) -> Text:
    """Return the text or path of a secret."""
    value: object = await _answer(name, source) if callable(source) else source
    if not isinstance(value, (str, os.PathLike)):
        raise errors.InvalidCredentials(name, f"the callable must return a str or a path, not {type_name(value)}")
    return value


async def _words(name: str, source: Secret) -> str:
    """Return a secret, without the line end of a file."""
    value = await _given(name, source)
    return value if isinstance(value, str) else _read(name, value).rstrip("\r\n")


async def _creds_text(source: Secret) -> str:
    value = await _given("creds", source)
    return value if _is_creds_text(value) else _read("creds", value)


def _is_creds_text(value: Text) -> TypeGuard[str]:
    return isinstance(value, str) and rules.CREDS_BLOCK.search(value) is not None


def _read(name: str, path: Text) -> str:
    """Return the text of a small file. The error names a path only if it is one: a str could be a secret."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) <= MAX_FILE:
            return content.decode("utf-8-sig")
        reason = f"is larger than {MAX_FILE} bytes"
    except OSError as exc:
        reason = f"cannot be read: {exc.strerror or type_name(exc)}"
    except ValueError as exc:
        reason = "is not UTF-8 text" if isinstance(exc, UnicodeDecodeError) else "is not a path"
    # Raised here and not above: its context would be the OSError, which repeats the whole path.
    raise errors.InvalidCredentials(f"{name} file {_shown_path(path)}", reason)


def _shown_path(path: Text) -> str:
    if not isinstance(path, str):
        return repr(os.fspath(path))
    if not path.isprintable() or path.startswith(("S", "eyJ", "-")):
        return HIDDEN  # looks like a seed, a JWT or a creds text
    is_short = len(path) <= 16 or path.endswith(".creds")
    return repr(path if is_short else path[:16] + "…")
