"""What happened, in order, and a way to wait for it without sleeping.

Owns a list. Knows nothing of what it is given: hand it to whatever calls back with one object.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

__all__ = ["Watch"]

T = TypeVar("T")


class Watch:
    """A callback that keeps everything it is called with in ``seen``."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self._news = asyncio.Event()

    def __call__(self, happening: object) -> None:
        self.seen.append(happening)
        self._news.set()

    def all(self, kind: type[T]) -> list[T]:
        """Everything of that kind so far."""
        return [one for one in self.seen if isinstance(one, kind)]

    async def until(self, kind: type[T], number: int = 1, *, timeout: float = 10.0) -> T:
        """Waits for the ``number``-th of that kind, counted from the start, and returns it.

        AssertionError after ``timeout`` seconds says what was seen.
        """
        try:
            async with asyncio.timeout(timeout):
                while len(self.all(kind)) < number:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            seen = "\n".join(map(repr, self.seen))
            raise AssertionError(f"no {number}. {kind.__name__} within {timeout:g} s; seen:\n{seen}") from None
        return self.all(kind)[number - 1]
