"""Object stores for threads without an event loop.

Owns the thread that reads an iterable given to ``put``, because the iterable may block, even on this client. Everything
else is ``natsproto.jetstream.objectstore``'s.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final, TypeGuard

from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream.objectstore import _reader as reader
from natsproto.jetstream.objectstore import _store as store
from natsproto.jetstream.objectstore import _watch as watch
from natsproto.jetstream.objectstore._meta import ObjectInfo
from natsproto.jetstream.objectstore._upload import ObjectContent
from natsproto.protocol.headers import HeadersLike
from natsproto.sync._wrapper import ContextReader, SyncContext, SyncWrapper, as_list, blocking, wrapped, wrapped_watch

_END: Final = bytearray()
"""Marks the end of an iterable; compared by identity."""


class ObjectReader(SyncContext[reader.ObjectReader]):
    """The content of an object, chunk by chunk: enter it, then iterate it once."""

    @property
    def info(self) -> ObjectInfo:
        """The object's metadata; for a link, that of the object it refers to. LocalProtocolError before entering."""
        return self._inner.info

    def __iter__(self) -> Iterator[bytes]:
        return self._portal.iterate(self._inner)


class ObjectWatcher(ContextReader[watch.ObjectWatcher, "ObjectInfo"]):
    """The metadata of objects as they change. Enter it, then iterate it or call ``next``."""

    ready: Final = blocking(watch.ObjectWatcher.ready)

    @property
    def caught_up(self) -> bool:
        """True when the initial objects are complete and every change that has arrived was read."""
        return self._inner.caught_up

    def next(self, timeout: float | timedelta | None = None) -> ObjectInfo:
        """Return the next change. Waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none arrived in time; SubscriptionClosed, or the error that ended the watch, at its end.

        Args:
            timeout: Seconds to wait for a change; None: no limit.
        """
        return self._next(timeout)

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self._iterate()

    async def _next_item(self, timeout: float | None) -> ObjectInfo:
        return await self._inner.next(timeout)


class ObjectStore(SyncWrapper[store.ObjectStore]):
    """An object store: objects of any size under any names."""

    put_file: Final = blocking(store.ObjectStore.put_file)
    get: Final = wrapped(store.ObjectStore.get, ObjectReader)
    get_bytes: Final = blocking(store.ObjectStore.get_bytes)
    get_file: Final = blocking(store.ObjectStore.get_file)
    info: Final = blocking(store.ObjectStore.info)
    list: Final = as_list(store.ObjectStore.list)
    watch: Final = wrapped_watch(store.ObjectStore.watch, ObjectWatcher)
    delete: Final = blocking(store.ObjectStore.delete)
    update_meta: Final = blocking(store.ObjectStore.update_meta)
    add_link: Final = blocking(store.ObjectStore.add_link)
    add_bucket_link: Final = blocking(store.ObjectStore.add_bucket_link)
    status: Final = blocking(store.ObjectStore.status)
    seal: Final = blocking(store.ObjectStore.seal)
    purge_orphans: Final = blocking(store.ObjectStore.purge_orphans)

    @property
    def bucket(self) -> str:
        """The name without ``OBJ_``, which its stream has."""
        return self._inner.bucket

    def put(
        self,
        name: str,
        source: ObjectContent,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Store an object; see ``natsproto.jetstream.objectstore.ObjectStore.put``. An iterable is read on a thread of
        its own, so that it may block and use this client.

        Args:
            name: What the object is found by: any text that is not empty, such as a path.
            source: The content: bytes, a path, a binary file, an object with ``async def read``, or an iterable or
                async iterable of bytes.
            description: A text for people.
            headers: Headers of the object: a mapping, pairs, or Headers; None: none.
            metadata: Labels for programs, kept with the object: a mapping of str to str; None: none.
            chunk_size: Bytes of one message of the content; None: 128 KiB, or less if the server accepts less.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return self._portal.call(
            self._inner.put,
            name,
            _ThreadedChunks(source) if _is_iterable(source) else source,
            description=description,
            headers=headers,
            metadata=metadata,
            chunk_size=chunk_size,
            progress=progress,
            timeout=timeout,
        )


def _is_iterable(source: ObjectContent) -> TypeGuard[Iterable[bytes | bytearray | memoryview]]:
    """Return True when ``put`` would iterate over the source on the event loop."""
    if isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike, io.IOBase)) or hasattr(source, "read"):
        return False
    return isinstance(source, Iterable)


class _ThreadedChunks:
    """An asynchronous iterable that reads each chunk of a blocking one on a thread."""

    def __init__(self, source: Iterable[bytes | bytearray | memoryview]) -> None:
        self._source = source

    async def __aiter__(self) -> AsyncGenerator[bytes | bytearray | memoryview]:
        chunks = iter(self._source)
        while (chunk := await asyncio.to_thread(next, chunks, _END)) is not _END:
            yield chunk
