"""Which server next, and how long to wait before it is tried.

Owns what server URLs mean, the list of servers (given by the user, or discovered in INFO), how often each was
tried and refused, and the back-off. It never dials and never sleeps: the time and the random fraction come in as
arguments, an ``Attempt`` goes out. What it shows of a server is host and port, never the user info of a URL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import islice

from natsproto._value import Value
from natsproto.errors import HIDDEN, ConfigError, NotAuthorized
from natsproto.protocol.frames import ServerInfo

MAX_DISCOVERED = 1000
"""Servers taken from one INFO; a hostile peer could name any number."""

REFUSED_FOR = 2.0
"""Seconds for which a refusal must be repeated to count. nats.go gives up at the second one, which comes within a
moment: a configuration that was wrong for a second then ends every client for good."""

PATIENCE = 3
"""Connections in a row that may die young before the back-off stops being reset by them."""

STABLE_AFTER = 1.0
"""Seconds after which a connection has not died young, however long the back-off has become."""

_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_BLANKS = re.compile(r"[\x00-\x20\x7f]|\s")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,15}")
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?[0-9]+\.?")
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}")
_PORT = re.compile(r"[0-9]{1,5}")
_ESCAPE = re.compile(rb"%([0-9a-fA-F]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class ServerAddress(Value):
    """One server. ``str()`` is ``host:port``; user, password and token appear in no text made of it.

    ``scheme`` is nats, tls, ws or wss. ``path`` is for WebSocket only. ``tls_name`` is the name a certificate is
    verified against: the host, or for a discovered bare IP address the name of the server that told of it.
    """

    scheme: str = "nats"
    host: str
    port: int
    path: str = ""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_name: str = ""

    def _check(self) -> None:
        if not self.tls_name:
            # A certificate names neither the root dot nor the zone of a link-local address.
            self.__dict__["tls_name"] = self.host.partition("%")[0].removesuffix(".")

    @property
    def tls(self) -> bool:
        """Whether the scheme demands TLS (``tls``, ``wss``)."""
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        """Whether the connection is a WebSocket (``ws``, ``wss``)."""
        return self.scheme in ("ws", "wss")

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address and needs no look-up."""
        return _is_ip(self.host)

    @property
    def url(self) -> str:
        """The URL without user, password and token."""
        return f"{self.scheme}://{self}{self.path}"

    def public(self) -> ServerAddress:
        """The same server without user, password and token: what may be handed to anybody."""
        return self.but(user=None, password=None, token=None)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"


class ServerState(Value):
    """A server as a chooser sees it: ``attempts`` since the last success of any, ``discovered`` or given."""

    address: ServerAddress
    attempts: int
    discovered: bool


class Attempt(Value):
    """Wait ``delay`` seconds, then dial ``address``.

    ``fault`` is what a user's callable did wrong while this was decided; the default was used instead.
    """

    address: ServerAddress
    delay: float = 0.0
    fault: Exception | None = None


class Discovery(Value):
    """What one INFO changed: servers ``added`` and ``dropped``, and how many of its entries were ``rejected``."""

    added: tuple[ServerAddress, ...] = ()
    dropped: tuple[ServerAddress, ...] = ()
    rejected: int = 0


_NOTHING_NEW = Discovery()

Chooser = Callable[[Sequence[ServerState], ServerInfo | None], tuple[ServerAddress, float | timedelta] | None]
"""Picks the server of the next attempt and the seconds to wait before it; None leaves it to the pool (ADR-40)."""

Shuffle = Callable[[list[ServerAddress]], object]
"""Reorders a list in place, as ``random.Random.shuffle`` does."""


def seconds(what: str, value: object) -> float:
    """A duration as users write it, seconds or timedelta, as float seconds >= 0.

    TypeError for other types, ConfigError naming ``what`` for negative and infinite ones, nan and bool.
    """
    if type(value) is float and 0 <= value < math.inf:
        return value  # nearly always
    if isinstance(value, timedelta):
        return seconds(what, value.total_seconds())
    if isinstance(value, bool):
        raise ConfigError(what, value, "must be a number of seconds or a timedelta, not a bool")
    if not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ConfigError(what, number, "must be a finite number of seconds, 0 or more")
    return number


