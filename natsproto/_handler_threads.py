"""Handlers in threads: a ``def`` handler that blocks does not hold the event loop.

Owns the threads of ``executor=True``. They are daemon threads, so a handler that hangs does not keep the program from
ending; those of a ThreadPoolExecutor do, because Python waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from os import getpid
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from natsproto import errors
from natsproto._handlers import check_handler, finish, is_async_callable, layer_of

T = TypeVar("T")
P = ParamSpec("P")
H = TypeVar("H", bound=Callable[..., object])

Executor: TypeAlias = ThreadPoolExecutor | bool | None
"""Where a ``def`` handler runs: True for daemon threads of its own, a pool, or None for the event loop."""


_running: dict[int, tuple[object, Future[Any] | asyncio.Future[Any]]] = {}
"""Messages that threads go on with after the caller was cancelled, by id, each with that work."""


IN_HAND: ContextVar[Sequence[object]] = ContextVar("natsproto_in_hand", default=())
"""The messages that the reader of this task has in hand: a thread may be called with their values only."""


def is_still_running(message: object) -> bool:
    """True if the caller of a handler was cancelled, but not the handler: a thread cannot be cancelled; or if somebody
    else settles the message later. The caller neither acknowledges nor returns it.
    """
    return id(message) in _running


def note_running(message: object, work: Future[Any] | asyncio.Future[Any]) -> None:
    """Note that this work goes on with the message until it is done."""
    _running[id(message)] = message, work
    work.add_done_callback(lambda _: _running.pop(id(message), None))


def on_thread_end(message: object, callback: Callable[[], None]) -> None:
    """Call it in the event loop as soon as no thread handles the message any more."""
    loop = asyncio.get_running_loop()

    def on_end(_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(callback)

    if (running := _running.get(id(message))) is None:
        loop.call_soon(callback)
    else:
        running[1].add_done_callback(on_end)


class DaemonThreads:
    """At most ``count`` threads (None: as many as calls run at a time), started when they are needed, which end with
    this object.
    """

    def __init__(self, count: int | None, name: str) -> None:
        self._count, self._name = count, name
        self._begin()

    def _begin(self) -> None:
        self._process = getpid()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call the function in one of the threads. To be called by one thread only."""
        if self._process != getpid():
            self._begin()  # the threads, and perhaps a lock that was held, are those of the process that has forked
        future: Future[T] = Future()
        self._calls.put(lambda: _call(function, future))
        if not self._idle.acquire(blocking=False) and (self._count is None or self._started < self._count):
            self._started += 1
            name = f"{self._name} {self._started}"
            Thread(target=_serve, args=(self._calls, self._idle), name=name, daemon=True).start()
        return future

    def __del__(self) -> None:
        for _ in range(self._started):
            self._calls.put(None)


def _serve(calls: SimpleQueue[Callable[[], None] | None], idle: Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it keeps the message
        idle.release()


def _call(function: Callable[[], T], future: Future[T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as exc:
            future.set_exception(exc)


def with_timeout(handler: H, timeout: float | None) -> H | Callable[[Any], Awaitable[object]]:
    """Return a handler that raises HandlerTimeout after ``timeout`` seconds (None: no limit), inside of its layers. An
    ``async def`` is cancelled. A thread cannot be: nobody waits for it any more. ConfigError for other handlers.
    """
    if timeout is None:
        return handler
    if (layer := layer_of(handler)) is not None:
        return layer.around(with_timeout(layer.inner, timeout))
    if not is_async_callable(handler):
        raise errors.ConfigError(
            "timeout", timeout, "cannot end a def handler in the event loop: pass executor=True, too"
        )

    @wraps(handler)
    async def call(*args: Any) -> object:
        try:
            async with asyncio.timeout(timeout) as limit:
                return await handler(*args)  # type: ignore[misc]  # it is async
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise errors.HandlerTimeout(timeout, any(map(is_still_running, (*args, *IN_HAND.get())))) from exc

    return call


def with_executor(
    name: str, handler: H | None, executor: Executor, threads: int | None = 1
) -> H | Callable[[Any], Awaitable[object]]:
    """Return the checked handler, which runs in threads if there is an executor. TypeError, ConfigError."""
    check_handler(name, handler, "message")
    assert handler is not None
    if executor is None or executor is False:
        return handler
    if (layer := layer_of(handler)) is not None:  # a layer is async def, whatever it is around
        inner = layer.inner
        if layer_of(inner) is None:
            return layer.around(_run_in_threads(inner, executor, threads))
        return layer.around(with_executor(name, inner, executor, threads))
    return _run_in_threads(handler, executor, threads)


def in_threads(
    handler: Callable[P, object], executor: Executor = True, *, threads: int | None = None
) -> Callable[P, Awaitable[object]]:
    """Return an ``async def`` handler that calls the ``def`` handler in a thread. It may also be the function of a
    ``handler`` of typed values, which is called with the value, or with the value and its message.

    ``executor`` is True for daemon threads, which keep what the handler stores by thread, such as database
    connections: as many as ``threads``, or as are called at a time, which is what ``concurrency`` allows. Or it is a
    ThreadPoolExecutor, which has threads of its own. An awaitable that the handler returns, such as
    ``request.respond(data)``, is awaited in the event loop. Context variables are those of the caller.

    A thread cannot be cancelled. If the caller is, as at the end of ``drain_timeout``, the thread goes on; its message
    is neither acknowledged nor returned, and delivered again after ``ack_wait``. ConfigError for an async handler,
    another executor or no threads.

    Args:
        handler: A ``def`` handler that may block.
        executor: True for threads of its own, or a ThreadPoolExecutor.
        threads: How many daemon threads call it at most; None: as many as are called at a time.
    """
    try:
        check_handler("handler", handler, "message")
    except TypeError:
        check_handler("handler", handler, "value and message", 2)
    if layer_of(handler) is not None:
        return cast("Callable[P, Awaitable[object]]", with_executor("handler", handler, executor, threads))
    return _run_in_threads(handler, executor, threads)


def _run_in_threads(
    handler: Callable[P, object], executor: Executor, threads: int | None
) -> Callable[P, Awaitable[object]]:
    if executor is not True and not isinstance(executor, ThreadPoolExecutor):
        raise errors.ConfigError("executor", executor, "must be True or a ThreadPoolExecutor")
    if is_async_callable(handler):
        raise errors.ConfigError(
            "executor", executor, "is for def handlers, and this one is async def: remove one of them"
        )
    if threads is not None and (type(threads) is not int or threads < 1):
        raise errors.ConfigError("threads", threads, "must be a positive int")
    name = f"natsproto {getattr(handler, '__name__', 'handler')}"
    pool: Any = DaemonThreads(threads, name) if executor is True else executor

    @wraps(handler)
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        context = copy_context()
        handled = (*args, *IN_HAND.get())

        def work() -> object:
            try:
                return context.run(handler, *args, **kwargs)
            except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as exc:
                # It must not end the event loop, and StopIteration cannot pass a future.
                raise RuntimeError(f"the handler ended with {exc!r}") from exc

        future: Future[object] = pool.submit(work)
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.cancelled() and not future.done():  # it has begun
                for one in handled:
                    note_running(one, future)
            raise
        return await finish(result)

    return call
