"""The pulls that are open, and how much one may ask for, without I/O (ADR-37).

Owns the request as it is sent, how much of what was asked for has not come yet, and what refusals have told of the
limits of the consumer.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from natsproto.jetstream._codec import Record, Seconds, flag, integer, nanoseconds, seconds, text

_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_LIMIT = re.compile(r"exceeded maxrequest(batch|expires|maxbytes) of (\S+)")
_GO_DURATION = re.compile(r"([0-9.]+)(h|ms|m|us|µs|ns|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class PullRequest(Record):
    """What goes to ``CONSUMER.MSG.NEXT``; ``body()`` is its JSON. Durations are seconds."""

    batch: int = integer(default=0)
    expires: Seconds = seconds(default=0.0)
    max_bytes: int = integer(default=0)
    no_wait: bool = flag(default=False)
    idle_heartbeat: Seconds = seconds(default=0.0)
    group: str = text(default="")
    min_pending: int = integer(default=0)
    min_ack_pending: int = integer(default=0)
    id: str = text(default="")
    priority: int = integer(default=0, high=9)

    def body(self) -> bytes:
        """The payload of the request.

        The heartbeat is cut to half of ``expires`` in whole nanoseconds. The server refuses one that is a nanosecond
        longer, and half of a float rounds up as often as down.
        """
        expires = nanoseconds(self.expires)
        heartbeat = min(nanoseconds(self.idle_heartbeat), expires // 2)
        fields = {
            "batch": self.batch,
            "expires": expires,
            "max_bytes": self.max_bytes,
            "no_wait": self.no_wait,
            "idle_heartbeat": heartbeat,
            "group": self.group,
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "id": self.id,
            "priority": self.priority,
        }
        return _compact({name: value for name, value in fields.items() if value}).encode()


PROBE: Final = b'{"batch":1,"expires":1000000000,"idle_heartbeat":1000000000}'
"""A pull that every server refuses at once, for its heartbeat, and that changes nothing. What matters is who answers:
"nobody" (503) tells within a moment that the server of a consumer was killed, where silence needs two heartbeats.
"""


class _Pull(NamedTuple):
    number: int
    batch: int
    size: int


class OpenPulls:
    """The pulls that may be open, numbered from 1 on, and how much of them has not come yet."""

    __slots__ = ("_counts_bytes", "_last_ended", "_open", "batch", "given_up", "number", "size")

    def __init__(self, *, counts_bytes: bool) -> None:
        self.batch = self.size = 0
        """Messages, and bytes, that were asked for and are not here."""
        self.number = 0
        """Of the last pull."""
        self._counts_bytes = counts_bytes
        self._open: list[_Pull] = []  # the oldest first
        self.given_up = False
        """Whether one was given up that the server may still serve."""
        self._last_ended = 0  # the last pull that was given up or has ended, with all before it

    def __len__(self) -> int:
        return len(self._open)

    def add(self, batch: int, size: int) -> None:
        """One more goes out."""
        self._drop_served()
        self.batch += batch
        self.size += size
        self.number += 1
        self._open.append(_Pull(self.number, batch, size))

    def take_back(self) -> None:
        """The last one could not be sent."""
        if self._open:
            pull = self._open.pop()
            self.settle(pull.batch, pull.size)

    def is_old(self, number: int) -> bool:
        """Whether nothing is expected of this one any more."""
        return number <= self._last_ended

    def settle(self, count: int, size: int) -> None:
        """That much of what was asked for needs no more waiting."""
        self.batch = max(self.batch - count, 0)
        if self._counts_bytes:
            self.size = max(self.size - size, 0)
        # A pull whose bytes are used up to the last one ends without a word, and what it had left in messages with it.
        if not self.batch or (self._counts_bytes and not self.size):
            self.forget()

    def end(self, number: int, left: tuple[int, int] | None) -> None:
        """One ended with so many messages and bytes left of it; None: not taken at all, all of it is left."""
        pull = next((pull for pull in self._open if pull.number == number), None)
        if pull is not None:
            self._open.remove(pull)
            left = left or (pull.batch, pull.size)
        if left is not None:
            self.settle(*left)

    def forget(self) -> None:
        """All have ended: nothing is on its way any more."""
        self.batch = self.size = 0
        self._open.clear()
        self._last_ended = self.number

    def give_up(self) -> None:
        """Nothing more is waited for, although the server may still serve what is open."""
        self.given_up = self.given_up or self.batch > 0
        self.forget()

    def _drop_served(self) -> None:
        """Forgets the oldest that the younger ones can account for: they were served and ended silently."""
        sizes, owed = (
            ([pull.size for pull in self._open], self.size)
            if self._counts_bytes
            else ([pull.batch for pull in self._open], self.batch)
        )
        left, served = sum(sizes), 0
        while served < len(sizes) and left - sizes[served] >= owed:
            left -= sizes[served]
            served += 1
        del self._open[:served]


class Learned:
    """What one pull may ask for: what is wanted, or less where the consumer has refused that."""

    __slots__ = ("batch", "expires", "size")

    def __init__(self, batch: int, size: int, expires: float) -> None:
        self.batch, self.size, self.expires = batch, size, expires
        """Messages, bytes and seconds."""

    def learn(self, refusal: str) -> bool | None:
        """Whether a refusal tells of a limit that was not known; None when it is about something else."""
        limit = _LIMIT.search(refusal)
        if limit is None:
            return None
        what, value = limit.groups()
        if what == "expires":
            longest = sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(value))
            news = 0 < longest < self.expires
            self.expires = longest if news else self.expires
            return news
        most = int(value) if value.isdecimal() else 0
        if what == "batch":
            news = 0 < most < self.batch
            self.batch = most if news else self.batch
        else:
            news = 0 < most < self.size
            self.size = most if news else self.size
        return news
