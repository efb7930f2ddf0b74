"""The index of a store: the infos of its objects, and their conditional changes.

Owns the replacement of an info (compare and set on its subject, so that concurrent changes are serialised) and the
purge of chunks that belong to no object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC
from typing import Any, NamedTuple, TypeVar

from natsproto._durations import positive_seconds
from natsproto.errors import (
    BucketNotFound,
    ConnectionClosed,
    ConnectionLost,
    JetStreamNotEnabled,
    JetStreamUnavailable,
    MessageNotFound,
    NatsError,
    NoStream,
    PermissionDenied,
    PublishUncertain,
    RequestTimeout,
    StreamNotFound,
    StreamProtected,
    WrongLastSequence,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._api_errors import bucket_errors
from natsproto.jetstream._codec import Duration, dumps
from natsproto.jetstream._config import OBJECT_STREAM
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._publish.publish import publish, wait_connected
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._stream import Stream
from natsproto.jetstream._timestamp import Timestamp
from natsproto.jetstream.objectstore._meta import ObjectInfo, chunk_subject, meta_subject, read_info

T = TypeVar("T")

log = logging.getLogger("natsproto")

MAX_UNCERTAIN_WRITES = 3
"""Retries of a change whose outcome is unknown."""
MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.1, 5.0
"""Seconds between two attempts to purge chunks: the shortest and the longest."""
REQUEST_TIMEOUT_S = 1.0
"""Seconds without a reply before a request is repeated."""
TRANSIENT_ERRORS = (ConnectionLost, JetStreamNotEnabled, JetStreamUnavailable, RequestTimeout)
"""Temporary errors, for example while a server restarts."""
_FINAL_ERRORS = (StreamNotFound, StreamProtected, PermissionDenied, ConnectionClosed)


class IndexEntry(NamedTuple):
    """An object's info and the sequence of its message."""

    info: ObjectInfo
    sequence: int


