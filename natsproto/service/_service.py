"""Services (ADR-32): endpoints that other clients can discover, describe and measure.

Owns the life of a service and its PING, INFO and STATS responses. It uses only public methods of the connection, so
a reconnect affects it as it affects any subscription.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.ending import CUT_TIMEOUT_S, Ending
from natsproto._core.events import Closed, Event
from natsproto._core.inbox.subscription import Subscription
from natsproto._durations import DEFAULT, Default, positive_seconds, time_limit
from natsproto._handler_threads import Executor, with_executor, with_timeout
from natsproto._handlers import check_handler, is_async_generator
from natsproto._help.async_hints import WarnIfUnused
from natsproto._signals import check_until
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import publish_subject, subscribe_subject
from natsproto.protocol.subject import queue_group as checked_queue_group
from natsproto.service._discovery import control_subject
from natsproto.service._endpoint import CONCURRENCY, Endpoint, Handler, StatsHandler
from natsproto.service._responses import (
    PREFIX,
    EndpointInfo,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    encode,
    encode_within,
    endpoint_size,
)
from natsproto.service._stream_endpoint import CreditInbox, StreamEndpoint, StreamHandler

QUEUE_GROUP = "q"
"""The default queue group of endpoints."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = r"(?:0|[1-9]\d*)"
_PRE = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?", re.ASCII
)


class Inherited(Enum):
    """The type of INHERITED: use the queue group of the enclosing group or service."""

    INHERITED = "inherited"


INHERITED: Final = Inherited.INHERITED
"""For ``queue_group``: that of the enclosing group or service."""
QueueGroup: TypeAlias = str | Literal[Inherited.INHERITED] | None
"""A name, None for no queue group, or INHERITED."""

AnyHandler: TypeAlias = Handler | StreamHandler
H = TypeVar("H", bound=AnyHandler)


class Group:
    """A subject prefix, and optionally a queue group, for endpoints. Created by ``group`` of a service or group."""

    def __init__(self, service: Service | None, prefix: str, queue_group: str | None) -> None:
        self.prefix: str = prefix
        """The subject prefix of the endpoints, without the last dot; empty for the service itself."""
        self.queue_group: str | None = queue_group
        self._service = service

    def group(self, name: str, *, queue_group: QueueGroup = INHERITED) -> Group:
        """Return a group within this one. Its name is a subject without ``>``; an empty name adds no prefix.

        InvalidSubject or ConfigError for invalid names.

        Args:
            name: The prefix of the subjects of its endpoints.
            queue_group: The queue group, of which one instance gets a request; None: all get it. Left out: that of the
                service or group.
        """
        if name:
            subscribe_subject(name, "group name")
            if ">" in name:
                raise errors.ConfigError(
                    "group name", name, "cannot contain '>', because endpoint subjects follow the name"
                )
        return Group(self._root(), _join_subject(self.prefix, name), self._queue_group_for(queue_group))

    def endpoint(
        self,
        name: str | None = None,
        *,
        subject: str | None = None,
        queue_group: QueueGroup = INHERITED,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int | None = None,
        executor: Executor = None,
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
            executor: For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a
                time, or give a ThreadPoolExecutor. None: the handler is called on the event loop.
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
                executor=executor,
                timeout=timeout,
            )
            return handler

        return register

    def add_endpoint(
        self,
        name: str,
        handler: AnyHandler,
        *,
        subject: str | None = None,
        queue_group: QueueGroup = INHERITED,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int | None = None,
        executor: Executor = None,
        timeout: float | timedelta | None = None,
    ) -> Endpoint:
        """Add an endpoint, which handles requests from now on.

        ``handler`` (def or async def) receives a Request and responds with ``respond``. A ServiceError that it raises
        becomes the response; any other exception is logged, emitted as a HandlerFailed event, and becomes an error
        response with code 500. ``subject`` (default: the name) may contain wildcards and follows the prefix of the
        group. With ``queue_group=None`` every instance receives every request. At most ``concurrency`` requests are
        handled at the same time, the rest waits, up to ``max_pending``; with 1 they are handled in order.

        ``executor`` is for a ``def`` handler that blocks: True calls it in daemon threads, as many as ``concurrency``,
        or give a ThreadPoolExecutor. Return ``request.respond(data)`` there; it is awaited in the event loop. A call
        that takes longer than ``timeout`` ends with HandlerTimeout, which its caller gets with code 500.

        ConfigError, InvalidSubject or TypeError for bad arguments and when the service has stopped; LocalProtocolError
        when it was not started; ConnectionClosed.

        Args:
            name: What ``discover_services`` shows, and the default of the subject: A-Z, a-z, 0-9, ``-`` and ``_``.
            handler: Called with each request, ``def`` or ``async def``; an async generator answers in parts.
            subject: The subject, after the prefix of the group; wildcards allowed. None: the name.
            queue_group: The queue group, of which one instance gets a request; None: all get it. Left out: that of the
                service or group.
            metadata: Labels of the endpoint that ``discover_services`` shows; None: none.
            concurrency: How many requests are handled at a time; the others wait. 1 keeps their order.
            max_pending: Requests that may wait for their turn; another one gets an error with code 503 at once. None:
                as many as a subscription holds, and beyond that they are dropped.
            executor: For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a
                time, or give a ThreadPoolExecutor. None: the handler is called on the event loop.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout: an ``async def`` is
                cancelled, a thread goes on. None: no limit.
        """
        _check_name("endpoint name", name)
        subscribe_subject(subject if subject is not None else name, "endpoint subject")
        if type(concurrency) is not int or concurrency < 1:
            raise errors.ConfigError("concurrency", concurrency, "must be a positive int")
        if max_pending is not None and (type(max_pending) is not int or not 0 <= max_pending < 2**63):
            raise errors.ConfigError("max_pending", max_pending, "must be a whole number below 2**63, 0 for none")
        wait = None if timeout is None else positive_seconds("timeout", timeout)
        if is_async_generator(handler):
            check_handler("handler", handler, "request", may_yield=True)
            if executor is not None and executor is not False:
                raise errors.ConfigError("executor", executor, "is for def handlers, and this one is async def")
        else:
            handler = with_timeout(with_executor("handler", handler, executor, concurrency), wait)
        return self._root()._add(
            name,
            _join_subject(self.prefix, subject if subject is not None else name),
            self._queue_group_for(queue_group),
            _checked_metadata(metadata),
            handler,
            concurrency,
            max_pending,
            wait,
        )

    def _root(self) -> Service:
        assert self._service is not None
        return self._service

    def _queue_group_for(self, queue_group: QueueGroup) -> str | None:
        if queue_group is INHERITED:
            return self.queue_group
        if queue_group is not None:
            checked_queue_group(queue_group)
        return queue_group


