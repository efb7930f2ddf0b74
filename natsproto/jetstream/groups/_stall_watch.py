"""Notices that the work queue of a group takes nothing from its stream while the stream grows.

After faults a server may stop the queue's source for up to a minute, and a full queue takes nothing either: the members
wait and see no error. Owns the sequences of the last look. An idle member looks every STALL_CHECK_INTERVAL_S seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar

from natsproto import errors
from natsproto._core.events import Event
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream

log = logging.getLogger("natsproto")

STALL_CHECK_INTERVAL_S = 5.0
"""Seconds between two looks while the member has nothing to do."""


class GroupStalled(Event):
    """A member waits although its stream grows: for ``seconds`` the work queue of the group has taken nothing from the
    stream. ``queued`` messages are in the queue: with none, its servers have stopped to read the stream, which they
    resume by themselves; otherwise it may be full, because another member is slow. Emitted once for a stall.
    """

    stream: str
    group: str
    member: str
    """The one of this program that noticed."""
    seconds: float
    queued: int

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "member %(member)r of group %(group)r waits: its work queue (%(queued)d messages) has taken nothing from "
        "stream %(stream)r for %(seconds).0f s, although the stream grows"
    )


class StallWatch:
    """Watches the work queue ``queue`` of a group of ``stream``, as far as the ``filters`` of the group match."""

    def __init__(self, js: JetStream, stream: str, group: str, queue: Stream, filters: Sequence[str]) -> None:
        self._js, self._stream, self._group, self._queue = js, stream, group, queue
        self._filters = filters
        self._clock = asyncio.get_running_loop().time
        self._seen: tuple[int, int] | None = None  # last sequences of the queue and of the stream
        self._growing_since = 0.0  # 0: the stream does not grow, or the queue takes from it
        self._is_reported = False

    async def run(self, member: str, handled: Callable[[], int]) -> None:
        """Look again and again while the number of messages that the member has ``handled`` stays the same."""
        last = handled()
        while True:
            await asyncio.sleep(STALL_CHECK_INTERVAL_S)
            if last != (last := handled()):
                self._seen = None
                continue
            try:
                await self._look(member)
            except errors.PermissionDenied as exc:
                log.debug("group %r is not watched: %s", self._group, exc)
                return
            except errors.NatsError:
                continue  # an outage: the next look shows its end

    async def _look(self, member: str) -> None:
        state = (await self._queue.info()).state
        stream = await self._js.stream(self._stream, bind=True)
        last, now = (await stream.info()).state.last_seq, self._clock()
        if self._seen is None or self._seen[0] != state.last_seq:
            self._seen, self._growing_since, self._is_reported = (state.last_seq, last), 0.0, False
        elif last <= self._seen[1] or not await self._has_matching(stream, self._seen[1]):
            return
        elif not self._growing_since:
            self._growing_since = now
        elif not self._is_reported:
            self._is_reported = True
            self._js.connection._event_bus.emit(
                GroupStalled(
                    stream=self._stream,
                    group=self._group,
                    member=member,
                    seconds=now - self._growing_since,
                    queued=state.messages,
                )
            )

    async def _has_matching(self, stream: Stream, after: int) -> bool:
        """True if the stream has a message after this sequence that the queue should have."""
        if not self._filters:
            return True
        for pattern in self._filters:
            with suppress(errors.MessageNotFound):
                if (await stream.get_last_message(pattern, direct=False)).seq > after:
                    return True
        return False
