"""The time that a call has, and the pauses between its attempts.

Rules:

1. A deadline is made before the first ``await`` of a public call. It covers all that the call waits for: a writable
   connection, every attempt, every pause, every reconnect.
2. A call that can send at once needs no Deadline: the timer of its request is enough.
3. Pauses double, and each is drawn at random, so that clients that failed together do not try again together.
4. A pause that reaches the deadline is not begun: the caller raises its error at once.
5. A call that could send nothing raises RequestTimeout with ``sent=False``, and nothing of it is sent later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

from natsproto import errors

CONGESTED = "the connection takes no data: the server or the network stands still, or others wait before this"


class Deadline:
    """The end of a call, ``seconds`` after this object is made, in the time of the running loop."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds
        """The ``timeout`` of the call, for its error."""
        self.at: float = asyncio.get_running_loop().time() + seconds
        """The end, in the loop's time."""

    @property
    def left(self) -> float:
        """The seconds that are left; 0.0 after the end."""
        return max(0.0, self.at - asyncio.get_running_loop().time())

    @property
    def is_over(self) -> bool:
        """True from the end on."""
        return asyncio.get_running_loop().time() >= self.at

    def unsent(self, operation: str) -> errors.RequestTimeout:
        """Return the error of a call that waited for a writable connection until the end."""
        return errors.RequestTimeout(operation, self.seconds, sent=False, advice=CONGESTED)

    async def wait(self, work: Awaitable[object]) -> bool:
        """Await ``work``; return False if the deadline came first, which cancels the work. Its errors are raised."""
        expiry = asyncio.timeout_at(self.at)
        try:
            async with expiry:
                await work
        except TimeoutError:
            if not expiry.expired():
                raise
            return False
        return True


class Backoff:
    """Pauses between attempts: they double from ``first`` up to ``longest`` seconds.

    Each is shortened by a random part: ``jitter`` is the largest part of its length that may be missing. The default of
    one half is for servers that come back; 1.0, from zero to the whole length, is for clients that contend.
    """

    __slots__ = ("_first", "_jitter", "_length", "_longest")

    def __init__(self, first: float = 0.1, longest: float = 5.0, *, jitter: float = 0.5) -> None:
        self._first, self._longest, self._jitter = first, longest, jitter
        self._length = first

    def next_delay(self) -> float:
        """Return the seconds before the next attempt; the following pause is longer."""
        length, self._length = self._length, min(2 * self._length, self._longest)
        return length * (1 - self._jitter * random.random())  # noqa: S311  # no secret

    async def pause(self, deadline: Deadline | None = None) -> bool:
        """Sleep before the next attempt; return False, at once, if it could not begin before the ``deadline``."""
        seconds = self.next_delay()
        if deadline is not None and deadline.left <= seconds:
            return False
        await asyncio.sleep(seconds)
        return True

    def reset(self) -> None:
        """An attempt has succeeded: the next pause is the first one again."""
        self._length = self._first