def positive_seconds(what: str, value: object) -> float:
    """A duration without which nothing could succeed: ``seconds``, and ConfigError for 0."""
    if type(value) is float and 0 < value < math.inf:
        return value  # nearly always
    number = seconds(what, value)
    if number == 0:
        raise ConfigError(what, number, "must be more than 0 seconds")
    return number


# ---------------------------------------------------------------- URLs


def parse_servers(servers: str | Sequence[str]) -> list[ServerAddress]:
    """Reads one URL, a comma list, or a sequence of either; the same server twice counts once.

    Understood are ``nats://``, ``tls://`` (port 4222), ``ws://`` (80), ``wss://`` (443), a bare host or
    ``host:port``, IPv6 addresses in brackets, and ``user:password@`` or ``token@`` with percent escapes.
    Anything else is a ConfigError which never repeats what could be a secret; TypeError when it is no string.
    Options in the query are refused (ADR-18 is deprecated).
    """
    if isinstance(servers, str) and "," not in servers and "@" not in servers:
        try:
            return [_read_public_url(servers.strip(" "))]
        except _Malformed:
            pass  # said below
    given: object = [servers] if isinstance(servers, str) else servers
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Sequence):
        raise TypeError(f"servers must be a str or a sequence of str, not {type(given).__name__}")
    texts: list[str] = []
    for one in given:
        if not isinstance(one, str):
            raise TypeError(f"servers must be a str or a sequence of str; it holds {type(one).__name__}")
        texts += [text.strip(" ") for text in one.split(",")]
    if not texts:
        raise ConfigError("servers", HIDDEN, "is empty: name at least one server")
    # A comma inside an unescaped password cuts it in two, so one "@" anywhere makes every piece a secret.
    secret = any("@" in text for text in texts)
    found: dict[tuple[str, int, str], ServerAddress] = {}
    for place, text in enumerate(texts, 1):
        what = "server" if len(texts) == 1 else f"server {place} of {len(texts)}"
        try:
            address = _parse_url(text)
        except _Malformed as fault:
            shown, rule = HIDDEN if secret else fault.shown, fault.rule
        else:
            found.setdefault(_key(address), address)
            continue
        raise ConfigError(what, shown, rule)  # here, so that no traceback carries the cause
    addresses = list(found.values())
    if len({address.websocket for address in addresses}) == 2:
        raise ConfigError("servers", ", ".join(address.scheme for address in addresses), "mix WebSocket and plain NATS")
    return addresses


class _Malformed(Exception):
    """What is wrong with a URL, and which harmless part of it may be shown."""

    def __init__(self, rule: str, shown: str = HIDDEN) -> None:
        self.rule, self.shown = rule, shown


def _parse_url(text: str) -> ServerAddress:
    return _read_url(text) if "@" in text else _read_public_url(text)


def _read_url(text: str) -> ServerAddress:
    if not text:
        raise _Malformed("is empty", text)
    if _BLANKS.search(text):
        raise _Malformed("must not contain spaces or control characters")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "nats", text
    if scheme.lower() not in _PORTS:
        shown = scheme if _SCHEME.fullmatch(scheme) else HIDDEN
        raise _Malformed("the scheme must be nats, tls, ws or wss", shown)
    scheme = scheme.lower()
    if "?" in rest or "#" in rest:
        raise _Malformed(
            "a NATS URL has no query and no fragment: give options as keyword arguments, "
            "and write ? as %3F and # as %23 in a user name, password or token"
        )
    authority, _, path = rest.partition("/")
    userinfo, at, where = authority.rpartition("@")
    host, port = _host_and_port(where)
    if path and scheme not in ("ws", "wss"):
        raise _Malformed("only ws and wss URLs have a path", host)
    if not path.isascii():
        raise _Malformed("the path must be percent-encoded", host)
    name, colon, password = userinfo.partition(":")
    if at and not name:
        raise _Malformed("nothing stands before the @, or the user name is empty", host)
    user, token = (name, None) if colon else (None, name)
    return ServerAddress(
        scheme=scheme,
        host=host,
        port=port or _PORTS[scheme],
        path=f"/{path}" if path else "",
        user=_unescape(user) if user else None,
        password=_unescape(password) if colon else None,
        token=_unescape(token) if token else None,
    )


_read_public_url = lru_cache(maxsize=256)(_read_url)
"""Programs connect to the same few servers again and again. What may hold a secret is not kept."""


