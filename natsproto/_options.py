"""One frozen ``Options`` value: everything a client can be told, checked once, and where it can be read from.

Owns the names, defaults and rules of the options, the environment variables and context files of the ``nats``
command line tool (ADR-21), and the files and callables credentials come from. It opens no connection; what
changes while a client lives (credentials, TLS contexts, headers) is asked for anew at every attempt.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict, Unpack, cast

from natsproto._durations import positive_seconds, seconds
from natsproto._proxy import check_proxy, connect_through
from natsproto._value import Value, did_you_mean
from natsproto.errors import ConfigError, InvalidCredentials, NatsError
from natsproto.errors._base import HIDDEN
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.auth import Credentials, parse_creds, parse_seed
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.pool import Chooser, ServerPool, Shuffle
from natsproto.protocol.subject import publish_subject

DEFAULT_SERVER = "nats://127.0.0.1:4222"

_MAX_FILE = 1 << 20
_MAX_NAME = 1024
_BLOCK = re.compile(r"-{3,}\s*BEGIN\b")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH = re.compile(r"/[\x21\x24-\x3e\x40-\x7e]*")
_REFERENCE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GO_DURATION = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|0")
_GO_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

Text = str | os.PathLike[str]
"""Text itself, or the path of a file that holds it."""

Secret = Text | Callable[[], Text | Awaitable[Text]]
"""A secret, a path, or a callable (sync or async) that returns one; asked and read anew at every attempt."""

Seconds = float | timedelta
"""A duration; kept as float seconds."""

HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""HTTP headers of the WebSocket handshake, or a callable (sync or async) asked anew at every attempt."""

Dialer = Callable[[ServerAddress], socket.socket | Awaitable[socket.socket]]
"""Connects to a server; sync or async."""

TlsSource = ssl.SSLContext | bool | Callable[[], ssl.SSLContext]
"""A context, True for the default one, or a callable asked for a context at every attempt."""


class AuthChallenge(Value):
    """What an ``auth`` callable gets to see: the ``server`` dialled, the bytes of its ``nonce``, its ``info``.

    ``nonce`` is empty when the server sent none. Before TLS a peer can claim anything in ``info``.
    """

    server: ServerAddress
    nonce: bytes
    info: ServerInfo


AuthSource = Callable[[AuthChallenge], Credentials | Awaitable[Credentials]]
"""Makes the credentials of one attempt; sync or async."""


class OptionArgs(TypedDict, total=False):
    """The keyword arguments of ``Options`` and ``connect()``; ``Options`` explains them."""

    name: str | None
    user: Secret | None
    password: Secret | None
    token: Secret | None
    jwt: Secret | None
    nkey_seed: Secret | None
    creds: Secret | None
    auth: AuthSource | None
    auth_abort_after_repeat: bool
    tls: TlsSource | None
    tls_first: bool
    tls_hostname: str | None
    connect_timeout: Seconds
    dialer: Dialer | None
    proxy: str | None
    allow_reconnect: bool
    retry_on_failed_connect: bool
    retry_connect_for: Seconds
    max_reconnect_attempts: int
    reconnect_wait: Seconds
    reconnect_wait_max: Seconds
    jitter: Seconds
    jitter_tls: Seconds
    reconnect_delay: Callable[[int], Seconds] | None
    reconnect_to_server: Chooser | None
    randomize: bool
    ignore_discovered_servers: bool
    ping_interval: Seconds
    max_outstanding_pings: int
    drain_timeout: Seconds
    request_timeout: Seconds
    fail_requests_on_disconnect: bool
    outbox_limit: int
    pending_msgs_limit: int
    pending_bytes_limit: int
    max_message_size: int
    no_echo: bool
    verbose: bool
    pedantic: bool
    inbox_prefix: str
    jetstream_domain: str | None
    jetstream_api_prefix: str | None
    websocket_headers: HeaderSource | None
    websocket_compression: bool
    websocket_path: str | None
    on_event: Callable[..., object] | None


