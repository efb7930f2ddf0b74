"""Publishing to streams through a window of unacknowledged messages, each with its own future.

``PublishWindow`` owns the messages in flight. It decides which errors are retried and which messages are sent again
after a reconnect or a timeout; the rules are in ``retry_policy``. It gets the headers of a message as bytes (see
``headers``).

Messages are numbered, and the number and random bits are the last token of the reply subject. No number is used twice,
so a late or duplicate acknowledgement is never taken for that of another message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Deadline
from natsproto._core.notifier import Notifier
from natsproto._core.replies.pending_replies import PendingReplies, number_of
from natsproto._core.socket.wire import RANDOM_BITS
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.sequence_log import AckedSequence
from natsproto.jetstream._api.unexpected import fail_on_unexpected, wrap_unexpected
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.failures import Failures
from natsproto.jetstream._publish.headers import AutoMsgIds, has_msg_id
from natsproto.jetstream._publish.outcome import (
    FURTHER_REPLY_S,
    Decision,
    Evidence,
    Refused,
    Resend,
    Situation,
    Step,
    Stored,
    UncertainRefusal,
    expectation_of,
    next_step,
    refusal_error,
    uncertain_refusal,
)
from natsproto.jetstream._publish.publish import Lookup, Sent, refused_below, report_lost_messages, resolve
from natsproto.jetstream._publish.retry_policy import (
    FORGOTTEN_ID,
    RESEND_AFTER_S,
    RetryCounter,
    is_rejected_for_now,
    uncertain_error,
)
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.info import PLAIN_ACK, PubAck, pub_ack
from natsproto.protocol.commands import arguments_length
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import parse_headers

_MAX_REPLY = b"9" * 46
"""The longest text after the inbox: a token of 24 digits, and two lengths of ten with their spaces."""
_is_plain = PLAIN_ACK.fullmatch


COMPARE_INTERVAL_S = 0.25
"""Seconds between two comparisons of a sequence with those acknowledged before."""


class PublisherOptions(NamedTuple):
    """The limits of a window; ``timeout`` and ``retry_wait`` in seconds."""

    max_pending: int
    max_pending_bytes: int
    timeout: float
    retry_attempts: int | None
    retry_wait: float
    api: Api | None = None
    """For what the context knows of its streams; None: sequences are not compared, and ids are known for ever."""
    lookup_of: Callable[[str, bytes], Lookup] | None = None
    """Returns the lookup of a message to this subject with this payload."""


@dataclass(slots=True)
class RetryState:
    """The failures of a message that is not acknowledged yet. Few messages have a RetryState."""

    retry_counter: RetryCounter
    """Its temporary failures."""
    error: errors.NatsError | None = None
    """The last error."""
    refused_since_check: bool = False
    """It was rejected since the last check for missing replies."""
    stale_resends: int = 0
    """How often it was refused by a server that did not know the expected sequence."""
    maybe_stored: bool = False
    """An earlier copy may be stored."""
    is_answered: bool = True
    """No copy is without an answer."""
    required: RequiredFeature | None = None
    """A server that gets the message must know this."""


class PublishWindow:
    """The unacknowledged messages of a publisher, and the ReplyHandler for their replies.

    A message is in ``_pending`` under its token until it is settled, in the order of publishing. It is also in
    ``_waiting`` until it is sent, for the first time or again. While a message waits, new messages wait after it, which
    keeps the order; waiting messages are sent when there is a connection and no pause.
    """

    def __init__(self, connection: Connection, limits: PublisherOptions, auto_ids: AutoMsgIds | None = None) -> None:
        self._connection = connection
        self._auto_ids = auto_ids
        self._outbox, self._control_lines = connection._outbox, connection._outbox.lines
        self._limits = limits
        self.replies: PendingReplies[AckFuture]
        """The futures of the messages that are not acknowledged, and the count of all."""
        self.replies = PendingReplies(
            f"{connection.new_inbox()}.", self._check_time, self._on_due, connection._runtime.random_bits()
        )
        self.subject = self.replies.subject
        self._pending = self.replies.pending
        self.nbytes = 0
        """Bytes of payload that are not acknowledged."""
        self.full = False
        """True if room() must be awaited before the next message."""
        self._waiting: dict[str, None] = {}
        self._retry_states: dict[str, RetryState] = {}
        self._failures = Failures()
        self._sending = False  # new messages go out at once: nothing waits, and there is a connection
        self._pause: asyncio.TimerHandle | None = None  # while nothing is sent
        self._last_acked: AckFuture | None = None  # of the last chunk
        self._compared_at = 0.0  # when its sequence was last compared
        self._report: asyncio.Task[None] | None = None  # of messages that the stream has lost
        self._resolving: dict[str, asyncio.Task[None]] = {}  # after refusals that are not certain
        self._changed = Notifier()
        self._unsubscribe: Callable[[], None] | None = None

    def open(self) -> None:
        """Start to accept messages. ConnectionClosed when the client is closed."""
        self._unsubscribe = self._connection._add_reply_handler(self)
        self._time = asyncio.get_running_loop().time
        self._failures.fatal_error = None

    @property
    def acknowledged(self) -> int:
        """Messages that a stream has acknowledged."""
        return self.replies.count - len(self._pending) - self._failures.count

    @property
    def expects_replies(self) -> bool:
        """True while messages are not acknowledged."""
        return bool(self._pending)

    # ------------------------------------------------------------ adding messages

    async def wait_for_room(self) -> None:
        """Wait until the window accepts another message. Cancelling changes nothing.

        PublishFailed when as many messages as the window holds have failed and none of their futures was read.
        """
        if self._outbox.must_wait:
            await self._outbox.wait_writable(Deadline(self._limits.timeout))
        self._wake_waiters()  # acknowledgements may have arrived without a waiter
        while self.full and self._failures.fatal_error is None:
            if self._has_too_many_failures:
                self.raise_failures()
            else:
                await self._changed.wait()

    async def flush(self) -> None:
        """Wait until every message accepted so far is settled. Cancelling changes nothing."""
        last = self.replies.count
        while self._pending and number_of(next(iter(self._pending))) <= last:
            await self._changed.wait()
        if self._report is not None:
            await asyncio.wait((self._report,))

    def raise_failures(self) -> None:
        """Raise PublishFailed for failures that were not seen, once; then the unexpected error that has ended it."""
        failures = self._failures.take()
        self._wake_waiters()
        if failures:
            raise errors.PublishFailed(failures) from failures[0].error
        if (went_back := self._failures.went_back) is not None:
            self._failures.went_back = None
            raise went_back
        if self._failures.unexpected_error is not None:
            raise self._failures.unexpected_error.with_traceback(None)

    def close(self) -> None:
        """Accept no more messages, and stop waiting for replies."""
        self._finish(
            errors.LocalProtocolError("the publisher has ended: its block was left"), "the publisher was given up"
        )
        if self._unsubscribe is not None:
            self._unsubscribe()

    def require_feature(self, required: RequiredFeature) -> None:
        """Do not send the last message again, or later, to a server that would ignore this feature."""
        token = next(reversed(self._pending))
        self._retry_state(token, self._pending[token]).required = required

    def add(self, subject: str, payload: bytes, block: bytes | None = None) -> AckFuture:
        """Accept a message, send it if that is possible now, and return its future.

        Raises the error that ended the publisher, and the error of a message that cannot be sent.
        """
        if not self._sending:
            self._check_open()
        replies = self.replies
        number = replies.count + 1
        token = str(number << RANDOM_BITS | replies.random_bits())
        start = self._control_lines.pub_prefixes.get(subject) or self._cache_start(subject)
        size = len(payload)
        if block is None:
            total = size
            head = b"%b%b%b %d\r\n" % (start, replies.prefix, token.encode(), size)
        else:
            total = len(block) + size
            head = b"H%b%b%b %d %d\r\n%b" % (start, replies.prefix, token.encode(), len(block), total, block)
        if total > self._control_lines.max_payload:
            self._control_lines.check_size(total)
        if self._sending:
            self._outbox.put(head, payload)
        else:
            self._waiting[token] = None
        self._pending[token] = future = AckFuture()
        future.subject, future._outcome, future._head, future._payload = subject, None, head, payload
        future._deadline = deadline = self._time() + self._limits.timeout
        if deadline < replies.next_deadline:
            replies.set_next_deadline(self._check_time(future))
        replies.count = number
        self.nbytes = nbytes = self.nbytes + size
        if nbytes >= self._limits.max_pending_bytes or len(self._pending) >= self._limits.max_pending:
            self.full = True
        return future

    def _check_open(self) -> None:
        """Raise the error that has ended it."""
        if self._failures.fatal_error is not None:
            raise self._failures.fatal_error.with_traceback(None)
        self._sending = self._can_send and not self._waiting

    def _cache_start(self, subject: str) -> bytes:
        """Validate a subject and the length of its control line."""
        lines = self._control_lines
        lines.message_line(lines.encode_subject(subject), self.replies.prefix + _MAX_REPLY, None, 0)
        return lines.pub_prefix(subject)

    # ------------------------------------------------------------ callbacks of the engine

    def on_message(self, message: Message) -> None:
        """A reply came: nearly always an acknowledgement, which is parsed at its first use."""
        token = message.subject[len(self.replies.prefix) :]
        future = self._pending.get(token)
        if future is None:
            return  # it is settled: an acknowledgement that comes late, or of another copy
        try:
            if _is_plain(message.data) and (self._auto_ids is None or not message.data.endswith(b"true}")):
                self._settle(token, future, message.data)
                self._last_acked = future
            elif message.is_no_responders:
                counter = self._retry_state(token, future).retry_counter
                self._on_refused(token, future, counter.no_stream_error(future.subject, self._limits.timeout))
            else:
                self._read_reply(token, future, message.data)
        except Exception as exc:
            self.on_unexpected_error(exc)

    @fail_on_unexpected
    def on_replies_handled(self) -> None:
        """All replies of one chunk were handled."""
        if self._last_acked is not None and self._limits.api is not None:
            self._compare_sequence(self._last_acked, self._limits.api)
        if self._changed:
            self._wake_waiters()

    def _compare_sequence(self, acked: AckFuture, api: Api) -> None:
        """Notice a stream that went back; a few times a second, as it takes as long as another message."""
        self._last_acked, now = None, self._time()
        if now < self._compared_at + COMPARE_INTERVAL_S:
            return
        self._compared_at = now
        ack = acked.result()
        before = api.sequences.on_ack(ack, acked._deadline - self._limits.timeout, now)
        if before is not None:
            report = self._report_lost_messages(api, ack, before)
            self._report = asyncio.get_running_loop().create_task(report, name="natsproto lost messages")

    async def _report_lost_messages(self, api: Api, ack: PubAck, before: AckedSequence) -> None:
        try:
            await report_lost_messages(api, ack, before)
        except errors.StreamWentBack as exc:
            self._failures.went_back = exc

    @fail_on_unexpected
    def on_disconnect(self, error: errors.ConnectionLost) -> None:
        """The connection was lost: messages with an id are sent again, the others fail unless they were not written."""
        self._sending = False
        unsent = set(self._outbox.take_back(self.replies.prefix))
        for token, future in list(self._pending.items()):
            if future._head in unsent or token in self._waiting:
                continue
            if has_msg_id(future._head):
                self._note_silence(token, future)
            else:
                self._fail(token, future, uncertain_error(future.subject, error, self._limits.timeout))
        self._waiting = dict.fromkeys(self._pending)
        self._wake_waiters()

    @fail_on_unexpected
    def on_reconnect(self) -> None:
        """There is a new connection, perhaps to a server with other limits."""
        self._send_waiting()
        self._wake_waiters()

    @fail_on_unexpected
    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects messages on a subject."""
        for token, future in list(self._pending.items()):
            if future.subject == error.subject:
                self._fail(token, future, error)
        self._wake_waiters()

    @fail_on_unexpected
    def on_end(self, error: errors.NatsError) -> None:
        """No more replies will come."""
        self._finish(error, str(error))

    def on_unexpected_error(self, bug: Exception) -> None:
        """An unexpected error ends the publisher."""
        self._failures.unexpected_error = error = wrap_unexpected("publishing", bug)
        self._finish(error, str(error))

    # ------------------------------------------------------------ outcomes

    def _read_reply(self, token: str, future: AckFuture, payload: bytes) -> None:
        """Handle a reply that is not a plain acknowledgement."""
        try:
            ack = pub_ack(payload, f"publish to {future.subject!r}")
        except errors.NatsError as exc:
            if is_rejected_for_now(exc):
                self._on_refused(token, future, exc)
            elif isinstance(exc, errors.WrongLastSequence):
                self._on_wrong_sequence(token, future, exc)
            else:
                self._fail(token, future, exc)
        else:
            if ack.duplicate and self._is_id_taken(token, future):
                reason = (
                    f"stream {ack.stream!r} has its automatic message id already, as sequence {ack.seq}, although the "
                    "message was sent once: another client may have used the id"
                )
                self._fail(token, future, errors.PublishUncertain(future.subject, reason))
            else:
                self._settle(token, future, payload)

    def _is_id_taken(self, token: str, future: AckFuture) -> bool:
        """True if the message has an automatic id and was sent once: it is no duplicate of its own."""
        retry = self._retry_states.get(token)
        is_sent_once = retry is None or not (retry.maybe_stored or retry.error is not None)
        return is_sent_once and self._auto_ids is not None and self._auto_ids.is_in(future._head)

    def _settle(self, token: str, future: AckFuture, outcome: bytes | PubAck | errors.NatsError) -> None:
        del self._pending[token]
        self.nbytes -= len(future._payload)
        future._head = future._payload = b""
        future._settle(outcome)
        if self._waiting:
            self._waiting.pop(token, None)
        if self._retry_states:
            self._retry_states.pop(token, None)

    def _fail(self, token: str, future: AckFuture, error: errors.NatsError) -> None:
        retry = self._retry_states.get(token)
        if retry is not None and retry.maybe_stored and not isinstance(error, errors.PublishUncertain):
            reason = f"it was sent and not answered, and then: {error}"
            error = errors.PublishUncertain(future.subject, reason)
        self._failures.add(number_of(token), future, len(future._payload))
        self.full = self.full or self._has_too_many_failures
        self._settle(token, future, error)

    def _on_wrong_sequence(self, token: str, future: AckFuture, error: errors.WrongLastSequence) -> None:
        """The message was refused for its expectation; see ``outcome`` for the refusals that are not certain."""
        retry, has_id = self._retry_states.get(token), has_msg_id(future._head)
        block = future._head.partition(b"\r\n")[2]
        expected = expectation_of(future.subject, parse_headers(block).pairs())
        may_be_stored = retry is not None and retry.maybe_stored and not has_id
        refusal = uncertain_refusal(error, expected.seq, may_be_stored=may_be_stored)
        if refusal is None:
            self._fail(token, future, error)
        elif token not in self._resolving:
            situation = Situation(refusal, has_id, expected.subject in (future.subject, ""))
            if retry is not None:
                situation = situation._replace(is_answered=retry.is_answered, stale_resends=retry.stale_resends)
            timeout, sent_at = self._limits.timeout, future._deadline - self._limits.timeout
            below = refused_below(error, expected.seq)
            resolving = self._resolve(
                *(token, future, situation, error), lambda: Sent(expected, below, self._time() - sent_at, timeout)
            )
            self._resolving[token] = task = asyncio.get_running_loop().create_task(resolving, name="natsproto refusal")
            task.add_done_callback(lambda _: self._resolving.pop(token, None))

    async def _resolve(
        self, token: str, future: AckFuture, situation: Situation, error: errors.ApiError, sent: Callable[[], Sent]
    ) -> None:
        """Find the outcome of a message, which another reply may settle meanwhile."""
        refusal, lookup_of = situation.refusal, self._limits.lookup_of

        def step_of(waits: int, evidence: Evidence | None) -> Step:
            is_pending = token in self._pending
            return next_step(situation, waits, evidence, FURTHER_REPLY_S) if is_pending else Decision.UNKNOWN

        try:
            lookup = None if lookup_of is None else lookup_of(future.subject, future._payload)
            outcome = await resolve(error, sent, step_of, asyncio.sleep, lookup, refusal)
            if token in self._pending:
                retry = self._retry_state(token, future)
                if isinstance(outcome, Refused):
                    retry.maybe_stored = False
                    self._fail(token, future, error)
                else:
                    retry.maybe_stored = True
                    retry.stale_resends += refusal is UncertainRefusal.STALE
                    if isinstance(outcome, Resend):
                        self._waiting[token] = None
                        self._send_waiting()
                    elif isinstance(outcome, Stored):
                        self._settle(token, future, outcome.ack)
                    else:
                        self._fail(token, future, refusal_error(future.subject, refusal, error))
        except Exception as exc:
            self.on_unexpected_error(exc)
        self._wake_waiters()

    def _on_refused(self, token: str, future: AckFuture, error: errors.NatsError) -> None:
        """The message was not stored this time, and a retry may succeed."""
        retry = self._retry_state(token, future)
        retry.error, retry.refused_since_check = error, True
        pause = retry.retry_counter.pause_after(error)
        if pause is None:
            if not self.acknowledged:
                self._fail(token, future, error)
                return
            # If the stream has replied before, there is an election: wait for its end, up to the timeout.
            pause = self._limits.retry_wait
        self._waiting[token] = None
        self._pause_sending(pause)

    def _retry_state(self, token: str, future: AckFuture) -> RetryState:
        state = self._retry_states.get(token)
        if state is None:
            limits, has_id = self._limits, has_msg_id(future._head)
            counter = RetryCounter(limits.retry_attempts, limits.retry_wait, has_id=has_id)
            state = self._retry_states[token] = RetryState(counter)
        return state

    # ------------------------------------------------------------ sending again

    def _pause_sending(self, pause: float) -> None:
        """Send nothing for this time; a pause in progress is not extended."""
        self._sending = False
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(pause, self._end_pause)

    @fail_on_unexpected
    def _end_pause(self) -> None:
        self._pause = None
        self._send_waiting()
        self._wake_waiters()

    def _send_waiting(self) -> None:
        """Send the waiting messages in order; afterwards new messages are sent at once."""
        if not self._can_send:
            return
        check, limit = self._control_lines.check_size, self._control_lines.line_limit
        server = self._connection.server_info
        for token in sorted(self._waiting, key=int):
            future, retry = self._pending[token], self._retry_states.get(token)
            head, payload = future._head, future._payload
            if retry is not None and retry.maybe_stored and has_msg_id(head) and not self._is_id_known(future):
                if not self._is_stream_known(future):  # it is looked up
                    self._pause_sending(retry.retry_counter.busy_pause())
                    return
                self._fail(token, future, errors.PublishUncertain(future.subject, FORGOTTEN_ID))
                continue
            try:
                if retry is not None and retry.required is not None:
                    retry.required.check(server)
                check(len(head) - head.index(b"\r\n") - 2 + len(payload))  # the server may have other limits now
                limit.check(arguments_length(head), future.subject)
                self._outbox.put(head, payload)
            except errors.OutboxFull:
                self._pause_sending(self._limits.retry_wait / 8)
                return
            except errors.NatsError as exc:  # too big for this server or not heeded by it, or the client is closed
                self._fail(token, future, exc)
            else:
                del self._waiting[token]
        self._sending = True

    @property
    def _can_send(self) -> bool:
        return self._pause is None and self._failures.fatal_error is None and self._connection.is_connected

    # ------------------------------------------------------------ time

    def _check_time(self, future: AckFuture) -> float:
        """Return the time at which a new message must be checked."""
        timeout = self._limits.timeout
        return future._deadline - (timeout - min(timeout, RESEND_AFTER_S))

    @fail_on_unexpected
    def _on_due(self, tokens: list[str], now: float) -> None:
        """Fail messages whose timeout has passed; send messages with an id and without a reply again."""
        up = self._connection.is_connected
        self._connection._outages.cut_off.on_silence()
        for token in tokens:
            future = self._pending[token]
            if future._deadline <= now:
                self._expire(token, future)
            elif not has_msg_id(future._head):
                self.replies.postpone(token, future._deadline)
            else:
                self.replies.postpone(token, min(now + RESEND_AFTER_S, future._deadline))
                if up and token not in self._waiting and self._is_id_known(future):
                    retry = self._retry_state(token, future)
                    if not retry.refused_since_check:
                        self._note_silence(token, future)
                        self._waiting[token] = None
                    retry.refused_since_check = False
        self._send_waiting()
        self._wake_waiters()

    def _note_silence(self, token: str, future: AckFuture) -> None:
        """A copy of it has no answer."""
        retry = self._retry_state(token, future)
        retry.maybe_stored, retry.is_answered = True, False

    def _is_id_known(self, future: AckFuture) -> bool:
        """True if a stream that has this message still knows its id."""
        api = self._limits.api
        return api is None or api.streams.knows_id(future.subject, future._deadline - self._limits.timeout)

    def _is_stream_known(self, future: AckFuture) -> bool:
        api = self._limits.api
        return api is None or api.streams.of_subject(future.subject) is not None

    def _expire(self, token: str, future: AckFuture) -> None:
        subject, timeout = future.subject, self._limits.timeout
        retry = self._retry_states.get(token)
        if token not in self._waiting:
            in_a_row = self._limits.api.on_ack_timeout(timeout) if self._limits.api is not None else 0
            disconnected = self._connection._outages.seconds_of_last(timeout)
            self._fail(token, future, errors.PublishTimeout(subject, timeout, in_a_row, disconnected=disconnected))
        elif retry is not None and retry.error is not None:
            self._fail(token, future, retry.error)
        else:
            outages = self._connection._outages
            self._fail(token, future, outages.timeout_error(f"publish to {subject!r}", timeout, sent=False))

    # ------------------------------------------------------------ waiting and ending

    @property
    def _has_too_many_failures(self) -> bool:
        """True if as many unreported messages have failed as may be pending."""
        return len(self._failures) >= self._limits.max_pending

    def _wake_waiters(self) -> None:
        """Wake the waiters."""
        if self.full and self._has_room():
            self.full = False
            if self._changed:
                self._outbox.cork()  # they are about to go on
        if self._changed and (
            not self.full or self._has_too_many_failures or self._failures.fatal_error is not None or not self._pending
        ):
            self._changed.wake()

    def _has_room(self) -> bool:
        # A full window takes messages again when half of it is free: while the server works on one half, the other
        # goes out in one write. With a tenth of it the throughput was 10 % less.
        limits = self._limits
        low = limits.max_pending - max(1, limits.max_pending // 2)
        return (
            len(self._pending) <= low
            and self.nbytes <= limits.max_pending_bytes // 2
            and not self._has_too_many_failures
        )

    def _finish(self, error: errors.NatsError, reason: str) -> None:
        """End the window: every message sent without a reply may be stored."""
        if self._failures.fatal_error is None:
            self._failures.fatal_error = error
        self._sending = False
        self.replies.close()
        if self._pause is not None:
            self._pause.cancel()
        for task in (*self._resolving.values(), self._report):
            if task is not None:
                task.cancel()
        for token, future in list(self._pending.items()):
            retry = self._retry_states.get(token)
            if token not in self._waiting or (retry is not None and retry.maybe_stored):
                self._fail(token, future, uncertain_error(future.subject, error, self._limits.timeout, reason))
            else:
                self._fail(token, future, error)
        self._wake_waiters()
