"""An instance of a member: starts, waits for and ends the reading.

Owns the task in which the member reads.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from natsproto import errors
from natsproto._core.event_bus import ClientLog
from natsproto._core.notifier import running_loop, wrong_loop_error
from natsproto._help.async_hints import RunHint
from natsproto._signals import check_until
from natsproto.jetstream._consumer.end_waiters import EndWaiters
from natsproto.jetstream.groups._follower import ConfigFollower
from natsproto.jetstream.groups._stall_watch import StallWatch


class Member(RunHint):
    """One instance of a member. Created by ``consume`` of a group: use it with ``async with``, or ``await`` its
    ``run()``.

    It ends by ``stop``, when the group is deleted, or on an error, which ``wait``, ``run`` and leaving the block raise
    (GroupChanged, PermissionDenied, BucketNotFound …). Leaving the block stops.
    """

    _unused_warning = "consume(...) of a group was never run or entered"

    def __init__(
        self, name: str, log: ClientLog, follower: ConfigFollower | None, stall_watch: StallWatch | None
    ) -> None:
        self.name: str = name
        """The name of the member."""
        self._follower, self._stall_watch = follower, stall_watch
        self._task: asyncio.Task[None] | None = None
        self._end_waiters = EndWaiters(log)
        self._begun = False

    # ---------------------------------------------------------------- properties

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of the member in the last configuration."""
        return () if self._follower is None else self._follower.partitions

    @property
    def is_joined(self) -> bool:
        """True while it reads the member's consumer; of several instances the server serves one."""
        return self._follower is not None and self._follower.joined.is_set()

    @property
    def closed(self) -> bool:
        """True after its end."""
        return self._task is not None and self._task.done()

    async def wait_joined(self) -> None:
        """Wait until it reads the member's consumer. Raises the error that ended it; LocalProtocolError when it was
        stopped.

        Cancelling ends the wait.
        """
        task, follower = self._started(), self._opened
        waiting = asyncio.ensure_future(follower.joined.wait())
        with self._end_waiters.waiting():
            try:
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if not follower.joined.is_set():
            await self.wait()
            raise errors.LocalProtocolError(f"member {self.name!r} has ended before it joined")

    # ---------------------------------------------------------------- running

    async def __aenter__(self) -> Self:
        self._begun = True
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"natsproto member {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if exc is None:
            await self.wait()

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Join, and wait until it has ended, or until the event is set, which stops it. Raises the error that ended it.

        Cancelling stops it.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        self._begun = True  # an error replaces the warning
        check_until(until)
        async with self:
            await self.wait(until)

    async def wait(self, until: asyncio.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set; raise its error, unless it was stopped or the group
        deleted. Cancelling ends the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        task = self._started()
        with self._end_waiters.waiting():
            await self._end_waiters.wait((task,), until)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error.with_traceback(None)

    async def stop(self) -> None:
        """Wait for running handlers and end; another instance takes over. Never raises.

        The consumer is kept; in an elastic group the server removes it after ``ack_wait`` without instances. Handlers
        get the option ``drain_timeout``, and are cancelled then. In the handler it returns at once, and the rest
        happens after the handler.
        """
        self._begun = True
        if self._task is not None and not self._task.done():
            self._started().cancel()
            if self._follower is not None and self._follower.is_caller_inside:
                return
            with self._end_waiters.waiting():
                await asyncio.wait({self._task})

    def _started(self) -> asyncio.Task[None]:
        self._begun = True  # avoids the warning about an unused object
        if self._task is None:
            raise errors.LocalProtocolError(f"enter member {self.name!r} with async with first")
        if self._task.get_loop() is not running_loop():
            raise wrong_loop_error()
        return self._task

    # ---------------------------------------------------------------- internals

    @property
    def _opened(self) -> ConfigFollower:
        assert self._follower is not None, "it was entered"
        return self._follower

    async def _run(self) -> None:
        watching = self._watch_stalls()
        try:
            await self._opened.run()
        except errors.NatsError as exc:
            self._on_error(exc)
            raise
        finally:
            if watching is not None:
                watching.cancel()

    def _watch_stalls(self) -> asyncio.Task[None] | None:
        work, watch = self._opened.work, self._stall_watch
        return None if watch is None else asyncio.ensure_future(watch.run(self.name, lambda: work.handled))

    def _on_error(self, error: errors.NatsError) -> None:
        self._end_waiters.on_end(f"group member {self.name!r}", error, "mend the group, then join it again")
