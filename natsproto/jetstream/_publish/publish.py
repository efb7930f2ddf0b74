"""Publishing one message to a stream: the loop around the rules of ``outcome`` and ``retry_policy``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from natsproto import errors
from natsproto._core.events import Event
from natsproto._core.replies.pending_replies import Resending
from natsproto.errors._base import is_transient
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._api.sequence_log import AckedSequence
from natsproto.jetstream._publish.headers import MSG_ID_HEADER, MessageArgs, header_pairs
from natsproto.jetstream._publish.outcome import (
    AwaitReply,
    Change,
    Decision,
    Evidence,
    Expectation,
    Leadership,
    Outcome,
    Refused,
    Resend,
    Step,
    Stored,
    UncertainRefusal,
    Unknown,
    expectation_of,
    refusal_error,
)
from natsproto.jetstream._publish.retry_policy import RESEND_AFTER_S, RETRY_WAIT_S, PublishState
from natsproto.jetstream._values.info import PubAck, StreamInfo, pub_ack
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

INFO_TIMEOUT_S = 2.0
"""Seconds to wait for the info that distinguishes a recreated stream from one that went back."""
LEADER_CHECK_S = 1.0
"""The most seconds to wait for an answer of the stream's leader before a message is sent again."""

_GUARDED = Resending(RESEND_AFTER_S)


class StreamLostMessages(Event):
    """A stream lost acknowledged messages, as its server lost the end of its store. They had the sequences from
    ``first_lost`` to ``last_lost``, which the stream gives to new messages now. Emitted once.
    """

    stream: str
    first_lost: int
    last_lost: int

    level = logging.ERROR
    line = "stream %(stream)s lost its messages %(first_lost)d to %(last_lost)d, which were acknowledged"


class Sent(NamedTuple):
    """A message that was sent and refused, or not answered, for a lookup."""

    expected: Expectation
    refused_below: int | None
    """The sequence that the refusal named, if it is below the expected one."""
    elapsed: float
    """Seconds since the first copy was sent."""
    timeout: float
    """Seconds for the lookup."""


Lookup: TypeAlias = Callable[[Sent], Awaitable[Evidence]]
"""Looks a message of this client up in its stream; an error shows nothing."""


class Recognition(NamedTuple):
    """How a message is recognised in its stream."""

    lookup: Lookup
    header: tuple[str, str] | None = None
    """A header that only this message has. With it, a message that expects the last sequence of its own subject is sent
    again after a silence and after a lost connection.
    """
    is_empty_checked: bool = False
    """It is looked up, too, before a refusal of the expected sequence 0 is raised."""


async def resolve(
    error: errors.ApiError,
    sent: Callable[[], Sent],
    step_of: Callable[[int, Evidence | None], Step],
    await_reply: Callable[[float], Awaitable[PubAck | None]],
    lookup: Lookup | None,
    refusal: UncertainRefusal,
) -> Outcome | Resend:
    """Return the outcome of a message after an ``error`` that is not certain, or that it has to be sent again."""
    waits, evidence = 0, None
    while True:
        step = step_of(waits, evidence)
        if isinstance(step, AwaitReply):
            ack = await await_reply(step.seconds)
            if ack is not None:
                return Stored(ack)
            waits, evidence = waits + 1, Evidence()
            if step.looks_up and lookup is not None:
                evidence = await lookup(sent())
        elif isinstance(step, Resend):
            return step
        elif step is Decision.STORED and evidence is not None and evidence.ack is not None:
            return Stored(evidence.ack)
        elif step is Decision.NOT_STORED:
            return Refused(error)
        else:
            return Unknown(refusal_error("", refusal, error))


