"""The index of a store: the infos of its objects, and their conditional changes.

Owns the replacement of an info (compare and set on its subject, so that concurrent changes are serialised), the purge
of chunks that belong to no object, and the proof that no object uses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from datetime import UTC
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto._core.events import Event
from natsproto.errors._base import is_transient
from natsproto.errors._jetstream import with_advice
from natsproto.jetstream._api.requests import LEAST_TIMEOUT_S, Api
from natsproto.jetstream._publish.outcome import Change, NotStored, Stored
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._stream.direct_get import LastGet, RawMessage, leader_get
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.bucket_config import OBJECT_STREAM
from natsproto.jetstream._values.codec import NEVER, Duration, dumps
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream._values.info import PubAck, StreamInfo
from natsproto.jetstream._values.record import changed
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.objectstore._meta import (
    ObjectInfo,
    all_chunk_subjects,
    all_meta_subjects,
    check_object_name,
    chunk_subject,
    is_own_nuid,
    meta_subject,
    read_info,
)
from natsproto.protocol.subject import is_literal

T = TypeVar("T")

log = logging.getLogger("natsproto")

MAX_UNCERTAIN_WRITES = 3
"""Retries of a change whose outcome is unknown."""
MAX_OWN_CHANGES = 1000
"""The most names of which an index knows that it has changed them: older changes have long reached all servers."""
MIN_RETRY_PAUSE_S, MAX_STEP_PAUSE_S = 0.1, 5.0
"""Seconds between two attempts to purge chunks: the shortest and the longest."""
LAG_TIMEOUT_S = 5.0
"""Seconds in which all entries are read again until a server has the last change."""
MAX_CHUNKS_PER_PULL = 1000
"""Chunks whose headers are requested at a time."""
RENAMED_HEADER = "Natsproto-Renamed"
"""Header of the info of an object that gets another name: a client may end between the steps of a rename."""
REQUEST_TIMEOUT_S = 1.0
"""Seconds without a reply before a request is repeated."""
_FINAL_ERRORS = (errors.StreamNotFound, errors.StreamProtected, errors.PermissionDenied, errors.ConnectionClosed)


class ObjectStoreNotice(Event):
    """An entry of an object store that cannot be read and was skipped, or an object without a digest to verify.

    ``subject`` is that of the entry.
    """

    bucket: str
    subject: str
    error: errors.NatsError
    """InvalidReply for an entry that cannot be read; DigestMismatch without a digest."""

    level = logging.WARNING
    line = "object store %(bucket)s: %(error)s"
    pause: ClassVar[float] = 1.0


class IndexEntry(NamedTuple):
    """An object's info and the sequence of its message."""

    info: ObjectInfo
    sequence: int
    is_renamed: bool = False
    """The object gets, or has got, another name: the entry of that name may own the chunks."""

    @property
    def proof(self) -> Stored:
        """The proof that this entry is stored."""
        return Stored(PubAck(stream="", seq=self.sequence))


class Orphans(NamedTuple):
    """Chunks that belong to no object: subjects that can be purged, and the sequences of messages on other ones."""

    subjects: list[str]
    sequences: list[int]


