"""What services say of themselves (ADR-32): values, and the JSON they travel as.

Owns the vocabulary of PING, INFO and STATS and of error headers. It knows neither who asks nor who answers.
Durations are float seconds; nanoseconds exist in the JSON only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from natsproto._value import Value
from natsproto.errors import ServiceError
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers, HeadersLike

PREFIX = "$SRV"
"""First token of the subjects on which services are asked, unless another one is wanted."""

ERROR_HEADER = "Nats-Service-Error"
CODE_HEADER = "Nats-Service-Error-Code"

_MAX_DESCRIPTION = 1024
_TYPE = "io.nats.micro.v1.{}_response"

_Fields: TypeAlias = Mapping[str, object]


class ServiceIdentity(Value):
    """Which instance of which service speaks."""

    name: str
    id: str
    version: str
    metadata: Mapping[str, str] = MappingProxyType({})


class ServicePing(ServiceIdentity):
    """The answer to PING. ``rtt`` is how many seconds it took from the question to the answer."""

    rtt: float = 0.0


class EndpointInfo(Value):
    """What an endpoint is. ``queue_group`` is empty when it is in none: then every instance gets every request."""

    name: str
    subject: str
    queue_group: str
    metadata: Mapping[str, str] = MappingProxyType({})


class ServiceInfo(ServiceIdentity):
    """The answer to INFO: what the service is."""

    description: str
    endpoints: tuple[EndpointInfo, ...] = ()


class EndpointStats(Value):
    """What an endpoint has done since the service started or was reset.

    Times are in seconds. ``last_error`` is empty when there was none; ``data`` is what the stats handler of the
    service says.
    """

    name: str
    subject: str
    queue_group: str
    num_requests: int
    num_errors: int
    last_error: str
    processing_time: float
    average_processing_time: float
    data: object = None


class ServiceStats(ServiceIdentity):
    """The answer to STATS: what the service has done since ``started``."""

    started: datetime
    endpoints: tuple[EndpointStats, ...] = ()


# ---------------------------------------------------------------- to JSON


def encode(value: ServicePing | ServiceInfo | ServiceStats) -> bytes:
    """The reply in which an instance says this."""
    said: dict[str, object] = {
        "name": value.name,
        "id": value.id,
        "version": value.version,
        "metadata": dict(value.metadata),
    }
    if isinstance(value, ServiceInfo):
        verb = "info"
        said["description"] = value.description
        said["endpoints"] = [
            {"name": e.name, "subject": e.subject, "queue_group": e.queue_group, "metadata": dict(e.metadata)}
            for e in value.endpoints
        ]
    elif isinstance(value, ServiceStats):
        verb = "stats"
        said["started"] = value.started.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        said["endpoints"] = [_endpoint_stats(e) for e in value.endpoints]
    else:
        verb = "ping"
    return json.dumps({"type": _TYPE.format(verb), **said}).encode()


def _endpoint_stats(stats: EndpointStats) -> dict[str, object]:
    # last_error and data are said even when there is none: nats-py cannot read a reply without them.
    return {
        "name": stats.name,
        "subject": stats.subject,
        "queue_group": stats.queue_group,
        "num_requests": stats.num_requests,
        "num_errors": stats.num_errors,
        "last_error": stats.last_error,
        "processing_time": round(stats.processing_time * 1e9),
        "average_processing_time": round(stats.average_processing_time * 1e9),
        "data": stats.data,
    }


# ---------------------------------------------------------------- from JSON


def decode_ping(reply: bytes, rtt: float) -> ServicePing:
    """ValueError when this is no answer to PING; so with the others."""
    fields = _fields(reply, "ping")
    return ServicePing(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        rtt=rtt,
    )


def decode_info(reply: bytes, rtt: float) -> ServiceInfo:
    """What an instance said of itself."""
    fields = _fields(reply, "info")
    return ServiceInfo(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        description=_text(fields, "description"),
        endpoints=tuple(_each(fields, _decode_endpoint_info)),
    )


def decode_stats(reply: bytes, rtt: float) -> ServiceStats:
    """What an instance said it has done."""
    fields = _fields(reply, "stats")
    started = datetime.fromisoformat(_text(fields, "started"))
    return ServiceStats(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        started=started if started.tzinfo else started.replace(tzinfo=UTC),
        endpoints=tuple(_each(fields, _decode_endpoint_stats)),
    )


def _fields(reply: bytes, verb: str) -> _Fields:
    fields = json.loads(reply.decode())
    if not isinstance(fields, dict) or fields.get("type") != _TYPE.format(verb):
        raise ValueError(f"no answer to {verb.upper()}")
    if not fields.get("name") or not fields.get("id"):
        raise ValueError("it does not say who it is from")
    return fields


def _decode_endpoint_info(fields: _Fields) -> EndpointInfo:
    return EndpointInfo(
        name=_text(fields, "name"),
        subject=_text(fields, "subject"),
        queue_group=_text(fields, "queue_group"),
        metadata=_metadata(fields),
    )


def _decode_endpoint_stats(fields: _Fields) -> EndpointStats:
    return EndpointStats(
        name=_text(fields, "name"),
        subject=_text(fields, "subject"),
        queue_group=_text(fields, "queue_group"),
        num_requests=_number(fields, "num_requests"),
        num_errors=_number(fields, "num_errors"),
        last_error=_text(fields, "last_error"),
        processing_time=_number(fields, "processing_time") / 1e9,
        average_processing_time=_number(fields, "average_processing_time") / 1e9,
        data=fields.get("data"),
    )


_T = TypeVar("_T")


def _each(fields: _Fields, read: Callable[[_Fields], _T]) -> list[_T]:
    endpoints = fields.get("endpoints") or []
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, dict) for endpoint in endpoints):
        raise ValueError("endpoints is no list of objects")
    return [read(endpoint) for endpoint in endpoints]


def _text(fields: _Fields, key: str) -> str:
    """Absent and null are empty; other kinds, which some clients use for errors, are shown as JSON."""
    value = fields.get(key)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _number(fields: _Fields, key: str) -> int:
    value = fields.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} is no number")
    return int(value)


def _metadata(fields: _Fields) -> Mapping[str, str]:
    value = fields.get("metadata") or {}
    if not isinstance(value, dict):
        raise ValueError("metadata is no object")
    return MappingProxyType({key: _text(value, key) for key in value})


# ---------------------------------------------------------------- errors


def error_headers(code: int, description: str) -> dict[str, str]:
    """The headers by which an answer is known as an error. Line ends in the description become spaces, and more
    than 1024 characters are cut.
    """
    text = " ".join(description.encode("utf-8", "replace").decode().replace("\0", " ").split())
    return {ERROR_HEADER: text[:_MAX_DESCRIPTION], CODE_HEADER: str(code)}


def with_error(headers: HeadersLike | None, code: int, description: str) -> Headers:
    """The headers of an answer, with those of an error."""
    given = [] if headers is None else list(Headers(headers).pairs())
    return Headers([*given, *error_headers(code, description).items()])


def error_of(reply: Message) -> ServiceError | None:
    """The error that a service answered with, or None when it is a proper answer.

    The code is 0 when it is not a number.
    """
    if not reply.has_headers:
        return None
    headers = reply.headers
    code = headers.get(CODE_HEADER)
    description = headers.get(ERROR_HEADER)
    if code is None and description is None:
        return None
    number = int(code) if code and code.isdecimal() and code.isascii() and len(code) < 10 else 0
    return ServiceError(number, description or "")
