"""Services for threads without an event loop: each request is handled on a thread of its own.

Owns those threads; the endpoint's ``concurrency`` limits their number. Everything else is ``natsproto.service``'s.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from natsproto import errors, service
from natsproto._durations import DEFAULT, Default
from natsproto._handler_threads import in_threads
from natsproto._handlers import check_handler, is_async_generator
from natsproto.protocol.frames import Message
from natsproto.service import INHERITED
from natsproto.service._endpoint import CONCURRENCY
from natsproto.service._service import QueueGroup
from natsproto.sync._portal import Portal
from natsproto.sync._subscription import Received
from natsproto.sync._thread_handlers import thread_handler
from natsproto.sync._wrapper import ContextReader, SyncContext, SyncWrapper, blocking

G = TypeVar("G", bound=service.Group, covariant=True)


class Request(Received[service.Request]):
    """A request to a service. Respond to it with data or with an error."""

    respond: Final = blocking(service.Request.respond)
    respond_error: Final = blocking(service.Request.respond_error)

    @property
    def error(self) -> errors.ServiceError | None:
        """The error that was sent as the response, if any."""
        return self._inner.error


class ResponseStream(ContextReader[service.ResponseStream[Message], Message]):
    """The parts of one response, in order. Created by ``Client.stream``. Iterate it; leaving ``with`` cancels it."""

    @property
    def received(self) -> int:
        """The number of parts that were read."""
        return self._inner.received - len(self._buffer)

    def __iter__(self) -> Iterator[Message]:
        if self._entered:
            yield from self._iterate()
        else:
            with self:
                yield from self._iterate()

    async def _next_item(self, timeout: float | None) -> Message:
        return await self._inner._next(timeout)

    def _available_items(self) -> list[Message]:
        return self._inner._take_available()


class Endpoint(SyncWrapper[service.Endpoint]):
    """A subject on which a service handles requests, until the service stops."""

    @property
    def name(self) -> str:
        """The name in the INFO and the statistics of the service."""
        return self._inner.name

    @property
    def subject(self) -> str:
        """The subject to request, with the prefixes of its groups."""
        return self._inner.subject

    @property
    def in_progress(self) -> int:
        """The number of requests that are being handled right now."""
        return self._inner.in_progress

    @property
    def pending(self) -> int:
        """The number of requests that are received and not handled yet."""
        return self._inner.pending

    def info(self) -> service.EndpointInfo:
        """Return the description of the endpoint, as in the INFO response."""
        return self._inner.info()

    def stats(self, handler: StatsHandler | None = None) -> service.EndpointStats:
        """Return the endpoint's statistics; ``data`` is the return value of ``handler``.

        Args:
            handler: Returns the ``data`` of the statistics; None: none.
        """
        async_handler = None if handler is None else partial(call_stats_handler, handler, self._portal)
        return self._portal.run(self._inner.stats, async_handler)

    def reset(self) -> None:
        """Reset the counters to zero."""
        self._portal.run(self._inner.reset)


Handler: TypeAlias = Callable[[Request], object]
StatsHandler: TypeAlias = Callable[[Endpoint], object]
H = TypeVar("H", bound=Handler)


class HandlerThreads:
    """The threads that handle requests of one service. They are daemon threads, so the program can exit."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def async_handler(self, function: Handler, concurrency: int) -> Callable[[service.Request], Any]:
        """Return the handler for the async endpoint: it runs the function on a thread and waits for it."""
        if is_async_generator(function):
            raise TypeError("handler must be a plain function of one request; async def needs the async client")
        if inspect.isgeneratorfunction(function):
            check_handler("handler", function, "request", may_yield=True)
            return partial(self._iterate, function, LeftThreads(self._portal, concurrency))

        def wrap(one: object) -> object:
            return Request(self._portal, one) if isinstance(one, service.Request) else one

        return in_threads(thread_handler(function, "request", wrap))

    async def _iterate(
        self, function: Callable[[Request], Iterator[bytes]], left: LeftThreads, request: service.Request
    ) -> AsyncGenerator[bytes]:
        """Yield the parts of a generator that runs on a thread of its own, part by part."""
        await left.wait()
        steps: SimpleQueue[_Step | None] = SimpleQueue()
        work = partial(self._serve_steps, function, Request(self._portal, request), steps, left)
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name="natsproto request", daemon=True
        )
        thread.start()
        try:
            error: Exception | None = None
            while True:
                step = _Step(error, asyncio.get_running_loop().create_future())
                steps.put(step)
                await step.done
                if not step.parts:
                    return
                error = None
                try:
                    yield step.parts[0]
                except Exception as exc:  # the part cannot be sent
                    error = exc
        finally:
            left.add(thread)
            steps.put(None)

    def _serve_steps(
        self,
        function: Callable[[Request], Iterator[bytes]],
        request: Request,
        steps: SimpleQueue[_Step | None],
        left: LeftThreads,
    ) -> None:
        generator = cast("Generator[bytes]", function(request))
        try:
            while (step := steps.get()) is not None:
                self._post(step.done, partial(step.run, generator))
            generator.close()
        finally:
            left.discard_current()

    def _post(self, done: asyncio.Future[None], call: Callable[[], None]) -> None:
        """Call a function in this thread, and notify the event loop of its end."""
        error: Exception | None = None
        try:
            call()
        except Exception as exc:
            error = exc
        except BaseException as exc:  # sys.exit() in a thread must not end the event loop
            error = RuntimeError(f"the handler ended with {exc!r}")
            error.__cause__ = exc
        try:
            self._portal.post(partial(_finish, done, error))
        except errors.ConnectionClosed:
            return  # the event loop has ended, so no task waits for this handler


