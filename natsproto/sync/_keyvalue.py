"""Key/value buckets for threads without an event loop.

Owns who takes a lock, as two threads that share one must not; every verb is that of ``natsproto.jetstream.kv``.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from natsproto.errors import LocalProtocolError
from natsproto.jetstream.kv import _atomic as atomic
from natsproto.jetstream.kv import _bucket as bucket
from natsproto.jetstream.kv import _cache as cache
from natsproto.jetstream.kv import _lock as lock
from natsproto.jetstream.kv import _watch as watch
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.sync._facade import Block, Facade, Undertaking, Watcher, blocking, listing, making
from natsproto.sync._portal import Portal

if TYPE_CHECKING:
    from natsproto.jetstream._codec import Duration


class KeyWatcher(Watcher[watch.KeyWatcher[bytes], KeyValueEntry[bytes]]):
    """What keys hold, and everything that is written to them: enter it, then iterate it or ask for the ``next``."""

    ready = blocking(watch.KeyWatcher[bytes].ready)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._inner.bucket

    @property
    def caught_up(self) -> bool:
        """Whether the initial values are complete and everything that has come was read."""
        return self._inner.caught_up and not self._taken

    @property
    def revision(self) -> int:
        """The last revision that has come, 0 before the first: one more is where ``resume_from`` goes on."""
        return self._inner.revision

    def next(self, timeout: float | timedelta | None = None) -> KeyValueEntry[bytes]:
        """The next entry; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        return self._next(timeout)

    def __iter__(self) -> Iterator[KeyValueEntry[bytes]]:
        return self._each()

    async def _one(self, wait: float | None) -> KeyValueEntry[bytes]:
        return await self._inner.next(wait)

    def _rest(self) -> list[KeyValueEntry[bytes]]:
        return self._inner.take_all()


class KeyValueCache(Block[cache.KeyValueCache[bytes]], Mapping[str, bytes]):
    """Keys and values of a bucket as a mapping in memory, kept up to date by a watch: enter it.

    Looking up a key asks nobody, and not the other thread either. Iterating, ``items`` and ``values`` go over all as it
    is at that moment. Once the watch has ended everything raises what ended it.
    """

    wait_for = blocking(cache.KeyValueCache[bytes].wait_for)

    @property
    def revision(self) -> int:
        """The newest revision that it has seen."""
        return self._inner.revision

    def entry(self, key: str) -> KeyValueEntry[bytes] | None:
        """The entry of a key; None when it has no value."""
        self._portal.check()
        return self._inner.entry(key)

    def items(self) -> ItemsView[str, bytes]:
        """All keys and values of this moment."""
        return self._portal.run(dict, self._inner).items()

    def values(self) -> ValuesView[bytes]:
        """All values of this moment."""
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


class KeyValueBatch(Undertaking[atomic.KeyValueBatch[bytes]]):
    """Writes to keys of one bucket that happen all together, or not at all: enter it, leaving commits."""

    put = blocking(atomic.KeyValueBatch[bytes].put)
    create = blocking(atomic.KeyValueBatch[bytes].create)
    update = blocking(atomic.KeyValueBatch[bytes].update)
    delete = blocking(atomic.KeyValueBatch[bytes].delete)
    purge = blocking(atomic.KeyValueBatch[bytes].purge)
    commit = blocking(atomic.KeyValueBatch[bytes].commit)

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each key, once committed."""
        return self._inner.revisions

    def __len__(self) -> int:
        return len(self._inner)


class Lock(Undertaking[lock.Lock]):
    """A lock on a key of a bucket, for one thread at a time: enter it, or ``acquire`` and ``release`` it.

    It is renewed in the background while it is held. When it is lost, a block that is entered is not interrupted, as
    nobody can interrupt a thread: look at ``is_held``, or wait for ``lost`` in another thread; leaving the block raises
    LockLost. What must not happen then has to be fenced, with ``put`` or ``token``.
    """

    def __init__(self, portal: Portal, inner: lock.Lock) -> None:
        super().__init__(portal, inner)
        self._taking = threading.Lock()

    release = blocking(lock.Lock.release)
    lost = blocking(lock.Lock.lost)
    put = blocking(lock.Lock.put)

    @property
    def key(self) -> str:
        """The key that is the lock."""
        return self._inner.key

    @property
    def is_held(self) -> bool:
        """Whether it is held right now."""
        return self._inner.is_held and not self._portal.stopped

    @property
    def token(self) -> int:
        """The fencing token: the revision with which it was acquired last, 0 if it never was."""
        return self._inner.token

    def acquire(self, *, timeout: Duration | None = None) -> int:
        """Waits until the lock is free, at most ``timeout`` seconds (None: for ever); returns its ``token``.

        Raises what ``natsproto.jetstream.kv.Lock.acquire`` raises; LocalProtocolError when another thread is about to
        take this same object. An interrupt may leave it taken for its ``ttl``.
        """

        async def acquired() -> int:
            return await self._inner.acquire(timeout=timeout)

        with self._alone():
            return self._portal.obtain(acquired, self._give_back)

    def try_acquire(self) -> bool:
        """Takes the lock if it is free. Raises what ``acquire`` does, and for outages what ``KeyValue.create`` does."""
        with self._alone():
            return self._portal.obtain(self._inner.try_acquire, self._give_back)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def _give_back(self, _: int) -> None:
        self._portal.begin(self._inner.release())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Of two threads that take one object neither would know whose lock it is."""
        self._portal.check()
        if not self._taking.acquire(blocking=False):
            raise LocalProtocolError(f"another thread is taking {self._inner!r}: make one for each with kv.lock")
        try:
            yield
        finally:
            self._taking.release()


class KeyValue(Facade[bucket.KeyValue[bytes]]):
    """A bucket of keys and values; values are bytes."""

    get = blocking(bucket.KeyValue[bytes].get)
    put = blocking(bucket.KeyValue[bytes].put)
    create = blocking(bucket.KeyValue[bytes].create)
    update = blocking(bucket.KeyValue[bytes].update)
    delete = blocking(bucket.KeyValue[bytes].delete)
    purge = blocking(bucket.KeyValue[bytes].purge)
    keys = listing(bucket.KeyValue[bytes].keys)
    history = blocking(bucket.KeyValue[bytes].history)
    get_many = blocking(bucket.KeyValue[bytes].get_many)
    atomic = making(bucket.KeyValue[bytes].atomic, KeyValueBatch)
    purge_deletes = blocking(bucket.KeyValue[bytes].purge_deletes)
    watch = making(bucket.KeyValue[bytes].watch, KeyWatcher)
    cache = making(bucket.KeyValue[bytes].cache, KeyValueCache)
    lock = making(bucket.KeyValue[bytes].lock, Lock)
    status = blocking(bucket.KeyValue[bytes].status)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._inner.bucket
