"""Publishing to streams: one message at a time, or through a window of messages that are not acknowledged yet.

Three rules decide everything, here and in ``window``:

* What the server refused or nobody received is surely not stored, so it may be sent again (ADR-22).
* What was sent and not answered may be stored. It is sent again only if it has a message id.
* Nothing is acknowledged twice to the caller, and nothing waits longer than its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Unpack

from natsproto._core.connection import Connection
from natsproto.errors import (
    ApiError,
    ConnectionLost,
    LocalProtocolError,
    NatsError,
    NoResponders,
    NoStream,
    OutboxFull,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    UnsupportedByServer,
)
from natsproto.jetstream._asking import EARLY
from natsproto.jetstream._info import PubAck, pub_ack
from natsproto.jetstream._publish.ackfuture import AckFuture
from natsproto.jetstream._publish.outgoing import (
    MSG_ID,
    ExpectationArgs,
    MessageArgs,
    as_bytes,
    has_msg_id,
    header_block,
    header_pairs,
    id_block,
    novelty,
)
from natsproto.jetstream._publish.retry import BUSY, RESEND_AFTER, default_attempts, pause_after
from natsproto.jetstream._publish.waiting import connected
from natsproto.jetstream._publish.window import Limits, Window
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike
from natsproto.protocol.refusals import SubscriptionDenied

# ---------------------------------------------------------------- one message


async def publish(
    connection: Connection,
    subject: str,
    payload: Payload,
    headers: HeadersLike | None,
    args: MessageArgs,
    *,
    timeout: float,
    retry_attempts: int | None,
    retry_wait: float,
    demand: Callable[[], Awaitable[object]] | None = None,
) -> PubAck:
    """Publishes a message and returns the stream's acknowledgement; see JetStream.publish. ``demand`` raises
    UnsupportedByServer where the message is not to go to: it is asked again of every server that comes.
    """
    pairs = header_pairs(subject, headers, args) or None
    again = pairs is not None and any(name == MSG_ID for name, _ in pairs)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    attempts = default_attempts(has_id=again) if retry_attempts is None else retry_attempts
    unheard = busy = 0
    doubt: PublishUncertain | None = None  # why an earlier copy may have been stored without our knowing
    while True:
        pause = 0.0
        failure: NatsError
        begun = loop.time()
        left = deadline - begun
        try:
            if again:
                reply = await connection.request_again(
                    subject, payload, timeout=max(left, EARLY), headers=pairs, interval=RESEND_AFTER
                )
            else:
                reply = await connection.request(subject, payload, timeout=max(left, EARLY), headers=pairs)
            return pub_ack(reply.data, f"publish to {subject!r}")
        except NoResponders:
            failure = NoStream(subject, timeout if attempts < 0 else 0.0)
            unheard += 1
            pause = retry_wait
            if unheard > attempts >= 0:
                deadline = 0.0
        except ApiError as exc:
            if exc.err_code not in BUSY:
                raise
            failure = exc
            pause = pause_after(busy, retry_wait)
            busy += 1
        except RequestTimeout:
            failure = doubt = PublishTimeout(subject, timeout)
            deadline = 0.0
        except ConnectionLost as exc:
            failure = doubt = PublishUncertain(subject, str(exc))
            failure.__cause__ = exc
            if again:
                await connected(connection, deadline)
            if again and demand is not None:
                try:
                    await demand()
                except UnsupportedByServer as refusal:
                    raise PublishUncertain(subject, f"{exc}, and then {refusal}") from refusal
        except SubscriptionDenied as exc:  # of the inbox: the message went, and the answer does not come
            raise PublishUncertain(subject, str(exc)) from exc
        except OutboxFull as exc:
            failure = exc
            pause = retry_wait
            if doubt is None:
                deadline = 0.0
        now = loop.time()
        if again and failure is not doubt and now - begun >= RESEND_AFTER - EARLY:
            doubt = doubt or PublishTimeout(subject, now - begun)  # it was sent more than once
        if deadline - now <= pause or (failure is doubt and not again):
            if doubt is None or failure is doubt:
                raise failure
            raise PublishUncertain(subject, f"{doubt.reason}, and then {failure}") from failure
        await asyncio.sleep(pause)


# ---------------------------------------------------------------- many messages


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
