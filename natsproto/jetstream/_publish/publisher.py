"""Publishing to streams without waiting for each acknowledgement: the publisher for programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.instrumentation import Sending
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.headers import AutoMsgIds, ExpectationArgs, message_block, required_feature
from natsproto.jetstream._publish.publish_window import PublisherOptions, PublishWindow
from natsproto.protocol.frames import Payload, as_bytes
from natsproto.protocol.headers import HeadersLike


class Publisher:
    """Publishes to streams without waiting for each acknowledgement. Created by ``js.publisher()``; use it with ``async
    with``.

    The end of the block waits until every message is settled and raises PublishFailed for failures that were not seen,
    or StreamWentBack, once, if the stream has lost acknowledged messages. After an exception in the block it does not
    wait. Several tasks may share a publisher.
    """

    def __init__(self, connection: Connection, limits: PublisherOptions, *, auto_msg_id: bool) -> None:
        self._auto_ids = (
            AutoMsgIds(connection._runtime.new_id(), connection._runtime.random_bits()) if auto_msg_id else None
        )
        self._timeout: float = limits.timeout
        self._window = PublishWindow(connection, limits, self._auto_ids)
        self._connection = connection
        self._instrumentation = connection._instrumentation
        self._outbox = connection._outbox
        self._entered = False

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> AckFuture:
        """Publish a message and return the future of its acknowledgement. Waits only while the window is full.

        The arguments are those of ``JetStream.publish``, and invalid ones raise the same errors, with nothing sent;
        UnsupportedByServer for arguments that the connected server does not know. If the next server after a reconnect
        does not know them, it does not get the message, and the future ends with that error (or PublishUncertain if the
        message was sent before). PublishFailed when as many messages as the window holds have failed and none of their
        futures was read. ConnectionClosed when the client is closed. Cancelling while it waits publishes nothing.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        window, sending = self._window, None
        if self._instrumentation is not None:
            sending = self._instrumentation.sending("publish", subject, payload, headers)
            headers = sending.headers
        try:
            if window.full or self._outbox.must_wait:
                await window.wait_for_room()
            if type(payload) is not bytes:
                payload = as_bytes(payload)
            required = required_feature(args) if args else None
            if required is not None:
                required.check(self._connection.server_info)
            auto_id = None if self._auto_ids is None else self._auto_ids.new()
            future = window.add(subject, payload, message_block(subject, headers, args, msg_id, auto_id))
            if required is not None:
                window.require_feature(required)
        except BaseException as exc:
            if sending is not None:
                sending.end(exc)
            raise
        if sending is not None:
            future.add_done_callback(partial(_end_sending, sending))
        return future

    async def _publish_blocks(
        self, subjects: Sequence[str], payloads: Sequence[Payload], blocks: Sequence[bytes | None]
    ) -> list[AckFuture]:
        """Publish many messages with encoded headers, like ``publish`` without its arguments."""
        window, outbox, sent = self._window, self._outbox, []
        for subject, payload, block in zip(subjects, payloads, blocks, strict=True):
            if window.full or outbox.must_wait:
                await window.wait_for_room()
            sent.append(window.add(subject, payload if type(payload) is bytes else as_bytes(payload), block))
        return sent

    @property
    def _is_traced(self) -> bool:
        """True if each message is reported to an instrumentation, as ``publish`` does."""
        return self._instrumentation is not None

    async def flush(self) -> None:
        """Wait until every message published so far is settled; PublishFailed as at the end of the block.

        Cancelling changes nothing.
        """
        self._connection._check_loop()
        await self._window.flush()
        self._window.raise_failures()

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._window.replies.count

    @property
    def acknowledged(self) -> int:
        """Messages that a stream has acknowledged."""
        return self._window.acknowledged

    @property
    def pending(self) -> int:
        """Messages that are not settled yet."""
        return len(self._window.replies.pending)

    async def __aenter__(self) -> Publisher:
        self._connection._check_loop()
        if self._entered:
            raise errors.LocalProtocolError("a publisher can be entered once: make another one")
        self._window.open()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        window = self._window
        self._connection._check_loop()
        try:
            if exc is None:
                await window.flush()
                window.raise_failures()
        finally:
            window.close()


def _end_sending(sending: Sending, future: AckFuture) -> None:
    """End the sending of an acknowledged message; errors stay unseen."""
    outcome = future._outcome
    if not isinstance(outcome, errors.NatsError):
        try:
            outcome = future.result()
        except errors.NatsError as exc:  # the server's reply is not an acknowledgement
            outcome = exc
    sending.end(outcome)
