"""The verbs of a bucket as its stream has them: one key read, one key written, if need be only at a revision.

Owns the handle of the stream behind a bucket, and what the stream's refusals mean to whoever thinks in keys.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Generic

from natsproto._durations import seconds
from natsproto.errors import (
    BucketNotFound,
    KeyNotFound,
    MessageNotFound,
    NatsError,
    StreamNotFound,
    WrongLastSequence,
    WrongRevision,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._direct import LastGet
from natsproto.jetstream._info import PubAck
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._publish.retry_policy import RETRY_WAIT_S
from natsproto.jetstream._stream import Stream
from natsproto.jetstream.kv._bucket_subjects import BucketSubjects, V
from natsproto.jetstream.kv._entry import StoredEntry
from natsproto.jetstream.kv._keys import key_name
from natsproto.protocol.frames import Message

Headers = dict[str, str]

GETS_KEPT = 4096
"""Keys of which a handle remembers how to get them."""


class BucketStream(Generic[V]):
    """A bucket as one handle sees it."""

    api: Api
    stream: Stream
    layout: BucketSubjects[V]

    def __init__(self, api: Api, stream: Stream, layout: BucketSubjects[V]) -> None:
        self.api, self.stream, self.layout = api, stream, layout
        self._gets: dict[str, LastGet] = {}  # by the key in the bucket

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.layout.bucket

    def plain(self) -> BucketStream[bytes]:
        """The same with values as bytes."""
        return BucketStream(self.api, self.stream, self.layout.plain())

    # ---------------------------------------------------------------- reading

    def last_get(self, key: str) -> LastGet:
        """How to get the newest entry of a key by direct get. InvalidSubject, TypeError."""
        layout = self.layout
        encoded = key if layout.keys is None else layout.keys.encode(key)
        try:
            return self._gets[encoded]
        except (KeyError, TypeError):  # the latter for what is no key at all
            get = LastGet(self.api, self.stream.name, layout.stored + key_name(encoded))
        if len(self._gets) >= GETS_KEPT:
            self._gets.clear()
        self._gets[encoded] = get
        return get

    async def last(self, key: str, *, direct: bool, timeout: Duration | None) -> StoredEntry[V]:
        """The newest entry of a key, deletions included. KeyNotFound, BucketNotFound."""
        layout, stream = self.layout, self.stream
        subject = layout.stored + layout.encoded(key)
        try:
            return StoredEntry(layout, await stream.get_last_message(subject, direct=direct, timeout=timeout))
        except MessageNotFound:
            raise KeyNotFound(layout.bucket, key) from None
        except StreamNotFound as exc:
            raise BucketNotFound(layout.bucket) from exc

    def found(self, get: LastGet, reply: Message, key: str) -> StoredEntry[V]:
        """The entry in the reply to a direct get, deletions included. KeyNotFound."""
        try:
            return StoredEntry(self.layout, get.read(reply))
        except MessageNotFound:
            raise KeyNotFound(self.bucket, key) from None

    async def last_or_none(self, key: str, timeout: Duration | None) -> StoredEntry[V] | None:
        """The same from the stream's leader; None for a key that has no entry."""
        try:
            return await self.last(key, direct=False, timeout=timeout)
        except KeyNotFound:
            return None

    async def at(self, key: str, revision: int, *, direct: bool, timeout: Duration | None) -> StoredEntry[V]:
        """The entry of a key at a revision, deletions included. KeyNotFound also when it is another key's."""
        layout = self.layout
        subject = layout.stored + layout.encoded(key)
        try:
            message = await self.stream.get_message(revision, direct=direct, timeout=timeout)
        except MessageNotFound:
            raise KeyNotFound(layout.bucket, key, revision) from None
        except StreamNotFound as exc:
            raise BucketNotFound(layout.bucket) from exc
        if message.subject != subject:
            raise KeyNotFound(layout.bucket, key, revision)
        return StoredEntry(layout, message)

    # ---------------------------------------------------------------- writing

    async def demand_ttl(self, timeout: Duration | None) -> None:
        """UnsupportedByServer where a TTL would be stored and not heeded, without a word."""
        await self.api.require_api_level(1, "2.11", f"time to live of a key of bucket {self.bucket!r}", timeout)

    def write(
        self, key: str, payload: bytes, headers: Headers | None, args: MessageArgs, timeout: Duration | None
    ) -> Coroutine[object, object, PubAck]:
        """Stores a message under a key; await what it returns. WrongLastSequence, and what ``publish`` raises."""
        layout = self.layout
        return publish(
            self.api.connection,
            layout.written + layout.encoded(key),
            payload,
            headers,
            args,
            timeout=self.api.timeout if timeout is None else seconds("timeout", timeout),
            retry_attempts=None,
            retry_wait=RETRY_WAIT_S,
        )

    async def write_at(
        self,
        key: str,
        revision: int,
        payload: bytes,
        headers: Headers | None,
        args: MessageArgs,
        timeout: Duration | None,
    ) -> int:
        """The same if the key's last revision is this one (0: it has none), else WrongRevision; returns the new one."""
        try:
            args = {**args, "expected_last_subject_seq": revision}
            return (await self.write(key, payload, headers, args, timeout)).seq
        except WrongLastSequence as exc:
            actual = exc.last if exc.last is not None else await self.last_revision(key, timeout)
            raise WrongRevision(self.bucket, key, revision, actual) from exc

    async def last_revision(self, key: str, timeout: Duration | None) -> int | None:
        """What a replicated stream does not say when it refuses; None when it cannot be found out."""
        try:
            last = await self.last_or_none(key, timeout)
        except NatsError:
            return None
        return 0 if last is None else last.revision
