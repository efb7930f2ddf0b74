"""Waiting for a change in one event loop, and the check that it is the right loop."""

from __future__ import annotations

import asyncio

from natsproto import errors

running_loop = asyncio._get_running_loop
"""Return the running event loop, or None. The public function raises an error instead, which is slow."""


def wrong_loop_error() -> errors.LocalProtocolError:
    """Return the error for a client used outside its event loop, where its futures would never wake a waiter."""
    return errors.LocalProtocolError(
        "the client was used outside its event loop: in another loop or thread, or in a forked process; "
        "create a client there, use natsproto.sync, or call asyncio.run_coroutine_threadsafe"
    )


def release(waiter: asyncio.Future[None]) -> None:
    """Wake a waiter; does nothing if it was woken already."""
    if not waiter.done():
        waiter.set_result(None)


class Notifier:
    """Coroutines that wait for the same change, in order."""

    __slots__ = ("_loop", "_waiters")

    def __init__(self) -> None:
        self._loop = running_loop()
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """True if a coroutine is waiting."""
        return bool(self._waiters)

    def next_wake(self) -> asyncio.Future[None]:
        """Return a future for the next wake(). A caller that gives up must call wake(). LocalProtocolError as for
        wait().
        """
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    async def wait(self, deadline: float | None = None) -> None:
        """Wait for the next wake(), or until the deadline (loop time). Cancelling removes the waiter.

        LocalProtocolError in another event loop than the one where the notifier was created.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise wrong_loop_error()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline is None else loop.call_at(deadline, release, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all waiters; each checks again for what it waits for."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)
