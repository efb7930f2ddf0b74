"""Handling: a callback for every message, several at a time if wanted, and an answer for each.

Owns the tasks that call the handler and what is in their hands. What a success and what a failure are answered with
is said by whoever starts it; nothing is acknowledged behind anybody's back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from types import TracebackType
from typing import Literal, TypeAlias

from natsproto.core.connection import Connection
from natsproto.core.events import HandlerFailed
from natsproto.errors import AlreadyAcked, ConfigError, LocalProtocolError, NatsError
from natsproto.jetstream.codec import Duration
from natsproto.jetstream.message import JsMessage
from natsproto.jetstream.reading.reader import Messages
from natsproto.protocol.pool import seconds

log = logging.getLogger("natsproto")

TURN = 256
"""Messages that a handler which never suspends deals with before other tasks get a turn."""

Handler: TypeAlias = Callable[[JsMessage], Awaitable[object] | object]
Success: TypeAlias = Literal["ack", "ack_sync", "nothing"]
Failure: TypeAlias = Literal["nak", "term", "nothing"]


class Policy:
    """How messages are handled: how many at a time, in which order, and how they are answered."""

    def __init__(
        self,
        *,
        concurrency: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        on_success: Success = "ack",
        on_error: Failure = "nak",
        nak_delay: Duration | None = None,
        keep_alive: bool | Duration = False,
        error_cb: Callable[[JsMessage, BaseException], object] | None = None,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError("concurrency", concurrency, "must be a positive number of messages")
        if on_success not in ("ack", "ack_sync", "nothing"):
            raise ConfigError("on_success", on_success, 'must be "ack", "ack_sync" or "nothing"')
        if on_error not in ("nak", "term", "nothing"):
            raise ConfigError("on_error", on_error, 'must be "nak", "term" or "nothing"')
        self.concurrency, self.key = concurrency, key
        self.on_success, self.on_error = on_success, on_error
        self.nak_delay = None if nak_delay is None else seconds("nak_delay", nak_delay)
        self.keep_alive = keep_alive
        self.error_cb = error_cb


class Consumption:
    """Messages being given to a handler. Enter it, or ``await`` it to run until it ends by itself.

    It ends after ``stop_after`` messages, by ``stop`` or ``drain``, with the client, or when the consumer becomes
    unusable: then ``wait``, the ``await`` and leaving the block raise why. Leaving the block stops; leaving it with
    an error also cancels the calls at work.
    """

    def __init__(self, connection: Connection, what: str, messages: Messages, handler: Handler, policy: Policy) -> None:
        if not callable(handler):
            raise TypeError(f"handler must be callable with one message, not {type(handler).__name__}")
        self.handled = 0
        """Messages that the handler has dealt with, failures included."""
        self.failed = 0
        """Messages for which the handler raised."""
        self._connection, self._what = connection, what
        self._messages, self._handler, self._policy = messages, handler, policy
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # a callable object with an async __call__
        )
        self._is_plain = is_async and policy.keep_alive is False
        self._lanes: list[deque[JsMessage]] = [deque() for _ in range(policy.concurrency)] if policy.key else []
        self._tasks: list[asyncio.Task[None]] = []
        self._working = 0
        self._stopping = False
        self._fault: Exception | None = None

    @property
    def in_progress(self) -> int:
        """Messages in the hands of the handler now."""
        return self._working

    @property
    def pending(self) -> int:
        """Messages that are here and wait for the handler."""
        return self._messages.pending + sum(map(len, self._lanes))

    @property
    def closed(self) -> bool:
        """Whether it has ended: no handler is at work and none will be called."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    async def __aenter__(self) -> Consumption:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self._cancel()
        await self.stop()
        if exc is None:
            self._raise_fault()

    def __await__(self) -> Generator[object, None, None]:
        return self._run().__await__()

    async def _run(self) -> None:
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Until it has ended. Raises what made the consumer unusable (ConsumerGone, PullRefused).

        Cancelling it ends only the wait.
        """
        self._check_started()
        await self._all_done()
        self._raise_fault()

    async def stop(self) -> None:
        """Calls the handler no more, waits for the calls at work, and gives what waits back to the server.

        There is no limit to how long those take: ``asyncio.timeout`` sets one. Cancelling it cancels them too; their
        messages go back as well where ``on_error`` is ``"nak"``, and are not answered where it is not.
        """
        if not self._tasks:
            return
        self._stopping = True
        try:
            await self._messages.stop()
            for lane in self._lanes:
                self._messages.put_back(list(lane))
                lane.clear()
            await self._all_done()
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def drain(self) -> None:
        """Asks for nothing more, handles everything that is here or on its way, then ends.

        Cancelling it ends only the wait.
        """
        self._check_started()
        await self._messages.drain()
        await self._all_done()

    # ---------------------------------------------------------------- inside

    def _start(self) -> None:
        if self._tasks:
            return
        self._messages.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._work(lane), name=f"natsproto handler {lane} of {self._what}")
            for lane in range(self._policy.concurrency)
        ]

    def _cancel(self) -> None:
        me = asyncio.current_task()
        for task in self._tasks:
            if task is not me:
                task.cancel()

    def _check_started(self) -> None:
        if not self._tasks:
            raise LocalProtocolError(f"consume() of {self._what} is to be entered or awaited first")

    async def _all_done(self) -> None:
        me = asyncio.current_task()
        while busy := [task for task in self._tasks if not task.done() and task is not me]:
            await asyncio.wait(busy)

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._messages.error is not None:
            raise self._messages.error.with_traceback(None)

    async def _work(self, lane: int) -> None:
        messages, policy = self._messages, self._policy
        take = messages.take if policy.key is None else lambda: self._take_for(lane)
        turn = 0
        try:
            while True:
                while not self._stopping and (message := take()) is not None:
                    self._working += 1
                    try:
                        await self._handle(message)
                    finally:
                        self._working -= 1
                        self.handled += 1
                        messages.release(message)
                    turn += 1
                    if turn >= TURN:
                        turn = 0
                        await asyncio.sleep(0)
                more = not self._stopping and await messages.wait()
                if self._stopping or not (more or (self._lanes and self._lanes[lane])):
                    return
        except Exception as exc:  # the key function failed: nothing can be handled in its order any more
            log.error("consuming %s failed: %r", self._what, exc, exc_info=exc)
            self._fault = self._fault or exc
            self._stopping = True
            messages.wake()

    def _take_for(self, lane: int) -> JsMessage | None:
        """The next message whose key belongs to this lane: messages of one key are handled one after the other."""
        lanes, key = self._lanes, self._policy.key
        assert key is not None
        own = lanes[lane]
        if own:
            return own.popleft()
        others = False
        found: JsMessage | None = None
        while found is None and (message := self._messages.take()) is not None:
            place = hash(key(message)) % len(lanes)
            if place == lane:
                found = message
            else:
                lanes[place].append(message)
                others = True
        if others:
            self._messages.wake()
        return found

    async def _handle(self, message: JsMessage) -> None:
        policy = self._policy
        try:
            if self._is_plain:  # as nearly always; every coroutine less is 0.2 µs less
                await self._handler(message)  # type: ignore[misc]  # awaitable, as found out before
            elif policy.keep_alive is False:
                await self._call(message)
            else:
                interval = None if policy.keep_alive is True else policy.keep_alive
                async with message.keep_alive(interval):
                    await self._call(message)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError) and _is_cancelled():
                if policy.on_error == "nak":
                    self._give_up(message)
                raise
            await self._failed(message, exc)
        else:
            if policy.on_success == "nothing" or message.is_acked:
                return
            try:
                if policy.on_success == "ack":
                    await message.ack()
                else:
                    await message.ack_sync()
            except NatsError as exc:
                self._not_answered(policy.on_success, exc)

    async def _call(self, message: JsMessage) -> None:
        result = self._handler(message)
        if result is not None and inspect.isawaitable(result):
            await result

    async def _failed(self, message: JsMessage, error: BaseException) -> None:
        self.failed += 1
        where = f"handler of {self._what}"
        log.error("%s failed for a message of %r: %r", where, message.subject, error, exc_info=error)
        self._connection.announce(HandlerFailed(where=where, error=error))
        how = self._policy.on_error
        if how != "nothing" and not message.is_acked:
            try:
                if how == "nak":
                    await message.nak(self._policy.nak_delay)
                else:
                    await message.term()
            except NatsError as exc:
                self._not_answered(how, exc)
        if self._policy.error_cb is not None:
            try:
                result = self._policy.error_cb(message, error)
                if inspect.isawaitable(result):
                    await result
            except Exception as exc:
                log.error("error_cb of %s failed: %r", self._what, exc, exc_info=exc)

    def _not_answered(self, how: Success | Failure, error: NatsError) -> None:
        if not isinstance(error, AlreadyAcked):  # which is the handler's own doing, in another task
            # No connection: the server delivers it again, and whoever listens is told.
            where = f"{how} of a message of {self._what}"
            log.warning("%s failed: %s", where, error)
            self._connection.announce(HandlerFailed(where=where, error=error))

    @staticmethod
    def _give_up(message: JsMessage) -> None:
        """The call for it was cancelled: somebody else may have it at once."""
        try:
            if not message.is_acked:
                message.nak_nowait()
        except NatsError:
            return  # the server delivers it again after ack_wait


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task; a handler may raise CancelledError of something else."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
