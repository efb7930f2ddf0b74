"""Waiting for the end of a reader that calls a handler: ``consume``, a watch with a callback, a member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from natsproto import errors
from natsproto._core.event_bus import ClientLog
from natsproto._durations import NO_LIMIT_S
from natsproto._signals import check_until


class EndWaiters:
    """The calls that wait until a reader with a callback has ended. An error that nobody waits for is logged."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._count = 0
        self._is_told = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A call waits for the end in this block, and raises the error that ended the reader."""
        self._count += 1
        try:
            yield
        except errors.NatsError:
            self._is_told = True
            raise
        finally:
            self._count -= 1

    async def wait(
        self,
        tasks: Collection[asyncio.Task[None]],
        until: asyncio.Event | None = None,
        timeout: float = NO_LIMIT_S,
    ) -> None:
        """Wait until these tasks, except the current one, are done or the event is set; at most ``timeout`` seconds."""
        check_until(until)
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        stopped = () if until is None else (asyncio.ensure_future(until.wait()),)
        try:
            while busy := [task for task in tasks if not task.done() and task is not me]:
                left = deadline - loop.time()
                await asyncio.wait((*busy, *stopped), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if stopped and stopped[0].done():
                    stopped[0].result()  # RuntimeError for an event of another loop
                    return
                if loop.time() >= deadline:
                    return
        finally:
            for future in stopped:
                future.cancel()

    def on_end(self, what: str, error: errors.NatsError | None, advice: str) -> None:
        """The reader has ended. Log the error once, unless a call waits, which raises it, or the client was closed,
        which is in the log already.
        """
        if error is None or isinstance(error, errors.Unavailable) or self._count or self._is_told:
            return
        self._is_told = True
        self._log.error("%s has ended: %s", what, f"{error}: {advice}" if advice else error)
