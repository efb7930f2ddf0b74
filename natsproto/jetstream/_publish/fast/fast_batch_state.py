"""PURE. Fast batches as the client sees them (ADR-50): which messages the stream has, and what to send next.

``BatchMessages`` owns the state of each message, ``FastBatchState`` the batch in progress. ``next_command`` returns the
next message to send and ``on_sent`` records it; ``on_reply`` takes a reply and returns the seconds to pause sending;
``on_tick`` counts the time without replies. The module does no I/O and reads no clock.

A message's position is its state: ``pending`` starts after the settled messages; its first ``sent - acked`` were sent
in the current batch, the rest wait. Message numbers continue from batch to batch.

The server counts a batch's messages and reports a missing one. With ``gap="fail"`` it ends the batch there and has
stored the messages before the gap. The others are sent again in a new batch, so the stream is complete and in order.
With ``gap="ok"`` the batch continues, and lost messages are counted. The stream reports them once, and the report can
be lost with the connection, so messages in flight then are counted too.

Rules:

1. At most ``flow * outstanding`` messages are without a known outcome, and a new one waits while they have
   ``max_pending_bytes``.
2. A message has an outcome when the stream has acknowledged it or one after it, when the stream has rejected it, or
   when the publisher ends: then PublishUncertain if a copy may be stored.
3. Each step is an operation of ours or an event of the stream. ``TRANSITIONS`` has the phase that follows,
   ``IGNORED`` the pairs that change nothing, and any other pair is reported as a bug.
4. A missing reply is requested by a ping, or by the commit or the end marker once more. After the first message it is
   requested by an end marker, because a ping could start a batch at a stream that has forgotten this one.
5. Messages go into a new batch when the stream has said how far it stored the old one, or does not know it any more.
   In the second case all of them need ids; without ids the publisher ends.
6. A message that is a batch of its own is sent again only with an id.
7. A batch is committed on request, after two ticks without messages, and when a caller waits for room but too few
   messages fit to be acknowledged.
8. Without a reply for ``timeout`` the publisher ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from natsproto import errors
from natsproto.jetstream._publish.batch_messages import BatchMessages, PendingMessage
from natsproto.jetstream._publish.headers import has_msg_id
from natsproto.jetstream._publish.outcome import expectation_of, refusal_error, uncertain_refusal
from natsproto.jetstream._publish.retry_policy import RetryCounter, is_rejected_for_now, uncertain_error
from natsproto.jetstream._values.codec import parse
from natsproto.jetstream._values.error_codes import ErrCode, api_error
from natsproto.jetstream._values.info import PubAck, decode_pub_ack
from natsproto.protocol.headers import parse_headers

_FATAL_CODES = frozenset(
    {ErrCode.BATCH_PUBLISH_DISABLED, ErrCode.BATCH_PUBLISH_INVALID_PATTERN, ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID}
)


class BatchOperation(IntEnum):
    """The operation that a message requests, as in its reply subject."""

    START = 0
    APPEND = 1
    COMMIT = 2
    END = 3
    PING = 4


class BatchPhase(Enum):
    """The phase of the current batch."""

    IDLE = "no batch"
    STARTING = "first message sent, no reply yet"
    OPEN = "the stream accepts messages"
    PINGING = "waiting for the stream to report the last sequence"
    GAP_FOUND = "the stream ended it and will report the last sequence"
    COMMITTING = "committing message sent"
    SINGLE_MESSAGE = "committed with its only message"
    ENDING = "end marker sent"


class BatchEvent(Enum):
    """Something that happens to a batch, other than a sent message."""

    ACKED = "the stream stored messages"
    RETRY_LATER = "a message was rejected for now"
    GAP_FOUND = "a message is missing or was rejected, and gaps are not allowed"
    COMMIT_REJECTED = "the committing message was rejected, so the batch is still open"
    ENDED = "the stream has ended the batch, or does not know it"


_STARTED = frozenset(BatchPhase) - {BatchPhase.IDLE}

TRANSITIONS: Mapping[tuple[BatchPhase, BatchOperation | BatchEvent], BatchPhase] = {
    (BatchPhase.IDLE, BatchOperation.START): BatchPhase.STARTING,
    (BatchPhase.IDLE, BatchOperation.COMMIT): BatchPhase.SINGLE_MESSAGE,
    (BatchPhase.STARTING, BatchOperation.END): BatchPhase.ENDING,
    (BatchPhase.OPEN, BatchOperation.COMMIT): BatchPhase.COMMITTING,
    (BatchPhase.OPEN, BatchOperation.END): BatchPhase.ENDING,
    (BatchPhase.OPEN, BatchOperation.PING): BatchPhase.PINGING,
    (BatchPhase.PINGING, BatchOperation.END): BatchPhase.ENDING,
    (BatchPhase.STARTING, BatchEvent.ACKED): BatchPhase.OPEN,
    (BatchPhase.PINGING, BatchEvent.ACKED): BatchPhase.OPEN,
    (BatchPhase.STARTING, BatchEvent.RETRY_LATER): BatchPhase.IDLE,  # none of its messages is stored: start it again
    (BatchPhase.SINGLE_MESSAGE, BatchEvent.RETRY_LATER): BatchPhase.IDLE,
    (BatchPhase.OPEN, BatchEvent.RETRY_LATER): BatchPhase.PINGING,
    (BatchPhase.COMMITTING, BatchEvent.COMMIT_REJECTED): BatchPhase.OPEN,
    **{(phase, BatchEvent.GAP_FOUND): BatchPhase.GAP_FOUND for phase in _STARTED},
    **{(phase, BatchEvent.ENDED): BatchPhase.IDLE for phase in _STARTED},
}
"""The next phase of a batch."""

IGNORED: frozenset[tuple[BatchPhase, BatchOperation | BatchEvent]] = frozenset(
    {
        # The same operation again, and END where a ping or a commit would start a new batch.
        (BatchPhase.OPEN, BatchOperation.APPEND),
        (BatchPhase.PINGING, BatchOperation.PING),
        (BatchPhase.GAP_FOUND, BatchOperation.PING),
        (BatchPhase.GAP_FOUND, BatchOperation.END),
        (BatchPhase.COMMITTING, BatchOperation.COMMIT),
        (BatchPhase.COMMITTING, BatchOperation.END),
        (BatchPhase.SINGLE_MESSAGE, BatchOperation.COMMIT),
        (BatchPhase.ENDING, BatchOperation.END),
        # Replies to messages that were sent before the phase began.
        (BatchPhase.OPEN, BatchEvent.ACKED),
        (BatchPhase.GAP_FOUND, BatchEvent.ACKED),
        (BatchPhase.COMMITTING, BatchEvent.ACKED),
        (BatchPhase.ENDING, BatchEvent.ACKED),
        (BatchPhase.PINGING, BatchEvent.RETRY_LATER),
        (BatchPhase.GAP_FOUND, BatchEvent.RETRY_LATER),
        (BatchPhase.COMMITTING, BatchEvent.RETRY_LATER),
        (BatchPhase.ENDING, BatchEvent.RETRY_LATER),
        # The last message was rejected, but it was not the committing one.
        (BatchPhase.OPEN, BatchEvent.COMMIT_REJECTED),
        (BatchPhase.PINGING, BatchEvent.COMMIT_REJECTED),
        (BatchPhase.ENDING, BatchEvent.COMMIT_REJECTED),
        # The publisher ends without a batch, or the first message was not sent.
        (BatchPhase.IDLE, BatchEvent.ENDED),
        (BatchPhase.IDLE, BatchEvent.RETRY_LATER),
    }
)
"""Pairs that change nothing. Every other pair that is not in TRANSITIONS is a bug."""

RESEND_OPERATIONS: Mapping[BatchPhase, BatchOperation] = {
    # The first message is not sent again in another batch: a stream that has yet to store it tells of a copy, which it
    # knows by its id, that it is stored. If the first is then lost with its leader, so is the message.
    BatchPhase.STARTING: BatchOperation.END,
    BatchPhase.OPEN: BatchOperation.PING,
    BatchPhase.PINGING: BatchOperation.PING,
    BatchPhase.GAP_FOUND: BatchOperation.PING,
    # A ping starts no batch: a stream that has ended this one replies that it is unknown.
    BatchPhase.COMMITTING: BatchOperation.COMMIT,
    BatchPhase.SINGLE_MESSAGE: BatchOperation.COMMIT,
    BatchPhase.ENDING: BatchOperation.END,
}
"""The operation that requests a missing reply."""


class Command(NamedTuple):
    """Something to send to the stream."""

    operation: BatchOperation
    sequence: int
    message: PendingMessage


class FastOptions(NamedTuple):
    """The limits of a publisher, documented at ``js.fast_publisher``. Times are in seconds."""

    gap_ok: bool
    flow: int
    outstanding: int
    max_pending_bytes: int
    timeout: float
    retry_attempts: int
    retry_wait: float

    @property
    def tick(self) -> float:
        """Seconds of silence after which the stream is pinged. An idle batch is committed after two ticks."""
        return min(1.0, self.timeout / 4)

    @property
    def max_pending(self) -> int:
        """The most messages without a known outcome."""
        return self.flow * self.outstanding


class FastBatchState:
    """The current batch of a publisher. ``name`` is the prefix of the batch ids.

    ``on_unlisted`` is called with the description of a pair that neither TRANSITIONS nor IGNORED has.
    """

    __slots__ = (
        *("_acked", "_commits", "_limits", "_name", "_number", "_retry_counter", "_rejection", "_repeat"),
        *("_silent_ticks", "_is_commit_wanted", "_maybe_stored", "_on_unlisted", "_reported"),
        *("messages", "phase", "sent", "append_until", "ack_flow"),
    )

    def __init__(
        self, name: bytes, limits: FastOptions, messages: BatchMessages, on_unlisted: Callable[[str], None]
    ) -> None:
        self._name, self._limits, self._on_unlisted = name, limits, on_unlisted
        self.messages = messages
        self.phase = BatchPhase.IDLE
        self.sent = 0
        """The sequence of the last message sent in the batch."""
        self.append_until = 0
        """Up to this sequence, messages can be sent at once and recorded with ``append``; 0 for none."""
        self.ack_flow = 0
        """Messages per acknowledgement, set by the stream; 0 until it has accepted a message."""
        self._number = 1
        self._acked = 0  # the sequence before the first pending message
        self._maybe_stored = 0  # the last message of which an earlier batch may have stored a copy, by number
        self._commits = 0  # how often a commit or an end was sent
        self._is_commit_wanted = False
        self._repeat = False  # a missing reply is to be requested
        self._silent_ticks = 0  # ticks since the last reply
        self._retry_counter = self._new_retry_counter()
        self._rejection: tuple[int, errors.NatsError] | None = (
            None  # the sequence that ends the publisher, gaps not allowed
        )
        self._reported: set[int] = set()  # sequences after the settled ones: rejected or lost, with gaps allowed

    def _new_retry_counter(self) -> RetryCounter:
        return RetryCounter(self._limits.retry_attempts, self._limits.retry_wait)

    @property
    def batch(self) -> bytes:
        """The id of the current or next batch."""
        return b"%b-%d" % (self._name, self._number)

    @property
    def idle(self) -> bool:
        """True if no batch is open and nothing is pending."""
        return self.phase is BatchPhase.IDLE and not self.messages.pending

    @property
    def has_too_many_failures(self) -> bool:
        """True if there are as many unreported failures as there may be pending messages."""
        return self.messages.failures >= self._limits.max_pending

    @property
    def full(self) -> bool:
        """True if the next message must wait for room."""
        limits, messages = self._limits, self.messages
        full = len(messages.pending) >= limits.max_pending or messages.nbytes >= limits.max_pending_bytes
        return full or self.has_too_many_failures

    # ------------------------------------------------------------ publishing

    def append(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Record a message that was just sent, up to ``append_until``, and return its number."""
        messages = self.messages
        self.sent += 1
        messages.pending.append((subject, payload, block))
        messages.nbytes = nbytes = messages.nbytes + len(payload)
        if nbytes >= self._limits.max_pending_bytes:
            self.append_until = 0
        return messages.settled + len(messages.pending)

    def commit(self) -> None:
        """Commit the batch after the accepted messages, or with the next one."""
        self._is_commit_wanted, self.append_until = True, 0

    def commit_if_short(self) -> None:
        """To be called when a caller waits for room: commit if too few messages fit to be acknowledged."""
        if self.phase is BatchPhase.OPEN and self._in_flight == len(self.messages.pending) < self.ack_flow:
            self.commit()

    # ------------------------------------------------------------ commands

    @property
    def _in_flight(self) -> int:
        return self.sent - self._acked

    @property
    def _limit(self) -> int:
        return self._acked + self.ack_flow * self._limits.outstanding

    def next_command(self) -> Command | None:
        """Return the command to send now; None when there is none before the next event."""
        pending, phase = self.messages.pending, self.phase
        if self.messages.fatal_error is not None:
            return None
        if self._repeat:
            return self._resend_command(RESEND_OPERATIONS[phase])
        if phase is BatchPhase.IDLE and pending:
            alone = self._is_commit_wanted and len(pending) == 1
            return Command(BatchOperation.COMMIT if alone else BatchOperation.START, 1, pending[0])
        if phase is not BatchPhase.OPEN:
            return None
        unsent = len(pending) - self._in_flight
        if unsent > 0:
            if self.sent >= self._limit:
                return None
            operation = BatchOperation.COMMIT if self._is_commit_wanted and unsent == 1 else BatchOperation.APPEND
            return Command(operation, self.sent + 1, pending[-unsent])
        return self._resend_command(BatchOperation.END) if self._is_commit_wanted else None

    def _resend_command(self, operation: BatchOperation) -> Command:
        if operation is BatchOperation.COMMIT and self._in_flight:
            return Command(operation, self.sent, self.messages.pending[self._in_flight - 1])
        empty = (self.messages.subject, b"", None)
        if operation is BatchOperation.PING and self.sent > 1:
            return Command(operation, self.sent, empty)
        # END also replaces a ping for the first message: a nats-server 2.14 that has forgotten the batch would start a
        # new one with the ping, and report a gap. It is also sent if only the reply to a commit is missing.
        return Command(BatchOperation.END, self.sent + 1, empty)

    def on_sent(self, command: Command) -> None:
        """Record a sent command."""
        operation = command.operation
        if operation is BatchOperation.COMMIT or operation is BatchOperation.END:
            self._commits += 1
        if operation is not BatchOperation.END:
            self.sent = command.sequence
        self._repeat, self.append_until = False, 0
        self._transition(operation)

    def allow_append(self) -> None:
        """Allow ``append`` if the open batch has room. To be called when no command is due."""
        in_step = self.phase is BatchPhase.OPEN and self._in_flight == len(self.messages.pending)
        if in_step and not self.full and not self._is_commit_wanted:
            self.append_until = min(self._limit, self._acked + self._limits.max_pending)
        else:
            self.append_until = 0

    def resend(self) -> None:
        """Decide how to request a missing reply.

        A message that is a batch of its own is resent only with an id, since a stream that has already ended the batch
        would start another with the copy. In all other cases the stream can say what it has, or that the batch is
        unknown.
        """
        is_alone = self.phase is BatchPhase.SINGLE_MESSAGE
        self._repeat = self.phase is not BatchPhase.IDLE and not (is_alone and not self._first_has_id)

    @property
    def _first_has_id(self) -> bool:
        return has_msg_id(self.messages.pending[0][2])

    # ------------------------------------------------------------ the connection and the clock

    def on_disconnect(self, unsent: Iterable[BatchOperation], reason: str) -> None:
        """The connection was lost. ``unsent`` are the operations that were not written; they count as not sent."""
        self._retry_counter = self._new_retry_counter()
        self.append_until = 0
        for operation in unsent:
            if operation is BatchOperation.COMMIT or operation is BatchOperation.END:
                self._commits -= 1
                if self._commits:
                    continue  # an earlier copy may have been written
                self.phase = BatchPhase.OPEN
            if operation in (BatchOperation.START, BatchOperation.APPEND, BatchOperation.COMMIT):
                self.sent -= 1
        if self.sent == 0:
            self._transition(BatchEvent.ENDED)
        elif self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE_MESSAGE):
            if not self._first_has_id:
                self._on_batch_unknown(reason)
        elif self._limits.gap_ok:
            self._lose_up_to(self.sent)

    def on_reconnect(self) -> None:
        """There is a connection again; replies may have been lost."""
        self._silent_ticks = 0
        self.resend()

    def on_pause_end(self) -> None:
        """The pause after a reply is over."""
        if self.phase not in (BatchPhase.OPEN, BatchPhase.GAP_FOUND):
            self.resend()

    def on_tick(self, *, can_send: bool) -> None:
        """There was no reply for a tick. Gives up at the timeout."""
        self._silent_ticks += 1
        limits = self._limits
        if self._silent_ticks > int(limits.timeout / limits.tick):
            if self._retry_counter.no_stream and self.phase is BatchPhase.IDLE:  # the stream has disappeared
                self._stop(1, errors.NoStream(self.messages.pending[0][0]))
            else:
                self.give_up("no reply", errors.RequestTimeout("fast ingest", limits.timeout, sent=False))
        elif can_send:
            if self.phase is not BatchPhase.OPEN or self.full or self._is_commit_wanted:
                self.resend()
            elif self._silent_ticks >= 2:
                self.commit()

    # ------------------------------------------------------------ replies of the stream

    def on_reply(self, batch: bytes, sequence: int, payload: bytes) -> float:
        """Handle the reply to a message of a batch; return the seconds to pause sending."""
        if batch != self.batch:
            return 0  # a reply to an earlier batch
        self._silent_ticks = 0
        try:
            reply = parse(payload, "reply to fast ingest")
            kind = reply.get("type")
            if kind == "ack":
                self._on_ack(_count_field(reply, "seq"), _count_field(reply, "msgs"))
            elif kind == "gap":
                self._on_gap(_count_field(reply, "last_seq"), _count_field(reply, "seq"))
            elif kind == "err":
                self._on_refused(_count_field(reply, "seq"), api_error(reply, "fast ingest"))
            elif "error" in reply:
                return self._on_error(sequence, api_error(reply, f"fast ingest to {self.messages.subject!r}"))
            else:
                self._on_end(decode_pub_ack(reply))
        except errors.NatsError as exc:  # the reply is invalid
            self.give_up(str(exc), exc)
        return 0

    def on_no_responders(self, batch: bytes) -> float:
        """A message had no responders: there is no stream, or it has no leader now. Returns as ``on_reply``."""
        if batch != self.batch:
            return 0
        subject = self.messages.subject
        pause = self._retry_counter.pause_after(errors.NoStream(subject))
        # If the stream has replied before, wait for its election; in an open batch, earlier messages may be stored.
        if pause is None and self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE_MESSAGE) and not self.ack_flow:
            self._stop(1, errors.NoStream(subject))
            return 0
        self._transition(BatchEvent.RETRY_LATER)
        return self._limits.retry_wait

    def _on_ack(self, sequence: int, msgs: int) -> None:
        """All messages up to a sequence are stored (or lost, with gaps allowed); earlier acks are included."""
        self._transition(BatchEvent.ACKED)
        self._repeat = False
        self._retry_counter = self._new_retry_counter()
        self._settle_up_to(sequence)
        self.ack_flow = max(1, msgs)

    def _on_gap(self, first: int, following: int) -> None:
        """The stream lacks the messages from ``first`` to the one before ``following``."""
        if self._limits.gap_ok:
            self._count_lost(range(max(first, self._acked + 1), min(following, self.sent + 1)))
        else:
            self._transition(BatchEvent.GAP_FOUND)  # its next reply reports the last sequence

    def _on_refused(self, sequence: int, error: errors.NatsError) -> None:
        """The stream rejected a message of the batch."""
        if self._limits.gap_ok:
            if sequence not in self._reported:  # a repeated commit is rejected again
                self._fail(sequence, error)
                self._reported.add(sequence)
            if self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE_MESSAGE):
                self._settle_up_to(1)
                self._transition(BatchEvent.ENDED)
        else:
            self._rejection = sequence, error
            self._transition(BatchEvent.GAP_FOUND)

    def _on_error(self, sequence: int, error: errors.ApiError) -> float:
        """The stream did not add a message to the batch."""
        code, gap_ok = error.err_code, self._limits.gap_ok
        if code == ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID:
            self._on_batch_unknown("the stream does not know the batch any more")
        elif is_rejected_for_now(error):
            self._transition(BatchEvent.RETRY_LATER)
            return self._retry_counter.pause_after(error) or 0
        elif code in _FATAL_CODES or (sequence == 1 and not gap_ok):
            self._stop(sequence, error)
        else:
            self._on_refused(sequence, error)
            if not gap_ok:
                self._repeat = True  # the stream will notice the gap and report the last sequence
            elif sequence == self.sent:
                self._commits = 0
                self._transition(BatchEvent.COMMIT_REJECTED)
        return 0

    def _on_end(self, ack: PubAck) -> None:
        """The batch has ended; ``ack`` has the number of its messages."""
        if not ack.batch:
            self._settle_up_to(1)
            reason = f"stream {ack.stream!r} stored the message alone (nats-server 2.14 is needed)"
            self.give_up(reason, errors.UnsupportedByServer("fast ingest", reason))
            return
        self.ack_flow = max(1, self.ack_flow)
        self._retry_counter = self._new_retry_counter()
        self._is_commit_wanted = False
        last = ack.count
        while last + 1 in self._reported:  # the committing message has failed and is not resent
            last += 1
        self._settle_up_to(last)
        self.messages.set_ack(ack)
        if self._rejection is not None:
            self._stop(*self._rejection)
        else:
            self._transition(BatchEvent.ENDED)

    def _on_batch_unknown(self, reason: str) -> None:
        """The last stored message is unknown. With gaps allowed the messages in flight count as lost, except a first
        one with an id; otherwise they are sent again, if all have ids.
        """
        is_first_alone = self.sent == self._in_flight == 1 and not self._reported
        if self._limits.gap_ok and not (is_first_alone and self._first_has_id):
            self._lose_up_to(self.sent)
        elif not all(has_msg_id(block) for _, _, block in self.messages.pending[: self._in_flight]):
            self.give_up(reason, errors.LocalProtocolError(f"the publisher has ended: {reason}"))
            return
        self._maybe_stored = max(self._maybe_stored, self.messages.settled + self._in_flight)
        self._transition(BatchEvent.ENDED)

    def _transition(self, event: BatchOperation | BatchEvent) -> None:
        """Change the phase (only ``on_disconnect`` also does). After a batch has ended, unsettled messages go into the
        next one.
        """
        phase = TRANSITIONS.get((self.phase, event))
        if phase is None:
            if (self.phase, event) not in IGNORED:
                self._on_unlisted(f"{type(event).__name__}.{event.name} in the phase {self.phase.name}")
            return
        self.phase, self.append_until = phase, 0
        if phase is BatchPhase.IDLE:
            self._number += 1
            self.sent = self._acked = self._commits = 0
            self._repeat = False
            self._rejection = None
            self._reported.clear()
            self.messages.ended = self.messages.settled

    # ------------------------------------------------------------ outcomes

    def _settle_up_to(self, sequence: int) -> None:
        settled = max(0, min(sequence, self.sent) - self._acked)
        self._acked += settled
        self.messages.settle(settled)
        if self._reported:
            self._reported = {sequence for sequence in self._reported if sequence > self._acked}

    def _lose_up_to(self, sequence: int) -> None:
        self._count_lost(range(self._acked + 1, sequence + 1))
        self._settle_up_to(sequence)

    def _count_lost(self, sequences: range) -> None:
        lost = set(sequences) - self._reported
        self.messages.lost += len(lost)
        self._reported |= lost

    def _fail(self, sequence: int, error: errors.NatsError) -> None:
        index = sequence - self._acked - 1
        self.messages.fail(index, self._refusal_of(index, error))
        if self.has_too_many_failures:
            self.append_until = 0

    def _refusal_of(self, index: int, error: errors.NatsError) -> errors.NatsError:
        """Return the error of a rejected message: PublishUncertain if the refusal is not certain (see ``outcome``), as
        far as this publisher knows the sequences of the stream.
        """
        if isinstance(error, errors.WrongLastSequence) and 0 <= index < len(self.messages.pending):
            subject, _, block = self.messages.pending[index]
            expected = expectation_of(subject, parse_headers(block or b"").pairs())
            known = 0 if self.messages.ack is None else self.messages.ack.seq
            refusal = uncertain_refusal(error, min(expected.seq, known))
            if refusal is not None:
                return refusal_error(subject, refusal, error)
        return error

    def _stop(self, sequence: int, error: errors.NatsError) -> None:
        """End the publisher: a message was rejected and gaps are not allowed, so later ones are not stored either."""
        refused = max(0, sequence - self._acked - 1)
        number = self.messages.settled + refused + 1
        behind = errors.JetStreamError(f"not stored, because message {number} (sent earlier) was rejected")
        in_doubt = max(refused, self._maybe_stored - self.messages.settled)
        refusals: list[errors.NatsError] = [
            errors.PublishUncertain(subject, str(error)) if index < in_doubt else behind
            for index, (subject, _, _) in enumerate(self.messages.pending)
        ]
        if refused < len(refusals) and (refused >= in_doubt or not isinstance(error, errors.NoStream)):
            refusals[refused] = self._refusal_of(refused, error)  # also of a copy: a stream that has it knows the id
        self._finish(
            refusals, errors.LocalProtocolError(f"the publisher has ended: message {number} was rejected: {error}")
        )

    def on_permission_error(self, error: errors.PermissionDenied) -> None:
        """The server rejects messages to a subject."""
        if any(subject == error.subject for subject, _, _ in self.messages.pending):
            self.give_up(str(error), error)

    def give_up(self, reason: str, fatal_error: errors.NatsError) -> None:
        """End the publisher, unless it has ended: sent messages without an acknowledgement may be stored."""
        if self.messages.fatal_error is not None:
            return
        in_doubt = max(
            self._maybe_stored - self.messages.settled, 0 if self.phase is BatchPhase.IDLE else self._in_flight
        )
        refusals = [
            self._error_of(subject, reason, fatal_error) if index < in_doubt else fatal_error
            for index, (subject, _, _) in enumerate(self.messages.pending)
        ]
        self._finish(refusals, fatal_error)

    def _error_of(self, subject: str, reason: str, fatal_error: errors.NatsError) -> errors.NatsError:
        if isinstance(fatal_error, errors.PermissionDenied) and subject == fatal_error.subject:
            return fatal_error
        return uncertain_error(subject, fatal_error, self._limits.timeout, reason)

    def _finish(self, refusals: list[errors.NatsError], fatal_error: errors.NatsError) -> None:
        first = self._acked + 1
        remaining = [None if seq in self._reported else error for seq, error in enumerate(refusals, first)]
        self.messages.finish(remaining, fatal_error)
        self._transition(BatchEvent.ENDED)


def _count_field(reply: dict[str, object], name: str) -> int:
    value = reply.get(name)
    if type(value) is not int or value < 0:
        raise errors.InvalidReply("reply to fast ingest", name, value, "must be a number")
    return value
