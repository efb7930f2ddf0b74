"""Server URLs: what they mean, and the address of one server.

Owns the rules of server URLs and ``host:port`` texts. It resolves no names and shows no user info: user, password and
token of a URL appear in no text made here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from natsproto import errors
from natsproto._value import Value
from natsproto.errors._base import HIDDEN

_SECRET = frozenset("@?")  # a URL with one of these may contain a secret
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
    """One server. ``str()`` is ``host:port``; user, password, token and query appear in no text made of it.

    ``scheme`` is nats, tls, ws or wss. ``path`` and ``query`` are for WebSocket only. ``tls_name`` is the name that a
    certificate is verified against: the host, or for a discovered IP address the name of the server that announced it.
    """

    scheme: str = "nats"
    host: str
    """A name or an IP address, IPv6 without brackets."""
    port: int
    """4222 if the URL has none; 80 or 443 of ws and wss."""
    path: str = ""
    user: str | None = None
    """The user of this URL, which takes precedence over the option; None: none."""
    password: str | None = None
    token: str | None = None
    query: str = ""
    """What follows the ? of a ws or wss URL. It may be a secret."""
    tls_name: str = ""

    def _check(self) -> None:
        if not self.tls_name:
            # Certificates contain neither the root dot nor the zone of a link-local address.
            self.__dict__["tls_name"] = self.host.partition("%")[0].removesuffix(".")

    @property
    def tls(self) -> bool:
        """True if the scheme requires TLS (``tls``, ``wss``)."""
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        """True if the connection is a WebSocket (``ws``, ``wss``)."""
        return self.scheme in ("ws", "wss")

    @property
    def is_ip(self) -> bool:
        """True if the host is an IP address and needs no look-up."""
        return is_ip(self.host)

    @property
    def url(self) -> str:
        """The URL without user, password, token and query."""
        return f"{self.scheme}://{self}{self.path}"

    def public(self) -> ServerAddress:
        """Return the same server without user, password, token and query."""
        return self.replace(user=None, password=None, token=None, query="")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"


def parse_servers(servers: str | Sequence[str]) -> list[ServerAddress]:
    """Read one URL, a comma-separated list, or a sequence of either; duplicates are dropped.

    Accepts ``nats://``, ``tls://`` (port 4222), ``ws://`` (80), ``wss://`` (443), a bare host or ``host:port``, IPv6
    addresses in brackets, and ``user:password@`` or ``token@`` with percent escapes. Anything else is a ConfigError
    that never repeats a possible secret; TypeError for other types. A ws or wss URL may have a query, which goes to the
    gateway; in others, options in the query are rejected (ADR-18 is deprecated).
    """
    given: object = [servers] if isinstance(servers, str) else servers
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Sequence):
        raise TypeError(f"servers must be a str or a sequence of str, not {type(given).__name__}")
    texts: list[str] = []
    for one in given:
        if not isinstance(one, str):
            raise TypeError(f"servers must be a str or a sequence of str; it holds {type(one).__name__}")
        texts += [text.strip(" ") for text in one.split(",")]
    if not texts:
        raise errors.ConfigError("servers", HIDDEN, "is empty: name at least one server")
    # A comma in an unescaped password splits it, so one "@" anywhere makes every part a secret.
    secret = any(not _SECRET.isdisjoint(text) for text in texts)
    found: dict[tuple[str, int, str], ServerAddress] = {}
    for place, text in enumerate(texts, 1):
        what = "server" if len(texts) == 1 else f"server {place} of {len(texts)}"
        try:
            address = _parse_url(text)
        except MalformedUrl as fault:
            shown, rule = HIDDEN if secret else fault.shown, fault.rule
        else:
            found.setdefault(address_key(address), address)
            continue
        raise errors.ConfigError(what, shown, rule)  # here, so that the traceback does not contain the cause
    addresses = list(found.values())
    if len({address.websocket for address in addresses}) == 2:
        schemes = ", ".join(address.scheme for address in addresses)
        raise errors.ConfigError("servers", schemes, "must not mix WebSocket and plain NATS URLs")
    return addresses


class MalformedUrl(Exception):
    """The broken rule of a URL, and a harmless part of it to show."""

    def __init__(self, rule: str, shown: str = HIDDEN) -> None:
        self.rule: str = rule
        self.shown: str = shown


def _parse_url(text: str) -> ServerAddress:
    if not text:
        raise MalformedUrl("is empty", text)
    if _BLANKS.search(text):
        raise MalformedUrl("must not contain spaces or control characters")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "nats", text
    if scheme.lower() not in _PORTS:
        shown = scheme if _SCHEME.fullmatch(scheme) else HIDDEN
        raise MalformedUrl("the scheme must be nats, tls, ws or wss", shown)
    scheme = scheme.lower()
    query = ""
    if scheme in ("ws", "wss"):
        rest, _, query = rest.partition("?")
    if "?" in rest or "#" in rest or "#" in query:
        raise MalformedUrl(
            "a NATS URL has no fragment, and a query only with ws and wss: give options as keyword arguments, "
            "and write ? as %3F and # as %23 in a user name, password or token"
        )
    authority, _, path = rest.partition("/")
    userinfo, at, where = authority.rpartition("@")
    host, port = parse_host_port(where)
    if path and scheme not in ("ws", "wss"):
        raise MalformedUrl("only ws and wss URLs have a path", host)
    if not path.isascii() or not query.isascii():
        raise MalformedUrl("the path and the query must be percent-encoded", host)
    name, colon, password = userinfo.partition(":")
    if at and not name:
        raise MalformedUrl("the user name or token before @ is empty", host)
    user, token = (name, None) if colon else (None, name)
    return ServerAddress(
        scheme=scheme,
        host=host,
        port=port or _PORTS[scheme],
        path=f"/{path}" if path else "",
        user=_unescape(user) if user else None,
        password=_unescape(password) if colon else None,
        token=_unescape(token) if token else None,
        query=query,
    )


def parse_host_port(text: str) -> tuple[str, int]:
    """Parse ``host``, ``host:port`` or ``[IPv6]:port``; return the normalised host, and the port or 0."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise MalformedUrl("an IPv6 address is written [address]:port")
        host = _ipv6(host)
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise MalformedUrl("has more than one colon after the host: write an IPv6 address as [address]:port")
        host = _host_name(host)
    if not colon:
        return host, 0
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise MalformedUrl("the port must be a number from 1 to 65535", f"{host}:{port}" if port.isdecimal() else host)
    return host, int(port)


