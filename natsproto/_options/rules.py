"""Rules of options: functions that check a value and return the one to keep.

Each takes the name of the option, for the error, and the value.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from natsproto import errors
from natsproto._value import Value
from natsproto.errors._base import HIDDEN
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.auth import Credentials, parse_creds, parse_seed
from natsproto.protocol.subject import publish_subject

MAX_NAME_LENGTH = 1024
MAX_FILE = 1 << 20
"""Bytes that are read of a file."""
AUTH_OPTIONS = ("user", "password", "token", "jwt", "nkey_seed", "creds", "auth")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PROXY_RULE = (
    "must be a URL like socks5://host:port, or http:// for HTTP CONNECT, with user:password@ if the proxy asks for it"
)
_PATH = re.compile(r"/[\x21\x24-\x7e]*")
CREDS_BLOCK = re.compile(r"(?<!-)-{3,}+\s*+BEGIN\b|\A\s{0,9}[\"']?LS0t")  # linear, whatever the text is
"""The first line of the text of a creds file, as it is or as base64, as opposed to its path."""


def type_name(value: object) -> str:
    """Return the name of a type, for errors."""
    return type(value).__name__


def flag(name: str, value: object) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def whole(least: int) -> Callable[[str, object], int]:
    """Return a rule for integers of at least ``least``."""

    def rule(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if not least <= value < 2**63:
            raise errors.ConfigError(name, value, f"must be an int from {least} to 2**63 - 1")
        return value

    return rule


def function(name: str, value: object) -> object:
    """Return a callable."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def string(name: str, value: object) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def label(name: str, value: object) -> str:
    """Return a short printable text."""
    text = string(name, value)
    if not text.isprintable() or len(text) > MAX_NAME_LENGTH:
        raise errors.ConfigError(name, text, f"must be at most {MAX_NAME_LENGTH} printable characters")
    return text


def subject(name: str, value: object) -> str:
    """Return a subject without wildcards."""
    text = string(name, value)
    publish_subject(text, name)
    return text


def inbox(name: str, value: object) -> str:
    """Return an inbox prefix."""
    text = subject(name, value)
    if len(text.encode()) > MAX_NAME_LENGTH:
        raise errors.ConfigError(
            name, text, f"must be at most {MAX_NAME_LENGTH} bytes, as a subject has to fit beside it"
        )
    return text


def domain(name: str, value: object) -> str:
    """Return a JetStream domain."""
    text = subject(name, value)
    if "." in text:
        raise errors.ConfigError(name, text, "must be one token: without dots")
    return text


def secret(name: str, value: object) -> object:
    """Return a text, a path or a callable for a secret."""
    if isinstance(value, str):
        if not value:
            raise errors.InvalidCredentials(name, "is empty")
    elif not isinstance(value, os.PathLike) and not callable(value):
        raise TypeError(f"{name} must be a str, a path or a callable, not {type(value).__name__}")
    return value


def password(name: str, value: object) -> object:
    """Return a secret, which may be empty."""
    return value if value == "" else secret(name, value)


def jwt(name: str, value: object) -> object:
    """Return a secret; a JWT given as text is checked."""
    if isinstance(value, str):
        Credentials(jwt=value.strip())
    return secret(name, value)


def seed(name: str, value: object) -> object:
    """Return a secret; a seed given as text is checked."""
    if isinstance(value, str):
        if "SU" not in value:
            raise errors.InvalidCredentials(name, "is not the seed of a user (SU…): give a pathlib.Path to name a file")
        parse_seed(value)
    return secret(name, value)


def creds(name: str, value: object) -> object:
    """Return a secret; credentials given as text are checked."""
    if isinstance(value, str) and CREDS_BLOCK.search(value):
        parse_creds(value)
    return secret(name, value)


class TlsFiles(Value):
    """A ``tls`` callable for certificate files, which it reads at every attempt."""

    cert: str
    key: str
    ca: str

    def _check(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise errors.ConfigError("TLS certificate", self.cert or self.key, "cert and key must be given together")

    def __call__(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


def tls(name: str, value: object) -> object:
    """Return a TLS context, True, a callable or None."""
    if value is False:
        return None
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if not isinstance(path, str) or not path:
            raise errors.ConfigError(name, value, "must be the path of a file with certificates of authorities")
        return TlsFiles(cert="", key="", ca=path)
    if value is not True and not isinstance(value, ssl.SSLContext) and not callable(value):
        raise TypeError(
            f"{name} must be an ssl.SSLContext, the path of a CA file, True or a callable, not {type(value).__name__}"
        )
    return value


def host(name: str, value: object) -> str:
    """Return a host name in its normal form."""
    text = string(name, value)
    if not re.search("[@/,[]", text):
        try:
            (address,) = parse_servers(f"[{text}]" if ":" in text else text)
        except errors.ConfigError:
            pass
        else:
            return address.tls_name
    raise errors.ConfigError(name, text, "must be a host name or an IP address, without scheme and port")


def headers(name: str, value: object) -> object:
    """Return HTTP headers for the WebSocket handshake."""
    if callable(value):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of str to str or a callable, not {type(value).__name__}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{name} must map str to str, not {type(key).__name__} to {type(text).__name__}")
        if not _HEADER_NAME.fullmatch(key):
            raise errors.ConfigError(name, key, "is not an HTTP header name")
        if key.lower() in ("connection", "upgrade") or key.lower().startswith("sec-websocket-"):
            raise errors.ConfigError(name, key, "belongs to the handshake itself")
        if not _HEADER_VALUE.fullmatch(text):
            raise errors.ConfigError(
                f"{name} {key}", HIDDEN, "must not contain control characters or anything beyond Latin-1"
            )
    return dict(value)


def path(name: str, value: object) -> str:
    """Return the path of a URL, and its query if it has one."""
    text = string(name, value)
    if not _PATH.fullmatch(text):
        rule = "must start with / and be percent-encoded, without fragment"
        raise errors.ConfigError(name, HIDDEN if "?" in text else text, rule)
    return text


def no_plain_websocket(addresses: Sequence[ServerAddress]) -> None:
    """Refuse ws:// URLs: TLS is required, and a WebSocket is encrypted from the first byte or never."""
    for address in addresses:
        if address.scheme == "ws":
            raise errors.ConfigError("servers", address.url, "TLS is demanded, so it must be a wss:// URL")


def servers(_name: str, value: object) -> str | tuple[str, ...]:
    """Return URLs."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Sequence):
        raise TypeError(f"servers must be a str or a sequence of str, not {type(value).__name__}")
    return tuple(value)


def note_milliseconds(what: str, value: float) -> None:
    """Log a warning for a duration that looks like milliseconds: a whole number of thousands."""
    if value >= 1000 and value % 1000 == 0:
        logging.getLogger("natsproto").warning(
            "%s=%d means %d seconds: if these are milliseconds, pass %s=%g", what, value, value, what, value / 1000
        )


def proxy(name: str, value: object) -> str:
    """Return the URL of a proxy. ConfigError, without any part of the URL, which can contain a password."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "socks5", "socks5h") and parts.hostname and parts.port
    except ValueError:
        good = False
    if not good or parts.path not in ("", "/") or parts.query or parts.fragment or not value.isprintable():
        raise errors.ConfigError(name, HIDDEN, _PROXY_RULE)
    if re.search(r"\s", value):
        raise errors.ConfigError(name, HIDDEN, _PROXY_RULE)
    return value
