"""The event bus: passes client events to the log, event streams, listeners and the ``on_event`` callback.

Owns these consumers and the task that runs asynchronous callbacks, one event after the other. Errors of callbacks end
here, in the log. Each event is one log record: its ``args`` are the fields of the event, ``nats_event`` is the event
itself. The traceback of the cause is added where the event's ``trace_level`` is enabled.
"""

from __future__ import annotations

import asyncio
import logging
import re
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, MutableMapping
from functools import lru_cache
from time import monotonic
from typing import Any, Final

from natsproto._core import events
from natsproto._core.ending import INSIDE, ReaderKey
from natsproto._core.notifier import running_loop
from natsproto._handlers import handler_trace

log = logging.getLogger("natsproto")

FAILURES_PERIOD_S: Final = 60.0
"""Seconds in which errors of a handler count as repeated."""
MAX_TRACEBACKS: Final = 5
"""Errors of one kind whose tracebacks are logged in this time."""
MAX_FAILURE_KINDS: Final = 1000
MAX_FIELD_CHARS: Final = 1000
"""Characters of one field of an event in its log line. A server can announce 1,000 names of 255 characters."""
_TEXT_FIELD = re.compile(r"(%\(\w+\))([sr])")


class RepeatedFailures:
    """How often a handler has failed with errors of one kind since ``began``, and how many of them the log has."""

    __slots__ = ("began", "count", "logged")

    def __init__(self, began: float) -> None:
        self.began: float = began
        self.count = self.logged = 0