def _host_name(text: str) -> str:
    host = text.lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode().lower()
        except UnicodeError:
            raise MalformedUrl("the host name is not valid") from None
    if not host:
        raise MalformedUrl("the host is missing")
    if not _NAME.fullmatch(host):
        raise MalformedUrl("the host name is not valid: labels of letters, digits, - and _, separated by dots")
    if _ENDS_IN_NUMBER.fullmatch(host) and not _IPV4.fullmatch(host):
        raise MalformedUrl("the host ends in a number and is not an IPv4 address")
    return host


def _ipv6(text: str) -> str:
    from ipaddress import IPv6Address  # rarely needed, and importing natsproto must be fast

    try:
        return str(IPv6Address(text.replace("%25", "%")))
    except ValueError:
        raise MalformedUrl("is not an IPv6 address") from None


def _unescape(text: str) -> str:
    if _BROKEN_ESCAPE.search(text):
        raise MalformedUrl(
            "the user name, password or token contains a % that is not part of a percent escape: write it as %25"
        )
    try:
        return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()
    except UnicodeError:
        raise MalformedUrl("the escapes in the user name, password or token are not UTF-8") from None


def is_ip(host: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    return ":" in host or _IPV4.fullmatch(host) is not None


def address_key(address: ServerAddress) -> tuple[str, int, str]:
    """The fields that distinguish two servers."""
    return address.host, address.port, address.path
