"""Object stores for threads without an event loop.

Owns the way of iterables to the event loop: they are read on a thread, as they may wait for anything, this client
included. Every verb is that of ``natsproto.jetstream.objectstore``.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeGuard

from natsproto.jetstream.objectstore import _reader as reader
from natsproto.jetstream.objectstore import _store as store
from natsproto.jetstream.objectstore import _watch as watch
from natsproto.sync._facade import Block, Facade, Watcher, blocking, listing, making

if TYPE_CHECKING:
    from natsproto.jetstream._backup import Progress
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream.objectstore._content import Source
    from natsproto.jetstream.objectstore._meta import ObjectInfo
    from natsproto.protocol.headers import HeadersLike

_END: Final = bytearray()
"""No piece of anybody's: it is known by its identity."""


class ObjectReader(Block[reader.ObjectReader]):
    """The content of an object, chunk by chunk: enter it, then iterate it once."""

    @property
    def info(self) -> ObjectInfo:
        """What the store knows of it; of a link, what it leads to. LocalProtocolError before it was entered."""
        return self._inner.info

    def __iter__(self) -> Iterator[bytes]:
        return self._portal.iterate(self._inner)


class ObjectWatcher(Watcher[watch.ObjectWatcher, "ObjectInfo"]):
    """Descriptions of objects as they change: enter it, then iterate it or ask for the ``next``."""

    ready = blocking(watch.ObjectWatcher.ready)

    @property
    def caught_up(self) -> bool:
        """Whether the initial objects are complete and everything that has come was read."""
        return self._inner.caught_up

    def next(self, timeout: float | timedelta | None = None) -> ObjectInfo:
        """The next change; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        return self._next(timeout)

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self._each()

    async def _one(self, wait: float | None) -> ObjectInfo:
        return await self._inner.next(wait)


class ObjectStore(Facade[store.ObjectStore]):
    """Objects of any size under names of any kind."""

    put_file = blocking(store.ObjectStore.put_file)
    get = making(store.ObjectStore.get, ObjectReader)
    get_bytes = blocking(store.ObjectStore.get_bytes)
    get_file = blocking(store.ObjectStore.get_file)
    info = blocking(store.ObjectStore.info)
    list = listing(store.ObjectStore.list)
    watch = making(store.ObjectStore.watch, ObjectWatcher)
    delete = blocking(store.ObjectStore.delete)
    update_meta = blocking(store.ObjectStore.update_meta)
    add_link = blocking(store.ObjectStore.add_link)
    add_bucket_link = blocking(store.ObjectStore.add_bucket_link)
    status = blocking(store.ObjectStore.status)
    seal = blocking(store.ObjectStore.seal)
    sweep = blocking(store.ObjectStore.sweep)

    @property
    def bucket(self) -> str:
        """The name of the store."""
        return self._inner.bucket

    def put(
        self,
        name: str,
        source: Source,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """``natsproto.jetstream.objectstore.ObjectStore.put``. An iterable is read on a thread of its own, so that it
        may take its time, and use this client.
        """
        return self._portal.call(
            self._inner.put,
            name,
            _Pieces(source) if _is_iterated(source) else source,
            description=description,
            headers=headers,
            metadata=metadata,
            chunk_size=chunk_size,
            progress=progress,
            timeout=timeout,
        )


def _is_iterated(source: Source) -> TypeGuard[Iterable[bytes | bytearray | memoryview]]:
    """Whether ``put`` would iterate over it on the event loop."""
    if isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike, io.IOBase)) or hasattr(source, "read"):
        return False
    return isinstance(source, Iterable)


class _Pieces:
    """An iterable for the event loop, each of whose pieces is waited for on a thread."""

    def __init__(self, source: Iterable[bytes | bytearray | memoryview]) -> None:
        self._source = source

    async def __aiter__(self) -> AsyncGenerator[bytes | bytearray | memoryview]:
        pieces = iter(self._source)
        while (piece := await asyncio.to_thread(next, pieces, _END)) is not _END:
            yield piece
