"""Uploading the content of an object as chunks to the stream.

Owns the choice of the publisher, the order of the chunks, and their removal after a failure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import sha256

from natsproto.errors import BatchRefused, MessageNotFound, NatsError, PublishFailed
from natsproto.jetstream._api_errors import ErrCode, bucket_errors
from natsproto.jetstream._backup import Progress
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.fast_batch import FAST_API_LEVEL, MAX_FLOW, FastPublisher
from natsproto.jetstream._publish.fast_batch_state import FastOptions
from natsproto.jetstream._publish.publish_window import PublisherOptions
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream.objectstore._content import ContentReader, ObjectContent
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import ObjectInfo, chunk_subject, digest_text

MAX_PENDING_BYTES = 8 * 2**20
"""Bytes that may be unacknowledged."""
MAX_PENDING_CHUNKS = 1000
ACKS_PER_WINDOW = 4
"""Acknowledgements of fast ingest for one window."""
SETTLE_TIMEOUT_S = 2.0
"""Seconds that a failed upload waits for the acknowledgements of sent chunks."""


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
        self._subject = chunk_subject(info.bucket, info.nuid)
        self._digest = sha256()
        self._content = ContentReader(source, info.chunk_size, self._digest.update)
        connection = index.api.connection
        self.batched = batched and connection.server_info.api_lvl >= FAST_API_LEVEL
        """True if the store allows fast ingest, as far as is known."""
        self._progress, self._timeout = progress, timeout
        self._max_pending = max(1, min(MAX_PENDING_CHUNKS, MAX_PENDING_BYTES // info.chunk_size))
        self._unordered: deque[tuple[AckFuture, bytes]] = deque()  # chunks of which the place is not known
        self._last_sequence = 0  # sequence of the last chunk before them
        self._batch: list[bytes] = []  # the chunks that are being sent
        self._size = self._chunks = 0

    async def run(self) -> ObjectInfo:
        """Store the chunks and return the info of the object, which is not published yet.

        After any failure, and after cancelling, the chunks are removed.
        """
        try:
            async with aclosing(aiter(self._content)) as pieces:
                try:
                    await self._store(pieces)
                except BatchRefused as exc:
                    if self._chunks > 1 or exc.err_code != ErrCode.BATCH_PUBLISH_DISABLED:
                        raise
                    self.batched = False  # the store has been changed: nothing was taken yet
                    self._chunks = self._size = 0
                    await self._store(pieces)
            return self._info.replace(size=self._size, chunks=self._chunks, digest=digest_text(self._digest.digest()))
        except BaseException as exc:
            if self._chunks:
                await self._index.purge_chunks(self._info.nuid, settled=False)
            failed = exc.failures[0].error if isinstance(exc, PublishFailed) else exc
            if isinstance(failed, NatsError) and (error := await self._index.translate_error(failed)) is not failed:
                raise error from exc
            if failed is exc:
                raise
        raise failed  # not from PublishFailed, of which it is the cause already

    async def _store(self, pieces: AsyncGenerator[list[bytes]]) -> None:
        async with self._publisher() as publisher:
            try:
                self._batch = self._batch or await anext(pieces, [])
                while self._batch:
                    await self._send(publisher, self._batch)
                    self._batch = await anext(pieces, [])
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
            if self._progress is not None:
                self._progress(Progress(bytes=self._size, chunks=self._chunks, total=self._content.total))

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
            except MessageNotFound:
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
                + self._info.chunk_size,  # so that an acknowledgement makes room, not an end
                timeout=self._timeout,
                retry_attempts=RETRY_ATTEMPTS,
                retry_wait=RETRY_WAIT_S,
            )
            return FastPublisher(connection, options, auto_msg_id=True)
        limits = PublisherOptions(self._max_pending, MAX_PENDING_BYTES, self._timeout, RETRY_ATTEMPTS, RETRY_WAIT_S)
        return Publisher(connection, limits, auto_msg_id=True)

    async def _settle(self, publisher: FastPublisher | Publisher) -> None:
        """Wait until no chunk is in flight, so that none is stored after the purge."""
        if not self._index.api.connection.is_connected:
            return
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await publisher.flush()
        except (NatsError, TimeoutError):
            return
