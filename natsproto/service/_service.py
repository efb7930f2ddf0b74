"""Services (ADR-32): endpoints that can be found, described and measured by anybody who may ask.

Owns the life of a service and what it answers to PING, INFO and STATS. It is built on the public verbs of the
connection alone, so it goes through reconnects as any subscription does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType, TracebackType
from typing import Final, Literal, TypeAlias, TypeVar

from natsproto._async_hints import Unbegun
from natsproto._core.connection import Connection
from natsproto._core.events import Closed, Event
from natsproto._core.subscription import Subscription
from natsproto.errors import ConfigError, DrainTimeout, LocalProtocolError, NatsError, RequestTimeout
from natsproto.protocol.frames import Message
from natsproto.protocol.pool import seconds
from natsproto.protocol.subject import publish_subject, subscribe_subject
from natsproto.protocol.subject import queue_group as checked_queue_group
from natsproto.service._discovery import control_subject
from natsproto.service._endpoint import CONCURRENCY, Endpoint, Handler, StatsHandler
from natsproto.service._report import PREFIX, ServiceInfo, ServicePing, ServiceStats, encode

QUEUE_GROUP = "q"
"""The queue group of endpoints unless another one is given."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = r"(?:0|[1-9]\d*)"
_PRE = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?", re.ASCII
)


class Inherited(Enum):
    """The queue group of the group or service around."""

    INHERITED = "inherited"


INHERITED: Final = Inherited.INHERITED
QueueGroup: TypeAlias = str | Literal[Inherited.INHERITED] | None
"""A name, None for no queue group, or INHERITED."""

H = TypeVar("H", bound=Handler)


class Group:
    """A prefix, and perhaps a queue group, for endpoints. Made by ``group`` of a service or of another group."""

    def __init__(self, service: Service | None, prefix: str, queue_group: str | None) -> None:
        self.prefix = prefix
        """What stands in front of the subjects, without the last dot; empty for the service itself."""
        self.queue_group = queue_group
        self._service = service

    def group(self, name: str, *, queue_group: QueueGroup = INHERITED) -> Group:
        """A group within this one; its name is any subject without ``>``. An empty name adds no prefix.

        InvalidSubject, ConfigError for names that do not do.
        """
        if name:
            subscribe_subject(name, "group name")
            if ">" in name:
                raise ConfigError("group name", name, "cannot contain '>': endpoints come behind it")
        return Group(self._root(), _joined(self.prefix, name), self._queue(queue_group))

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
        """Answers on a subject from now on.

        ``handler`` (def or async def) gets a Request and answers with ``respond``. A ServiceError it raises is the
        answer; any other exception is logged, announced as HandlerFailed, and answered with code 500. ``subject``
        (default: the name) may hold wildcards and comes behind the prefix of the group. ``queue_group=None`` gives
        every request to every instance. At most ``concurrency`` requests are handled at the same time, the rest
        waits; with 1 they are handled in order.

        ConfigError, InvalidSubject, TypeError for bad arguments and when the service has stopped; LocalProtocolError
        when it was not started; ConnectionClosed.
        """
        _check_name("endpoint name", name)
        subscribe_subject(subject if subject is not None else name, "endpoint subject")
        if not callable(handler):
            raise TypeError(f"handler must be callable with one request, not {type(handler).__name__}")
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError("concurrency", concurrency, "must be a positive number of requests")
        return self._root()._open(
            name,
            _joined(self.prefix, subject if subject is not None else name),
            self._queue(queue_group),
            _checked_metadata(metadata),
            handler,
            concurrency,
        )

    def _root(self) -> Service:
        assert self._service is not None
        return self._service

    def _queue(self, queue_group: QueueGroup) -> str | None:
        if queue_group is INHERITED:
            return self.queue_group
        if queue_group is not None:
            checked_queue_group(queue_group)
        return queue_group


