"""The last message of each of many subjects (ADR-31).

Owns the choice of requests: one for all, one for a thousand subjects, or one for each subject.

The messages are a snapshot as far as the stream still has it. A stream that keeps only the last message of a subject
loses those that are overwritten during the read; such a subject would be missing from the result.

That a subject has no message is therefore confirmed, as a replica or a mirror may lag or be refilled, too. The leader
is asked for the newest message of the stream, and servers for the missing subjects until one answers that has it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Protocol

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto.jetstream._api.requests import LEAST_TIMEOUT_S, Api
from natsproto.jetstream._stream.batch_get import BatchGet, PageCursor
from natsproto.jetstream._stream.direct_get import RawMessage, StreamLeader
from natsproto.jetstream._values.codec import INT32, Duration
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.subject import is_literal, matches

MAX_SUBJECTS_PER_REQUEST = 1000
"""Subjects in one request for their last messages; a server accepts up to 1,024."""
MAX_SUBJECT_BYTES_PER_REQUEST = 128 * 1024
"""Bytes of these subjects; a server accepts a megabyte by default."""
MIN_LAG_PAUSE_S, MAX_LAG_PAUSE_S = 0.01, 0.5
"""Seconds before servers that lag are asked again."""


class StreamHandle(Protocol):
    """The part of Stream that is used here."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def subjects(
        self, subjects_filter: str = ">", *, timeout: Duration | None = None
    ) -> AsyncGenerator[tuple[str, int]]:
        """The subjects that match."""
        ...

    async def info(self, *, timeout: Duration | None = None) -> StreamInfo:
        """Its info."""
        ...


