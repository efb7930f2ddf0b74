"""Services for threads without an event loop: each request is handled on a thread of its own.

Owns those threads. How many there are at a time is the endpoint's ``concurrency``; everything else is that of
``natsproto.service``.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from natsproto import service
from natsproto.errors import ConnectionClosed
from natsproto.service import CONCURRENCY, INHERITED
from natsproto.sync._facade import Block, Facade, blocking
from natsproto.sync._messaging import Readers, Received
from natsproto.sync._portal import Portal

if TYPE_CHECKING:
    from natsproto.errors import ServiceError
    from natsproto.service._service import QueueGroup

G = TypeVar("G", bound=service.Group, covariant=True)


class Request(Received[service.Request]):
    """A request to a service: a message that can be answered, also with an error."""

    respond = blocking(service.Request.respond)
    respond_error = blocking(service.Request.respond_error)

    @property
    def refusal(self) -> ServiceError | None:
        """The error it was answered with, if any."""
        return self._inner.refusal


class Endpoint(Facade[service.Endpoint]):
    """A subject on which a service answers; lives as long as the service does."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    @property
    def subject(self) -> str:
        """Where it is asked."""
        return self._inner.subject

    @property
    def in_progress(self) -> int:
        """Requests being handled right now."""
        return self._inner.in_progress

    @property
    def waiting(self) -> int:
        """Requests received whose handling has not begun."""
        return self._inner.waiting

    def info(self) -> service.EndpointInfo:
        """What it is."""
        return self._inner.info()

    def stats(self, handler: StatsHandler | None = None) -> service.EndpointStats:
        """What it has done; ``data`` is what the handler makes of it."""
        asked = None if handler is None else partial(ask, handler, self._portal)
        return self._portal.run(self._inner.stats, asked)

    def reset(self) -> None:
        """Counts from zero again."""
        self._portal.run(self._inner.reset)


Handler: TypeAlias = Callable[[Request], object]
StatsHandler: TypeAlias = Callable[[Endpoint], object]
H = TypeVar("H", bound=Handler)


class Threads:
    """The threads that handle requests of one service. They are daemons: a program that ends waits for none."""

    def __init__(self, portal: Portal, readers: Readers) -> None:
        self._portal, self._readers = portal, readers
        self._at_work: set[int] = set()

    @property
    def is_one(self) -> bool:
        """Whether this is one of them."""
        return threading.get_ident() in self._at_work

    def handler(self, function: Handler) -> Callable[[service.Request], Awaitable[None]]:
        """What the endpoint calls, on the loop: it waits for the function, which runs on a thread."""
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                "handler must be a plain function of one request: this client is for what has no event loop"
            )

        async def handle(request: service.Request) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            work = partial(self._work, function, Request(self._portal, request), done)
            thread = threading.Thread(
                target=contextvars.copy_context().run, args=(work,), name="natsproto request", daemon=True
            )
            thread.start()
            await self._readers.handled(thread, done)

        return handle

    def _work(self, function: Handler, request: Request, done: asyncio.Future[None]) -> None:
        self._at_work.add(threading.get_ident())
        error: Exception | None = None
        try:
            function(request)
        except Exception as exc:
            error = exc
        except BaseException as exc:  # sys.exit() ends a thread, and is no way to end the event loop
            error = RuntimeError(f"the handler ended with {exc!r}")
            error.__cause__ = exc
        finally:
            self._at_work.discard(threading.get_ident())
        try:
            self._portal.post(partial(_settle, done, error))
        except ConnectionClosed:
            return  # nobody waits for it any more


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return  # it was given up
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def ask(handler: StatsHandler, portal: Portal, endpoint: service.Endpoint) -> object:
    """What the handler makes of an endpoint."""
    return handler(Endpoint(portal, endpoint))


class Group(Facade[G], Generic[G]):
    """A prefix, and perhaps a queue group, for endpoints. Made by ``group`` of a service or of another group."""

    def __init__(self, portal: Portal, inner: G, threads: Threads) -> None:
        super().__init__(portal, inner)
        self._threads = threads

    def group(self, name: str, *, queue_group: QueueGroup = INHERITED) -> Group[service.Group]:
        """A group within this one; its name is any subject without ``>``. An empty name adds no prefix.

        InvalidSubject, ConfigError for names that do not do.
        """
        made = self._portal.run(self._inner.group, name, queue_group=queue_group)
        return Group(self._portal, made, self._threads)

    def endpoint(
        self,
        name: str | None = None,
        *,
        subject: str | None = None,
        queue_group: QueueGroup = INHERITED,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Callable[[H], H]:
        """Decorates a handler: as ``add_endpoint``, named after the function when no name is given."""

        def register(handler: H) -> H:
            self.add_endpoint(
                name if name is not None else getattr(handler, "__name__", ""),
                handler,
                subject=subject,
                queue_group=queue_group,
                metadata=metadata,
                concurrency=concurrency,
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
    ) -> Endpoint:
        """Answers on a subject from now on, each request on a thread of its own, at most ``concurrency`` at a time.

        The handler may wait, and use this client. Else as ``natsproto.service.Group.add_endpoint``, errors included;
        TypeError for an ``async def``.
        """
        made = self._portal.run(
            self._inner.add_endpoint,
            name,
            self._threads.handler(handler),
            subject=subject,
            queue_group=queue_group,
            metadata=metadata,
            concurrency=concurrency,
        )
        return Endpoint(self._portal, made)


class Service(Group[service.Service], Block[service.Service]):
    """A running instance of a service. Made by ``Client.add_service``; leaving ``with`` stops it."""

    stopped = blocking(service.Service.stopped)

    def __init__(self, portal: Portal, inner: service.Service, readers: Readers) -> None:
        super().__init__(portal, inner, Threads(portal, readers))

    @property
    def id(self) -> str:
        """Tells this instance from the others of its name."""
        return self._inner.id

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    @property
    def version(self) -> str:
        """Its semantic version."""
        return self._inner.version

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Its endpoints in the order in which they were added."""
        return tuple(Endpoint(self._portal, one) for one in self._inner.endpoints)

    def info(self) -> service.ServiceInfo:
        """What it answers to INFO."""
        return self._portal.run(self._inner.info)

    def stats(self) -> service.ServiceStats:
        """What it answers to STATS."""
        return self._portal.run(self._inner.stats)

    def reset(self) -> None:
        """Counts from zero again, and from now on."""
        self._portal.run(self._inner.reset)

    def stop(self, error: Exception | None = None, *, timeout: float | timedelta = 30.0) -> None:
        """Takes no new requests, answers those it has, then ends; see the async service.

        Called by a handler, it only begins that: the handler's own request is among those that are waited for.
        """
        if self._threads.is_one:
            self._portal.part(partial(self._inner.stop, error, timeout=timeout), wait=False)
        else:
            self._portal.call(self._inner.stop, error, timeout=timeout)