def refused_below(error: errors.ApiError, expected: int) -> int | None:
    """Return the last sequence that a refusal names, if it is below the expected one."""
    last: int | None = getattr(error, "last", None)
    return last if last is not None and last < expected else None


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
    await_leader: Callable[[float], Awaitable[object]] | None = None,
    recognition: Recognition | None = None,
    change: Change | None = None,
    encoded: bytes | None = None,
) -> PubAck:
    """Publish a message and return the stream's acknowledgement; see JetStream.publish.

    ``check_server`` raises UnsupportedByServer for a server that must not get the message, now and again for every new
    server. ``await_leader(seconds)`` waits for an answer of the stream's leader after "no responders"; it raises an
    error for a stream that does not exist. ``change`` gets the reason why the message may be stored. ``encoded``
    is a subject that natsproto has made, for one message: it is not checked, and not kept with those of the user.
    """
    if check_server is not None:
        await check_server()
    pairs = header_pairs(subject, headers, args) if headers is not None or args else []
    is_guarded = False
    if recognition is not None and recognition.header is not None:
        pairs.append(recognition.header)
        is_guarded = "expected_last_subject_seq_subject" not in args
    own: HeadersLike | None = None
    has_id = False
    if pairs:
        named = dict(pairs)
        has_id, own = MSG_ID_HEADER in named, named if len(named) == len(pairs) else pairs
    clock = asyncio.get_running_loop().time
    sent_at = first_sent_at = clock()
    resending = _GUARDED if is_guarded else None
    if has_id:
        resending = Resending(RESEND_AFTER_S, may_resend=partial(api.streams.knows_id, subject, sent_at))
    left, reply, sending = timeout, None, None
    wire = api.connection._outbox.lines.encode_subject(subject) if encoded is None else encoded
    request = api.connection._request_encoded
    while True:
        try:
            reply = await request(subject, wire, payload, timeout=left, headers=own, resending=resending)
            ack = pub_ack(reply.data, f"publish to {subject!r}")
        except errors.ConnectionClosed as exc:
            raise errors.ConnectionClosed(f"publish to {subject!r}", exc.reason) from exc.reason
        except errors.NatsError as exc:  # nearly every message is acknowledged at once
            if sending is None:
                state = PublishState(
                    subject, timeout, retry_attempts, retry_wait, has_id=has_id, is_guarded=is_guarded, now=sent_at
                )
                sending = _Sending(api, state, pairs, first_sent_at, check_server, await_leader, recognition)
            error = exc
        else:
            before = api.sequences.on_ack(ack, sent_at, clock())
            if before is not None:
                await report_lost_messages(api, ack, before)
            return ack
        try:
            outcome = await sending.after(error, reply, sent_at, left)
        except errors.PublishUncertain as exc:
            if change is not None:
                change.uncertain = exc
            raise
        finally:
            del error  # it refers to this frame
        if isinstance(outcome, Stored):
            return outcome.ack
        left, sent_at = outcome, clock()


