"""A key/value bucket (ADR-8).

Owns the handle that programs use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, Literal, overload

from natsproto._async_hints import items
from natsproto._durations import positive_seconds, seconds
from natsproto._old_names import KEY_VALUE, explain_missing
from natsproto.codecs import JSON, Codec
from natsproto.errors import (
    BucketNotFound,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    MessageNotFound,
    NoResponders,
    StreamNotFound,
    UnsupportedByServer,
    WrongRevision,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._config import KV_STREAM, check_bucket_name
from natsproto.jetstream._publish.atomic_batch import MAX_BATCH_MESSAGES, AtomicBatch
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._stream import Stream
from natsproto.jetstream._watch_callback import WatchCallback
from natsproto.jetstream.kv._atomic import KeyValueBatch
from natsproto.jetstream.kv._bucket_stream import BucketStream, BucketSubjects, T, V
from natsproto.jetstream.kv._cache import KeyValueCache
from natsproto.jetstream.kv._entry import OPERATION_HEADER, KeyValueEntry, Operation, headerless_entry, last_entry
from natsproto.jetstream.kv._lock import Lock
from natsproto.jetstream.kv._status import KeyValueStatus
from natsproto.jetstream.kv._watch import KeyWatcher, watch
from natsproto.protocol.frames import Payload

if TYPE_CHECKING:
    from natsproto.jetstream._info import StreamInfo
    from natsproto.jetstream._publish.headers import MessageArgs
    from natsproto.jetstream.kv._keys import KeyCodec

Ttl = Duration | Literal["never"]

MAX_MIRROR_POLLS, MIRROR_POLL_INTERVAL_S = 20, 0.05
"""How often ``create`` reads a mirror to find the deletion that it overwrites, and the seconds between."""
MAX_CONCURRENT_PURGES = 64
"""Keys that ``purge_deletes`` purges at a time."""
KEEP_DELETES_S = 30 * 60.0
"""Seconds for which ``purge_deletes`` keeps deletion markers."""


class KeyValue(Generic[V]):
    """A bucket of keys and values. Created by ``js.create_key_value``, ``js.key_value`` and similar methods.

    Values are bytes unless the handle is ``typed``. Every call takes ``timeout`` in seconds (default: that of the
    JetStream context). Invalid keys (ADR-8) raise InvalidSubject before anything is sent.

    Values are read from any server that has the bucket, which may lag slightly; with ``direct=False`` from the
    stream's leader, which has every acknowledged write.
    """

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(KEY_VALUE)

    def __init__(self, bucket: BucketStream[V]) -> None:
        self._bucket = bucket

    @classmethod
    def of(cls, api: Api, bucket: str, info: StreamInfo | None, key_codec: KeyCodec | None) -> KeyValue[bytes]:
        """Create the handle of a bucket whose stream has this info; None when it is unknown."""
        stream = Stream(api, KV_STREAM + check_bucket_name(bucket), info)
        subjects = BucketSubjects[bytes](bucket, None if info is None else info.config, api.prefix, key_codec)
        return KeyValue(BucketStream(api, stream, subjects))

    def typed(self, kind: type[T], codec: Codec = JSON) -> KeyValue[T]:
        """Return a handle of the same bucket with values of a type instead of bytes; see ``natsproto.codecs``.

        A value that the codec cannot encode raises InvalidPayload before anything is sent. A payload that it cannot
        decode raises InvalidPayload when the ``value`` of its entry is read.
        """
        bucket = self._bucket
        return KeyValue(BucketStream(bucket.api, bucket.stream, bucket.subjects.typed(kind, codec)))

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._bucket.bucket

    @property
    def stream(self) -> Stream:
        """The stream of the bucket."""
        return self._bucket.stream

    def __repr__(self) -> str:
        return f"KeyValue(bucket={self.bucket!r})"

    # ---------------------------------------------------------------- one key

    async def get(
        self, key: str, *, revision: int | None = None, direct: bool = True, timeout: Duration | None = None
    ) -> KeyValueEntry[V]:
        """Get the entry of a key, or its entry at a revision.

        KeyNotFound (a KeyError) when there is no entry, or none at that revision; KeyDeleted (a KeyNotFound) when the
        key was deleted, purged or has expired. BucketNotFound.
        """
        bucket = self._bucket
        if revision is not None:
            message = await bucket.get_revision(key, revision, direct=direct, timeout=timeout)
        elif direct and bucket.stream.reads_directly:
            get = bucket.last_get(key)
            try:
                reply = await get.request(timeout)
                if (head := get.headerless(reply)) is not None:  # nearly always: a value without headers
                    return headerless_entry(bucket.subjects, head, reply.data)
                message = get.read(reply)
            except MessageNotFound:
                raise KeyNotFound(bucket.bucket, key) from None
            except NoResponders:  # no direct get any more, or no bucket: the stream finds out which
                message = await bucket.get_last(key, direct=True, timeout=timeout)
        else:
            message = await bucket.get_last(key, direct=direct, timeout=timeout)
        entry = KeyValueEntry(bucket.subjects, message)
        if entry.is_deleted:
            raise KeyDeleted(bucket.bucket, key, entry.revision, entry.operation)
        return entry

    async def put(self, key: str, value: V, *, ttl: Ttl | None = None, timeout: Duration | None = None) -> int:
        """Write a value unconditionally; return its revision.

        With ``ttl`` the key expires after that many seconds (at least 1; TtlRefused unless the bucket has a
        ``limit_marker_ttl``, UnsupportedByServer before server 2.11; in a bucket with history the server raises it to
        ``limit_marker_ttl``). The history of the key is removed at once; otherwise its previous value would reappear.

        PublishUncertain when the connection was lost or ``timeout`` passed: the value may have been written. NoStream
        when the bucket does not exist; MessageTooLarge, LimitReached and every other ApiError when it is rejected.
        """
        bucket = self._bucket
        if ttl is not None:
            await bucket.require_ttl(timeout)
        return (await bucket.publish(key, bucket.subjects.encode_value(value), None, _ttl_args(ttl), timeout)).seq

    async def create(self, key: str, value: V, *, ttl: Ttl | None = None, timeout: Duration | None = None) -> int:
        """Write a value if the key has none, or was deleted; return its revision.

        KeyExists (a WrongRevision) when it has one; otherwise as ``put``.
        """
        bucket = self._bucket
        payload = bucket.subjects.encode_value(value)
        args = _ttl_args(ttl)
        if ttl is not None:
            await bucket.require_ttl(timeout)
        expected, unchanged = 0, 0
        while True:
            try:
                return await bucket.publish_at(key, expected, payload, None, args, timeout)
            except WrongRevision as exc:
                found = await last_entry(bucket, key, timeout)
                if found is not None and not found.is_deleted:
                    raise KeyExists(self.bucket, key, found.revision) from exc.__cause__
                # Another client was faster, unless nothing has changed: then this is a mirror that lags its origin.
                before, expected = expected, 0 if found is None else found.revision
                if expected == before:
                    unchanged += 1
                    if unchanged == MAX_MIRROR_POLLS:
                        raise
                    await asyncio.sleep(MIRROR_POLL_INTERVAL_S)

    async def update(
        self, key: str, value: V, revision: int, *, ttl: Ttl | None = None, timeout: Duration | None = None
    ) -> int:
        """Write a value if ``revision`` is the key's last one; return the new revision.

        WrongRevision with both revisions when it is not; 0 is the revision of a key that never had a value. Otherwise
        as ``put``.
        """
        bucket = self._bucket
        if ttl is not None:
            await bucket.require_ttl(timeout)
        return await bucket.publish_at(
            key, revision, bucket.subjects.encode_value(value), None, _ttl_args(ttl), timeout
        )

    async def delete(self, key: str, *, revision: int | None = None, timeout: Duration | None = None) -> int:
        """Mark a key as deleted and keep its history; return the revision of the marker.

        A key without a value gets a marker, too. WrongRevision when ``revision`` is given and not the key's last one.
        Otherwise as ``put``.
        """
        return await self._publish_marker(key, {OPERATION_HEADER: Operation.DELETE}, {}, revision, timeout)

    async def purge(
        self, key: str, *, revision: int | None = None, ttl: Ttl | None = None, timeout: Duration | None = None
    ) -> int:
        """Delete a key with its history; return the revision of the marker.

        With ``ttl`` the marker expires after that many seconds. Otherwise as ``delete``.
        """
        args: MessageArgs = {"rollup": "sub"}
        if ttl is not None:
            await self._bucket.require_ttl(timeout)
            args = {"rollup": "sub", "ttl": ttl}
        return await self._publish_marker(key, {OPERATION_HEADER: Operation.PURGE}, args, revision, timeout)

    async def _publish_marker(
        self, key: str, headers: dict[str, str], args: MessageArgs, revision: int | None, timeout: Duration | None
    ) -> int:
        if revision is None:
            return (await self._bucket.publish(key, b"", headers, args, timeout)).seq
        return await self._bucket.publish_at(key, revision, b"", headers, args, timeout)

    # ---------------------------------------------------------------- many keys

    @overload
    def watch(
        self,
        *keys: str,
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
    ) -> KeyWatcher[V]: ...

    @overload
    def watch(
        self,
        *keys: str,
        cb: Callable[[KeyValueEntry[V]], Awaitable[object] | object],
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
    ) -> WatchCallback[KeyValueEntry[V]]: ...

    def watch(
        self,
        *keys: str,
        cb: Callable[[KeyValueEntry[V]], Awaitable[object] | object] | None = None,
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
    ) -> KeyWatcher[V] | WatchCallback[KeyValueEntry[V]]:
        """Watch keys, or without ``keys`` the whole bucket. Use it with ``async with``.

        It yields the initial entries and then every change. ``keys`` may have wildcards. The initial entries are the
        newest of each key; with ``include_history`` all entries of the bucket, with ``resume_from`` those from this
        revision on, with ``updates_only`` none. ``ignore_deletes`` omits deletions, ``meta_only`` the values. With
        ``cb`` it is called with each entry.

        InvalidSubject for a bad key; ConfigError for contradictions. See KeyWatcher and WatchCallback for the rest.
        """
        watcher = watch(
            self._bucket,
            keys,
            include_history=include_history,
            ignore_deletes=ignore_deletes,
            updates_only=updates_only,
            meta_only=meta_only,
            resume_from=resume_from,
        )
        return watcher if cb is None else WatchCallback(watcher, cb, self._bucket.api.connection)

    @items
    async def keys(self, *filters: str) -> AsyncGenerator[str]:
        """Yield every key that has a value and matches one of the filters, each once; without filters all keys.

        The server filters and sends no values. BucketNotFound. Cancelling, or leaving the loop, ends it.
        """
        seen: set[str] = set()
        watcher = watch(self._bucket, filters, ignore_deletes=True, meta_only=True)
        async with watcher, aclosing(watcher.initial()) as entries:
            async for entry in entries:
                key = entry.key
                if key not in seen:
                    seen.add(key)
                    yield key

    async def history(self, key: str, *, timeout: Duration | None = None) -> list[KeyValueEntry[V]]:
        """Return every stored entry of a key, including deletions, the oldest first; empty when there is none."""
        bucket = self._bucket
        found = bucket.stream.get_batch(
            subject=bucket.subjects.read_prefix + bucket.subjects.encode_key(key), timeout=timeout
        )
        try:
            return [KeyValueEntry(bucket.subjects, message) async for message in found]
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc

    async def get_many(
        self,
        keys: Iterable[str],
        *,
        up_to_revision: int | None = None,
        up_to_time: datetime | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, KeyValueEntry[V]]:
        """Get the entries of several keys as a snapshot, without keys that have no value. Wildcards are allowed.

        ``up_to_revision`` and ``up_to_time`` (inclusive) choose a time in the past, as far as the bucket has history.
        One reply has up to 1,000 keys. More are requested a thousand at a time, all as of the first request, except
        that a key overwritten meanwhile in a bucket without history has its new value.

        UnsupportedByServer when the bucket does not allow direct get, or before server 2.11; BucketNotFound;
        ConfigError and InvalidSubject for invalid arguments.
        """
        if isinstance(keys, str):
            raise TypeError("keys must be a list of keys, not one str")
        bucket = self._bucket
        wanted = [bucket.subjects.filter_subject(key) for key in dict.fromkeys(keys)]
        if not wanted:
            return {}
        found = bucket.stream.get_last_messages(
            wanted, up_to_sequence=up_to_revision, up_to_time=up_to_time, timeout=timeout
        )
        try:
            entries = [KeyValueEntry(bucket.subjects, message) async for batch in found.batches() for message in batch]
        except UnsupportedByServer:
            await self.status(timeout=timeout)  # a bucket that is gone looks the same
            raise
        return {entry.key: entry for entry in entries if not entry.is_deleted}

    def atomic(self, *, timeout: Duration | None = None) -> KeyValueBatch[V]:
        """Write several keys atomically (ADR-50). Use it with ``async with``; the end of the block commits.

        The bucket needs ``allow_atomic`` and server 2.12; up to 1,000 writes.
        """
        bucket = self._bucket
        batch = AtomicBatch(
            bucket.api.connection,
            timeout=bucket.api.timeout if timeout is None else positive_seconds("timeout", timeout),
            max_messages=MAX_BATCH_MESSAGES,
            retry_attempts=RETRY_ATTEMPTS,
            retry_wait=RETRY_WAIT_S,
        )
        return KeyValueBatch(bucket, batch, timeout)

    async def purge_deletes(
        self, *filters: str, older_than: Duration = KEEP_DELETES_S, timeout: Duration | None = None
    ) -> int:
        """Purge deleted keys: their history and markers; return the number of removed entries.

        Markers younger than ``older_than`` seconds (default 30 minutes, so that disconnected watches can still get the
        deletion) are kept, but not the history before them. Entries written meanwhile are kept.
        """
        bucket = self._bucket
        age, now = seconds("older_than", older_than), datetime.now(UTC)
        timeout = None if timeout is None else seconds("timeout", timeout)
        found = watch(bucket, filters, meta_only=True)
        async with found:
            marks = [entry async for entry in found.initial() if entry.is_deleted]
        removed = 0
        for first in range(0, len(marks), MAX_CONCURRENT_PURGES):
            # By sequence: everything before the mark, and with it the mark itself if it is old. A value that was
            # written after it stays.
            removed += sum(
                await asyncio.gather(
                    *(
                        bucket.stream.purge(
                            subject=mark.subject,
                            sequence=mark.revision + ((now - mark.created).total_seconds() >= age),
                            timeout=timeout,
                        )
                        for mark in marks[first : first + MAX_CONCURRENT_PURGES]
                    )
                )
            )
        return removed

    # ---------------------------------------------------------------- on top of a watch

    def cache(self, *keys: str) -> KeyValueCache[V]:
        """Return a mapping in memory of the keys, or the whole bucket, that a watch keeps up to date.

        Use it with ``async with``.
        """
        return KeyValueCache(watch(self._bucket, keys))

    def lock(self, key: str, *, ttl: Duration = 10.0, value: Payload = b"") -> Lock:
        """Return a lock on a key, also for leader election. Use it with ``async with``.

        The bucket needs a ``limit_marker_ttl``. The lock expires ``ttl`` seconds (at least 1) after its holder last
        renewed it; it is renewed three times as often. ``value`` is the value of the key meanwhile, for example the
        name of the holder. ConfigError, InvalidSubject.
        """
        bucket = self._bucket
        return Lock(BucketStream(bucket.api, bucket.stream, bucket.subjects.untyped()), key, ttl, value)

    # ---------------------------------------------------------------- the bucket

    async def status(self, *, timeout: Duration | None = None) -> KeyValueStatus:
        """Get the configuration and state of the bucket. BucketNotFound."""
        try:
            return KeyValueStatus.of(await self._bucket.stream.info(timeout=timeout))
        except StreamNotFound as exc:
            raise BucketNotFound(self.bucket) from exc


def _ttl_args(ttl: Ttl | None) -> MessageArgs:
    """The rollup removes older entries, which would become the newest again when this one expires (ADR-48)."""
    return {} if ttl is None else {"ttl": ttl, "rollup": "sub"}
