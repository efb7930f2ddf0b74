"""Services (ADR-32): ``Client.add_service`` starts one, ``Client.discover_services`` finds them."""

from natsproto.service._endpoint import Endpoint, Request
from natsproto.service._responses import (
    EndpointInfo,
    EndpointStats,
    ServiceIdentity,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    error_of,
)
from natsproto.service._service import INHERITED, Group, Service
from natsproto.service._stream_request import ResponseStream

__all__ = [
    "INHERITED",
    "Endpoint",
    "EndpointInfo",
    "EndpointStats",
    "Group",
    "Request",
    "ResponseStream",
    "Service",
    "ServiceIdentity",
    "ServiceInfo",
    "ServicePing",
    "ServiceStats",
    "error_of",
]