class _Sending:
    """A message that was not acknowledged at its first attempt."""

    def __init__(
        self,
        api: Api,
        state: PublishState,
        pairs: list[tuple[str, str]],
        first_sent_at: float,
        check_server: Callable[[], Awaitable[object]] | None,
        await_leader: Callable[[float], Awaitable[object]] | None,
        recognition: Recognition | None,
    ) -> None:
        self._api, self._state, self._first_sent_at = api, state, first_sent_at
        self._check_server, self._await_leader, self._recognition = check_server, await_leader, recognition
        self._expected = expectation_of(state.subject, pairs)
        self._clock = asyncio.get_running_loop().time

    @property
    def _left(self) -> float:
        return max(self._state.deadline - self._clock(), TIMER_SLACK_S)

    async def after(
        self, error: errors.NatsError, reply: Message | None, sent_at: float, timeout: float
    ) -> Stored | float:
        """Return the acknowledgement in spite of an error of an attempt, or, after the pause before the next one, the
        seconds that this may take. ``reply`` is the last one. Raises the error for the caller.
        """
        try:
            outcome = await self._after(error, reply, sent_at - TIMER_SLACK_S, timeout)
        finally:
            del error  # it refers to this frame
        if isinstance(outcome, Stored):
            return outcome
        await asyncio.sleep(outcome)
        if self._state.must_know_id:
            await self._check_id()
        return self._left

    async def _after(
        self, error: errors.NatsError, reply: Message | None, sent_at: float, timeout: float
    ) -> Stored | float:
        """Return the acknowledgement in spite of an error, or the seconds until the message is sent again."""
        if isinstance(error, (errors.RequestTimeout, errors.NoResponders)):
            self._api.on_silence()
        if is_transient(error):
            self._api.streams.unsettle(self._state.subject)
        if isinstance(error, errors.ConnectionLost) and self._state.is_resendable:
            await self._await_connection(error)
        elif isinstance(error, errors.NoResponders) and self._await_leader is not None:
            await self._await_leader(min(self._left, LEADER_CHECK_S))
        outcome = await self._after_refusal(error, reply, sent_at)
        if outcome is not None:
            return outcome
        in_a_row = self._api.on_ack_timeout(timeout) if isinstance(error, errors.RequestTimeout) else 0
        return self._state.pause_after(error, sent_at, self._clock(), in_a_row=in_a_row)

    async def _await_connection(self, error: errors.ConnectionLost) -> None:
        """Wait for the next connection, and find out whether its server may get the message."""
        await self._api.connection._outages.wait_connected(self._state.deadline)
        try:
            if self._check_server is not None:
                await self._check_server()
        except errors.UnsupportedByServer as refusal:
            raise errors.PublishUncertain(self._state.subject, f"{error}, and then {refusal}") from refusal

    async def _check_id(self) -> None:
        """Find out whether the stream still knows the id of a message that it may have stored."""
        streams, subject = self._api.streams, self._state.subject
        await streams.look_up(subject, self._left)
        if not streams.knows_id(subject, self._first_sent_at):
            self._state.forget_id()

    async def _after_refusal(
        self, error: errors.NatsError, reply: Message | None, sent_at: float
    ) -> Stored | float | None:
        """Return the acknowledgement in spite of a refusal, or the seconds until it is sent again; None for an error
        that is no uncertain refusal. Raises the refusal if it is certain after all.
        """
        state, clock, recognition = self._state, self._clock, self._recognition
        has_own_id = recognition is not None and recognition.is_empty_checked
        situation = state.situation(error, self._expected, sent_at, clock(), has_own_id=has_own_id)
        if situation is None or not isinstance(error, errors.ApiError):
            return None
        below = refused_below(error, self._expected.seq)
        outcome = await resolve(
            error,
            lambda: Sent(self._expected, below, clock() - self._first_sent_at, self._left),
            lambda waits, evidence: state.step(situation, waits, evidence, clock()),
            partial(self._await_reply, reply),
            None if recognition is None else self._look_up,
            situation.refusal,
        )
        if isinstance(outcome, Stored):
            return outcome
        if isinstance(outcome, Refused):
            raise outcome.error
        pause = state.pause_after_refusal(situation.refusal, error)
        if isinstance(outcome, Unknown) or state.deadline - clock() <= pause:
            raise refusal_error(state.subject, situation.refusal, error)
        return pause

    async def _look_up(self, sent: Sent) -> Evidence:
        assert self._recognition is not None
        evidence = await self._recognition.lookup(sent)
        if evidence.leadership < Leadership.UNDISPUTED:
            self._api.streams.unsettle(self._state.subject)
        return evidence

    async def _await_reply(self, refusal: Message | None, seconds: float) -> PubAck | None:
        """Wait for the acknowledgement of another server than the one that refused."""
        if refusal is None:
            return None
        further = await self._api.connection._further_reply(refusal, min(seconds, self._left))
        return acknowledgement_of(further)


def acknowledgement_of(reply: Message | None) -> PubAck | None:
    """Return the acknowledgement in another reply; None for none, and for a refusal."""
    if reply is None or reply.is_no_responders:
        return None
    try:
        return pub_ack(reply.data)
    except errors.NatsError:
        return None


async def report_lost_messages(api: Api, ack: PubAck, before: AckedSequence) -> None:
    """Report that a stream went back behind an acknowledged sequence: an event, and StreamWentBack for the publisher.

    Does nothing when the stream was created after that acknowledgement, or when that cannot be found out.
    """
    try:
        operation = f"info of stream {ack.stream!r}"
        info = await api.call_for(StreamInfo, f"STREAM.INFO.{ack.stream}", operation=operation, timeout=INFO_TIMEOUT_S)
    except errors.NatsError:
        return
    age = (info.ts - info.created).total_seconds()
    if age > asyncio.get_running_loop().time() - before.acked_at:
        api.connection._event_bus.emit(StreamLostMessages(stream=ack.stream, first_lost=ack.seq, last_lost=before.seq))
        raise errors.StreamWentBack(ack.stream, ack.seq, before.seq)