class MultiLastGet:
    """A get of last messages. ``up_to`` is the caller's snapshot; empty for now."""

    def __init__(
        self,
        api: Api,
        stream: StreamHandle,
        subjects: tuple[str, ...],
        up_to: Mapping[str, object],
        *,
        leader: StreamLeader,
        direct: bool,
        limit: int | None,
        timeout: Duration | None,
    ) -> None:
        self._api, self._stream, self._subjects, self._up_to = api, stream, subjects, up_to
        self._leader, self._direct, self._limit, self._timeout = leader, direct, limit, timeout
        self._operation = f"last messages of stream {stream.name!r}"
        self._seen: set[str] = set()
        self._was_cut = False  # a message was replaced or deleted during a read

    async def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield the messages that have arrived as lists. Raises the errors of BatchGet.batches; cancelling ends it."""
        for source in (self._found(), self._missing()):
            async with aclosing(source) as found:
                async for messages in found:
                    yield messages

    async def _found(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield what the servers have that answer first."""
        if len(list(self._split(self._subjects))) == 1:
            is_certain = bool(self._up_to) or all(map(is_literal, self._subjects))
            newest = None if is_certain else await self._newest(self._timeout)
            run = self._batch_get(self._subjects, self._up_to)
            try:
                async with aclosing(self._read(run)) as found:
                    async for messages in found:
                        yield messages
                has_all = newest is None or run.up_to >= newest.seq or not self._seen  # else it lags behind the leader
                is_whole = run.pages < 2 and not self._was_cut and has_all  # the server reads one page atomically
                if is_whole or (self._up_to and self._seen) or self._limit == 0:
                    return
            except errors.LimitReached:
                pass  # wildcards match more than one reply can hold; raised before the first message
        async with aclosing(self._found_by_name()) as found:
            async for messages in found:
                yield messages

    async def _found_by_name(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield messages by the names of their subjects, as of one moment, unless some of now were read."""
        try:
            self._subjects = tuple(await self._list_subjects())
        except errors.PermissionDenied:
            if self._seen:
                return  # the other subjects are unknown
            raise
        up_to = self._up_to
        if not up_to and not self._seen:
            up_to = {"up_to_seq": max(1, (await self._stream.info(timeout=self._timeout)).state.last_seq)}
        for chunk in self._split(self._subjects if up_to else ()):
            async with aclosing(self._read(self._batch_get(chunk, up_to))) as found:
                async for messages in found:
                    yield messages
            if self._limit == 0:
                return

    async def _missing(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield the messages of subjects that had none, from servers that have all that the leader has."""
        deadline, backoff = Deadline(self._api.seconds(self._timeout)), Backoff(MIN_LAG_PAUSE_S, MAX_LAG_PAUSE_S)
        patterns = [subject for subject in self._subjects_without_message() if not is_literal(subject)]
        while self._limit != 0 and (missing := self._subjects_without_message(patterns)):
            newest = await self._newest(max(deadline.left, LEAST_TIMEOUT_S))
            if newest is None:
                return  # an empty stream; or the leader may not be asked
            is_past = bool(self._up_to) and not self._is_before(newest)
            up_to = {"up_to_seq": newest.seq} if self._up_to and not is_past else self._up_to
            is_complete = True
            for chunk in self._split(missing):
                # The newest message shows that its server has all, also where there is none of the others.
                extra = "" if is_past or any(matches(subject, newest.subject) for subject in chunk) else newest.subject
                run = self._batch_get([*chunk, extra] if extra else chunk, up_to)
                async with aclosing(self._read(run, extra)) as found:
                    async for messages in found:
                        yield messages
                has_all = run.up_to >= newest.seq or (is_past and (run.up_to > 0 or not await self._had_any(chunk)))
                is_complete &= has_all and run.pages < 2
                if run.pages > 1:
                    patterns = []  # no server reads several pages as of one moment
            if is_complete:
                return
            if not await backoff.pause(deadline):
                raise errors.RequestTimeout(f"{self._operation}: the servers lag behind the leader", deadline.seconds)

    async def _newest(self, timeout: Duration | None) -> RawMessage | None:
        """Return the leader's newest message; None when it has none, or may not be asked."""
        return await self._leader.find({"last_by_subj": ">"}, operation=self._operation, timeout=timeout)

    def _subjects_without_message(self, patterns: Collection[str] = ()) -> list[str]:
        """Return the subjects for which nothing was found, and ``patterns``."""
        seen = self._seen
        return [
            subject
            for subject in self._subjects
            if subject in patterns
            or (subject not in seen and (is_literal(subject) or not any(matches(subject, name) for name in seen)))
        ]

    def _is_before(self, message: RawMessage) -> bool:
        """True if a message is not newer than the caller's moment."""
        seq, time = self._up_to.get("up_to_seq"), self._up_to.get("up_to_time")
        return message.seq <= seq if isinstance(seq, int) else message.time < Timestamp.parse(str(time))

    async def _had_any(self, subjects: list[str]) -> bool:
        """True if the leader has a message on one of the subjects that is not newer than the caller's moment."""
        for subject in subjects:
            body = {"next_by_subj": subject, "seq": 1}
            first = await self._leader.find(body, operation=self._operation, timeout=self._timeout)
            if first is not None and self._is_before(first):
                return True
        return False

    def _batch_get(self, subjects: Iterable[str], up_to: Mapping[str, object]) -> BatchGet:
        limit = None if self._limit is None else self._limit + 1  # a message may not be one of those
        return BatchGet(
            self._api,
            self._stream.name,
            PageCursor({"multi_last": list(subjects), **up_to}, {}, limit=limit),
            leader=self._leader,
            can_get_single=False,
            direct=self._direct,
            operation=self._operation,
            timeout=self._timeout,
        )

    async def _read(self, run: BatchGet, extra: str = "") -> AsyncGenerator[list[RawMessage]]:
        """Yield the messages that were not seen before, without that on ``extra``."""
        try:
            async with aclosing(run.batches()) as found:
                async for messages in found:
                    new = [one for one in messages if one.subject not in self._seen and one.subject != extra]
                    new = new[: self._limit]
                    self._seen.update([message.subject for message in new])
                    if self._limit is not None:
                        self._limit -= len(new)
                    if new:
                        yield new
        except errors.MessageNotFound:  # one of them was replaced or deleted before it was sent
            self._was_cut = True

    async def _list_subjects(self) -> list[str]:
        """Return every subject once, with the stream's subjects in place of wildcards."""
        found: dict[str, None] = {}
        for subject in self._subjects:
            if {"*", ">"}.isdisjoint(subject.split(".")):
                found[subject] = None
            else:
                async for name, _ in self._stream.subjects(subject, timeout=self._timeout):
                    if is_literal(name):  # others would match again what the pattern matches
                        found[name] = None
        return list(found)

    def _split(self, subjects: Iterable[str]) -> Iterator[list[str]]:
        """Split the subjects into lists that each fit into one request, also of a server with a small max_payload."""
        limit = min(MAX_SUBJECT_BYTES_PER_REQUEST, (self._api.connection.max_payload or INT32) // 2)
        chunk: list[str] = []
        size = 0
        for subject in subjects:
            length = len(subject.encode("utf-8", "surrogateescape")) + 3
            if chunk and (len(chunk) == MAX_SUBJECTS_PER_REQUEST or size + length > limit):
                yield chunk
                chunk, size = [], 0
            chunk.append(subject)
            size += length
        if chunk:
            yield chunk
