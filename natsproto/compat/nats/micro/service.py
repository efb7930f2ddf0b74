"""``nats.micro.service``: natsproto's services with the methods and dataclasses of nats-py."""

from __future__ import annotations

import asyncio
import json  # noqa: F401  # programs have it from `import *`
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import natsproto.service as ours
from natsproto.compat._json import Base
from natsproto.compat._translate import translate_errors
from natsproto.compat.nats import errors
from natsproto.compat.nats.aio.client import Client
from natsproto.compat.nats.aio.msg import Msg as Msg
from natsproto.compat.nats.aio.subscription import Subscription as Subscription
from natsproto.compat.nats.micro.request import Handler as Handler
from natsproto.compat.nats.micro.request import Request, ServiceError
from natsproto.errors import ServiceError as OurServiceError

if TYPE_CHECKING:
    from types import TracebackType

DEFAULT_QUEUE_GROUP = "q"
DEFAULT_PREFIX = "$SRV"
INFO_RESPONSE_TYPE = "io.nats.micro.v1.info_response"
PING_RESPONSE_TYPE = "io.nats.micro.v1.ping_response"
STATS_RESPONSE_TYPE = "io.nats.micro.v1.stats_response"
NAME_REGEX = re.compile(r"^[A-Za-z0-9\-_]+$")
SUBJECT_REGEX = re.compile(r"^[^ >]*[>]?$")
SEMVER_REGEX = re.compile(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%f"


class ServiceVerb(StrEnum):
    PING = "PING"
    STATS = "STATS"
    INFO = "INFO"


def control_subject(
    verb: ServiceVerb, name: str | None = None, id: str | None = None, prefix: str = DEFAULT_PREFIX
) -> str:
    return ".".join([prefix, verb.value, *([] if name is None else [name]), *([] if id is None else [id])])


class _Dict(Base, fields=""):
    """A dataclass that converts from and to a dict."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls.from_response(data)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # it is a dataclass


class EndpointConfig(Base, fields="name handler queue_group? subject? metadata?"):
    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.subject and not SUBJECT_REGEX.match(self.subject):
            raise ValueError("Invalid subject: no spaces, and '>' only at the end.")
        _check_queue(self.queue_group)


class GroupConfig(Base, fields="name queue_group?"):
    """The configuration of a group of endpoints."""


class ServiceConfig(Base, fields="name version description? metadata? queue_group? stats_handler?"):
    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.version:
            raise ValueError("Version cannot be empty.")
        if not SEMVER_REGEX.match(self.version):
            raise ValueError("Invalid version: it must be a semantic version.")
        _check_queue(self.queue_group)


def _check_name(name: str) -> None:
    if not name:
        raise ValueError("Name cannot be empty.")
    if not NAME_REGEX.match(name):
        raise ValueError("Invalid name: only letters, digits, dashes and underscores.")


def _check_queue(queue_group: str | None) -> None:
    if queue_group and not SUBJECT_REGEX.match(queue_group):
        raise ValueError("Invalid queue group: no spaces, and '>' only at the end.")


class EndpointStats(
    _Dict,
    fields="name subject queue_group num_requests num_errors processing_time average_processing_time last_error? data?",
):
    """The statistics of an endpoint. Times are in nanoseconds."""


class EndpointInfo(_Dict, fields="name subject queue_group metadata?", metadata=dict):
    """The description of an endpoint."""


class ServicePing(_Dict, fields="id name version metadata? type?", metadata=dict, type=PING_RESPONSE_TYPE):
    """The response to PING."""


class ServiceStats(
    _Dict,
    fields="id name version started:t endpoints?:EndpointStats metadata? type?",
    endpoints=list,
    metadata=dict,
    type=STATS_RESPONSE_TYPE,
):
    """The statistics of a service. ``started`` is in UTC, without a time zone."""

    def __post_init__(self) -> None:
        self.started: datetime = self.started.replace(tzinfo=None)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "started": self.started.strftime(_TIME_FORMAT)[:-3] + "Z"}


class ServiceInfo(
    _Dict,
    fields="name id version description? endpoints?:EndpointInfo metadata? type?",
    endpoints=list,
    metadata=dict,
    type=INFO_RESPONSE_TYPE,
):
    """The description of a service."""


StatsHandler = Callable[[EndpointStats], Any]


class Group:
    def __init__(self, service: Service, config: GroupConfig) -> None:
        self._service = service
        self._prefix = config.name
        self._queue_group = config.queue_group

    async def add_endpoint(self, config: EndpointConfig | None = None, **kwargs: Any) -> None:
        """Add an endpoint. The arguments are those of EndpointConfig."""
        config = config.evolve(**kwargs) if config is not None else EndpointConfig(**kwargs)
        subject = f"{self._prefix.strip('.')}.{config.subject or config.name}".strip(".")
        self._service._add(config, subject, config.queue_group or self._queue_group)

    def add_group(self, config: GroupConfig | None = None, **kwargs: Any) -> Group:
        """Return a group within this one. The arguments are those of GroupConfig."""
        config = config.evolve(**kwargs) if config is not None else GroupConfig(**kwargs)
        name = f"{self._prefix}.{config.name}" if self._prefix else config.name
        return Group(self._service, GroupConfig(name, config.queue_group or self._queue_group))


class Service(Group):
    """A service. ``async with`` stops it at the end."""

    def __init__(self, client: Client, config: ServiceConfig) -> None:
        super().__init__(self, GroupConfig("", config.queue_group))
        self._stats_handler = config.stats_handler
        self._stopped = asyncio.Event()
        self._inner = client._opened.add_service(
            config.name,
            config.version,
            description=config.description or "",
            metadata=config.metadata,
            queue_group=config.queue_group or DEFAULT_QUEUE_GROUP,
            stats_handler=None if config.stats_handler is None else self._custom_stats,
        )
        self._client = client

    @property
    def id(self) -> str:
        return self._inner.id

    @translate_errors
    async def start(self) -> None:
        await self._inner
        await self._client.flush()

    def _add(self, config: EndpointConfig, subject: str, queue_group: str | None) -> None:
        handler = config.handler
        if self._client.is_closed:
            raise errors.ConnectionClosedError

        async def handle(received: ours.Request) -> None:
            request = Request(received)
            try:
                await handler(request)
            except ServiceError as exc:
                if not exc.code.isdecimal():
                    raise NotImplementedError("the code of a ServiceError is a number, as ADR-32 has it") from exc
                raise OurServiceError(int(exc.code), exc.description) from exc
            except Exception as exc:
                await self._client._failed(f"endpoint {config.name!r}", exc)
                raise OurServiceError(500, repr(exc)) from exc

        self._inner.add_endpoint(
            config.name,
            handle,
            subject=subject,
            queue_group=queue_group or DEFAULT_QUEUE_GROUP,
            metadata=config.metadata,
            concurrency=1,
        )

    def _custom_stats(self, endpoint: ours.Endpoint) -> Any:
        assert self._stats_handler is not None
        return self._stats_handler(_endpoint_stats(endpoint.stats()))

    def stats(self) -> ServiceStats:
        stats = self._inner.stats()
        return ServiceStats(
            id=stats.id,
            name=stats.name,
            version=stats.version,
            started=stats.started,
            endpoints=[_endpoint_stats(endpoint) for endpoint in stats.endpoints],
            metadata=dict(stats.metadata),
        )

    def info(self) -> ServiceInfo:
        info = self._inner.info()
        return ServiceInfo(
            name=info.name,
            id=info.id,
            version=info.version,
            description=info.description,
            endpoints=[
                EndpointInfo(endpoint.name, endpoint.subject, endpoint.queue_group, dict(endpoint.metadata) or None)
                for endpoint in info.endpoints
            ],
            metadata=dict(info.metadata),
        )

    async def reset(self) -> None:
        self._inner.reset()

    @translate_errors
    async def stop(self) -> None:
        await self._inner.stop()
        self._stopped.set()

    @property
    def stopped(self) -> asyncio.Event:
        return self._stopped

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _endpoint_stats(stats: ours.EndpointStats) -> EndpointStats:
    return EndpointStats(
        name=stats.name,
        subject=stats.subject,
        queue_group=stats.queue_group,
        num_requests=stats.num_requests,
        num_errors=stats.num_errors,
        processing_time=int(stats.processing_time * 1e9),
        average_processing_time=int(stats.average_processing_time * 1e9),
        last_error=stats.last_error or None,
        data=stats.data,
    )
