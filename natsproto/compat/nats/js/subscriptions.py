"""Subscriptions of push and pull consumers, with or without a callback."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import natsproto
from natsproto import NatsError
from natsproto.compat._options import FOREVER_S
from natsproto.compat._translate import translate_error
from natsproto.compat.nats import errors
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.aio.subscription import Subscription
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js.errors import APIError, FetchTimeoutError
from natsproto.compat.nats.js.manager import JetStreamManager
from natsproto.jetstream import JsMessage, Messages, PullConsumer


class PushSubscription(Subscription):
    """A subscription of a push or ordered consumer. Created by ``JetStreamContext.subscribe``."""

    def __init__(
        self,
        js: JetStreamManager,
        config: api.ConsumerConfig,
        messages: Messages,
        stream: str,
        consumer: Callable[[], str],
        cb: Callable[[Msg], Awaitable[None]] | None,
        *,
        acks: bool,
    ) -> None:
        super().__init__(js._nc, 0, config.deliver_subject or "", config.deliver_group or "", is_read=cb is None)
        self._js = js
        self._pushed = messages
        self._stream, self._consumer = stream, consumer
        self._acks = acks
        self._taken = self._limit = 0
        self._task = None if cb is None else asyncio.create_task(self._call(cb))

    async def consumer_info(self) -> api.ConsumerInfo:
        return await self._js.consumer_info(self._stream, self._consumer())

    @property
    def pending_msgs(self) -> int:
        return self._pushed.pending

    @property
    def pending_bytes(self) -> int:
        """NotImplementedError: natsproto does not count these bytes."""
        raise NotImplementedError("pending_bytes of a push subscription; pending_msgs is there")

    @property
    def delivered(self) -> int:
        return self._taken + self._pushed.pending

    async def _next(self, timeout: float | None) -> Msg:
        message = await self._pushed.next(timeout)
        return await self._count(message)

    async def _count(self, message: JsMessage) -> Msg:
        """Return a message of nats-py, and end the subscription after the last one."""
        self._taken += 1
        if self._limit and self._taken >= self._limit:
            self._closed = True
            await self._pushed.stop()
        converted: Msg = self._conn._message(message, self._id)
        return converted

    async def _call(self, cb: Callable[[Msg], Awaitable[None]]) -> None:
        """Call the callback, and acknowledge the message unless the callback has."""
        failed = self._conn._failed
        try:
            async for message in self._pushed:
                msg = await self._count(message)
                try:
                    if inspect.isawaitable(result := cb(msg)):
                        await result
                    if self._acks and not msg.is_acked:
                        await msg.ack()
                except Exception as exc:
                    await failed(f"callback of {self._subject!r}", exc)
        except NatsError as exc:
            if not self._conn.is_closed:  # else closed_cb tells
                await failed(f"subscription {self._subject!r}", exc)

    async def _end(self, limit: int) -> None:
        if limit:
            self._limit = limit
            return
        await self._pushed.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _finish(self) -> None:
        await self._pushed.drain()
        if self._task is not None:
            try:
                await asyncio.wait_for(asyncio.shield(self._task), self._conn._drain_timeout)
            except TimeoutError as exc:
                raise errors.DrainTimeoutError from exc

    @property
    def _opened(self) -> natsproto.Subscription:
        raise NotImplementedError("a push subscription has no core subscription of its own")


class PullSubscription:
    """A subscription of a pull consumer. Created by ``pull_subscribe``."""

    def __init__(self, js: JetStreamManager, consumer: PullConsumer) -> None:
        self._js = js
        self._pulled = consumer
        self._delivered = 0
        self._closed = False

    @property
    def pending_msgs(self) -> int:
        """Always 0, because nothing is read ahead; ``pending_bytes`` as well."""
        return 0

    @property
    def pending_bytes(self) -> int:
        return 0

    @property
    def delivered(self) -> int:
        return self._delivered

    async def unsubscribe(self) -> None:
        if self._js._nc.is_closed:
            raise errors.ConnectionClosedError
        if self._closed:
            raise errors.BadSubscriptionError
        self._closed = True

    async def consumer_info(self) -> api.ConsumerInfo:
        return await self._js.consumer_info(self._pulled.stream_name, self._pulled.name)

    async def fetch(self, batch: int = 1, timeout: float | None = 5, heartbeat: float | None = None) -> list[Msg]:
        """Return up to ``batch`` messages, as soon as there is one. TimeoutError when none arrived within ``timeout``
        seconds.
        """
        if batch < 1:
            raise ValueError("nats: invalid batch size")
        if timeout is not None and timeout <= 0:
            raise ValueError("nats: invalid fetch timeout")
        client = self._js._nc
        if client.is_closed:
            raise errors.ConnectionClosedError
        if self._closed:
            raise errors.BadSubscriptionError
        wait = FOREVER_S if timeout is None else timeout
        if heartbeat and heartbeat * 2 >= wait:
            raise APIError(400, "Bad Request - heartbeat value too large")
        try:
            found = await self._pulled.fetch_available(batch, timeout=wait, heartbeat=heartbeat)
        except NatsError as exc:
            raise translate_error(exc) from exc
        if not found:
            if client.is_closed:
                raise errors.ConnectionClosedError
            # FetchTimeoutError says that the server is there and has no messages.
            raise FetchTimeoutError if heartbeat and client.is_connected else errors.TimeoutError
        self._delivered += len(found)
        message_of = client._message
        return [message_of(message, None) for message in found]
