"""PURE. Remembers which deliveries a reader has acknowledged, so that a repeated one is not handled again.

An acknowledgement may be lost with the connection; then the server delivers the message again. Remembering one costs an
append: ack subjects are parsed only when a redelivery comes.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile
from typing import Final

MAX_REMEMBERED: Final = 65_536
"""Acknowledgements that are remembered at most."""
LATELY_S: Final = 1.0
"""Seconds before the last message came. Acknowledgements since then may be lost with a server."""

Subject = bytes | str | None
Position = tuple[int, int]
"""The stream sequence and the time of a message. A stream that has lost its end gives its sequences again."""


class Acknowledged:
    """The acknowledged messages of one reader: those since the last redelivery or lost connection by their ack
    subjects, older ones by their stream sequences.
    """

    __slots__ = ("_kept", "_marked_at", "_marks", "recent")

    def __init__(self, most: int) -> None:
        self.recent: deque[Subject] = deque(maxlen=min(most, MAX_REMEMBERED))
        """The ack subjects; readers append to it."""
        self._kept: dict[Position, Subject] = {}  # the oldest first
        self._marks: tuple[Subject, Subject] = (None, None)  # the last ones at two earlier times
        self._marked_at = 0.0

    def __contains__(self, position: Position) -> bool:
        self.keep()
        return position in self._kept

    def keep(self) -> list[Position]:
        """Keep the recent ones beyond the next that are acknowledged; return their positions."""
        kept, positions = self._kept, list(map(position_of, self.recent))
        for position, subject in zip(positions, self.recent, strict=True):
            kept.pop(position, None)
            kept[position] = subject
        self.recent.clear()
        surplus = len(kept) - MAX_REMEMBERED
        for position in list(islice(kept, max(surplus, 0))):
            del kept[position]
        return positions

    def on_tick(self, now: float) -> None:
        """Messages have come since the last time, so the connection works."""
        if now - self._marked_at >= LATELY_S:
            self._marked_at = now
            last = self.recent[-1] if self.recent else next(reversed(self._kept.values()), None)
            self._marks = (self._marks[1], last)

    def lately(self) -> dict[Position, Subject]:
        """The ack subjects of the last seconds by position, the last one first; at most as many as may be
        unacknowledged.
        """
        self.keep()
        last = islice(reversed(self._kept.items()), self.recent.maxlen)
        return dict(takewhile(lambda pair: pair[1] is not self._marks[0], last))

    def forget(self, position: Position) -> None:
        """Forget a message that is handled again."""
        self._kept.pop(position, None)

    def clear(self) -> None:
        """Forget all: this is another consumer."""
        self.recent.clear()
        self._kept.clear()


def position_of(subject: Subject) -> Position:
    """Return what identifies the message with this ack subject; zeros if it is none."""
    text = subject if isinstance(subject, str) else (subject or b"").decode("utf-8", "surrogateescape")
    tokens = text.split(".")
    first = 7 if len(tokens) > 10 else 5 if len(tokens) == 9 else 0
    seq, time = (tokens[first], tokens[first + 2]) if first else ("", "")
    return (int(seq), int(time)) if tokens[first - 1].isdecimal() and seq.isdecimal() and time.isdecimal() else (0, 0)
