"""``nats.nuid``: unique identifiers."""

from __future__ import annotations

from os import getpid
from random import Random
from secrets import randbits

DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
BASE = len(DIGITS)
PREFIX_LENGTH = 12
SEQ_LENGTH = 10
TOTAL_LENGTH = PREFIX_LENGTH + SEQ_LENGTH
MAX_SEQ = BASE**SEQ_LENGTH
MIN_INC, MAX_INC = 33, 333
INC = MAX_INC - MIN_INC


class NUID:
    """Makes identifiers: a random prefix followed by a number that grows in random steps."""

    def __init__(self) -> None:
        self._seed()

    def _seed(self) -> None:
        self._process = getpid()
        self._random = Random(randbits(128))  # noqa: S311  # unique, not secret
        self.randomize_prefix()
        self.reset_sequential()

    def next(self) -> bytearray:
        if self._process != getpid():  # after a fork the parent makes the same identifiers
            self._seed()
        self._seq += self._inc
        if self._seq >= MAX_SEQ:
            self.randomize_prefix()
            self.reset_sequential()
        digits, rest = bytearray(SEQ_LENGTH), self._seq
        for place in range(SEQ_LENGTH - 1, -1, -1):
            rest, digit = divmod(rest, BASE)
            digits[place] = DIGITS[digit]
        return self._prefix + digits

    def randomize_prefix(self) -> None:
        self._prefix = bytearray(self._random.choices(DIGITS, k=PREFIX_LENGTH))

    def reset_sequential(self) -> None:
        self._seq = self._random.randrange(MAX_SEQ)
        self._inc = self._random.randrange(MIN_INC, MAX_INC)
