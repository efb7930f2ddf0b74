"""Putting: the source of an object is cut into chunks of one size, which are stored.

Owns the cutting and keeps blocking reads off the event loop. Owns the choice of the publisher, the order of the chunks,
and their removal after a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import stat
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from natsproto import errors
from natsproto.errors._jetstream import with_advice
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.fast.fast_batch import FAST_API_LEVEL, MAX_FLOW, FastPublisher
from natsproto.jetstream._publish.fast.fast_batch_state import FastOptions
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._publish.outcome import Change
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._publish.publish_window import PublisherOptions
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.retry_policy import RETRY_WAIT_S, UNTIL_TIMEOUT
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._values.error_codes import ErrCode, bucket_errors
from natsproto.jetstream._values.record import changed
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import ObjectInfo, chunk_subject, digest_text

READ_BYTES = 2 * 2**20
"""Bytes of one blocking read. A larger value needs fewer switches of threads, each as expensive as the digest of 128
KiB.
"""
MAX_PENDING_BYTES = 8 * 2**20
"""Bytes that may be unacknowledged."""
MAX_PENDING_CHUNKS = 1000
ACKS_PER_WINDOW = 4
"""Acknowledgements of fast ingest for one window."""
SETTLE_TIMEOUT_S = 2.0
"""Seconds that a failed upload waits for the acknowledgements of sent chunks."""


class BinaryReader(Protocol):
    """A binary file, or any object that is read like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        ...


ObjectContent: TypeAlias = (
    bytes
    | bytearray
    | memoryview
    | os.PathLike[str]
    | BinaryReader
    | Iterable[bytes | bytearray | memoryview]
    | AsyncIterable[bytes | bytearray | memoryview]
)
"""The types that can be put into a store. A binary file is read from its position and not closed."""

Update: TypeAlias = Callable[[bytes], object]
"""Called with every chunk in order: the update of a digest."""


