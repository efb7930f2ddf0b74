"""The rules for the names of streams, consumers, buckets and priority groups (ADR-6)."""

from __future__ import annotations

import re

from natsproto import errors

MAX_ASSET_NAME = 255

_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f.*>/\\]")
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_GROUP = re.compile(r"[A-Za-z0-9/_=-]{1,16}")


def check_stream_name(name: str) -> str:
    """Return a valid name, or raise InvalidSubject: a server does not reply to some invalid names."""
    return _asset_name("stream name", name)


def check_consumer_name(name: str) -> str:
    """Return a valid name, or raise InvalidSubject with the rule it breaks."""
    return _asset_name("consumer name", name)


def check_bucket_name(name: str) -> str:
    """Return a valid name of a key/value bucket or object store, or raise InvalidSubject."""
    if not isinstance(name, str):
        raise TypeError(f"bucket name must be a str, not {type(name).__name__}")
    if not _BUCKET.fullmatch(name):
        raise errors.InvalidSubject("bucket name", name, "only A-Z, a-z, 0-9, '-' and '_', at least one of them")
    return _asset_name("bucket name", name)


def check_priority_group(name: str) -> str:
    """Return a valid name of a priority group (ADR-42), or raise InvalidSubject."""
    if not isinstance(name, str):
        raise TypeError(f"priority group must be a str, not {type(name).__name__}")
    if not _GROUP.fullmatch(name):
        raise errors.InvalidSubject(
            "priority group", name, "1 to 16 characters from A-Z, a-z, 0-9, '-', '_', '/' and '='"
        )
    return name


def _asset_name(what: str, name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    if not name:
        raise errors.InvalidSubject(what, name, "must not be empty")
    if _NOT_IN_NAMES.search(name):
        raise errors.InvalidSubject(
            what, name, "must not contain '.', '*', '>', '/', '\\', spaces or control characters"
        )
    if len(name.encode("utf-8", "surrogatepass")) > MAX_ASSET_NAME:
        raise errors.InvalidSubject(what, name, f"is longer than {MAX_ASSET_NAME} bytes")
    return name
