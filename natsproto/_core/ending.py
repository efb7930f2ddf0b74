"""Endings: RUNNING, then DRAINING until a deadline, then CLOSED, for everything that calls handlers or is read.

One ``Ending`` for a client, a subscription, a service: made when the first caller asks for the end. Its rules:

1. The work of ending runs in a task of its own; no caller owns it. Any number begin it, wait for it, are cancelled.
2. A later call can bring the deadline forward, never put it off. When the last waiter is cancelled, it is now.
3. *Inside* is a handler, a loop that reads, and every task or thread that one of them started. It is a property of the
   context and not of a task, since ``asyncio.wait_for``, task groups and threads inherit the context.
4. From inside, a call begins the ending, waits for all other readers, and returns: the state is draining until the
   caller's own reader has ended. Callers inside never wait for each other, whatever each of them ends.
5. A caller whose own reader has ended meanwhile, as after ``break``, waits to the end like one from outside.
6. From outside, a call returns when all is closed.
7. At the deadline what still runs is named, what waits is dropped, and handlers are cancelled. They get CUT_TIMEOUT_S
   seconds, in which they can still answer and return messages. Nothing runs on afterwards, except a thread.
8. Every waiter from outside gets the DrainTimeout, and so does a call after the end.
9. The owner checks loop, thread and process before it begins an ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Final, Protocol, TypeAlias

from natsproto import errors

_Work: TypeAlias = Callable[[], Awaitable[None]]
_Describe: TypeAlias = Callable[[], Awaitable[list[str]]]

CUT_TIMEOUT_S: Final = 2.0
"""Seconds for handlers that are cancelled at the deadline."""


class ReaderKey:
    """Stands for a reader in the contexts of its handlers and loops. It holds nothing, so no context keeps a reader."""

    inner_waiters: int = 0
    """The callers inside that wait for an ending: other callers inside do not wait for its reader."""
    in_use: int = 0
    """The loops that read now; one more for a reader with handlers."""

    def enter(self) -> None:
        """A loop begins: code of the current context is inside until ``leave``."""
        self.in_use += 1
        self.enter_context()

    def leave(self) -> None:
        """A loop has ended."""
        self.in_use -= 1
        if not self.in_use:
            self.leave_context()

    def enter_context(self) -> None:
        """Code of the current context is inside from now on."""
        INSIDE.set((*(key for key in INSIDE.get() if key.in_use), self))  # loops that were left by break are gone

    def leave_context(self) -> None:
        """Code of the current context is not inside any more."""
        if self in (keys := INSIDE.get()):
            INSIDE.set(tuple(key for key in keys if key is not self))

    def mark(self, context: Context) -> None:
        """Code that runs in this context, of a handler, is inside."""
        self.in_use += 1
        context.run(self.enter_context)

    def handler_context(self) -> Context:
        """Return the current context for a handler: code that runs in it is inside."""
        context = copy_context()
        self.mark(context)
        return context


INSIDE: ContextVar[tuple[ReaderKey, ...]] = ContextVar("natsproto inside", default=())
"""The readers in whose handlers or loops the code of a context runs, outermost first."""


class Reader(Protocol):
    """Handles messages, so an ending waits for it: SubscriptionReaders, ReaderTasks."""

    key: ReaderKey

    @property
    def what(self) -> str:
        """Its name in errors."""
        ...

    @property
    def is_busy(self) -> bool:
        """True while messages are handled."""
        ...

    @property
    def unhandled(self) -> int:
        """The messages that wait or are being handled."""
        ...

    async def join(self, *, from_inside: bool = False) -> None:
        """Wait until it is not busy; ``from_inside`` of another one, or until a caller inside waits for an ending."""
        ...

    def wake(self) -> None:
        """Let those who join look again."""
        ...

    def cut(self) -> list[asyncio.Task[None]]:
        """Drop what waits, cancel the handlers, except the caller, and return their tasks."""
        ...


def readers_of_caller(readers: Iterable[Reader]) -> list[Reader]:
    """Return the busy readers inside of which the caller is."""
    keys = INSIDE.get()
    return [reader for reader in readers if reader.key in keys and reader.is_busy] if keys else []


class Ending:
    """The end of one thing, which runs until ``begin``.

    ``work`` stops what comes in, calls ``on_stopped`` and waits until everything was handled. At the deadline
    ``describe_rest`` names what is left. Then, in any case, ``close`` cancels what still runs, and closes.
    """

    def __init__(self, operation: str, work: _Work, describe_rest: _Describe, close: _Work) -> None:
        self.operation = operation
        self.unfinished: list[str] = []
        """The work that was left at the deadline."""
        self.seconds = 0.0
        """The timeout that counts."""
        self.deadline = float("inf")
        """A time of the loop."""
        self._steps: tuple[_Work, _Describe, _Work] | None = work, describe_rest, close
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters = self._inner_waiters = 0

    @property
    def closed(self) -> bool:
        """True after the end."""
        return self._task is not None and self._task.done()

    @property
    def is_stopped(self) -> bool:
        """True when nothing comes in any more."""
        return self._stopped.is_set()

    def begin(self, seconds: float) -> None:
        """Begin, or bring the deadline forward."""
        at = self._loop.time() + seconds
        if self.closed or at >= self.deadline:
            return
        self.seconds, self.deadline = seconds, at
        if self._task is None:
            context = copy_context()
            context.run(INSIDE.set, ())
            self._task = self._loop.create_task(self._run(), name=f"natsproto {self.operation}", context=context)
        elif self._limit is not None and not self._limit.expired():
            self._limit.reschedule(at)

    def on_stopped(self) -> None:
        """Nothing comes in any more."""
        self._stopped.set()

    async def _run(self) -> None:
        assert self._steps is not None
        (work, describe_rest, close), self._steps = self._steps, None  # they keep what has ended
        try:
            async with asyncio.timeout_at(self.deadline) as self._limit:
                await work()
        except TimeoutError:
            self.unfinished += await describe_rest()
        except asyncio.CancelledError:
            self.unfinished += ["the event loop ended"]
            raise
        finally:
            self._limit = None
            self._stopped.set()
            await close()

    async def wait(self) -> None:
        """Wait for the end, from outside. DrainTimeout names what was left at the deadline."""
        assert self._task is not None
        self._waiters += 1
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._waiters == 1 and not self._task.done():
                self.begin(0.0)
                await asyncio.wait((self._task,))
            raise
        finally:
            self._waiters -= 1
        if self.unfinished:
            raise errors.DrainTimeout(self.operation, self.seconds, self.unfinished)

    async def wait_as_caller(
        self,
        readers: Callable[[], Sequence[Reader]],
        then: Callable[[], Awaitable[object]] | None = None,
    ) -> bool:
        """Wait for the end; from inside of one of the ``readers``, for the others and for ``then``. False if it goes on
        until the caller's own reader has ended.
        """
        if not self.closed and (inside := readers_of_caller(readers())):
            await self._wait_inside(inside, readers, then)
            if not self.closed and readers_of_caller(readers()):
                return False
        await self.wait()
        return True

    async def _wait_inside(
        self,
        inside: Sequence[Reader],
        readers: Callable[[], Sequence[Reader]],
        then: Callable[[], Awaitable[object]] | None,
    ) -> None:
        """Wait for the other readers and for ``then``, but not beyond the end."""
        assert self._task is not None
        waiting = self._loop.create_task(self._join_others(readers, then))
        self._inner_waiters += 1
        for reader in inside:
            reader.key.inner_waiters += 1
            reader.wake()
        try:
            await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        except asyncio.CancelledError:
            if not self._waiters and self._inner_waiters == 1:
                self.begin(0.0)
            raise
        finally:
            waiting.cancel()
            self._inner_waiters -= 1
            for reader in inside:
                reader.key.inner_waiters -= 1

    async def _join_others(
        self, readers: Callable[[], Sequence[Reader]], then: Callable[[], Awaitable[object]] | None
    ) -> None:
        await self._stopped.wait()
        for reader in readers():
            await reader.join(from_inside=True)
        if then is not None:
            await then()
