"""Key/value buckets for threads without an event loop.

Owns the entries that were taken over from a watch and not read yet; every verb is that of ``natsproto.jetstream.kv``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType
from typing import Self

from natsproto.errors import RequestTimeout, SubscriptionClosed
from natsproto.jetstream.kv import bucket, watch
from natsproto.jetstream.kv.entry import KeyValueEntry
from natsproto.protocol.pool import seconds
from natsproto.sync.facade import Facade, blocking, listing, making
from natsproto.sync.portal import Portal


class KeyWatcher(Facade[watch.KeyWatcher[bytes]]):
    """What keys hold, and everything that is written to them: enter it, then iterate it or ask for the ``next``."""

    def __init__(self, portal: Portal, inner: watch.KeyWatcher[bytes]) -> None:
        super().__init__(portal, inner)
        self._taken: deque[KeyValueEntry[bytes]] = deque()
        self._turn = asyncio.Lock()  # a watch has one reader at a time, threads may be many

    ready = blocking(watch.KeyWatcher[bytes].ready)

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
        wait = None if timeout is None else seconds("timeout", timeout)
        try:
            return self._taken.popleft()
        except IndexError:
            pass
        return self._portal.call(self._came, wait)

    async def _came(self, wait: float | None) -> KeyValueEntry[bytes]:
        what = self._inner.what
        try:
            async with asyncio.timeout(wait), self._turn:
                if self._taken:
                    return self._taken.popleft()
                async with aclosing(self._inner.batches()) as batches:
                    async for batch in batches:
                        self._taken.extend(batch[1:])  # for whoever comes next
                        return batch[0]
        except TimeoutError:
            raise RequestTimeout(f"next entry of {what}", wait or 0.0) from None
        raise SubscriptionClosed(what, "stopped")

    def __iter__(self) -> Iterator[KeyValueEntry[bytes]]:
        while True:
            try:
                entry = self.next()
            except SubscriptionClosed:
                return
            yield entry

    def stop(self) -> None:
        """Ends it. What has come and was not read is gone."""
        self._portal.call(self._inner.stop)
        self._taken.clear()

    def __enter__(self) -> Self:
        self._portal.call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self.stop()


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
    purge_deletes = blocking(bucket.KeyValue[bytes].purge_deletes)
    watch = making(bucket.KeyValue[bytes].watch, KeyWatcher)
    status = blocking(bucket.KeyValue[bytes].status)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._inner.bucket
