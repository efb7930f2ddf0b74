"""PURE. Python values as plain ones: what the json module and msgpack can write."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from uuid import UUID


def plain(value: object) -> object:
    """Convert a value that the json module does not support to one that it does. TypeError for others."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return all_plain(value.value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"this codec cannot encode {type(value).__name__}")


def all_plain(value: object) -> object:
    """Convert a value and all that is in it, also the keys of mappings, which become strings as in JSON."""
    if isinstance(value, Enum):
        return all_plain(value.value)
    if value is None or isinstance(value, (bool, bytes)):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, (list, tuple)):
        return [all_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key_text(key): all_plain(item) for key, item in value.items()}
    return all_plain(plain(value))


def key_text(key: object) -> str:
    """Return the key of a mapping as JSON writes it."""
    found = all_plain(key)
    if isinstance(found, str):
        return found
    if found is None or isinstance(found, (int, float)):
        return json.dumps(found)
    raise TypeError(f"this codec cannot encode a key that is a {type(key).__name__}")
