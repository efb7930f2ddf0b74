"""Interfaces of what a module of ``natsproto.compat.nats`` uses of those above it, such as the message of an error.

The classes that implement them are in the modules that nats-py has, which import each other only downwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import natsproto


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


class ClientPeer(Protocol):
    """The client of a message, a subscription or a JetStream context."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...

    @property
    def _opened(self) -> natsproto.Client: ...

    @property
    def _drain_timeout(self) -> float: ...

    @property
    def _nuid(self) -> Any: ...

    def new_inbox(self) -> str: ...

    def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> Awaitable[None]: ...

    def request(self, subject: str, payload: bytes = b"", timeout: float | None = 0.5) -> Awaitable[Any]: ...

    def _message(self, message: natsproto.Message, sid: int | None) -> Any: ...

    def _answer(self, reply: str, words: bytes) -> Awaitable[None]: ...

    def _respond(self, reply: str, payload: bytes, headers: dict[str, str] | None) -> Awaitable[None]: ...

    def _refused(self, error: BaseException) -> None: ...

    def _failed(self, where: str, error: BaseException) -> Awaitable[None]: ...
