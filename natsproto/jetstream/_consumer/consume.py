"""Consuming: a handler is called for every message, and each message is acknowledged.

Owns the tasks that call the handler and the messages being handled. The caller of ``consume`` chooses how successes and
failures are acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Literal, TypeAlias, cast

from natsproto._async_hints import RunHint
from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto._core.readers import EndWaiters
from natsproto._durations import positive_seconds
from natsproto._handlers import HandlerResult, check_handler, check_result, finish, is_async_callable
from natsproto._value import Value
from natsproto.errors import AlreadyAcked, ConfigError, ConsumerGone, LocalProtocolError, NatsError
from natsproto.jetstream._codec import Duration, accept_seconds
from natsproto.jetstream._consumer.messages import Messages
from natsproto.jetstream._message import JsMessage, is_retried, nak_all

log = logging.getLogger("natsproto")

FIRST_NAK_DELAY_S, MAX_NAK_DELAY_S = 0.25, 30.0
"""Seconds until a message whose handler failed is redelivered: the first delay, which doubles with every delivery, and
the longest.
"""

_GONE_ADVICE = "create the consumer, then consume it again"

MAX_MESSAGES_PER_TURN = 256
"""Messages that a handler which never suspends handles before other tasks get a turn."""

MAX_CONCURRENCY = 65_536
"""The most messages handled at a time; each has a task of its own from the start."""

Handler: TypeAlias = Callable[[JsMessage], HandlerResult]
OnSuccess: TypeAlias = Literal["ack", "ack_sync", "nothing"]
OnError: TypeAlias = Literal["nak", "term", "nothing"]
NakDelay: TypeAlias = Duration | Callable[[JsMessage], Duration | None]


class HandlerOptions(Value):
    """How messages are handled: the concurrency, the order, and the acknowledgement.

    ``backoff`` of the consumer, if known: the server ignores it for a nak.
    """

    concurrency: int = 1
    key: Callable[[JsMessage], Hashable] | None = None
    on_success: OnSuccess = "ack"
    on_error: OnError = "nak"
    nak_delay: NakDelay | None = None
    keep_alive: bool | Duration = False
    error_cb: Callable[[JsMessage, BaseException], object] | None = None
    backoff: Sequence[float] = ()

    def _check(self) -> None:
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError("concurrency", self.concurrency, f"must be from 1 to {MAX_CONCURRENCY:,} messages")
        if self.on_success not in ("ack", "ack_sync", "nothing"):
            raise ConfigError("on_success", self.on_success, 'must be "ack", "ack_sync" or "nothing"')
        if self.on_error not in ("nak", "term", "nothing"):
            raise ConfigError("on_error", self.on_error, 'must be "nak", "term" or "nothing"')
        if self.nak_delay is not None and not callable(self.nak_delay):
            accept_seconds("nak_delay", self.nak_delay)
        if not isinstance(self.keep_alive, bool):
            positive_seconds("keep_alive", self.keep_alive)

    def nak_delay_for(self, message: JsMessage) -> float:
        """Return the seconds until a failed message is redelivered. Raises the errors of a callable ``nak_delay``."""
        delay = self.nak_delay(message) if callable(self.nak_delay) else self.nak_delay
        if delay is not None:
            return cast("float", accept_seconds("nak_delay", delay))
        before = message.metadata.num_delivered - 1
        if self.backoff:
            return self.backoff[min(before, len(self.backoff) - 1)]
        return min(FIRST_NAK_DELAY_S * 2.0 ** min(before, 10), MAX_NAK_DELAY_S)


class HandlerTasks:
    """Calls a handler for arriving messages, in as many tasks as the options say, and acknowledges them.

    Owns the messages being handled. ConsumeContext shows ``in_progress``, ``handled`` and ``failed``.
    """

    def __init__(
        self, connection: Connection, what: str, messages: Messages, handler: Handler, options: HandlerOptions
    ) -> None:
        check_handler("handler", handler, "message")
        self.handled = self.failed = self.in_progress = 0
        self.is_stopping = False
        self.key_error: Exception | None = None
        """The error of the key function."""
        self.end_waiters = EndWaiters()
        """The calls that wait for the end."""
        self._connection, self._description = connection, what
        self._messages, self._handler, self._options = messages, handler, options
        self._is_plain = is_async_callable(handler) and options.keep_alive is False
        self._key_queues: list[deque[JsMessage]] = [deque() for _ in range(options.concurrency)] if options.key else []
        messages.buffer.add_queues(self._key_queues)

    def start(self) -> list[asyncio.Task[None]]:
        """Start the tasks, which run until the messages end or ``is_stopping`` is set."""
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._work(worker), name=f"natsproto handler {worker} of {self._description}")
            for worker in range(self._options.concurrency)
        ]
        for task in tasks:
            self._messages._track_task(task)
        return tasks

    async def _work(self, worker: int) -> None:
        messages, options = self._messages, self._options
        take = messages.take if options.key is None else lambda: self._take_for_worker(worker)
        turn = 0
        try:
            while True:
                while not self.is_stopping and (message := take()) is not None:
                    self.in_progress += 1
                    try:
                        await self._handle(message)
                    finally:
                        self.in_progress -= 1
                        self.handled += 1
                        messages.release(message)
                    turn += 1
                    if turn >= MAX_MESSAGES_PER_TURN:
                        turn = 0
                        await asyncio.sleep(0)
                more = not self.is_stopping and await messages.wait()
                if self.is_stopping or not (more or (self._key_queues and self._key_queues[worker])):
                    error = messages.error
                    self.end_waiters.on_end("consume()", error, _GONE_ADVICE if isinstance(error, ConsumerGone) else "")
                    return
        except Exception as exc:  # the key function failed: nothing can be handled in its order any more
            log.error("consuming %s failed: %r", self._description, exc, exc_info=exc)
            self.key_error = self.key_error or exc
            self.is_stopping = True
            messages.buffer.wake()

    def _take_for_worker(self, worker: int) -> JsMessage | None:
        """Take the next message whose key belongs to this worker; messages of one key are handled in order."""
        queues, key = self._key_queues, self._options.key
        assert key is not None
        own = queues[worker]
        if own:
            return own.popleft()
        others = False
        found: JsMessage | None = None
        while found is None and (message := self._messages.take()) is not None:
            place = hash(key(message)) % len(queues)
            if place == worker:
                found = message
            else:
                queues[place].append(message)
                others = True
        if others:
            self._messages.buffer.wake()
        return found

    async def _handle(self, message: JsMessage) -> None:
        options = self._options
        try:
            if self._is_plain:  # as nearly always; every coroutine less is 0.2 µs less
                if (result := await self._handler(message)) is not None:  # type: ignore[misc]  # it is async
                    check_result(result)
            elif options.keep_alive is False:
                await finish(self._handler(message))
            else:
                interval = None if options.keep_alive is True else options.keep_alive
                async with message.keep_alive(interval):
                    await finish(self._handler(message))
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError) and _is_cancelled():
                if options.on_error == "nak":
                    nak_all([message])  # it is redelivered at once
                raise
            await self._failed(message, exc)
        else:
            if options.on_success == "nothing" or message.is_acked:
                return
            try:
                if options.on_success == "ack":
                    await message.ack()
                else:
                    await message.ack_sync()
            except NatsError as exc:
                self._on_ack_failed(options.on_success, exc)

    async def _failed(self, message: JsMessage, error: BaseException) -> None:
        self.failed += 1
        where = f"handler of {self._description}"
        if is_retried(message):  # expected, so one line
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            log.warning("%s failed for a message of %r, retried: %r", where, message.subject, error, exc_info=trace)
        else:
            log.error("%s failed for a message of %r: %r", where, message.subject, error, exc_info=error)
        self._connection._emit(HandlerFailed(handler=where, error=error))
        how = self._options.on_error
        if how != "nothing" and not message.is_acked:
            try:
                if how == "nak":
                    await message.nak(self._nak_delay_for(message))
                else:
                    await message.term()
            except NatsError as exc:
                self._on_ack_failed(how, exc)
        if self._options.error_cb is not None:
            try:
                result = self._options.error_cb(message, error)
                if inspect.isawaitable(result):
                    await result
            except Exception as exc:
                log.error("error_cb of %s failed: %r", self._description, exc, exc_info=exc)

    def _nak_delay_for(self, message: JsMessage) -> float:
        try:
            return self._options.nak_delay_for(message)
        except Exception as exc:
            log.error("nak_delay of %s failed: %r", self._description, exc, exc_info=exc)
            self._connection._emit(HandlerFailed(handler=f"nak_delay of {self._description}", error=exc))
            return MAX_NAK_DELAY_S

    def _on_ack_failed(self, how: OnSuccess | OnError, error: NatsError) -> None:
        if not isinstance(error, AlreadyAcked):  # which another task of the handler caused
            # Without a connection the server redelivers it; log and emit the failure.
            where = f"{how} of a message of {self._description}"
            log.warning("%s failed: %s", where, error)
            self._connection._emit(HandlerFailed(handler=where, error=error))


class ConsumeContext(RunHint):
    """A running ``consume``: passes messages to a handler. Use it with ``async with``, or ``await`` its ``run()``.

    It ends after ``stop_after`` messages, by ``stop`` or ``drain``, with the client, or when the consumer becomes
    unusable: then ``wait``, ``run`` and the end of the block raise the error; it is logged if none of them is
    waiting. The end of the block stops it; an exception in the block also cancels running calls.
    """

    _unused_warning = "consume(...) was never run or entered"

    def __init__(
        self, connection: Connection, what: str, messages: Messages, handler: Handler, options: HandlerOptions
    ) -> None:
        self._handler_tasks = HandlerTasks(connection, what, messages, handler, options)
        self._messages, self._description = messages, what
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = False

    @property
    def handled(self) -> int:
        """Messages handled so far, including failures."""
        return self._handler_tasks.handled

    @property
    def failed(self) -> int:
        """Messages for which the handler raised."""
        return self._handler_tasks.failed

    @property
    def in_progress(self) -> int:
        """Messages that are being handled now."""
        return self._handler_tasks.in_progress

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait for the handler."""
        return self._messages.buffer.waiting

    @property
    def closed(self) -> bool:
        """True after its end: no handler is running and none will be called."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    async def __aenter__(self) -> ConsumeContext:
        self._begun = True
        if not self._tasks:
            await self._messages.__aenter__()
            self._tasks = self._handler_tasks.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self._cancel()
        await self.stop()
        if exc is None:
            self._raise_error()

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Start it, and wait until it has ended, or until the event is set, which stops it.

        Raises the error that made the consumer unusable (ConsumerGone, PullRefused). Cancelling also cancels running
        calls.
        """
        async with self:
            await self.wait(until)

    async def wait(self, until: asyncio.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set: ``wait(stop)`` in a worker that ``stop`` shuts down.

        Raises the error that made the consumer unusable (ConsumerGone, PullRefused). Cancelling it ends only the wait.
        """
        self._check_started()
        with self._handler_tasks.end_waiters.waiting():
            await self._all_done(until)
            self._raise_error()

    async def stop(self) -> None:
        """Stop calling the handler, wait for running calls, and return waiting messages to the server.

        The running calls have no time limit; ``asyncio.timeout`` sets one. Cancelling cancels them too; their messages
        are nakked where ``on_error`` is ``"nak"`` and not acknowledged otherwise.
        """
        self._begun = True
        if not self._tasks:
            return
        self._handler_tasks.is_stopping = True
        try:
            with self._handler_tasks.end_waiters.waiting():
                await self._messages.stop()
                await self._all_done()
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def drain(self) -> None:
        """Stop pulling, handle the messages that have arrived or are in flight, then end.

        Cancelling it ends only the wait.
        """
        self._check_started()
        with self._handler_tasks.end_waiters.waiting():
            await self._messages.drain()
            await self._all_done()

    # ---------------------------------------------------------------- internals

    def _cancel(self) -> None:
        me = asyncio.current_task()
        for task in self._tasks:
            if task is not me:
                task.cancel()

    def _check_started(self) -> None:
        self._begun = True  # suppresses the warning about an unused object
        if not self._tasks:
            raise LocalProtocolError(f"enter consume() of {self._description} with async with first")

    async def _all_done(self, until: asyncio.Event | None = None) -> None:
        await self._handler_tasks.end_waiters.wait(self._tasks, until)

    def _raise_error(self) -> None:
        if self._handler_tasks.key_error is not None:
            raise self._handler_tasks.key_error
        if self._messages.error is not None:
            raise self._messages.error.with_traceback(None)


def _is_cancelled() -> bool:
    """True if this task was cancelled. A handler may also raise a CancelledError of another task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
