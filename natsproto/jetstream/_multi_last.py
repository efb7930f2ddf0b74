"""The newest message of each of many subjects, however many there are (ADR-31).

Owns the decision how they are asked for: at once, a thousand subjects at a time, or each for itself. What a subject is
and how a message is fetched is the stream's and ``direct``'s.

They are of one moment as far as the stream still holds it. A stream that keeps only the newest of a subject loses what
is written again while it is read; without more, such a subject would be left out as if it did not exist. So it is asked
for once more when nobody insists on a moment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Protocol

from natsproto.errors import LimitReached, MessageNotFound, PermissionDenied
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._direct import BatchGet, Cursor, RawMessage
from natsproto.jetstream._info import StreamInfo

PIECE_SUBJECTS = 1000
"""Subjects named in one request for their last messages; a server takes up to 1,024."""
PIECE_BYTES = 128 * 1024
"""Bytes of those subjects; a server takes a megabyte unless it is configured otherwise."""


class Source(Protocol):
    """The stream, as far as it is needed here."""

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
        """What it holds."""
        ...

    async def get_last_message(self, subject: str, *, timeout: Duration | None = None) -> RawMessage:
        """The newest message of one subject."""
        ...


class MultiLastGet:
    """One get of last messages. ``moment`` is how the caller has chosen one; empty for now."""

    def __init__(
        self,
        api: Api,
        source: Source,
        subjects: tuple[str, ...],
        moment: Mapping[str, object],
        *,
        direct: bool,
        limit: int | None,
        timeout: Duration | None,
    ) -> None:
        self._api, self._source, self._subjects, self._moment = api, source, subjects, moment
        self._direct, self._limit, self._timeout = direct, limit, timeout
        self._seen: set[str] = set()

    async def batches(self) -> AsyncGenerator[list[RawMessage]]:
        """Yields what has arrived as a list. Raises what BatchGet.batches does; cancelling ends it."""
        if len(self._subjects) <= PIECE_SUBJECTS:
            try:
                run = self._run(self._subjects, self._moment)
                async with aclosing(self._read(run)) as found:
                    async for messages in found:
                        yield messages
                if run.pages < 2 or self._moment or self._limit == 0:
                    return  # what one page holds, the server has read at one go
            except LimitReached:
                pass  # wildcards match more than one answer holds; said before the first message
            except MessageNotFound:
                if self._moment:
                    raise
                # One of them was written again, or deleted, before its turn to be sent.
        async with aclosing(self._by_name()) as found:
            async for messages in found:
                yield messages

    async def _by_name(self) -> AsyncGenerator[list[RawMessage]]:
        """What is still to come, by the names of the subjects."""
        again = bool(self._seen)
        try:
            names = await self._spelled_out()
        except PermissionDenied:
            if again:
                return  # nobody tells what else there is
            raise
        for moment in await self._moments(again):
            for piece in _pieces(name for name in names if name not in self._seen):
                try:
                    async with aclosing(self._read(self._run(piece, moment))) as found:
                        async for messages in found:
                            yield messages
                except MessageNotFound:
                    if self._moment:
                        raise
                if self._limit == 0:
                    return
        if not self._moment:
            for name in names:
                if name not in self._seen and (message := await self._alone(name)) is not None:
                    yield [message]
                if self._limit == 0:
                    return

    async def _moments(self, again: bool) -> list[Mapping[str, object]]:
        """Of which moments messages are asked for, one after the other; ``again`` when pages of the first were read."""
        if self._moment:
            return [self._moment]
        if again:
            return [{}]
        last = (await self._source.info(timeout=self._timeout)).state.last_seq
        return [{"up_to_seq": max(1, last)}, {}]

    def _run(self, subjects: Iterable[str], moment: Mapping[str, object]) -> BatchGet:
        return BatchGet(
            self._api,
            self._source.name,
            Cursor({"multi_last": list(subjects), **moment}, {}, limit=self._limit),
            alone=False,
            direct=self._direct,
            asked=f"last messages of stream {self._source.name!r}",
            timeout=self._timeout,
        )

    async def _read(self, run: BatchGet) -> AsyncGenerator[list[RawMessage]]:
        async with aclosing(run.batches()) as found:
            async for messages in found:
                self._count(messages)
                yield messages

    async def _alone(self, subject: str) -> RawMessage | None:
        try:
            message = await self._source.get_last_message(subject, timeout=self._timeout)
        except MessageNotFound:
            return None
        self._count([message])
        return message

    def _count(self, messages: list[RawMessage]) -> None:
        self._seen.update([message.subject for message in messages])
        if self._limit is not None:
            self._limit -= len(messages)

    async def _spelled_out(self) -> list[str]:
        """Every subject once, with what the stream has in the place of wildcards."""
        found: dict[str, None] = {}
        for subject in self._subjects:
            if {"*", ">"}.isdisjoint(subject.split(".")):
                found[subject] = None
            else:
                async for name, _ in self._source.subjects(subject, timeout=self._timeout):
                    found[name] = None
        return list(found)


def _pieces(subjects: Iterable[str]) -> Iterator[list[str]]:
    """The subjects in lists that each fit into one request."""
    piece: list[str] = []
    size = 0
    for subject in subjects:
        length = len(subject.encode("utf-8", "surrogateescape")) + 3
        if piece and (len(piece) == PIECE_SUBJECTS or size + length > PIECE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(subject)
        size += length
    if piece:
        yield piece
