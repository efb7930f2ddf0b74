"""A local copy of keys, kept up to date by a watch.

Owns the copy. Reading it sends nothing; it is as recent as the last update of the watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Generic

from natsproto._durations import seconds
from natsproto.errors import LocalProtocolError, NatsError, RequestTimeout
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._unexpected import wrap_unexpected
from natsproto.jetstream.kv._bucket_stream import V
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.jetstream.kv._watch import KeyWatcher


class KeyValueCache(Mapping[str, V], Generic[V]):
    """Keys and values of a bucket as a mapping in memory. Created by ``kv.cache``; use it with ``async with``.

    Once entered, it has every matching key and follows all changes, also after reconnects. Reading it after the watch
    has ended (the bucket was deleted, the client closed), or before it is entered, raises an error instead of returning
    outdated values.
    """

    def __init__(self, watcher: KeyWatcher[V]) -> None:
        self._watcher = watcher
        self._entries: dict[str, KeyValueEntry[V]] = {}
        self._revision = 0
        self._task: asyncio.Task[None] | None = None
        self._error: NatsError | None = LocalProtocolError(f"enter the cache of {watcher.what} first")
        self._changed = asyncio.Event()

    # ---------------------------------------------------------------- reading

    @property
    def revision(self) -> int:
        """The last received revision."""
        return self._revision

    def entry(self, key: str) -> KeyValueEntry[V] | None:
        """Return the entry of a key; None when it has no value."""
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
            raise RequestTimeout(f"revision {revision} in the cache of {self._watcher.what}", wait or 0.0) from None

    def _current(self) -> dict[str, KeyValueEntry[V]]:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._entries

    # ---------------------------------------------------------------- updating

    async def __aenter__(self) -> KeyValueCache[V]:
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
        self._end(LocalProtocolError(f"the cache of {self._watcher.what} has ended: its block was left"))
        if task is not None:
            task.cancel()
        await self._watcher.stop()

    async def _follow(self) -> None:
        try:
            async for batch in self._watcher.batches():
                self._receive(batch)
        except Exception as exc:
            self._end(wrap_unexpected(f"reading {self._watcher.what}", exc))
        else:
            self._end(LocalProtocolError(f"the cache of {self._watcher.what} has ended: the client was closed"))

    def _receive(self, batch: list[KeyValueEntry[V]]) -> None:
        entries = self._entries
        for entry in batch:
            if entry.is_deleted:
                entries.pop(entry.key, None)
            else:
                entries[entry.key] = entry
        if batch:
            self._revision = max(self._revision, batch[-1].revision)
            self._notify()

    def _end(self, error: NatsError) -> None:
        if self._error is None:
            self._error = error
            self._entries.clear()
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def __repr__(self) -> str:
        return f"KeyValueCache(bucket={self._watcher.bucket!r}, {len(self._entries)} keys, revision={self._revision})"
