"""Getting a whole object, as bytes or as a file.

Owns the partial file: the target appears only when it is complete and its digest is right.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from hashlib import file_digest
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from natsproto.errors import DigestMismatch, ObjectChanged
from natsproto.jetstream._backup import Progress
from natsproto.jetstream._codec import Duration
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import ObjectInfo
from natsproto.jetstream.objectstore._reader import MAX_RESTARTS, ObjectReader, resolve

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

WRITE_BYTES = 2**20
"""Bytes written in one go."""

ProgressCallback = Callable[[Progress], object] | None


async def to_bytes(
    index: ObjectIndex, name: str | ObjectInfo, timeout: Duration | None, progress: ProgressCallback
) -> bytes:
    """Return the content; start again when the object is replaced meanwhile."""
    for attempt in range(MAX_RESTARTS + 1):
        buffer = BytesIO()  # grows in place, and gives its content away without a copy
        try:
            async with ObjectReader(index, name, timeout=timeout) as reader:
                chunks = 0
                async for chunk in reader:
                    buffer.write(chunk)
                    chunks += 1
                    if progress is not None:
                        progress(Progress(bytes=buffer.tell(), chunks=chunks, total=reader.info.size))
            return buffer.getvalue()
        except ObjectChanged:
            if attempt == MAX_RESTARTS or isinstance(name, ObjectInfo):
                raise
    raise AssertionError


async def to_file(
    index: ObjectIndex,
    name: str | ObjectInfo,
    path: str | os.PathLike[str],
    *,
    resume: bool,
    timeout: Duration | None,
    progress: ProgressCallback,
) -> ObjectInfo:
    """Write the content to a file; see ObjectStore.get_file."""
    target = Path(path)
    if await asyncio.to_thread(target.is_dir):
        raise IsADirectoryError(f"{target} is a directory: give the path of a file")
    for attempt in range(MAX_RESTARTS + 1):
        store, info = await resolve(index, name, timeout)
        try:
            return await _File(store, info, target, resume, timeout, progress).fetch()
        except ObjectChanged:
            if attempt == MAX_RESTARTS or isinstance(name, ObjectInfo):
                raise
    raise AssertionError


class _File:
    """One attempt to write an object to a file."""

    def __init__(
        self,
        index: ObjectIndex,
        info: ObjectInfo,
        target: Path,
        resume: bool,
        timeout: Duration | None,
        progress: ProgressCallback,
    ) -> None:
        self._index, self._info, self._target = index, info, target
        self._resume, self._timeout, self._progress = resume, timeout, progress
        # What can be resumed is found by the version of the object that it is a part of.
        mark = info.nuid if resume else index.api.connection._new_id()
        self._partial = target.with_name(f"{target.name}.{mark}.partial")

    async def fetch(self) -> ObjectInfo:
        try:
            with self._partial.open("ab" if self._resume else "xb") as file:
                await self._write(file)
                await asyncio.to_thread(_sync, file)
            os.replace(self._partial, self._target)
        except BaseException as exc:
            if not self._resume or isinstance(exc, (DigestMismatch, ObjectChanged)):
                self._partial.unlink(missing_ok=True)
            raise
        return self._info

    async def _write(self, file: BinaryIO) -> None:
        reader = ObjectReader(self._index, self._info, timeout=self._timeout)
        size = await asyncio.to_thread(os.path.getsize, self._partial)
        if size:
            size = min(size, self._info.size)
            await asyncio.to_thread(file.truncate, size)
            reader.resume(size, await asyncio.to_thread(_digest_of, self._partial))
        pieces: list[bytes] = []
        waiting = chunks = 0
        async with reader:
            async for chunk in reader:
                pieces.append(chunk)
                waiting += len(chunk)
                chunks += 1
                if waiting >= WRITE_BYTES:
                    await asyncio.to_thread(file.writelines, pieces)
                    size += waiting
                    pieces, waiting = [], 0
                if self._progress is not None:
                    self._progress(Progress(bytes=size + waiting, chunks=chunks, total=self._info.size))
        await asyncio.to_thread(file.writelines, pieces)


def _digest_of(path: Path) -> Hash:
    with path.open("rb") as file:
        return file_digest(file, "sha256")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