class Service(Unbegun, Group):
    """An instance of a service. Made by ``Client.add_service``; await it to start it, or enter it, which also stops it
    at the end.
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
            raise ConfigError("version", version, "must be a semantic version like 1.0.0 (semver.org)")
        if not isinstance(description, str):
            raise TypeError(f"description must be a str, not {type(description).__name__}")
        if stats_handler is not None and not callable(stats_handler):
            raise TypeError(f"stats_handler must be callable, not {type(stats_handler).__name__}")
        if queue_group is not None:
            checked_queue_group(queue_group)
        publish_subject(prefix, "prefix")
        super().__init__(None, "", queue_group)
        self.id: str = connection.new_id()
        """Tells this instance from the others of its name."""
        self.name = name
        self.version = version
        self.description = description
        self.metadata: Mapping[str, str] = _checked_metadata(metadata)
        self._connection = connection
        self._prefix = prefix
        self._stats_handler = stats_handler
        self._endpoints: list[Endpoint] = []
        self._since = datetime.now(UTC)
        self._failing: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._stopped: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._control: list[Subscription] = []
        self._unlisten: Callable[[], None] | None = None
        self._forgotten = f"service {name!r} was never started: await it, or enter it with async with"
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
        """It can be found, and endpoints can be added. Does nothing when it has started or stopped."""
        self._begun = True
        if self._unlisten is not None or self._is_stopping:
            return
        self._unlisten = self._connection.listen(self._hear)
        self._since = datetime.now(UTC)
        try:
            for verb, answer in (("PING", self._ping), ("INFO", self.info), ("STATS", self.stats)):
                for called, instance in ((None, None), (self.name, None), (self.name, self.id)):
                    self._answer_control(control_subject(verb, called, instance, self._prefix), answer)
        except BaseException:
            self._finish(None)
            raise

    # ---------------------------------------------------------------- what it is and does

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Its endpoints in the order in which they were added."""
        return tuple(self._endpoints)

    def info(self) -> ServiceInfo:
        """What it answers to INFO."""
        return ServiceInfo(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self.metadata,
            description=self.description,
            endpoints=tuple(endpoint.info() for endpoint in self._endpoints),
        )

    def stats(self) -> ServiceStats:
        """What it answers to STATS."""
        return ServiceStats(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self.metadata,
            started=self._since,
            endpoints=tuple(endpoint.stats(self._stats_handler) for endpoint in self._endpoints),
        )

    def reset(self) -> None:
        """Counts from zero again, and from now on."""
        self._since = datetime.now(UTC)
        for endpoint in self._endpoints:
            endpoint.reset()

    # ---------------------------------------------------------------- ending

    async def stop(self, error: Exception | None = None, *, timeout: float | timedelta = 30.0) -> None:
        """Takes no new requests, answers those it has, then ends; it can be found until then.

        ``error`` is what ``stopped`` will return. After ``timeout`` seconds DrainTimeout says what was left undone
        (RequestTimeout: the server did not confirm). Either way, and when cancelled, it has stopped. Called in a
        handler, it does not wait for that handler. Does nothing but wait when it is stopping already.
        """
        self._begun = True
        if self._is_stopping:
            await self.stopped()
            return
        self._is_stopping = True
        wait = seconds("timeout", timeout)
        asking = asyncio.current_task()
        failed: list[RequestTimeout] = []
        try:
            results = await asyncio.gather(
                *(endpoint.drain(wait, asking) for endpoint in self._endpoints), return_exceptions=True
            )
            for result in results:
                if isinstance(result, RequestTimeout):
                    failed.append(result)
                elif isinstance(result, BaseException) and not isinstance(result, NatsError):
                    raise result
        except BaseException:
            for endpoint in self._endpoints:
                endpoint.cut(asking)
            raise
        finally:
            self._finish(error)
        if failed:
            left = [undone for one in failed for undone in (one.left if isinstance(one, DrainTimeout) else (str(one),))]
            raise DrainTimeout(f"stop of service {self.name!r}", wait, left)

    async def stopped(self) -> Exception | None:
        """Waits for the end; returns why it came: what ``stop`` was given, the refusal of an endpoint by the server,
        the reason for which the client is closed for good, or None.
        """
        return await asyncio.shield(self._stopped)

    def _finish(self, error: Exception | None) -> None:
        if self._stopped.done():
            return
        self._is_stopping = True
        for subscription in self._control:
            self._connection.unsubscribe_nowait(subscription)
        if self._unlisten is not None:
            self._unlisten()
        self._stopped.set_result(error)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Closed):
            for endpoint in self._endpoints:
                endpoint.cut(asyncio.current_task())
            self._finish(event.reason)

    def _fail(self, error: NatsError) -> None:
        """An endpoint cannot go on: the server refuses its subject, or the client has ended."""
        if not self._is_stopping and self._failing is None:
            self._failing = asyncio.get_running_loop().create_task(
                self._stop_for(error), name=f"natsproto stop of service {self.name}"
            )

    async def _stop_for(self, error: NatsError) -> None:
        try:
            await self.stop(error)
        except NatsError:
            pass  # nobody waits for this; what is left undone is cancelled

    # ---------------------------------------------------------------- inside

    def _root(self) -> Service:
        return self

    def _open(
        self,
        name: str,
        subject: str,
        queue_group: str | None,
        metadata: Mapping[str, str],
        handler: Handler,
        concurrency: int,
    ) -> Endpoint:
        if self._is_stopping:
            raise ConfigError("endpoint", name, f"service {self.name!r} has stopped")
        if self._unlisten is None:
            raise LocalProtocolError(f"service {self.name!r} was not started: await it, or enter it with async with")
        endpoint = Endpoint(
            self._connection,
            name=name,
            subject=subject,
            queue_group=queue_group,
            metadata=metadata,
            handler=handler,
            concurrency=concurrency,
            on_failure=self._fail,
        )
        self._endpoints.append(endpoint)
        return endpoint

    def _ping(self) -> ServicePing:
        return ServicePing(name=self.name, id=self.id, version=self.version, metadata=self.metadata)

    def _answer_control(self, subject: str, answer: Callable[[], ServicePing | ServiceInfo | ServiceStats]) -> None:
        async def respond(question: Message) -> None:
            if question.has_reply:
                await question.respond(encode(answer()))

        self._control.append(self._connection.subscribe(subject, cb=respond))


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ConfigError(what, name, "must be made of letters, digits, dash and underscore")


def _checked_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if metadata is None:
        return MappingProxyType({})
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must map str to str, not {key!r} to {value!r}")
    return MappingProxyType(dict(metadata))
