"""A key/value bucket (ADR-8).

Owns the handle that programs use; each verb is a thin, documented call into the module that knows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, Literal

from natsproto.codecs import JSON, Codec
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    StreamNotFound,
    WrongRevision,
)
from natsproto.jetstream.api import Api
from natsproto.jetstream.codec import Duration
from natsproto.jetstream.config import KV_STREAM, DeliverPolicy, bucket_name
from natsproto.jetstream.kv.entry import OPERATION, KeyValueEntry, Operation, StoredEntry
from natsproto.jetstream.kv.layout import Layout, T, V
from natsproto.jetstream.kv.status import KeyValueStatus
from natsproto.jetstream.kv.store import Store
from natsproto.jetstream.kv.watch import KeyWatcher
from natsproto.jetstream.stream import Stream

if TYPE_CHECKING:
    from natsproto.jetstream.info import StreamInfo
    from natsproto.jetstream.kv.keys import KeyCodec
    from natsproto.jetstream.outgoing import MessageArgs

Ttl = Duration | Literal["never"]


class KeyValue(Generic[V]):
    """A bucket of keys and values. Made by ``js.create_key_value``, ``js.key_value`` and their like.

    Values are bytes unless the handle is ``typed``. Every call takes ``timeout`` in seconds (default: that of the
    JetStream context). Keys that break the rules (ADR-8) are InvalidSubject before anything is sent.

    Values are read from any server that has the bucket, which may be a moment behind; with ``direct=False`` from the
    stream's leader, who knows everything that was written.
    """

    def __init__(self, store: Store[V]) -> None:
        self._store = store

    @classmethod
    def of(cls, api: Api, bucket: str, info: StreamInfo | None, key_codec: KeyCodec | None) -> KeyValue[bytes]:
        """The handle of a bucket whose stream has this info; None: nobody has asked."""
        stream = Stream(api, KV_STREAM + bucket_name(bucket), info)
        layout = Layout.of(bucket, None if info is None else info.config, api.prefix, key_codec)
        return KeyValue(Store(api, stream, layout))

    def typed(self, kind: type[T], codec: Codec = JSON) -> KeyValue[T]:
        """The same bucket with values of a type instead of bytes; see ``natsproto.codecs``.

        A value that the codec cannot encode is InvalidPayload before anything is sent. What cannot be decoded is
        InvalidPayload for whoever looks at the ``value`` of that entry.
        """
        store = self._store
        return KeyValue(Store(store.api, store.stream, store.layout.typed(kind, codec)))

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._store.bucket

    @property
    def stream(self) -> Stream:
        """The stream behind the bucket."""
        return self._store.stream

    def __repr__(self) -> str:
        return f"KeyValue(bucket={self.bucket!r})"

    # ---------------------------------------------------------------- one key

    async def get(
        self, key: str, *, revision: int | None = None, direct: bool = True, timeout: Duration | None = None
    ) -> KeyValueEntry[V]:
        """What the key holds, or held at a revision.

        KeyNotFound (a KeyError) when it never had a value, or not at that revision; KeyDeleted (a KeyNotFound) when it
        was deleted, purged or has expired. BucketNotFound.
        """
        entry: StoredEntry[V]
        if revision is None:
            entry = await self._store.last(key, direct=direct, timeout=timeout)
        else:
            entry = await self._store.at(key, revision, direct=direct, timeout=timeout)
        if entry.is_deleted:
            raise KeyDeleted(self.bucket, key, entry.revision, entry.operation)
        return entry

    async def put(self, key: str, value: V, *, timeout: Duration | None = None) -> int:
        """Writes a value, whatever was there; returns its revision.

        PublishUncertain when the connection was lost or ``timeout`` passed meanwhile: it may be written or not.
        NoStream when there is no such bucket; MessageTooLarge, LimitReached and every other ApiError when it refuses.
        """
        store = self._store
        return await store.write(key, store.layout.encode(value), None, {}, timeout)

    async def create(self, key: str, value: V, *, ttl: Ttl | None = None, timeout: Duration | None = None) -> int:
        """Writes a value if the key has none, or was deleted; returns its revision.

        With ``ttl`` the key is gone after so many seconds (at least 1; TtlRefused unless the bucket has a
        ``limit_marker_ttl``). KeyExists (a WrongRevision) when it has a value; else as ``put``.
        """
        store = self._store
        payload = store.layout.encode(value)
        args: MessageArgs = {} if ttl is None else {"ttl": ttl}
        expected = 0
        while True:
            try:
                return await store.write_at(key, expected, payload, None, args, timeout)
            except WrongRevision as exc:
                try:
                    last = await store.last(key, direct=False, timeout=timeout)
                except KeyNotFound:
                    expected = 0
                    continue
                if not last.is_deleted:
                    raise KeyExists(self.bucket, key, last.revision) from exc.__cause__
                expected = last.revision  # if it is not any more, somebody was faster: look again

    async def update(self, key: str, value: V, revision: int, *, timeout: Duration | None = None) -> int:
        """Writes a value if the key's last revision is this one; returns the new one.

        WrongRevision, which names both, when it is not; 0 is the revision of a key that never had a value. Else as
        ``put``.
        """
        store = self._store
        return await store.write_at(key, revision, store.layout.encode(value), None, {}, timeout)

    async def delete(self, key: str, *, revision: int | None = None, timeout: Duration | None = None) -> int:
        """Marks a key as deleted, its history is kept; returns the revision of the mark.

        A key without value is marked as well. With ``revision`` WrongRevision unless that is the key's last one. Else
        as ``put``.
        """
        return await self._mark(key, {OPERATION: Operation.DELETE}, {}, revision, timeout)

    async def purge(
        self, key: str, *, revision: int | None = None, ttl: Ttl | None = None, timeout: Duration | None = None
    ) -> int:
        """Deletes a key with its history; returns the revision of the mark that is left.

        With ``ttl`` the mark goes after so many seconds. Else as ``delete``.
        """
        args: MessageArgs = {"rollup": "sub"} if ttl is None else {"rollup": "sub", "ttl": ttl}
        return await self._mark(key, {OPERATION: Operation.PURGE}, args, revision, timeout)

    async def _mark(
        self, key: str, headers: dict[str, str], args: MessageArgs, revision: int | None, timeout: Duration | None
    ) -> int:
        if revision is None:
            return await self._store.write(key, b"", headers, args, timeout)
        return await self._store.write_at(key, revision, b"", headers, args, timeout)

    # ---------------------------------------------------------------- many keys

    def watch(
        self,
        *keys: str,
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
    ) -> KeyWatcher[V]:
        """What the keys hold, and then everything that happens to them; enter it. Without ``keys`` all of the bucket.

        ``keys`` may have wildcards. The newest entry of each key comes first; with ``include_history`` all entries
        that the bucket has, with ``resume_from`` those from this revision on, with ``updates_only`` none.
        ``ignore_deletes`` leaves deletions out, ``meta_only`` the values.

        InvalidSubject for a bad key; ConfigError for contradictions. See KeyWatcher for the rest.
        """
        return self._watch(keys, include_history, ignore_deletes, updates_only, meta_only, resume_from)

    def _watch(
        self,
        keys: tuple[str, ...],
        include_history: bool,
        ignore_deletes: bool,
        updates_only: bool,
        meta_only: bool,
        resume_from: int | None,
    ) -> KeyWatcher[V]:
        if updates_only and (include_history or resume_from is not None):
            what = "include_history" if include_history else "resume_from"
            raise ConfigError(what, keys, "says the opposite of updates_only")
        store = self._store
        layout = store.layout
        ordered = store.stream.ordered_consumer(
            filter_subjects=tuple(dict.fromkeys(map(layout.filter, keys))) if keys else (f"{layout.stored}>",),
            headers_only=meta_only,
            start_sequence=resume_from,
            deliver_policy=DeliverPolicy.NEW
            if updates_only
            else DeliverPolicy.ALL
            if include_history
            else DeliverPolicy.LAST_PER_SUBJECT,
        )
        return KeyWatcher(ordered, layout, ignore_deletes=ignore_deletes, updates_only=updates_only)

    async def keys(self, *filters: str) -> AsyncGenerator[str]:
        """Yields every key that has a value and matches one of the filters, or all, each once.

        Chosen by the server, which sends no values. None is no error. BucketNotFound. Cancelling, or leaving the loop,
        ends it.
        """
        seen: set[str] = set()
        watcher = self._watch(filters, False, True, False, True, None)
        async with watcher, aclosing(watcher.initial()) as entries:
            async for entry in entries:
                key = entry.key
                if key not in seen:
                    seen.add(key)
                    yield key

    async def history(self, key: str, *, timeout: Duration | None = None) -> list[KeyValueEntry[V]]:
        """Every entry of a key that the bucket still has, deletions included, the oldest first; empty when none."""
        store = self._store
        layout = store.layout
        found = store.stream.get_batch(subject=layout.stored + layout.encoded(key), timeout=timeout)
        try:
            return [StoredEntry(layout, message) async for message in found]
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc

    # ---------------------------------------------------------------- the bucket

    async def status(self, *, timeout: Duration | None = None) -> KeyValueStatus:
        """How the bucket is configured and what it holds. BucketNotFound."""
        try:
            return KeyValueStatus.of(await self._store.stream.info(timeout=timeout))
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc
