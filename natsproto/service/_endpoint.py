"""One endpoint of a service.

Owns the endpoint's subscription, a task for each request that is being handled, and the counters. It knows nothing of
its service except the callback for errors.

A request gets its task when it arrives, or when another request ends; no dispatcher task has to wake up first. Each
task has its own context, so no request sees the context variables that the handler sets for another one.

A request that is cut off, because the service or the client ends before its handler does, is answered with 503.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, perf_counter_ns
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto._core.time_slice import TimeSlice
from natsproto._handlers import HandlerResult, finish
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.service._responses import (
    MAX_DESCRIPTION_CHARS,
    EndpointInfo,
    EndpointStats,
    cut_description,
    error_headers,
)

DATA = (bytes, bytearray, memoryview, str, dict, list)
"""The types of results of a handler for which a warning says that they are not sent."""

_STOPPED: Final = errors.ServiceError(503, "the service was stopped")
_FULL: Final = errors.ServiceError(503, "too many requests wait")

CONCURRENCY = 64
"""The default number of requests that an endpoint handles at the same time."""

MAX_PAUSED = 1000
"""Requests that wait for credit beside those that are handled; more of them take places."""


class Request(Message):
    """A request to a service. Respond to it with data or with an error."""

    __slots__ = ()

    _note: errors.ServiceError | Literal[True] | None  # True after a response that is no error

    @property
    def error(self) -> errors.ServiceError | None:
        """The error that was sent as the response, if any."""
        return None if self._note is True else self._note

    async def respond(self, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish a response to the reply subject, as ``Message.respond`` does, with its errors.

        Args:
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        await super().respond(payload, headers=headers)
        self._note = self._note or True

    async def respond_error(
        self, code: int, description: str, payload: Payload = b"", *, headers: HeadersLike | None = None
    ) -> None:
        """Respond with an error (ADR-32), which the endpoint counts. Raising ServiceError in a handler does the same.

        Line breaks in the description become spaces; it is cut to 1,024 characters, to fewer where ``max_payload`` is
        small. LocalProtocolError when the request has no reply subject.
        Cancelling it while it waits for room in the outbox sends nothing.

        Args:
            code: A number for programs, such as 400 or 404; 500 is that of unexpected exceptions.
            description: A text for people, in one line.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        self._note = errors.ServiceError(code, description)
        given = [] if headers is None else list(Headers(headers).pairs())
        max_payload = 0 if self._origin is None else self._origin.max_payload  # type: ignore[attr-defined]
        error = error_headers(code, cut_description(description, max_payload))
        await self.respond(payload, headers=Headers([*given, *error.items()]))


def error_from(error: BaseException) -> errors.ServiceError:
    """Return the error response for an exception of a handler."""
    return (
        error
        if isinstance(error, errors.ServiceError)
        else errors.ServiceError(500, f"{type(error).__name__}: {error}")
    )


Handler: TypeAlias = Callable[[Request], HandlerResult]
"""The handler of an endpoint: ``def`` or ``async def``, called with each request."""


class Places:
    """The places of an endpoint. A request that waits for credit of its requester takes none, so that requesters who
    give no credit cannot keep the others out; but at most MAX_PAUSED do so.

    ``tasks`` are those of all requests that are handled; ``on_free`` is called when one of them pauses.
    """

    def __init__(self, tasks: set[asyncio.Task[None]], concurrency: int, on_free: Callable[[], None]) -> None:
        self._tasks, self._concurrency, self._on_free = tasks, concurrency, on_free
        self._paused: set[asyncio.Task[object]] = set()
        self._returning: deque[tuple[asyncio.Task[object], asyncio.Future[None]]] = deque()

    @property
    def is_free(self) -> bool:
        """True if another request can be handled now."""
        return len(self._tasks) - len(self._paused) < self._concurrency

    def pause(self) -> None:
        """The current task waits for its requester from now on. ``resume`` must follow, unless the task ends."""
        task = asyncio.current_task()
        if task in self._tasks and len(self._paused) < MAX_PAUSED:
            self._paused.add(task)
            self._on_free()

    async def resume(self) -> None:
        """Wait for a place; those who have begun come before new requests."""
        task = asyncio.current_task()
        if task not in self._paused:
            return
        if self.is_free and not self._returning:
            self._paused.discard(task)
            return
        turn = asyncio.get_running_loop().create_future()
        self._returning.append((task, turn))
        await turn

    def update(self, ended: asyncio.Task[None] | None = None) -> None:
        """Give free places to those who have paused."""
        if ended is not None:
            self._paused.discard(ended)
        while self._returning and self.is_free:
            task, turn = self._returning.popleft()
            if not turn.done():
                self._paused.discard(task)
                turn.set_result(None)


