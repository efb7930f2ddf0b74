"""A key/value bucket (ADR-8): the handle that programs use, its status, and its atomic writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, overload

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto._durations import DEFAULT, Default, seconds
from natsproto._handlers import HandlerResult
from natsproto._help.async_hints import items
from natsproto.codecs import JSON, Codec, TypeForm
from natsproto.jetstream._api.requests import DEFAULT_PREFIX, LEAST_TIMEOUT_S, Api
from natsproto.jetstream._consumer.watch_callback import WatchCallback
from natsproto.jetstream._publish.atomic_batch import MAX_ATOMIC_MESSAGES, AtomicBatch
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._publish.outcome import Change
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream._values.bucket_config import KV_STREAM
from natsproto.jetstream._values.codec import NEVER, Duration
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream.kv._cache import KeyValueCache
from natsproto.jetstream.kv._entry import (
    OPERATION_HEADER,
    BucketStream,
    KeyValueEntry,
    Operation,
    Ttl,
    has_write_id,
    headerless_entry,
)
from natsproto.jetstream.kv._keys import BucketSubjects, KeyCodec, T, V
from natsproto.jetstream.kv._lock import Lock
from natsproto.jetstream.kv._modify import modify
from natsproto.jetstream.kv._status import KeyValueStatus
from natsproto.jetstream.kv._watch import KeyWatcher, watch
from natsproto.protocol.frames import Payload

D = TypeVar("D")

MIN_MIRROR_PAUSE_S, MAX_MIRROR_PAUSE_S = 0.02, 0.5
"""Seconds before ``create`` reads a mirror again to find the deletion that it overwrites."""
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

    def __init__(self, bucket: BucketStream[V]) -> None:
        self._bucket = bucket

    @classmethod
    def _of(cls, api: Api, bucket: str, info: StreamInfo | None, key_codec: KeyCodec | None) -> KeyValue[bytes]:
        """Create the handle of a bucket whose stream has this info; None when it is unknown."""
        stream = Stream(api, KV_STREAM + check_bucket_name(bucket), info)
        origin_api = "" if api.prefix == DEFAULT_PREFIX else api.prefix
        subjects = BucketSubjects[bytes](bucket, None if info is None else info.config, origin_api, key_codec)
        return KeyValue(BucketStream(api, stream, subjects))

    @overload
    def typed(self, kind: type[T], codec: Codec = JSON) -> KeyValue[T]: ...

    @overload
    def typed(self, kind: TypeForm[T], codec: Codec = JSON) -> KeyValue[T]: ...

    def typed(self, kind: Any, codec: Codec = JSON) -> KeyValue[Any]:
        """Return a handle of the same bucket with values of a type instead of bytes; see ``natsproto.codecs``.

        A value that the codec cannot encode raises InvalidPayload before anything is sent. A payload that it cannot
        decode raises InvalidPayload when the ``value`` of its entry is read. ConfigError for a type that the codec
        cannot read.

        Args:
            kind: What values are decoded to: a dataclass, a TypedDict, a model, or any type that the codec knows.
            codec: Converts values to payloads and back.
        """
        bucket = self._bucket
        return KeyValue(BucketStream(bucket.api, bucket.stream, bucket.subjects.typed(kind, codec)))

    @property
    def bucket(self) -> str:
        """The name without ``KV_``, which its stream has."""
        return self._bucket.bucket

    @property
    def stream(self) -> Stream:
        """The handle of the stream that stores the bucket, for what a bucket has no method for."""
        return self._bucket.stream

    def __repr__(self) -> str:
        return f"KeyValue(bucket={self.bucket!r})"

    # ---------------------------------------------------------------- one key

    @overload
    async def get(
        self, key: str, *, revision: int | None = None, direct: bool = True, timeout: Duration | None = None
    ) -> KeyValueEntry[V]: ...

    @overload
    async def get(
        self,
        key: str,
        *,
        default: D,
        revision: int | None = None,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> KeyValueEntry[V] | D: ...

    async def get(
        self,
        key: str,
        *,
        default: D | Default = DEFAULT,
        revision: int | None = None,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> KeyValueEntry[V] | D:
        """Get the entry of a key, or its entry at a revision; ``entry.value`` is its value.

        Without an entry, or when the key was deleted, purged or has expired, it returns ``default`` if that is given;
        else KeyNotFound (a KeyError) or KeyDeleted (a KeyNotFound). BucketNotFound.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            default: The result if the key is missing or deleted. Left out: KeyNotFound is raised.
            revision: The entry that was written with this revision; None: the latest.
            direct: Read from any replica if the stream has ``allow_direct``; False asks the leader, which always has
                the newest message.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket = self._bucket
        entry: KeyValueEntry[V] | None
        if revision is None and direct and bucket.stream.reads_directly:
            get = bucket.last_get(key)
            began = monotonic()
            try:
                reply = await get.request(timeout)
                if (head := get.headerless(reply)) is not None:  # nearly always: a value without headers
                    return headerless_entry(bucket.subjects, head, reply.data)
                entry = KeyValueEntry(bucket.subjects, get.read(reply))
            except errors.MessageNotFound as missing:
                entry = await bucket.confirm_missing(get.subject, missing, bucket.api.left(timeout, began))
            except errors.ConnectionClosed as exc:
                raise errors.ConnectionClosed(f"get of key {key!r}", exc.reason) from exc.reason
            except errors.NoResponders:  # no direct get any more, or no bucket: the stream finds out which
                entry = await bucket.find(key, direct=True, timeout=bucket.api.left(timeout, began))
        else:
            entry = await bucket.find(key, revision, direct=direct, timeout=timeout)
        if default is not DEFAULT and (entry is None or entry.is_deleted):
            return default
        if entry is None:
            raise errors.KeyNotFound(bucket.bucket, key, revision)
        if entry.is_deleted:
            raise errors.KeyDeleted(bucket.bucket, key, entry.revision, entry.operation)
        return entry

    async def put(self, key: str, value: V, *, ttl: Ttl | None = None, timeout: Duration | None = None) -> int:
        """Write a value unconditionally; return its revision.

        With ``ttl`` the key expires after that many seconds (at least 1; TtlRefused unless the bucket has a
        ``limit_marker_ttl``, UnsupportedByServer before server 2.11; in a bucket with history the server raises it to
        ``limit_marker_ttl``). The history of the key is removed at once; otherwise its previous value would reappear.

        PublishUncertain when the connection was lost or ``timeout`` passed: the value may have been written.
        BucketNotFound; MessageTooLarge, LimitReached and every other ApiError when it is rejected.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            value: The value: bytes, or what the bucket's codec converts.
            ttl: Seconds until the key expires, at least 1, or "never"; None: the bucket's ``ttl``. Needs a bucket with
                ``limit_marker_ttl``; the history of the key goes.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket = self._bucket
        args: MessageArgs = {} if ttl is None else await bucket.ttl_args(ttl, timeout)
        return await bucket.write(key, bucket.subjects.encode_value(value), None, args, None, timeout)

    async def create(self, key: str, value: V, *, ttl: Ttl | None = None, timeout: Duration | None = None) -> int:
        """Write a value if the key has none, or was deleted; return its revision.

        KeyExists (a WrongRevision) when it has one; otherwise as ``put``.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            value: The value: bytes, or what the bucket's codec converts.
            ttl: Seconds until the key expires, at least 1, or "never"; None: the bucket's ``ttl``. Needs a bucket with
                ``limit_marker_ttl``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket = self._bucket
        payload = bucket.subjects.encode_value(value)
        args: MessageArgs = {} if ttl is None else await bucket.ttl_args(ttl, timeout)
        expected, write_id = 0, bucket.new_write_id()
        deadline, backoff = Deadline(bucket.api.seconds(timeout)), Backoff(MIN_MIRROR_PAUSE_S, MAX_MIRROR_PAUSE_S)
        with Change(bucket.subjects.write_prefix + bucket.subjects.encode_key(key)) as change:
            while True:
                left = max(deadline.left, LEAST_TIMEOUT_S)
                try:
                    return await bucket.write(key, payload, None, args, expected, left, write_id, change)
                except errors.WrongRevision as exc:
                    found = await bucket.find(key, timeout=max(deadline.left, LEAST_TIMEOUT_S))
                    if found is not None and has_write_id(found, write_id):
                        return found.revision
                    if found is not None and not found.is_deleted:
                        raise errors.KeyExists(self.bucket, key, found.revision) from exc.__cause__
                    # Another client was faster, unless nothing has changed: then this is a mirror that lags its origin.
                    before, expected = expected, 0 if found is None else found.revision
                    if expected == before and not await backoff.pause(deadline):
                        raise

    async def update(
        self, key: str, value: V, revision: int, *, ttl: Ttl | None = None, timeout: Duration | None = None
    ) -> int:
        """Write a value if ``revision`` is the key's last one; return the new revision.

        WrongRevision with both revisions when it is not; 0 is the revision of a key that never had a value. TypeError
        for None. After a lost connection it looks for its own write, and writes again, within ``timeout``:
        PublishUncertain only if that does not decide. Otherwise as ``put``.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            value: The value: bytes, or what the bucket's codec converts.
            revision: Write only if the key has this revision; WrongRevision otherwise.
            ttl: Seconds until the key expires, at least 1, or "never"; None: the bucket's ``ttl``. Needs a bucket with
                ``limit_marker_ttl``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if revision is None:
            raise _no_revision()
        bucket = self._bucket
        args: MessageArgs = {} if ttl is None else await bucket.ttl_args(ttl, timeout)
        return await bucket.write(key, bucket.subjects.encode_value(value), None, args, revision, timeout)

    async def delete(self, key: str, *, revision: int | None = None, timeout: Duration | None = None) -> int:
        """Mark a key as deleted and keep its history; return the revision of the marker.

        A key without a value gets a marker, too. WrongRevision when ``revision`` is given and not the key's last one.
        Otherwise as ``put``.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            revision: Delete only if the key has this revision; None: whatever it has.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._bucket.write(key, b"", {OPERATION_HEADER: Operation.DELETE}, {}, revision, timeout)

    async def purge(
        self, key: str, *, revision: int | None = None, ttl: Ttl | None = None, timeout: Duration | None = None
    ) -> int:
        """Delete a key with its history; return the revision of the marker.

        With ``ttl`` the marker expires after that many seconds. Otherwise as ``delete``.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            revision: Purge only if the key has this revision; None: whatever it has.
            ttl: Seconds until the marker expires, too, at least 1; None: it stays.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        args: MessageArgs = {"rollup": "sub"} if ttl is None else await self._bucket.ttl_args(ttl, timeout)
        return await self._bucket.write(key, b"", {OPERATION_HEADER: Operation.PURGE}, args, revision, timeout)

    async def modify(
        self,
        key: str,
        fn: Callable[[V | None], V | Literal[Operation.DELETE]],
        *,
        ttl: Ttl | None = None,
        timeout: Duration | None = None,
    ) -> KeyValueEntry[V]:
        """Replace the value of a key by ``fn(value)``, and return the new entry. No change of another client is lost.

        ``fn`` is a plain function. It gets the value, or None if there is none, and returns the new value, or
        ``Operation.DELETE`` to delete the key. It is called again whenever another client was faster, so it must have
        no effects of its own. ``ttl`` as in ``put``. ``timeout`` is for everything. The ``created`` time of the
        returned entry is by this client's clock.

        PublishUncertain when the outcome cannot be found out, also after a lost connection has come back within
        ``timeout``: the change was made once or not at all. RequestTimeout when other clients were faster every time,
        or there was no connection, and nothing was written. TypeError when
        ``fn`` is a coroutine function; errors of ``fn`` are raised, with nothing written. Otherwise as ``update``.
        After cancelling, the change may still be made.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            fn: Returns the new value from the current one (None if there is none), or ``Operation.DELETE``. It may be
                called several times, so it must have no effects of its own.
            ttl: Seconds until the key expires, at least 1, or "never"; None: the bucket's ``ttl``. Needs a bucket with
                ``limit_marker_ttl``.
            timeout: Seconds for everything together; None: that of the JetStream context.
        """
        return await modify(self._bucket, key, fn, ttl, timeout)

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
        cb: Callable[[KeyValueEntry[V]], HandlerResult],
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
    ) -> WatchCallback[KeyValueEntry[V]]: ...

    def watch(
        self,
        *keys: str,
        cb: Callable[[KeyValueEntry[V]], HandlerResult] | None = None,
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

        Args:
            *keys: Which keys: names or patterns with ``*`` and ``>``; none: the whole bucket.
            cb: Called with each entry, ``def`` or ``async def``, instead of reading the watcher; None: read it.
            include_history: Begin with all revisions that the bucket keeps, not the latest of each key alone.
            ignore_deletes: Leave out deletions.
            updates_only: Leave out what is there when the watch begins.
            meta_only: Get keys and revisions without values.
            resume_from: Begin with the entries from this revision of the bucket on, where an earlier watch has ended;
                None: with the current ones.
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

        The server filters and sends no values. Keys that the key codec cannot decode are left out, and reported with a
        KeyValueNotice event. In an outage it waits for the end. BucketNotFound. Cancelling, or leaving the loop, ends
        it.

        Args:
            *filters: Only keys that match one of these, with ``*`` and ``>``; none: all.
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
        """Return every stored entry of a key, including deletions, the oldest first; empty when there is none.

        Args:
            key: The key: tokens of A-Z, a-z, 0-9, ``-``, ``/``, ``_``, ``=``, with dots between them.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket = self._bucket
        subject = bucket.subjects.read_prefix + bucket.subjects.encode_key(key)
        with bucket_errors(self.bucket):
            found = bucket.stream.get_batch(subject=subject, timeout=timeout)
            return [KeyValueEntry(bucket.subjects, message) async for message in found]

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

        Args:
            keys: The keys; wildcards allowed.
            up_to_revision: As of this revision of the bucket, inclusive; None: now.
            up_to_time: As of this time, inclusive; None: now.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if isinstance(keys, str):
            raise TypeError("keys must be a list of keys, not one str")
        bucket = self._bucket
        wanted = [bucket.subjects.filter_subject(key) for key in dict.fromkeys(keys)]
        if not wanted:
            return {}
        found = bucket.stream.get_last_messages(
            wanted, up_to_seq=up_to_revision, up_to_time=up_to_time, timeout=timeout
        )
        with bucket_errors(self.bucket):
            messages = [message async for batch in found.batches() for message in batch]
        entries = [KeyValueEntry(bucket.subjects, message) for message in bucket.readable(messages)]
        return {entry.key: entry for entry in entries if not entry.is_deleted}

    def atomic(self, *, timeout: Duration | None = None) -> KeyValueBatch[V]:
        """Write several keys atomically (ADR-50). Use it with ``async with``; the end of the block commits.

        The bucket needs ``allow_atomic`` and server 2.12; up to 1,000 writes.

        Args:
            timeout: Seconds to wait for the commit; None: that of the JetStream context.
        """
        bucket = self._bucket
        batch = AtomicBatch(
            bucket.api,
            timeout=bucket.api.seconds(timeout),
            max_messages=MAX_ATOMIC_MESSAGES,
            retry_attempts=RETRY_ATTEMPTS,
            retry_wait=RETRY_WAIT_S,
            lookup_of=bucket.batch_lookup_of,
        )
        return KeyValueBatch(bucket, batch, timeout)

    async def purge_deletes(
        self, *filters: str, older_than: Duration = KEEP_DELETES_S, timeout: Duration | None = None
    ) -> int:
        """Purge deleted keys: their history and markers; return the number of removed entries.

        Markers younger than ``older_than`` seconds (default 30 minutes, so that disconnected watches can still get the
        deletion), by the clock of the server, are kept, but not the history before them. Entries written meanwhile are
        kept. RequestTimeout when the watch that finds the deleted keys, or a request, gets nothing for ``timeout``
        seconds. ConfigError for a mirror, of which the origin is to be purged.

        Args:
            *filters: Only keys that match one of these, with ``*`` and ``>``; none: all.
            older_than: Seconds that a marker must be old to go, too; the history before it goes in any case.
            timeout: Seconds to wait for the next key, and for each request; None: that of the JetStream context.
        """
        bucket = self._bucket
        age, wait = seconds("older_than", older_than), bucket.api.seconds(timeout)
        marks = await _deleted(bucket, filters, wait)
        with bucket_errors(self.bucket):
            info = await bucket.stream.info(timeout=wait)
        if info.config.mirror is not None:
            origin = info.config.mirror.name.removeprefix(KV_STREAM)
            raise errors.ConfigError("bucket", self.bucket, f"is a mirror: purge the deletes of its origin, {origin!r}")
        now = datetime.now(UTC) if info.ts == NEVER else info.ts  # the clock that stamps the entries
        removed = 0
        for first in range(0, len(marks), MAX_CONCURRENT_PURGES):
            # By sequence: everything before the mark, and with it the mark itself if it is old. A value that was
            # written after it stays.
            removed += sum(
                await asyncio.gather(
                    *(
                        bucket.stream.purge(
                            subject=mark.subject,
                            seq=mark.revision + ((now - mark.created).total_seconds() >= age),
                            timeout=wait,
                        )
                        for mark in marks[first : first + MAX_CONCURRENT_PURGES]
                    )
                )
            )
        return removed

    # ---------------------------------------------------------------- on top of a watch

    def cache(self, *keys: str) -> KeyValueCache[V]:
        """Return a mapping in memory of the keys, or the whole bucket, that a watch keeps up to date.

        A key that expires, by the ``ttl`` of the bucket or its own, is not in it any more.

        Use it with ``async with``.

        Args:
            *keys: Which keys: names or patterns with ``*`` and ``>``; none: the whole bucket.
        """
        return KeyValueCache(watch(self._bucket, keys), self._bucket, keys)

    def lock(self, key: str, *, ttl: Duration = 10.0, value: Payload = b"") -> Lock:
        """Return a lock on a key, also for leader election. Use it with ``async with``.

        The bucket needs a ``limit_marker_ttl``. The lock expires ``ttl`` seconds (at least 1) after its holder last
        renewed it; it is renewed three times as often. ``value`` is the value of the key meanwhile, for example the
        name of the holder. ConfigError, InvalidSubject.

        Args:
            key: The key of the lock, one for each thing to protect.
            ttl: Seconds, at least 1, after which a lock that its holder does not renew is free.
            value: The value of the key while the lock is held, such as the name of the holder.
        """
        return Lock(cast("BucketStream[bytes]", self._bucket), key, ttl, value)  # it never decodes a value

    # ---------------------------------------------------------------- the bucket

    async def status(self, *, timeout: Duration | None = None) -> KeyValueStatus:
        """Get the configuration and state of the bucket. BucketNotFound.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        with bucket_errors(self.bucket):
            return KeyValueStatus._of(await self._bucket.stream.info(timeout=timeout))


def _no_revision() -> TypeError:
    return TypeError("revision must be an int, not None (0: the key has no value yet); put writes without comparing")


# ---------------------------------------------------------------- atomic writes


class _Write(NamedTuple):
    key: str
    expected: int | None


class KeyValueBatch(Generic[V]):
    """Atomic writes to keys of one bucket. Created by ``kv.atomic()``; use it with ``async with``.

    The end of the block commits; an exception in the block discards everything. ``revisions`` has the new revision of
    every key afterwards. Expected revisions are compared at the commit: WrongRevision names the first key with another
    revision.
    """

    def __init__(self, bucket: BucketStream[V], batch: AtomicBatch, timeout: Duration | None) -> None:
        self._bucket, self._batch, self._timeout = bucket, batch, timeout
        self._writes: list[_Write] = []
        self._committed = False
        self.revisions: dict[str, int] = {}
        """The revision of each key, once committed."""

    def __len__(self) -> int:
        return len(self._writes)

    async def put(self, key: str, value: V) -> None:
        """Write a value unconditionally. Raises the errors of ``AtomicBatch.publish``, as all methods do.

        Args:
            key: The key; a batch may write a key once.
            value: The value: bytes, or what the bucket's codec converts.
        """
        await self._add(key, self._bucket.subjects.encode_value(value), None, None, {})

    async def create(self, key: str, value: V, *, ttl: Duration | Literal["never"] | None = None) -> None:
        """Write a value if the key has none at the commit. KeyExists when it has one now.

        Args:
            key: The key; a batch may write a key once.
            value: The value: bytes, or what the bucket's codec converts.
            ttl: Seconds until the key expires, at least 1, or "never"; None: the bucket's ``ttl``. Needs a bucket with
                ``limit_marker_ttl``.
        """
        payload = self._bucket.subjects.encode_value(value)
        last = await self._bucket.find(key, timeout=self._timeout)
        if last is not None and not last.is_deleted:
            raise errors.KeyExists(self._bucket.bucket, key, last.revision)
        expected = 0 if last is None else last.revision
        await self._add(key, payload, None, expected, {} if ttl is None else {"ttl": ttl, "rollup": "sub"})

    async def update(self, key: str, value: V, revision: int) -> None:
        """Write a value if ``revision`` is the key's last one at the commit. TypeError for None.

        Args:
            key: The key; a batch may write a key once.
            value: The value: bytes, or what the bucket's codec converts.
            revision: The revision that the key must have; otherwise nothing of the batch is written.
        """
        if revision is None:
            raise _no_revision()
        await self._add(key, self._bucket.subjects.encode_value(value), None, revision, {})

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Mark the key as deleted.

        Args:
            key: The key; a batch may write a key once.
            revision: The revision that the key must have; None: whatever it has.
        """
        await self._add(key, b"", {OPERATION_HEADER: Operation.DELETE}, revision, {})

    async def purge(self, key: str, *, revision: int | None = None) -> None:
        """Delete the key with its history. ConfigError when this batch has written it before.

        Args:
            key: The key; a batch may write a key once.
            revision: The revision that the key must have; None: whatever it has.
        """
        await self._add(key, b"", {OPERATION_HEADER: Operation.PURGE}, revision, {"rollup": "sub"})

    async def commit(self) -> dict[str, int]:
        """Commit, and return ``revisions``. WrongRevision (KeyExists) when a key has another revision; BatchRefused and
        every other ApiError; PublishUncertain when the outcome is unknown.
        """
        self._committed = True
        try:
            ack = await self._batch.commit()
        except errors.WrongLastSequence as exc:
            raise await self._translate_refusal(exc) from exc
        except errors.NatsError as exc:
            await self._bucket.raise_named(exc, "batch")
        if ack is not None:
            first = ack.seq - len(self._writes) + 1
            self.revisions = {write.key: first + index for index, write in enumerate(self._writes)}
        return self.revisions

    async def __aenter__(self) -> KeyValueBatch[V]:
        await self._batch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None and not self._committed:
            await self.commit()
        else:
            await self._batch.__aexit__(kind, exc, trace)

    async def _add(
        self, key: str, payload: bytes, headers: dict[str, str] | None, expected: int | None, args: MessageArgs
    ) -> None:
        subject = self._bucket.subjects.write_prefix + self._bucket.subjects.encode_key(key)
        if (expected is not None or "rollup" in args) and any(write.key == key for write in self._writes):
            why = "its revision cannot be compared" if expected is not None else "it cannot be purged"
            raise errors.ConfigError("key", key, f"was written in this batch before: {why}")
        if expected is not None:
            args = {**args, "expected_last_subject_seq": expected}
        try:
            await self._batch.publish(subject, payload, headers=headers, **args)
        except errors.NatsError as exc:
            await self._bucket.raise_named(exc, f"write of key {key!r}")
        self._writes.append(_Write(key, expected))

    async def _translate_refusal(
        self, error: errors.WrongLastSequence
    ) -> errors.WrongRevision | errors.WrongLastSequence:
        """Return the error with the rejected key, or the error of the server when all keys are as expected by now."""
        first: dict[str, int] = {}
        for key, expected in self._writes:
            if expected is not None:
                first.setdefault(key, expected)
        for key, expected in first.items():
            actual = await self._bucket.last_revision(key, self._timeout)
            if actual not in (expected, None):
                return errors.WrongRevision(self._bucket.bucket, key, expected, actual)
        return error

    def __repr__(self) -> str:
        return f"KeyValueBatch(bucket={self._bucket.bucket!r}, {len(self)} writes)"


async def _deleted(bucket: BucketStream[V], filters: tuple[str, ...], timeout: float) -> list[KeyValueEntry[V]]:
    """Return the markers of the deleted keys; RequestTimeout when the watch gets nothing for ``timeout`` seconds."""
    marks: list[KeyValueEntry[V]] = []
    found, clock = watch(bucket, filters, meta_only=True), asyncio.get_running_loop().time
    silence = asyncio.timeout(timeout)
    try:
        async with silence, found:
            async for entry in found.initial():
                silence.reschedule(clock() + timeout)
                if entry.is_deleted:
                    marks.append(entry)
    except TimeoutError:
        if not silence.expired():
            raise
        raise errors.RequestTimeout(f"deleted keys of bucket {bucket.bucket!r}", timeout) from None
    return marks
