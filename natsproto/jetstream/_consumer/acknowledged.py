"""PURE. Remembers which deliveries a reader has acknowledged, so that a repeated one is not handled again.

An acknowledgement may be lost with the connection; then the server delivers the message again. Remembering one costs an
append: ack subjects are parsed only when a redelivery comes.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

MAX_REMEMBERED: Final = 65_536
"""Acknowledgements that are remembered at most."""


class Acknowledged:
    """The acknowledged messages of one reader: those since the last redelivery or lost connection by their ack
    subjects, older ones by their stream sequences.
    """

    __slots__ = ("_seqs", "recent")

    def __init__(self, most: int) -> None:
        self.recent: deque[bytes | str | None] = deque(maxlen=min(most, MAX_REMEMBERED))
        """The ack subjects; readers append to it."""
        self._seqs: dict[int, None] = {}

    def __contains__(self, stream_seq: int) -> bool:
        self.keep()
        return stream_seq in self._seqs

    def keep(self) -> None:
        """Keep the recent ones beyond the next that are acknowledged: the connection was lost, and they may be, too."""
        for subject in self.recent:
            seq = stream_seq_of(subject)
            self._seqs.pop(seq, None)
            self._seqs[seq] = None
        self.recent.clear()
        surplus = len(self._seqs) - MAX_REMEMBERED
        for seq in list(islice(self._seqs, max(surplus, 0))):
            del self._seqs[seq]

    def forget(self, stream_seq: int) -> None:
        """Forget a message that is handled again."""
        self._seqs.pop(stream_seq, None)

    def clear(self) -> None:
        """Forget all: this is another consumer."""
        self.recent.clear()
        self._seqs.clear()


def stream_seq_of(subject: bytes | str | None) -> int:
    """Return the stream sequence in an ack subject; 0 if it is none."""
    text = subject if isinstance(subject, str) else (subject or b"").decode("utf-8", "surrogateescape")
    tokens = text.split(".")
    place = 7 if len(tokens) > 10 else 5 if len(tokens) == 9 else 0
    return int(tokens[place]) if place and tokens[place - 1].isdecimal() and tokens[place].isdecimal() else 0
