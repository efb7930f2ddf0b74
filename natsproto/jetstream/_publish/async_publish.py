"""Publishing to streams through a window of messages that are not acknowledged yet."""

from __future__ import annotations

from types import TracebackType
from typing import Unpack

from natsproto._core.connection import Connection
from natsproto.errors import LocalProtocolError
from natsproto.jetstream._publish.ackfuture import AckFuture
from natsproto.jetstream._publish.headers import (
    ExpectationArgs,
    as_bytes,
    has_msg_id,
    header_block,
    id_block,
    novelty,
)
from natsproto.jetstream._publish.window import Limits, Window
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike


class Publisher:
    """Publishes to streams without waiting for each acknowledgement. Made by ``js.publisher()``; enter it.

    Leaving the block waits until every message is settled and raises PublishFailed for the failures that nobody
    has seen. Leaving it with an exception waits for nothing. Tasks may share one.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        max_pending: int,
        max_pending_bytes: int,
        timeout: float,
        retry_attempts: int | None,
        retry_wait: float,
        auto_msg_id: bool,
    ) -> None:
        self._window = Window(connection, Limits(max_pending, max_pending_bytes, timeout, retry_attempts, retry_wait))
        self._connection = connection
        self._outbox = connection.outbox
        self._entered = False
        self._id = f"{connection.new_inbox().rpartition('.')[2]}-" if auto_msg_id else ""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> AckFuture:
        """Publishes a message and returns the future of its acknowledgement. Waits only while the window is full.

        The arguments are those of ``JetStream.publish``, and bad ones raise the same errors, with nothing sent;
        UnsupportedByServer for those that the connected server does not know. The future ends with that (in
        PublishUncertain, of what was sent before) when another server comes and does not: it is not sent the message.
        PublishFailed when as many messages as the window holds have failed and nobody has looked at their futures.
        ConnectionClosed when the client is. Cancelling while it waits publishes nothing.
        """
        window = self._window
        if window.full or self._outbox.wait_first:
            await window.room()
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        if args or headers is not None:
            new = novelty(args)
            if new is not None and (refusal := new.refusal(self._connection.server_info)) is not None:
                raise refusal
            block = header_block(subject, headers, {"msg_id": msg_id, **args})
            if self._id and not has_msg_id(block):
                block = header_block(subject, headers, {"msg_id": f"{self._id}{window.count + 1}", **args})
            if new is not None:
                future = window.take(subject, payload, block)
                window.demand(new)
                return future
        elif msg_id is not None:
            block = id_block(msg_id)
        elif self._id:
            block = id_block(f"{self._id}{window.count + 1}")
        else:
            block = None
        return window.take(subject, payload, block)

    async def flush(self) -> None:
        """Waits until every message published so far is settled; PublishFailed as at the end of the block.

        Cancelling changes nothing.
        """
        await self._window.flush()
        self._window.report()

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._window.count

    @property
    def acknowledged(self) -> int:
        """Messages that a stream has acknowledged."""
        return self._window.acknowledged

    @property
    def pending(self) -> int:
        """Messages that are not settled yet."""
        return self._window.pending

    async def __aenter__(self) -> Publisher:
        if self._entered:
            raise LocalProtocolError("a publisher can be entered once: make another one")
        self._window.open()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        window = self._window
        try:
            if exc is None:
                await window.flush()
                window.report()
        finally:
            window.close()
