"""How far to read ahead when nobody has said it, without I/O.

Owns the measure of a reader: how fast it takes what has come, and how big that is. With few messages on their way a
fast reader waits for the server, which has the more work with them; a slow one holds many in vain. It is for readers
who have their messages to themselves and acknowledge none: what is read ahead would be missing elsewhere, and would
come a second time when a fast reader turns slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

FIRST: Final = 500
"""Messages before anything is known, and what a slow reader stays at."""
MOST: Final = 4096
"""With 500 initial values of a key/value watch come at a third of the speed, with more than this hardly faster."""
SPAN: Final = 0.1
"""Seconds of reading that may be ahead: more than a round trip takes."""
SIZE: Final = 16 * 2**20
"""Bytes that these should not pass, judged by those that came: a server cuts off whoever lets 64 MiB pile up."""
GUARD: Final = 2 * SIZE
"""Bytes that a pull of more than FIRST messages may bring, if they grow all of a sudden: the server counts them."""
SAMPLES: Final = 8
"""Messages of a batch that are weighed: to count the bytes of each would cost a quarter of the speed."""
_ENOUGH: Final = 64  # messages, to judge a reader by


class Sized(Protocol):
    """What can be weighed."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...


class Ahead:
    """How many messages may be on their way or wait to be taken.

    As many as the reader takes within SPAN, from FIRST to MOST, but no more of them than SIZE bytes are likely to
    hold. Only the time counts in which something waited for the reader; it is passed in (float seconds on a clock that
    goes on within a turn of the event loop, as a reader may keep that busy).
    """

    __slots__ = ("_busy", "_mean", "_pace", "_since", "_taken")

    def __init__(self) -> None:
        self._pace = FIRST
        self._taken = 0
        self._since = self._busy = 0.0
        self._mean = 0  # bytes of a message

    def on_messages(self, messages: Sequence[Sized], waiting: int, now: float) -> None:
        """These came, and wait to be taken behind as many others."""
        if not waiting:
            self._since = now
        sample = messages[:: -(-len(messages) // SAMPLES)]
        self._mean = sum(message.size for message in sample) // len(sample)

    def on_taken(self, count: int, now: float) -> None:
        """So many of them were taken."""
        self._busy += now - self._since
        self._since = now
        self._taken += count

    def begin_again(self) -> None:
        """What was seen is no longer true: messages are much bigger."""
        self._pace, self._taken, self._busy = FIRST, 0, 0.0

    def decide(self) -> int:
        """How many it is from now on, by what was seen since the last decision."""
        if self._taken >= _ENOUGH:
            quick = self._taken * SPAN >= MOST * self._busy
            self._pace = MOST if quick else max(FIRST, int(self._taken * SPAN / self._busy))
            self._taken, self._busy = 0, 0.0
        return max(1, min(self._pace, SIZE // self._mean)) if self._mean else self._pace