# ---------------------------------------------------------------- rules: (option, value) -> the value kept


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def _whole(least: int) -> Callable[[str, object], int]:
    def rule(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if not least <= value < 2**63:
            raise ConfigError(name, value, f"must be an int from {least} to 2**63 - 1")
        return value

    return rule


def _callable(name: str, value: object) -> object:
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def _label(name: str, value: object) -> str:
    text = _text(name, value)
    if not text.isprintable() or len(text) > _MAX_NAME:
        raise ConfigError(name, text, f"must be at most {_MAX_NAME} printable characters")
    return text


def _subject(name: str, value: object) -> str:
    text = _text(name, value)
    publish_subject(text, name)
    return text


def _inbox(name: str, value: object) -> str:
    text = _subject(name, value)
    if len(text.encode()) > _MAX_NAME:
        raise ConfigError(name, text, f"must be at most {_MAX_NAME} bytes, as a subject has to fit beside it")
    return text


def _domain(name: str, value: object) -> str:
    text = _subject(name, value)
    if "." in text:
        raise ConfigError(name, text, "must be one token: without dots")
    return text


def _secret(name: str, value: object) -> object:
    if isinstance(value, str):
        if not value:
            raise InvalidCredentials(name, "is empty")
    elif not isinstance(value, os.PathLike) and not callable(value):
        raise TypeError(f"{name} must be a str, a path or a callable, not {type(value).__name__}")
    return value


def _password(name: str, value: object) -> object:
    return value if value == "" else _secret(name, value)


def _jwt(name: str, value: object) -> object:
    if isinstance(value, str):
        Credentials(jwt=value.strip())
    return _secret(name, value)


def _seed(name: str, value: object) -> object:
    if isinstance(value, str):
        if "SU" not in value:
            raise InvalidCredentials(name, "is not the seed of a user (SU…): give a pathlib.Path to name a file")
        parse_seed(value)
    return _secret(name, value)


def _creds(name: str, value: object) -> object:
    if isinstance(value, str) and _BLOCK.search(value):
        parse_creds(value)
    return _secret(name, value)


def _tls(name: str, value: object) -> object:
    if value is False:
        return None
    if value is not True and not isinstance(value, ssl.SSLContext) and not callable(value):
        raise TypeError(f"{name} must be an ssl.SSLContext, True or a callable, not {type(value).__name__}")
    return value


def _host(name: str, value: object) -> str:
    text = _text(name, value)
    if not re.search("[@/,[]", text):
        try:
            (address,) = parse_servers(f"[{text}]" if ":" in text else text)
        except ConfigError:
            pass
        else:
            return address.tls_name
    raise ConfigError(name, text, "must be a host name or an IP address, without scheme and port")


def _headers(name: str, value: object) -> object:
    if callable(value):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of str to str or a callable, not {type(value).__name__}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{name} must map str to str, not {type(key).__name__} to {type(text).__name__}")
        if not _HEADER_NAME.fullmatch(key):
            raise ConfigError(name, key, "is not an HTTP header name")
        if key.lower() in ("connection", "upgrade") or key.lower().startswith("sec-websocket-"):
            raise ConfigError(name, key, "belongs to the handshake itself")
        if not _HEADER_VALUE.fullmatch(text):
            raise ConfigError(f"{name} {key}", HIDDEN, "must not contain control characters or anything beyond Latin-1")
    return dict(value)


def _path(name: str, value: object) -> str:
    text = _text(name, value)
    if not _PATH.fullmatch(text):
        raise ConfigError(name, text, "must start with / and be percent-encoded, without query and fragment")
    return text


def _servers(_name: str, value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Sequence):
        raise TypeError(f"servers must be a str or a sequence of str, not {type(value).__name__}")
    return tuple(value)


class _Option:
    """The default of an option, and its rule."""

    __slots__ = ("default", "rule")

    def __init__(self, default: object, rule: Callable[[str, object], object]) -> None:
        self.default, self.rule = default, rule


def _option(default: object, rule: Callable[[str, object], object]) -> Any:
    return _Option(default, rule)


class Options(Value):
    """Everything a client can be told. Durations are seconds (or timedelta), sizes bytes.

    Values are checked when it is made: ConfigError (InvalidCredentials for secrets, InvalidSubject for subjects)
    names the option and the rule, TypeError the wrong type. Files and callables are looked at later, at every
    attempt to connect. ``repr`` shows what differs from the defaults, and no secrets.

    Where to:

    * ``servers``: one URL, a comma list or a sequence; see ``parse_servers``. ``name`` is shown by the server.
    * ``randomize`` (True) tries them in random order; ``ignore_discovered_servers`` (False) keeps to them alone.

    Who we are: each of ``user``, ``password``, ``token``, ``jwt``, ``nkey_seed`` and ``creds`` is a text, a path
    or a callable, sync or async, that returns one. ``creds`` as a str is the text when it holds a ``BEGIN`` line
    and a path otherwise; any other str is the secret itself. Or ``auth``, a callable that gets an AuthChallenge
    and returns Credentials. User info in a URL counts when ``user``, ``token`` and ``auth`` are not given.
    ``auth_abort_after_repeat`` (True) gives a server up that goes on refusing with the same words for two seconds.

    TLS: ``tls`` (an ssl.SSLContext, True, or a callable that makes a context at every attempt), ``tls_first``
    (handshake before INFO) or a tls/wss URL demand it. ``tls_hostname`` is verified instead of the host's name.

    Connecting: ``connect_timeout`` (5) for one attempt, TCP to PONG. ``dialer(server)``, sync or async, makes the
    connection at every attempt and returns its socket: to a Unix socket, from an address of one's own. TLS and
    WebSocket are done on top; a sync one keeps the event loop waiting. ``proxy`` is the URL of a proxy to go
    through, ``socks5://host:port`` or ``http://`` (HTTP CONNECT), which resolves the names. ``retry_connect_for``
    (0): so long ``connect`` goes on trying, with the pauses below, before it fails. ``retry_on_failed_connect``
    (False) goes on in the background instead of failing. ``allow_reconnect`` (True), ``max_reconnect_attempts`` a
    server and outage (-1: no limit), ``reconnect_wait`` (0.05) after a whole round of the servers, doubled up to
    ``reconnect_wait_max`` (4), plus up to ``jitter`` (0.1) or ``jitter_tls`` (1) at random; or what
    ``reconnect_delay(rounds)`` returns. ``reconnect_to_server(servers, info)`` returns (server, seconds), or None
    to leave it to the pool (ADR-40).

    Living: ``ping_interval`` (120; 20 suits most cloud load balancers), ``max_outstanding_pings`` (2),
    ``drain_timeout`` (30), ``request_timeout`` (5). ``fail_requests_on_disconnect`` (True) ends pending requests
    when the connection breaks; False lets them wait for their timeout.

    Limits: ``outbox_limit`` (8 MiB waiting for the socket; 0: nothing is kept while disconnected),
    ``pending_msgs_limit`` (65536) and ``pending_bytes_limit`` (64 MiB) of each subscription (0: none),
    ``max_message_size`` (64 MiB) of what a server may send.

    Protocol: ``no_echo``, ``verbose``, ``pedantic`` (False); ``inbox_prefix`` (``_INBOX``); ``jetstream_domain``
    and ``jetstream_api_prefix``, the defaults of ``jetstream()``. WebSocket: ``websocket_headers`` (a mapping, or
    a callable, sync or async), ``websocket_compression`` (False), ``websocket_path`` for URLs without a path.
    ``on_event``, sync or async, is called with every event.
    """

    servers: str | Sequence[str] = _option(DEFAULT_SERVER, _servers)
    name: str | None = _option(None, _label)
    user: Secret | None = _option(None, _secret)
    password: Secret | None = _option(None, _password)
    token: Secret | None = _option(None, _secret)
    jwt: Secret | None = _option(None, _jwt)
    nkey_seed: Secret | None = _option(None, _seed)
    creds: Secret | None = _option(None, _creds)
    auth: AuthSource | None = _option(None, _callable)
    auth_abort_after_repeat: bool = _option(True, _flag)
    tls: TlsSource | None = _option(None, _tls)
    tls_first: bool = _option(False, _flag)
    tls_hostname: str | None = _option(None, _host)
    connect_timeout: float = _option(5.0, positive_seconds)
    dialer: Dialer | None = _option(None, _callable)
    proxy: str | None = _option(None, check_proxy)
    allow_reconnect: bool = _option(True, _flag)
    retry_on_failed_connect: bool = _option(False, _flag)
    retry_connect_for: float = _option(0.0, seconds)
    max_reconnect_attempts: int = _option(-1, _whole(-1))
    reconnect_wait: float = _option(0.05, seconds)
    reconnect_wait_max: float = _option(4.0, seconds)
    jitter: float = _option(0.1, seconds)
    jitter_tls: float = _option(1.0, seconds)
    reconnect_delay: Callable[[int], Seconds] | None = _option(None, _callable)
    reconnect_to_server: Chooser | None = _option(None, _callable)
    randomize: bool = _option(True, _flag)
    ignore_discovered_servers: bool = _option(False, _flag)
    ping_interval: float = _option(120.0, positive_seconds)
    max_outstanding_pings: int = _option(2, _whole(1))
    drain_timeout: float = _option(30.0, positive_seconds)
    request_timeout: float = _option(5.0, positive_seconds)
    fail_requests_on_disconnect: bool = _option(True, _flag)
    outbox_limit: int = _option(8 << 20, _whole(0))
    pending_msgs_limit: int = _option(65536, _whole(0))
    pending_bytes_limit: int = _option(64 << 20, _whole(0))
    max_message_size: int = _option(64 << 20, _whole(1))
    no_echo: bool = _option(False, _flag)
    verbose: bool = _option(False, _flag)
    pedantic: bool = _option(False, _flag)
    inbox_prefix: str = _option("_INBOX", _inbox)
    jetstream_domain: str | None = _option(None, _domain)
    jetstream_api_prefix: str | None = _option(None, _subject)
    websocket_headers: HeaderSource | None = _option(None, _headers)
    websocket_compression: bool = _option(False, _flag)
    websocket_path: str | None = _option(None, _path)
    on_event: Callable[..., object] | None = _option(None, _callable)

    _addresses: tuple[ServerAddress, ...]
    _anonymous: bool

    def __init__(self, servers: str | Sequence[str] = DEFAULT_SERVER, **given: Unpack[OptionArgs]) -> None:
        made = self.__dict__
        made.update(_DEFAULTS)
        for name, value in {**given, "servers": servers}.items():
            option = _OPTIONS.get(name)
            if option is None:
                raise TypeError(f"there is no option {name!r}{did_you_mean(name, _OPTIONS)}")
            made[name] = option.default if value is None and option.default is None else option.rule(name, value)
        made["_addresses"] = tuple(parse_servers(self.servers))
        self._check_together()

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """What ``servers`` means."""
        return self._addresses

    def merge(self, **given: Unpack[OptionArgs]) -> Options:
        """A copy with some options changed, checked like a new one."""
        return self.but(**given)

    def __repr__(self) -> str:
        shown = [f"servers='{', '.join(map(str, self.addresses))}'"]
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if name != "servers" and value != option.default:
                shown.append(f"{name}={HIDDEN if name in _HIDDEN else repr(value)}")
        return f"Options({', '.join(shown)})"

    # ------------------------------------------------------------ what an attempt needs

    def server_pool(self, shuffle: Shuffle) -> ServerPool:
        """The pool these options describe; ``shuffle`` is used when ``randomize`` is set."""
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
            ignore_auth_abort=not self.auth_abort_after_repeat,
            tls=self.tls is not None or self.tls_first,
        )

    def anonymous_to(self, address: ServerAddress) -> bool:
        """Whether there is nothing to prove to this server: neither the options nor its URL say who we are."""
        return self._anonymous and address.user is None and address.token is None

    @property
    def credentials_at_hand(self) -> bool:
        """Whether ``credentials_for`` has nobody to ask and nothing to read."""
        sources = (self.user, self.password, self.token, self.jwt, self.nkey_seed)
        return self.auth is None and self.creds is None and all(one is None or type(one) is str for one in sources)

    async def credentials_for(self, address: ServerAddress, nonce: str, info: ServerInfo) -> Credentials:
        """The credentials of one attempt: callables are asked and files read again every time.

        ``nonce`` is INFO's, empty when there is none. InvalidCredentials when a file cannot be read, a callable
        fails or returns something else, or the parts do not fit together; errors of natsproto raised by a
        callable pass unchanged. Cancelling it cancels the callable that is awaited.
        """
        auth = self.auth
        if auth is not None:
            challenge = AuthChallenge(server=address.public(), nonce=nonce.encode("utf-8", "surrogatepass"), info=info)
            made = await _answer("auth", lambda: auth(challenge))
            if not isinstance(made, Credentials):
                raise InvalidCredentials("auth", f"must return Credentials, not {_kind(made)}")
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

    def dialer_for(self, address: ServerAddress) -> Callable[[], Awaitable[object]] | None:
        """Makes the socket of one attempt, where ``dialer`` or ``proxy`` says how; None: as usual."""
        if self.proxy is not None:
            return partial(connect_through, self.proxy, address.host, address.port, self.connect_timeout)
        return None if self.dialer is None else partial(self.dialled, address)

    async def dialled(self, address: ServerAddress) -> object:
        """What ``dialer`` returns for one attempt.

        What it raises passes if it is an OSError or an error of natsproto, and is a ConfigError else. Cancelling it
        cancels the callable.
        """
        assert self.dialer is not None
        try:
            made: object = self.dialer(address.public())
            return await made if inspect.isawaitable(made) else made
        except (NatsError, OSError):
            raise
        except Exception as exc:
            raise ConfigError("dialer", self.dialer, f"the callable failed with {_kind(exc)}") from exc

    def tls_required_for(self, address: ServerAddress) -> bool:
        """Whether CONNECT must not be sent to ``address`` before TLS is up, whatever its INFO says."""
        return address.tls or self.tls is not None or self.tls_first

    def tls_context_for(self, address: ServerAddress, *, demanded: bool = False) -> ssl.SSLContext | None:
        """The context of one attempt, or None when TLS is required neither here nor (``demanded``) by the server.

        Without a context or callable of the user it is ``ssl.create_default_context()``: certificates and host
        names are verified. ConfigError when the callable fails or returns something else.
        """
        if not demanded and not self.tls_required_for(address):
            return None
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if not callable(self.tls):
            return ssl.create_default_context()
        try:
            context: object = self.tls()
        except NatsError:
            raise
        except Exception as exc:
            told = f": {exc}" if isinstance(exc, OSError) else ""  # of files and certificates; others may tell secrets
            raise ConfigError("tls", self.tls, f"the callable failed with {_kind(exc)}{told}") from exc
        if not isinstance(context, ssl.SSLContext):
            raise ConfigError("tls", self.tls, f"the callable must return an ssl.SSLContext, not {_kind(context)}")
        return context

    def tls_hostname_for(self, address: ServerAddress) -> str:
        """The name the certificate of ``address`` is verified against."""
        return self.tls_hostname or address.tls_name

    async def websocket_headers_for(self, address: ServerAddress) -> dict[str, str]:
        """The custom HTTP headers of one WebSocket handshake; a callable is asked every time.

        ConfigError when it fails or a header cannot be sent. Cancelling it cancels the callable.
        """
        source = self.websocket_headers
        if source is None or not address.websocket:
            return {}
        headers = await _answer("websocket_headers", source) if callable(source) else source
        if not isinstance(headers, Mapping):
            raise ConfigError("websocket_headers", HIDDEN, f"the callable must return a mapping, not {_kind(headers)}")
        try:
            return cast("dict[str, str]", _headers("websocket_headers", headers))
        except TypeError as exc:
            raise ConfigError("websocket_headers", HIDDEN, str(exc)) from None

    def websocket_path_for(self, address: ServerAddress) -> str:
        """The path of the WebSocket request: that of the URL, or ``websocket_path``, or ``/``."""
        return address.path or self.websocket_path or "/"

    # ------------------------------------------------------------ where options come from

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """Options from the environment variables of the ``nats`` command line tool.

        NATS_URL; NATS_USER (alone it is a token) and NATS_PASSWORD; NATS_TOKEN; NATS_CREDS and NATS_NKEY (paths);
        NATS_CERT, NATS_KEY and NATS_CA (paths, read at every attempt); NATS_TIMEOUT (``5s``, ``1m30s``), for
        connecting and for requests; NATS_SOCKS_PROXY; NATS_CONTEXT names a context that the others override. Empty
        ones count as unset. ConfigError for values that cannot be used.
        """
        env = {name: value for name, value in environ.items() if name.startswith("NATS_") and value}
        found = _context(env["NATS_CONTEXT"], environ) if "NATS_CONTEXT" in env else {}
        if env.keys() & {"NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CREDS", "NATS_NKEY"}:
            for name in _AUTH:
                found.pop(name, None)
        for variable, name in (("NATS_USER", "user"), ("NATS_PASSWORD", "password"), ("NATS_TOKEN", "token")):
            if variable in env:
                found[name] = env[variable]
        if "NATS_USER" in env and not env.keys() & {"NATS_PASSWORD", "NATS_TOKEN"}:
            found["token"] = found.pop("user")
        for variable, name in (("NATS_CREDS", "creds"), ("NATS_NKEY", "nkey_seed")):
            if variable in env:
                found[name] = _file(env[variable], environ)
        for variable, name in (("NATS_URL", "servers"), ("NATS_SOCKS_PROXY", "proxy")):
            if variable in env:
                found[name] = env[variable]
        files = [_expanded(env.get(name, ""), environ) for name in ("NATS_CERT", "NATS_KEY", "NATS_CA")]
        if any(files):
            found["tls"] = _TlsFiles(cert=files[0], key=files[1], ca=files[2])
        if "NATS_TIMEOUT" in env:
            found["connect_timeout"] = found["request_timeout"] = _go_duration("NATS_TIMEOUT", env["NATS_TIMEOUT"])
        return cls(**cast("dict[str, Any]", found))

    @classmethod
    def from_context(cls, name: str | None = None, environ: Mapping[str, str] = os.environ) -> Options:
        """Options from a context of the ``nats`` command line tool (ADR-21).

        ``name`` is that of ``$XDG_CONFIG_HOME/nats/context/NAME.json`` (``~/.config`` by default) or the absolute
        path of such a file; None takes the selected one (``context.txt``). As in the tool, the first of user, creds,
        nkey, user_jwt and token that is set is used. ConfigError when there is no such context, it cannot be read,
        or it needs what is not supported: nsc, the Windows certificate store, secrets by reference.
        """
        return cls(**cast("dict[str, Any]", _context(name, environ)))

    # ------------------------------------------------------------ how

    def _check_together(self) -> None:
        made = self.__dict__
        given = [name for name in _AUTH if made[name] is not None]
        made["_anonymous"] = not given
        if given:
            self._check_credentials(given)
        if self.proxy is not None and self.dialer is not None:
            raise ConfigError("dialer", self.dialer, "cannot be given together with proxy")
        if self.tls is None and not self.tls_first:
            return
        for address in self.addresses:
            if address.scheme == "ws":
                raise ConfigError("servers", address.url, "TLS is demanded, so it must be a wss:// URL")

    @staticmethod
    def _check_credentials(given: Sequence[str]) -> None:
        for one, other in _CONFLICTS:
            if one in given and other in given:
                raise InvalidCredentials(one, f"cannot be given together with {other}")
        if "auth" in given and len(given) > 1:
            raise InvalidCredentials(given[0], "cannot be given together with auth, which makes all credentials")
        if "password" in given and "user" not in given:
            raise InvalidCredentials("password", "needs a user")


