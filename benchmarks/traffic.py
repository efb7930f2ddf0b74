"""Traffic as users have it, from a seed: subjects in any order, payloads of many lengths, headers that never repeat.

Owns the shapes. The same seed gives the same messages in every process, so that both clients of a pair get the very
same bytes; another seed gives other ones. Knows no client and no socket.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

__all__ = ["Message", "Traffic"]

_REGIONS = ("eu", "us", "ap", "sa")
_FILLER = "abcdefghijklmnopqrstuvwxyz0123456789 ,.;" * 110
_LEAST, _MOST = 40, 4096
_ZIPF_SUBJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Message:
    """What is published; ``subject`` is what follows the prefix that tells clients apart."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One shape of traffic.

    ``subjects`` is how many there are, drawn at random each time; 0 stands for 10,000 by Zipf's law, -1 for one that
    never comes again. ``size`` is "real" (log-normal, 40 B to 4 KiB, median 250 B), "short" (60 to 400 B, all equally
    often) or a number of bytes. ``groups`` puts a first token before the subject, one for each subscription.
    """

    subjects: int = 1000
    size: int | str = "real"
    headers: bool = False
    groups: int = 1

    def messages(self, seed: int, count: int) -> list[Message]:
        """``count`` messages."""
        rng = random.Random(f"{seed} {self}")
        sizes = self._sizes(rng, count)
        names = self._names(rng, count)
        if self.groups > 1:
            names = [
                f"{group}.{name}" for group, name in zip(rng.choices(range(self.groups), k=count), names, strict=True)
            ]
        if not self.headers:
            return [
                Message(name, _payload(n, size), None) for n, (name, size) in enumerate(zip(names, sizes, strict=True))
            ]
        return [
            Message(name, _payload(n, size), _headers(rng))
            for n, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]

    def _names(self, rng: random.Random, count: int) -> list[str]:
        if self.subjects == -1:
            return [_subject(number) for number in rng.sample(range(10 * count), count)]
        if self.subjects == 1:
            return [_subject(1)] * count
        if self.subjects == 0:
            return rng.choices(_subjects(_ZIPF_SUBJECTS), cum_weights=_zipf(), k=count)
        return rng.choices(_subjects(self.subjects), k=count)

    def _sizes(self, rng: random.Random, count: int) -> list[int]:
        if isinstance(self.size, int):
            return [self.size] * count
        if self.size == "short":
            return rng.choices(range(60, 401), k=count)
        assert self.size == "real"
        drawn = (round(rng.lognormvariate(5.52, 0.9)) for _ in range(4096))
        return rng.choices([min(_MOST, max(_LEAST, size)) for size in drawn], k=count)


@lru_cache
def _subjects(count: int) -> list[str]:
    return [_subject(number) for number in range(count)]


@lru_cache
def _zipf() -> list[float]:
    return list(accumulate(1 / (rank + 1) for rank in range(_ZIPF_SUBJECTS)))


def _subject(number: int) -> str:
    return f"{_REGIONS[number % 4]}.customer-{number * 7919 % 1_000_003}.created"


def _payload(number: int, size: int) -> bytes:
    """JSON of exactly that many bytes."""
    head = f'{{"id":{number:08d},"total":{number % 9973},"note":"'
    text = _FILLER[number % 97 :][: size - len(head) - 2]
    short = size - len(head) - 2 - len(text)
    return f'{head}{text}{"x" * short}"}}'.encode()


def _headers(rng: random.Random) -> dict[str, str]:
    return {
        "Nats-Msg-Id": f"{rng.getrandbits(88):022x}",
        "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01",
    }