def _host_and_port(text: str) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[IPv6]:port``, the host in its normal form; port 0 when none is written."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise _Malformed("an IPv6 address is written [address]:port")
        host = _ipv6(host)
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise _Malformed("has more than one colon after the host: write an IPv6 address as [address]:port")
        host = _host_name(host)
    if not colon:
        return host, 0
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise _Malformed("the port must be a number from 1 to 65535", host)
    return host, int(port)


def _host_name(text: str) -> str:
    host = text.lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode().lower()
        except UnicodeError:
            raise _Malformed("the host name is not valid") from None
    if not host:
        raise _Malformed("the host is missing")
    if not _NAME.fullmatch(host):
        raise _Malformed("the host name is not valid: labels of letters, digits, - and _, separated by dots")
    if _ENDS_IN_NUMBER.fullmatch(host) and not _IPV4.fullmatch(host):
        raise _Malformed("the host ends in a number and is not an IPv4 address")
    return host


def _ipv6(text: str) -> str:
    from ipaddress import IPv6Address  # here, since hardly anybody needs it and importing natsproto must be fast

    try:
        return str(IPv6Address(text.replace("%25", "%")))
    except ValueError:
        raise _Malformed("is not an IPv6 address") from None


def _unescape(text: str) -> str:
    if _BROKEN_ESCAPE.search(text):
        raise _Malformed("the user name, password or token has a % that starts no escape: write it as %25")
    try:
        return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()
    except UnicodeError:
        raise _Malformed("the escapes in the user name, password or token are not UTF-8") from None


def _is_ip(host: str) -> bool:
    return ":" in host or _IPV4.fullmatch(host) is not None


def _key(address: ServerAddress) -> tuple[str, int, str]:
    return address.host, address.port, address.path


# ---------------------------------------------------------------- the pool


class _Entry:
    """One server of the pool and what happened to it."""

    __slots__ = ("address", "attempts", "discovered", "out", "refusal", "refused_at", "round")

    def __init__(self, address: ServerAddress, *, discovered: bool = False) -> None:
        self.address, self.discovered = address, discovered
        self.attempts = 0  # dials since the last success of any server
        self.round = -1  # the round it was last tried in
        self.refusal = ""  # the server's last word on our credentials; empty when the last dial ended otherwise
        self.refused_at = 0.0  # when these words came first
        self.out = False  # went on refusing with the same words


