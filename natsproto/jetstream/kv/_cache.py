"""A copy of keys in memory that a watch keeps up to date, and any number of readers of its changes.

Owns the copy, and what waits for each reader.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import heappop, heappush
from operator import attrgetter
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic

from natsproto import errors
from natsproto._core.notifier import release
from natsproto._core.time_slice import TIME_SLICE_S
from natsproto._durations import seconds
from natsproto._help.async_hints import AsyncForHint
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._publish.headers import ttl_of
from natsproto.jetstream._values.codec import NEVER, Duration
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.kv._entry import BucketStream, KeyValueEntry
from natsproto.jetstream.kv._keys import V
from natsproto.jetstream.kv._watch import KeyWatcher
from natsproto.protocol.subject import matches, overlap

READERS_PER_TURN: Final = 250
"""Readers that get an entry in one turn of the event loop, which they then use: 10,000 at once would stall it."""
ENTRIES_AT_ONCE: Final = 100
"""Entries that a reader takes at once: those that still wait can be replaced by newer ones."""


class _Reader(Generic[V]):
    """One reader, and the entries that wait for it."""

    __slots__ = ("error", "filters", "is_ended", "joined", "limit", "max_waiting", "skipped", "waiter", "waiting")

    def __init__(self, filters: tuple[str, ...], max_waiting: int, joined: int) -> None:
        self.filters, self.max_waiting, self.joined = filters, max_waiting, joined
        self.waiting: list[KeyValueEntry[V]] = []
        self.limit = max_waiting
        self.skipped = 0
        self.waiter: asyncio.Future[None] | None = None
        self.is_ended = False
        self.error: errors.NatsError | None = None

    def put(self, entry: KeyValueEntry[V]) -> None:
        """Let an entry wait."""
        self.waiting.append(entry)
        if len(self.waiting) > self.limit:
            self._keep_last()
        self.wake()

    def take(self) -> list[KeyValueEntry[V]]:
        """Return the oldest entries that wait."""
        taken = self.waiting[:ENTRIES_AT_ONCE]
        del self.waiting[:ENTRIES_AT_ONCE]
        if not self.waiting:
            self.limit = self.max_waiting
        return taken

    def wake(self) -> None:
        """Wake the reader if it waits."""
        if self.waiter is not None:
            release(self.waiter)

    def end(self, error: errors.NatsError | None) -> None:
        """End it once it has read what waits."""
        self.is_ended, self.error = True, error
        self.wake()

    def _keep_last(self) -> None:
        """Keep only the last entry of each key, in their order."""
        kept: dict[str, KeyValueEntry[V]] = {}
        for entry in reversed(self.waiting):
            kept.setdefault(entry.subject, entry)
        self.skipped += len(self.waiting) - len(kept)
        self.waiting = list(kept.values())[::-1]
        self.limit = max(self.max_waiting, 2 * len(kept))  # as many keys as wait: not at every entry again


class _Audience(Generic[V]):
    """The readers of one cache, by what they read."""

    def __init__(self) -> None:
        self._by_subject: defaultdict[str, dict[_Reader[V], None]] = defaultdict(dict)
        self._by_pattern: defaultdict[str, dict[_Reader[V], None]] = defaultdict(dict)
        self._turn = 0  # a reader gets only what comes after the turn in which it joined

    def begin_turn(self) -> None:
        """Called when the cache has changed, before its readers are notified."""
        self._turn += 1

    def join(self, filters: tuple[str, ...], max_waiting: int, current: Iterable[KeyValueEntry[V]]) -> _Reader[V]:
        """Add a reader, for which the current entries wait."""
        reader: _Reader[V] = _Reader(filters, max_waiting, self._turn)
        reader.waiting.extend(current)
        for subject in filters or (">",):
            self._group(subject)[reader] = None
        return reader

    def leave(self, reader: _Reader[V]) -> None:
        """Remove a reader."""
        for subject in reader.filters or (">",):
            group = self._group(subject)
            group.pop(reader, None)
            if not group:
                (self._by_pattern if _is_pattern(subject) else self._by_subject).pop(subject, None)

    async def put(self, batch: list[KeyValueEntry[V]]) -> None:
        """Let the entries wait for all who read them; other tasks get their turns between the readers."""
        turn, count = self._turn, 0
        if not self._by_subject and not self._by_pattern:
            return
        ends_at = monotonic() + TIME_SLICE_S
        for entry in batch:
            if monotonic() > ends_at:  # there are many patterns to match
                await asyncio.sleep(0)
                ends_at = monotonic() + TIME_SLICE_S
            for reader in self._readers_of(entry.subject):
                if reader.joined < turn:
                    reader.put(entry)
                    count += 1
                    if count % READERS_PER_TURN == 0:
                        await asyncio.sleep(0)

    def end(self, error: errors.NatsError | None) -> None:
        """End all readers."""
        for groups in (self._by_subject, self._by_pattern):
            for group in groups.values():
                for reader in group:
                    reader.end(error)

    def _group(self, subject: str) -> dict[_Reader[V], None]:
        return (self._by_pattern if _is_pattern(subject) else self._by_subject)[subject]

    def _readers_of(self, subject: str) -> list[_Reader[V]]:
        readers = dict(self._by_subject.get(subject, ()))
        for pattern, group in self._by_pattern.items():
            if matches(pattern, subject):
                readers.update(group)
        return list(readers)


def _is_pattern(subject: str) -> bool:
    return "*" in subject or ">" in subject


class CacheUpdates(AsyncForHint, Generic[V]):
    """The entries of a cache: the current ones in the order of their revisions, then each change. Created by
    ``cache.updates``; use it with ``async for``.

    Each iteration is a reader of its own, which begins with the current entries. It ends when the block of the cache is
    left or the client closes, and raises BucketNotFound, PermissionDenied or what else ended the watch. Cancelling
    loses nothing for others.
    """

    _await_hint = "use async for"

    def __init__(self, cache: KeyValueCache[V], filters: tuple[str, ...], max_waiting: int) -> None:
        self._cache, self._filters, self._max_waiting = cache, filters, max_waiting
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """The number of entries that were left out because newer ones of their keys followed while the reader was
        slow.
        """
        return self._skipped

    async def __aiter__(self) -> AsyncGenerator[KeyValueEntry[V]]:
        cache = self._cache
        reader = cache._audience.join(self._filters, self._max_waiting, self._current())
        loop = asyncio.get_running_loop()
        try:
            while True:
                while reader.waiting:
                    entries = reader.take()
                    self._skipped, reader.skipped = self._skipped + reader.skipped, 0
                    for entry in entries:
                        yield entry
                if reader.is_ended:
                    break
                reader.waiter = loop.create_future()
                await reader.waiter
                reader.waiter = None
        finally:
            cache._audience.leave(reader)
        if reader.error is not None:
            raise reader.error.with_traceback(None)

    def _current(self) -> list[KeyValueEntry[V]]:
        entries = self._cache._current()
        found = (
            entry
            for entry in entries.values()
            if not self._filters or any(matches(pattern, entry.subject) for pattern in self._filters)
        )
        return sorted(found, key=attrgetter("revision"))


class _Lifetimes:
    """When the entries of a cache end: a server deletes expired messages without a word, or with one that may expire,
    too, before it is read.
    """

    def __init__(self, max_age: float, now: Timestamp) -> None:
        """``max_age`` of the stream in seconds, 0: none; ``now`` by the clock of the server, which stamps entries."""
        self._max_age = max_age
        clock = datetime.now(UTC).timestamp() if now == NEVER else now.timestamp()
        self._server_ahead = clock - monotonic()  # late by the way of the reply
        self._ends: list[tuple[float, str, int]] = []

    def add(self, entry: KeyValueEntry[Any]) -> None:
        ttl = ttl_of(entry.headers) if entry._message.has_headers else None
        age = min((one for one in (ttl, self._max_age) if one), default=0.0)
        if age and ttl != math.inf:
            heappush(self._ends, (entry.created.timestamp() + age - self._server_ahead, entry.key, entry.revision))

    def take_ended(self) -> Iterator[tuple[str, int]]:
        """Return and forget what has ended: keys and revisions."""
        while self._ends and self._ends[0][0] <= monotonic():
            _, key, revision = heappop(self._ends)
            yield key, revision


class KeyValueCache(Mapping[str, V], Generic[V]):
    """Keys and values of a bucket as a mapping in memory. Created by ``kv.cache``; use it with ``async with``.

    Once entered, it has every matching key and follows all changes, also after reconnects. Reading it after the watch
    has ended (the bucket was deleted, the client closed), or before it is entered, raises an error instead of returning
    outdated values. ``updates`` reads the changes; any number of readers share the one watch.
    """

    def __init__(self, watcher: KeyWatcher[V], bucket: BucketStream[V], keys: tuple[str, ...]) -> None:
        self._watcher, self._bucket, self._subjects, self._keys = watcher, bucket, bucket.subjects, keys
        self._lifetimes = _Lifetimes(0.0, NEVER)
        self._entries: dict[str, KeyValueEntry[V]] = {}
        self._revision = 0
        self._task: asyncio.Task[None] | None = None
        self._error: errors.NatsError | None = errors.LocalProtocolError(f"enter the cache of {watcher.what} first")
        self._changed = asyncio.Event()
        self._audience: _Audience[V] = _Audience()

    # ---------------------------------------------------------------- reading

    @property
    def revision(self) -> int:
        """The last received revision."""
        return self._revision

    def entry(self, key: str) -> KeyValueEntry[V] | None:
        """Return the entry of a key; None when it has no value.

        Args:
            key: A key, as ``put`` writes it; one that the cache does not hold gives None.
        """
        return self._current().get(key)

    def __getitem__(self, key: str) -> V:
        return self._current()[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, key: object) -> bool:
        return key in self._current()

    async def wait_for(self, revision: int, *, timeout: Duration | None = None) -> None:
        """Wait until a revision has arrived, for example to read a value after writing it.

        RequestTimeout after ``timeout`` seconds (None: never); the error that ended the watch. Cancelling ends the
        wait.

        Args:
            revision: The revision of the bucket, such as the result of ``put``.
            timeout: Seconds to wait; None: no limit.
        """
        wait = None if timeout is None else seconds("timeout", timeout)
        expiry = asyncio.timeout(wait)
        try:
            async with expiry:
                while self._revision < revision:
                    self._current()
                    await self._changed.wait()
        except TimeoutError:
            if not expiry.expired():
                raise
            raise errors.RequestTimeout(
                f"revision {revision} in the cache of {self._watcher.what}", wait or 0.0, missing="such change"
            ) from None

    def _current(self) -> dict[str, KeyValueEntry[V]]:
        if self._error is not None:
            raise self._error.with_traceback(None)
        for key, revision in self._lifetimes.take_ended():
            if (entry := self._entries.get(key)) is not None and entry.revision == revision:
                del self._entries[key]
        return self._entries

    def updates(self, *keys: str, max_waiting: int = 1000) -> CacheUpdates[V]:
        """Return the entries of these keys or patterns (default: all of the cache) for ``async for``: the current ones,
        then each that is put, deleted or purged.

        Every reader gets all of them, and none needs anything of the server. A reader that is so slow that more than
        ``max_waiting`` entries wait for it gets only the last entry of each key of those that wait; ``skipped`` counts
        the others. ConfigError for keys that the cache does not have; InvalidSubject.

        Args:
            *keys: Which keys: names or patterns with ``*`` and ``>``; none: all that the cache holds.
            max_waiting: Entries that may wait for this reader; of more than these it gets only the last one of each
                key.
        """
        if type(max_waiting) is not int or max_waiting < 1:
            raise errors.ConfigError("max_waiting", max_waiting, "must be an int of at least 1")
        filters = tuple(map(self._subjects.filter_subject, keys))
        own = tuple(map(self._subjects.filter_subject, self._keys))
        for key, subject in zip(keys, filters, strict=True):
            if own and not any(overlap(subject, other) for other in own):
                raise errors.ConfigError("keys", key, f"the cache has only {', '.join(map(repr, self._keys))}")
        return CacheUpdates(self, filters, max_waiting)

    # ---------------------------------------------------------------- updating

    async def __aenter__(self) -> KeyValueCache[V]:
        with bucket_errors(self._bucket.bucket):
            info = await self._bucket.stream.info()
        self._lifetimes = _Lifetimes(info.config.max_age, info.ts)
        await self._watcher.__aenter__()
        try:
            await self._watcher.ready()
            self._receive([entry async for entry in self._watcher.initial()])
        except BaseException:
            await self._watcher.stop()
            raise
        self._error = None
        self._task = asyncio.create_task(self._follow(), name="natsproto key/value cache")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._end(errors.LocalProtocolError(f"the cache of {self._watcher.what} has ended: its block was left"), None)
        if task is not None:
            task.cancel()
        await self._watcher.stop()

    async def _follow(self) -> None:
        try:
            async for batch in self._watcher.batches():
                self._receive(batch)
                await self._audience.put(batch)
        except Exception as exc:
            error = wrap_unexpected(f"reading {self._watcher.what}", exc)
            self._end(error, error)
        else:
            self._end(
                errors.LocalProtocolError(f"the cache of {self._watcher.what} has ended: the client was closed"), None
            )

    def _receive(self, batch: list[KeyValueEntry[V]]) -> None:
        entries = self._entries
        for entry in batch:
            if entry.is_deleted:
                entries.pop(entry.key, None)
            else:
                entries[entry.key] = entry
                self._lifetimes.add(entry)
        self._audience.begin_turn()
        if batch:
            self._revision = max(self._revision, batch[-1].revision)
            self._notify()

    def _end(self, error: errors.NatsError, failure: errors.NatsError | None) -> None:
        """End with the error for later lookups, and what its readers raise (None: they just end)."""
        if self._error is None:
            self._error = error
            self._entries.clear()
            self._notify()
            self._audience.end(failure)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def __repr__(self) -> str:
        return f"KeyValueCache(bucket={self._watcher.bucket!r}, {len(self._entries)} keys, revision={self._revision})"