class ObjectIndex:
    """The infos of the objects of one store."""

    api: Api
    bucket: str
    stream: Stream

    def __init__(self, api: Api, bucket: str, stream: Stream) -> None:
        self.api, self.bucket, self.stream = api, bucket, stream

    def index_of(self, bucket: str) -> ObjectIndex:
        """Return the index of another store of this account, which may not exist."""
        return (
            self if bucket == self.bucket else ObjectIndex(self.api, bucket, Stream(self.api, OBJECT_STREAM + bucket))
        )

    def timeout_seconds(self, timeout: Duration | None) -> float:
        """Return a timeout in seconds, more than 0; the context's by default."""
        return self.api.timeout if timeout is None else positive_seconds("timeout", timeout)

    # ---------------------------------------------------------------- reading

    async def find(self, name: str, *, timeout: Duration | None = None) -> IndexEntry | None:
        """Find the info of an object, deleted or not.

        The leader is asked, and other servers only without permission for the leader: one that lags would return a
        version whose chunks are being purged.
        """
        try:
            with bucket_errors(self.bucket):
                found = await self._get_info_message(meta_subject(self.bucket, name), self.timeout_seconds(timeout))
        except MessageNotFound:
            return None
        return IndexEntry(read_info(found.data, found.time), found.seq)

    async def _get_info_message(self, subject: str, wait: float) -> RawMessage:
        """Repeat the request while there is no reply: a request during an election is dropped, and a long upload must
        not fail for that.
        """
        connection, loop = self.api.connection, asyncio.get_running_loop()
        deadline = loop.time() + wait
        direct = False
        while True:
            try:
                left = min(REQUEST_TIMEOUT_S, max(0.01, deadline - loop.time()))
                return await self.stream.get_last_message(subject, direct=direct, timeout=left)
            except PermissionDenied:
                if direct:
                    raise
                direct = True
                continue
            except TRANSIENT_ERRORS:
                if loop.time() + MIN_RETRY_PAUSE_S >= deadline:
                    raise
            await wait_connected(connection, deadline)
            await asyncio.sleep(MIN_RETRY_PAUSE_S)

    async def translate_error(self, error: NatsError) -> NatsError:
        """Return BucketNotFound instead of a publisher's error if the stream is gone."""
        if isinstance(error, (NoStream, PublishUncertain, RequestTimeout)) and self.api.connection.is_connected:
            try:
                await self.stream.info(timeout=REQUEST_TIMEOUT_S)
            except StreamNotFound:
                return BucketNotFound(self.bucket)
            except NatsError:
                pass  # unknown
        return error

    # ---------------------------------------------------------------- changing

    async def change(
        self,
        name: str,
        update: Callable[[IndexEntry | None], ObjectInfo | None],
        *,
        timeout: Duration | None = None,
    ) -> tuple[IndexEntry | None, IndexEntry]:
        """Replace the info of an object by the result of ``update``; return the old and the new entry.

        ``update`` is called again after a concurrent change, and may raise; None changes nothing. PublishUncertain when
        the outcome is unknown. BucketNotFound.
        """
        wait = self.timeout_seconds(timeout)
        before = await self.find(name, timeout=timeout)
        uncertain_writes = 0
        while True:
            new = update(before)
            if new is None:
                assert before is not None
                return before, before
            try:
                return before, await self._publish(name, new, before.sequence if before else 0, wait)
            except WrongLastSequence:
                pass
            except NoStream as exc:
                if (error := await self.translate_error(exc)) is exc:
                    raise
                raise error from exc
            except PublishUncertain:
                uncertain_writes += 1
                if uncertain_writes > MAX_UNCERTAIN_WRITES:
                    raise
            now = await self.find(name, timeout=timeout)
            if now is not None and now.info.replace(mtime=new.mtime) == new:
                return before, now  # it was stored; only the reply was lost
            before = now

    async def _publish(self, name: str, info: ObjectInfo, expected: int, wait: float) -> IndexEntry:
        ack = await publish(
            self.api.connection,
            meta_subject(self.bucket, name),
            dumps(info),
            None,
            {"msg_id": self.api.connection._new_id(), "rollup": "sub", "expected_last_subject_seq": expected},
            timeout=wait,
            retry_attempts=RETRY_ATTEMPTS,
            retry_wait=RETRY_WAIT_S,
        )
        return IndexEntry(info.replace(mtime=Timestamp.now(UTC)), ack.seq)

    async def purge_info(self, name: str, sequence: int, *, timeout: Duration | None = None) -> None:
        """Purge the info with this sequence and older ones."""
        with bucket_errors(self.bucket):
            await self.stream.purge(subject=meta_subject(self.bucket, name), sequence=sequence + 1, timeout=timeout)

    async def run_shielded(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step to its end, even if the caller is cancelled; the closing of the client waits for it as well.

        ConnectionClosed when that takes too long.
        """
        connection = self.api.connection
        task = connection._start_cleanup(step)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(self._log_bug)
            raise
        if task.cancelled():
            raise connection._outbox.closed_error(f"object store {self.bucket!r}")
        return task.result()

    def _log_bug(self, task: asyncio.Task[Any]) -> None:
        """Log the error of a step whose caller was cancelled, unless it is one of those that every call has."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NatsError):
            log.error("object store %r: a step in the background failed: %r", self.bucket, error, exc_info=error)

    # ---------------------------------------------------------------- chunks

    async def purge_chunks(self, nuid: str, *, settled: bool = True) -> None:
        """Purge the chunks of an object that no longer has an info.

        Returns when that is done, after the context's timeout, or at once without a connection; it continues in the
        background until it is done, the server rejects it, or the client is closed, which waits for it for a while.
        Cancelling ends only the wait.
        ``settled``: no chunk can still be in flight.
        """
        task = self.api.connection._start_cleanup(self._purge_chunks(nuid, settled))
        if self.api.connection.is_connected:
            await asyncio.wait({task}, timeout=self.api.timeout)

    async def _purge_chunks(self, nuid: str, settled: bool) -> None:
        subject = chunk_subject(self.bucket, nuid)
        pause = MIN_RETRY_PAUSE_S
        while True:
            try:
                if not settled:
                    await self.api.connection.flush()
                while await self.stream.purge(subject=subject, timeout=REQUEST_TIMEOUT_S) and not settled:
                    pass
                return
            except _FINAL_ERRORS:
                return
            except NatsError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_PAUSE_S)