class ObjectIndex:
    """The infos of the objects of one store."""

    api: Api
    bucket: str
    stream: Stream

    def __init__(self, api: Api, bucket: str, info: StreamInfo | None = None) -> None:
        self.api, self.bucket = api, bucket
        self.stream = Stream(api, OBJECT_STREAM + bucket, info)
        self._own_changes: dict[str, int] = {}  # the sequences of the last ones, by name

    def index_of(self, bucket: str) -> ObjectIndex:
        """Return the index of another store of this account, which may not exist."""
        return self if bucket == self.bucket else ObjectIndex(self.api, bucket)

    # ---------------------------------------------------------------- reading

    async def find(self, name: str, *, timeout: float) -> IndexEntry | None:
        """Find the info of an object, deleted or not. ``timeout`` in checked seconds.

        The leader is asked, and other servers only without permission for the leader: one that lags would return a
        version whose chunks are being purged. The request is repeated while there is no reply: a request during an
        election is dropped, and a long upload must not fail for that.
        """
        subject = meta_subject(self.bucket, name)
        deadline, backoff = Deadline(timeout), Backoff(MIN_RETRY_PAUSE_S, REQUEST_TIMEOUT_S)
        operation = f"info of object {name!r}"
        direct = False
        while True:
            try:
                left = min(REQUEST_TIMEOUT_S, max(0.01, deadline.left))
                if direct:
                    found = await self.get_directly(subject, left)
                else:
                    body = {"last_by_subj": subject}
                    found = await leader_get(self.api, self.stream.name, body, operation=operation, timeout=left)
                info = read_info(self.bucket, found.subject, found.seq, found.data, found.time)
                return IndexEntry(info, found.seq, found.has_headers and found.headers.last(RENAMED_HEADER) == "1")
            except errors.MessageNotFound:
                return None
            except errors.StreamNotFound as exc:
                raise errors.BucketNotFound(self.bucket) from exc
            except errors.PermissionDenied:
                if direct:
                    raise
                direct = True
                continue
            except errors.NatsError as exc:
                if not is_transient(exc):
                    raise
                await self.api.connection._outages.wait_connected(deadline.at)
                if not await backoff.pause(deadline):
                    raise

    async def get_info(self, name: str, *, deleted: bool = False, timeout: Duration | None = None) -> ObjectInfo:
        """Return the info of an object. ObjectNotFound, also for a deleted object, unless ``deleted``."""
        found = await self.find(name, timeout=self.api.seconds(timeout))
        if found is None or (found.info.deleted and not deleted):
            raise errors.ObjectNotFound(self.bucket, name)
        return found.info

    async def find_directly(self, name: str, timeout: Duration | None) -> ObjectInfo | None:
        """Get the info of an object from any server; None if it is older than a change made with this index.

        A request may be dropped: TimeoutError after REQUEST_TIMEOUT_S, so that the leader can be asked.
        """
        subject = meta_subject(self.bucket, check_object_name(name))
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            found = await self.get_directly(subject, timeout)
        if found.seq < self._own_changes.get(name, 0):
            return None
        return read_info(self.bucket, found.subject, found.seq, found.data, found.time)

    async def get_directly(self, subject: str, timeout: Duration | None) -> RawMessage:
        """Get the newest message on a subject from any server."""
        get = LastGet(self.api, self.stream.name, subject)
        try:
            return get.read(await get.request(timeout))
        except errors.NoResponders:  # not allowed, or no stream: the leader's reply shows which
            return await self.stream.get_last_message(subject, timeout=timeout)

    async def infos(
        self, *, direct: bool = True, skip: bool = False, timeout: Duration | None
    ) -> AsyncGenerator[ObjectInfo]:
        """Yield all infos in the order of the stream, from any server if ``direct``.

        For an info that cannot be read, InvalidReply, or with ``skip`` an event.
        """
        stored = self.stream.get_batch(subject=all_meta_subjects(self.bucket), direct=direct, timeout=timeout)
        async with aclosing(stored.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    try:
                        yield read_info(self.bucket, message.subject, message.seq, message.data, message.time)
                    except errors.InvalidReply as exc:
                        if not skip:
                            raise
                        self.notice(message.subject, exc)

    def notice(self, subject: str, error: errors.NatsError) -> None:
        """Emit an ObjectStoreNotice."""
        self.api.connection._event_bus.emit(ObjectStoreNotice(bucket=self.bucket, subject=subject, error=error))

    async def translate_error(self, error: errors.NatsError) -> errors.NatsError:
        """Return BucketNotFound instead of a publisher's error if the stream is gone. Without a leader it exists, but
        is unavailable.
        """
        if is_transient(error) and self.api.connection.is_connected:
            try:
                await self.stream.info(timeout=REQUEST_TIMEOUT_S)
            except errors.StreamNotFound:
                return errors.BucketNotFound(self.bucket)
            except errors.NatsError:
                pass  # unknown
        if isinstance(error, errors.NoStream) and not isinstance(error, errors.StreamUnavailable):
            return errors.StreamUnavailable(f"object store {self.bucket!r}", error.subject, error.waited)
        return error

    # ---------------------------------------------------------------- changing

    async def put(self, made: ObjectInfo, early: asyncio.Task[IndexEntry | None], *, timeout: float) -> ObjectInfo:
        """Publish the info of new content, and purge the chunks of the old content; those of the new if it is not
        stored. ``early`` is a look-up that began before; one that has failed already is repeated. Raises the errors of
        ``change``.
        """
        deadline, change = Deadline(timeout), Change(f"object {made.name!r}")
        try:
            with change:
                has_failed = early.done() and early.exception() is not None
                before = await (self.find(made.name, timeout=timeout) if has_failed else early)
                before, now = await self._replace(made.name, before, lambda _: made, deadline, change)
        except errors.PublishUncertain:
            self.complete_later(partial(self._settle_put, made, early))  # it may be there, so its chunks must be too
            raise
        except errors.NatsError as exc:
            await self.purge_chunks(made.nuid, change.not_stored(exc))
            raise
        if before is not None and before.info.chunks:
            await self.purge_content(before, now)
        return now.info

    async def _settle_put(self, made: ObjectInfo, early: asyncio.Task[IndexEntry | None]) -> None:
        """Purge the old chunks if the new content is found. That it is not found proves nothing.

        ``early`` is older than the attempt to publish: the old content may have got another name since.
        """
        before = early.result() if not early.cancelled() and early.exception() is None else None
        now = await self.find(made.name, timeout=self.api.timeout)
        if before is not None and now is not None and before.info.chunks and now.info.nuid != before.info.nuid:
            await self.purge_content(before._replace(is_renamed=True), now)

    async def change(
        self,
        name: str,
        update: Callable[[IndexEntry | None], ObjectInfo | None],
        *,
        timeout: float,
        is_renamed: bool = False,
    ) -> tuple[IndexEntry | None, IndexEntry]:
        """Replace the info of an object by the result of ``update``; return the old and the new entry.

        ``update`` is called again after a concurrent change, and may raise; None changes nothing. ``is_renamed`` marks
        the entry as that of an object that gets another name. ``timeout`` in checked seconds. PublishUncertain when the
        outcome is unknown. BucketNotFound.
        """
        deadline = Deadline(timeout)
        with Change(f"object {name!r}") as change:
            before = await self.find(name, timeout=timeout)
            return await self._replace(name, before, update, deadline, change, is_renamed=is_renamed)

    async def _replace(
        self,
        name: str,
        before: IndexEntry | None,
        update: Callable[[IndexEntry | None], ObjectInfo | None],
        deadline: Deadline,
        change: Change,
        *,
        is_renamed: bool = False,
    ) -> tuple[IndexEntry | None, IndexEntry]:
        """``change`` of the entry that was found, within the ``change``."""
        uncertain: errors.PublishUncertain | None = None
        uncertain_writes = 0
        while True:
            new = update(before)
            if new is None:
                assert before is not None
                return before, before
            is_marked = is_renamed or (before is not None and before.is_renamed and before.info.nuid == new.nuid)
            expected = before.sequence if before else 0
            try:
                return before, self._noted(await self._publish(name, new, expected, deadline, change, is_marked))
            except errors.WrongLastSequence:
                pass
            except errors.PublishUncertain as exc:
                uncertain = exc
                uncertain_writes += 1
                if uncertain_writes > MAX_UNCERTAIN_WRITES:
                    raise
            now = await self.find(name, timeout=max(deadline.left, LEAST_TIMEOUT_S))
            if now is not None and changed(now.info, {"mtime": new.mtime}) == new and now.is_renamed == is_marked:
                return before, self._noted(now)  # it was stored; only the reply was lost
            if uncertain is not None and expected != (now.sequence if now else 0):
                raise uncertain  # it may have been stored and replaced by another client, which purged its chunks
            before = now

    def _noted(self, entry: IndexEntry) -> IndexEntry:
        """Remember an own change, so that older infos from servers that lag are not taken for current."""
        own = self._own_changes
        own.pop(entry.info.name, None)
        own[entry.info.name] = entry.sequence
        if len(own) > MAX_OWN_CHANGES:
            del own[next(iter(own))]
        return entry

    async def _publish(
        self, name: str, info: ObjectInfo, expected: int, deadline: Deadline, change: Change, is_renamed: bool
    ) -> IndexEntry:
        subject = meta_subject(self.bucket, name)
        try:
            ack = await publish(
                self.api,
                subject,
                dumps(info),
                {RENAMED_HEADER: "1"} if is_renamed else None,
                {
                    "msg_id": self.api.connection._runtime.new_id(),
                    "rollup": "sub",
                    "expected_last_subject_seq": expected,
                },
                timeout=max(deadline.left, LEAST_TIMEOUT_S),
                await_leader=self.await_leader,
                change=change,
                encoded=subject.encode(),
            )
        except errors.NoStream as exc:
            raise errors.StreamUnavailable(f"object store {self.bucket!r}", subject, deadline.seconds) from exc
        except errors.PublishUncertain as exc:
            advice = "read the info of the object, and repeat the call if it does not show the change"
            raise with_advice(exc, advice, f"info of object {name!r} of store {self.bucket!r}") from exc.__cause__
        return IndexEntry(changed(info, {"mtime": Timestamp.now(UTC)}), ack.seq, is_renamed)

    async def await_leader(self, seconds: float) -> None:
        """Wait up to ``seconds`` for an answer of the store's leader. BucketNotFound."""
        try:
            await self.stream.info(timeout=seconds)
        except errors.StreamNotFound as exc:
            raise errors.BucketNotFound(self.bucket) from exc
        except errors.NatsError:
            return  # there may be an election

    async def purge_info(self, name: str, sequence: int, *, timeout: Duration | None = None) -> None:
        """Purge the info with this sequence and older ones."""
        with bucket_errors(self.bucket):
            await self.stream.purge(subject=meta_subject(self.bucket, name), seq=sequence + 1, timeout=timeout)

    async def run_shielded(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step to its end, even if the caller is cancelled; the closing of the client waits for it as well.

        ConnectionClosed when that takes too long. The step may begin while the client closes, as the last one of a
        ``put`` that began before: the caller checks that the outbox is open before its first step.
        """
        connection = self.api.connection
        task = connection._cleanups.start(step)
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
        if error is not None and not isinstance(error, errors.NatsError):
            log.error("object store %r: a step in the background failed: %r", self.bucket, error, exc_info=error)

    def complete_later(self, step: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Repeat a step in the background until it is done, or fails with an error that is not transient."""
        self.api.connection._cleanups.start(self._complete(step)).add_done_callback(self._log_bug)

    async def _complete(self, step: Callable[[], Coroutine[Any, Any, object]]) -> None:
        backoff = Backoff(MIN_RETRY_PAUSE_S, MAX_STEP_PAUSE_S)
        while True:
            try:
                await step()
                return
            except errors.NatsError as exc:
                if not is_transient(exc):
                    raise
            await self.api.connection._outages.wait_connected(asyncio.get_running_loop().time() + MAX_STEP_PAUSE_S)
            await backoff.pause()

    # ---------------------------------------------------------------- chunks

    async def purge_content(self, before: IndexEntry, now: IndexEntry) -> None:
        """Purge the chunks that an entry names, which may be a deletion, unless another object's entry names them:
        ``now`` has replaced the object.

        A peer may write an entry that names the content of another object, and a client may have ended in the middle of
        a rename. A nuid that was made for the name of the entry belongs to no other object unless the entry is marked
        as renamed; for any other nuid, all entries are read.
        """
        if is_own_nuid(before.info) and not before.is_renamed:
            await self.purge_chunks(before.info.nuid, now.proof)
        else:
            await self._run_purge(self._purge_unnamed(before.info.nuid, now.sequence))

    async def _purge_unnamed(self, nuid: str, sequence: int) -> None:
        """Purge chunks if no entry names them, according to a server that has the one with this sequence.

        If that entry is gone, the chunks stay, for ``purge_orphans``.
        """
        deadline, backoff = Deadline(LAG_TIMEOUT_S), Backoff(MIN_RETRY_PAUSE_S, REQUEST_TIMEOUT_S)
        while True:
            try:
                is_current, is_named = await self._is_named(nuid, sequence)
            except _FINAL_ERRORS:
                return
            except errors.NatsError:
                is_current = is_named = False
            if is_named:
                return
            if is_current:
                await self._purge_chunks(nuid, settled=True)
                return
            if not await backoff.pause(deadline):
                return

    async def _is_named(self, nuid: str, sequence: int) -> tuple[bool, bool]:
        """Read all entries; return whether the one with this sequence, or a later one, was among them, and whether one
        of them names these chunks.
        """
        is_current = is_named = False
        async for message in self.stream.get_batch(subject=all_meta_subjects(self.bucket)):
            is_current = is_current or message.seq >= sequence
            with suppress(errors.InvalidReply):
                info = read_info(self.bucket, message.subject, message.seq, message.data, message.time)
                is_named = is_named or (info.nuid == nuid and not info.deleted)
        return is_current, is_named

    async def purge_chunks(self, nuid: str, proof: Stored | NotStored, *, settled: bool = True) -> None:
        """Purge the chunks of an object that no longer has an info: the ``proof`` is that another one is stored under
        its name, or that its own was not.

        Returns when that is done, after REQUEST_TIMEOUT_S, or at once without a connection; it continues in the
        background until it is done, the server rejects it, or the client is closed, which waits for it for a while.
        Cancelling ends only the wait.
        ``settled``: no chunk can still be in flight.
        """
        await self._run_purge(self._purge_chunks(nuid, settled))

    async def _run_purge(self, purge: Coroutine[Any, Any, None]) -> None:
        task = self.api.connection._cleanups.start(purge)
        if self.api.connection.is_connected:
            await asyncio.wait({task}, timeout=REQUEST_TIMEOUT_S)

    async def _purge_chunks(self, nuid: str, settled: bool) -> None:
        subject, backoff = chunk_subject(self.bucket, nuid), Backoff(MIN_RETRY_PAUSE_S, MAX_STEP_PAUSE_S)
        while True:
            try:
                if not settled:
                    await self.api.connection.flush()
                while await self.stream.purge(subject=subject, timeout=REQUEST_TIMEOUT_S) and not settled:
                    pass
                return
            except _FINAL_ERRORS:
                return
            except errors.NatsError:
                await backoff.pause()

    # ---------------------------------------------------------------- orphaned chunks

    async def find_orphans(self, older_than: float, timeout: Duration | None) -> Orphans:
        """Find the orphaned chunks that are at least ``older_than`` seconds old; of a subject its newest.

        The order makes this safe. Chunks are listed first, so objects completed meanwhile are in the infos, which are
        read later. Infos are read twice: from any server, which is fast, and, for the chunks not found there, from the
        leader in the order of the stream. A change or rename stores the new info before it removes the old one, so one
        is found.
        """
        info = await self.stream.info(timeout=timeout)
        if info.config.mirror is not None or info.config.sources:
            why = "is a mirror or has sources: the infos of these chunks may not have arrived yet"
            raise errors.ConfigError("object store", self.bucket, why)
        now = Timestamp.now(UTC) if info.ts == NEVER else info.ts  # the clock that stamps the chunks
        chunks = all_chunk_subjects(self.bucket)
        stored = {subject async for subject, _ in self.stream.subjects(chunks, timeout=timeout)}
        invalid = {subject for subject in stored if not is_literal(subject)}
        stored -= await self._referenced(timeout, direct=True) | invalid
        old = [subject for subject in stored if await self._age(subject, now, timeout) >= older_than]
        if old:
            named = await self._referenced(timeout, direct=False)
            old = [subject for subject in old if subject not in named]
        return Orphans(old, await self._find_invalid(now, older_than) if invalid else [])

    async def _find_invalid(self, now: Timestamp, older_than: float) -> list[int]:
        """Return the sequences of old chunks whose subjects have wildcards: as filters they would match others."""
        chunks = self.stream.ordered_consumer(filter_subject=all_chunk_subjects(self.bucket), headers_only=True)
        found: list[int] = []
        async with chunks:
            while messages := await chunks.fetch(MAX_CHUNKS_PER_PULL, no_wait=True):
                found += [
                    message.seq
                    for message in messages
                    if not is_literal(message.subject)
                    and (now - message.metadata.timestamp).total_seconds() >= older_than
                ]
        return found

    async def _referenced(self, timeout: Duration | None, *, direct: bool) -> set[str]:
        """Return the subjects of the chunks of all objects."""
        infos = self.infos(direct=direct, timeout=timeout)
        return {chunk_subject(self.bucket, info.nuid) async for info in infos if not info.deleted}

    async def _age(self, subject: str, now: Timestamp, timeout: Duration | None) -> float:
        """Return the seconds since the newest chunk was stored; -1 when there is none."""
        try:
            newest = await self.stream.get_last_message(subject, direct=False, timeout=timeout)
        except errors.MessageNotFound:
            return -1.0
        return (now - newest.time).total_seconds()