class Endpoint:
    """A subject of a service and its handler. Created by ``add_endpoint`` or ``endpoint`` of a service or group."""

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        subject: str,
        queue_group: str | None,
        metadata: Mapping[str, str],
        handler: Handler,
        concurrency: int,
        max_pending: int | None,
        on_error: Callable[[errors.NatsError], None],
    ) -> None:
        self.name: str = name
        self.subject: str = subject
        self.queue_group: str | None = queue_group
        """None without a queue group: then every instance of the service receives every request."""
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata))
        self._where = f"endpoint {name!r}"
        self._connection, self._time_slice = connection, TimeSlice.of(asyncio.get_running_loop())
        self._handler = handler
        self._max_pending = max_pending
        self._on_error = on_error
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = Places(self._tasks, concurrency, self._dispatch)
        self._is_cut = False
        self._is_told = False  # that the handler returns data
        self.reset()
        self._subscription = connection._subscribe(subject, queue=queue_group, message_type=Request)
        self._subscription._on_change = self._dispatch
        self._readers = self._subscription._readers
        """Of which each request that is being handled is one."""
        self._readers.on_cut = self._on_cut
        self._readers.key.mark(self._context)

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, subject={self.subject!r})"

    @property
    def in_progress(self) -> int:
        """The number of requests that are being handled right now."""
        return len(self._tasks)

    @property
    def pending(self) -> int:
        """The number of requests that are received and not handled yet."""
        return self._subscription.pending_msgs

    def info(self) -> EndpointInfo:
        """Return the description of the endpoint, as in the INFO response."""
        return EndpointInfo(
            name=self.name, subject=self.subject, queue_group=self.queue_group or "", metadata=self.metadata
        )

    def stats(self, handler: StatsHandler | None = None) -> EndpointStats:
        """Return the endpoint's statistics; ``data`` is the return value of ``handler``.

        Args:
            handler: Returns the ``data`` of the statistics; None: none.
        """
        return EndpointStats(
            name=self.name,
            subject=self.subject,
            queue_group=self.queue_group or "",
            num_requests=self._requests,
            num_errors=self._errors,
            last_error=self._last_error,
            processing_time=self._nanoseconds / 1e9,
            average_processing_time=self._nanoseconds // max(1, self._handled) / 1e9,
            data=None if handler is None else self._custom_stats(handler),
        )

    def reset(self) -> None:
        """Reset the counters to zero."""
        self._requests = 0
        self._handled = 0
        self._errors = 0
        self._last_error = ""
        self._nanoseconds = 0

    # ---------------------------------------------------------------- ending

    def _cut(self) -> list[asyncio.Task[None]]:
        """Unsubscribe and cancel all requests at once, except the caller's; return their tasks."""
        tasks = self._readers.cut()
        self._subscription._unsubscribe_nowait()
        return tasks

    def _on_cut(self) -> None:
        """No further request is handled."""
        self._is_cut = True
        inbox = self._subscription._inbox
        while inbox:
            self._send_error(cast("Request", inbox.popleft()), _STOPPED)

    # ---------------------------------------------------------------- handling

    def _dispatch(self) -> None:
        """Start tasks for waiting requests. Called when a request arrives or ends, and when the subscription ends."""
        subscription = self._subscription
        inbox = subscription._inbox
        self._places.update()
        while inbox and self._places.is_free and not self._is_cut:
            request = inbox.popleft()
            assert isinstance(request, Request)
            task = asyncio.get_running_loop().create_task(
                self._handle(request), name=f"natsproto endpoint {self.name}", context=self._context.copy()
            )
            self._tasks.add(task)
            task.add_done_callback(self._done)
            subscription._track_task(task)
        if self._max_pending is not None:
            while len(inbox) > self._max_pending:
                self._refuse(cast("Request", inbox.pop()))
        if subscription.error is not None and not self._is_cut:
            self._on_error(subscription.error)

    def _refuse(self, request: Request) -> None:
        """Answer a request for which there is no room."""
        self._requests += 1
        self._count_error(_FULL)
        self._send_error(request, _FULL)

    def _count_error(self, error: errors.ServiceError) -> None:
        self._errors += 1
        self._last_error = f"{error.code}:{error.description}"[:MAX_DESCRIPTION_CHARS]

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.update(task)
        self._dispatch()

    async def _handle(self, request: Request) -> None:
        time_slice = self._time_slice
        if monotonic() >= time_slice.ends_at:
            await time_slice.next_turn()
        self._requests += 1
        began = perf_counter_ns()  # not the loop's clock, whose steps are a millisecond on uvloop
        try:
            if isinstance(result := await finish(self._handler(request)), DATA) and not self._is_told:
                self._tell_of(result)
        except errors.ServiceError as exc:
            await self._respond_error(request, exc)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    if request._note is None:
                        self._send_error(request, _STOPPED if self._is_cut else error_from(exc))
                    raise  # this task was cancelled, not a future that the handler awaited
            self._connection._event_bus.on_handler_error(self._where, exc)
            await self._respond_error(request, error_from(exc))
        finally:
            self._handled += 1
            self._nanoseconds += perf_counter_ns() - began
            error = request.error
            if error is not None:
                self._count_error(error)

    def _tell_of(self, result: object) -> None:
        """The handler returned data, which nobody gets. Once, as it may have responded too."""
        self._is_told = True
        what = (
            f"returned {type(result).__name__}, which is not sent: await request.respond(data), or return it in a def"
        )
        self._connection._event_bus.log.warning("%s %s", self._where, what)
        self._connection._event_bus.emit(HandlerFailed(handler=self._where, error=TypeError(f"the handler {what}")))

    async def _respond_error(self, request: Request, error: errors.ServiceError) -> None:
        request._note = error  # counted even if there is no reply subject
        if request.has_reply:
            try:
                await request.respond_error(error.code, error.description)
            except errors.NatsError as exc:
                self._connection._event_bus.log.warning("endpoint %r cannot send an error response: %s", self.name, exc)

    def _send_error(self, request: Request, error: errors.ServiceError) -> None:
        """Answer a request that was cut off, as far as that is possible without waiting."""
        request._note = error
        reply = request.reply
        if reply is not None and self._connection._reply_guard.is_allowed(reply):
            headers = error_headers(error.code, cut_description(error.description, self._connection.max_payload))
            with suppress(errors.NatsError):  # the client is closed
                self._connection._outbox.put_message(reply, b"", None, headers)

    def _custom_stats(self, handler: StatsHandler) -> object:
        try:
            data = handler(self)
            json.dumps(data)
        except Exception as exc:
            self._connection._event_bus.log.error("the stats handler failed for endpoint %r", self.name, exc_info=exc)
            return None
        return data


StatsHandler: TypeAlias = Callable[[Endpoint], object]
"""Returns what ``data`` of an endpoint's statistics is to hold: any value that JSON has."""
