"""An event loop on a thread of its own, and the way into it from other threads.

Owns the thread, the loop, and the calls that are in it. It knows nothing of NATS but the errors it raises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, ParamSpec, TypeVar

from natsproto.errors import ConnectionClosed, LocalProtocolError

P = ParamSpec("P")
R = TypeVar("R")

PARTING: Final = 5.0
"""Seconds that the end of a loop which was left waits for what it read. The garbage collector may be who ends it, in a
thread that holds a lock, so it must not wait for ever.
"""


class _Call(Generic[R]):
    """Work in the loop, and the thread that waits for it. Everything but ``future`` is the loop's."""

    def __init__(
        self, work: Coroutine[object, object, R], lost: Callable[[R], object] | None, ended: asyncio.Future[None]
    ) -> None:
        self.future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._work, self._lost, self._ended = work, lost, ended
        self._task: asyncio.Task[R] | None = None
        self._left = False

    def start(self) -> None:
        """Begins, unless the loop is ending: it has cancelled what it had, and would leave a new task half-way."""
        if self._ended.done():
            self.give_up()
            return
        self._task = asyncio.get_running_loop().create_task(self._work, name="natsproto sync call")
        self._task.add_done_callback(self._done)

    def leave(self) -> None:
        """Nobody waits any more. What it has brought, if it was quicker, is given to ``lost``."""
        self._left = True
        if self._task is None:
            self.give_up()
        elif self._task.done():
            self._done(self._task)
        else:
            self._task.cancel()

    def give_up(self) -> None:
        """The loop is ending or has ended, or never heard of it."""
        if self._task is None:
            self._work.close()
        self.future.cancel()

    def _done(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self.future.cancel()
            return
        error = task.exception()
        if self._left:
            if error is None and self._lost is not None:
                lost, self._lost = self._lost, None
                lost(task.result())
        elif error is None:
            self.future.set_result(task.result())
        else:
            self.future.set_exception(error)


class Portal:
    """Runs functions and coroutines on its loop and waits for them.

    It belongs to the process that made it: after a fork the thread is not there, and the sockets are the parent's.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._closed = False
        self._calls: set[_Call[Any]] = set()
        self._streams: set[AsyncIterator[Any]] = set()  # what is being iterated
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        # A daemon: a program that forgets to close ends all the same.
        self._thread = threading.Thread(target=self._run, args=(started,), name="natsproto sync", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def check(self) -> None:
        """LocalProtocolError when a call from here would never return, ConnectionClosed after ``stop``."""
        if self._process != os.getpid():
            raise LocalProtocolError(
                f"it was made in process {self._process}, this is {os.getpid()}: sockets cannot be shared, "
                "ask the client for it again in this process"
            )
        if self._closed:
            raise ConnectionClosed()
        if self.is_here:
            raise LocalProtocolError(
                "called on the thread of its own event loop (by a callback?), which would wait for itself: "
                "use the async client there, or hand the work to another thread"
            )

    @property
    def stopped(self) -> bool:
        """Whether it has ended, for this process."""
        return self._closed or self._process != os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the loop."""
        return threading.current_thread() is self._thread

    def call(self, verb: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the verb returns, awaited. An interrupt (Ctrl-C) cancels it."""

        async def work() -> R:
            return await verb(*args, **kwargs)

        return self._wait(work())

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns; for those that wait for nothing but must run on the loop."""

        async def work() -> R:
            return function(*args, **kwargs)

        return self._wait(work())

    def obtain(self, verb: Callable[[], Awaitable[R]], lost: Callable[[R], object]) -> R:
        """What the verb returns, awaited. What an interrupt prevents from being returned is given to ``lost``, on the
        loop.
        """

        async def work() -> R:
            return await verb()

        return self._wait(work(), lost)

    def enter(self, manager: AbstractAsyncContextManager[R]) -> R:
        """Enters it; an interrupt leaves it again."""

        def leave(_: R) -> None:
            self.begin(manager.__aexit__(None, None, None))

        return self.obtain(manager.__aenter__, leave)

    def post(self, function: Callable[[], object]) -> None:
        """Lets the loop run the function soon; nobody waits for it. ConnectionClosed when it has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise ConnectionClosed() from None

    def begin(self, work: Coroutine[object, object, object]) -> None:
        """Begins work that nobody waits for. For who is on the loop."""
        self._parting(work).start()

    def part(self, verb: Callable[[], Coroutine[object, object, object]], *, wait: bool) -> None:
        """Lets the loop do it, whatever thread this is and whether or not it has ended. Never raises.

        With ``wait`` until it is done, unless this is the loop's own thread, but not for ever.
        """
        if self.stopped:
            return
        call = self._parting(verb())
        try:
            self.post(call.start)
        except ConnectionClosed:
            call.give_up()
        if wait and not self.is_here:
            concurrent.futures.wait([call.future], PARTING)

    def _parting(self, work: Coroutine[object, object, R]) -> _Call[R]:
        """Work that goes on without anybody who waits for it."""
        call = _Call(work, None, self._ended)
        self._calls.add(call)
        call.future.add_done_callback(lambda _: self._calls.discard(call))
        return call

    def _wait(self, work: Coroutine[object, object, R], lost: Callable[[R], object] | None = None) -> R:
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        call = _Call(work, lost, self._ended)
        future = call.future
        self._calls.add(call)
        try:
            self.post(call.start)
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionClosed() from None
        except BaseException as exc:
            if not (future.done() and not future.cancelled() and future.exception() is exc):
                self._leave(call)
            raise
        finally:
            self._calls.discard(call)

    def _leave(self, call: _Call[Any]) -> None:
        try:
            self.post(call.leave)
        except ConnectionClosed:
            call.give_up()

    def iterate(self, source: AsyncIterable[R]) -> Iterator[R]:
        """Everything that can be had by iterating; leaving the loop ends it."""
        stream: AsyncIterator[R] = self.run(aiter, source)
        # The garbage collector must not find the two of them together: it would end them one after the other in its own
        # thread, the second while the loop is at it.
        self._streams.add(stream)
        turn = asyncio.Lock()  # an interrupted step must be over before the end

        async def step() -> R:
            async with turn:
                return await anext(stream)

        async def end() -> None:
            close = getattr(stream, "aclose", None)
            async with turn:
                try:
                    if close is not None:
                        await close()
                finally:
                    self._streams.discard(stream)

        try:
            while True:
                try:
                    yield self.call(step)
                except StopAsyncIteration:
                    return
        finally:
            self.part(end, wait=False)

    def stop(self) -> None:
        """Ends the loop and the thread; calls still in it raise ConnectionClosed. Does nothing in another process."""
        if self.stopped:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._end)
        if not self.is_here:
            self._thread.join()

    def _run(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(started))
        finally:
            for call in list(self._calls):
                call.give_up()  # what the loop did not get round to
            self._streams.clear()  # the loop has ended them

    async def _serve(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        started.set_result(loop)
        await self._ended

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
