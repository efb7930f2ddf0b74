"""One endpoint of a service: requests in, answers out, counted.

Owns the subscription of the endpoint, a task for every request in hand, and the counters. It knows nothing of
the service around it but whom to tell when it breaks.

A request gets its task in the step in which it arrives, or when another one ends: there is no dispatcher to be
woken, and what a handler puts into context variables is seen by no other request.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from types import MappingProxyType
from typing import TypeAlias

from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto.errors import DrainTimeout, NatsError, ServiceError
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike
from natsproto.service._report import EndpointInfo, EndpointStats, with_error

log = logging.getLogger("natsproto")

CONCURRENCY = 64
"""Requests that an endpoint handles at the same time unless another bound is given."""


class Request(Message):
    """A request to a service: a message that can be answered with an error as well."""

    __slots__ = ()

    _note: ServiceError | None

    @property
    def refusal(self) -> ServiceError | None:
        """The error it was answered with, if any."""
        return self._note

    async def respond_error(
        self, code: int, description: str, payload: Payload = b"", *, headers: HeadersLike | None = None
    ) -> None:
        """Answers with an error (ADR-32), which counts as one of the endpoint; raising ServiceError does the same.

        Line ends in the description become spaces. LocalProtocolError when the request asks for no answer.
        Cancelling it while it waits for room in the outbox sends nothing.
        """
        self._note = ServiceError(code, description)
        await self.respond(payload, headers=with_error(headers, code, description))


Handler: TypeAlias = Callable[[Request], Awaitable[object] | object]
StatsHandler: TypeAlias = Callable[["Endpoint"], object]


class Endpoint:
    """A subject on which a service answers. Made by ``Service.endpoint`` and its likes; lives as long as it does."""

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
        on_failure: Callable[[NatsError], None],
    ) -> None:
        self.name = name
        self.subject = subject
        self.queue_group = queue_group
        """None when it is in none: then every instance of the service gets every request."""
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata))
        self._connection = connection
        self._handler = handler
        self._concurrency = concurrency
        self._on_failure = on_failure
        self._context = contextvars.copy_context()
        self._in_hand: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self.reset()
        self._subscription = connection.subscribe(subject, queue=queue_group, message_type=Request)
        self._subscription.on_change = self._dispatch

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, subject={self.subject!r})"

    @property
    def in_progress(self) -> int:
        """Requests being handled right now."""
        return len(self._in_hand)

    @property
    def waiting(self) -> int:
        """Requests received whose handling has not begun."""
        return self._subscription.pending_msgs

    def info(self) -> EndpointInfo:
        """What it is."""
        return EndpointInfo(
            name=self.name, subject=self.subject, queue_group=self.queue_group or "", metadata=self.metadata
        )

    def stats(self, handler: StatsHandler | None = None) -> EndpointStats:
        """What it has done; ``data`` is what the handler makes of it."""
        return EndpointStats(
            name=self.name,
            subject=self.subject,
            queue_group=self.queue_group or "",
            num_requests=self._requests,
            num_errors=self._errors,
            last_error=self._last_error,
            processing_time=self._nanoseconds / 1e9,
            average_processing_time=self._nanoseconds // max(1, self._handled) / 1e9,
            data=None if handler is None else self._custom(handler),
        )

    def reset(self) -> None:
        """Counts from zero again."""
        self._requests = 0
        self._handled = 0
        self._errors = 0
        self._last_error = ""
        self._nanoseconds = 0

    # ---------------------------------------------------------------- ending

    async def drain(self, timeout: float, asking: asyncio.Task[object] | None) -> None:
        """Takes no new requests and waits for those it has, except the one whose task is ``asking``.

        DrainTimeout after ``timeout`` seconds, when the rest is cancelled; RequestTimeout when the server does not
        confirm in that time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            await self._subscription.drain(timeout)
            while working := [task for task in self._in_hand if task is not asking]:
                left = deadline - loop.time()
                if left <= 0:
                    unanswered = f"{len(working) + self.waiting} requests to endpoint {self.name!r} not answered"
                    raise DrainTimeout(f"drain of endpoint {self.name!r}", timeout, [unanswered])
                await asyncio.wait(working, timeout=left)
        except BaseException:
            self.cut(asking)
            raise

    def cut(self, asking: asyncio.Task[object] | None) -> None:
        """Ends it at once: requests in hand are cancelled, except the one whose task is ``asking``."""
        self._is_cut = True
        self._connection.unsubscribe_nowait(self._subscription)
        for task in self._in_hand:
            if task is not asking:
                task.cancel()

    # ---------------------------------------------------------------- handling

    def _dispatch(self) -> None:
        """Something arrived, a request was answered, or the end came."""
        subscription = self._subscription
        inbox = subscription.inbox
        while inbox and len(self._in_hand) < self._concurrency and not self._is_cut:
            request = inbox.popleft()
            assert isinstance(request, Request)
            task = asyncio.get_running_loop().create_task(
                self._handle(request), name=f"natsproto endpoint {self.name}", context=self._context.copy()
            )
            self._in_hand.add(task)
            task.add_done_callback(self._done)
            subscription.enlist(task)
        if subscription.error is not None and not self._is_cut:
            self._on_failure(subscription.error)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_hand.discard(task)
        self._dispatch()

    async def _handle(self, request: Request) -> None:
        self._requests += 1
        began = perf_counter_ns()  # not the loop's clock, whose steps are a millisecond on uvloop
        try:
            result = self._handler(request)
            if result is not None and inspect.isawaitable(result):
                await result
        except ServiceError as exc:
            await self._refuse(request, exc)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # it is this task that was cancelled, not something the handler awaited
            where = f"endpoint {self.name!r}"
            log.error("%s failed: %r", where, exc, exc_info=exc)
            self._connection.announce(HandlerFailed(where=where, error=exc))
            await self._refuse(request, ServiceError(500, f"{type(exc).__name__}: {exc}"))
        finally:
            self._handled += 1
            self._nanoseconds += perf_counter_ns() - began
            refusal = request.refusal
            if refusal is not None:
                self._errors += 1
                self._last_error = f"{refusal.code}:{refusal.description}"

    async def _refuse(self, request: Request, error: ServiceError) -> None:
        request._note = error  # counted in any case
        if request.has_reply:
            try:
                await request.respond_error(error.code, error.description)
            except NatsError as exc:
                log.warning("endpoint %r cannot answer with an error: %s", self.name, exc)

    def _custom(self, handler: StatsHandler) -> object:
        try:
            data = handler(self)
            json.dumps(data)
        except Exception as exc:
            log.error("the stats handler failed for endpoint %r", self.name, exc_info=exc)
            return None
        return data
