"""Key/value buckets for threads without an event loop.

Owns the check that two threads do not acquire one Lock object at the same time. Everything else is
``natsproto.jetstream.kv``'s.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Self, TypeVar, overload

from natsproto import errors
from natsproto._durations import DEFAULT, Default
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream.kv import _bucket as bucket
from natsproto.jetstream.kv import _cache as cache
from natsproto.jetstream.kv import _lock as lock
from natsproto.jetstream.kv import _watch as watch
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.sync._portal import Portal
from natsproto.sync._wrapper import (
    ContextReader,
    SyncContext,
    SyncWrapper,
    as_iterator,
    as_list,
    blocking,
    wrapped,
    wrapped_watch,
)

D = TypeVar("D")


class KeyWatcher(ContextReader[watch.KeyWatcher[bytes], KeyValueEntry[bytes]]):
    """The current values of keys, then every change to them. Enter it, then iterate it or call ``next``."""

    ready: Final = blocking(watch.KeyWatcher[bytes].ready)

    @property
    def bucket(self) -> str:
        """The name without ``KV_``, which its stream has."""
        return self._inner.bucket

    @property
    def caught_up(self) -> bool:
        """True when the initial values are complete and every entry that has arrived was read."""
        return self._inner.caught_up and not self._buffer

    @property
    def revision(self) -> int:
        """The last revision received, 0 before the first. ``resume_from`` continues at the revision after it."""
        return self._inner.revision

    def next(self, timeout: float | timedelta | None = None) -> KeyValueEntry[bytes]:
        """Return the next entry. Waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none arrived in time; SubscriptionClosed, or the error that ended the watch, at its end.

        Args:
            timeout: Seconds to wait for an entry; None: no limit.
        """
        return self._next(timeout)

    def __iter__(self) -> Iterator[KeyValueEntry[bytes]]:
        return self._iterate()

    async def _next_item(self, timeout: float | None) -> KeyValueEntry[bytes]:
        return await self._inner.next(timeout)

    def _available_items(self) -> list[KeyValueEntry[bytes]]:
        return self._inner._take_all()


class KeyValueCache(SyncContext[cache.KeyValueCache[bytes]], Mapping[str, bytes]):
    """The keys and values of a bucket as a mapping in memory, kept up to date by a watch. Use it with ``with``.

    A lookup needs neither the server nor the event loop. Iteration, ``items`` and ``values`` use a snapshot. Once the
    watch has ended, every method raises the error that ended it.
    """

    wait_for: Final = blocking(cache.KeyValueCache[bytes].wait_for)
    updates: Final = as_iterator(cache.KeyValueCache[bytes].updates)

    @property
    def revision(self) -> int:
        """The newest revision received."""
        return self._inner.revision

    def entry(self, key: str) -> KeyValueEntry[bytes] | None:
        """Return the entry of a key, or None when the key has no value.

        Args:
            key: A key, as ``put`` writes it; one that the cache does not hold gives None.
        """
        self._portal.check()
        return self._inner.entry(key)

    def items(self) -> ItemsView[str, bytes]:
        """Return a snapshot of all keys and values."""
        return self._portal.run(dict, self._inner).items()

    def values(self) -> ValuesView[bytes]:
        """Return a snapshot of all values."""
        return self._portal.run(dict, self._inner).values()

    def __getitem__(self, key: str) -> bytes:
        self._portal.check()
        return self._inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._portal.run(list, self._inner))

    def __len__(self) -> int:
        self._portal.check()
        return len(self._inner)

    def __contains__(self, key: object) -> bool:
        self._portal.check()
        return key in self._inner


class KeyValueBatch(SyncContext[bucket.KeyValueBatch[bytes]]):
    """Writes to keys of one bucket that happen all together or not at all. Leaving ``with`` commits."""

    _exit_needs_client = True

    put: Final = blocking(bucket.KeyValueBatch[bytes].put)
    create: Final = blocking(bucket.KeyValueBatch[bytes].create)
    update: Final = blocking(bucket.KeyValueBatch[bytes].update)
    delete: Final = blocking(bucket.KeyValueBatch[bytes].delete)
    purge: Final = blocking(bucket.KeyValueBatch[bytes].purge)
    commit: Final = blocking(bucket.KeyValueBatch[bytes].commit)

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each key after the commit."""
        return self._inner.revisions

    def __len__(self) -> int:
        return len(self._inner)