DROP_REPORT_INTERVAL_S = 1.0
"""Seconds between two log lines about events that a slow callback did not get."""


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one client: its lines begin with the name of the client, if it has one."""

    def __init__(self, name: str) -> None:
        super().__init__(log, {})
        self._prefix = f"{name.replace('%', '%%')}: " if name else ""
        self._failures: dict[tuple[object, ...], RepeatedFailures] = {}

    def failure(self, line: str, where: str, *args: object, error: BaseException) -> None:
        """Log the error of a handler with its traceback. Of errors that repeat within FAILURES_PERIOD_S the first
        MAX_TRACEBACKS are logged so, and then their number, each time that it has doubled.
        """
        trace = handler_trace(error)
        place = None if trace is None or trace[2] is None else (trace[2].tb_frame.f_code, trace[2].tb_lineno)
        kind = (line, where, type(error), place)
        now = monotonic()
        failures = self._failures.get(kind)
        if failures is None or now >= failures.began + FAILURES_PERIOD_S:
            if failures is not None and failures.count > failures.logged:
                self._log_count(where, failures, now, error)
            if len(self._failures) >= MAX_FAILURE_KINDS:
                self._failures.clear()
            failures = self._failures[kind] = RepeatedFailures(now)
        failures.count += 1
        if failures.count <= MAX_TRACEBACKS:
            failures.logged = failures.count
            self.error(line, where, *args, exc_info=trace)
        elif failures.count >= 2 * failures.logged:
            self._log_count(where, failures, now, error)

    def _log_count(self, where: str, failures: RepeatedFailures, now: float, error: BaseException) -> None:
        failures.logged = failures.count
        line = "%s failed %d times in %.3g s, now: %r (each is a HandlerFailed event)"
        self.error(line, where, failures.count, now - failures.began, error)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs


class EventBus:
    """Passes every event to every consumer. ``callback`` is the option ``on_event``, ``name`` that of the client."""

    def __init__(self, callback: Callable[..., object] | None, name: str | None = None) -> None:
        self._callback, self._name = callback, name or ""
        self.log: ClientLog = ClientLog(self._name)
        """For what is no event."""
        self.on_error: Callable[[object], None] | None = None
        """Called with the errors that events have."""
        self._streams: weakref.WeakSet[events.EventStream] | None = None  # expensive to create, and rarely used
        self._listeners: list[Callable[[events.Event], object]] = []
        self._queue: deque[tuple[Coroutine[object, object, object], events.Event, str]] = deque()
        self._worker: asyncio.Task[None] | None = None
        """Runs the queue; its first entry is being handled."""
        self._key = ReaderKey()  # in the context of asynchronous callbacks
        self._end: events.Closed | None = None
        self._written: dict[type[events.Event], float] = {}
        self._dropped = 0  # events that were not reported yet
        self._dropped_reported_at = -DROP_REPORT_INTERVAL_S
        self.is_quiet = False
        """True for a connection that is an internal matter: nothing is logged."""

    def emit(self, event: events.Event, *, level: int | None = None) -> None:
        """Report an event; Closed is the last one. ``level`` overrides the usual log level."""
        usual, line = event.log_line()
        if self._name:
            event.__dict__["client"] = self._name
            line = line and f"{self._name.replace('%', '%%')}: {line}"
        level = usual if level is None else level
        if event.pause and self._is_soon(event):
            level = logging.DEBUG
        if line and not self.is_quiet and log.isEnabledFor(level):
            _write(level, _bounded(line), event)
        if isinstance(event, events.Closed):
            self._end = event
        if self._streams is not None:
            for stream in list(self._streams):
                stream.put(event)
        if self._listeners:
            for listener in list(self._listeners):
                self._call(listener, event, "listener")
        if self._callback is not None:
            self._call(self._callback, event, "on_event")
        if self.on_error is not None and (error := getattr(event, "error", None)) is not None:
            self.on_error(error)

    def wants(self, kind: type[events.Event]) -> bool:
        """True if any consumer would see such an event, so that it is worth creating."""
        heard = self._callback is not None or self._listeners or self._streams is not None
        return bool(heard) or log.isEnabledFor(kind.level)

    def _is_soon(self, event: events.Event) -> bool:
        """True if the log has had an event of this type within the ``pause`` of the type."""
        now = asyncio.get_running_loop().time()
        if now < self._written.get(type(event), 0.0):
            return True
        self._written[type(event)] = now + event.pause
        return False

    def on_handler_error(self, where: str, error: BaseException) -> None:
        """Report an error of an application callback."""
        self.log.failure("%s failed: %r", where, error, error=error)
        self.emit(events.HandlerFailed(handler=where, error=error))

    def listen(self, callback: Callable[[events.Event], object]) -> Callable[[], None]:
        """Call ``callback`` for every event, synchronously, before the code that caused it continues.

        Returns a function that stops it.
        """
        self._listeners.append(callback)

        def unlisten() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return unlisten

    def open_stream(self) -> events.EventStream:
        """Return a stream of all events from now on. It is dropped when its last reference is."""
        stream = events.EventStream()
        if self._end is not None:
            stream.put(self._end)
        else:
            if self._streams is None:
                self._streams = weakref.WeakSet()
            self._streams.add(stream)
        return stream

    def _call(self, callback: Callable[..., object], event: events.Event, what: str) -> None:
        try:
            result = callback(event)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # a CancelledError of the callback must not reach the caller of emit()
            self.log.error("%s failed for %r", what, event, exc_info=exc)
            return
        if asyncio.iscoroutine(result):
            if len(self._queue) >= events.MAX_QUEUED_EVENTS and not isinstance(event, events.Closed):
                result.close()
                self._on_dropped(what)
                return
            self._queue.append((result, event, what))
            if len(self._queue) == 1:
                self._worker = asyncio.get_running_loop().create_task(
                    self._work(), name="natsproto on_event", context=self._key.handler_context()
                )
                self._worker.add_done_callback(self._stopped)

    def _on_dropped(self, what: str) -> None:
        """Report events that a callback, which waits for something, does not get; the log has them all."""
        self._dropped += 1
        now = asyncio.get_running_loop().time()
        if now >= self._dropped_reported_at + DROP_REPORT_INTERVAL_S:
            self._dropped_reported_at = now
            count, self._dropped = self._dropped, 0
            self.log.warning(
                "%s is slow: %d events wait for it, %d more were dropped", what, events.MAX_QUEUED_EVENTS, count
            )

    async def wait_handled(self, timeout: float) -> int:
        """Wait until asynchronous callbacks have handled every event, at most ``timeout`` seconds.

        Returns the number of unhandled events. Returns at once for a callback that waits for itself. Cancelling changes
        nothing.
        """
        worker = self._worker
        if not self._queue or worker is None or worker.get_loop() is not running_loop():
            return 0
        if self._key in INSIDE.get():
            return 0
        await asyncio.wait((worker,), timeout=timeout)
        return len(self._queue)

    async def _work(self) -> None:
        """Run the asynchronous callbacks, one event after the other, then end."""
        queue = self._queue
        while queue:
            coroutine, event, what = queue[0]
            try:
                await coroutine
            except (GeneratorExit, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as exc:
                task = asyncio.current_task()
                if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                self.log.error("%s failed for %r", what, event, exc_info=exc)
            queue.popleft()

    def _stopped(self, worker: asyncio.Task[None]) -> None:
        """Drop the unhandled events of a worker that was cancelled, as at the end of a program."""
        if worker is self._worker:
            while self._queue:
                self._queue.popleft()[0].close()


@lru_cache(256)
def _bounded(line: str) -> str:
    """Return the line for a log with at most MAX_FIELD_CHARS of each text."""
    return _TEXT_FIELD.sub(rf"\g<1>.{MAX_FIELD_CHARS}\g<2>", line)


def _write(level: int, line: str, event: events.Event) -> None:
    fields = event.fields()
    cause = None
    if log.isEnabledFor(event.trace_level):
        cause = next((value for value in fields.values() if isinstance(value, BaseException)), None)
    trace = handler_trace(cause) if cause is not None and event.trace_level > logging.DEBUG else cause
    log.log(level, line, fields, exc_info=trace, extra={"nats_event": event})
