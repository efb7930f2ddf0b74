"""An event loop whose time is a number.

Owns the jump: when nothing is ready, time moves at once to the next timer, so a test of a two-minute
ping interval takes milliseconds and gives the same result on a loaded machine. Refuses to guess: as long
as a real descriptor (a socket) is registered or a thread is at work, time passes at its real pace, because
nobody can know when those will be ready; and when nothing can ever happen again it raises instead of
hanging.
"""

from __future__ import annotations

import asyncio
import functools
import io
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, ParamSpec, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["DAY", "Deadlock", "TimeRanOut", "VirtualClockLoop", "advance", "run_virtual", "virtual_clock"]

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

DAY = 86_400.0


class Deadlock(RuntimeError):
    """No handle is ready, no timer is set, no descriptor is open: the tasks named here wait for ever."""

    def __init__(self, now: float, tasks: str) -> None:
        self.now = now
        super().__init__(f"at {now:g} s nothing can ever happen again; waiting:\n{tasks}")


class TimeRanOut(RuntimeError):
    """Virtual time passed its limit: only periodic timers are left, and the test waits for something else."""

    def __init__(self, limit: float, tasks: str) -> None:
        self.limit = limit
        super().__init__(f"{limit:g} s of virtual time passed; waiting:\n{tasks}")


class _JumpingSelector(selectors.BaseSelector):
    """Asks the real selector without waiting, and moves the clock when it has nothing."""

    def __init__(self, start: float) -> None:
        self._real = selectors.DefaultSelector()
        self.now = start
        self.limit = float("inf")
        self.own_descriptors = 0  # the loop's self-pipe
        self.threads = 0
        self.waiting: Callable[[], str] = str

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.threads or len(self._real.get_map()) > self.own_descriptors:
            began = time.monotonic()
            ready = self._real.select(timeout)
            # Never past the timer that is due: a late wake-up must not let two timers fall together.
            passed = time.monotonic() - began
            self.now += passed if timeout is None else min(passed, timeout)
        elif timeout is None:
            raise Deadlock(self.now, self.waiting())
        else:
            self.now += timeout
        if self.now > self.limit:
            limit, self.limit = self.limit, float("inf")  # raised once, so that cleaning up may take time
            raise TimeRanOut(limit, self.waiting())
        return ready

    def register(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A selector loop on virtual time.

    ``start`` is what ``time()`` says first, in seconds; ``limit`` is how much virtual time may pass before
    TimeRanOut is raised from ``run_*``. Deadlock is raised when nothing can ever happen again. Wake-ups from
    threads are noticed only for threads started with ``run_in_executor``.
    """

    def __init__(self, *, start: float = 1000.0, limit: float = DAY) -> None:
        self._jumping = _JumpingSelector(start)
        super().__init__(self._jumping)
        self._jumping.own_descriptors = len(self._jumping.get_map())
        self._jumping.limit = start + limit
        self._jumping.waiting = self._describe_tasks
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._jumping.threads += 1  # the executor is joined in a thread of its own
        try:
            await super().shutdown_default_executor()
        finally:
            self._jumping.threads -= 1

    def _thread_done(self, _: asyncio.Future[T]) -> None:
        self._jumping.threads -= 1

    def _describe_tasks(self) -> str:
        text = io.StringIO()
        for task in asyncio.all_tasks(self):
            task.print_stack(file=text)
        return text.getvalue() or "(no task)"


async def advance(seconds: float) -> None:
    """Lets so much virtual time pass. AssertionError where time is real: nothing is waited for by sleeping there."""
    assert isinstance(asyncio.get_running_loop(), VirtualClockLoop), "not on virtual time: wait for an event instead"
    await asyncio.sleep(seconds)


def run_virtual(main: Callable[[], Coroutine[object, object, T]], *, limit: float = DAY) -> T:
    """Run ``main()`` to its end on a new VirtualClockLoop and return what it returns.

    ``limit`` is in virtual seconds. Raises Deadlock or TimeRanOut where a real loop would hang.
    """
    with asyncio.Runner(loop_factory=functools.partial(VirtualClockLoop, limit=limit)) as runner:
        return runner.run(main())


def virtual_clock(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make an async test a plain one that runs on virtual time.

    Its fixtures still come by name; async fixtures would live on another loop and are of no use here.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        run_virtual(main)

    return run