_OPTIONS: Mapping[str, _Option] = {name: vars(Options)[name] for name in Options._fields}
_DEFAULTS = {name: option.default for name, option in _OPTIONS.items()}
_AUTH = ("user", "password", "token", "jwt", "nkey_seed", "creds", "auth")
_HIDDEN = frozenset({*_AUTH, "websocket_headers", "proxy"})
_CONFLICTS = (("token", "user"), ("creds", "nkey_seed"), ("creds", "jwt"))


def _kind(value: object) -> str:
    return type(value).__name__


# ---------------------------------------------------------------- files and callables


async def _answer(name: str, ask: Callable[[], object]) -> object:
    """What a user's callable returns, awaited when it is to be; its errors say only their type."""
    try:
        value = ask()
        return await value if inspect.isawaitable(value) else value
    except NatsError:
        raise
    except Exception as exc:
        raise InvalidCredentials(name, f"the callable failed with {_kind(exc)}") from exc


async def _given(name: str, source: Secret) -> Text:
    """The text or path behind ``source``."""
    value: object = await _answer(name, source) if callable(source) else source
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidCredentials(name, f"the callable must return a str or a path, not {_kind(value)}")
    return value


async def _words(name: str, source: Secret) -> str:
    """The secret behind ``source``, without the line end of a file."""
    value = await _given(name, source)
    return value if isinstance(value, str) else _read(name, value).rstrip("\r\n")


