"""Interfaces of what a module of ``natsproto.compat.nats`` uses of those above it, such as the message of an error.

The classes that implement them are in the modules that nats-py has, which import each other only downwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol


class MessagePeer(Protocol):
    """The message of an error."""

    subject: str
    reply: str
    data: bytes

    @property
    def header(self) -> Mapping[str, str] | None: ...


class SubscriptionPeer(Protocol):
    """The subscription of an error."""

    @property
    def subject(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def pending_msgs(self) -> int: ...

    @property
    def delivered(self) -> int: ...

    def unsubscribe(self, limit: int = 0) -> Awaitable[None]: ...

    def drain(self) -> Awaitable[None]: ...


class EntryPeer(Protocol):
    """The entry of an error."""

    bucket: str
    key: str
    value: bytes | None
    revision: int | None
    delta: int | None
    operation: str | None
