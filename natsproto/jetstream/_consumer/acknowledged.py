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


class Acknowledged:
    """The acknowledged messages of one reader: those since the last redelivery or lost connection by their ack
    subjects, older ones by their stream sequences.
    """

    __slots__ = ("_kept", "_marked_at", "_marks", "recent")

    def __init__(self, most: int) -> None:
        self.recent: deque[Subject] = deque(maxlen=min(most, MAX_REMEMBERED))
        """The ack subjects; readers append to it."""
        self._kept: dict[int, Subject] = {}  # by stream sequences, the oldest first
        self._marks: tuple[Subject, Subject] = (None, None)  # the last ones at two earlier times
        self._marked_at = 0.0

    def __contains__(self, stream_seq: int) -> bool:
        self.keep()
        return stream_seq in self._kept

    def keep(self) -> list[int]:
        """Keep the recent ones beyond the next that are acknowledged; return their stream sequences."""
        kept, seqs = self._kept, list(map(stream_seq_of, self.recent))
        for seq, subject in zip(seqs, self.recent, strict=True):
            kept.pop(seq, None)
            kept[seq] = subject
        self.recent.clear()
        surplus = len(kept) - MAX_REMEMBERED
        for seq in list(islice(kept, max(surplus, 0))):
            del kept[seq]
        return seqs

    def on_tick(self, now: float) -> None:
        """Messages have come since the last time, so the connection works."""
        if now - self._marked_at >= LATELY_S:
            self._marked_at = now
            last = self.recent[-1] if self.recent else next(reversed(self._kept.values()), None)
            self._marks = (self._marks[1], last)

    def lately(self) -> dict[int, Subject]:
        """The ack subjects of the last seconds by stream sequence, the last one first; at most as many as may be
        unacknowledged.
        """
        self.keep()
        last = islice(reversed(self._kept.items()), self.recent.maxlen)
        return dict(takewhile(lambda pair: pair[1] is not self._marks[0], last))

    def forget(self, stream_seq: int) -> None:
        """Forget a message that is handled again."""
        self._kept.pop(stream_seq, None)

    def clear(self) -> None:
        """Forget all: this is another consumer."""
        self.recent.clear()
        self._kept.clear()


def stream_seq_of(subject: Subject) -> int:
    """Return the stream sequence in an ack subject; 0 if it is none."""
    text = subject if isinstance(subject, str) else (subject or b"").decode("utf-8", "surrogateescape")
    tokens = text.split(".")
    place = 7 if len(tokens) > 10 else 5 if len(tokens) == 9 else 0
    return int(tokens[place]) if place and tokens[place - 1].isdecimal() and tokens[place].isdecimal() else 0
