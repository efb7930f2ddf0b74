"""Where a bucket keeps its keys and how it writes values.

Owns the subjects of a bucket: those under which its stream stores, and those to which is written, which are others
where the bucket is a mirror or is in another domain or account (ADR-8, ADR-19, ADR-57). Owns the codecs of one handle
as well. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Generic

from natsproto.codecs import Codec
from natsproto.errors import ConfigError
from natsproto.jetstream._api import DEFAULT_PREFIX
from natsproto.jetstream._config import KV_STREAM, KV_SUBJECTS, StreamConfig
from natsproto.jetstream._publish.headers import as_bytes
from natsproto.jetstream.kv._keys import KeyCodec, key_filter, key_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # what type checkers bring along; a default is new in Python 3.13

    V = TypeVar("V", default=bytes)
    T = TypeVar("T")
else:
    from typing import TypeVar

    V, T = TypeVar("V"), TypeVar("T")


class BucketSubjects(Generic[V]):
    """The subjects of a bucket and the codecs of a handle.

    ``stored`` is in front of a key in the stream that is read, ``origin`` in front of it in the one that is written,
    behind the API prefix ``reach``. ``decode`` makes a value of a payload; None when values are the bytes themselves.
    """

    __slots__ = ("_encode", "_reach", "bucket", "decode", "key_of", "keys", "origin", "stored", "written")

    bucket: str
    stored: str
    origin: str
    keys: KeyCodec | None
    decode: Callable[[bytes], V] | None

    def __init__(
        self,
        bucket: str,
        stored: str,
        origin: str,
        reach: str,
        keys: KeyCodec | None,
        encode: Callable[[object], bytes],
        decode: Callable[[bytes], V] | None,
    ) -> None:
        self.bucket, self.stored, self.origin, self._reach, self.keys = bucket, stored, origin, reach, keys
        self.written: str = f"{reach}.{origin}" if reach else origin
        self._encode, self.decode = encode, decode
        cut: Callable[[str], str] = itemgetter(slice(len(stored), None))  # a call of Python's less for every entry
        self.key_of: Callable[[str], str] = cut if keys is None else partial(_decoded, keys, cut)
        """The key of a stored message, of its subject; InvalidPayload when the codec did not make it."""

    @classmethod
    def of(cls, bucket: str, config: StreamConfig | None, prefix: str, keys: KeyCodec | None) -> BucketSubjects[bytes]:
        """The layout of a bucket whose stream is configured like this (None: not known), seen through an API prefix."""
        for name in ("encode", "decode", "encode_filter"):
            if keys is not None and not callable(getattr(keys, name, None)):
                raise ConfigError("key_codec", keys, f"has no method {name}")
        stored = origin = f"{KV_SUBJECTS}{bucket}."
        reach = "" if prefix == DEFAULT_PREFIX else prefix
        mirror = None if config is None else config.mirror
        if mirror is not None:
            origin = f"{KV_SUBJECTS}{mirror.name.removeprefix(KV_STREAM)}."
            transforms = [rule.dest for rule in mirror.subject_transforms if rule.dest == f"{stored}>"]
            stored = stored if transforms else origin
            if mirror.external is not None:
                reach = mirror.external.api
        return BucketSubjects(bucket, stored, origin, reach, keys, as_bytes, None)

    def typed(self, kind: type[T], codec: Codec) -> BucketSubjects[T]:
        """The same with values of a type."""
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise ConfigError("codec", codec, f"has no method {name}")
        decode = codec.decode
        return BucketSubjects(
            self.bucket,
            self.stored,
            self.origin,
            self._reach,
            self.keys,
            codec.encode,
            lambda payload: decode(payload, kind),
        )

    def plain(self) -> BucketSubjects[bytes]:
        """The same with values as bytes."""
        return BucketSubjects(self.bucket, self.stored, self.origin, self._reach, self.keys, as_bytes, None)

    def encode(self, value: V) -> bytes:
        """The payload for a value. TypeError, or InvalidPayload of the codec."""
        return self._encode(value)

    def encoded(self, key: str) -> str:
        """The key as it is in the bucket; InvalidSubject when it is none."""
        return key_name(key if self.keys is None else self.keys.encode(key))

    def filter(self, pattern: str) -> str:
        """What a consumer filters for this pattern; InvalidSubject when it is none."""
        return self.stored + key_filter(pattern if self.keys is None else self.keys.encode_filter(pattern))


def _decoded(keys: KeyCodec, cut: Callable[[str], str], subject: str) -> str:
    return keys.decode(cut(subject))