async def _creds_text(source: Secret) -> str:
    value = await _given("creds", source)
    return value if isinstance(value, str) and _BLOCK.search(value) else _read("creds", value)


def _read(name: str, path: Text) -> str:
    """The text of a small file. The error tells a path only when it is one: a str could be a secret given for it."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            content = file.read(_MAX_FILE + 1)
        if len(content) <= _MAX_FILE:
            return content.decode("utf-8-sig")
        reason = f"is larger than {_MAX_FILE} bytes"
    except OSError as exc:
        reason = f"cannot be read: {exc.strerror or _kind(exc)}"
    except ValueError as exc:
        reason = "is not UTF-8 text" if isinstance(exc, UnicodeDecodeError) else "is not a path"
    # Raised here and not above: the OSError, which would be its context, repeats the whole path.
    raise InvalidCredentials(f"{name} file {_shown_path(path)}", reason)


def _shown_path(path: Text) -> str:
    if not isinstance(path, str):
        return repr(os.fspath(path))
    if not path.isprintable() or path.startswith(("S", "eyJ", "-")):
        return HIDDEN  # looks like a seed, a JWT or a creds text
    return repr(path if len(path) <= 16 else path[:16] + "…")


class _TlsFiles(Value):
    """Makes a context of certificate files; as a ``tls`` callable it reads them at every attempt."""

    cert: str
    key: str
    ca: str

    def _check(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("TLS certificate", self.cert or self.key, "cert and key must be given together")

    def __call__(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


# ---------------------------------------------------------------- environment and contexts


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    """The path with ``~``, ``$HOME`` and ``${HOME}`` replaced, as the command line tool does."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if path == "~" or path.startswith(("~/", "~\\")):
        path = home + path[1:]
    return path.replace("${HOME}", home).replace("$HOME", home)