class Content:
    """The content of a new object, read once: ``batches`` yields lists of chunks; ``update`` is called with each.

    ``total`` is its size in bytes, 0 when it is unknown.
    """

    def __init__(self, source: ObjectContent, chunk_size: int, update: Update) -> None:
        """Check the type of the source (TypeError); nothing is opened or read yet."""
        if isinstance(source, (str, io.TextIOBase)):
            raise TypeError("an object consists of bytes: encode text, open files in binary mode, wrap paths in Path()")
        self._size, self._update = chunk_size, update
        self.total = 0
        self.batches = self._of(source)

    def _of(self, source: object) -> AsyncGenerator[list[bytes]]:
        if isinstance(source, (bytes, bytearray, memoryview)):
            # A view of what may change is copied here; of bytes nothing is.
            held = source if isinstance(source, bytes) else bytes(source)
            self.total = len(held)
            return self._of_bytes(held)
        if isinstance(source, os.PathLike):
            path = Path(source)
            return self._of_file(lambda: cast("AbstractContextManager[BinaryReader]", path.open("rb")))
        read = getattr(source, "read", None)
        if inspect.iscoroutinefunction(read):
            return self._of_iterable(_reading(cast("Callable[[int], Awaitable[object]]", read)))
        if callable(read):
            return self._of_file(lambda: nullcontext(cast(BinaryReader, source)))
        if isinstance(source, AsyncIterable):
            return self._of_iterable(source)
        if isinstance(source, Iterable):
            return self._of_iterable(_each(source))
        raise TypeError(
            "an object is put from bytes, a path, a binary file or an iterable of bytes, "
            f"not from {type(source).__name__}"
        )

    # ---------------------------------------------------------------- bytes and files

    async def _of_bytes(self, data: bytes) -> AsyncGenerator[list[bytes]]:
        """Without a thread, which took 20 % more processor time and was no faster: sending suspends often enough."""
        for start in range(0, len(data), self._size):
            chunk = data[start : start + self._size]
            self._update(chunk)
            yield [chunk]

    async def _of_file(self, opened: Callable[[], AbstractContextManager[BinaryReader]]) -> AsyncGenerator[list[bytes]]:
        """Read in a thread, the next piece while the last one is sent; the digest is made there too."""
        loop = asyncio.get_running_loop()
        with opened() as file:
            self.total = _size_of(file)
            pending = loop.run_in_executor(None, self._read, file)
            try:
                while chunks := await pending:
                    pending = loop.run_in_executor(None, self._read, file)
                    yield chunks
            finally:
                pending.cancel()

    def _read(self, file: BinaryReader) -> list[bytes]:
        size, update = self._size, self._update
        chunks: list[bytes] = []
        for _ in range(max(1, READ_BYTES // size)):
            chunk = _read_chunk(file, size)
            if chunk:
                update(chunk)
                chunks.append(chunk)
            if len(chunk) < size:
                break
        return chunks

    # ---------------------------------------------------------------- iterables

    async def _of_iterable(self, pieces: AsyncIterable[object]) -> AsyncGenerator[list[bytes]]:
        """Yield chunks from pieces of any sizes. Pieces are copied, since the iterable may reuse their buffers."""
        size, update = self._size, self._update
        rest = bytearray()
        async for piece in pieces:
            if type(piece) is bytes and len(piece) == size and not rest:
                update(piece)
                yield [piece]
                continue
            view = _view(piece)
            start = 0
            if rest:
                start = size - len(rest)
                rest += view[:start]
                if len(rest) < size:
                    continue
                chunk = bytes(rest)
                rest.clear()
                update(chunk)
                yield [chunk]
            for end in range(start + size, len(view) + 1, size):
                chunk = bytes(view[end - size : end])
                start = end
                update(chunk)
                yield [chunk]
            rest += view[start:]
        if rest:
            chunk = bytes(rest)
            update(chunk)
            yield [chunk]


def _view(piece: object) -> memoryview:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"an object consists of bytes: the source returned the type {type(piece).__name__}")
    return memoryview(piece).cast("B")


def _read_chunk(file: BinaryReader, size: int) -> bytes:
    """Read ``size`` bytes, or less at the end; a raw file or a pipe may return less at once."""
    got: object = file.read(size)  # a caller's read() may return anything
    chunk = got if isinstance(got, bytes) else bytes(_view(got))
    while 0 < len(chunk) < size and (more := file.read(size - len(chunk))):
        chunk += more
    return chunk


def _size_of(file: BinaryReader) -> int:
    """The bytes left in a regular file; 0 for everything else."""
    try:
        status = os.fstat(file.fileno())  # type: ignore[attr-defined]
        return max(0, status.st_size - file.tell()) if stat.S_ISREG(status.st_mode) else 0  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return 0


async def _each(pieces: Iterable[object]) -> AsyncGenerator[object]:
    for piece in pieces:
        yield piece


async def _reading(read: Callable[[int], Awaitable[object]]) -> AsyncGenerator[object]:
    """Read from an object with an async ``read``: asyncio.StreamReader, the files of aiofiles …"""
    while piece := await read(READ_BYTES):
        yield piece


# ---------------------------------------------------------------- storing


_NOT_PUBLISHED = Change("object").not_stored(errors.NatsError("the info of the object was not published"))
"""The proof that chunks of an object that was not completed may be purged."""


class Upload:
    """The upload of one object; ``info`` lacks its size and digest."""

    def __init__(
        self,
        index: ObjectIndex,
        info: ObjectInfo,
        source: ObjectContent,
        *,
        batched: bool,
        progress: Callable[[Progress], object] | None,
        timeout: float,
    ) -> None:
        self._index, self._info = index, info
        self._subject, self._chunk_size = chunk_subject(info.bucket, info.nuid), info.chunk_size
        self._digest = sha256()
        self._content = Content(source, self._chunk_size, self._digest.update)
        connection = index.api.connection
        self.batched = batched and connection.server_info.api_lvl >= FAST_API_LEVEL
        """True if the store allows fast ingest, as far as is known."""
        self._progress, self._timeout = progress, timeout
        self._max_pending = max(1, min(MAX_PENDING_CHUNKS, MAX_PENDING_BYTES // self._chunk_size))
        self._unordered: deque[tuple[AckFuture, bytes]] = deque()  # chunks of which the place is not known
        self._last_sequence = 0  # sequence of the last chunk before them
        self._batch: list[bytes] = []  # the chunks that are being sent
        self._size = self._chunks = 0

    async def run(self) -> ObjectInfo:
        """Store the chunks and return the info of the object, which is not published yet.

        After any failure, and after cancelling, the chunks are removed.
        """
        try:
            async with aclosing(self._content.batches) as batches:
                try:
                    self._batch = await anext(batches, [])
                    if len(self._batch) == 1 and len(self._batch[0]) < self._chunk_size:
                        await self._store_single(self._batch[0])
                    else:
                        await self._store(batches)
                except errors.BatchRefused as exc:
                    if self._chunks > 1 or exc.err_code != ErrCode.BATCH_PUBLISH_DISABLED:
                        raise
                    self.batched = False  # the store has been changed: nothing was taken yet
                    self._chunks = self._size = 0
                    await self._store(batches)
            digest = digest_text(self._digest.digest())
            return changed(self._info, {"size": self._size, "chunks": self._chunks, "digest": digest})
        except BaseException as exc:
            if self._chunks:
                await self._index.purge_chunks(self._info.nuid, _NOT_PUBLISHED, settled=False)
            failed = exc.failures[0].error if isinstance(exc, errors.PublishFailed) else exc
            if (
                isinstance(failed, errors.NatsError)
                and (error := await self._index.translate_error(failed)) is not failed
            ):
                raise error from exc
            if isinstance(failed, errors.PublishUncertain):
                failed = with_advice(failed, "the object is not finished: put it again")
            elif isinstance(failed, errors.RequestTimeout):
                what = f"put of object {self._info.name!r}, which is not finished"
                failed = errors.RequestTimeout(what, failed.timeout, disconnected=failed.disconnected)
            if failed is exc:
                raise
        raise failed  # not from PublishFailed, of which it is the cause already

    async def _store_single(self, chunk: bytes) -> None:
        """Store the only chunk, without a window.

        If it may be in flight afterwards, it is sent again: the acknowledgement proves that it can be purged.
        """
        self._chunks, self._size = 1, len(chunk)
        api = self._index.api
        args: MessageArgs = {"msg_id": self._info.nuid}
        send = partial(
            publish,
            api,
            self._subject,
            chunk,
            None,
            args,
            retry_attempts=UNTIL_TIMEOUT,
            await_leader=self._index.await_leader,
            encoded=self._subject.encode(),
        )
        try:
            await send(timeout=self._timeout)
        except (asyncio.CancelledError, errors.PublishUncertain):
            if api.connection.is_connected:
                with suppress(errors.NatsError):
                    await send(timeout=SETTLE_TIMEOUT_S)
            raise
        self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(Progress(bytes=self._size, chunks=self._chunks, total=self._content.total))

    async def _store(self, batches: AsyncGenerator[list[bytes]]) -> None:
        async with self._publisher() as publisher:
            try:
                while self._batch:
                    await self._send(publisher, self._batch)
                    self._batch = await anext(batches, [])
                await self._wait_in_order(publisher)
            except BaseException:
                await self._settle(publisher)
                raise

    async def _send(self, publisher: FastPublisher | Publisher, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._chunks += 1
            await self._publish(publisher, chunk)
            self._size += len(chunk)
            while not self._is_in_order():
                await self._restore_order(publisher)
            self._report_progress()

    async def _publish(self, publisher: FastPublisher | Publisher, chunk: bytes) -> None:
        ack = await publisher.publish(self._subject, chunk)
        if isinstance(ack, AckFuture):  # fast ingest keeps the order itself
            self._unordered.append((ack, chunk))
            if len(self._unordered) > 2 * self._max_pending:
                await self._unordered[0][0]

    async def _wait_in_order(self, publisher: FastPublisher | Publisher) -> None:
        """Wait until all chunks are stored, in their order."""
        await publisher.flush()
        while not self._is_in_order():
            await self._restore_order(publisher)
            await publisher.flush()

    def _is_in_order(self) -> bool:
        """True if the chunks acknowledged so far follow each other in the stream."""
        unproven = self._unordered
        while unproven and unproven[0][0].done():
            sequence = unproven[0][0].result().seq
            if sequence <= self._last_sequence:
                return False
            self._last_sequence = sequence
            unproven.popleft()
        return True

    async def _restore_order(self, publisher: FastPublisher | Publisher) -> None:
        """Store the chunks from the first misplaced one again, after those in order.

        A chunk that is lost during a change of leader is sent again, and is stored after later ones. A window of
        messages cannot express their order to the stream.
        """
        await publisher.flush()
        misplaced, self._unordered = self._unordered, deque()
        stream = self._index.stream
        for ack, _ in misplaced:
            try:
                with bucket_errors(self._index.bucket):
                    await stream.delete_message(ack.result().seq, timeout=self._timeout)
            except errors.MessageNotFound:
                pass
        for _, chunk in misplaced:
            await self._publish(publisher, chunk)

    def _publisher(self) -> FastPublisher | Publisher:
        """Return the fastest publisher that the stream allows. Every chunk has an id, so that it can be sent again."""
        connection = self._index.api.connection
        if self.batched:
            options = FastOptions(
                gap_ok=False,
                flow=min(MAX_FLOW, max(1, self._max_pending // ACKS_PER_WINDOW)),
                outstanding=ACKS_PER_WINDOW,
                max_pending_bytes=MAX_PENDING_BYTES
                + self._chunk_size,  # so that an acknowledgement makes room, not an end
                timeout=self._timeout,
                retry_attempts=UNTIL_TIMEOUT,
                retry_wait=RETRY_WAIT_S,
            )
            return FastPublisher(connection, options, auto_msg_id=True)
        window = self._max_pending, MAX_PENDING_BYTES
        limits = PublisherOptions(*window, self._timeout, UNTIL_TIMEOUT, RETRY_WAIT_S, self._index.api)
        return Publisher(connection, limits, auto_msg_id=True)

    async def _settle(self, publisher: FastPublisher | Publisher) -> None:
        """Wait until no chunk is in flight, so that none is stored after the purge."""
        if not self._index.api.connection.is_connected:
            return
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await publisher.flush()
        except (errors.NatsError, TimeoutError):
            return
