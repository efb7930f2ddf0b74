"""What a call returned or raised, in a form that is the same for both packages.

Owns the normal forms: ids, times and addresses, which differ in every run, are replaced. Refuses to know which
differences are allowed.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections.abc import Mapping
from typing import Any

from tests.compat.scenarios import OURS, THEIRS

VOLATILE = frozenset(
    {
        *("created", "timestamp", "ts", "time", "mtime", "modified", "last_active", "active", "first_ts", "last_ts"),
        *("started", "delta", "bytes", "id", "nuid", "mod_time", "processing_time", "average_processing_time"),
        *("reserved_memory", "reserved_storage", "memory", "storage", "api", "pause_remaining", "leader", "server"),
        *("client_id", "metadata", "config_metadata", "version"),
    }
)
"""Fields whose values differ from run to run."""

INTERNAL_TYPES = frozenset({"Client", "JetStreamContext", "Subscription", "KeyValue", "ObjectStore", "Service"})

_ID = re.compile(
    r"(_INBOX|inbox)\.[\w.$-]+|\b(?!\w+Error\b)[A-Za-z0-9]{22}(?:-[0-9a-f]{16})?\b|127\.0\.0\.1:\d+|\$JS\.ACK\.\S+|\b[0-9a-f]{8,}\b"
)
_MESSAGE = re.compile(r"Msg\(_client=.*\)", re.DOTALL)
"""The repr of a message, with the time when it was stored."""
_CHOSEN_NAME = re.compile(r"[A-Za-z0-9]{8}|[A-Za-z0-9]{22}(_\d+)?")
"""Names of consumers that the server or the client has chosen."""
_NUMBERED = re.compile(r"\d+\.\d{3,}")


def text(value: str) -> str:
    """A text without ids, addresses and times."""
    return _NUMBERED.sub("<number>", _ID.sub(lambda found: f"<{(found[1] or 'id').lower()}>", value))


def consumer_name(name: str) -> str:
    """The name of a consumer, unless it was drawn."""
    return "<id>" if _CHOSEN_NAME.fullmatch(name) else name


def type_of(value: Any) -> str:
    """The kind of a value that differs in every run."""
    if isinstance(value, (int, float)):
        return "<number>"
    zone = " with a time zone" if isinstance(value, datetime.datetime) and value.tzinfo is not None else ""
    return f"<{type(value).__name__}{zone}>"


def seen(value: Any, depth: int = 0) -> Any:
    """The normal form of a result."""
    if value is None or isinstance(value, (bool, int)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return seen(value.value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value) if len(value) < 200 else f"<{len(value)} bytes>"
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, (datetime.datetime, datetime.timedelta)):
        return type_of(value)
    if isinstance(value, BaseException):
        return error(value)
    if depth > 6:
        return "..."
    if isinstance(value, Mapping):
        return {
            text(str(key)): type_of(found) if key in VOLATILE and found is not None else seen(found, depth + 1)
            for key, found in sorted(value.items(), key=lambda item: str(item[0]))
        }
    if isinstance(value, (list, tuple, set)):
        found = [seen(one, depth + 1) for one in value]
        # Names of consumers that a server has chosen decide their order.
        return sorted(found, key=str) if any(type(one).__name__ == "ConsumerInfo" for one in value) else found
    name = type(value).__name__
    if name == "Msg":
        return seen_message(value)
    if name in INTERNAL_TYPES or name.endswith(("Subscription", "Watcher", "Iterator")):
        return f"<{name}>"
    return public_fields(value, depth)


def public_fields(value: Any, depth: int) -> dict[str, Any]:
    """The public fields of an object, None left out, with the name of its class."""
    names = [one.name for one in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else [*vars(value)]
    found = {name: getattr(value, name) for name in names if not name.startswith("_")}
    found = {name: one for name, one in found.items() if one is not None}
    if type(value).__name__ == "ConsumerInfo":
        found["name"] = consumer_name(found["name"])
    return {"": type(value).__name__, **seen(found, depth + 1)}


def seen_message(value: Any) -> dict[str, Any]:
    """A message of core NATS or JetStream."""
    reply = "<ack>" if value.reply.startswith("$JS.ACK") else seen(value.reply)
    found = {"subject": seen(value.subject), "data": seen(value.data), "reply": reply, "headers": seen(value.headers)}
    if reply == "<ack>":
        metadata = value.metadata
        found["metadata"] = [
            *(metadata.sequence.stream, metadata.sequence.consumer, metadata.num_delivered, metadata.num_pending),
            *(metadata.stream, consumer_name(metadata.consumer)),
        ]
    return found


def error(value: BaseException) -> dict[str, Any]:
    """The class of an error, without the package, and what it says."""
    kind = type(value)
    home = f"{kind.__module__}.{kind.__qualname__}"
    for package in (OURS, THEIRS):
        home = home.removeprefix(f"{package}.")
    found = {"raised": home, "codes": [getattr(value, name, None) for name in ("code", "err_code")]}
    if kind.__module__ != "builtins":
        found["says"] = text(_MESSAGE.sub("<Msg>", str(value)))
    return found
