"""Traces of the requests of a JetStream context.

Owns the record of one request with its response, and the redaction of stored messages in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from natsproto._value import Value


class ApiTrace(Value):
    """One request to the JetStream API. ``subject`` is its subject, ``duration`` the seconds it took.

    ``request`` and ``response`` are the payloads; the contents of stored messages are replaced by their sizes.
    ``status`` is that of the response's headers, 0 for none. ``error`` is the error without a response: NoResponders,
    RequestTimeout, ConnectionLost, PermissionDenied …, or the CancelledError of the caller.
    """

    subject: str
    request: bytes
    response: bytes = b""
    status: int = 0
    duration: float
    error: BaseException | None = None


TraceCallback: TypeAlias = Callable[[ApiTrace], object]
"""Called with every trace as soon as the request is over, on the event loop: it must be quick and must not block."""


def redacted(subject: str, response: bytes) -> bytes:
    """Return the response without the contents of stored messages."""
    if ".DIRECT.GET." in subject:
        return b"(%d bytes)" % len(response) if response else b""
    if ".STREAM.MSG.GET." not in subject:
        return response
    try:
        said = json.loads(response)
        message = said.get("message", {})
        for name in {"data", "hdrs"} & message.keys():
            message[name] = f"({len(message[name])} characters)"
    except (ValueError, AttributeError, TypeError, RecursionError):  # not what a server says
        return b"(%d bytes)" % len(response)
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
