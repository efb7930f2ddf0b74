"""The streams that a context knows: their subjects, and for how long they recognise message ids.

Rules:

1. Every info that the context reads is noted. No request is made for this while messages are acknowledged.
2. A copy of a message with an id is sent only while the stream knows the id. A stream that is not known is looked up at
   the first silence or reconnect after such a message; until the answer no copy is sent.
3. Where the stream may not be looked up, the server's default of ``duplicate_window`` is assumed.
4. Lookups share what they have found, never a failure: a stream whose servers are away says nothing about another one.
   One request for a name is open at a time, and one for the info of each stream.
5. After a sign of an election, until no deposed leader can answer any more, conditional writes have ids, too: a copy of
   them that is refused is then no riddle. At other times they need none, which would fill the server's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto.errors._base import is_transient
from natsproto.jetstream._values.info import StreamInfo
from natsproto.protocol.subject import matches

DEFAULT_DUPLICATE_WINDOW_S = 120.0
"""The server's default."""
USABLE_WINDOW = 0.9
"""The part of the window in which a copy is sent: it has to arrive, too."""
MAX_KNOWN_STREAMS = 1000
LOOKUP_TURN_S = 0.5
"""Seconds that a lookup keeps others waiting for the info of its stream."""
UNSETTLED_S = 30.0
"""Seconds after a sign of an election in which two servers may answer one message, with a reserve."""
MAX_OPEN_BATCHES = 20
"""Atomic batches of a stream that are open at a time. A server holds 50, and drops the messages of others: those of
other clients, and those that it holds for ten seconds after their clients have begun them again.
"""


class KnownStream(NamedTuple):
    """A part of a stream's configuration; ``name`` is "" for one that may not be looked up."""

    name: str
    subjects: tuple[str, ...]
    duplicate_window: float
    """In seconds."""


class BatchTurns(asyncio.Semaphore):
    """The turns of the atomic batches to one stream."""

    def __init__(self) -> None:
        super().__init__(MAX_OPEN_BATCHES)
        self._ended = 0

    async def take(self, patience: float) -> bool:
        """Wait for a turn; return False if none has become free for ``patience`` seconds."""
        while True:
            ended = self._ended
            try:
                async with asyncio.timeout(patience):
                    return await self.acquire()
            except TimeoutError:
                if self._ended == ended:
                    return False

    def release(self) -> None:
        """End a turn."""
        self._ended += 1
        super().release()


class KnownStreams:
    """The streams that one context knows. ``request_name`` returns the name of a subject's stream, ``request_info`` the
    info of a stream.
    """

    __slots__ = (
        "_batch_turns",
        "_infos",
        "_lookup_turn",
        "_lookups",
        "_request_info",
        "_request_name",
        "_streams",
        "_unsettled",
    )

    def __init__(
        self,
        request_name: Callable[[str], Awaitable[str]],
        request_info: Callable[[str], Coroutine[Any, Any, StreamInfo]],
    ) -> None:
        self._request_name, self._request_info = request_name, request_info
        self._lookups: dict[str, asyncio.Task[None]] = {}  # by subjects
        self._infos: dict[str, asyncio.Task[StreamInfo]] = {}  # the requests, by the names of streams
        self._lookup_turn = asyncio.Lock()
        self._streams: dict[str, KnownStream] = {}
        self._batch_turns: dict[str, BatchTurns] = {}
        self._unsettled: dict[str, float] = {}  # until when, in the loop's time, by the names of streams

    def add(self, info: StreamInfo) -> None:
        """Note the info of a stream."""
        window = info.config.duplicate_window or DEFAULT_DUPLICATE_WINDOW_S
        self._put(info.name, KnownStream(info.name, tuple(info.config.subjects), window))

    def remove(self, name: str) -> None:
        """The stream was deleted."""
        self._streams.pop(name, None)

    def of_subject(self, subject: str) -> KnownStream | None:
        """Return the stream that listens on a subject; None if it is not known."""
        for stream in self._streams.values():
            if any(pattern == subject or matches(pattern, subject) for pattern in stream.subjects):
                return stream
        return None

    def knows_id(self, subject: str, sent_at: float) -> bool:
        """Return True if a stream that got a message on this subject at ``sent_at`` (loop time) still knows its id.
        False while the stream is not known, which starts a lookup.
        """
        stream = self.of_subject(subject)
        if stream is None:
            self._look_up_later(subject)
            return False
        return asyncio.get_running_loop().time() - sent_at < USABLE_WINDOW * stream.duplicate_window

    def unsettle(self, subject: str) -> None:
        """Note a sign of an election in the stream of a subject: no reply, no responders, or a leader that is new."""
        stream = self.of_subject(subject)
        if stream is not None:
            self._unsettled[stream.name] = asyncio.get_running_loop().time() + UNSETTLED_S

    def is_unsettled(self, subject: str) -> bool:
        """True if there was such a sign in the last UNSETTLED_S seconds."""
        if not self._unsettled:
            return False  # nearly always
        now = asyncio.get_running_loop().time()
        self._unsettled = {name: until for name, until in self._unsettled.items() if until > now}
        stream = self.of_subject(subject)
        return stream is not None and stream.name in self._unsettled

    def batch_turns(self, subject: str) -> BatchTurns:
        """Return the turns of atomic batches to the stream of a subject; all streams that are not known share them."""
        stream = self.of_subject(subject)
        return self._batch_turns.setdefault("" if stream is None else stream.name, BatchTurns())

    async def look_up(self, subject: str, timeout: float) -> None:
        """Look the stream of a subject up, again after a failure, unless it is known or ``timeout`` seconds pass."""
        deadline, backoff = Deadline(timeout), Backoff()
        while self.of_subject(subject) is None:
            await asyncio.wait((self._look_up_later(subject),), timeout=deadline.left)
            if self.of_subject(subject) is not None or not await backoff.pause(deadline):
                return

    def _look_up_later(self, subject: str) -> asyncio.Task[None]:
        task = self._lookups.get(subject)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_up(subject), name="natsproto stream lookup")
            self._lookups[subject] = task
            task.add_done_callback(lambda _: self._lookups.pop(subject, None))
        return task

    async def _look_up(self, subject: str) -> None:
        """Look a stream up; after a reconnect, many subjects are mostly those of one stream."""
        try:
            async with self._lookup_turn:
                if self.of_subject(subject) is not None:
                    return
                name = await self._request_name(subject)
                is_open = bool(self._infos)  # so a stream does not answer, this one or another
                info = self._info_of(name)
                if not is_open:
                    await asyncio.wait((info,), timeout=LOOKUP_TURN_S)
            self.add(await info)
        except errors.NatsError as exc:
            if not is_transient(exc):  # no permission, for example
                self._put(subject, KnownStream("", (subject,), DEFAULT_DUPLICATE_WINDOW_S))

    def _info_of(self, name: str) -> asyncio.Task[StreamInfo]:
        """Request the info of a stream, or return the request that is open."""
        task = self._infos.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._request_info(name), name="natsproto stream lookup")
            self._infos[name] = task
            task.add_done_callback(lambda _: self._infos.pop(name, None))
        return task

    def _put(self, key: str, stream: KnownStream) -> None:
        if len(self._streams) >= MAX_KNOWN_STREAMS:
            self._streams.clear()
        self._streams[key] = stream
