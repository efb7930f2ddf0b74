"""Keys: the rules for their names, and the codecs that change them (ADR-6, ADR-8, ADR-54).

Owns the rules for keys and filters, and the codecs for names that are not valid keys. It does not know buckets.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

from natsproto.errors import ConfigError, InvalidPayload, InvalidSubject

_TERM = r"[-/_=a-zA-Z0-9]+"
_KEY = re.compile(rf"{_TERM}(?:\.{_TERM})*")
_FILTER = re.compile(rf"(?:>|(?:{_TERM}|\*)(?:\.(?:{_TERM}|\*))*(?:\.>)?)")
_RULE = "only A-Z, a-z, 0-9, '-', '/', '_', '=' and single dots between them"
_ROOT = "_root_"


def check_key_name(key: str) -> str:
    """Return a valid key, or raise InvalidSubject."""
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    if not _is_key(key):
        raise InvalidSubject("key", key, _RULE)
    return key


@lru_cache(maxsize=4096)
def _is_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def check_key_filter(pattern: str) -> str:
    """Return a valid key or pattern (``*`` for one token, a final ``>`` for the rest), or raise InvalidSubject."""
    if not isinstance(pattern, str):
        raise TypeError(f"key filter must be a str, not {type(pattern).__name__}")
    if not _FILTER.fullmatch(pattern):
        raise InvalidSubject("key filter", pattern, f"{_RULE}; '*' for one token, a final '>' for all that follow")
    return pattern


def without_covered(filters: Iterable[str]) -> tuple[str, ...]:
    """Remove filters that another one covers: a server rejects a consumer with overlapping filters."""
    split = {pattern: pattern.split(".") for pattern in filters}
    wide = [tokens for tokens in split.values() if "*" in tokens or tokens[-1] == ">"]
    return tuple(
        pattern
        for pattern, tokens in split.items()
        if not any(other is not tokens and _covers(other, tokens) for other in wide)
    )


def _covers(pattern: list[str], other: list[str]) -> bool:
    """True if this pattern matches all keys that the other one matches."""
    for place, token in enumerate(pattern):
        if place == len(other):
            return False
        if token == ">":
            return True
        if other[place] == ">" or token not in ("*", other[place]):
            return False
    return len(pattern) == len(other)


class KeyCodec(Protocol):
    """Converts the names of a program to keys of a bucket and back (ADR-54).

    ``encode`` must return a valid key; ``decode`` raises InvalidPayload for a key that it cannot decode.
    ``encode_filter`` keeps the wildcards, or raises ConfigError when this codec cannot.
    """

    def encode(self, key: str) -> str:
        """Return the key in the bucket."""
        ...

    def decode(self, key: str) -> str:
        """Return the program's name for a key in the bucket."""
        ...

    def encode_filter(self, pattern: str) -> str:
        """Return the pattern for keys in the bucket."""
        ...


class Base64Keys:
    """Any text as a key: each token (between dots) in URL-safe base64 without padding."""

    def encode(self, key: str) -> str:
        """Encode every token in base64."""
        return _each_token(key, _to_base64)

    def decode(self, key: str) -> str:
        """Decode every token from base64; InvalidPayload for an invalid key."""
        return _each_token(key, _from_base64)

    def encode_filter(self, pattern: str) -> str:
        """Encode every token except wildcards."""
        return _each_token(pattern, lambda token: token if token in ("*", ">") else _to_base64(token))

    def __repr__(self) -> str:
        return "Base64Keys()"


class PathKeys:
    """Paths as keys: slashes become dots, so that filters work on directories.

    A leading slash becomes the token ``_root_``. A trailing slash is dropped, and dots are decoded as slashes.
    """

    def encode(self, key: str) -> str:
        """Replace slashes with dots."""
        if key == "/":
            return _ROOT
        if key.startswith("/"):
            key = f"{_ROOT}.{key[1:]}"
        return key.removesuffix("/").replace("/", ".")

    def decode(self, key: str) -> str:
        """Replace dots with slashes."""
        first, _, rest = key.partition(".")
        if first == _ROOT:
            return "/" + rest.replace(".", "/")
        return key.replace(".", "/")

    def encode_filter(self, pattern: str) -> str:
        """Replace slashes with dots; wildcards are kept."""
        return self.encode(pattern)

    def __repr__(self) -> str:
        return "PathKeys()"


class KeyChain:
    """Several codecs: encoding applies them in order, decoding in reverse order."""

    def __init__(self, *codecs: KeyCodec) -> None:
        if not codecs:
            raise ConfigError("codecs", codecs, "a chain needs at least one codec")
        self._codecs = codecs

    def encode(self, key: str) -> str:
        """Through all of them."""
        for codec in self._codecs:
            key = codec.encode(key)
        return key

    def decode(self, key: str) -> str:
        """Decode with all codecs in reverse order."""
        for codec in reversed(self._codecs):
            key = codec.decode(key)
        return key

    def encode_filter(self, pattern: str) -> str:
        """Encode a filter with all codecs; ConfigError when one of them cannot."""
        for codec in self._codecs:
            pattern = codec.encode_filter(pattern)
        return pattern

    def __repr__(self) -> str:
        return f"KeyChain({', '.join(map(repr, self._codecs))})"


def _each_token(key: str, change: Callable[[str], str]) -> str:
    return ".".join(map(change, key.split(".")))


def _to_base64(token: str) -> str:
    return urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _from_base64(token: str) -> str:
    try:
        text = urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except ValueError as exc:
        raise InvalidPayload("decode", f"key token {token!r}", str(exc)) from None
    if _to_base64(text) != token:
        raise InvalidPayload("decode", f"key token {token!r}", "is not valid base64")
    return text
