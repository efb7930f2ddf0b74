"""PURE. Keys: the rules for their names, the codecs that change them, and their subjects (ADR-6, ADR-8, ADR-54).

Owns the rules for keys and filters, the codecs for names that are not valid keys, and the subjects of stored keys and
of writes, which differ for a mirror and for a bucket in another domain or account (ADR-19, ADR-57).
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, Protocol, cast

from natsproto import errors
from natsproto.codecs import Codec, TypedCodec
from natsproto.jetstream._values.bucket_config import KV_STREAM, KV_SUBJECTS
from natsproto.jetstream._values.config import StreamConfig
from natsproto.protocol.frames import as_bytes
from natsproto.protocol.subject import is_literal, publish_subject, subscribe_subject

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers ship it; TypeVar defaults are new in Python 3.13

    V = TypeVar("V", default=bytes)
    T = TypeVar("T")
else:
    from typing import TypeVar

    V, T = TypeVar("V"), TypeVar("T")

_TERM = r"[-/_=a-zA-Z0-9]+"
_KEY = re.compile(rf"{_TERM}(?:\.{_TERM})*")
_FILTER = re.compile(rf"(?:>|(?:{_TERM}|\*)(?:\.(?:{_TERM}|\*))*(?:\.>)?)")
_RULE = "only A-Z, a-z, 0-9, '-', '/', '_', '=' and single dots between them"
_ROOT = "_root_"


def check_key_name(key: str) -> str:
    """Return a valid key, or raise InvalidSubject."""
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    if not _KEY.fullmatch(key):
        raise errors.InvalidSubject("key", key, _RULE)
    return key


def check_key_filter(pattern: str) -> str:
    """Return a valid key or pattern (``*`` for one token, a final ``>`` for the rest), or raise InvalidSubject."""
    if not isinstance(pattern, str):
        raise TypeError(f"key filter must be a str, not {type(pattern).__name__}")
    if not _FILTER.fullmatch(pattern):
        raise errors.InvalidSubject(
            "key filter", pattern, f"{_RULE}; '*' for one token, a final '>' for all that follow"
        )
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
    for index, token in enumerate(pattern):
        if index == len(other):
            return False
        if token == ">":
            return True
        if other[index] == ">" or token not in ("*", other[index]):
            return False
    return len(pattern) == len(other)


class KeyCodec(Protocol):
    """Converts the names of a program to keys of a bucket and back (ADR-54).

    ``encode`` must return a valid key; ``decode`` raises InvalidPayload for a key that it cannot decode.
    ``encode_filter`` keeps the wildcards, or raises ConfigError when this codec cannot.
    """

    def encode(self, key: str) -> str:
        """Return the key in the bucket.

        Args:
            key: The key as the program writes it.
        """
        ...

    def decode(self, key: str) -> str:
        """Return the program's name for a key in the bucket.

        Args:
            key: The key as the server has it.
        """
        ...

    def encode_filter(self, pattern: str) -> str:
        """Return the pattern for keys in the bucket.

        Args:
            pattern: A pattern of the program's keys, with ``*`` and ``>``.
        """
        ...


class Base64Keys:
    """Any text as a key: each token (between dots) in URL-safe base64 without padding, as orbit.go writes them.

    ``padded=True`` writes what nats.js writes: the standard alphabet with padding, in which a few texts contain the
    character ``+`` and are no keys. Both are read. nats.js encodes other characters than ASCII differently.

    Args:
        padded: Write the ``=`` at the end, as some other clients do.
    """

    def __init__(self, *, padded: bool = False) -> None:
        self._padded = padded
        self._encode = _to_padded_base64 if padded else _to_base64

    def encode(self, key: str) -> str:
        """Encode every token in base64.

        Args:
            key: The key as the program writes it.
        """
        return _each_token(key, self._encode)

    def decode(self, key: str) -> str:
        """Decode every token from base64; InvalidPayload for an invalid key.

        Args:
            key: The key as the server has it.
        """
        return _each_token(key, _from_base64)

    def encode_filter(self, pattern: str) -> str:
        """Encode every token except wildcards.

        Args:
            pattern: A pattern of the program's keys, with ``*`` and ``>``.
        """
        return _each_token(pattern, lambda token: token if token in ("*", ">") else self._encode(token))

    def __repr__(self) -> str:
        return f"Base64Keys({'padded=True' if self._padded else ''})"


class PathKeys:
    """Paths as keys: slashes become dots, so that filters work on directories.

    A leading slash becomes the token ``_root_``. A trailing slash is dropped, and dots are decoded as slashes.
    """

    def encode(self, key: str) -> str:
        """Replace slashes with dots.

        Args:
            key: The key as the program writes it.
        """
        if key == "/":
            return _ROOT
        if key.startswith("/"):
            key = f"{_ROOT}.{key[1:]}"
        return key.removesuffix("/").replace("/", ".")

    def decode(self, key: str) -> str:
        """Replace dots with slashes.

        Args:
            key: The key as the server has it.
        """
        first, _, rest = key.partition(".")
        if first == _ROOT:
            return "/" + rest.replace(".", "/")
        return key.replace(".", "/")

    def encode_filter(self, pattern: str) -> str:
        """Replace slashes with dots; wildcards are kept.

        Args:
            pattern: A pattern of the program's keys, with ``*`` and ``>``.
        """
        return self.encode(pattern)

    def __repr__(self) -> str:
        return "PathKeys()"


class SubjectKeys:
    """Keys outside ADR-8, such as ``user:1``, which old clients wrote: any tokens of a subject, as they are stored.

    For reading, deleting and moving such keys on purpose; no client that follows ADR-8 finds what is written with it.
    It cannot be part of a KeyChain.
    """

    def encode(self, key: str) -> str:
        """Return the key. InvalidSubject for what is no subject.

        Args:
            key: The key as the program writes it.
        """
        subscribe_subject(key, "key")
        publish_subject(key, "key")
        return key

    def decode(self, key: str) -> str:
        """Return the key.

        Args:
            key: The key as the server has it.
        """
        return key

    def encode_filter(self, pattern: str) -> str:
        """Return the pattern. InvalidSubject for what is no subject.

        Args:
            pattern: A pattern of the program's keys, with ``*`` and ``>``.
        """
        subscribe_subject(pattern, "key filter")
        return pattern

    def __repr__(self) -> str:
        return "SubjectKeys()"


class KeyChain:
    """Several codecs: encoding applies them in order, decoding in reverse order.

    Args:
        *codecs: The codecs, the first one applied first to a key that is written.
    """

    def __init__(self, *codecs: KeyCodec) -> None:
        if not codecs:
            raise errors.ConfigError("codecs", codecs, "a chain needs at least one codec")
        self._codecs = codecs

    def encode(self, key: str) -> str:
        """Encode by each codec in turn, from the first to the last.

        Args:
            key: The key as the program writes it.
        """
        for codec in self._codecs:
            key = codec.encode(key)
        return key

    def decode(self, key: str) -> str:
        """Decode with all codecs in reverse order.

        Args:
            key: The key as the server has it.
        """
        for codec in reversed(self._codecs):
            key = codec.decode(key)
        return key

    def encode_filter(self, pattern: str) -> str:
        """Encode a filter with all codecs; ConfigError when one of them cannot.

        Args:
            pattern: A pattern of the program's keys, with ``*`` and ``>``.
        """
        for codec in self._codecs:
            pattern = codec.encode_filter(pattern)
        return pattern

    def __repr__(self) -> str:
        return f"KeyChain({', '.join(map(repr, self._codecs))})"


def _each_token(key: str, change: Callable[[str], str]) -> str:
    return ".".join(map(change, key.split(".")))


def _to_base64(token: str) -> str:
    return urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _to_padded_base64(token: str) -> str:
    return b64encode(token.encode()).decode()


def _from_base64(token: str) -> str:
    bare = token.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        text = urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode()
    except ValueError as exc:
        raise errors.InvalidPayload("decode", f"key token {token!r}", str(exc)) from None
    if _to_base64(text) != bare or len(token) not in (len(bare), len(bare) + -len(bare) % 4):
        raise errors.InvalidPayload("decode", f"key token {token!r}", "is not valid base64")
    return text


# ---------------------------------------------------------------- subjects


class BucketSubjects(Generic[V]):
    """The subjects of a bucket and the codecs of a handle.

    ``read_prefix`` precedes a key in the stream that is read, ``origin_prefix`` in the stream that is written; with the
    API prefix of that stream's domain or account it is ``write_prefix``. ``encode_key`` returns the key as stored in
    the bucket and raises InvalidSubject; ``key_of`` returns the key of a stored subject and raises InvalidPayload.
    ``encode_value`` returns the payload of a value and raises TypeError or InvalidPayload. ``decode_value`` reverses
    it; None when values are bytes.
    """

    __slots__ = (
        *("bucket", "decode_value", "encode_key", "encode_value", "key_codec"),
        *("key_of", "origin_prefix", "read_prefix", "write_prefix"),
    )

    bucket: str
    key_codec: KeyCodec | None
    read_prefix: str
    origin_prefix: str
    write_prefix: str
    encode_key: Callable[[str], str]
    encode_value: Callable[[V], bytes]
    decode_value: Callable[[bytes], V] | None
    key_of: Callable[[str], str]

    def __init__(self, bucket: str, config: StreamConfig | None, origin_api: str, key_codec: KeyCodec | None) -> None:
        """``config`` of the stream, None when it is unknown; ``origin_api`` is the prefix of the context's API, empty
        for the default. Values are bytes.
        """
        for name in ("encode", "decode", "encode_filter"):
            if key_codec is not None and not callable(getattr(key_codec, name, None)):
                raise errors.ConfigError("key_codec", key_codec, f"has no method {name}")
        self.bucket, self.key_codec = bucket, key_codec
        prefix = origin = f"{KV_SUBJECTS}{bucket}."
        mirror = None if config is None else config.mirror
        if mirror is not None:
            origin = f"{KV_SUBJECTS}{mirror.name.removeprefix(KV_STREAM)}."
            if not any(rule.dest == f"{prefix}>" for rule in mirror.subject_transforms):
                prefix = origin
            if mirror.external is not None:
                origin_api = mirror.external.api
        self.read_prefix, self.origin_prefix = prefix, origin
        self.write_prefix = f"{origin_api}.{origin}" if origin_api else origin
        self.encode_value, self.decode_value = as_bytes, None
        cut: Callable[[str], str] = itemgetter(slice(len(prefix), None))
        if key_codec is None:  # saves a Python call for every entry and write
            self.encode_key, self.key_of = check_key_name, cut
        elif isinstance(key_codec, SubjectKeys):
            self.encode_key, self.key_of = key_codec.encode, cut
        else:
            self.encode_key, self.key_of = partial(_encode_key, key_codec), partial(_decode_key, key_codec, cut)

    def typed(self, kind: type[T], codec: Codec) -> BucketSubjects[T]:
        """Return the same subjects with values of a type."""
        values = TypedCodec(kind, codec)
        copied: BucketSubjects[T] = cast("BucketSubjects[T]", copy(self))
        copied.encode_value, copied.decode_value = values.encode, values.decode
        return copied

    def filter_subject(self, pattern: str) -> str:
        """Return the subject filter of a consumer for a key pattern. InvalidSubject."""
        encoded = pattern if self.key_codec is None else self.key_codec.encode_filter(pattern)
        return self.read_prefix + (encoded if isinstance(self.key_codec, SubjectKeys) else check_key_filter(encoded))

    def unreadable(self, subject: str) -> errors.InvalidPayload | errors.InvalidSubject | None:
        """Return the error for the key of a stored subject: it has wildcards, or the key codec cannot decode it."""
        if not is_literal(subject):
            return errors.InvalidSubject("key", subject.removeprefix(self.read_prefix), "is no key: " + _RULE)
        try:
            self.key_of(subject)
        except errors.InvalidPayload as exc:
            return exc
        except Exception:
            return None  # a bug of the codec, which reading the key raises
        return None


def _encode_key(key_codec: KeyCodec, key: str) -> str:
    return check_key_name(key_codec.encode(key))


def _decode_key(key_codec: KeyCodec, cut: Callable[[str], str], subject: str) -> str:
    return key_codec.decode(cut(subject))