class Lock(SyncContext[lock.Lock]):
    """A lock on a key of a bucket, for one thread at a time. Use it with ``with``, or ``acquire`` and ``release`` it.

    It is renewed in the background while it is held. Losing it does not interrupt the block, because a thread cannot be
    interrupted: check ``is_held``, or call ``wait_lost`` in another thread. Leaving the block then raises LockLost. Use
    ``put`` or ``token`` to fence writes that must not happen without the lock.
    """

    _exit_needs_client = True

    def __init__(self, portal: Portal, inner: lock.Lock) -> None:
        super().__init__(portal, inner)
        self._acquiring = threading.Lock()

    release: Final = blocking(lock.Lock.release)
    wait_lost: Final = blocking(lock.Lock.wait_lost)
    put: Final = blocking(lock.Lock.put)

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._inner.key

    @property
    def is_held(self) -> bool:
        """True when the lock is held right now."""
        return self._inner.is_held and not self._portal.stopped

    @property
    def token(self) -> int:
        """The fencing token: the revision of the last acquisition, 0 before the first."""
        return self._inner.token

    def acquire(self, *, timeout: Duration | None = None) -> int:
        """Wait for at most ``timeout`` seconds (None: for ever) until the lock is acquired; return its ``token``.

        Raises the errors of ``natsproto.jetstream.kv.Lock.acquire``; LocalProtocolError while another thread acquires
        this same object. After an interrupt and after the timeout the lock is released in the background.

        Args:
            timeout: Seconds to wait for the lock; None: no limit.
        """

        async def acquire() -> int:
            return await self._inner.acquire(timeout=timeout)

        with self._one_thread():
            return self._portal.call_or_undo(acquire, self._release_later)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free. Raises the errors of ``acquire``, and of ``KeyValue.create`` in an outage."""
        with self._one_thread():
            return self._portal.call_or_undo(self._inner.try_acquire, self._release_later)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def _release_later(self, _: int) -> None:
        self._portal.spawn(self._inner.release())

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Refuse a second thread: neither would know which of them holds the lock."""
        self._portal.check()
        if not self._acquiring.acquire(blocking=False):
            raise errors.LocalProtocolError(
                f"another thread is acquiring {self._inner!r}: make a lock for each thread with kv.lock"
            )
        try:
            yield
        finally:
            self._acquiring.release()


class KeyValue(SyncWrapper[bucket.KeyValue[bytes]]):
    """A key/value bucket; values are bytes."""

    put: Final = blocking(bucket.KeyValue[bytes].put)
    create: Final = blocking(bucket.KeyValue[bytes].create)
    update: Final = blocking(bucket.KeyValue[bytes].update)
    modify: Final = blocking(bucket.KeyValue[bytes].modify)
    delete: Final = blocking(bucket.KeyValue[bytes].delete)
    purge: Final = blocking(bucket.KeyValue[bytes].purge)
    keys: Final = as_list(bucket.KeyValue[bytes].keys)
    history: Final = blocking(bucket.KeyValue[bytes].history)
    get_many: Final = blocking(bucket.KeyValue[bytes].get_many)
    atomic: Final = wrapped(bucket.KeyValue[bytes].atomic, KeyValueBatch)
    purge_deletes: Final = blocking(bucket.KeyValue[bytes].purge_deletes)
    watch: Final = wrapped_watch(bucket.KeyValue[bytes].watch, KeyWatcher)
    cache: Final = wrapped(bucket.KeyValue[bytes].cache, KeyValueCache)
    lock: Final = wrapped(bucket.KeyValue[bytes].lock, Lock)
    status: Final = blocking(bucket.KeyValue[bytes].status)

    @overload
    def get(
        self, key: str, *, revision: int | None = None, direct: bool = True, timeout: Duration | None = None
    ) -> KeyValueEntry[bytes]: ...

    @overload
    def get(
        self,
        key: str,
        *,
        default: D,
        revision: int | None = None,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> KeyValueEntry[bytes] | D: ...

    def get(
        self,
        key: str,
        *,
        default: D | Default = DEFAULT,
        revision: int | None = None,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> KeyValueEntry[bytes] | D:
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
        call, inner = self._portal.call, self._inner
        if default is DEFAULT:
            return call(inner.get, key, revision=revision, direct=direct, timeout=timeout)
        return call(inner.get, key, default=default, revision=revision, direct=direct, timeout=timeout)

    @property
    def bucket(self) -> str:
        """The name without ``KV_``, which its stream has."""
        return self._inner.bucket
