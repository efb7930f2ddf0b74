"""An event loop on a thread of its own, and the way into it from other threads.

Owns the thread, the loop, and the calls that are in it. It knows nothing of NATS but the errors it raises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

from natsproto.errors import ConnectionClosed, LocalProtocolError

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """Runs functions and coroutines on its loop and waits for them.

    It belongs to the process that made it: after a fork the thread is not there, and the sockets are the parent's.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()
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

    def post(self, function: Callable[[], object]) -> None:
        """Lets the loop run the function soon; nobody waits for it. ConnectionClosed when it has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise ConnectionClosed() from None

    def _wait(self, work: Coroutine[object, object, R]) -> R:
        try:
            self.check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException as exc:
            work.close()
            if isinstance(exc, RuntimeError):  # the loop was closed this very moment
                raise ConnectionClosed() from None
            raise
        self._calls.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionClosed() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)

    def iterate(self, source: AsyncIterable[R]) -> Iterator[R]:
        """Everything that can be had by iterating; leaving the loop ends it."""
        stream: AsyncIterator[R] = self.run(aiter, source)
        try:
            while True:
                try:
                    yield self.call(stream.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            end = getattr(stream, "aclose", None)
            if end is not None and not self.stopped:
                # Not waited for: the garbage collector may be who ends this, on any thread.
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(end()))

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
                call.cancel()  # what the loop did not get round to

    async def _serve(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        started.set_result(loop)
        await self._ended

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
