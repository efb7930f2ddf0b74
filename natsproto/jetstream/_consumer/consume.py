"""Consuming: a handler is called for every message, and each message is acknowledged.

Owns the tasks that call the handler and the messages being handled. The caller of ``consume`` chooses how successes and
failures are acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from time import monotonic
from types import TracebackType

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.ending import CUT_TIMEOUT_S, Ending
from natsproto._core.events import HandlerFailed
from natsproto._core.time_slice import TimeSlice
from natsproto._durations import DEFAULT, NO_LIMIT_S, Default, time_limit
from natsproto._handler_threads import IN_HAND, is_still_running
from natsproto._handlers import check_result, finish, is_async_callable
from natsproto._help.async_hints import RunHint
from natsproto._signals import check_until
from natsproto.jetstream._consumer.delivery.key_lanes import KeyLanes
from natsproto.jetstream._consumer.delivery.worker_prefetch import FAST_CALL_S, SAMPLE_MASK
from natsproto.jetstream._consumer.end_waiters import EndWaiters
from natsproto.jetstream._consumer.handler_options import MAX_NAK_DELAY_S, Handler, HandlerOptions, OnError, OnSuccess
from natsproto.jetstream._consumer.message import ACKED, JsMessage, is_reported, nak_all
from natsproto.jetstream._consumer.messages import Messages
from natsproto.jetstream._values.codec import Duration

BLOCKED_CALL_S = 0.05
"""Seconds of a call after which a ``def`` handler in the event loop blocks: its ``concurrency`` is of no use."""

_GONE_ADVICE = "create the consumer, then consume it again"


class HandlerTasks:
    """Calls a handler for arriving messages, in as many tasks as the options say, and acknowledges them.

    Owns the messages being handled. ConsumeContext shows ``in_progress``, ``handled`` and ``failed``.
    """

    def __init__(
        self, connection: Connection, what: str, messages: Messages, handler: Handler, options: HandlerOptions
    ) -> None:
        handler = options.wrap(handler)
        self.handled: int = 0
        self.failed: int = 0
        self.in_progress: int = 0
        self.is_stopping: bool = False
        """True after ``stop``, and when the key function has failed."""
        self.is_halted: bool = False
        """True while no task may take a message."""
        self.key_error: Exception | None = None
        """The error of the key function."""
        self.end_waiters: EndWaiters = EndWaiters(connection._event_bus.log)
        self._time_slice = TimeSlice.of(asyncio.get_running_loop())
        """The calls that wait for the end."""
        self.connection: Connection = connection
        self._description = what
        self._where = f"handler of {what}"
        self._messages, self._handler, self._options = messages, handler, options
        self._is_async = is_async_callable(handler)
        self._in_turn = not self._is_async and options.concurrency > 1
        """True while no call could be beside another one, although the options ask for it, and that is not logged."""
        self._is_plain = options.keep_alive is False and options.on_success == "ack"
        self._lanes = KeyLanes(messages.buffer, options.key, options.concurrency) if options.key else None
        if (deliveries := messages.buffer.deliveries) is not None:
            deliveries.prefetch.on_workers(options.concurrency if self._is_async else 1)

    def start(self) -> list[asyncio.Task[None]]:
        """Start the tasks, which run until the messages end or ``is_stopping`` is set."""
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        for worker in range(self._options.concurrency):
            context = self._messages._reader_tasks.key.handler_context()
            context.run(IN_HAND.set, self._messages.buffer.hand_of(worker))
            name = f"natsproto handler {worker} of {self._description}"
            tasks.append(loop.create_task(self._work(worker), name=name, context=context))
            self._messages._track_task(tasks[-1])
        return tasks

    async def _work(self, worker: int) -> None:
        messages, buffer, outbox, lanes = self._messages, self._messages.buffer, self.connection._outbox, self._lanes
        ready, newest = buffer.ready if lanes is None else lanes.queues[worker], buffer.newest
        held, time_slice, is_followed = buffer.hand_of(worker), self._time_slice, buffer.is_followed
        handler, plain, blocks, note_ack = self._handler, self._is_plain, not self._is_async, buffer.note_ack
        try:
            while await self._may_take(worker, ready):
                now = monotonic()
                if buffer.sample_above == FAST_CALL_S and len(ready) > 1:
                    outbox.cork()  # one write for all acknowledgements
                while ready and not self.is_halted:
                    if now >= time_slice.ends_at:
                        await time_slice.next_turn()
                        now = monotonic()
                        if self.is_halted or not ready:
                            break
                    message = ready.popleft()
                    if lanes is not None:
                        lanes.take(worker, message)
                    if is_followed and now >= message._note.check_at and not buffer.may_hand_over(message, now):
                        continue
                    held[0] = message
                    self.in_progress += 1
                    called = False
                    try:
                        if plain:  # as nearly always; every coroutine less is 0.2 µs less
                            if blocks:
                                if outbox.size and buffer.sample_above < FAST_CALL_S:
                                    outbox.flush()  # before a call that may keep the event loop
                                if (result := handler(message)) is not None:
                                    await self._finish(result)
                            elif (result := await handler(message)) is not None:  # type: ignore[misc]  # it is async
                                check_result(result)
                            called = True
                            if type(message._note) is not bytes:  # is_acked
                                if outbox.must_wait:
                                    await outbox.wait_writable()
                                message.ack_nowait()
                        else:
                            await self._handle(message)
                    except BaseException as exc:
                        await self._on_error(message, exc, called=called)
                    finally:
                        held[0] = None
                        self.in_progress -= 1
                        self.handled += 1
                        messages._release(message)
                    began, now = now, monotonic()
                    if message._note is ACKED:
                        note_ack((message._reply, now))
                    if newest or lanes is not None:
                        self._on_released(worker, message)
                    if now - began > buffer.sample_above or not self.handled & SAMPLE_MASK:
                        buffer.on_handled(now - began, (message,))
                        if plain:
                            self._check_turns(now - began)
        except Exception as exc:
            self._on_key_error(exc)

    def _on_released(self, worker: int, message: JsMessage) -> None:
        """A message is not in hand any more. If it is not settled, it may come again."""
        if self._lanes is None:
            self._messages.buffer.on_released(message)
        else:
            self._lanes.on_released(worker, message)

    def _on_key_error(self, error: Exception) -> None:
        """The key function failed: nothing can be handled in its order any more."""
        self.connection._event_bus.log.error("consuming %s failed: %r", self._description, error, exc_info=error)
        self.key_error = self.key_error or error
        self.is_stopping = self.is_halted = True
        self._messages.buffer.wake()

    def halt(self) -> None:
        """Take no more messages; those in hand are handled to the end."""
        self.is_stopping = self.is_halted = True

    def handle_last(self) -> None:
        """Handle the messages that are left, which the server does not deliver again, and end."""
        self.is_halted = self.key_error is not None
        self._messages.buffer.wake()

    async def _may_take(self, worker: int, ready: deque[JsMessage]) -> bool:
        """Wait until this worker has a message. False at the end."""
        messages = self._messages
        while self.key_error is None:
            if self.is_halted:
                if messages.buffer.error is not None:
                    break  # nothing that is left can be acknowledged
                await messages.buffer.next_change()
                continue
            if self._lanes is not None:
                self._lanes.release(worker)
                self._lanes.distribute()
            if ready:
                return True
            if not await messages._wait() and not ready and not self.is_halted:
                break
        self.report_end()
        return False

    def report_end(self) -> None:
        """Log the error that ended it, unless a call waits for it."""
        error = self._messages.error
        self.end_waiters.on_end("consume()", error, _GONE_ADVICE if isinstance(error, errors.ConsumerGone) else "")

    async def _handle(self, message: JsMessage) -> None:
        options = self._options
        called = False
        try:
            if options.keep_alive is False:
                await self._call(message)
            else:
                interval = None if options.keep_alive is True else options.keep_alive
                async with message.keep_alive(interval):
                    await self._call(message)
            called = True
            if options.on_success == "ack" and not message.is_acked:
                await message.ack()
            elif options.on_success == "ack_sync" and not message.is_acked:
                await message.ack_sync()
        except BaseException as exc:
            await self._on_error(message, exc, called=called)

    async def _on_error(self, message: JsMessage, error: BaseException, *, called: bool) -> None:
        """Handle an error of the handler or, if it was ``called``, of the acknowledgement."""
        if isinstance(error, (GeneratorExit, KeyboardInterrupt, SystemExit)):
            raise error
        if called:
            if not isinstance(error, errors.NatsError):
                raise error
            self._on_ack_failed(self._options.on_success, error)
            return
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            if self._options.on_error == "nak" and not is_still_running(message):
                nak_all([message])  # it is redelivered at once
            raise error
        await self._failed(message, error)

    async def _call(self, message: JsMessage) -> None:
        outbox = self.connection._outbox
        if not self._is_async and outbox.size:
            outbox.flush()  # before a call that may keep the event loop
        began = monotonic()
        result = self._handler(message)
        took = monotonic() - began
        await self._finish(result)
        self._check_turns(took)

    async def _finish(self, result: object) -> None:
        """Await the result of the handler if it has to be awaited. After an awaitable, others run at the same time."""
        if not self._is_async and inspect.isawaitable(result):
            self._in_turn = False
            if (deliveries := self._messages.buffer.deliveries) is not None:
                deliveries.on_workers(self._options.concurrency)
        await finish(result)

    def _check_turns(self, seconds: float) -> None:
        """Log once that a handler that blocks cannot run beside itself."""
        if self._in_turn and seconds > BLOCKED_CALL_S:
            self._in_turn = False
            self.connection._event_bus.log.warning(
                "%s held the event loop for %.2f s, so that concurrency=%d has no effect: pass executor=True, "
                "which calls it in threads, or make it an async def that awaits",
                self._where,
                seconds,
                self._options.concurrency,
            )

    async def _failed(self, message: JsMessage, error: BaseException) -> None:
        self.failed += 1
        how, deliveries = self._options.on_error, self._messages.buffer.deliveries
        if is_still_running(message):
            how = "nothing"
            if deliveries is not None:
                deliveries.keep_in_hand([message])
        is_next = how == "nak" and deliveries is not None and deliveries.is_last_unhandled(message)
        self.connection._event_bus.emit(HandlerFailed(handler=self._where, error=error))
        delay = self._nak_delay_for(message) if how == "nak" and not message.is_acked else 0.0
        if not is_reported(message):
            self._log_failure(message, error, delay, how)
        if how != "nothing" and not is_next and not message.is_acked:
            try:
                if how == "nak":
                    await message.nak(delay)
                else:
                    await message.term()
            except errors.NatsError as exc:
                self._on_ack_failed(how, exc)
        if self._options.error_cb is not None:
            try:
                result = self._options.error_cb(message, error)
                if inspect.isawaitable(result):
                    await result
            except Exception as exc:
                self.connection._event_bus.log.error("error_cb of %s failed: %r", self._description, exc, exc_info=exc)

    def _log_failure(self, message: JsMessage, error: BaseException, delay: float, how: OnError) -> None:
        """Log which message failed, how often it was delivered, and when it comes again."""
        nothing = "which is kept in progress" if is_still_running(message) else "again after ack_wait"
        next_step = {"nak": f"again in {delay:.3g} s", "term": "never again", "nothing": nothing}
        self.connection._event_bus.log.failure(
            "%s failed for message %d (%r), delivery %d%s: %r",
            self._where,
            message.seq,
            message.subject,
            message.metadata.num_delivered,
            "" if message.is_acked else ", " + next_step[how],
            error,
            error=error,
        )

    def _nak_delay_for(self, message: JsMessage) -> float:
        try:
            return self._options.nak_delay_for(message)
        except Exception as exc:
            self.connection._event_bus.log.error("nak_delay of %s failed: %r", self._description, exc, exc_info=exc)
            self.connection._event_bus.emit(HandlerFailed(handler=f"nak_delay of {self._description}", error=exc))
            return MAX_NAK_DELAY_S

    def _on_ack_failed(self, how: OnSuccess | OnError, error: errors.NatsError) -> None:
        if not isinstance(error, errors.AlreadyAcked):  # which another task of the handler caused
            # Without a connection the server redelivers it; log and emit the failure.
            where = f"{how} of a message of {self._description}"
            self.connection._event_bus.log.warning("%s failed: %s", where, error)
            self.connection._event_bus.emit(HandlerFailed(handler=where, error=error))


class ConsumeContext(RunHint):
    """A running ``consume``: passes messages to a handler. Use it with ``async with``, or ``await`` its ``run()``.

    It ends after ``stop_after`` messages, by ``stop`` or ``drain``, with the client, or when the consumer becomes
    unusable: then ``wait``, ``run`` and the end of the block raise the error; it is logged if none of them is
    waiting. The end of the block stops it; an exception in the block also cancels running calls.

    Created by ``consume`` of a consumer.
    """

    _unused_warning = "consume(...) was never run or entered"

    def __init__(self, what: str, messages: Messages, tasks: HandlerTasks) -> None:
        self._handler_tasks = tasks
        self._connection = tasks.connection
        self._messages, self._description = messages, what
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: Ending | None = None
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
    def prefetch(self) -> int:
        """The most messages to be requested, waiting or handled now; it follows the time that a handler takes."""
        deliveries = self._messages.buffer.deliveries
        return self._messages.buffer.max_messages if deliveries is None else deliveries.prefetch.bound

    @property
    def stale(self) -> int:
        """Messages that were not handled because the server delivers them again: they waited for ``ack_wait``, while
        the program or the connection stood still.
        """
        deliveries = self._messages.buffer.deliveries
        return 0 if deliveries is None else deliveries.reports.stale

    @property
    def given_back(self) -> int:
        """Messages that were left to others: all handlers were busy for twice ``ack_wait``."""
        deliveries = self._messages.buffer.deliveries
        return 0 if deliveries is None else deliveries.reports.given_back

    @property
    def closed(self) -> bool:
        """True after its end: no handler is running and none will be called."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    async def __aenter__(self) -> ConsumeContext:
        self._begun = True
        self._connection._check_loop()
        if not self._tasks:
            await self._messages.__aenter__()
            self._tasks = self._handler_tasks.start()
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            ended.add_done_callback(self._on_end)
            self._messages.buffer.end_waiters.append(ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection._check_loop()
        if exc is not None and self._tasks:
            self._handler_tasks.halt()
            self._begin_end(self._connection._options.drain_timeout)  # before the naks: it would get the messages again
            self._cancel()
        await self.stop()
        if exc is None:
            self._raise_error()

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Start it, and wait until it has ended, or until the event is set, which stops it.

        Raises the error that made the consumer unusable (ConsumerGone, PullRefused). Cancelling also cancels running
        calls, and so does the end of the option ``drain_timeout`` after the consumer has gone.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        self._begun = True  # an error replaces the warning
        check_until(until)
        async with self:
            await self.wait(until)

    async def wait(self, until: asyncio.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set: ``wait(stop)`` in a worker that ``stop`` shuts down.

        Raises the error that made the consumer unusable (ConsumerGone, PullRefused). Cancelling it ends only the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        self._check_started()
        with self._handler_tasks.end_waiters.waiting():
            await self._all_done(until)
            self._raise_error()

    async def stop(self, timeout: Duration | Default | None = DEFAULT) -> None:
        """Stop calling the handler, wait for running calls, and return waiting messages to the server.

        DrainTimeout when they take longer than ``timeout``; the shortest of several calls counts. Then, and when the
        last caller that waits is cancelled, they are cancelled: their messages are nakked where ``on_error`` is
        ``"nak"`` and not acknowledged otherwise. ``run`` and the end of the block stop with the default. In the handler
        it returns at once, and the rest happens after the handler.

        Args:
            timeout: Seconds for the running calls, which are cancelled then. Left out: the option ``drain_timeout``;
                None: no limit.
        """
        wait = self._connection._options.drain_timeout if timeout is DEFAULT else time_limit("timeout", timeout)
        self._connection._check_loop()
        self._begun = True
        if not self._tasks:
            return
        self._handler_tasks.halt()
        if self._ending is not None and not self._ending.closed:
            await self._stop_reading()  # it may be draining
        await self._end(wait)

    async def drain(self, timeout: Duration | Default | None = DEFAULT) -> None:
        """Stop pulling, handle the messages that have arrived or are in flight, then end.

        DrainTimeout when they take longer than ``timeout``, as in ``stop``. Then, and when the last caller that waits
        is cancelled, running calls are cancelled, and the rest returns to the server. In the handler it returns at
        once, and the rest happens after the handler.

        Args:
            timeout: Seconds for the messages and the running calls, which are cancelled then. Left out: the option
                ``drain_timeout``; None: no limit.
        """
        wait = self._connection._options.drain_timeout if timeout is DEFAULT else time_limit("timeout", timeout)
        self._check_started()
        await self._end(wait)

    # ---------------------------------------------------------------- internals

    def _begin_end(self, timeout: float) -> Ending:
        if self._ending is None:
            what = f"stop of consume() of {self._description}"
            self._ending = Ending(what, self._finish, self._describe_rest, self._cut)
        self._ending.begin(timeout)
        return self._ending

    async def _end(self, timeout: float) -> None:
        ending = self._begin_end(timeout)
        with self._handler_tasks.end_waiters.waiting():
            await ending.wait_as_caller(lambda: [self._messages._reader_tasks])

    async def _finish(self) -> None:
        assert self._ending is not None
        if self._handler_tasks.is_stopping:
            await self._stop_reading()
        else:
            await self._messages.drain()
        self._ending.on_stopped()
        await self._all_done()

    async def _stop_reading(self) -> None:
        await self._messages._stop(keeps_last=True)
        self._handler_tasks.handle_last()

    async def _describe_rest(self) -> list[str]:
        assert self._ending is not None
        left = [] if self._ending.is_stopped else ["the server did not confirm the end of its pulls"]
        counts = {"being handled": self.in_progress, "not handled, which return to the server": self.pending}
        return left + [f"{count} messages {what}" for what, count in counts.items() if count]

    async def _cut(self) -> None:
        if unfinished := [task for task in self._tasks if not task.done()]:
            self._cancel()
            await asyncio.wait(unfinished, timeout=CUT_TIMEOUT_S)
            self._messages._return_rest()

    def _cancel(self) -> None:
        me = asyncio.current_task()
        for task in self._tasks:
            if task is not me:
                task.cancel()

    def _on_end(self, _: asyncio.Future[None]) -> None:
        """No more messages come. If the consumer is gone, calls that run have ``drain_timeout``, as in ``stop``."""
        error = self._messages.error
        if isinstance(error, errors.ConsumerGone) and (self.in_progress or self.pending):
            wait = self._connection._options.drain_timeout
            self._connection._event_bus.log.warning(
                "consume() ends, and cancels after %g s what is left of %d messages being handled: %s",
                wait,
                self.in_progress,
                error,
            )
            asyncio.get_running_loop().call_later(wait, self._end_calls)

    def _end_calls(self) -> None:
        if not self._handler_tasks.is_stopping and not self.closed:  # ``stop`` has a limit of its own
            self._handler_tasks.report_end()
            self._cancel()

    def _check_started(self) -> None:
        self._begun = True  # suppresses the warning about an unused object
        self._connection._check_loop()
        if not self._tasks:
            raise errors.LocalProtocolError(f"enter consume() of {self._description} with async with first")

    async def _all_done(self, until: asyncio.Event | None = None, timeout: float = NO_LIMIT_S) -> None:
        await self._handler_tasks.end_waiters.wait(self._tasks, until, timeout)

    def _raise_error(self) -> None:
        if self._handler_tasks.key_error is not None:
            raise self._handler_tasks.key_error
        if self._messages.error is not None:
            raise self._messages.error.with_traceback(None)


def is_cancelled() -> bool:
    """True if this task was cancelled. A handler may also raise a CancelledError of another task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
