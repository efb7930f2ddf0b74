"""An event loop on a thread of its own, and calls into it from other threads.

Owns the thread, the loop, the calls in progress, and the tracker of threads. It knows nothing of NATS except the errors
that it raises.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from natsproto import errors
from natsproto.sync._signals import check_until
from natsproto.sync._threads import ThreadTracker

P = ParamSpec("P")
R = TypeVar("R")

DETACHED_TIMEOUT_S: Final = 5.0
"""Seconds that ``run_detached`` waits. The garbage collector may call it in a thread that holds a lock, so the wait
must end.
"""

STOP_INTERVAL_S: Final = 0.1
"""Seconds between two looks whether the event of ``call_until`` is set."""

QUICK_S: Final = 0.001
"""Seconds between two calls of a thread that does nothing long in between."""

MAX_PIPES: Final = 4
"""Calls that wait at a pipe at a time; others wait at a lock, so that a client needs about eight files for it."""


class _Pipe:
    """A pipe that one thread reads to wait, like a lock that is held: ``acquire`` returns after the only ``release``.

    A lock is released by a thread that holds the interpreter's lock: the other one wakes up and must sleep again until
    it gets that. A pipe is written without it: a trip to the event loop and back takes 19 instead of 31 µs.
    """

    __slots__ = ("__weakref__", "_process", "_reader", "_writer")

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._process = reader, writer, os.getpid()

    def acquire(self) -> None:
        """Wait for ``release``."""
        os.read(self._reader, 1)

    def release(self) -> None:
        """Let the other thread go on."""
        os.write(self._writer, b".")

    def __del__(
        self, close: Callable[[int], None] = os.close, process: Callable[[], int] = os.getpid
    ) -> None:  # the names of the module may be gone
        if process() == self._process:  # in another one, the numbers may be those of other files
            close(self._reader)
            close(self._writer)


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Call(Generic[R]):
    """A coroutine in the loop, and the thread that waits for its outcome, at ``done``. Everything except ``outcome``
    belongs to the loop.
    """

    __slots__ = (
        "_abandoned",
        "_calls",
        "_context",
        "_done",
        "_ended",
        "_task",
        "_undo",
        "_work",
        "has_ended",
        "outcome",
    )

    def __init__(
        self,
        work: Coroutine[object, object, R],
        undo: Callable[[R], object] | None,
        ended: asyncio.Future[None],
        calls: set[_Call[Any]],
        done: threading.Lock | _Pipe,
    ) -> None:
        self.outcome: asyncio.Task[R] | None = None
        """The task that has ended; None when the loop has ended."""
        self.has_ended = False
        self._work, self._undo, self._ended, self._done = work, undo, ended, done
        self._context = copy_context()  # of the thread: whether it is in a handler or in a loop
        self._task: asyncio.Task[R] | None = None
        self._abandoned = False
        self._calls = calls

    def start(self) -> None:
        """Start the task, unless the loop is ending: it has cancelled its tasks and would not finish a new one."""
        if self._ended.done():
            self.cancel()
            return
        self._task = asyncio.get_running_loop().create_task(
            self._work, name="natsproto sync call", context=self._context
        )
        self._task.add_done_callback(self._on_done)

    def abandon(self) -> None:
        """Cancel the task, as no thread waits for it any more. A result that it has already is given to ``undo``."""
        self._abandoned = True
        if self._task is None:
            self.cancel()
        elif self._task.done():
            self._on_done(self._task)
        else:
            self._task.cancel()

    def cancel(self) -> None:
        """End the wait, because the loop is ending, has ended, or never received the call."""
        if self._task is None:
            self._work.close()
        self._end(None)

    def _on_done(self, task: asyncio.Task[R]) -> None:
        has_result = not task.cancelled() and task.exception() is None
        if self._abandoned and has_result and self._undo is not None:
            undo, self._undo = self._undo, None
            undo(task.result())
        self._end(task)

    def _end(self, task: asyncio.Task[R] | None) -> None:
        try:
            self._calls.remove(self)
        except KeyError:
            return  # it has ended, perhaps this moment in another thread
        self.outcome, self.has_ended = task, True
        self._done.release()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's where it is installed: it takes a third less of the CPU of a blocking request."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Portal:
    """Runs functions and coroutines on its loop and waits for them.

    It belongs to the process that made it: after a fork the thread does not exist, and the sockets are the parent's.
    """

    def __init__(self) -> None:
        self.threads: ThreadTracker = ThreadTracker()
        """The threads that a draining client waits for."""
        self._process = os.getpid()
        self._closed = False
        self._asked_at = float("-inf")
        self._calls: set[_Call[Any]] = set()
        self._pipes: WeakSet[_Pipe] = WeakSet()  # all; one whose call was interrupted ends with that call
        self._free_pipes: list[_Pipe] = []
        self._iterators: set[AsyncIterator[Any]] = set()  # those of ``iterate`` that have not ended
        started: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()
        # A daemon thread lets a program exit that does not close its client.
        self._thread = threading.Thread(target=self._run, args=(started,), name="natsproto sync", daemon=True)
        self._thread.start()
        self._loop = started.get()

    def check(self) -> None:
        """Raise LocalProtocolError when a call from here would never return, ConnectionClosed after ``stop``."""
        if self._process != os.getpid():
            raise errors.LocalProtocolError(
                f"created in process {self._process}, used in process {os.getpid()}: sockets cannot be shared, "
                "get a new one from the client in this process"
            )
        if self._closed:
            raise errors.ConnectionClosed()
        if self.is_loop_thread:
            raise errors.LocalProtocolError(
                "a blocking call on the thread of the client's own event loop (in a callback?) would wait for itself: "
                "use the async client there, or hand the work to another thread"
            )

    @property
    def stopped(self) -> bool:
        """True when it has ended in this process."""
        return self._closed or self._process != os.getpid()

    @property
    def is_loop_thread(self) -> bool:
        """True when the caller runs on the thread of the loop."""
        return threading.current_thread() is self._thread

    def is_quick(self) -> bool:
        """True if it was asked less than QUICK_S ago: waiting for the loop each time would be most of the time, and
        what is posted does not wait long for the interpreter's lock.
        """
        before, self._asked_at = self._asked_at, monotonic()
        return self._asked_at - before < QUICK_S

    def call(self, method: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await the method on the loop and return its result. An interrupt (Ctrl-C) cancels it."""

        async def work() -> R:
            return await method(*args, **kwargs)

        return self._wait(work())

    def call_until(self, method: Callable[[asyncio.Event | None], Awaitable[R]], until: threading.Event | None) -> R:
        """Await the method on the loop, with an event that is set soon after ``until``, and return its result. An
        interrupt cancels it. TypeError if ``until`` is another kind of event.
        """
        check_until(until)
        stop = None if until is None else asyncio.Event()

        async def work() -> R:
            return await method(stop)

        return self._wait(work(), None, None if until is None or stop is None else (until, stop))

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that does not wait on the loop and return its result."""

        async def work() -> R:
            return function(*args, **kwargs)

        return self._wait(work())

    def call_or_undo(self, method: Callable[[], Awaitable[R]], undo: Callable[[R], object]) -> R:
        """Await the method on the loop and return its result. If an interrupt keeps the result from being returned, it
        is given to ``undo`` on the loop.
        """

        async def work() -> R:
            return await method()

        return self._wait(work(), undo)

    def enter(self, manager: AbstractAsyncContextManager[R]) -> R:
        """Enter an async context manager. An interrupt leaves it again."""

        def leave(_: R) -> None:
            self.spawn(manager.__aexit__(None, None, None))

        return self.call_or_undo(manager.__aenter__, leave)

    def post(self, function: Callable[[], object]) -> None:
        """Schedule the function on the loop without waiting for it. ConnectionClosed when the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise errors.ConnectionClosed() from None

    def spawn(self, work: Coroutine[object, object, object]) -> None:
        """Start a coroutine without waiting for it. To be called on the loop."""
        call = _Call(work, None, self._ended, self._calls, _held_lock())
        self._calls.add(call)
        call.start()

    def run_detached(self, method: Callable[[], Coroutine[object, object, object]], *, wait: bool) -> None:
        """Run the method on the loop from any thread, even while the loop is ending. Never raises.

        With ``wait`` the caller waits for the end, but not on the loop's own thread and not for ever.
        """
        if self.stopped:
            return
        done = _held_lock()
        call = _Call(method(), None, self._ended, self._calls, done)
        self._calls.add(call)
        try:
            self.post(call.start)
        except errors.ConnectionClosed:
            call.cancel()
        if wait and not self.is_loop_thread:
            done.acquire(timeout=DETACHED_TIMEOUT_S)

    def _wait(
        self,
        work: Coroutine[object, object, R],
        undo: Callable[[R], object] | None = None,
        stop: tuple[threading.Event, asyncio.Event] | None = None,
    ) -> R:
        call: _Call[R] | None = None
        error: BaseException | None = None
        try:  # an interrupt may come between any two steps
            self.check()
            done = self._take_pipe()
            call = _Call(work, undo, self._ended, self._calls, done)
            self._calls.add(call)
            self.post(call.start)
            if stop is not None:
                self._set_after(call, *stop)
            done.acquire()
            if isinstance(done, _Pipe):
                self._free_pipes.append(done)  # else its release may be still to come
            task = call.outcome
            if task is not None and not task.cancelled():
                error = task.exception()
                if error is None:
                    return task.result()
        except BaseException:
            if call is None:
                work.close()
            else:
                self._abandon(call)
            raise
        try:
            raise errors.ConnectionClosed() if error is None else error
        finally:
            del error, task  # whose traceback has this frame

    def _take_pipe(self) -> threading.Lock | _Pipe:
        try:
            return self._free_pipes.pop()
        except IndexError:
            if len(self._pipes) < MAX_PIPES:
                self.post(self._make_pipe)
            return _held_lock()

    def _make_pipe(self) -> None:
        """On the thread of the loop, which no signal interrupts: numbers of open files would be lost."""
        if len(self._pipes) < MAX_PIPES:
            with suppress(OSError):  # many open files
                pipe = _Pipe(*os.pipe())
                self._pipes.add(pipe)
                self._free_pipes.append(pipe)

    def _set_after(self, call: _Call[Any], until: threading.Event, stop: asyncio.Event) -> None:
        # Not a wait for the call with a timeout: in CPython it never ends if a signal's handler runs past the deadline.
        while not until.wait(STOP_INTERVAL_S):
            if call.has_ended:
                return
        self.post(stop.set)

    def _abandon(self, call: _Call[Any]) -> None:
        try:
            self.post(call.abandon)
        except errors.ConnectionClosed:
            call.cancel()

    def iterate(self, source: AsyncIterable[R], undo: Callable[[R], object] = lambda _: None) -> Iterator[R]:
        """Iterate over an asynchronous iterable. Leaving the ``for`` loop closes it. An item that an interrupt keeps
        from being yielded is given to ``undo`` on the loop.
        """
        iterator: AsyncIterator[R] = self.run(aiter, source)
        # The garbage collector must not find both iterators together: it would close them one after the other in its
        # own thread, the second one while the event loop is closing it.
        self._iterators.add(iterator)
        lock = asyncio.Lock()  # an interrupted step must end before the iterator is closed

        async def step() -> R:
            async with lock:
                return await anext(iterator)

        async def end() -> None:
            close = getattr(iterator, "aclose", None)
            async with lock:
                try:
                    if close is not None:
                        await close()
                finally:
                    self._iterators.discard(iterator)

        try:
            while True:
                try:
                    yield self.call_or_undo(step, undo)
                except StopAsyncIteration:
                    return
        finally:
            self.run_detached(end, wait=False)

    def stop(self) -> None:
        """End the loop and the thread. Calls in progress raise ConnectionClosed. Does nothing in another process."""
        if self.stopped:
            return
        self._closed = True
        with suppress(RuntimeError):  # another thread has stopped it at the same time
            self._loop.call_soon_threadsafe(self._end)
        if not self.is_loop_thread:
            self._thread.join()

    def _run(self, started: SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve(started))
        finally:
            for call in list(self._calls):
                call.cancel()  # those that the loop has not started
            self._iterators.clear()  # the loop has closed them

    async def _serve(self, started: SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        started.put(loop)
        await self._ended

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
