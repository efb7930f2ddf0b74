"""Atomic batches: messages that a stream stores all together, or not at all (ADR-50).

Owns the messages of one batch and sends them to the server. Rules:

1. Nothing of a batch is stored before its commit: after any failure until then the whole batch is sent again.
2. A commit without an answer may have been made. The batch is looked up; if it is not found, the commit is sent again:
   a server that has made it does not know the batch any more and refuses the copy.
3. A commit that a server refuses as incomplete, or for an expectation, may have been made by another one: ``outcome``
   decides. If it was not made, the batch is sent again under another id.
4. Where the stream is known, or has confirmed a message, "no responders" is an election, and waited for.
5. A server holds 50 open batches of a stream. Of one context 20 are open at a time: the others wait for their turn.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Unpack

from natsproto import errors
from natsproto._core.deadline import Deadline
from natsproto._core.engine.engine import State
from natsproto._core.instrumentation import UNREPORTED
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._publish.headers import MessageArgs, as_dict, header_pairs
from natsproto.jetstream._publish.outcome import (
    Change,
    Expectation,
    Refused,
    Situation,
    Stored,
    UncertainRefusal,
    expectation_of,
    is_uncertain_commit,
    next_step,
    refusal_error,
    uncertain_refusal,
)
from natsproto.jetstream._publish.publish import LEADER_CHECK_S, Lookup, Sent, acknowledgement_of, resolve
from natsproto.jetstream._publish.retry_policy import RESEND_AFTER_S, UNTIL_TIMEOUT, RetryCounter
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.info import PubAck, pub_ack
from natsproto.protocol.frames import Message, Payload, as_bytes
from natsproto.protocol.headers import HeadersLike, encode_headers
from natsproto.protocol.server_errors import SubscriptionDenied

ATOMIC_API_LEVEL = 2
"""The API level of the first servers with atomic batches."""

ATOMIC_BATCH = RequiredFeature("atomic batch", "2.12", ATOMIC_API_LEVEL)

MAX_ATOMIC_MESSAGES = 1000
"""Messages in a batch: the default limit of the server."""

COMMIT_PATIENCE_S = 2.0
"""Seconds without an answer to a commit after which the batch is looked up; the next time after twice as long."""
MAX_BATCH_RESTARTS = 3
"""How often a batch is sent again after a leader has lost messages of it."""

_RESTARTABLE_CODES = frozenset({ErrCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH, ErrCode.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT})
"""Errors after which the batch can be sent again: messages were lost, the leader changed, or more than 10 s passed; or
the server is older than 2.14 and has no commit without a message.
"""


_HEADERS = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n\r\n"
_LONGEST_ID, _LONGEST_REPLY = b"_" * 22, b"_" * 96


class BatchMessage(NamedTuple):
    """A message that a batch can take, with its headers as pairs."""

    subject: str
    wire_subject: bytes
    payload: bytes
    pairs: list[tuple[str, str]]
    head: bytes
    """The encoded headers without their end."""


class AtomicBatch:
    """Messages to subjects of one stream that are stored atomically. Created by ``js.atomic_batch()``; use it with
    ``async with``.

    The end of the block commits; an exception in the block discards the batch, and nothing is stored. ``ack`` is the
    acknowledgement afterwards.

    The last message is not sent until the next one is added, since it may be the one that commits.
    """

    def __init__(
        self,
        api: Api,
        *,
        timeout: float,
        max_messages: int,
        retry_attempts: int,
        retry_wait: float,
        lookup_of: Callable[[str, str], Lookup],
    ) -> None:
        self._api = api
        self._connection = connection = api.connection
        self._reports = UNREPORTED if connection._instrumentation is None else connection._instrumentation.batch()
        self._timeout, self._max = timeout, max_messages
        self._longest_headers = _HEADERS % (_LONGEST_ID, max_messages + 1) + b"Nats-Batch-Commit: 1\r\n"
        self._retry_attempts, self._retry_wait = retry_attempts, retry_wait
        self._lookup_of, self._await_leader = lookup_of, api.await_leader
        self._is_confirmed = False  # a server has confirmed a message
        self._leave_turn: Callable[[], object] | None = None  # while a server may hold it
        self._messages: list[BatchMessage] = []
        self._id = ""
        self._sent = 0  # the number of them that this server-side batch has
        self._ended = False
        self._ack: PubAck | None = None

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the batch: ``seq`` is the sequence of the last message, ``count`` the number of
        messages.

        LocalProtocolError for a batch that was not committed, or has no messages.
        """
        if self._ack is None:
            why = "it has no messages" if self._ended and not self._messages else "it was not committed"
            raise errors.LocalProtocolError(f"a batch is acknowledged as a whole when it is committed: {why}")
        return self._ack

    def __len__(self) -> int:
        return len(self._messages)

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        **args: Unpack[MessageArgs],
    ) -> None:
        """Add a message. The arguments are those of ``JetStream.publish``; expectations are checked at the commit,
        against the stream at that time.

        Only the first message may have ``expected_last_seq``, none ``expected_last_msg_id`` (ADR-50): ConfigError.
        BatchRefused, NoStream and every other ApiError when the server rejects the batch at once. LocalProtocolError
        when it is full or was committed. After cancelling, the message may be missing in the batch; discard the batch
        then.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        with self._reports.adding(subject, payload, headers) as adding:
            await self._add(subject, payload, adding.headers, args)

    async def _add(self, subject: str, payload: Payload, headers: HeadersLike | None, args: MessageArgs) -> None:
        await self._append(self._checked(subject, payload, headers, args))

    def _checked(self, subject: str, payload: Payload, headers: HeadersLike | None, args: MessageArgs) -> BatchMessage:
        """Return the message as it can be appended, or raise the error of one that cannot be sent."""
        self._check_open()
        if (msg_id := args.get("expected_last_msg_id")) is not None:
            raise errors.ConfigError("expected_last_msg_id", msg_id, "cannot be used in a batch")
        if (seq := args.get("expected_last_seq")) is not None and self._messages:
            raise errors.ConfigError("expected_last_seq", seq, "belongs to the first message of a batch")
        payload, pairs, lines = as_bytes(payload), header_pairs(subject, headers, args), self._connection._outbox.lines
        head, wire = encode_headers(as_dict(pairs))[:-2], lines.encode_subject(subject)
        lines.message_line(wire, _LONGEST_REPLY, head + self._longest_headers, len(payload))
        return BatchMessage(subject, wire, payload, pairs, head)

    async def _append(self, message: BatchMessage) -> None:
        if len(self._messages) >= self._max:
            raise errors.LocalProtocolError(
                f"an atomic batch holds {self._max} messages at most: commit it and start another"
            )
        self._messages.append(message)
        if len(self._messages) > 1:
            await self._send_up_to(len(self._messages) - 1)

    async def flush(self) -> None:
        """Send all messages so far, including the last one, and wait until the server has them.

        The server keeps a batch for ten seconds after its last message. Raises the errors of ``publish``.
        """
        self._check_open()
        if self._sent < len(self._messages):
            await self._send_up_to(len(self._messages), confirm=True)

    async def commit(self) -> PubAck | None:
        """Commit the batch and return the acknowledgement; None when it has no messages.

        WrongLastSequence, BatchRefused and every other ApiError when the server rejects it: nothing is stored then, and
        the batch has ended. NoStream; PublishUncertain when the connection was lost or ``timeout`` seconds passed after
        the commit was sent: either all of it is stored, or nothing. The same holds after cancelling.
        """
        self._check_open()
        self._ended = True
        if not self._messages:
            return None
        try:
            with self._reports.sending() as sending:
                self._ack = await self._commit()
                sending.end(self._ack)
        finally:
            self._end_turn()
        return self._ack

    async def _commit(self) -> PubAck:
        deadline = asyncio.get_running_loop().time() + self._timeout
        retry_counter = self._retry_counter()
        restarts = 0
        while True:
            pause: float | None = 0.0
            try:
                await self._send_up_to(max(self._sent, len(self._messages) - 1))
                return await self._send_commit(deadline)
            except errors.ConnectionLost as exc:  # before the commit was sent
                failure: errors.NatsError = exc
                await self._connection._outages.wait_connected(deadline)
            except (errors.NoResponders, errors.ApiError) as exc:
                failure = errors.NoStream(self._messages[0].subject) if isinstance(exc, errors.NoResponders) else exc
                if (
                    isinstance(exc, errors.ApiError)
                    and exc.err_code in _RESTARTABLE_CODES
                    and restarts < MAX_BATCH_RESTARTS
                ):
                    restarts += 1
                else:
                    pause = await self._pause_after(exc, retry_counter, deadline)
            if pause is None or asyncio.get_running_loop().time() + pause >= deadline:
                raise failure
            self._restart()
            await asyncio.sleep(pause)

    def _retry_counter(self) -> RetryCounter:
        exists = self._is_confirmed or self._api.streams.of_subject(self._messages[0].subject) is not None
        return RetryCounter(UNTIL_TIMEOUT if exists else self._retry_attempts, self._retry_wait)

    async def _pause_after(self, error: errors.NatsError, retry_counter: RetryCounter, deadline: float) -> float | None:
        """Return the seconds until the next attempt; None when there is none. Raises for a stream that is gone."""
        if isinstance(error, errors.NoResponders):
            left = deadline - asyncio.get_running_loop().time()
            await self._await_leader(self._messages[0].subject, max(TIMER_SLACK_S, min(left, LEADER_CHECK_S)))
        return retry_counter.pause_after(error)

    async def __aenter__(self) -> AtomicBatch:
        ATOMIC_BATCH.check(self._connection.server_info)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        self._connection._check_loop()
        if exc is None:
            await self.commit()
        else:
            self._ended = True
            self._abandon()
            self._end_turn()

    # ---------------------------------------------------------------- internals

    def _check_open(self) -> None:
        self._connection._check_loop()
        if self._ended:
            raise errors.LocalProtocolError("the batch is over: it was committed or abandoned")

    async def _wait_for_server(self) -> None:
        """Wait for the connection that gets the next message: it may be to another server than before."""
        if self._connection.state is State.RECONNECTING:
            await self._connection._outages.wait_connected(asyncio.get_running_loop().time() + self._timeout)
            if self._connection.state is State.RECONNECTING:
                raise self._connection._outages.timeout_error("atomic batch", self._timeout, sent=False)
        ATOMIC_BATCH.check(self._connection.server_info)  # others would store each message separately

    def _headers(self, sequence: int, commit: str = "") -> list[tuple[str, str]]:
        self._id = self._id or self._connection._runtime.new_id()
        found = [("Nats-Batch-Id", self._id), ("Nats-Batch-Sequence", str(sequence))]
        return [*found, ("Nats-Batch-Commit", commit)] if commit else found

    def _restart(self) -> None:
        """Discard what was sent so far and start another batch on the server."""
        self._id = ""
        self._sent = 0

    async def _send_up_to(self, count: int, *, confirm: bool = False) -> None:
        """Send messages until ``count`` were sent; ``confirm`` waits until the server has the last of them."""
        outbox, lines = self._connection._outbox, self._connection._outbox.lines
        while self._sent < count:
            sequence = self._sent + 1
            message = self._messages[self._sent]
            await self._wait_for_server()
            if sequence == 1 or (confirm and sequence == count):
                try:
                    await self._send_and_wait(message, sequence)
                except errors.ConnectionLost:
                    if self._ended:
                        raise
                    self._restart()  # nothing is stored yet: all are sent again with the next message
                    return
            else:
                if outbox.must_wait:
                    await outbox.wait_writable(Deadline(self._timeout), "atomic batch")
                block = message.head + _HEADERS % (self._id.encode(), sequence)
                outbox.put(lines.message_line(message.wire_subject, None, block, len(message.payload)), message.payload)
            self._sent = sequence

    async def _send_and_wait(self, message: BatchMessage, sequence: int) -> None:
        """Send one message and wait for the server's confirmation. A leader that steps down drops messages without a
        reply: the first message is then sent to the next leader, in another batch.
        """
        if self._leave_turn is None:
            await self._take_turn(message.subject)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        request, encoded = (
            self._connection._request_encoded,
            self._connection._outbox.lines.encode_subject(message.subject),
        )
        retry_counter = self._retry_counter()
        patience = RESEND_AFTER_S if sequence == 1 else self._timeout
        while True:
            failure: errors.NatsError
            pause: float | None = 0.0
            pairs = [*message.pairs, *self._headers(sequence)]
            wait = min(patience, max(TIMER_SLACK_S, deadline - loop.time()))
            try:
                reply = await request(message.subject, encoded, message.payload, headers=pairs, timeout=wait)
                if not reply.data:
                    self._is_confirmed = True
                    return
                raise _stored_alone_error(pub_ack(reply.data, f"atomic batch to {message.subject!r}"))
            except errors.RequestTimeout as exc:
                failure = self._connection._outages.timeout_error(exc.operation, self._timeout, sent=exc.sent)
                if sequence == 1:
                    self._restart()
                patience *= 2
            except (errors.NoResponders, errors.ApiError) as exc:
                failure = errors.NoStream(message.subject) if isinstance(exc, errors.NoResponders) else exc
                pause = await self._pause_after(exc, retry_counter, deadline)
            if pause is None or loop.time() + pause >= deadline - TIMER_SLACK_S:
                raise failure
            await asyncio.sleep(pause)

    async def _take_turn(self, subject: str) -> None:
        """Wait until fewer than MAX_OPEN_BATCHES of the stream are open in this context.

        RequestTimeout if none of them ends for ``timeout`` seconds.
        """
        turns = self._api.streams.batch_turns(subject)
        if not await turns.take(self._timeout):
            operation = f"atomic batch to {subject!r}, behind other open batches of the stream"
            raise errors.RequestTimeout(operation, self._timeout, sent=False)
        self._leave_turn = weakref.finalize(self, turns.release)

    def _end_turn(self) -> None:
        leave, self._leave_turn = self._leave_turn, None
        if leave is not None:
            leave()

    async def _send_commit(self, deadline: float) -> PubAck:
        """Commit with the last message, or, if that was sent already, with a separate command (2.14)."""
        count = len(self._messages)
        message = self._messages[-1]
        await self._wait_for_server()
        if self._sent < count:
            payload, pairs = message.payload, [*message.pairs, *self._headers(count, "1")]
        else:
            payload, pairs = b"", self._headers(count + 1, "eob")
        loop, request = asyncio.get_running_loop(), self._connection._request_encoded
        encoded = self._connection._outbox.lines.encode_subject(message.subject)
        sent_at, retry_counter = loop.time(), self._retry_counter()
        patience = min(COMMIT_PATIENCE_S, self._timeout / 2)  # the rest is for the lookup
        with Change(message.subject) as change:
            while True:
                wait = min(patience, max(TIMER_SLACK_S, deadline - loop.time()))
                try:
                    reply = await request(message.subject, encoded, payload, headers=pairs, timeout=wait)
                    ack = pub_ack(reply.data, f"atomic batch of {count} messages to {self._messages[0].subject!r}")
                    if not ack.batch:
                        raise _stored_alone_error(ack)
                    return ack
                except (errors.ConnectionLost, errors.RequestTimeout, SubscriptionDenied) as exc:
                    if isinstance(exc, errors.RequestTimeout) and not exc.sent and change.uncertain is None:
                        raise
                    change.uncertain = uncertain = errors.PublishUncertain(
                        message.subject, f"commit of a batch of {count}: {exc}"
                    )
                    ack_found = await self._find(sent_at, deadline)
                    if ack_found is not None:
                        return ack_found
                    if isinstance(exc, SubscriptionDenied) or deadline - loop.time() <= TIMER_SLACK_S:
                        raise uncertain from exc
                    patience *= 2
                    await self._wait_for_server()
                except errors.NoResponders as exc:
                    pause = await self._pause_after(exc, retry_counter, deadline)
                    if change.uncertain is None or pause is None or loop.time() + pause >= deadline:
                        raise
                    await asyncio.sleep(pause)
                except errors.ApiError as exc:
                    expected = max(expectation_of(one.subject, one.pairs).seq for one in self._messages)
                    if change.uncertain is None and not is_uncertain_commit(exc, expected):
                        raise
                    is_stale = uncertain_refusal(exc, expected) is UncertainRefusal.STALE
                    refusal = UncertainRefusal.STALE if is_stale else UncertainRefusal.COMMIT
                    return await self._resolve(refusal, reply, exc, sent_at, change)

    async def _find(self, sent_at: float, deadline: float) -> PubAck | None:
        """Return where the batch is after a commit without an answer; None if it is not found."""
        loop, last = asyncio.get_running_loop(), self._messages[-1]
        await self._connection._outages.wait_connected(deadline)
        if not self._connection.is_connected:
            return None
        sent = Sent(Expectation(0, ""), None, loop.time() - sent_at, max(TIMER_SLACK_S, deadline - loop.time()))
        evidence = await self._lookup_of(last.subject, self._id)(sent)
        return None if evidence.ack is None else evidence.ack.replace(batch=self._id, count=len(self._messages))

    async def _resolve(
        self, refusal: UncertainRefusal, refused: Message, error: errors.ApiError, sent_at: float, change: Change
    ) -> PubAck:
        """Return the acknowledgement of another server, or that of a lookup. Raises the refusal if it is certain after
        all, and PublishUncertain if nothing decides.
        """
        subject, clock = self._messages[-1].subject, asyncio.get_running_loop().time

        async def await_reply(seconds: float) -> PubAck | None:
            return acknowledgement_of(await self._connection._further_reply(refused, min(seconds, self._timeout)))

        outcome = await resolve(
            error,
            lambda: Sent(Expectation(0, ""), None, clock() - sent_at, self._timeout),
            partial(next_step, Situation(refusal, is_answered=change.uncertain is None)),
            await_reply,
            self._lookup_of(subject, self._id),
            refusal,
        )
        if isinstance(outcome, Stored):
            return outcome.ack.replace(batch=self._id, count=len(self._messages))
        if isinstance(outcome, Refused):
            change.uncertain = None
            raise outcome.error
        raise refusal_error(subject, refusal, error)

    def _abandon(self) -> None:
        """Make the server discard the batch now instead of after ten seconds: a gap in the sequence ends it."""
        if not self._sent or not self._connection.is_connected:
            return
        try:
            ATOMIC_BATCH.check(self._connection.server_info)
            self._connection._outbox.put_message(self._messages[0].subject, b"", None, self._headers(self._sent + 2))
        except errors.NatsError:
            pass  # the server discards it in ten seconds


def _stored_alone_error(ack: PubAck) -> errors.UnsupportedByServer:
    """Return the error for a stream that has acknowledged a message of a batch like any other message."""
    reason = f"stream {ack.stream!r} stored the message alone (nats-server 2.12 is needed)"
    return errors.UnsupportedByServer("atomic batch", reason)
