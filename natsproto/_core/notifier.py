"""How coroutines wait for the same thing, and who may: those of one event loop."""

from __future__ import annotations

import asyncio

from natsproto.errors import LocalProtocolError

running_loop = asyncio._get_running_loop
"""The event loop that is running here, or None. The public function costs an error where there is none."""


def wrong_loop_error() -> LocalProtocolError:
    """For whoever uses a client where it is not at home: what is waited for there would never come, or too late."""
    return LocalProtocolError(
        "the client was used outside its event loop: in another loop or thread, or in a forked process; "
        "create a client there, use natsproto.sync, or call asyncio.run_coroutine_threadsafe"
    )


def release(waiter: asyncio.Future[None]) -> None:
    """Lets the coroutine that waits go on; harmless when it does already."""
    if not waiter.done():
        waiter.set_result(None)


class Notifier:
    """Coroutines that wait for the same thing, in order."""

    __slots__ = ("_loop", "_waiters")

    def __init__(self) -> None:
        self._loop = running_loop()
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def join(self) -> asyncio.Future[None]:
        """What to await until the next wake(), which whoever gives up has to call. LocalProtocolError as for wait()."""
        if running_loop() is not self._loop:
            raise wrong_loop_error()
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    async def wait(self, deadline: float | None = None) -> None:
        """Until the next wake(), or the deadline (loop time) is reached. Cancelling takes the coroutine out.
        LocalProtocolError in another event loop than the one it was made in.
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
        """All of them go on soon, each to see whether what it waits for is there."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)
