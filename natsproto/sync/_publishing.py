"""What is published, on its way from any thread to the event loop.

Owns what was published and not handed over yet. A way into the loop and back costs 50 to 300 µs, so publishing does not
wait for each: it checks what can be checked, leaves the message here, and the loop takes all there is at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from natsproto.errors import PublishFailed
from natsproto.sync._portal import Portal

T = TypeVar("T")

MAX_MSGS = 4096
"""Messages that may be on their way; then publishing waits."""

BIG = 16 * 1024
"""Bytes of a payload that is worth waiting for: so that what is on its way is 64 MiB at most."""


class Outgoing(Generic[T]):
    """What goes to one place, which ``send`` hands over. ``put`` is for all threads, the rest runs on the loop."""

    def __init__(self, portal: Portal, send: Callable[[T], Awaitable[object]]) -> None:
        self._portal = portal
        self._send = send
        self._items: deque[T] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._posted = False
        self._errors: deque[Exception] = deque()

    @property
    def busy(self) -> bool:
        """Whether any are on their way."""
        return bool(self._items) or self._sender is not None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int) -> None:
        """Takes one whose payload is of that size; raises what became of earlier ones, and then takes nothing."""
        self._raise()
        self._items.append(item)
        if not self._posted:
            self._posted = True
            self._portal.post(self._start)
        if len(self._items) >= MAX_MSGS or size >= BIG:
            self._portal.call(self.handed_over)

    async def settled(self, timeout: float | None = None) -> None:
        """Until all are handed over, or so many seconds; raises why they were not."""
        await self.handed_over(timeout)
        self._raise()

    async def handed_over(self, timeout: float | None = None) -> None:
        """As ``settled``; what went wrong is for who publishes next."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self.busy and (deadline is None or loop.time() < deadline):
            self._start()
            if self._sender is not None:
                await asyncio.wait([self._sender], timeout=None if deadline is None else deadline - loop.time())

    def fail(self, error: Exception) -> None:
        """The next call of whoever publishes is told."""
        self._errors.append(error)

    def _start(self) -> None:
        self._posted = False  # before looking: what comes now is either seen here or posted again
        if self._sender is None and self._items:
            self._sender = asyncio.get_running_loop().create_task(self._hand_over(), name="natsproto sync publish")

    async def _hand_over(self) -> None:
        items, send = self._items, self._send
        try:
            while items:
                try:
                    await send(items[0])
                finally:
                    items.popleft()  # until now it is counted here
        except Exception as exc:
            self.fail(exc)
        finally:
            self._sender = None
            self._start()

    def _raise(self) -> None:
        if not self._errors:
            return
        error: Exception | None = None
        while True:
            try:
                error = together(error, self._errors.popleft())  # each is told once, to one of the threads
            except IndexError:
                break
        if error is not None:
            raise error


def together(first: Exception | None, then: Exception) -> Exception:
    """What to raise of two errors: the first, with all failures when both tell of some."""
    if not (isinstance(first, PublishFailed) and isinstance(then, PublishFailed)):
        return then if first is None else first
    both = PublishFailed([*first.failures, *then.failures])
    both.__cause__ = first.__cause__
    return both
