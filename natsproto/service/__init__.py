"""Services (ADR-32): endpoints that answer requests, with statistics, under a name by which others find them.

``Client.add_service`` starts one, ``Client.discover_services`` finds them.
"""

from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._help import late_names as _late_names
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

if not TYPE_CHECKING:
    __getattr__ = _late_names.LateNames(
        __name__, advice={name: f"use natsproto.errors.{name}" for name in errors.__all__}
    ).get
