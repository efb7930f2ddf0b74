"""Publishing one message to a stream: the loop around the policy of what may be sent again (see ``retry_policy``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from natsproto._core.connection import Connection
from natsproto.errors import ConnectionClosed, ConnectionLost, NatsError, PublishUncertain, UnsupportedByServer
from natsproto.jetstream._info import PubAck, pub_ack
from natsproto.jetstream._publish.headers import MSG_ID_HEADER, MessageArgs, header_pairs
from natsproto.jetstream._publish.retry_policy import RESEND_AFTER_S, PublishState
from natsproto.jetstream._retry_request import TIMER_SLACK_S
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike


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
    check_server: Callable[[], Awaitable[object]] | None = None,
) -> PubAck:
    """Publish a message and return the stream's acknowledgement; see JetStream.publish. ``check_server`` raises
    UnsupportedByServer for a server that must not get the message; it is called again for every new server.
    """
    pairs = (header_pairs(subject, headers, args) or None) if headers is not None or args else None
    has_id = pairs is not None and any(name == MSG_ID_HEADER for name, _ in pairs)
    interval = RESEND_AFTER_S if has_id else 0.0
    loop = asyncio.get_running_loop()
    state: PublishState | None = None
    sent_at = loop.time()
    left = timeout
    while True:
        try:
            reply = await connection._request_resending(
                subject, payload, timeout=left, headers=pairs, interval=interval
            )
            return pub_ack(reply.data, f"publish to {subject!r}")
        except ConnectionClosed as exc:
            raise ConnectionClosed(f"publish to {subject!r}", exc.reason) from exc.reason
        except NatsError as exc:
            error = exc
        if state is None:  # nearly every message is acknowledged at once
            state = PublishState(
                subject, has_id=has_id, timeout=timeout, attempts=retry_attempts, retry_wait=retry_wait, now=sent_at
            )
        if has_id and isinstance(error, ConnectionLost):
            await connection._wait_connected(state.deadline)
            try:
                if check_server is not None:
                    await check_server()
            except UnsupportedByServer as refusal:
                raise PublishUncertain(subject, f"{error}, and then {refusal}") from refusal
        try:
            pause = state.pause_after(error, sent_at - TIMER_SLACK_S, loop.time())
        finally:
            del error  # it refers to this frame
        await asyncio.sleep(pause)
        sent_at = loop.time()
        left = max(state.deadline - sent_at, TIMER_SLACK_S)
