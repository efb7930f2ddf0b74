"""The last message of each of many subjects (ADR-31).

Owns the choice of requests: one for all, one for a thousand subjects, or one for each subject.

The messages are a snapshot as far as the stream still has it. A stream that keeps only the last message of a subject
loses those that are overwritten during the read; such a subject would be missing from the result. It is therefore
requested once more, unless the caller chose a snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Protocol

from natsproto.errors import LimitReached, MessageNotFound, PermissionDenied
from natsproto.jetstream._api import Api
from natsproto.jetstream._batch_get import BatchGet, PageCursor
from natsproto.jetstream._codec import INT32, Duration
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._info import StreamInfo
from natsproto.protocol.subject import is_literal

MAX_SUBJECTS_PER_REQUEST = 1000
"""Subjects in one request for their last messages; a server accepts up to 1,024."""
MAX_SUBJECT_BYTES_PER_REQUEST = 128 * 1024
"""Bytes of these subjects; a server accepts a megabyte by default."""


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

    async def get_last_message(self, subject: str, *, timeout: Duration | None = None) -> RawMessage:
        """The newest message of one subject."""
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
        direct: bool,
        limit: int | None,
        timeout: Duration | None,
    ) -> None:
        self._api, self._stream, self._subjects, self._up_to = api, stream, subjects, up_to
        self._direct, self._limit, self._timeout = direct, limit, timeout
        self._seen: set[str] = set()

    async def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield the messages that have arrived as lists. Raises the errors of BatchGet.batches; cancelling ends it."""
        if len(list(self._split(self._subjects))) == 1:
            try:
                run = self._batch_get(self._subjects, self._up_to)
                async with aclosing(self._read(run)) as found:
                    async for messages in found:
                        yield messages
                if run.pages < 2 or self._up_to or self._limit == 0:
                    return  # the server reads one page atomically
            except LimitReached:
                pass  # wildcards match more than one reply can hold; raised before the first message
            except MessageNotFound:
                if self._up_to:
                    raise
                # One of them was replaced or deleted before it was sent.
        async with aclosing(self._batches_by_name()) as found:
            async for messages in found:
                yield messages

    async def _batches_by_name(self) -> AsyncGenerator[list[RawMessage]]:
        """Yield the remaining messages by the names of their subjects."""
        again = bool(self._seen)
        try:
            names = await self._list_subjects()
        except PermissionDenied:
            if again:
                return  # the other subjects are unknown
            raise
        waiting = names
        for up_to in await self._snapshots(again):
            asked, waiting = waiting, []
            for chunk in self._split(name for name in asked if name not in self._seen):
                run = self._batch_get(chunk, up_to)
                is_whole = True
                try:
                    async with aclosing(self._read(run)) as found:
                        async for messages in found:
                            yield messages
                except MessageNotFound:
                    if self._up_to:
                        raise
                    is_whole = False
                if self._limit == 0:
                    return
                if up_to or run.pages > 1 or not is_whole:  # the server reads one page atomically: nothing is missing
                    waiting += chunk
        if not self._up_to:
            for name in waiting:
                if name not in self._seen and (message := await self._get_single(name)) is not None:
                    yield [message]
                if self._limit == 0:
                    return

    async def _snapshots(self, again: bool) -> list[Mapping[str, object]]:
        """Yield the snapshots to request; ``again`` when pages of the first were read."""
        if self._up_to:
            return [self._up_to]
        if again:
            return [{}, {}]
        last = (await self._stream.info(timeout=self._timeout)).state.last_seq
        return [{"up_to_seq": max(1, last)}, {}, {}]

    def _batch_get(self, subjects: Iterable[str], up_to: Mapping[str, object]) -> BatchGet:
        return BatchGet(
            self._api,
            self._stream.name,
            PageCursor({"multi_last": list(subjects), **up_to}, {}, limit=self._limit),
            can_get_single=False,
            direct=self._direct,
            operation=f"last messages of stream {self._stream.name!r}",
            timeout=self._timeout,
        )

    async def _read(self, run: BatchGet) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(run.batches()) as found:
            async for messages in found:
                self._count(messages)
                yield messages

    async def _get_single(self, subject: str) -> RawMessage | None:
        try:
            message = await self._stream.get_last_message(subject, timeout=self._timeout)
        except MessageNotFound:
            return None
        self._count([message])
        return message

    def _count(self, messages: list[RawMessage]) -> None:
        self._seen.update([message.subject for message in messages])
        if self._limit is not None:
            self._limit -= len(messages)

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