class Service(WarnIfUnused, Group):
    """An instance of a service, created by ``Client.add_service``. Await it to start it, or use it with ``async with``,
    which also stops it.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue_group: str | None = QUEUE_GROUP,
        stats_handler: StatsHandler | None = None,
        prefix: str = PREFIX,
    ) -> None:
        _check_name("service name", name)
        if not isinstance(version, str):
            raise TypeError(f"version must be a str, not {type(version).__name__}")
        if not _SEMVER.fullmatch(version):
            raise errors.ConfigError("version", version, "must be a semantic version like 1.0.0 (semver.org)")
        if not isinstance(description, str):
            raise TypeError(f"description must be a str, not {type(description).__name__}")
        if stats_handler is not None and not callable(stats_handler):
            raise TypeError(f"stats_handler must be callable, not {type(stats_handler).__name__}")
        if queue_group is not None:
            checked_queue_group(queue_group)
        publish_subject(prefix, "prefix")
        super().__init__(None, "", queue_group)
        self.id: str = connection._runtime.new_id()
        """Different for each instance, to ask one alone for its statistics."""
        self.name = name
        self.version = version
        self.description = description
        self.metadata: Mapping[str, str] = _checked_metadata(metadata)
        self._connection = connection
        self._prefix = prefix
        self._stats_handler = stats_handler
        self._endpoints: list[Endpoint] = []
        self._size = 0  # bytes of the largest response, without what grows
        self._started_at = datetime.now(UTC)
        self._stop_task: asyncio.Task[None] | None = None
        self._ending: Ending | None = None
        self._error: Exception | None = None  # given to stop
        self._stopped: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._control: list[Subscription] = []
        self._credit_inbox: CreditInbox | None = None
        self._unlisten: Callable[[], None] | None = None
        self._unused_warning = f"service {name!r} was never started: await it, or enter it with async with"
        self._begun = False

    def __repr__(self) -> str:
        return f"Service({self.name!r}, {self.version!r}, id={self.id!r})"

    def __await__(self) -> Generator[None, None, Service]:
        self._start()
        yield from ()
        return self

    async def __aenter__(self) -> Service:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _start(self) -> None:
        """Make the service discoverable and allow endpoints. Does nothing when it has started or stopped."""
        self._begun = True
        if self._unlisten is not None or self._is_stopping:
            return
        self._size = max(len(encode(self.info())), len(encode(self.stats())))
        if self.metadata:
            self._check_size(self._size, "metadata", dict(self.metadata))
        else:
            self._check_size(self._size, "description", self.description)
        self._unlisten = self._connection.add_listener(self._on_event)
        self._started_at = datetime.now(UTC)
        try:
            for verb, response in (("PING", self._ping), ("INFO", self.info), ("STATS", self.stats)):
                for name, instance in ((None, None), (self.name, None), (self.name, self.id)):
                    self._serve_control(control_subject(verb, name, instance, self._prefix), response)
        except BaseException:
            self._finish(None)
            raise

    # ---------------------------------------------------------------- description and statistics

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints in the order in which they were added."""
        return tuple(self._endpoints)

    def info(self) -> ServiceInfo:
        """Return the service's INFO response."""
        return ServiceInfo(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self.metadata,
            description=self.description,
            endpoints=tuple(endpoint.info() for endpoint in self._endpoints),
        )

    def stats(self) -> ServiceStats:
        """Return the service's STATS response."""
        return ServiceStats(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self.metadata,
            started=self._started_at,
            endpoints=tuple(endpoint.stats(self._stats_handler) for endpoint in self._endpoints),
        )

    def reset(self) -> None:
        """Reset the counters to zero and the start time to now."""
        self._started_at = datetime.now(UTC)
        for endpoint in self._endpoints:
            endpoint.reset()

    # ---------------------------------------------------------------- ending

    async def stop(
        self, error: Exception | None = None, *, timeout: float | timedelta | Default | None = DEFAULT
    ) -> None:
        """Stop accepting requests, handle those already received, then end. The service is discoverable until then.

        ``wait_stopped`` returns ``error``. DrainTimeout after ``timeout`` seconds lists the requests that are cut off
        then, which are answered with 503; so they are when the last caller that waits is cancelled. The shortest
        ``timeout`` of several calls counts, and the first ``error``.

        In a handler, or a task that it has started, it waits for the other endpoints only.

        Args:
            error: Why it stops, which ``wait_stopped`` returns; None: no error.
            timeout: Seconds for the requests in progress, which are cancelled then. Left out: the option
                ``drain_timeout``; None: no limit.
        """
        wait = self._connection._options.drain_timeout if timeout is DEFAULT else time_limit("timeout", timeout)
        self._connection._check_loop()
        self._begun = True
        ending = self._ending
        if ending is None:
            self._error = error
            ending = Ending(f"stop of service {self.name!r}", self._drain, self._describe_rest, self._cut)
            self._ending = ending
        ending.begin(wait)
        await ending.wait_as_caller(lambda: [endpoint._readers for endpoint in self._endpoints])

    async def _drain(self) -> None:
        assert self._ending is not None
        await asyncio.gather(*(endpoint._subscription.drain(None) for endpoint in self._endpoints))
        self._ending.on_stopped()
        for endpoint in self._endpoints:
            await endpoint._readers.join()

    async def _describe_rest(self) -> list[str]:
        assert self._ending is not None
        left = [] if self._ending.is_stopped else ["the server did not confirm the end of its endpoints"]
        return left + [
            f"{len(endpoint._tasks) + endpoint.pending} unfinished requests of endpoint {endpoint.name!r}"
            for endpoint in self._endpoints
            if endpoint._tasks or endpoint.pending
        ]

    async def _cut(self) -> None:
        try:
            if tasks := [task for endpoint in self._endpoints for task in endpoint._cut()]:
                await asyncio.wait(tasks, timeout=CUT_TIMEOUT_S)
        finally:
            self._finish(self._error)

    async def wait_stopped(self, until: asyncio.Event | None = None) -> Exception | None:
        """Wait until the service has stopped and return the reason: the ``error`` given to ``stop``, the server's
        refusal of an endpoint, the error that closed the client, or None.

        Returns None also when the event is set: the service runs on until its block is left, which answers the requests
        that have arrived. Cancelling ends only the wait.

        Args:
            until: An event whose setting ends the wait, such as that of ``stop_event()``; None: it waits until stopped.
        """
        check_until(until)
        self._connection._check_loop()
        if until is None:
            return await asyncio.shield(self._stopped)
        is_set = asyncio.ensure_future(until.wait())
        try:
            await asyncio.wait((self._stopped, is_set), return_when=asyncio.FIRST_COMPLETED)
            if is_set.done():
                is_set.result()  # RuntimeError for an event of another loop
        finally:
            is_set.cancel()
        return self._stopped.result() if self._stopped.done() else None

    def _finish(self, error: Exception | None) -> None:
        if self._stopped.done():
            return
        for subscription in self._control:
            subscription._unsubscribe_nowait()
        if self._credit_inbox is not None:
            self._credit_inbox.unsubscribe()
        if self._unlisten is not None:
            self._unlisten()
        self._stopped.set_result(error)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Closed):
            for endpoint in self._endpoints:
                endpoint._cut()
            self._finish(event.reason)

    def _on_endpoint_error(self, error: errors.NatsError) -> None:
        """Stop the service because an endpoint failed: the server refuses its subject, or the client has closed."""
        if not self._is_stopping and self._stop_task is None:
            self._stop_task = asyncio.get_running_loop().create_task(
                self._stop_with_error(error), name=f"natsproto stop of service {self.name}"
            )

    async def _stop_with_error(self, error: errors.NatsError) -> None:
        try:
            await self.stop(error)
        except errors.NatsError:
            pass  # no caller waits for this; stop() has cancelled the unfinished requests

    # ---------------------------------------------------------------- endpoints and control subjects

    @property
    def _is_stopping(self) -> bool:
        return self._ending is not None or self._stopped.done()

    def _root(self) -> Service:
        return self

    def _add(
        self,
        name: str,
        subject: str,
        queue_group: str | None,
        metadata: Mapping[str, str],
        handler: AnyHandler,
        concurrency: int,
        max_pending: int | None,
        timeout: float | None,
    ) -> Endpoint:
        if self._is_stopping:
            raise errors.ConfigError("endpoint", name, f"service {self.name!r} has stopped")
        if self._unlisten is None:
            raise errors.LocalProtocolError(
                f"service {self.name!r} was not started: await it, or enter it with async with"
            )
        for other in self._endpoints:
            if (other.subject, other.queue_group) == (subject, queue_group):
                rule = f"endpoint {other.name!r} has this subject already: requests would go to either of them"
                raise errors.ConfigError("endpoint subject", subject, rule)
        info = EndpointInfo(name=name, subject=subject, queue_group=queue_group or "", metadata=metadata)
        size = endpoint_size(info)
        self._check_size(self._size + size, "endpoint", name)
        kind: Any = Endpoint
        if is_async_generator(handler):
            kind = partial(StreamEndpoint, open_inbox=self._open_credit_inbox, timeout=timeout)
        endpoint: Endpoint = kind(
            self._connection,
            name=name,
            subject=subject,
            queue_group=queue_group,
            metadata=metadata,
            handler=handler,
            concurrency=concurrency,
            max_pending=max_pending,
            on_error=self._on_endpoint_error,
        )
        self._endpoints.append(endpoint)
        self._size += size
        return endpoint

    def _check_size(self, size: int, what: str, value: object) -> None:
        """Raise ConfigError if the responses to INFO and STATS would be too large for this server."""
        limit = self._connection.max_payload
        if 0 < limit < size:
            rule = f"the responses that describe service {self.name!r} need {size} bytes; this server accepts {limit}"
            raise errors.ConfigError(what, value, rule)

    def _open_credit_inbox(self) -> CreditInbox:
        """Return the inbox for the credit of all streams, which the first of them opens."""
        if self._credit_inbox is None or not self._credit_inbox.is_open:
            self._credit_inbox = CreditInbox(self._connection)
        return self._credit_inbox

    def _ping(self) -> ServicePing:
        return ServicePing(name=self.name, id=self.id, version=self.version, metadata=self.metadata)

    def _serve_control(self, subject: str, response: Callable[[], ServicePing | ServiceInfo | ServiceStats]) -> None:
        async def respond(request: Message) -> None:
            if request.has_reply:
                await request.respond(encode_within(response(), self._connection.max_payload))

        self._control.append(self._connection.subscribe(subject, cb=respond))


def _join_subject(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise errors.ConfigError(what, name, "may contain only letters, digits, dash and underscore")


def _checked_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if metadata is None:
        return MappingProxyType({})
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map str to str, not {key!r} to {value!r}")
    return MappingProxyType(dict(metadata))
