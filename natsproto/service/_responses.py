"""The responses of services (ADR-32): PING, INFO, STATS and errors, as values and as JSON.

Owns their fields and the error headers. Durations are float seconds; only the JSON has nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from natsproto import errors
from natsproto._value import Value
from natsproto.protocol.frames import Message

PREFIX = "$SRV"
"""The default first token of the control subjects."""

ERROR_HEADER = "Nats-Service-Error"
CODE_HEADER = "Nats-Service-Error-Code"

MAX_DESCRIPTION_CHARS = 1024
"""Characters of the text of an error that are sent; less where max_payload is small."""
_CUT_ERROR_CHARS = 100
_STATS_SIZE = 240
"""Bytes of the statistics of an endpoint beside its names, with counters of ten digits."""
_RESPONSE_TYPE = "io.nats.micro.v1.{}_response"

_Fields: TypeAlias = Mapping[str, object]


class ServiceIdentity(Value):
    """The service and instance that sent a response."""

    name: str
    """The same for all instances of a service."""
    id: str
    """Different for each instance."""
    version: str
    metadata: Mapping[str, str] = MappingProxyType({})


class ServicePing(ServiceIdentity):
    """The response to PING. ``rtt`` is the time from request to response in seconds."""

    rtt: float = 0.0


class EndpointInfo(Value):
    """The description of an endpoint. ``queue_group`` is empty when every instance receives every request."""

    name: str
    """For people and statistics; requests go to ``subject``."""
    subject: str
    queue_group: str
    metadata: Mapping[str, str] = MappingProxyType({})


class ServiceInfo(ServiceIdentity):
    """The response to INFO: the description of the service."""

    description: str
    endpoints: tuple[EndpointInfo, ...] = ()


class EndpointStats(Value):
    """The statistics of an endpoint since the service started or was reset.

    Times are in seconds. ``last_error`` is empty when there was none; ``data`` is the return value of the service's
    stats handler.
    """

    name: str
    subject: str
    queue_group: str
    num_requests: int
    """Requests that were handled, with those that ended in an error."""
    num_errors: int
    """Error responses, also those of exceptions."""
    last_error: str
    processing_time: float
    """The sum of the seconds that handlers ran."""
    average_processing_time: float
    """``processing_time`` by ``num_requests``."""
    data: object = None


class ServiceStats(ServiceIdentity):
    """The response to STATS: the statistics of the service since ``started``."""

    started: datetime
    endpoints: tuple[EndpointStats, ...] = ()


# ---------------------------------------------------------------- to JSON


def encode_within(value: ServicePing | ServiceInfo | ServiceStats, max_payload: int) -> bytes:
    """Return the payload of a response that fits into ``max_payload`` bytes (0: unknown): texts and values of others
    are cut and then left out, and in the end metadata, which was checked with the server of that time.
    """
    payload = encode(value)
    for shorten in (_cut_errors, _leave_out_data, _leave_out_errors, _leave_out_metadata):
        if not 0 < max_payload < len(payload):
            break
        value = shorten(value)
        payload = encode(value)
    return payload


def _cut_errors(value: Any) -> Any:
    return _with_stats(value, lambda stats: {"last_error": stats.last_error[:_CUT_ERROR_CHARS]})


def _leave_out_errors(value: Any) -> Any:
    return _with_stats(value, lambda _: {"last_error": ""})


def _leave_out_data(value: Any) -> Any:
    return _with_stats(value, lambda _: {"data": None})


def _with_stats(value: Any, changed: Callable[[EndpointStats], dict[str, object]]) -> Any:
    if not isinstance(value, ServiceStats):
        return value
    return value.replace(endpoints=tuple(stats.replace(**changed(stats)) for stats in value.endpoints))


def _leave_out_metadata(value: Any) -> Any:
    if isinstance(value, ServiceInfo):
        endpoints = tuple(endpoint.replace(metadata={}) for endpoint in value.endpoints)
        value = value.replace(description="", endpoints=endpoints)
    return value.replace(metadata={})


def endpoint_size(info: EndpointInfo) -> int:
    """Return the most bytes that an endpoint takes in a response, without the texts and values of others."""
    names = len(json.dumps([info.name, info.subject, info.queue_group]))
    return max(len(json.dumps(_endpoint_info(info))) + len(", "), names + _STATS_SIZE)


def encode(value: ServicePing | ServiceInfo | ServiceStats) -> bytes:
    """Return the payload of a response."""
    fields: dict[str, object] = {
        "name": value.name,
        "id": value.id,
        "version": value.version,
        "metadata": dict(value.metadata),
    }
    if isinstance(value, ServiceInfo):
        verb = "info"
        fields["description"] = value.description
        fields["endpoints"] = [_endpoint_info(e) for e in value.endpoints]
    elif isinstance(value, ServiceStats):
        verb = "stats"
        fields["started"] = value.started.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        fields["endpoints"] = [_endpoint_stats(e) for e in value.endpoints]
    else:
        verb = "ping"
    return json.dumps({"type": _RESPONSE_TYPE.format(verb), **fields}).encode()


def _endpoint_info(info: EndpointInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "subject": info.subject,
        "queue_group": info.queue_group,
        "metadata": dict(info.metadata),
    }


def _endpoint_stats(stats: EndpointStats) -> dict[str, object]:
    # nats-py cannot decode a response without last_error and data, so they are sent even when empty.
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
    """Decode a response to PING. All three decoders raise ValueError for other payloads."""
    fields = _fields(reply, "ping")
    return ServicePing(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        rtt=rtt,
    )


def decode_info(reply: bytes, rtt: float) -> ServiceInfo:
    """Decode a response to INFO."""
    fields = _fields(reply, "info")
    return ServiceInfo(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        description=_text(fields, "description"),
        endpoints=tuple(_endpoints(fields, _decode_endpoint_info)),
    )


def decode_stats(reply: bytes, rtt: float) -> ServiceStats:
    """Decode a response to STATS."""
    fields = _fields(reply, "stats")
    started = datetime.fromisoformat(_text(fields, "started"))
    return ServiceStats(
        name=_text(fields, "name"),
        id=_text(fields, "id"),
        version=_text(fields, "version"),
        metadata=_metadata(fields),
        started=started if started.tzinfo else started.replace(tzinfo=UTC),
        endpoints=tuple(_endpoints(fields, _decode_endpoint_stats)),
    )


def _fields(reply: bytes, verb: str) -> _Fields:
    fields = json.loads(reply.decode())
    if not isinstance(fields, dict) or fields.get("type") != _RESPONSE_TYPE.format(verb):
        raise ValueError(f"not a response to {verb.upper()}")
    if not fields.get("name") or not fields.get("id"):
        raise ValueError("the name or the id of the service is missing")
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


def _endpoints(fields: _Fields, read: Callable[[_Fields], _T]) -> list[_T]:
    endpoints = fields.get("endpoints") or []
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, dict) for endpoint in endpoints):
        raise ValueError("endpoints is not a list of objects")
    return [read(endpoint) for endpoint in endpoints]


def _text(fields: _Fields, key: str) -> str:
    """Return a text field; empty when absent or null. Other types, which some clients send for errors, as JSON."""
    value = fields.get(key)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _number(fields: _Fields, key: str) -> int:
    value = fields.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} is not a number")
    return int(value)


def _metadata(fields: _Fields) -> Mapping[str, str]:
    value = fields.get("metadata") or {}
    if not isinstance(value, dict):
        raise ValueError("metadata is not an object")
    return MappingProxyType({key: _text(value, key) for key in value})


# ---------------------------------------------------------------- errors


def cut_description(description: str, max_payload: int) -> str:
    """Return the text of an error without what cannot be sent, cut to a part of ``max_payload`` bytes (0: unknown)."""
    most = min(MAX_DESCRIPTION_CHARS, max_payload // 16) if max_payload else MAX_DESCRIPTION_CHARS
    return description[:most].encode("utf-8", "replace").decode()


def error_headers(code: int, description: str) -> dict[str, str]:
    """Return the headers that mark a response as an error. Line breaks in the description, which is cut already, become
    spaces.
    """
    return {ERROR_HEADER: " ".join(description.replace("\0", " ").split()), CODE_HEADER: str(code)}


def error_of(reply: Message) -> errors.ServiceError | None:
    """Return the error in a service's response, or None for a successful response.

    The code is 0 when the header is not a number.

    Args:
        reply: What ``nc.request`` or ``request_many`` returned.
    """
    if not reply.has_headers:
        return None
    headers = reply.headers
    code = headers.get(CODE_HEADER)
    description = headers.get(ERROR_HEADER)
    if code is None and description is None:
        return None
    number = int(code) if code and code.isdecimal() and code.isascii() and len(code) < 10 else 0
    return errors.ServiceError(number, description or "")