class LeftThreads:
    """Threads of one endpoint whose requests are over, because the requester has cancelled or is gone, while the
    generator is still at work. A request begins while there are fewer than ``most``: a peer may cancel any number.
    """

    def __init__(self, portal: Portal, most: int) -> None:
        self._portal, self._most = portal, most
        self._threads: set[threading.Thread] = set()
        self._is_few = asyncio.Event()

    async def wait(self) -> None:
        """Wait until another request may begin."""
        while len(self._threads) >= self._most:
            self._is_few.clear()
            await self._is_few.wait()

    def add(self, thread: threading.Thread) -> None:
        """The request of this thread is over. It was not notified yet."""
        self._threads.add(thread)

    def discard_current(self) -> None:
        """The current thread ends. Called in it."""
        try:
            self._portal.post(partial(self._discard, threading.current_thread()))
        except errors.ConnectionClosed:
            return  # the event loop has ended

    def _discard(self, thread: threading.Thread) -> None:
        self._threads.discard(thread)
        self._is_few.set()


class _Step:
    """One step of a generator in a thread: it continues, or an exception is raised at its ``yield``."""

    def __init__(self, error: Exception | None, done: asyncio.Future[None]) -> None:
        self.done = done
        self.parts: list[bytes] = []
        """The part that it has yielded; empty when it has ended."""
        self._error = error

    def run(self, generator: Generator[bytes]) -> None:
        """Do the step, in the thread."""
        try:
            self.parts.append(next(generator) if self._error is None else generator.throw(self._error))
        except StopIteration:
            pass


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return  # the request was cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def call_stats_handler(handler: StatsHandler, portal: Portal, endpoint: service.Endpoint) -> object:
    """Call the stats handler with the blocking wrapper of an endpoint."""
    return handler(Endpoint(portal, endpoint))


