"""Getting the content of an object from its chunks, also as bytes or a file.

Owns the ordered consumer that reads the chunks, the check of the digest, and the detection of missing chunks. Owns the
partial file: the target appears only when it is complete and its digest is right.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from hashlib import file_digest, sha256
from io import BufferedRandom, BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._help.async_hints import AsyncForHint
from natsproto.errors._base import is_transient
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import Messages
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import (
    ObjectInfo,
    check_object_name,
    chunk_subject,
    digest_bytes,
    digest_text,
    meta_subject,
)

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

PREFETCH_BYTES = 8 * 2**20
"""Bytes to prefetch."""
PREFETCH_CHUNKS = 500
STALL_TIMEOUT_S = 1.0
"""Seconds without a chunk after which the leader is asked for it."""
MAX_READ_RESTARTS = 5
"""Restarts of a read whose object was replaced before its first chunk was returned, or of reading a whole object."""
LOOK_AGAIN_S = (0.25, 1.0)
"""Pauses in seconds between looks for missing chunks. A deposed leader that answers after its network came back knows
an object by the version before, whose chunks the stream has purged."""
WRITE_BYTES = 2**20
"""Bytes written to a file in one go."""

ProgressCallback = Callable[[Progress], object] | None


async def resolve(
    index: ObjectIndex, wanted: str | ObjectInfo, timeout: Duration | None = None, *, follow_links: bool
) -> tuple[ObjectIndex, ObjectInfo]:
    """Resolve a name, following links, into other stores only with ``follow_links``; return the store and the info.

    ObjectNotFound and BucketNotFound, also for the target of a link; ObjectLinkError for a link to a store, for
    circular links, and for a link into another store that is not to be followed.
    """
    if isinstance(wanted, ObjectInfo):
        index, name, info = index.index_of(check_bucket_name(wanted.bucket)), wanted.name, wanted
    else:
        name, info = check_object_name(wanted), await index.get_info(wanted, timeout=timeout)
    passed: set[tuple[str, str]] = set()
    while (link := info.link) is not None:
        if not link.name:
            raise errors.ObjectLinkError(
                index.bucket, name, f"is a link to the store {link.bucket!r}, not to an object"
            )
        if link.bucket != index.bucket and not follow_links:
            reason = f"is a link into the store {link.bucket!r}: pass follow_links=True if its writers may decide that"
            raise errors.ObjectLinkError(index.bucket, name, reason)
        passed.add((index.bucket, name))
        if (link.bucket, link.name) in passed:
            raise errors.ObjectLinkError(index.bucket, name, "is a link that leads back to itself")
        index, name = index.index_of(check_bucket_name(link.bucket)), link.name
        info = await index.get_info(name, timeout=timeout)
    if info.deleted:
        raise errors.ObjectNotFound(index.bucket, name)
    return index, info


async def get_single_chunk(
    index: ObjectIndex, wanted: str | ObjectInfo, timeout: Duration | None
) -> tuple[ObjectInfo, bytes] | None:
    """Get the info and the content of an object of one chunk in two messages, from any server that has them.

    None for every other object, without a connection, and when a server lacks one of them, does not allow it or returns
    another content: the leader and a consumer find out why.
    """
    stream = index.stream
    if not stream.reads_directly or not index.api.connection.is_connected:
        return None
    try:
        info = wanted if isinstance(wanted, ObjectInfo) else await index.find_directly(wanted, timeout)
        if info is None or info.chunks != 1 or info.bucket != index.bucket or not stream.reads_directly:
            return None
        chunk = (await index.get_directly(chunk_subject(info.bucket, info.nuid), timeout)).data
        if len(chunk) == info.size and sha256(chunk).digest() == digest_bytes(info):
            return info, chunk
    except errors.PermissionDenied:
        stream.reads_directly = False
    except errors.ConfigError:
        raise
    except (errors.NatsError, TimeoutError):
        pass
    return None


class ObjectReader(AsyncForHint):
    """The content of an object, chunk by chunk. Created by ``ObjectStore.get``.

    Use it with ``async with`` and iterate it once. It prefetches a few MiB and survives restarts and reconnects. The
    last chunk is returned if the digest is correct; otherwise DigestMismatch is raised in its place. ObjectChanged when
    the object was replaced or deleted during the read, BucketNotFound when the store was deleted. After cancelling,
    reading can continue. Leaving the block ends it.
    """

    _await_hint = "enter it with async with, then use async for; or use await store.get_bytes(name)"

    def __init__(
        self,
        index: ObjectIndex,
        wanted: str | ObjectInfo,
        *,
        offset: int = 0,
        length: int | None = None,
        follow_links: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        for what, number in (("offset", offset), ("length", 0 if length is None else length)):
            if type(number) is not int or number < 0:
                raise errors.ConfigError(what, number, "must be a number of bytes, 0 or more")
        self._origin = self._index = index  # where the name was looked up, and where the object is
        self._wanted, self._follow_links = wanted, follow_links
        self._offset, self._length, self._timeout = offset, length, timeout
        self._info: ObjectInfo | None = None
        self._messages: Messages | None = None
        self._digest = sha256()
        self._whole = False  # the whole object is read, so the digest can be checked
        self._resumed_bytes = 0  # bytes from an earlier read, already in the digest
        self._bytes_left = 0  # bytes left to return
        self._skip_bytes = 0  # bytes to skip in the next chunk
        self._chunks_left = 0  # chunks left to receive
        self._is_exhausted = False  # the consumer reports too few pending chunks
        self._single_chunk: bytes | None = None  # the whole content, received and checked
        self._entered = False

    def _resume(self, offset: int, digest: Hash) -> None:
        """Continue an earlier read, before it is entered: ``digest`` covers the first ``offset`` bytes."""
        self._offset, self._digest = offset, digest
        self._resumed_bytes = offset

    @property
    def info(self) -> ObjectInfo:
        """The info of the object; for a link, of its target. LocalProtocolError before it is entered."""
        if self._info is None:
            raise errors.LocalProtocolError("enter the object first: async with store.get(name) as obj")
        return self._info

    async def __aenter__(self) -> ObjectReader:
        if self._entered:
            raise errors.LocalProtocolError("an object can be entered only once: get it again")
        self._entered = True
        if self._offset == 0 and self._length is None:
            found = await get_single_chunk(self._origin, self._wanted, self._timeout)
            if found is not None:
                self._info, self._single_chunk = found
                self._bytes_left = self._info.size
                return self
        again = MAX_READ_RESTARTS
        while True:
            self._index, self._info = await resolve(
                self._origin, self._wanted, self._timeout, follow_links=self._follow_links
            )
            try:
                await self._open(self._info)
                return self
            except errors.ObjectChanged:
                await self._end()
                again -= 1
                if isinstance(self._wanted, ObjectInfo) or again < 0:
                    raise
            except BaseException:
                await self._end()
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.info and self._bytes_left == 0:
            raise StopAsyncIteration
        if (content := self._single_chunk) is not None:
            self._single_chunk, self._bytes_left = None, 0
            return content
        while True:
            chunk = self._take(await self._next())
            if chunk:
                return chunk
            if self._bytes_left == 0:
                raise StopAsyncIteration

    # ---------------------------------------------------------------- chunks

    async def _open(self, info: ObjectInfo) -> None:
        """Find the first chunk and start a consumer there."""
        if self._offset > info.size:
            raise errors.ConfigError("offset", self._offset, f"is beyond the end of an object of {info.size} bytes")
        rest = info.size - self._offset
        self._bytes_left = rest if self._length is None else min(self._length, rest)
        self._whole = self._resumed_bytes + self._bytes_left == info.size
        if not digest_bytes(info) and info.size:
            error = errors.ObjectStoreError(f"object {info.name!r} has no digest: its content cannot be verified")
            self._index.notice(meta_subject(info.bucket, info.name), error)
        self._chunks_left = info.chunks
        if self._bytes_left == 0:
            if self._whole:
                self._chunks_left = 0
                self._check_whole()
            return
        if self._offset:
            await self._locate()
        else:
            await self._start()

    async def _start(self, sequence: int | None = None, *, headers_only: bool = False) -> None:
        """Start a consumer of the chunks from this sequence, or of their headers."""
        consumer = self._index.stream.ordered_consumer(
            filter_subject=self._subject, start_seq=sequence, headers_only=headers_only
        )
        ahead = (
            PREFETCH_CHUNKS if headers_only else max(1, min(PREFETCH_CHUNKS, PREFETCH_BYTES // self.info.chunk_size))
        )
        self._messages = consumer.messages(prefetch=ahead)
        self._messages._start()
        with bucket_errors(self._index.bucket):
            self._is_exhausted = (await consumer.wait_created()).num_pending < self._chunks_left
        if self._is_exhausted:
            await self._check_missing()

    async def _next(self) -> JsMessage:
        """Return the next chunk; raise the reason if there is none."""
        messages = self._messages
        if messages is None:
            raise errors.LocalProtocolError("an object is read inside its block: async with store.get(name) as obj")
        if self._chunks_left == 0:
            raise self._mismatch(f"{self._bytes_left} bytes are missing")
        if self._is_exhausted:
            await self._check_missing()
        while True:
            try:
                message = await messages.next(STALL_TIMEOUT_S)
                break
            except errors.RequestTimeout:
                await self._check_missing()
            except errors.SubscriptionClosed:
                raise self._index.api.connection._outbox.closed_error(f"get of object {self.info.name!r}") from None
            except errors.StreamNotFound as exc:
                raise errors.BucketNotFound(self._index.bucket) from exc
        self._chunks_left -= 1
        # With others in the buffer it is not the last one; metadata costs a tenth of the digest.
        self._is_exhausted = self._chunks_left > 0 and not messages.pending and message.metadata.num_pending == 0
        return message

    def _take(self, message: JsMessage) -> bytes:
        chunk = message.data
        if self._skip_bytes or len(chunk) > self._bytes_left:
            chunk = chunk[self._skip_bytes : self._skip_bytes + self._bytes_left]
            self._skip_bytes = 0
        self._bytes_left -= len(chunk)
        if self._whole:
            self._digest.update(chunk)
        if self._whole and (self._chunks_left == 0 or self._bytes_left == 0):
            self._check_whole()
        return chunk

    def _check_whole(self) -> None:
        info = self.info
        if self._bytes_left:
            raise self._mismatch(f"{self._bytes_left} bytes are missing")
        if self._chunks_left:
            raise self._mismatch(f"there are chunks after its {info.size} bytes")
        expected = digest_bytes(info)
        if expected and self._digest.digest() != expected:
            raise self._mismatch("")

    def _mismatch(self, reason: str) -> errors.DigestMismatch:
        info = self.info
        return errors.DigestMismatch(info.bucket, info.name, info.digest, digest_text(self._digest.digest()), reason)

    # ---------------------------------------------------------------- internals

    @property
    def _subject(self) -> str:
        return chunk_subject(self._index.bucket, self.info.nuid)

    async def _locate(self) -> None:
        """Start at the chunk with the first requested byte. It reads the sizes, since other clients may use any."""
        await self._start(headers_only=True)
        position = 0
        while True:
            message = await self._next()
            size = int(message.headers.last("Nats-Msg-Size", "0"))
            if position + size > self._offset:
                break
            position += size
        await self._end()
        self._skip_bytes = self._offset - position
        self._chunks_left += 1
        await self._start(message.metadata.stream_seq)

    async def _check_missing(self) -> None:
        """Raise the reason why the next chunk is missing; return if it will arrive, or if that is unknown now."""
        info, index = self.info, self._index
        for pause in (*LOOK_AGAIN_S, None):
            try:
                with bucket_errors(index.bucket):
                    held = await index.stream.info(subjects_filter=self._subject, timeout=self._timeout)
                there = held.state.subjects.get(self._subject, 0)
                if there >= info.chunks:
                    self._is_exhausted = False
                    return
                now = await index.find(info.name, timeout=index.api.seconds(self._timeout))
            except errors.NatsError as exc:
                if not is_transient(exc):
                    raise
                return
            if now is None or now.info.deleted or now.info.nuid != info.nuid:
                raise errors.ObjectChanged(info.bucket, info.name)
            if pause is None:
                raise self._mismatch(f"{there} of {info.chunks} chunks are there")
            await asyncio.sleep(pause)

    async def _end(self) -> None:
        messages, self._messages = self._messages, None
        self._single_chunk = None
        if messages is not None:
            await messages.stop()


# ---------------------------------------------------------------- whole objects


async def to_bytes(
    index: ObjectIndex,
    name: str | ObjectInfo,
    *,
    follow_links: bool,
    timeout: Duration | None,
    progress: ProgressCallback,
) -> bytes:
    """Return the content; start again when the object is replaced meanwhile."""
    for attempt in range(MAX_READ_RESTARTS + 1):
        buffer = BytesIO()  # grows in place, and gives its content away without a copy
        try:
            async with ObjectReader(index, name, follow_links=follow_links, timeout=timeout) as reader:
                chunks = 0
                async for chunk in reader:
                    buffer.write(chunk)
                    chunks += 1
                    if progress is not None:
                        progress(Progress(bytes=buffer.tell(), chunks=chunks, total=reader.info.size))
            return buffer.getvalue()
        except errors.ObjectChanged:
            if attempt == MAX_READ_RESTARTS or isinstance(name, ObjectInfo):
                raise
    raise AssertionError


async def to_file(
    index: ObjectIndex,
    name: str | ObjectInfo,
    path: str | os.PathLike[str],
    *,
    resume: bool,
    follow_links: bool,
    timeout: Duration | None,
    progress: ProgressCallback,
) -> ObjectInfo:
    """Write the content to a file; see ObjectStore.get_file."""
    target = Path(path)
    if await asyncio.to_thread(target.is_dir):
        raise IsADirectoryError(f"{target} is a directory: give the path of a file")
    for attempt in range(MAX_READ_RESTARTS + 1):
        store, info = await resolve(index, name, timeout, follow_links=follow_links)
        # What can be resumed is found by the version of the object that it is a part of.
        mark = info.nuid if resume else index.api.connection._runtime.new_id()
        partial = target.with_name(f"{target.name}.{mark}.partial")
        try:
            with _open_partial(partial, resume=resume) as file:
                await _write(ObjectReader(store, info, timeout=timeout), info.size, file, progress)
                await asyncio.to_thread(_sync, file)
            os.replace(partial, target)
            return info
        except BaseException as exc:
            if not resume or isinstance(exc, (errors.DigestMismatch, errors.ObjectChanged)):
                partial.unlink(missing_ok=True)
            if (
                not isinstance(exc, errors.ObjectChanged)
                or attempt == MAX_READ_RESTARTS
                or isinstance(name, ObjectInfo)
            ):
                raise
    raise AssertionError


def _open_partial(path: Path, *, resume: bool) -> BufferedRandom:
    """Create a file that is not there, or open it if ``resume``. OSError if it is a link: others may know its name."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_APPEND if resume else os.O_EXCL)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    opened = os.open(path, flags, 0o666)
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(opened)
        raise FileExistsError(errno.EEXIST, "is not a file of its own: delete it", str(path))
    return os.fdopen(opened, "r+b")


async def _write(reader: ObjectReader, total: int, file: BufferedRandom, progress: ProgressCallback) -> None:
    """Write the content of an object of ``total`` bytes to a file, which may have the beginning of it."""
    size = os.fstat(file.fileno()).st_size
    if size:
        size = min(size, total)
        await asyncio.to_thread(file.truncate, size)
        reader._resume(size, await asyncio.to_thread(file_digest, file, "sha256"))
        file.seek(0, os.SEEK_END)
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
            if progress is not None:
                progress(Progress(bytes=size + waiting, chunks=chunks, total=total))
    await asyncio.to_thread(file.writelines, pieces)


def _sync(file: BufferedRandom) -> None:
    file.flush()
    os.fsync(file.fileno())
