"""The stream of a bucket: its subjects, the codecs of a handle, and reading and writing one key.

Owns the subjects of stored keys and the subjects of writes, which differ for a mirror and for a bucket in another
domain or account (ADR-8, ADR-19, ADR-57). Translates errors of the stream into errors of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, cast

from natsproto._durations import seconds
from natsproto.codecs import Codec
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    KeyNotFound,
    MessageNotFound,
    NatsError,
    StreamNotFound,
    WrongLastSequence,
    WrongRevision,
)
from natsproto.jetstream._api import DEFAULT_PREFIX, Api
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._config import KV_STREAM, KV_SUBJECTS, StreamConfig
from natsproto.jetstream._direct import LastGet, RawMessage
from natsproto.jetstream._info import PubAck
from natsproto.jetstream._publish.headers import MessageArgs, as_bytes
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._publish.retry_policy import RETRY_WAIT_S
from natsproto.jetstream._stream import Stream
from natsproto.jetstream.kv._keys import KeyCodec, check_key_filter, check_key_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers ship it; TypeVar defaults are new in Python 3.13

    V = TypeVar("V", default=bytes)
    T = TypeVar("T")
else:
    from typing import TypeVar

    V, T = TypeVar("V"), TypeVar("T")

Headers = dict[str, str]

MAX_CACHED_GETS = 4096
"""Keys for which a handle keeps a prepared direct get."""


class BucketSubjects(Generic[V]):
    """PURE. The subjects of a bucket and the codecs of a handle.

    ``read_prefix`` precedes a key in the stream that is read, ``origin_prefix`` in the stream that is written; with the
    API prefix of that stream's domain or account it is ``write_prefix``. ``encode_value`` returns the payload of a
    value and raises TypeError or InvalidPayload. ``decode_value`` reverses it; None when values are bytes. ``key_of``
    returns the key of a stored subject, or raises InvalidPayload.
    """

    __slots__ = (
        *("bucket", "decode_value", "encode_value", "key_codec"),
        *("key_of", "origin_prefix", "read_prefix", "write_prefix"),
    )

    bucket: str
    key_codec: KeyCodec | None
    read_prefix: str
    origin_prefix: str
    write_prefix: str
    encode_value: Callable[[V], bytes]
    decode_value: Callable[[bytes], V] | None
    key_of: Callable[[str], str]

    def __init__(self, bucket: str, config: StreamConfig | None, api_prefix: str, key_codec: KeyCodec | None) -> None:
        """``config`` of the stream, None when it is unknown; ``api_prefix`` of the context. Values are bytes."""
        for name in ("encode", "decode", "encode_filter"):
            if key_codec is not None and not callable(getattr(key_codec, name, None)):
                raise ConfigError("key_codec", key_codec, f"has no method {name}")
        self.bucket, self.key_codec = bucket, key_codec
        prefix = origin = f"{KV_SUBJECTS}{bucket}."
        origin_api = "" if api_prefix == DEFAULT_PREFIX else api_prefix
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
        cut: Callable[[str], str] = itemgetter(slice(len(prefix), None))  # saves a Python call for every entry
        self.key_of = cut if key_codec is None else partial(_decode_key, key_codec, cut)

    def typed(self, kind: type[T], codec: Codec) -> BucketSubjects[T]:
        """Return the same subjects with values of a type."""
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise ConfigError("codec", codec, f"has no method {name}")
        decode = codec.decode
        copied: BucketSubjects[T] = cast("BucketSubjects[T]", copy(self))
        copied.encode_value, copied.decode_value = codec.encode, lambda payload: decode(payload, kind)
        return copied

    def untyped(self) -> BucketSubjects[bytes]:
        """Return the same subjects with values as bytes."""
        copied = cast("BucketSubjects[bytes]", copy(self))
        copied.encode_value, copied.decode_value = as_bytes, None
        return copied

    def encode_key(self, key: str) -> str:
        """Return the key as stored in the bucket. InvalidSubject."""
        return check_key_name(key if self.key_codec is None else self.key_codec.encode(key))

    def filter_subject(self, pattern: str) -> str:
        """Return the subject filter of a consumer for a key pattern. InvalidSubject."""
        encoded = pattern if self.key_codec is None else self.key_codec.encode_filter(pattern)
        return self.read_prefix + check_key_filter(encoded)


class BucketStream(Generic[V]):
    """The stream of a bucket for one handle: reads and writes the messages of keys."""

    api: Api
    stream: Stream
    subjects: BucketSubjects[V]

    def __init__(self, api: Api, stream: Stream, subjects: BucketSubjects[V]) -> None:
        self.api, self.stream, self.subjects = api, stream, subjects
        self.bucket: str = subjects.bucket
        self._gets: dict[str, LastGet] = {}  # by the encoded key

    # ---------------------------------------------------------------- reading

    def last_get(self, key: str) -> LastGet:
        """Return the prepared direct get of a key's newest entry. InvalidSubject, TypeError."""
        subjects = self.subjects
        encoded = key if subjects.key_codec is None else subjects.key_codec.encode(key)
        try:
            return self._gets[encoded]
        except (KeyError, TypeError):  # TypeError for a key that is not hashable
            get = LastGet(self.api, self.stream.name, subjects.read_prefix + check_key_name(encoded))
        if len(self._gets) >= MAX_CACHED_GETS:
            self._gets.clear()
        self._gets[encoded] = get
        return get

    async def get_last(self, key: str, *, direct: bool, timeout: Duration | None) -> RawMessage:
        """Return the newest message of a key, possibly a deletion. KeyNotFound, BucketNotFound."""
        subject = self.subjects.read_prefix + self.subjects.encode_key(key)
        try:
            return await self.stream.get_last_message(subject, direct=direct, timeout=timeout)
        except MessageNotFound:
            raise KeyNotFound(self.bucket, key) from None
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc

    async def get_revision(self, key: str, revision: int, *, direct: bool, timeout: Duration | None) -> RawMessage:
        """Return the message of a key at a revision, possibly a deletion. KeyNotFound also if another key has the
        revision.
        """
        subject = self.subjects.read_prefix + self.subjects.encode_key(key)
        try:
            message = await self.stream.get_message(revision, direct=direct, timeout=timeout)
        except MessageNotFound:
            raise KeyNotFound(self.bucket, key, revision) from None
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc
        if message.subject != subject:
            raise KeyNotFound(self.bucket, key, revision)
        return message

    # ---------------------------------------------------------------- writing

    async def require_ttl(self, timeout: Duration | None) -> None:
        """Raise UnsupportedByServer if the server would store a TTL and ignore it."""
        await self.api.require_api_level(1, "2.11", f"time to live of a key of bucket {self.bucket!r}", timeout)

    def publish(
        self, key: str, payload: bytes, headers: Headers | None, args: MessageArgs, timeout: Duration | None
    ) -> Coroutine[object, object, PubAck]:
        """Store a message under a key; await the result. WrongLastSequence, and the errors of ``publish``."""
        return publish(
            self.api.connection,
            self.subjects.write_prefix + self.subjects.encode_key(key),
            payload,
            headers,
            args,
            timeout=self.api.timeout if timeout is None else seconds("timeout", timeout),
            retry_attempts=None,
            retry_wait=RETRY_WAIT_S,
        )

    async def publish_at(
        self,
        key: str,
        revision: int,
        payload: bytes,
        headers: Headers | None,
        args: MessageArgs,
        timeout: Duration | None,
    ) -> int:
        """Store a message if ``revision`` is the key's last one (0: it has none) and return the new revision.

        WrongRevision.
        """
        try:
            args = {**args, "expected_last_subject_seq": revision}
            return (await self.publish(key, payload, headers, args, timeout)).seq
        except WrongLastSequence as exc:
            actual = exc.last if exc.last is not None else await self.last_revision(key, timeout)
            raise WrongRevision(self.bucket, key, revision, actual) from exc

    async def last_revision(self, key: str, timeout: Duration | None) -> int | None:
        """Return the key's last revision, which the error of a replicated stream lacks; None when it is unknown."""
        try:
            return (await self.get_last(key, direct=False, timeout=timeout)).seq
        except KeyNotFound:
            return 0
        except NatsError:
            return None


def _decode_key(key_codec: KeyCodec, cut: Callable[[str], str], subject: str) -> str:
    return key_codec.decode(cut(subject))