class Group(SyncWrapper[G], Generic[G]):
    """A subject prefix, and optionally a queue group, for endpoints. Created by ``group`` of a service or group."""

    def __init__(self, portal: Portal, inner: G, threads: HandlerThreads) -> None:
        super().__init__(portal, inner)
        self._threads = threads

    def group(self, name: str, *, queue_group: QueueGroup = INHERITED) -> Group[service.Group]:
        """Return a group within this one. Its name is a subject without ``>``; an empty name adds no prefix.

        InvalidSubject or ConfigError for invalid names.

        Args:
            name: The prefix of the subjects of its endpoints.
            queue_group: The queue group, of which one instance gets a request; None: all get it. Left out: that of the
                service or group.
        """
        group = self._portal.run(self._inner.group, name, queue_group=queue_group)
        return Group(self._portal, group, self._threads)

    def endpoint(
        self,
        name: str | None = None,
        *,
        subject: str | None = None,
        queue_group: QueueGroup = INHERITED,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Callable[[H], H]:
        """Decorate a handler to add it as an endpoint, named after the function unless a name is given.

        Needs its parentheses: TypeError for ``@service.endpoint``.

        Args:
            name: What ``discover_services`` shows, and the default of the subject; None: the name of the function.
            subject: The subject, after the prefix of the group; wildcards allowed. None: the name.
            queue_group: The queue group, of which one instance gets a request; None: all get it. Left out: that of the
                service or group.
            metadata: Labels of the endpoint that ``discover_services`` shows; None: none.
            concurrency: How many requests are handled at a time; the others wait. 1 keeps their order.
            max_pending: Requests that may wait for their turn; another one gets an error with code 503 at once. None:
                as many as a subscription holds, and beyond that they are dropped.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout: an ``async def`` is
                cancelled, a thread goes on. None: no limit.
        """
        if callable(name):
            raise TypeError("the decorator needs parentheses: @service.endpoint()")

        def register(handler: H) -> H:
            self.add_endpoint(
                name if name is not None else getattr(handler, "__name__", ""),
                handler,
                subject=subject,
                queue_group=queue_group,
                metadata=metadata,
                concurrency=concurrency,
                max_pending=max_pending,
                timeout=timeout,
            )
            return handler

        return register

    def add_endpoint(
        self,
        name: str,
        handler: Handler,
        *,
        subject: str | None = None,
        queue_group: QueueGroup = INHERITED,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Endpoint:
        """Add an endpoint. Each request is handled on a thread of its own, at most ``concurrency`` at a time.

        The handler may block, and use this client. A generator function answers in parts: each request gets its own
        generator, which is closed when the requester cancels, after the part it is working at. Arguments and errors are
        those of ``natsproto.service.Group.add_endpoint``; TypeError for an ``async def``.

        Args:
            name: What ``discover_services`` shows, and the default of the subject: A-Z, a-z, 0-9, ``-`` and ``_``.
            handler: A plain function that is called with each request in a thread.
            subject: The subject, after the prefix of the group; wildcards allowed. None: the name.
            queue_group: The queue group, of which one instance gets a request; None: all get it. Left out: that of the
                service or group.
            metadata: Labels of the endpoint that ``discover_services`` shows; None: none.
            concurrency: How many requests are handled at a time; the others wait. 1 keeps their order.
            max_pending: Requests that may wait for their turn; another one gets an error with code 503 at once. None:
                as many as a subscription holds, and beyond that they are dropped.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout: an ``async def`` is
                cancelled, a thread goes on. None: no limit.
        """
        endpoint = self._portal.run(
            self._inner.add_endpoint,
            name,
            self._threads.async_handler(handler, concurrency),
            subject=subject,
            queue_group=queue_group,
            metadata=metadata,
            concurrency=concurrency,
            max_pending=max_pending,
            timeout=timeout,
        )
        return Endpoint(self._portal, endpoint)


class Service(Group[service.Service], SyncContext[service.Service]):
    """A running instance of a service. Created by ``Client.add_service``; leaving ``with`` stops it."""

    def __init__(self, portal: Portal, inner: service.Service) -> None:
        super().__init__(portal, inner, HandlerThreads(portal))

    @property
    def id(self) -> str:
        """Different for each instance, to ask one alone for its statistics."""
        return self._inner.id

    @property
    def name(self) -> str:
        """The name that all instances share."""
        return self._inner.name

    @property
    def version(self) -> str:
        """The semantic version of the service."""
        return self._inner.version

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints in the order in which they were added."""
        return tuple(Endpoint(self._portal, endpoint) for endpoint in self._inner.endpoints)

    def info(self) -> service.ServiceInfo:
        """Return the service's INFO response."""
        return self._portal.run(self._inner.info)

    def stats(self) -> service.ServiceStats:
        """Return the service's STATS response."""
        return self._portal.run(self._inner.stats)

    def reset(self) -> None:
        """Reset the counters to zero and the start time to now."""
        self._portal.run(self._inner.reset)

    def wait_stopped(self, until: threading.Event | None = None) -> Exception | None:
        """Wait until the service has stopped and return the reason: the ``error`` given to ``stop``, the server's
        refusal of an endpoint, the error that closed the client, or None.

        Returns None also when the event is set: the service runs on until its block is left, which answers the requests
        that have arrived. An interrupt ends only the wait.

        Args:
            until: An event whose setting ends the wait, such as that of ``stop_event()``; None: it waits until stopped.
        """
        return self._portal.call_until(self._inner.wait_stopped, until)

    def stop(self, error: Exception | None = None, *, timeout: float | timedelta | Default | None = DEFAULT) -> None:
        """Stop accepting requests, handle those already received, then end; see the async service.

        In a handler it waits for the other endpoints only.

        Args:
            error: Why it stops, which ``wait_stopped`` returns; None: no error.
            timeout: Seconds for the requests in progress, which are cancelled then. Left out: the option
                ``drain_timeout``; None: no limit.
        """
        self._portal.call(self._inner.stop, error, timeout=timeout)