class ServerPool:
    """The servers of one client, in the order they will be tried.

    A server that is tried goes to the back. The servers of a round follow each other at once; when all have been
    tried, the next attempt waits: ``wait`` seconds, doubled after every round up to ``wait_cap``, plus a random
    part of ``jitter`` (``jitter_tls`` with TLS), or what ``delay(rounds)`` says. A connection ends the outage: the
    counters and the back-off start anew, unless it was the fourth in a row to live shorter than the back-off and than
    STABLE_AFTER, so that a server which accepts and drops cannot make its clients spin.

    ``max_attempts_per_server`` bounds the attempts of one outage, -1 for ever. ``shuffle`` orders servers at
    random, None keeps the order. Unless ``ignore_auth_abort``, a server that refuses the credentials again and
    again with the same words, REFUSED_FOR seconds after the first time still, is not asked again in this outage.
    ``tls`` says that every connection is encrypted, whatever the scheme.
    """

    __slots__ = (
        "_back_off", "_brief", "_cap", "_connected_at", "_current", "_delay", "_ignore_auth_abort",
        "_ignore_discovered", "_jitter", "_jitter_tls", "_max_attempts", "_order", "_refused", "_round", "_rounds",
        "_shuffle", "_tls", "_wait",
    )  # fmt: skip

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        *,
        shuffle: Shuffle | None = None,
        ignore_discovered: bool = False,
        max_attempts_per_server: int = -1,
        wait: float = 0.05,
        wait_cap: float = 4.0,
        jitter: float = 0.1,
        jitter_tls: float = 1.0,
        delay: Callable[[int], float | timedelta] | None = None,
        ignore_auth_abort: bool = False,
        tls: bool = False,
    ) -> None:
        self._shuffle, self._ignore_discovered, self._tls = shuffle, ignore_discovered, tls
        self._max_attempts, self._ignore_auth_abort = max_attempts_per_server, ignore_auth_abort
        self._wait, self._cap, self._jitter, self._jitter_tls = wait, max(wait, wait_cap), jitter, jitter_tls
        self._delay = delay
        self._back_off = wait  # what the next full round costs
        self._round = 0
        self._rounds = 0  # full rounds of this outage
        self._brief = 0  # connections in a row that did not outlive the back-off
        self._connected_at: float | None = None
        self._current: tuple[str, int, str] | None = None
        self._refused: NotAuthorized | None = None
        self._order: list[_Entry] = []
        self.set_servers(addresses)

    # ------------------------------------------------------------ what there is

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """Every server, the next one first, without secrets."""
        return tuple(entry.address.public() for entry in self._order)

    @property
    def discovered_servers(self) -> tuple[ServerAddress, ...]:
        """The servers learned from INFO, without secrets."""
        return tuple(entry.address.public() for entry in self._order if entry.discovered)

    @property
    def exhausted(self) -> bool:
        """Whether every server is out or has used up its attempts."""
        return not any(map(self._usable, self._order))

    @property
    def final_reason(self) -> NotAuthorized | None:
        """The last refusal when refusals left no server to try; None when attempts merely ran out."""
        return self._refused if self.exhausted and any(entry.out for entry in self._order) else None

    def set_servers(self, addresses: Sequence[ServerAddress]) -> None:
        """Replaces every server, discovered ones included, and forgets their counters (ADR-40).

        ConfigError when there is none. The connection in use is not touched.
        """
        if not addresses:
            raise ConfigError("servers", HIDDEN, "is empty: name at least one server")
        chosen = list({_key(address): address for address in addresses}.values())
        if self._shuffle is not None and len(chosen) > 1:
            self._shuffle(chosen)
        self._order = [_Entry(address) for address in chosen]
        self._refused = None
        self._to_the_back(self._current)

    def discovered(self, urls: Sequence[str], current: ServerAddress) -> Discovery:
        """Takes over the ``connect_urls`` (``host:port``) of an INFO that ``current`` sent.

        New servers are added with the scheme and user info of ``current``. Discovered ones that are no longer
        named are dropped, except ``current``; given ones stay. An INFO that names none changes nothing.
        """
        if self._ignore_discovered or not urls:
            return _NOTHING_NEW
        named: dict[tuple[str, int], None] = {}
        rejected = max(0, len(urls) - MAX_DISCOVERED)
        for url in islice(urls, MAX_DISCOVERED):
            try:
                host, port = _host_and_port(url)
            except _Malformed:
                port = 0
            if port:
                named[host, port] = None
            else:
                rejected += 1
        if not named:
            return Discovery(rejected=rejected)
        here = _key(current)
        kept: list[_Entry] = []
        dropped: list[_Entry] = []
        for entry in self._order:
            vanished = entry.discovered and (entry.address.host, entry.address.port) not in named
            (dropped if vanished and _key(entry.address) != here else kept).append(entry)
        known = {(entry.address.host, entry.address.port) for entry in kept}
        added = [
            current.but(host=host, port=port, tls_name=current.tls_name if _is_ip(host) else host)
            for host, port in named
            if (host, port) not in known
        ]
        if self._shuffle is not None:
            self._shuffle(added)
        self._order = kept + [_Entry(address, discovered=True) for address in added]
        self._to_the_back(here)
        return Discovery(
            added=tuple(address.public() for address in added),
            dropped=tuple(entry.address.public() for entry in dropped),
            rejected=rejected,
        )

    # ------------------------------------------------------------ what to do

    def one_pass(self) -> Iterator[ServerAddress]:
        """Every server once and without waiting, also those discovered on the way: the first connect.

        These do not count as attempts. When nothing came of it, ``next()`` goes on with the back-off.
        """
        self._round += 1
        while (entry := self._untried(self._order)) is not None:
            self._try(entry)
            yield entry.address

    def next(
        self, now: float, fraction: float, *, choose: Chooser | None = None, info: ServerInfo | None = None
    ) -> Attempt | None:
        """The next server and the wait before it, or None when all are exhausted.

        ``now`` is in seconds of any steady clock, ``fraction`` a random number in [0, 1). ``choose`` may overrule
        server and wait; it sees the servers in rotation and ``info``, the last INFO.
        """
        self._end_connection(now)
        usable = [entry for entry in self._order if self._usable(entry)]
        if not usable:
            return None
        fault: Exception | None = None
        entry, delay = None, 0.0
        if choose is not None:
            try:
                entry, delay = self._chosen(choose, usable, info)
            except Exception as exc:  # a user's callable must not end the reconnecting; the caller reports it
                fault = exc
        if entry is None:
            entry = self._untried(usable)
            if entry is None:
                self._round += 1
                entry = usable[0]
                delay, late_fault = self._pause(entry.address, fraction)
                fault = fault or late_fault
        entry.attempts += 1
        self._try(entry)
        return Attempt(address=entry.address, delay=delay, fault=fault)

    def failed(self, address: ServerAddress, now: float, refusal: str | None = None) -> None:
        """A dial came to nothing, or a connection was ended. ``refusal`` is the server's text about credentials."""
        entry = self._find(_key(address))
        if entry is None:
            return
        if refusal is None:
            entry.refusal = ""
            return
        if entry.refusal != refusal:
            entry.refusal, entry.refused_at = refusal, now
        elif now - entry.refused_at >= REFUSED_FOR and not self._ignore_auth_abort:
            entry.out = True  # until a success or set_servers
        self._refused = NotAuthorized(refusal, str(address))

    def succeeded(self, address: ServerAddress, now: float) -> None:
        """A connection is established: the outage is over for every server."""
        self._connected_at, self._current = now, _key(address)
        self._refused = None
        for entry in self._order:
            entry.attempts, entry.refusal, entry.out = 0, "", False
        self._to_the_back(self._current)

    # ------------------------------------------------------------ how

    def _usable(self, entry: _Entry) -> bool:
        return not entry.out and (self._max_attempts < 0 or entry.attempts < self._max_attempts)

    def _untried(self, entries: Sequence[_Entry]) -> _Entry | None:
        """The first of ``entries`` that this round has not seen."""
        return next((entry for entry in entries if entry.round != self._round), None)

    def _try(self, entry: _Entry) -> None:
        entry.round = self._round
        self._order.remove(entry)
        self._order.append(entry)

    def _find(self, key: tuple[str, int, str] | None) -> _Entry | None:
        return next((entry for entry in self._order if _key(entry.address) == key), None)

    def _to_the_back(self, key: tuple[str, int, str] | None) -> None:
        if len(self._order) < 2:
            return
        entry = self._find(key)
        if entry is not None:
            self._order.remove(entry)
            self._order.append(entry)

    def _end_connection(self, now: float) -> None:
        """Settles what the connection just lost means for the back-off."""
        if self._connected_at is None:
            return
        self._brief = 0 if now - self._connected_at >= min(self._back_off, STABLE_AFTER) else self._brief + 1
        self._connected_at = self._current = None
        if self._brief <= PATIENCE:
            self._back_off = self._wait
            self._round += 1
            self._rounds = 0

    def _pause(self, address: ServerAddress, fraction: float) -> tuple[float, Exception | None]:
        """The wait after a full round, and what a ``delay`` callable did wrong."""
        self._rounds += 1
        base, self._back_off = self._back_off, min(self._back_off * 2, self._cap)
        fault: Exception | None = None
        if self._delay is not None:
            try:
                return seconds("what reconnect_delay returned", self._delay(self._rounds)), None
            except Exception as exc:  # as for the chooser
                fault = exc
        return base + fraction * (self._jitter_tls if self._tls or address.tls else self._jitter), fault

    def _chosen(
        self, choose: Chooser, usable: Sequence[_Entry], info: ServerInfo | None
    ) -> tuple[_Entry | None, float]:
        states = tuple(
            ServerState(address=entry.address.public(), attempts=entry.attempts, discovered=entry.discovered)
            for entry in usable
        )
        choice = choose(states, info)
        if choice is None:
            return None, 0.0
        if not (isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[0], ServerAddress)):
            raise TypeError("reconnect_to_server must return (server, seconds) or None")
        address, wait = choice
        for entry in usable:
            if _key(entry.address) == _key(address):
                return entry, seconds("the wait reconnect_to_server returned", wait)
        raise ConfigError("what reconnect_to_server returned", str(address), "must be one of the servers it was given")