def _file(path: str, environ: Mapping[str, str]) -> os.PathLike[str]:
    from pathlib import Path

    return Path(_expanded(path, environ))


def _go_duration(name: str, text: str) -> float:
    if not _GO_DURATION.fullmatch(text):
        raise ConfigError(name, text, "must be a duration like 5s, 500ms or 1m30s")
    return sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text))


def _context(name: str | None, environ: Mapping[str, str]) -> dict[str, object]:
    """The keyword arguments for ``Options`` that a context stands for."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a context must be a str, not {_kind(name)}")
    folder = os.path.join(environ.get("XDG_CONFIG_HOME") or _expanded("~/.config", environ), "nats")
    if name is None:
        name = _selected(os.path.join(folder, "context.txt"))
    if os.path.isabs(name):
        path = name
    elif not name or ".." in name or "/" in name or os.sep in name or "\0" in name:
        raise ConfigError("context", name, "is not the name of a context")
    else:
        path = os.path.join(folder, "context", f"{name}.json")
    settings = _settings(name, path)
    for field_name, why in _UNSUPPORTED.items():
        if settings.get(field_name):
            raise ConfigError(f"context {name} field {field_name}", HIDDEN, why)
    if not isinstance(settings.get("tls_first", False), bool):
        raise ConfigError(f"context {name} field tls_first", HIDDEN, "must be true or false")
    texts = {key: _setting(name, settings, key) for key in _TEXT_FIELDS}
    found: dict[str, object] = {option: texts[key] for key, option in _TEXT_FIELDS.items() if option and texts[key]}
    found |= _context_auth(name, texts, environ)
    files = [_expanded(texts[key], environ) for key in ("cert", "key", "ca")]
    if any(files):
        found["tls"] = _TlsFiles(cert=files[0], key=files[1], ca=files[2])
    if settings.get("tls_first"):
        found["tls_first"] = True
    return found


_TEXT_FIELDS = {
    "url": "servers", "inbox_prefix": "inbox_prefix", "jetstream_domain": "jetstream_domain",
    "jetstream_api_prefix": "jetstream_api_prefix", "socks_proxy": "proxy",
    "user": "", "password": "", "token": "", "creds": "", "nkey": "", "user_jwt": "", "cert": "", "key": "", "ca": "",
}  # fmt: skip
"""The fields of a context, and the option a field becomes as it is."""

_UNSUPPORTED = {
    "nsc": "profiles of nsc are not supported: export a creds file and name it in the field creds",
    **dict.fromkeys(
        ("windows_cert_store", "windows_cert_match", "windows_cert_match_by", "windows_ca_certs_match"),
        "the Windows certificate store is not supported: use cert, key and ca",
    ),
}


def _selected(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            name = file.read(_MAX_NAME).strip()
    except (OSError, ValueError):
        name = ""
    if not name:
        raise ConfigError("context", None, f"none is selected: no name was given and {path} holds none")
    return name


def _settings(name: str, path: str) -> Mapping[str, object]:
    import json

    try:
        with open(path, "rb") as file:
            settings = json.loads(file.read(_MAX_FILE))
        reason = "" if isinstance(settings, dict) else "is not a JSON object"
    except OSError as exc:
        reason = f"cannot be read: {exc.strerror or _kind(exc)}"
    except (ValueError, RecursionError):
        reason = "is not JSON"  # the error of the JSON module holds the text, secrets included
    if reason:
        raise ConfigError("context", name, f"{path} {reason}")
    return cast("Mapping[str, object]", settings)


def _setting(name: str, settings: Mapping[str, object], key: str) -> str:
    value = settings.get(key) or ""
    if not isinstance(value, str):
        raise ConfigError(f"context {name} field {key}", HIDDEN, f"must be a string, not {_kind(value)}")
    return value


def _context_auth(name: str, texts: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, object]:
    for key in ("creds", "nkey"):
        reference = texts[key]
        if _REFERENCE.match(reference) and not os.path.isabs(reference):
            raise ConfigError(f"context {name} field {key}", HIDDEN, "must be a path; references are not supported")
    if texts["user"]:
        return {"user": texts["user"], "password": texts["password"]}
    if texts["creds"]:
        return {"creds": _file(texts["creds"], environ)}
    found: dict[str, object] = {}
    if texts["user_jwt"]:
        found["jwt"] = texts["user_jwt"]
    if texts["nkey"]:
        found["nkey_seed"] = _file(texts["nkey"], environ)
    return found or ({"token": texts["token"]} if texts["token"] else {})
