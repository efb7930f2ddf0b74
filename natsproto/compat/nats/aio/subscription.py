"""``nats.aio.subscription``: natsproto's subscription with the methods of nats-py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import natsproto
from natsproto import NatsError
from natsproto import errors as ours
from natsproto.compat._peers import ClientPeer
from natsproto.compat._translate import translate_error, translate_errors
from natsproto.compat.nats import errors
from natsproto.compat.nats.aio.msg import Msg

DEFAULT_SUB_PENDING_MSGS_LIMIT = 512 * 1024
DEFAULT_SUB_PENDING_BYTES_LIMIT = 128 * 1024 * 1024
MAX_AUTO_UNSUBSCRIBE = 999_999_999
"""Servers end a subscription at once when they get a larger number. A larger limit is none here."""


class Subscription:
    """A subscription to a subject. Created by ``Client.subscribe``."""

    def __init__(self, conn: ClientPeer, id: int, subject: str, queue: str, *, is_read: bool) -> None:
        self._conn = conn
        self._id = id
        self._subject = subject
        self._queue = queue
        self._is_read = is_read
        self._closed = False
        self._source: natsproto.Subscription | None = None

    @property
    def subject(self) -> str:
        return self._subject

    @property
    def queue(self) -> str:
        return self._queue

    @property
    def messages(self) -> AsyncIterator[Msg]:
        """An iterator over the messages, for subscriptions without a callback."""
        if not self._is_read:
            raise errors.Error("cannot iterate over messages with a non iteration subscription type")
        return _Messages(self)

    @property
    def pending_msgs(self) -> int:
        return self._opened.pending_msgs

    @property
    def pending_bytes(self) -> int:
        return sum(len(message.data) for message in self._opened._inbox)

    @property
    def delivered(self) -> int:
        return self._opened.delivered + self._opened.pending_msgs

    async def next_msg(self, timeout: float | None = 1.0) -> Msg:
        """Return the next message. TimeoutError when none arrived within ``timeout`` seconds (None: waits for ever)."""
        self._check_client()
        if not self._is_read:
            raise errors.Error("nats: next_msg cannot be used in async subscriptions")
        try:
            return await self._next(timeout)
        except NatsError as exc:
            self._check_client()
            raise translate_error(exc) from exc

    @translate_errors
    async def unsubscribe(self, limit: int = 0) -> None:
        """End the subscription: at once, or after ``limit`` messages in all."""
        self._check_open()
        if limit > MAX_AUTO_UNSUBSCRIBE:
            return
        if limit == 0 or (self.delivered >= limit and not self.pending_msgs):
            self._closed = True
            limit = 0
        await self._end(limit)

    @translate_errors
    async def drain(self) -> None:
        self._check_open()
        try:
            await self._finish()
        finally:
            self._closed = True

    # ---------------------------------------------------------------- where the messages come from

    @property
    def _opened(self) -> natsproto.Subscription:
        assert self._source is not None
        return self._source

    async def _next(self, timeout: float | None) -> Msg:
        message: Msg = self._conn._message(await self._opened.next(timeout), self._id)
        return message

    async def _end(self, limit: int) -> None:
        await self._opened.unsubscribe(limit or None)

    async def _finish(self) -> None:
        await self._opened.drain(self._conn._drain_timeout)

    def _check_client(self) -> None:
        if self._conn.is_closed:
            raise errors.ConnectionClosedError

    def _check_open(self) -> None:
        self._check_client()
        if self._conn.is_draining:
            raise errors.ConnectionDrainingError
        if self._closed:
            raise errors.BadSubscriptionError


class _Messages:
    """Iterates over the messages of a subscription until it ends."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Msg:
        try:
            return await self._subscription._next(None)
        except NatsError as exc:
            if isinstance(exc, (ours.SubscriptionClosed, ours.ConnectionClosed)):
                raise StopAsyncIteration from None
            raise translate_error(exc) from exc
