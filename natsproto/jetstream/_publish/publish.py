"""Publishing one message to a stream: the loop around the policy of what may be sent again (see ``retry_policy``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from natsproto._core.connection import Connection
from natsproto._core.events import Event
from natsproto.errors import (
    ConnectionClosed,
    ConnectionLost,
    NatsError,
    NoResponders,
    PublishUncertain,
    RequestTimeout,
    StreamWentBack,
    UnsupportedByServer,
    WrongLastSequence,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._info import PubAck, StreamInfo, pub_ack
from natsproto.jetstream._publish.headers import MSG_ID_HEADER, MessageArgs, header_pairs
from natsproto.jetstream._publish.refusals import (
    FURTHER_REPLY_WAITS_S,
    Doubt,
    Expectation,
    expectation_of,
)
from natsproto.jetstream._publish.retry_policy import RESEND_AFTER_S, RETRY_WAIT_S, PublishState
from natsproto.jetstream._retry_request import TIMER_SLACK_S
from natsproto.jetstream._sequence_log import AckedSequence
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

INFO_TIMEOUT_S = 2.0
"""Seconds to wait for the info that tells a recreated stream from one that went back."""


class StreamLostMessages(Event):
    """A stream lost acknowledged messages, as its server lost the end of its store. They had the sequences from
    ``first_lost`` to ``last_lost``, which the stream gives to new messages now. Emitted once.
    """

    stream: str
    first_lost: int
    last_lost: int

    level = logging.ERROR
    line = "stream %(stream)s lost its messages %(first_lost)d to %(last_lost)d, which were acknowledged"


class Search(Protocol):
    """Searches a stream for a message after a refusal that is not certain."""

    async def __call__(
        self, subject: str, expected: Expectation, refusal: WrongLastSequence, timeout: float, *, settled: bool
    ) -> PubAck | None:
        """Return where the message is stored; None when that is unknown. Raises ``refusal`` when it is certainly not
        stored.
        """
        ...


async def publish(
    api: Api,
    subject: str,
    payload: Payload,
    headers: HeadersLike | None,
    args: MessageArgs,
    *,
    timeout: float,
    retry_attempts: int | None = None,
    retry_wait: float = RETRY_WAIT_S,
    check_server: Callable[[], Awaitable[object]] | None = None,
    search: Search | None = None,
    extra_header: tuple[str, str] | None = None,
) -> PubAck:
    """Publish a message and return the stream's acknowledgement; see JetStream.publish. ``check_server`` raises
    UnsupportedByServer for a server that must not get the message, now and again for every new server.
    ``search`` looks for a message that has an expectation, ``extra_header`` is for it: with it, a message that expects
    the last sequence of its own subject is sent again after a lost connection.
    """
    if check_server is not None:
        await check_server()
    connection = api.connection
    pairs = (header_pairs(subject, headers, args) or None) if headers is not None or args else None
    if extra_header is not None:
        pairs = [*(pairs or ()), extra_header]
    has_id = pairs is not None and any(name == MSG_ID_HEADER for name, _ in pairs)
    interval = RESEND_AFTER_S if has_id else 0.0
    loop = asyncio.get_running_loop()
    state: PublishState | None = None
    sent_at = loop.time()
    left = timeout
    reply: Message | None = None
    while True:
        try:
            reply = await connection._request_resending(
                subject, payload, timeout=left, headers=pairs, interval=interval
            )
            ack = pub_ack(reply.data, f"publish to {subject!r}")
            lost_from = api.sequences.on_ack(ack, sent_at, loop.time())
            if lost_from is not None:
                await report_lost_messages(api, ack, lost_from)
            return ack
        except StreamWentBack:
            raise
        except ConnectionClosed as exc:
            raise ConnectionClosed(f"publish to {subject!r}", exc.reason) from exc.reason
        except NatsError as exc:
            error = exc
        if isinstance(error, (RequestTimeout, NoResponders)):
            api.on_silence()
        if state is None:  # nearly every message is acknowledged at once
            is_guarded = extra_header is not None and expectation_of(subject, pairs or ()).subject == subject
            options = (timeout, retry_attempts, retry_wait)
            state = PublishState(subject, *options, has_id=has_id, is_guarded=is_guarded, now=sent_at)
        if state.is_resendable and isinstance(error, ConnectionLost):
            await connection._wait_connected(state.deadline)
            try:
                if check_server is not None:
                    await check_server()
            except UnsupportedByServer as refusal:
                raise PublishUncertain(subject, f"{error}, and then {refusal}") from refusal
        try:
            if isinstance(error, WrongLastSequence) and reply is not None:
                expected = expectation_of(subject, pairs or ())
                found = await _acknowledged_after_all(connection, reply, expected, state, error, search)
                if found is not None:
                    return found
                pause = state.pause_after_doubt(error, expected, loop.time())
            else:
                in_a_row = api.on_ack_timeout(left) if isinstance(error, RequestTimeout) else 0
                pause = state.pause_after(error, sent_at - TIMER_SLACK_S, loop.time(), in_a_row=in_a_row)
        finally:
            del error  # it refers to this frame
        await asyncio.sleep(pause)
        sent_at = loop.time()
        left = max(state.deadline - sent_at, TIMER_SLACK_S)


async def _acknowledged_after_all(
    connection: Connection,
    refused: Message,
    expected: Expectation,
    state: PublishState,
    error: WrongLastSequence,
    search: Search | None,
) -> PubAck | None:
    """Return the acknowledgement of a message in spite of its refusal: that of another server, or of a search. None
    when neither decides. Raises the refusal when it is certain, at once or after all.
    """
    doubt = state.doubt(error, expected)
    now = asyncio.get_running_loop().time
    waits = {Doubt.STALE: FURTHER_REPLY_WAITS_S, Doubt.IN_PROCESS: (state.next_pause,), Doubt.OWN_COPY: (0.0,)}[doubt]
    for wait in waits:
        further = await connection._further_reply(refused, min(wait, state.deadline - now()))
        if further is not None and not further.is_no_responders:
            try:
                return pub_ack(further.data)
            except NatsError:
                pass  # a refusal, too
        if state.is_repeated_after(doubt, now()):
            return None
        left = max(TIMER_SLACK_S, state.deadline - now())
        if search is not None:
            ack = await search(state.subject, expected, error, left, settled=wait == FURTHER_REPLY_WAITS_S[-1])
            if ack is not None:
                return ack
    return None


async def report_lost_messages(api: Api, ack: PubAck, before: AckedSequence) -> None:
    """Report that a stream went back behind an acknowledged sequence: an event, and StreamWentBack for the publisher.

    Does nothing when the stream was created after that acknowledgement, or when that cannot be found out.
    """
    try:
        operation = f"info of stream {ack.stream!r}"
        info = await api.call_for(StreamInfo, f"STREAM.INFO.{ack.stream}", operation=operation, timeout=INFO_TIMEOUT_S)
    except NatsError:
        return
    age = (info.ts - info.created).total_seconds()
    if age > asyncio.get_running_loop().time() - before.acked_at:
        api.connection._emit(StreamLostMessages(stream=ack.stream, first_lost=ack.seq, last_lost=before.seq))
        raise StreamWentBack(ack.stream, ack.seq, before.seq)
