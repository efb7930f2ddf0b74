"""PURE. A range of a stream, how much of it is asked for at a time, and whether all of it was there to be read.

Owns ``SeqRange`` and what is decided while one is read. Who reads it, and how, is known to ``reading``.
"""

from __future__ import annotations

import logging
from math import ceil, sqrt

from natsproto._value import Value
from natsproto.errors import ConfigError, DataLost
from natsproto.jetstream._codec import UINT64
from natsproto.jetstream._config import stream_name
from natsproto.jetstream._info import StreamInfo
from natsproto.spark._offsets import Horizon

log = logging.getLogger("natsproto")


class SeqRange(Value):
    """Sequences of a stream, ``start`` to ``end``, both inclusive.

    ``created`` (RFC 3339) is when the stream was, so that another one of the same name is noticed; "" for any.
    ``earliest`` says that ``start`` is only where the stream began when the range was planned: what it has removed
    from its front before the range is read is not missed.
    """

    stream: str
    start: int
    end: int
    created: str = ""
    earliest: bool = False

    def _check(self) -> None:
        stream_name(self.stream)
        for name, least in (("start", 1), ("end", self.start)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= UINT64:
                raise ConfigError(name, value, f"must be a sequence from {least} on")


class PullSize:
    """PURE. How many messages are asked for at a time, so that little is sent that nobody wants.

    The first pull is small, as many a reader leaves after some rows, and each is four times the one before. A stream
    that is full and removes messages is read with the largest pulls from the start: small ones would not keep ahead of
    it. No pull asks for more than the range is likely to hold, judged by how many of its sequences matched so far.
    """

    FIRST = 64

    def __init__(self, rng: SeqRange, most: int) -> None:
        self._range, self._most = rng, most
        self.step = 0
        """The most that the last pull could ask for."""
        self._position, self._received = rng.start - 1, 0

    def hurry(self) -> None:
        """Make every pull from now on as large as it may be: the stream removes the messages that are next."""
        self.step = self._most

    def on_messages(self, count: int, position: int) -> None:
        """So many came, the last of which has this sequence."""
        self._received += count
        self._position = position

    def next(self) -> int:
        """For the next pull."""
        self.step = min(4 * self.step or self.FIRST, self._most)
        left = self._range.end - self._position
        passed = self._position - self._range.start + 1
        if self._received < passed:
            likely = left * self._received / passed
            left = min(left, ceil(likely + sqrt(likely)))
        return max(1, min(self.step, left))


class DataLossCheck:
    """PURE. Whether everything between two sequences was there to be read.

    Messages that were deleted one by one leave gaps that nobody misses. What a limit or a purge removes goes from the
    front of the stream: where that has not passed a gap when all before and behind it is read, nothing was lost.
    """

    def __init__(self, rng: SeqRange, strict: bool) -> None:
        self._range, self._strict = rng, strict
        self._next = rng.start
        self._unread = rng.earliest  # nothing is missed yet

    def begin(self, info: StreamInfo) -> bool:
        """Before reading: whether there is anything in the range. DataLost when it cannot be read whole."""
        now = Horizon.of(info)
        self.compare(info)
        if now.last_seq < self._range.end:
            self._missing(f"the stream ends at {now.last_seq}")
        return now.first_seq <= self._range.end and now.last_seq >= self._range.start

    @property
    def front_moves(self) -> bool:
        """The stream has removed messages from the front of the range since it was planned, and none was read yet."""
        return self._unread and self._next > self._range.start

    def whole(self, up_to: int, count: int, first: int) -> bool:
        """Whether these so many messages, the first of which is given, are all from the last ones up to ``up_to``."""
        return up_to - (first if self._unread else self._next) + 1 == count

    def advance(self, up_to: int, found: bool) -> None:
        """All up to there are dealt with, and there were some or none."""
        self._next = up_to + 1
        self._unread = self._unread and not found

    def compare(self, info: StreamInfo) -> int:
        """DataLost when the stream as it is now does not hold what was to come next. The sequence that is next."""
        now = Horizon.of(info)
        if self._range.created and self._range.created != now.created:
            self._missing(f"the stream was created anew at {now.created}")
        elif now.first_seq > self._next and not now.superseding:
            if self._unread:
                log.info("stream %s begins at %d now: it is read from there", self._range.stream, now.first_seq)
                self._next = now.first_seq
            else:
                self._missing(f"the stream begins at {now.first_seq} now")
        return self._next

    def _missing(self, reason: str) -> None:
        error = DataLost(self._range.stream, self._next, self._range.end, reason)
        if self._strict:
            raise error
        log.warning("%s", error)
